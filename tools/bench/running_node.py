"""``python -m tools.bench.running_node``: measures a running node, its storage and its links."""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bfia_gateway_client.calls import segment
from gateway.cli.client import DEFAULT_CONFIG, URL, CallFailed, Client, connect, settings_of
from gateway.cli.tables import table

_PATHS = {
    "the process responds": "/health/live",
    "a page of jobs": "/api/v1/jobs",
    "the routes": "/api/v1/routes",
}
_MIB = 1024 * 1024
_TIMEOUT = 150  # seconds of a request, such as the test of a route
# Steps of the test of a route, and their names in the table.
_LINK_STEPS = {
    "latency": "round trip",
    "body": "request of 1 MiB",
    "way back": "way back",
}


def main() -> None:
    """Print a table of the measurements."""
    options = parse_options()
    try:
        with connect(options.config, options.url, timeout=_TIMEOUT) as node:
            rows = _request_rows(node, options.requests)
            if not options.url:  # the node, and so its storage, is on this machine
                folder = settings_of(options.config).storage.path
                rows += _storage_rows(folder, options.mib)
            for peer in options.peers:
                rows += _link_rows(node, peer)
            table(node.url, ["what", "median", "99 of 100 within", "rate"], rows)
    except CallFailed as error:
        sys.exit(str(error))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tools.bench.running_node",
    )
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
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG,
    )
    parser.add_argument(
        "--url",
        default=os.environ.get(URL, ""),
    )
    return parser.parse_args()


def _request_rows(
    node: Client,
    count: int,
) -> list[list[str]]:
    """Return a row for each kind of request."""
    rows = []
    for name, path in _PATHS.items():
        seconds = [_timed(partial(node.get, path)) for _ in range(count)]
        rows.append(_row(name, seconds, f"{count / sum(seconds):.0f}/s, one after the other"))
    return rows


def _storage_rows(folder: Path, mib: int) -> list[list[str]]:
    """Write and read a temporary file in the storage's folder, or in its nearest parent."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    block = os.urandom(_MIB)
    with tempfile.NamedTemporaryFile(dir=existing, prefix="bench-") as file:
        written = [_timed(partial(file.write, block)) for _ in range(mib)]
        file.flush()
        written.append(_timed(partial(os.fsync, file.fileno())))
        file.seek(0)
        read = [_timed(partial(file.read, _MIB)) for _ in range(mib)]
    write_rate = f"{mib / sum(written):.0f} MiB/s, including fsync"
    read_rate = f"{mib / sum(read):.0f} MiB/s, from the page cache if it fits"
    return [
        _row("storage, 1 MiB written", written, write_rate),
        _row("storage, 1 MiB read", read, read_rate),
    ]


def _link_rows(node: Client, peer: str) -> list[list[str]]:
    """Return the times of the test of a route. Raises `CallFailed` if a step of it fails."""
    steps = node.post(f"/api/v1/routes/{segment(peer)}/test", {})["steps"]
    for step in steps:
        if step["result"] == "failed":
            text = f"link to {peer}, {step['name']}: {step['cause']}"
            raise CallFailed(f"{text}; bfia-gateway route test {peer}")
    passed = {step["name"]: step for step in steps if step["result"] == "ok"}
    rows = []
    for name, title in _LINK_STEPS.items():
        if name in passed:
            rows.append([f"{peer}, {title}", _step_time(passed[name]), "", ""])
    return rows


def _step_time(step: Mapping[str, Any]) -> str:
    """Return the time of a step; all but the one with a body contain it in their finding."""
    if step["name"] == "body":
        return f"{step['seconds'] * 1000:.1f} ms"
    return str(step["found"])


def _row(
    name: str,
    seconds: Sequence[float],
    rate: str,
) -> list[str]:
    """Return a row with the median and the 99th percentile of some times."""
    index = max(0, len(seconds) * 99 // 100 - 1)
    percentile = sorted(seconds)[index]
    median = statistics.median(seconds)
    return [name, f"{median * 1000:.2f} ms", f"{percentile * 1000:.2f} ms", rate]


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
