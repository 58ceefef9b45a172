"""How long it takes at most until something follows from something else, by a simulated clock.

The clock counts what the rules wait for, and a fraction of a second per message; a slow machine changes nothing.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling.messages import CreateAt, StopAt
from gateway.domain.states import Outcome, TaskStatus
from tests.builders import T0, Roles, a_spec
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.world import World

TWO = {"guest": ("n1",), "host": ("n2",)}
THREE = {"guest": ("n1",), "host": ("n2", "n3")}
FAILED = TaskStatus.FAILED
LONG = {
    ("a", node, role): Fate(ends_after=600)
    for node, role in (("n1", "guest"), ("n2", "host"), ("n3", "host"))
}


def played(plot: Plot) -> tuple[World, Job]:
    world = World(plot)
    return world, world.run()


def stopped_at(world: World, node: str) -> float:
    """Return when the first stop of the job reached a node."""
    return reached(world, StopAt(node))


def reached(world: World, request: CreateAt | StopAt) -> float:
    line = next(line for line in world.clockwork.log_lines if f"{request} arrives" in line)
    return float(line.split()[0])


def seconds(job: Job) -> float:
    assert job.ended_at is not None
    return (job.ended_at - T0) / timedelta(seconds=1)


PUSHED = pytest.mark.parametrize(
    "pushes", [frozenset(), frozenset({"n1", "n2", "n3"})], ids=["polled", "pushed"]
)
ROLES = pytest.mark.parametrize("roles", [TWO, THREE], ids=["two", "three"])


@PUSHED
@ROLES
def test_every_node_is_asked_for_a_new_job_within_a_second(roles: Roles, pushes: frozenset[str]):
    world, job = played(Plot(a_spec("a", roles), pushes=pushes))
    assert all(
        reached(world, CreateAt(node)) < 1 + 0.1 for node in job.spec.nodes
    )  # in a lane, and on its way


@pytest.mark.parametrize("pause", range(0, 40, 3))
def test_another_gateway_goes_on_within_a_deadline_where_one_dies(pause: int):
    plot = Plot(a_spec("a -> b", TWO), planners=2, pushes=frozenset({"n1", "n2"}))
    quick = seconds(played(plot)[1])
    _, job = played(replace(plot, dies_at=pause))
    assert job.outcome is Outcome.SUCCEEDED
    assert (
        seconds(job) < quick + 12 + 3
    )  # of the call that it was making, and until what is left is seen


@PUSHED
@ROLES
def test_a_refusal_reaches_the_others_within_five_seconds(roles: Roles, pushes: frozenset[str]):
    last = roles["host"][-1]
    world, job = played(Plot(a_spec("a", roles), refuses_create=frozenset({last}), pushes=pushes))
    assert job.outcome is Outcome.REJECTED
    assert all(stopped_at(world, node) < 5 for node in job.spec.nodes if node != last)


@PUSHED
@ROLES
def test_a_stop_reaches_every_node_within_two_seconds(roles: Roles, pushes: frozenset[str]):
    world, job = played(
        Plot(
            a_spec("a -> b", roles),
            fates=LONG,
            stop_at=20,
            pushes=pushes,
        )
    )
    assert job.outcome is Outcome.STOPPED
    assert all(20 <= stopped_at(world, node) < 22 for node in job.spec.nodes)
    assert seconds(job) < 23


@PUSHED
@ROLES
def test_a_failure_stops_the_others_within_a_poll(roles: Roles, pushes: frozenset[str]):
    fates = LONG | {("a", "n2", "host"): Fate(ends_after=33, final_status=FAILED)}
    world, job = played(Plot(a_spec("a", roles), fates=fates, pushes=pushes))
    assert job.outcome is Outcome.FAILED
    begun = 3.5  # at the latest
    assert all(
        stopped_at(world, node) < begun + 33 + (1 if pushes else 2) + 1 for node in job.spec.nodes
    )


@PUSHED
@ROLES
def test_a_task_ends_within_three_seconds_of_its_timeout(roles: Roles, pushes: frozenset[str]):
    spec = a_spec("a", roles, job_params={"common": {"task_timeout": 5}})
    world, job = played(Plot(spec, fates=LONG, pushes=pushes))
    assert job.ending is not None and job.ending.failure is not None
    started = job.tasks["a"].started_at
    assert started is not None and job.ending.failure.reason == "TIMEOUT"
    assert 5 <= (job.ending.at - started).total_seconds() < 8
    assert all(5 <= stopped_at(world, node) < 10 for node in job.spec.nodes)


@PUSHED
@ROLES
def test_a_persons_no_rejects_the_job_everywhere_within_five_seconds(
    roles: Roles, pushes: frozenset[str]
):
    world, job = played(Plot(a_spec("a", roles), approvals={"n2": (30.0, False)}, pushes=pushes))
    assert job.outcome is Outcome.REJECTED
    assert all(stopped_at(world, node) < 36 for node in job.spec.nodes if node != "n2")


@PUSHED
@ROLES
def test_an_end_is_known_within_a_poll(roles: Roles, pushes: frozenset[str]):
    parties = [("n1", "guest"), *((node, "host") for node in roles["host"])]
    fates = {("a", node, role): Fate(ends_after=33) for node, role in parties}
    _, job = played(Plot(a_spec("a", roles), fates=fates, pushes=pushes))
    assert job.outcome is Outcome.SUCCEEDED
    assert seconds(job) < 3.5 + 33 + (1 if pushes else 2) + 1


def test_a_node_that_is_silent_at_creation_ends_the_job_in_time():
    away = (Outage("n3", 0, 300),)
    world, job = played(Plot(a_spec("a", THREE), outages=away))
    assert job.outcome is Outcome.REJECTED
    assert all(stopped_at(world, node) < 10 + 12 + 5 for node in ("n1", "n2"))


def test_a_dead_node_delays_no_other_stop_and_is_stopped_on_return():
    dead = Plot(
        a_spec("a", THREE),
        fates=LONG,
        stop_at=20,
        outages=(Outage("n3", 10, 200, hangs=True),),
    )
    world, _ = played(dead)
    assert all(20 <= stopped_at(world, node) < 23 for node in ("n1", "n2"))
    assert world.nodes["n3"].ended
    quick, _ = played(replace(dead, outages=()))
    assert stopped_at(world, "n1") <= stopped_at(quick, "n1") + 1
