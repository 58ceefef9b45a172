"""Two nodes at the ends of a long line, beside a bare TCP stream over the same line."""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.nodes import Node
from tools.bench import load
from tools.bench.channel import Ends, message_times
from tools.bench.line_nodes import LongLine, bare_seconds, long_line, nodes_at_line
from tools.bench.long_line import ROUND_TRIP
from tools.bench.nodes import HOST, chain, process_engine, reporting_engine
from tools.bench.parts import Rows, part
from tools.bench.request_parts import start_job

# Congestion controls of a namespace: reno, and often cubic, slow down after each lost
# packet; bbr takes little notice of losses.
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_WAYS = ("direct", "link")
_PARALLEL = (1, 2, 4)
_MIB = 1 << 20
_POP_TIMEOUT = "600000"  # milliseconds
_KIB_MESSAGES = 20  # of one pair, one after the other
_PAIRS = (8, 64)  # of senders and readers together
# A loss makes reno and cubic so slow that a smaller message takes as long.
_SMALLER = {"bbr": 1}
_USUALLY_SMALLER = 2
_CHAIN = 5  # tasks
_JOBS = 5
_REST_SECONDS = 30.0
_CUT_SECONDS = 30.0


@part(
    "line",
    "A line of 100 ms round trip, 0.1 % loss and 100 Mbit/s",
    ("congestion control", "way", "measured", "result", "by one TCP stream, or in round trips"),
)
def line(options: argparse.Namespace) -> Rows:
    """Measure messages, control requests and a cut over a long line."""
    for congestion in _ALLOWED.read_text().split():
        mib = max(options.line_mib // _SMALLER.get(congestion, _USUALLY_SMALLER), 1)
        with long_line(congestion) as emulated:
            bare = bare_seconds(mib * _MIB)
            yield _shown([congestion, "bare", f"{mib} MiB", _rate(mib * _MIB, bare), "1.00"])
            for way in _WAYS:
                for row in _messages(
                    way,
                    mib,
                    bare,
                    emulated,
                ):
                    yield _shown([congestion, way, *row])
            for row in _jobs():
                yield _shown([congestion, "direct", *row])


def _shown(row: list[str]) -> list[str]:
    """Print a row as soon as it is there: the whole table takes minutes."""
    print("  ", *row, file=sys.stderr, flush=True)
    return row


def _messages(
    way: str,
    mib: int,
    bare: float,
    emulated: LongLine,
) -> Iterator[list[str]]:
    """Yield the rows of messages from container to container.

    ``bare``: seconds of one TCP stream for as many bytes.
    """
    size = mib * _MIB
    with _channel(way) as (sender, ends):
        for parallel in _PARALLEL:
            _set_parallel(sender, parallel)
            (seconds,) = message_times(ends, size, 1)
            name = f"{mib} MiB, parallel {parallel}"
            yield [
                name,
                _rate(size, seconds),
                f"{bare / seconds:.2f}",
            ]
        yield from _short_messages(ends)
        yield _cut(ends, size, seconds, emulated)


def _short_messages(ends: Ends) -> Iterator[list[str]]:
    """Yield the rows of messages of 1 KiB: one after the other, and many together."""
    message_times(ends, 1024, 2)  # connects
    median = statistics.median(message_times(ends, 1024, _KIB_MESSAGES))
    yield [
        "1 KiB",
        f"{median * 1000:.0f} ms",
        f"{median / ROUND_TRIP:.2f} round trips",
    ]
    for pairs in _PAIRS:
        yield _pairs(ends, pairs)


def _pairs(ends: Ends, pairs: int) -> list[str]:
    """Return the row of short messages of many pairs together."""
    start = time.perf_counter()
    with ThreadPoolExecutor(pairs) as pool:
        measurements = [pool.submit(message_times, ends, 1024, _KIB_MESSAGES) for _ in range(pairs)]
        seconds = [value for measurement in measurements for value in measurement.result()]
    rate = len(seconds) / (time.perf_counter() - start)
    return [
        f"1 KiB, {pairs} pairs",
        f"{rate:.0f}/s",
        f"{statistics.median(seconds) / ROUND_TRIP:.2f} round trips (median)",
    ]


def _cut(
    ends: Ends,
    size: int,
    usual: float,
    emulated: LongLine,
) -> list[str]:
    """Return the row of a message in the middle of which the line is cut.

    ``usual``: seconds of such a message without a cut.
    """
    middle = usual / 2
    timers = [
        threading.Timer(middle, emulated.cut),
        threading.Timer(middle + _CUT_SECONDS, emulated.restore),
    ]
    for timer in timers:
        timer.start()
    (seconds,) = message_times(ends, size, 1)
    for timer in timers:
        timer.join()
    cost = seconds - usual - _CUT_SECONDS
    return [f"a cut of {_CUT_SECONDS:.0f} s", f"{seconds:.1f} s", f"{cost:+.1f} s besides the cut"]


def _jobs() -> Iterator[list[str]]:
    """Yield the rows of create_all, and of the time between two tasks."""
    with nodes_at_line("direct", reporting_engine()) as (guest, _):
        load.run(guest, chain(1))
        submissions = []
        for _ in range(_JOBS):
            start = time.perf_counter()
            job_id = guest.submit(chain(1, mode="callback"))
            submissions.append(time.perf_counter() - start)
            load.wait_until_ended(guest, job_id)
        yield [
            "create_all",
            *_in_round_trips(statistics.median(submissions)),
        ]
        time.sleep(_REST_SECONDS)
        start = time.perf_counter()
        load.wait_until_ended(guest, guest.submit(chain(1, mode="callback")))
        yield [
            f"a job after {_REST_SECONDS:.0f} s of rest",
            *_in_round_trips(time.perf_counter() - start),
        ]
        per_task = (_median_of(guest, _CHAIN) - _median_of(guest, 1)) / (_CHAIN - 1)
        yield [
            "each further task of a chain",
            *_in_round_trips(per_task),
        ]


def _median_of(guest: Node, tasks: int) -> float:
    """Return the median seconds of chains of ``tasks`` tasks."""
    job = chain(tasks, "callback")
    return statistics.median(load.run(guest, job) for _ in range(_JOBS))


def _in_round_trips(seconds: float) -> tuple[str, str]:
    return f"{seconds * 1000:.0f} ms", f"{seconds / ROUND_TRIP:.2f} round trips"


def _rate(size: int, seconds: float) -> str:
    return f"{size / seconds / 1e6:.2f} MB/s"


def _set_parallel(sender: Node, parallel: int) -> None:
    """Change the number of connections of a long message."""
    change = {"route": {"parallel": parallel}}
    response = sender.ask("PATCH", f"/api/v1/routes/{HOST}", json=change)
    assert response.is_success, response.text


@contextmanager
def _channel(way: str) -> Iterator[tuple[Node, Ends]]:
    """Yield the sending node, and the ends of a channel over the line."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        program = str(Path(__file__).with_name("staying.py"))
        engine = process_engine(sys.executable, program, name)
        limits = {"message_bytes": 512 * _MIB, "session_bytes": 2048 * _MIB}
        with nodes_at_line(way, engine, limits=limits) as nodes:
            ends = start_job(nodes, folder)
            pop_headers = {**ends.pop_headers, "x-ptp-timeout": _POP_TIMEOUT}
            yield nodes[0], ends._replace(pop_headers=pop_headers)
