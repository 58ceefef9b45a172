"""The scheduling rules in a simulated world with every kind of trouble."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from gateway.domain.dag import order
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import a_spec, at
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.strategies import PLAYED, plots, plots_with_retries
from tests.domain.world import World

# Seconds that the calls and the polls of a task add to its running time at most.
OVERHEAD_PER_TASK = 7

# Seconds that the begin and the end of a job take at most.
OVERHEAD_PER_JOB = 10

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


@given(plots())
@settings(PLAYED, max_examples=150)
def test_a_job_ends_as_its_nodes_did_despite_any_trouble(plot):
    """The rules of `World` hold: one start per task and node, upstream first, one end."""
    World(plot).run()


# Random schedules whose progress is followed, and the number of them that play each plot.
SCHEDULES = 1000
SCHEDULES_OF_A_PLOT = 20


@given(plots())
@settings(PLAYED, max_examples=SCHEDULES // SCHEDULES_OF_A_PLOT)
def test_progress_never_falls_and_is_100_in_the_write_of_a_success(plot):
    for number in range(SCHEDULES_OF_A_PLOT):
        world = World(replace(plot, seed=plot.seed + number))

        job = world.run()

        progress = [percent for percent, _ in world.writes]
        assert progress == sorted(progress)
        for percent, outcome in world.writes:
            assert (percent == 100) is (outcome is Outcome.SUCCEEDED)
        assert (job.progress, job.outcome) == world.writes[-1]


@given(plots_with_retries())
@settings(PLAYED, max_examples=80)
def test_a_failed_task_is_retried_and_each_attempt_starts_once(plot):
    job = World(plot).run()

    is_stopped = plot.stop_at is not None or plot.stop_tasks
    if not is_stopped and job.ending.failure is not None:
        reason = job.ending.failure.reason
        assert reason == "PEER_UNREACHABLE", "the network may fail a job only before its start"


@given(plots(calm=True))
@settings(PLAYED, max_examples=30)
def test_a_job_without_trouble_succeeds_and_loses_no_time(plot):
    world = World(plot)

    job = world.run()

    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)
    assert {task.status for task in job.tasks.values()} == {TaskStatus.SUCCESS}
    assert world.ended_at < seconds_of_longest_path(plot) + OVERHEAD_PER_JOB


def seconds_of_longest_path(plot: Plot) -> float:
    """Return the time that the flow's slowest path takes at most."""
    ends: dict[str, float] = {}
    for task in order(plot.spec.dag):
        begin = max((ends[name] for name in plot.spec.dag[task].upstream), default=0.0)
        role_ends = [fate.ends_after for (name, _, _), fate in plot.fates.items() if name == task]
        ends[task] = begin + max(role_ends, default=0.0) + OVERHEAD_PER_TASK
    return max(ends.values())


@given(plots())
@settings(PLAYED, max_examples=30)
def test_a_second_planner_on_the_store_changes_nothing(plot):
    # Without timeouts, as the moment at which one passes may differ.
    plot = replace(
        plot,
        spec=replace(plot.spec, job_params={}),
        stop_at=None,
        trouble_chance=0.0,
        crash_chance=0.0,
        stall_chance=0.0,
        outages=(),
    )
    alone = World(replace(plot, planners=1))
    in_pair = World(replace(plot, planners=2))

    alone.run()
    in_pair.run()

    assert alone.job.outcome is in_pair.job.outcome
    if alone.job.outcome is Outcome.SUCCEEDED:
        assert requests_at_nodes(alone) == requests_at_nodes(in_pair)


def requests_at_nodes(world: World) -> dict[str, tuple[int, set[str]]]:
    """Return the number of creates and the started tasks by node."""
    return {name: (node.create_requests, set(node.tasks)) for name, node in world.nodes.items()}


def test_a_planner_may_die_at_every_pause():
    survived = 0
    planner_died = True
    while planner_died:
        world = World(replace(SMALL, dies_at=survived + 1, seed=survived))
        job = world.run()

        assert job.outcome is Outcome.SUCCEEDED, world.clockwork.log_text()
        for node in world.nodes.values():
            assert all(starts == 1 for starts in node.starts.values())
        planner_died = world.lives > 1
        survived += planner_died
    assert survived > 30


@pytest.mark.parametrize("hangs", [False, True])
def test_a_node_absent_for_long_fails_the_job_and_is_stopped_on_return(hangs):
    slow_host = {("a", "n2", "host"): Fate(ends_after=2000)}
    world = World(replace(SMALL, outages=(Outage("n2", 5, 905, hangs),), fates=slow_host))

    job = world.run()

    assert job.outcome is Outcome.FAILED
    assert (job.ending.failure.reason, job.ending.failure.node) == ("UNREACHABLE", "n2")
    assert at(600) < job.ended_at < at(650)
    assert world.nodes["n1"].ended
    assert world.nodes["n2"].failures["a.host"].reason == "STOPPED"


def test_a_node_that_hangs_does_not_delay_the_stop_of_others():
    fates = {
        ("a", "n1", "guest"): Fate(
            ends_after=20,
            final_status=TaskStatus.FAILED,
        ),
        ("a", "n2", "host"): Fate(ends_after=100),
    }
    outage = Outage("n2", 5, 300, hangs=True)
    world = World(replace(SMALL, outages=(outage,), fates=fates))

    job = world.run()

    assert job.ending.failure.reason == "BROKE"
    assert job.ended_at < at(20 + 2 + 12)
    first_stop, *_ = world.clockwork.logged_at("StopAt(node='n1') arrives")
    assert first_stop < 20 + 4
