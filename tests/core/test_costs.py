"""What a job costs in statements, and a request in round trips: counted, never timed.

No query of a job scans the rows of ended jobs. `tools.crossings` prints the cost of a request.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.domain.states import JobStatus
from gateway.store.store import Store
from tests.builders import a_spec, at
from tests.contracts.apis import ME, PEER, World, two_nodes
from tools.crossings import Crossing, measure

GROWING = (
    "job",
    "local_job",
    "task",
    "run",
    "timeline",
    "submission",
    "audit",
    "provider_revision",
)
"""tables that keep the rows of ended jobs"""

Statement = tuple[str, Any]


@contextmanager
def told(
    store: Store,
    *,
    others_only: bool = False,
    own_only: bool = False,
) -> Iterator[list[Statement]]:
    """Collect the statements of all threads, of all but the test's own, or of that one."""
    found: list[Statement] = []

    def before(
        _connection: Any,
        _cursor: Any,
        text: str,
        values: Any,
        _context: Any,
        many: bool,
    ) -> None:
        own = threading.current_thread() is threading.main_thread()
        if not ((others_only and own) or (own_only and not own)):
            found.append((text, values[0] if many else values))

    sa.event.listen(store._engine, "before_cursor_execute", before)
    try:
        yield found
    finally:
        sa.event.remove(store._engine, "before_cursor_execute", before)


def reads_all_of(store: Store, statement: Statement) -> list[str]:
    """Return the growing tables that a statement goes through from end to end, by the database's own plan."""
    text, values = statement
    if text.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
        return []
    with store.read() as connection:
        plan = [
            str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
        ]
    scanned = (found[1] for line in plan if (found := re.match(r"SCAN (\w+)", line)))
    return [table for table in scanned if table in GROWING]


Played = tuple[World, dict[str, list[list[Statement]]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Jobs of one task, each from its submission until both nodes have put it away; what they asked for each."""
    asked: dict[str, list[list[Statement]]] = {"scheduling": [], "taking part": []}
    with two_nodes(tmp_path_factory.mktemp("costs")) as world:
        for number in range(6):
            with (
                told(world.me.store, others_only=True) as mine,
                told(world.peer.store, others_only=True) as theirs,
            ):
                spec = a_spec("a", {"guest": (ME,), "host": (PEER,)}, scheduler=ME, initiator=ME)
                spec = replace(
                    spec, job_id=f"job-{number}", job_params={"common": {"sync_type": "callback"}}
                )
                work = threading.Thread(target=_play, args=(world, spec))
                work.start()
                work.join(60)
                assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome == "SUCCEEDED"
            asked["scheduling"].append(list(mine))
            asked["taking part"].append(list(theirs))
        yield world, asked


def _play(world: World, spec: Any) -> None:
    world.me.coordinator.submit_job(spec, ME)
    for label, node in (("guest.0", world.me), ("host.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)


def test_a_job_reads_through_nothing_that_is_over(played):
    world, asked = played
    for store, jobs in (
        (world.me.store, asked["scheduling"]),
        (world.peer.store, asked["taking part"]),
    ):
        statements = (statement for job in jobs for statement in job)
        found = {
            text: tables
            for text, values in statements
            if (tables := reads_all_of(store, (text, values)))
        }
        assert not found


def test_what_is_under_way_is_found_without_what_is_over(played):
    store = played[0].me.store
    with told(store, own_only=True) as asked:
        store.in_use("JG0000000000000404")
        for records in (store.jobs, store.local_jobs):
            records.unfinished()
            records.due(at(0))
        store.launched("somebody")
        played[0].me.participant.waiting()
    assert len(asked) == 8
    assert not [text for text, values in asked if reads_all_of(store, (text, values))]


@pytest.mark.parametrize(("side", "most"), [("scheduling", 62), ("taking part", 33)])
def test_a_job_of_one_task_costs_few_statements(
    played: Played,
    side: str,
    most: int,
):
    looks = ("SELECT job.version", "SELECT local_job.version")  # the test itself looks often
    counted = [
        [
            text
            for text, _ in job
            if "due_at <=" not in text and "gateway" not in text and not text.startswith(looks)
        ]
        for job in played[1][side]
    ]
    fewest = min(counted, key=len)  # a slow machine asks after a silence, too
    assert 20 < len(fewest) <= most, "\n".join(fewest)


ROUND_TRIPS = {
    "create_all until the job is stored": 4,
    "a container's callback": 2,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Crossing]:
    return {crossing.name: crossing for crossing in measure(tmp_path_factory.mktemp("node"))}


@pytest.mark.parametrize(("name", "limit"), ROUND_TRIPS.items())
def test_a_request_makes_few_round_trips(
    measured: dict[str, Crossing],
    name: str,
    limit: int,
) -> None:
    crossing = measured[name]
    assert 1 < crossing.round_trips <= limit, crossing.statements
