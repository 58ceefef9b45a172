"""Stops that race with the starts of tasks, in a simulated world."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.dag import downstream
from gateway.domain.job import Task
from gateway.domain.scheduling.messages import StartTaskAt, StopAt, StopTaskAt
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended
from tests.builders import a_spec
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.strategies import REPEATABLE, SEEDS, plots, some_of
from tests.domain.world import World

SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

RACE = Plot(
    a_spec(
        "a -> b; c",
        {"guest": ("n1",), "host": ("n2",)},
    ),
    pushes=frozenset({"n1"}),
)
PARTS = [(task, node, role) for task in "abc" for node, role in (("n1", "guest"), ("n2", "host"))]

# Seconds before the first start and after the last one within which a stop races with them.
MARGIN = 0.05


def times_of_starts(plot: Plot, task: str) -> tuple[float, float]:
    """Return when the first start of a task is called and the last one arrives, without a stop."""
    world = World(plot)
    world.run()
    times: list[float] = []
    for node in plot.spec.nodes:
        times += world.clockwork.logged_at(str(StartTaskAt(node, task)))
    return min(times), max(times)


def check_agreement(world: World) -> None:
    """Check that every task has ended and that all nodes agree on its end."""
    for name, task in world.job.tasks.items():
        statuses = [
            status for node in world.nodes.values() for status in node.tasks.get(name, {}).values()
        ]
        check_task(task, statuses, world.clockwork.log_text())


def check_task(
    task: Task,
    statuses: list[TaskStatus],
    log: str,
) -> None:
    """Compare a task with its states at the nodes; a task that has not begun has none."""
    assert all(ended(TASK, status) for status in statuses), log
    if statuses:
        assert task.status in (SUCCESS, FAILED), (task.name, task.status, statuses)
    if task.status is SUCCESS:
        assert set(statuses) == {SUCCESS}
    if FAILED in statuses:
        assert task.status is FAILED
        assert task.failure.reason == "STOPPED"


def race_plot(seed: int) -> Plot:
    """Return a plot whose tasks end long after every start."""
    times = Random(seed)
    fates = {part: Fate(times.uniform(0.0, 1.0), times.uniform(15.0, 40.0)) for part in PARTS}
    return replace(
        RACE,
        seed=seed,
        planners=1 + seed % 2,
        fates=fates,
    )


def time_in_race(
    plot: Plot,
    task: str,
    seed: int,
) -> float:
    """Return a random second between the first and the last start of a task."""
    first, last = times_of_starts(plot, task)
    return Random(seed).uniform(first - MARGIN, last + MARGIN)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("task", ["a", "b"])
def test_a_stop_of_a_job_races_with_the_start_of_a_task(seed: int, task: str):
    plot = race_plot(seed)
    world = World(replace(plot, stop_at=time_in_race(plot, task, seed)))

    job = world.run()

    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.STOPPED), (
        world.clockwork.log_text()
    )
    check_agreement(world)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("task", ["a", "b", "c"])
def test_a_stop_of_a_task_races_with_its_start(seed: int, task: str):
    plot = race_plot(seed)
    world = World(replace(plot, stop_tasks=((time_in_race(plot, task, seed), task),)))

    job = world.run()

    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.STOPPED), (
        world.clockwork.log_text()
    )
    for name in {"a", "b", "c"} - downstream(plot.spec.dag, [task]):
        assert job.tasks[name].status is SUCCESS
    check_agreement(world)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_task_is_stopped_at_an_absent_node_on_its_return(hangs: bool):
    ends = {
        "a": 200,
        "b": 100,
        "c": 100,
    }
    fates = {(task, node, role): Fate(ends_after=ends[task]) for task, node, role in PARTS}
    plot = replace(
        RACE,
        fates=fates,
        outages=(Outage("n2", 10, 60, hangs),),
        stop_tasks=((20.0, "a"),),
    )
    world = World(plot)

    job = world.run()

    assert job.outcome is Outcome.STOPPED
    assert job.tasks["c"].status is SUCCESS
    assert world.nodes["n2"].failures["a.host"].reason == "STOPPED"
    stop_of_present_node = str(StopTaskAt("n1", "a"))
    first_stop, *_ = world.clockwork.logged_at(f"{stop_of_present_node} arrives")
    assert first_stop < 22, "the present node is stopped without delay"


@given(plots(calm=True), SEEDS, st.data())
@settings(REPEATABLE, max_examples=30)
def test_each_stop_is_sent_once_without_trouble(plot, seed, data):
    names = [node.name for node in plot.spec.dag.nodes]
    times = Random(seed)
    stopped = sorted(data.draw(some_of(names, one_in=2)))
    stop_tasks = tuple((times.uniform(0.0, 30.0), task) for task in stopped)
    world = World(replace(plot, stop_tasks=stop_tasks))

    job = world.run()

    assert job.outcome in (Outcome.SUCCEEDED, Outcome.STOPPED)
    for request, calls in world.calls.items():
        if isinstance(request, StopTaskAt | StopAt):
            assert calls == 1
        if isinstance(request, StopTaskAt):
            assert request.task in world.stopped_tasks


def test_a_planner_may_die_at_every_pause_of_a_stop():
    fates = dict.fromkeys(PARTS, Fate(ends_after=5))
    plot = replace(
        RACE,
        fates=fates,
        stop_tasks=((1.5, "a"),),
    )

    pauses = 0
    planner_died = True
    while planner_died:
        pauses += 1
        world = World(replace(plot, dies_at=pauses, seed=pauses))
        job = world.run()

        assert job.outcome is Outcome.STOPPED, world.clockwork.log_text()
        assert job.tasks["c"].status is SUCCESS, world.clockwork.log_text()
        check_agreement(world)
        planner_died = world.lives > 1
    assert pauses > 30
