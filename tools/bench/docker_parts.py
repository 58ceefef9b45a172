"""Jobs in containers against the same containers started bare: one job, many jobs, clusters."""

import argparse
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from functools import partial

from tests.conftest import remove_networks
from tests.e2e.nodes import Node
from tools.bench import clusters, load
from tools.bench.daemon import daemon_cost
from tools.bench.floor import Floor, build
from tools.bench.nodes import DOCKER_ENGINE, GUEST, chain, two_nodes
from tools.bench.parts import PARTS, Rows, part, print_table, rounds_of, rounds_within

# Tasks of a chain, and seconds of all its rounds.
_CHAINS = {1: 12.0, 3: 28.0, 10: 70.0}
_LONGEST_COMPLETE_CHAIN = 3  # longer ones run neither with callbacks nor on the host's network
_LONG_TASK_SECONDS = 4.0
_LONG_CHAIN = 3  # tasks
_JOBS = 50  # jobs that are submitted together
_CONCURRENT_CONTAINERS = (2, 4, 8)  # of the bare containers; the best number counts
_CLIENTS = 32


@part(
    "makespan",
    "Makespan of a job at two nodes under Docker",
    (
        "tasks in a chain",
        "job, poll",
        "job, callback",
        "bare, engine's API",
        "on the host's network",
        "ratio",
        "to the host's network",
    ),
)
def makespan(options: argparse.Namespace) -> Rows:
    """Compare chains of tasks, with both ways of reporting, with bare containers."""
    build()
    with Floor() as floor, two_nodes(DOCKER_ENGINE) as (node, _):
        load.run(node, chain(1))  # so that the image and the network are known
        floor.chain(1)
        for tasks, seconds in _CHAINS.items():
            yield _makespan_row(node, floor, tasks, rounds_within(seconds, options))
    remove_networks()


def _makespan_row(
    node: Node,
    floor: Floor,
    tasks: int,
    rounds: Iterable[int],
) -> list[object]:
    runs = {
        "poll": partial(load.run, node, chain(tasks, "poll")),
        "bridge": partial(floor.chain, tasks),
    }
    if tasks <= _LONGEST_COMPLETE_CHAIN:
        runs["callback"] = partial(load.run, node, chain(tasks, "callback"))
        runs["host"] = partial(floor.chain, tasks, "host")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in rounds:
        for name, run in runs.items():
            times[name].append(run())
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    columns = [_seconds_of(name, medians) for name in ("poll", "callback", "bridge", "host")]
    to_host = "–"
    if "host" in medians:
        to_host = f"{medians['poll'] / medians['host']:.2f}"
    return [tasks, *columns, f"{medians['poll'] / medians['bridge']:.2f}", to_host]


def _seconds_of(name: str, medians: Mapping[str, float]) -> str:
    """Return a median as the table shows it; a dash if it was not measured."""
    if name not in medians:
        return "–"
    return f"{medians[name]:.2f} s"


@part(
    "namespaces",
    "Chain of three tasks of 4 s at two nodes under Docker: prepared network namespaces",
    ("job", "bare, on a bridge", "on the host's network", "ratio to the bridge", "cpu of the job"),
)
def prepared_namespaces(options: argparse.Namespace) -> Rows:
    """Compare tasks that last, for whose successors namespaces are prepared, with bare containers.

    The processor time is the daemon's, as a multiple of that of the bare containers on a bridge.
    """
    build(_LONG_TASK_SECONDS)
    with Floor() as floor, two_nodes(DOCKER_ENGINE) as (node, _):
        load.run(node, chain(1))  # so that the image and the network are known
        jobs = []
        bridges = []
        hosts = []
        for _ in range(rounds_of(options)):
            hosts.append(floor.chain(_LONG_CHAIN, "host"))
            bridges.append(daemon_cost(partial(floor.chain, _LONG_CHAIN)))
            jobs.append(daemon_cost(partial(load.run, node, chain(_LONG_CHAIN))))
    remove_networks()
    job = statistics.median(cost.seconds for cost in jobs)
    bridge = statistics.median(cost.seconds for cost in bridges)
    processor = statistics.median(cost.processor for cost in jobs)
    bare_processor = statistics.median(cost.processor for cost in bridges)
    host = statistics.median(hosts)
    seconds = [f"{value:.1f} s" for value in (job, bridge, host)]
    yield [*seconds, f"{job / bridge:.2f}", f"{processor / bare_processor:.2f}"]


@part(
    "together",
    "Jobs submitted together at two nodes under Docker",
    (
        "jobs of one task",
        "first",
        "again",
        "bare, on the host's network",
        "concurrent containers",
        "ratio",
        "again",
    ),
)
def together(options: argparse.Namespace) -> Rows:
    """Compare many jobs with bare containers on the host's network, in their best concurrency."""
    build()
    job_times: list[float] = []
    bare_times: dict[int, list[float]] = {count: [] for count in _CONCURRENT_CONTAINERS}
    with Floor() as floor, two_nodes(DOCKER_ENGINE) as (node, _):
        load.run(node, chain(1))  # so that the image and the network are known
        for _ in range(rounds_of(options) + 1):
            floor.wait_until_prepared()
            for concurrent, times in bare_times.items():
                times.append(floor.together(_JOBS, concurrent))
            job_times.append(_run_together(node))
    remove_networks()
    medians = {count: statistics.median(times) for count, times in bare_times.items()}
    best_count = min(medians, key=medians.__getitem__)
    best = medians[best_count]
    first = job_times[0]
    again = statistics.median(job_times[1:])
    seconds = [f"{value:.1f} s" for value in (first, again, best)]
    yield [_JOBS, *seconds, best_count, f"{first / best:.2f}", f"{again / best:.2f}"]


def _run_together(node: Node) -> float:
    """Return the seconds of many jobs that are submitted together."""
    start = time.perf_counter()
    for job_id in load.submit_many([node], chain(1), _JOBS, _CLIENTS):
        assert load.wait_until_ended(node, job_id)["outcome"] == "SUCCEEDED"
    return time.perf_counter() - start


def measure_clusters(options: argparse.Namespace) -> None:
    """Print a table for each kind of cluster; nothing if one of the clusters is not set up."""
    variables = [f"BFIA_TEST_{kind.upper()}" for kind in clusters.KINDS]
    missing = [name for name in variables if name not in os.environ]
    if missing:
        print(f"Clusters are not measured: {' and '.join(missing)} not set\n")
        return
    build()
    for kind in clusters.KINDS:
        rows = list(clusters.rows(kind, GUEST, chain(1), options.tasks, rounds_of(options)))
        title = f"A job at one node against the same containers bare ({kind})"
        print_table(kind, title, clusters.HEADINGS, rows)


PARTS["clusters"] = measure_clusters
