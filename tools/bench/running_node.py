"""Measures a running node, its storage and its links to peers:

``python -m tools.bench.running_node``.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bfia_gateway_client.calls import segment
from gateway.cli.client import DEFAULT_CONFIG, URL, CallFailed, Client, connect, settings_of
from gateway.cli.tables import table

_PATHS = {
    "the process responds": "/health/live",
    "a page of jobs": "/api/v1/jobs",
    "the routes": "/api/v1/routes",
}
_MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.bench.running_node")
    parser.add_argument(
        "peers",
        nargs="*",
        metavar="NODE",
        help="measure the link to these nodes, too",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=200,
        help="requests of each kind",
    )
    parser.add_argument(
        "--mib",
        type=int,
        default=64,
        help="MiB written to and read from the storage",
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG)
    parser.add_argument("--url", default=os.environ.get(URL, ""))
    options = parser.parse_args()
    try:
        with connect(options.config, options.url, timeout=150) as node:
            rows, count = [], options.requests
            for what, path in _PATHS.items():
                seconds = [_timed(lambda path=path: node.get(path)) for _ in range(count)]  # type: ignore[misc]
                rows.append(
                    _row(what, seconds, f"{count / sum(seconds):.0f}/s, one after the other")
                )
            if not options.url:  # the storage is on this machine
                rows += _storage(settings_of(options.config).storage.path, options.mib)
            rows += [row for peer in options.peers for row in _link(node, peer)]
            table(node.url, ["what", "median", "99 of 100 within", "rate"], rows)
    except CallFailed as error:
        sys.exit(str(error))


def _storage(folder: Path, mib: int) -> list[list[str]]:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    block = os.urandom(_MIB)
    with tempfile.NamedTemporaryFile(dir=existing, prefix="bench-") as file:
        written = [_timed(lambda: file.write(block)) for _ in range(mib)]
        file.flush()
        written.append(_timed(lambda: os.fsync(file.fileno())))
        file.seek(0)
        read = [_timed(lambda: file.read(_MIB)) for _ in range(mib)]
    return [
        _row("storage, 1 MiB written", written, f"{mib / sum(written):.0f} MiB/s, including fsync"),
        _row(
            "storage, 1 MiB read",
            read,
            f"{mib / sum(read):.0f} MiB/s, from the page cache if it fits",
        ),
    ]


def _link(node: Client, peer: str) -> list[list[str]]:
    """Return what the test of the route finds. Raises `CallFailed` where a step of it fails."""
    steps = node.post(f"/api/v1/routes/{segment(peer)}/test", {})["steps"]
    for step in steps:
        if step["result"] == "failed":
            raise CallFailed(
                f"link to {peer}, {step['name']}: {step['cause']}; bfia-gateway route test {peer}"
            )
    passed = {step["name"]: step for step in steps if step["result"] == "ok"}
    rows = []
    for name, what in (
        ("latency", "round trip"),
        ("body", "request of 1 MiB"),
        ("way back", "way back"),
    ):
        if step := passed.get(name):
            median = f"{step['seconds'] * 1000:.1f} ms" if name == "body" else step["found"]
            rows.append([f"{peer}, {what}", median, "", ""])
    return rows


def _row(
    what: str,
    seconds: Sequence[float],
    rate: str,
) -> list[str]:
    worst = sorted(seconds)[max(0, len(seconds) * 99 // 100 - 1)]
    return [what, f"{statistics.median(seconds) * 1000:.2f} ms", f"{worst * 1000:.2f} ms", rate]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
