"""The costs of a job in statements and of a request in round trips: counted, never timed.

No query of a job scans the rows of ended jobs. `tools.crossings` prints the cost of a request.
"""

import re
import threading
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from gateway.domain.states import JobStatus
from tests.builders import a_spec, at
from tests.contracts.apis import ME, PEER, two_nodes
from tools.crossings import measure

# The tables that keep the rows of ended jobs.
GROWING_TABLES = (
    "job",
    "local_job",
    "task",
    "run",
    "timeline",
    "submission",
    "audit",
    "provider_revision",
)
# The most statements for a job of one task, by the node's side.
STATEMENTS_PER_JOB = {
    "scheduling": 62,
    "taking part": 33,
}
# The most round trips to the database for a request.
ROUND_TRIPS = {
    "create_all until the job is stored": 4,
    "a container's callback": 2,
}
JOBS = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("costs")) as world:
        yield world


@pytest.fixture(scope="module")
def statements_of_jobs(world):
    """The statements for each of some jobs of one task, from its submission to its end, by side."""
    statements = {
        "scheduling": [],
        "taking part": [],
    }
    for number in range(JOBS):
        with (
            statements_of(world.me, is_background_work) as scheduling,
            statements_of(world.peer, is_background_work) as taking_part,
        ):
            run_job(world, f"job-{number}")
        statements["scheduling"].append(list(scheduling))
        statements["taking part"].append(list(taking_part))
    return statements


@pytest.mark.parametrize("side", STATEMENTS_PER_JOB)
def test_a_job_scans_no_rows_of_ended_jobs(world, statements_of_jobs, side):
    node = {"scheduling": world.me, "taking part": world.peer}[side]

    scans = {}
    for job_statements in statements_of_jobs[side]:
        for text, values in job_statements:
            tables = scanned_tables(node.store, text, values)
            if tables:
                scans[text] = tables
    assert scans == {}


def test_active_jobs_are_found_without_a_scan_of_ended_ones(world, statements_of_jobs):
    store = world.me.store

    with statements_of(world.me, is_by_the_test) as statements:
        store.has_active_job_with("JG0000000000000404")
        for records in (store.jobs, store.local_jobs):
            records.unfinished()
            records.due(at(0))
        store.launched("somebody")
        world.me.approvals.waiting()

    assert len(statements) == 8
    for text, values in statements:
        assert scanned_tables(store, text, values) == [], text


@pytest.mark.parametrize(
    ("side", "limit"),
    STATEMENTS_PER_JOB.items(),
)
def test_a_job_of_one_task_costs_few_statements(statements_of_jobs, side, limit):
    counted = []
    for statements in statements_of_jobs[side]:
        counted.append([text for text, _ in statements if is_part_of_job(text)])

    # A slow machine repeats calls after a silence, so the cheapest job counts.
    cheapest = min(counted, key=len)
    assert 20 < len(cheapest) <= limit, "\n".join(cheapest)


@pytest.fixture(scope="module")
def crossings(tmp_path_factory):
    """The measured cost of requests, by their names."""
    return {crossing.name: crossing for crossing in measure(tmp_path_factory.mktemp("node"))}


@pytest.mark.parametrize(
    ("name", "limit"),
    ROUND_TRIPS.items(),
)
def test_a_request_makes_few_round_trips(crossings, name, limit):
    crossing = crossings[name]

    assert 1 < crossing.round_trips <= limit, crossing.statements


@contextmanager
def statements_of(node, is_counted):
    """Collect the statements of a node as (text, values).

    ``is_counted`` takes a thread and returns whether its statements count.
    """
    url = node.settings.database.url
    statements = []

    def note(
        connection,
        _cursor,
        text,
        values,
        _context,
        is_many,
    ):
        is_of_node = str(connection.engine.url) == url
        if is_of_node and is_counted(threading.current_thread()):
            statements.append((text, values[0] if is_many else values))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def is_by_the_test(thread):
    return thread is threading.main_thread()


def is_background_work(thread):
    return not is_by_the_test(thread)


def is_part_of_job(text):
    """True for a statement of a job: not of a loop, of a heartbeat or of the waiting test."""
    is_of_loop = "due_at <=" in text
    is_of_heartbeat = "gateway" in text
    is_of_wait = text.startswith(("SELECT job.version", "SELECT local_job.version"))
    return not (is_of_loop or is_of_heartbeat or is_of_wait)


def scanned_tables(store, text, values):
    """Return the growing tables that a statement reads from end to end, by the database's plan."""
    if text.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
        return []
    with store.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()
    tables = []
    for step in plan:
        scan = re.match(
            r"SCAN (\w+)",
            str(step[3]),
        )  # the fourth column describes the step
        if scan and scan[1] in GROWING_TABLES:
            tables.append(scan[1])
    return tables


def run_job(world, job_id):
    """Run a job to its end, in a thread whose statements count as the job's."""
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        scheduler=ME,
        initiator=ME,
        job_id=job_id,
        job_params={"common": {"sync_type": "callback"}},
    )

    def submit_and_end():
        world.me.coordinator.submit_job(spec, ME)
        world.end(
            job_id,
            "a",
            "guest.0",
            node=world.me,
        )
        world.end(
            job_id,
            "a",
            "host.0",
            node=world.peer,
        )

    thread = threading.Thread(target=submit_and_end)
    thread.start()
    thread.join(60)
    assert world.wait_status(job_id, JobStatus.FINISHED).outcome == "SUCCEEDED"
