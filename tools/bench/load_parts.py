"""Jobs that compete with others, large databases, the console, failover and signatures."""

import argparse
import os
import statistics
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.nodes import Node
from tests.services.browser import PROGRAM
from tools.bench import console, load
from tools.bench.failover import failover
from tools.bench.nodes import GUEST, chain, reporting_engine, two_nodes
from tools.bench.parts import Rows, milliseconds, part, rounds_of, rounds_within
from tools.bench.signing import signing
from tools.bench.soak import HEADINGS as SOAK_HEADINGS
from tools.bench.soak import soak

_CHAIN_LENGTH = 3  # tasks of the small job
_SMALL_JOBS = 5  # that run alone, and beside a large one
_TEN_TASKS = 10
_TASK_COUNTS = (1, _TEN_TASKS, 50)  # and the option's
_TASK_SECONDS = 15.0  # of all rounds with a number of tasks
_CONCURRENT_JOBS = 1000
_ENDED_SECONDS = 8.0  # of all chains without, and of all with ended jobs
_FAILOVER_SECONDS = 20.0
_ENDED_JOBS = 10_000  # in the database


@part(
    "beside",
    "A small job beside a large one (process engine, all on the same cores)",
    (
        "tasks of the large job",
        "chain of 3 alone",
        "beside the large job",
        "ratio",
        "the large job",
    ),
)
def small_with_large(options: argparse.Namespace) -> Rows:
    """Measure how much a large job slows a small one down."""
    large_job = load.independent(chain(1), options.tasks)
    with two_nodes(reporting_engine()) as (node, _):
        times = load.run_with_large(
            node,
            chain(_CHAIN_LENGTH),
            large_job,
            options.rounds or _SMALL_JOBS,
        )
    yield [
        options.tasks,
        f"{times.alone:.2f} s",
        f"{times.with_large:.2f} s",
        f"{times.with_large / times.alone:.1f}",
        f"{times.large:.0f} s",
    ]


@part(
    "tasks",
    "A job of independent tasks at two nodes (process engine)",
    ("tasks", "time", "time per task", "by that of ten tasks"),
)
def independent_tasks(options: argparse.Namespace) -> Rows:
    """Measure how the time per task grows with the number of tasks."""
    times = {}
    with two_nodes(reporting_engine()) as (node, _):
        load.run(node, chain(1))
        for tasks in (*_TASK_COUNTS, options.tasks):
            job = load.independent(chain(1), tasks)
            rounds = rounds_within(_TASK_SECONDS, options)
            times[tasks] = statistics.median(load.run(node, job) for _ in rounds)
    per_task = {tasks: seconds / tasks for tasks, seconds in times.items()}
    for tasks, seconds in times.items():
        ratio = per_task[tasks] / per_task[_TEN_TASKS]
        yield [tasks, f"{seconds:.2f} s", milliseconds(per_task[tasks]), f"{ratio:.2f}"]


@part(
    "thousand",
    "Jobs of one task, all submitted together, at two nodes (process engine)",
    ("jobs", "succeeded", "tasks started twice", "jobs", "status_all p50", "status_all p99"),
)
def thousand(options: argparse.Namespace) -> Rows:
    """Run a thousand concurrent jobs: each ends, no task starts twice, and the node responds."""
    with two_nodes(reporting_engine()) as nodes:
        yield load.run_many(nodes, chain(1), _CONCURRENT_JOBS)


@part(
    "ended",
    "A chain of 3 beside ended jobs in the database (SQLite)",
    ("ended jobs", "without", "with", "ratio"),
)
def with_ended_jobs(options: argparse.Namespace) -> Rows:
    """Measure how much ended jobs in the database slow a job down."""
    with two_nodes(reporting_engine()) as nodes:
        node = nodes[0]
        before = _median_of_chains(node, rounds_within(_ENDED_SECONDS, options))
        job_id = _ended_job(node)
        for each in nodes:
            _fill_database(each, job_id)
        after = _median_of_chains(node, rounds_within(_ENDED_SECONDS, options))
    yield [_ENDED_JOBS, f"{before:.2f} s", f"{after:.2f} s", f"{after / before:.2f}"]


@part("console", f"Pages of the console beside {_ENDED_JOBS} ended jobs (SQLite)", console.HEADINGS)
def pages(options: argparse.Namespace) -> Rows:
    """Measure the requests of the console's pages at a node with many jobs."""
    if not Path(PROGRAM).exists():
        print(f"Pages are not measured: there is no {PROGRAM}\n")
        return
    with two_nodes(reporting_engine()) as (node, _):
        job_id = _ended_job(node)
        _fill_database(node, job_id)
        yield from console.visits(node, job_id, 2 * rounds_of(options) + 1)


def _median_of_chains(node: Node, rounds: Iterable[int]) -> float:
    """Return the median seconds of a small job, after one that does not count."""
    load.run(node, chain(_CHAIN_LENGTH))
    return statistics.median(load.run(node, chain(_CHAIN_LENGTH)) for _ in rounds)


def _ended_job(node: Node) -> str:
    """Run a small job, and return its id."""
    job_id = node.submit(chain(_CHAIN_LENGTH))
    load.wait_until_ended(node, job_id)
    return job_id


def _fill_database(node: Node, job_id: str) -> None:
    """Copy an ended job many times in the database of a node, which is stopped for that."""
    node.stop()
    load.copy_ended(node, job_id, _ENDED_JOBS)
    node.start()


@part(
    "failover",
    "Two gateways on one database: from the death of one until the other starts the next task",
    ("seconds",),
)
def failing_over(options: argparse.Namespace) -> Rows:
    """Measure the failover between two gateways."""
    if "BFIA_TEST_DB_URL" not in os.environ:
        print("Failover is not measured: it needs MariaDB (BFIA_TEST_DB_URL)\n")
        return
    for _ in rounds_within(_FAILOVER_SECONDS, options):
        yield [f"{failover():.1f} s"]


@part("signing", "Signature of a control request", ("algorithm", "sign", "check, nonce kept"))
def signatures(options: argparse.Namespace) -> Rows:
    """Measure signatures by each algorithm."""
    return signing()


@part("soak", "Jobs in progress on three gateways with one MariaDB", SOAK_HEADINGS)
def soaking(options: argparse.Namespace) -> Rows:
    """Measure three gateways of one database with more and more jobs, whose containers stay."""
    job = chain(1)
    job["dag"]["components"][0]["output"] = []
    job["config"]["role"]["host"] = [GUEST]
    return soak(job, options.soak)
