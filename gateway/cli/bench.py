"""``bfia-gateway bench``: how fast a running node, its storage and its links are. Leaves nothing behind."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_FAILED,
    AsJson,
    Client,
    Config,
    Url,
    connect,
    nodes,
    reporting,
    segment,
    settings_of,
    show,
    table,
)

_PATHS = {"the process answers": "/health/live", "a page of jobs": "/api/v1/jobs", "the routes": "/api/v1/routes"}
_MIB = 1024 * 1024


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "bench", epilog="Exit codes: 0 measured, 1 a link does not work, 2 bad input, 3 no answer from the node."
    )(bench)


def bench(
    node_id: Annotated[
        list[str] | None, typer.Argument(help="Nodes to measure the link to; default: none.", autocompletion=nodes)
    ] = None,
    requests: Annotated[int, typer.Option(min=10, max=10_000, help="How many requests of each kind.")] = 200,
    mib: Annotated[int, typer.Option(min=1, max=4096, help="MiB written to and read from the storage.")] = 64,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Measure a running node: its answers, its storage, its links. `make bench` measures whole jobs.

    Example: bfia-gateway bench JG0100002200000020
    """
    with reporting(as_json), connect(config, url, timeout=150) as node:
        found = [_answers(node, what, path, requests) for what, path in _PATHS.items()]
        if not url:  # the storage is on this machine
            found += _storage(settings_of(config).storage.path, mib)
        found += [step for one in node_id or () for step in _link(node, one)]
        if as_json:
            show({"figures": found})
        else:
            rows = [[f["what"], f["median"], f["worst"], f["rate"], f["cause"]] for f in found]
            table(f"{node.url}", ["what", "median", "99 of 100 within", "rate", "problem"], rows)
        if any(f["cause"] for f in found):
            raise typer.Exit(EXIT_FAILED)


def _answers(node: Client, what: str, path: str, count: int) -> dict[str, Any]:
    taken = [_timed(lambda: node.get(path)) for _ in range(count)]
    return _figure(what, taken, f"{count / sum(taken):.0f}/s, one after the other")


def _storage(folder: Path, mib: int) -> list[dict[str, Any]]:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    block = os.urandom(_MIB)
    with tempfile.NamedTemporaryFile(dir=there, prefix="bench-") as file:
        written = [_timed(lambda: file.write(block)) for _ in range(mib)]
        file.flush()
        written.append(_timed(lambda: os.fsync(file.fileno())))
        file.seek(0)
        read = [_timed(lambda: file.read(_MIB)) for _ in range(mib)]
    return [
        _figure("storage, 1 MiB written", written, f"{mib / sum(written):.0f} MiB/s, until it is on disk"),
        _figure("storage, 1 MiB read", read, f"{mib / sum(read):.0f} MiB/s, from memory if it fits"),
    ]


def _link(node: Client, other: str) -> list[dict[str, Any]]:
    """Return round trip and large request to another node, as the trial of the route finds them."""
    trial = node.post(f"/api/v1/routes/{segment(other)}/test", {})
    failed = [step for step in trial["steps"] if step["result"] == "failed"]
    if failed:
        cause = f"{failed[0]['name']}: {failed[0]['cause']}; see: bfia-gateway route test {other}"
        return [{"what": f"link to {other}", "median": "", "worst": "", "rate": "", "cause": cause}]
    steps = {step["name"]: step for step in trial["steps"] if step["result"] == "ok"}
    figures = []
    for name, what in (("latency", "round trip"), ("body", "request of 1 MiB"), ("way back", "way back")):
        if step := steps.get(name):
            median = step["found"] if name != "body" else f"{step['seconds'] * 1000:.1f} ms"
            figures.append({"what": f"{other}, {what}", "median": median, "worst": "", "rate": "", "cause": ""})
    return figures


def _figure(what: str, taken: Sequence[float], rate: str) -> dict[str, Any]:
    worst = sorted(taken)[max(0, len(taken) * 99 // 100 - 1)]
    median = statistics.median(taken)
    return {"what": what, "median": _ms(median), "worst": _ms(worst), "rate": rate, "cause": ""}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
