"""Jobs that compete with others, large databases, the console, failover and signatures."""

import argparse
import os
import statistics
from pathlib import Path

from tests.e2e.nodes import Node
from tests.services.browser import PROGRAM
from tools.bench import console, load
from tools.bench.failover import failover
from tools.bench.nodes import GUEST, chain, reporting_engine, two_nodes
from tools.bench.parts import Rows, part
from tools.bench.signing import signing
from tools.bench.soak import HEADINGS as SOAK_HEADINGS
from tools.bench.soak import soak

_CHAIN_LENGTH = 3  # tasks of the small job
_CONCURRENT_JOBS = 1000
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
            options.rounds,
        )
    yield [
        options.tasks,
        f"{times.alone:.2f} s",
        f"{times.with_large:.2f} s",
        f"{times.with_large / times.alone:.1f}",
        f"{times.large:.0f} s",
    ]


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
    repetitions = 2 * options.rounds + 1
    with two_nodes(reporting_engine()) as nodes:
        node = nodes[0]
        before = _median_of_chains(node, repetitions)
        job_id = _ended_job(node)
        for each in nodes:
            _fill_database(each, job_id)
        after = _median_of_chains(node, repetitions)
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
        yield from console.visits(node, job_id, 2 * options.rounds + 1)


def _median_of_chains(node: Node, repetitions: int) -> float:
    """Return the median seconds of a small job, after one that does not count."""
    load.run(node, chain(_CHAIN_LENGTH))
    return statistics.median(load.run(node, chain(_CHAIN_LENGTH)) for _ in range(repetitions))


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
    for _ in range(options.rounds):
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
