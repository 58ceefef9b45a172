"""The round trips of control requests over a long line: counted, never timed."""

from contextlib import ExitStack

import pytest

from gateway.domain.states import JobStatus, TaskStatus
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, two_nodes
from tests.counted_line import OPENED, TURN, CountedLine
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER
from tests.linking import key_of, set_routes
from tests.memory_engine import Script

MODES = ("poll", "callback")
HOST = "host.0"
# A slow machine repeats requests after a silence, so the cheapest of some jobs counts.
JOBS = 3


@pytest.fixture(scope="module")
def round_trips():
    """The round trips of both nodes, in their order."""
    return []


@pytest.fixture(scope="module")
def launches(round_trips):
    """The round trips before each launch at the host's node."""
    return []


@pytest.fixture(scope="module")
def world(tmp_path_factory, round_trips, launches):
    """Two nodes at the ends of a long line, which have run a job together."""

    def note_launch(_):
        launches.append(list(round_trips))
        return Script(code=None)

    with ExitStack() as stack:
        world = stack.enter_context(two_nodes(tmp_path_factory.mktemp("nodes")))
        to_me = CountedLine(
            world.me.addresses()["peer"],
            round_trips,
        )
        to_peer = CountedLine(
            world.peer.addresses()["peer"],
            round_trips,
        )
        stack.enter_context(to_me)
        stack.enter_context(to_peer)
        set_routes(
            world.me,
            {PEER: {"url": to_peer.url}},
        )
        set_routes(
            world.peer,
            {ME: {"url": to_me.url}},
        )
        world.engine(world.peer).images = {IMAGE: note_launch}
        spec = a_job("first", "callback")
        submit(world, spec)
        run_to_end(world, spec)
        yield world


def a_job(job_id, mode):
    return a_spec(
        "a -> b",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        initiator=ME,
        job_id=job_id,
        job_params={"common": {"sync_type": mode}},
    )


def submit(world, spec):
    world.me.coordinator.submit_job(spec, ME)


def run_to_end(world, spec):
    for task in ("a", "b"):
        world.end_all(spec, task)
    world.wait_status(spec.job_id, JobStatus.FINISHED)
    world.closed(spec.job_id, world.me, world.peer)


def wait_until_reported(world, spec):
    """Wait until the scheduling node knows that the host runs the first task."""

    def is_reported():
        task = world.job(spec.job_id).tasks["a"]
        return task.nodes[PEER].status is TaskStatus.RUNNING

    wait_for(is_reported)


@pytest.mark.parametrize("mode", MODES)
def test_create_all_costs_one_round_trip_per_node(world, round_trips, mode):
    costs = []
    for number in range(JOBS):
        job_id = f"created-{mode}-{number}"
        spec = a_job(job_id, mode)
        round_trips.clear()
        submit(world, spec)
        costs.append(list(round_trips))
        run_to_end(world, spec)

    assert min(costs, key=len) == [TURN]


@pytest.mark.parametrize("mode", MODES)
def test_two_round_trips_lie_between_two_tasks(world, round_trips, launches, mode):
    costs = []
    for number in range(JOBS):
        job_id = f"chain-{mode}-{number}"
        spec = a_job(job_id, mode)
        submit(world, spec)
        wait_until_reported(world, spec)
        round_trips.clear()
        world.end_all(spec, "a")
        world.run(
            spec.job_id,
            "b",
            HOST,
            world.peer,
        )
        costs.append(launches[-1])
        world.end_all(spec, "b")
        world.wait_status(spec.job_id, JobStatus.FINISHED)
        world.closed(spec.job_id, world.me, world.peer)

    assert min(costs, key=len) == [TURN, TURN]


def test_a_partner_with_keys_is_connected_ahead_of_the_first_job(tmp_path):
    with two_nodes(tmp_path) as world, CountedLine(world.peer.addresses()["peer"]) as line:
        to_peer = {
            "url": line.url,
            "keys": key_of(world.peer).public,
        }
        to_me = {
            "url": world.me.addresses()["peer"],
            "keys": key_of(world.me).public,
        }
        set_routes(world.me, {PEER: to_peer})
        set_routes(world.peer, {ME: to_me})
        world.me.protocol.keep_connections()
        line.round_trips.clear()

        spec = a_job("first", "callback")
        submit(world, spec)

        assert OPENED not in line.round_trips
        assert line.round_trips[0] == TURN
        run_to_end(world, spec)
