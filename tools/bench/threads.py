"""Futex calls, context switches and transactions of a job of one task, and threads of a node.

Futex calls and context switches are counted by `perf`, which does not slow the process down. Under
`strace` the same job makes up to eight times as many futex calls: while a system call is traced,
the other threads wait in vain for the interpreter and ask again every 5 ms.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.nodes import Node, wait_for
from tools.bench import load, memory_node
from tools.bench.nodes import PROCESS_ENGINE, chain, two_nodes
from tools.bench.parts import Rows, part, rounds_within

_JOBS = 20  # of a round, one after the other
_IDLE_SECONDS = 4.0  # of the count of an idle node
_SECONDS = 15.0  # of all rounds of a node
_BURST = 40  # jobs submitted together
_BURST_CLIENTS = 16
_ENDED_CHECK_INTERVAL = 0.005  # seconds between two looks into the database
_JOB_TIMEOUT = 60.0  # seconds
_FUTEX = "syscalls:sys_enter_futex"


@dataclass(frozen=True)
class Counts:
    """Counts of a node over some time."""

    futex_calls: float
    switches: float
    transactions: float
    statements: float

    def minus(self, idle: "Counts", share: float) -> "Counts":
        """Return these counts without a share of those of an idle node."""
        return Counts(
            self.futex_calls - idle.futex_calls * share,
            self.switches - idle.switches * share,
            self.transactions - idle.transactions * share,
            self.statements - idle.statements * share,
        )


@dataclass(frozen=True)
class _Burst:
    """What a node does while many jobs are submitted together."""

    threads: int  # the most at a time
    futex_calls: float  # per job


@part(
    "threads",
    "A job of one task at two nodes (memory engine): what it costs each node, and its threads",
    (
        "node",
        "futex calls per job",
        "context switches per job",
        "transactions per job",
        "statements per job",
        "futex calls per job of a burst",
        "threads under load",
    ),
)
def threads(options: argparse.Namespace) -> Rows:
    """Count what one job costs the scheduling node and the node that takes part."""
    if shutil.which("perf") is None:
        print("Threads are not measured: futex calls are counted by perf (linux-perf)\n")
        return
    job = chain(1)
    job["dag"]["components"][0]["output"] = []  # no container could write it
    prefix = [sys.executable, "-m", "tools.bench.memory_node", memory_node.COUNT]
    with two_nodes(PROCESS_ENGINE, prefix=prefix) as nodes:
        _run_jobs(nodes, job, _JOBS)
        names = ("scheduling", "taking part")
        for name, node in zip(names, nodes, strict=True):
            rounds = rounds_within(_SECONDS, options)
            counts = [_count_jobs(nodes, node, job) for _ in rounds]
            burst = _count_burst(nodes, node, job)
            yield [
                name,
                *_medians(counts),
                f"{burst.futex_calls:.1f}",
                burst.threads,
            ]


def _medians(counts: Sequence[Counts]) -> list[str]:
    """Return the medians of the counts of several rounds, in the order of the table."""
    columns = (
        [count.futex_calls for count in counts],
        [count.switches for count in counts],
        [count.transactions for count in counts],
        [count.statements for count in counts],
    )
    return [f"{statistics.median(column):.1f}" for column in columns]


def _count_jobs(
    nodes: Sequence[Node],
    node: Node,
    job: dict[str, Any],
) -> Counts:
    """Return the counts of a node for one of several jobs, without those of its idle time."""
    with _Counter(node) as idle:
        time.sleep(_IDLE_SECONDS)
    start = time.perf_counter()
    with _Counter(node) as busy:
        _run_jobs(nodes, job, _JOBS)
        seconds = time.perf_counter() - start
    counts = busy.counts.minus(idle.counts, seconds / _IDLE_SECONDS)
    return Counts(
        counts.futex_calls / _JOBS,
        counts.switches / _JOBS,
        counts.transactions / _JOBS,
        counts.statements / _JOBS,
    )


class _Counter:
    """Counts what a node does until the end of the block; `counts` has the result."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pid = _pid(node)
        self.counts = Counts(0, 0, 0, 0)

    def __enter__(self) -> "_Counter":
        self._perf = subprocess.Popen(
            ["perf", "stat", "-x,", "-e", f"{_FUTEX},context-switches", "-p", str(self._pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._transactions, self._statements = memory_node.read_counts(self._node.home)
        return self

    def __exit__(self, *error: object) -> None:
        transactions, statements = memory_node.read_counts(self._node.home)
        self._perf.send_signal(2)  # perf prints its counts
        _, report = self._perf.communicate()
        futex_calls, switches = _perf_counts(report)
        self.counts = Counts(
            futex_calls,
            switches,
            transactions - self._transactions,
            statements - self._statements,
        )


def _perf_counts(report: str) -> tuple[int, int]:
    """Return the counts of futex calls and of context switches in a report of perf."""
    counts = {}
    for line in report.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[0].isdecimal():
            counts[fields[2]] = int(fields[0])
    return counts[_FUTEX], counts["context-switches"]


def _pid(node: Node) -> int:
    """Return the process of a running node."""
    assert node.process is not None
    return node.process.pid


def _thread_count(node: Node) -> int:
    """Return how many threads a node has now."""
    return len(list(Path(f"/proc/{_pid(node)}/task").iterdir()))


def _count_burst(
    nodes: Sequence[Node],
    node: Node,
    job: dict[str, Any],
) -> _Burst:
    """Return what a node does while many jobs are submitted together."""
    most_threads = 0

    def observe() -> bool:
        nonlocal most_threads
        most_threads = max(most_threads, _thread_count(node))
        return _all_ended(nodes)

    with _Counter(node) as counter:
        load.submit_many([nodes[0]], job, _BURST, _BURST_CLIENTS)
        wait_for(observe, every=0.02)
    return _Burst(most_threads, counter.counts.futex_calls / _BURST)


def _run_jobs(
    nodes: Sequence[Node],
    job: dict[str, Any],
    count: int,
) -> None:
    """Run jobs one after the other; each ends at all nodes before the next is submitted."""
    for _ in range(count):
        nodes[0].submit(job)
        end = time.monotonic() + _JOB_TIMEOUT
        while not _all_ended(nodes):
            assert time.monotonic() < end, "a job has not ended"
            time.sleep(_ENDED_CHECK_INTERVAL)


def _all_ended(nodes: Sequence[Node]) -> bool:
    """Return whether no job is under way at any node; read from their databases."""
    return not any(load.has_unended_jobs(node) for node in nodes)
