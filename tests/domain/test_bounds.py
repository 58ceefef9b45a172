"""Upper bounds on the time from a cause to its effect, by a simulated clock.

The clock counts the rules' pauses and a fraction of a second per message; a slow machine changes
nothing.
"""

from dataclasses import replace

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling.messages import CreateAt, StopAt
from gateway.domain.states import Outcome, TaskStatus
from tests.builders import T0, Roles, a_spec
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.world import World

TWO_NODES = {
    "guest": ("n1",),
    "host": ("n2",),
}
THREE_NODES = {
    "guest": ("n1",),
    "host": ("n2", "n3"),
}

# No task of a job ends by itself within ten minutes.
LONG_TASKS = {
    ("a", "n1", "guest"): Fate(ends_after=600),
    ("a", "n2", "host"): Fate(ends_after=600),
    ("a", "n3", "host"): Fate(ends_after=600),
}

# Seconds until the tasks of a new job have begun at the latest.
LATEST_BEGIN = 3.5

# Seconds until the scheduling node has a report that a node pushes.
PUSH = 1

# Seconds between two polls of a node at most.
POLL = 2

# Seconds that a stop is under way at most.
STOP = 1

# Seconds after which a call counts as lost.
CALL_DEADLINE = 12

PUSHED = pytest.mark.parametrize(
    "pushes", [frozenset(), frozenset({"n1", "n2", "n3"})], ids=["polled", "pushed"]
)
ROLES = pytest.mark.parametrize(
    "roles",
    [TWO_NODES, THREE_NODES],
    ids=["two", "three"],
)


def play(plot: Plot) -> tuple[World, Job]:
    """Return the world at the end of the plot, and its job."""
    world = World(plot)
    job = world.run()
    return world, job


def arrival(world: World, request: CreateAt | StopAt) -> float:
    """Return the second at which the first of these requests reached its node."""
    return world.clockwork.logged_at(f"{request} arrives")[0]


def stop_arrival(world: World, node: str) -> float:
    """Return the second at which the first stop of the job reached a node."""
    return arrival(world, StopAt(node))


def end_seconds(job: Job) -> float:
    """Return the second at which the job ended."""
    assert job.ended_at is not None
    return (job.ended_at - T0).total_seconds()


def report_delay(pushes: frozenset[str]) -> float:
    """Return the seconds until the scheduling node knows the end of a task."""
    return PUSH if pushes else POLL


@PUSHED
@ROLES
def test_every_node_gets_a_new_job_within_a_second(roles: Roles, pushes: frozenset[str]):
    world, job = play(Plot(a_spec("a", roles), pushes=pushes))

    waiting_for_a_lane = 1
    on_its_way = 0.1
    for node in job.spec.nodes:
        assert arrival(world, CreateAt(node)) < waiting_for_a_lane + on_its_way


@pytest.mark.parametrize("pause", range(0, 40, 3))
def test_another_gateway_takes_over_within_a_deadline_of_a_death(pause: int):
    plot = Plot(
        a_spec("a -> b", TWO_NODES),
        planners=2,
        pushes=frozenset({"n1", "n2"}),
    )
    _, undisturbed_job = play(plot)

    _, job = play(replace(plot, dies_at=pause))

    assert job.outcome is Outcome.SUCCEEDED
    # The dead gateway's call has to expire first, then the survivor has to see its tasks.
    assert end_seconds(job) < end_seconds(undisturbed_job) + CALL_DEADLINE + 3


@PUSHED
@ROLES
def test_a_refusal_reaches_the_other_nodes_within_five_seconds(
    roles: Roles, pushes: frozenset[str]
):
    refusing_node = roles["host"][-1]
    plot = Plot(
        a_spec("a", roles),
        refuses_create=frozenset({refusing_node}),
        pushes=pushes,
    )

    world, job = play(plot)

    assert job.outcome is Outcome.REJECTED
    for node in set(job.spec.nodes) - {refusing_node}:
        assert stop_arrival(world, node) < 5


@PUSHED
@ROLES
def test_a_stop_reaches_every_node_within_two_seconds(roles: Roles, pushes: frozenset[str]):
    plot = Plot(
        a_spec("a -> b", roles),
        fates=LONG_TASKS,
        stop_at=20,
        pushes=pushes,
    )

    world, job = play(plot)

    assert job.outcome is Outcome.STOPPED
    for node in job.spec.nodes:
        assert 20 <= stop_arrival(world, node) < 22
    assert end_seconds(job) < 23


@PUSHED
@ROLES
def test_a_failure_stops_the_other_nodes_within_a_poll(roles: Roles, pushes: frozenset[str]):
    failing_task = {("a", "n2", "host"): Fate(ends_after=33, final_status=TaskStatus.FAILED)}
    plot = Plot(
        a_spec("a", roles),
        fates=LONG_TASKS | failing_task,
        pushes=pushes,
    )

    world, job = play(plot)

    assert job.outcome is Outcome.FAILED
    for node in job.spec.nodes:
        assert stop_arrival(world, node) < LATEST_BEGIN + 33 + report_delay(pushes) + STOP


@PUSHED
@ROLES
def test_a_task_ends_within_three_seconds_of_its_timeout(roles: Roles, pushes: frozenset[str]):
    spec = a_spec(
        "a",
        roles,
        job_params={"common": {"task_timeout": 5}},
    )

    world, job = play(Plot(spec, fates=LONG_TASKS, pushes=pushes))

    started_at = job.tasks["a"].started_at
    assert started_at is not None
    assert job.ending is not None
    assert job.ending.failure is not None
    assert job.ending.failure.reason == "TIMEOUT"
    assert 5 <= (job.ending.at - started_at).total_seconds() < 5 + 3
    for node in job.spec.nodes:
        assert 5 <= stop_arrival(world, node) < 10


@PUSHED
@ROLES
def test_a_persons_refusal_rejects_the_job_everywhere_in_five_seconds(
    roles: Roles, pushes: frozenset[str]
):
    plot = Plot(
        a_spec("a", roles),
        approvals={"n2": (30.0, False)},
        pushes=pushes,
    )

    world, job = play(plot)

    assert job.outcome is Outcome.REJECTED
    for node in set(job.spec.nodes) - {"n2"}:
        assert stop_arrival(world, node) < 30 + 6


@PUSHED
@ROLES
def test_the_end_of_a_job_is_noticed_within_a_poll(roles: Roles, pushes: frozenset[str]):
    parties = [("n1", "guest"), *((node, "host") for node in roles["host"])]
    fates = {("a", node, role): Fate(ends_after=33) for node, role in parties}

    _, job = play(Plot(a_spec("a", roles), fates=fates, pushes=pushes))

    assert job.outcome is Outcome.SUCCEEDED
    assert end_seconds(job) < LATEST_BEGIN + 33 + report_delay(pushes) + STOP


def test_a_node_that_is_silent_at_creation_ends_the_job_in_time():
    plot = Plot(
        a_spec("a", THREE_NODES),
        outages=(Outage("n3", 0, 300),),
    )

    world, job = play(plot)

    assert job.outcome is Outcome.REJECTED
    for node in ("n1", "n2"):
        assert stop_arrival(world, node) < 10 + CALL_DEADLINE + 5


def test_a_dead_node_delays_no_other_stop_and_is_stopped_on_return():
    plot = Plot(
        a_spec("a", THREE_NODES),
        fates=LONG_TASKS,
        stop_at=20,
        outages=(Outage("n3", 10, 200, hangs=True),),
    )
    undisturbed_world, _ = play(replace(plot, outages=()))

    world, _ = play(plot)

    for node in ("n1", "n2"):
        assert 20 <= stop_arrival(world, node) < 23
    assert world.nodes["n3"].ended
    assert stop_arrival(world, "n1") <= stop_arrival(undisturbed_world, "n1") + 1
