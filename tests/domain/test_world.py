"""The scheduling rules, played in a world in which everything that can go wrong does."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from gateway.domain.dag import order
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import a_spec, at
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.strategies import PLAYED, plots, stumbling
from tests.domain.world import World


@given(plots())
@settings(PLAYED, max_examples=150)
def test_whatever_goes_wrong_a_job_ends_as_its_nodes_did(plot):
    """Every rule of `World` holds: one start per task and node, upstream first, one decision, nobody left over."""
    World(plot).run()


@given(stumbling())
@settings(PLAYED, max_examples=80)
def test_a_task_that_fails_is_tried_again_and_each_attempt_starts_once(plot):
    job = World(plot).run()
    if plot.stop_at is None and not plot.stop_tasks and job.ending.failure is not None:
        assert job.ending.failure.reason == "PEER_UNREACHABLE", (
            "only before it began may the network fail the job"
        )


@given(plots(calm=True))
@settings(PLAYED, max_examples=30)
def test_a_job_succeeds_where_nothing_goes_wrong_and_loses_no_time(plot):
    world = World(plot)
    job = world.run()
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)
    assert all(task.status is TaskStatus.SUCCESS for task in job.tasks.values())
    assert world.ended_at < _longest_path(plot) + 10


def _longest_path(plot: Plot) -> float:
    """Return how long the job takes when each call and each look adds a few seconds to a task."""
    done: dict[str, float] = {}
    for name in order(plot.spec.dag):
        begins = max((done[up] for up in plot.spec.dag[name].upstream), default=0.0)
        lasts = max((f.ends for (task, _, _), f in plot.fates.items() if task == name), default=0.0)
        done[name] = begins + lasts + 7
    return max(done.values())


@given(plots())
@settings(PLAYED, max_examples=30)
def test_a_second_planner_on_the_store_changes_nothing(plot):
    plot = replace(
        plot,
        stop_at=None,
        trouble=0.0,
        crash=0.0,
        stalls=0.0,
        outages=(),
    )
    plot = replace(
        plot, spec=replace(plot.spec, job_params={})
    )  # what takes too long is a matter of moments
    one, two = World(replace(plot, planners=1)), World(replace(plot, planners=2))
    assert one.run().outcome is two.run().outcome
    starts = {node: (there.creates, set(there.tasks)) for node, there in one.nodes.items()}
    if one.job.outcome is Outcome.SUCCEEDED:
        assert starts == {
            node: (there.creates, set(there.tasks)) for node, there in two.nodes.items()
        }


SMALL = Plot(
    a_spec(
        "a -> b; a -> c",
        {
            "guest": ("n1",),
            "host": ("n2",),
            "arbiter": ("n1",),
        },
    ),
    planners=1,
)


def test_a_planner_may_die_at_every_single_pause():
    pauses = 0
    while True:
        world = World(replace(SMALL, dies_at=pauses + 1, seed=pauses))
        job = world.run()
        assert job.outcome is Outcome.SUCCEEDED, "\n".join(world.works.story)
        assert all(count == 1 for there in world.nodes.values() for count in there.starts.values())
        if world.lives == 1:
            break
        pauses += 1
    assert pauses > 30


@pytest.mark.parametrize("hangs", [False, True])
def test_a_node_absent_for_long_fails_the_job_and_is_stopped_on_return(hangs):
    slow = {("a", "n2", "host"): Fate(ends=2000)}
    plot = replace(SMALL, outages=(Outage("n2", 5, 905, hangs),), fates=slow)
    world = World(plot)
    job = world.run()
    assert job.outcome is Outcome.FAILED
    assert (job.ending.failure.reason, job.ending.failure.node) == ("UNREACHABLE", "n2")
    assert at(600) < job.ended_at < at(650)
    assert world.nodes["n1"].ended
    assert world.nodes["n2"].failures["a.host"].reason == "STOPPED"


def test_a_node_that_hangs_does_not_delay_the_stop_of_others():
    broken = {
        ("a", "n1", "guest"): Fate(ends=20, status=TaskStatus.FAILED),
        ("a", "n2", "host"): Fate(ends=100),
    }
    world = World(replace(SMALL, outages=(Outage("n2", 5, 300, hangs=True),), fates=broken))
    job = world.run()
    assert job.ending.failure.reason == "BROKE"
    assert job.ended_at < at(20 + 2 + 12)
    stopped = next(line for line in world.works.story if "StopAt(node='n1') arrives" in line)
    assert float(stopped.split()[0]) < 20 + 4
