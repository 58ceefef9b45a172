"""Stopping a job or a task: the scheduling rules one by one, and races with starts in the simulated world."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.dag import downstream
from gateway.domain.job import Job
from gateway.domain.scheduling.machine import exclude, next_due, plan, step
from gateway.domain.scheduling.messages import (
    Accepted,
    PollTaskAt,
    Refused,
    StartTaskAt,
    StopAt,
    StopRequested,
    StopTaskAt,
    TaskStopRequested,
    TaskUnknown,
)
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended
from tests.builders import IDLE, a_job, a_spec, at, sent
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.scheduled import Step, after, lost, no, ok, reported
from tests.domain.strategies import REPEATABLE, SEEDS, plots, some_of
from tests.domain.world import World

PENDING, READY, RUNNING = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.RUNNING
SUCCESS, FAILED = TaskStatus.SUCCESS, TaskStatus.FAILED
WHY = Failure("STOPPED", "stopped by n2", task="a")


def stopped(job: Job, task: str = "a", seconds: float = 1.0) -> Job:
    return after(job, TaskStopRequested(task, "n2", at(seconds)))


def due(job: Job, seconds: float) -> list:
    return [c for c in plan(job, at(seconds)) if not isinstance(c, PollTaskAt)]


def running(dag: str = "a -> b; c", **tasks) -> Job:
    return a_job(dag, JobStatus.RUNNING, **({"a": RUNNING, "c": RUNNING} | tasks))


def statuses(job: Job) -> dict[str, TaskStatus]:
    return {name: task.status for name, task in job.tasks.items()}


# ---------------------------------------------------------------- what a stop of a task takes with it


A1, A2 = StartTaskAt("n1", "a"), StartTaskAt("n2", "a")
T1, T2 = StopTaskAt("n1", "a"), StopTaskAt("n2", "a")
BEGINS = a_job("a; c", JobStatus.RUNNING, c=RUNNING)
STOP_A = TaskStopRequested("a", "n2", at(1))
NEVER_LEFT = [0, STOP_A, lost(A1, 2, delivered=False), lost(A2, 2, delivered=False)]
BROKE = Failure("EXIT_1", "the partner is gone")

STOPS: dict[str, tuple[Job, Sequence[Step], Mapping[float, list], TaskStatus]] = {
    "every node that runs it": (running(), [STOP_A], {1: [T1, T2]}, RUNNING),
    "claimed once": (running(), [STOP_A, 1], {1: [], 12.9: [], 13: [T1, T2]}, RUNNING),
    "not begun": (running(a=READY), [STOP_A], {1: [], 20: [], 10_000: []}, READY),
    "done at one node": (running(a={"n1": SUCCESS, "n2": RUNNING}), [STOP_A], {1: [T2]}, RUNNING),
    "a success under way": (
        running(a={"n1": RUNNING, "n2": SUCCESS}),
        [STOP_A, reported(SUCCESS, "n1")],
        {100: []},
        SUCCESS,
    ),
    "a start on its way": (BEGINS, [0, STOP_A], {11.9: [], 12: [T1, T2]}, READY),
    "lost starts": (BEGINS, [0, STOP_A, lost(A1, 2), lost(A2, 2)], {11.9: [], 12: [T1, T2]}, READY),
    "accepted at one node": (BEGINS, [0, STOP_A, ok(A2, 2)], {2: [T2]}, READY),
    "starts that never left": (BEGINS, NEVER_LEFT, {500: []}, READY),
    "accepted after all": (BEGINS, [*NEVER_LEFT, ok(A2, 3)], {3: [T2]}, FAILED),
    "begun at one node": (running(a={"n1": RUNNING}), [STOP_A], {1: [T1]}, FAILED),
    "a refused start": (BEGINS, [0, STOP_A, no(A1, 2, Failure("INPUT_MISSING"))], {20: [T2]}, FAILED),
    "a refused stop": (running(), [STOP_A, 1, no(T1, 2), ok(T2, 2)], {500: []}, RUNNING),
    "it fails meanwhile": (running(), [STOP_A, reported(FAILED, "n1", failure=BROKE)], {1: [T1, T2]}, FAILED),
}


@pytest.mark.parametrize(("job", "steps", "expected", "status"), STOPS.values(), ids=STOPS)
def test_a_task_that_stops(job: Job, steps: Sequence[Step], expected: Mapping[float, list], status: TaskStatus):
    job = after(job, *steps)
    assert {seconds: due(job, seconds) for seconds in expected} == expected
    task = job.tasks["a"]
    assert (task.status, task.failure, job.ending) == (status, WHY if status is FAILED else None, None)
    following = {"a", "b"} & job.tasks.keys()
    assert {name for name, task in job.tasks.items() if task.ending is not None} == following


def test_what_was_stopped_before_keeps_its_own_reason():
    first = stopped(running(), "b")
    job = stopped(first, "a", 5)
    assert job.tasks["b"].ending == first.tasks["b"].ending
    assert job.tasks["a"].ending.at == at(5)


def test_unrelated_branches_go_on_and_then_the_job_ends_as_stopped():
    job = step(stopped(running("a -> b; c -> d")), at(1))[0]
    job = after(
        job,
        reported(FAILED, "n1"),
        reported(FAILED, "n2"),
        reported(SUCCESS, "n1", "c"),
        reported(SUCCESS, "n2", "c"),
    )
    assert job.ending is None
    assert due(job, 3) == [StartTaskAt("n1", "d"), StartTaskAt("n2", "d")]
    job = step(job, at(3))[0]
    job = after(job, reported(SUCCESS, "n1", "d", 4), reported(SUCCESS, "n2", "d", 4))
    assert due(job, 4) == [StopAt("n1"), StopAt("n2")]
    job = step(job, at(4))[0]
    job = after(job, Accepted(StopAt("n1"), at(5)), Accepted(StopAt("n2"), at(5)))
    assert (job.status, job.outcome, job.ending.failure) == (JobStatus.FINISHED, Outcome.STOPPED, WHY)
    assert (job.ending.by, job.ending.at) == ("n2", at(4))
    assert statuses(job) == {"a": FAILED, "b": READY, "c": SUCCESS, "d": SUCCESS}
    assert job.progress == 50 and next_due(job) is None


@pytest.mark.parametrize(
    ("status", "final"), [(JobStatus.PENDING, JobStatus.REJECTED), (JobStatus.READY, JobStatus.FINISHED)]
)
def test_a_job_that_has_not_begun_goes_on_without_the_task_or_ends(status, final):
    job = stopped(a_job("a -> b; c", status), "a")
    assert (job.status, job.ending) == (status, None)
    job = step(stopped(job, "c"), at(13))[0]
    job = after(job, Accepted(StopAt("n1"), at(14)), Accepted(StopAt("n2"), at(14)))
    assert (job.status, job.outcome) == (final, Outcome.STOPPED)
    assert not any(task.status is FAILED for task in job.tasks.values())


# ---------------------------------------------------------------- what a stop leaves alone


def test_a_task_that_succeeded_stays_so_and_nothing_cascades():
    job = running("a -> b; c", a=SUCCESS, b=RUNNING)
    assert stopped(job) is job


def test_a_second_stop_changes_nothing():
    job = stopped(running())
    assert stopped(job, seconds=9) is job
    assert stopped(job, "b") is job
    ending = stopped(job, "c")
    assert stopped(ending, "a") is ending
    assert after(ending, StopRequested("n1", at(9))) is ending


def test_a_job_that_ends_or_has_ended_is_left_as_it_is():
    job = after(running(), reported(FAILED, "n1", "c"))
    assert stopped(job) is job
    job = after(step(job, at(3))[0], Accepted(StopAt("n1"), at(4)), Accepted(StopAt("n2"), at(4)))
    assert job.outcome is Outcome.FAILED
    assert stopped(job) is job
    assert after(job, StopRequested("n1", at(9))) is job


# ---------------------------------------------------------------- a start under way


def test_a_node_that_never_got_the_start_is_not_told_again():
    job = running("a; c", a={"n1": RUNNING, "n2": RUNNING})
    task = job.tasks["a"]
    lost = replace(task.nodes["n2"], start=replace(sent(), state=CallState.LOST), roles={"host": PENDING})
    job = replace(job, tasks={**job.tasks, "a": replace(task, nodes={**task.nodes, "n2": lost})})
    job, requests = step(stopped(job), at(20))
    assert PollTaskAt("n2", "a", ("host",)) in requests
    assert StopTaskAt("n2", "a") in requests
    job = after(job, TaskUnknown(PollTaskAt("n2", "a", ("host",)), at(21)))
    assert [c for c in plan(job, at(500)) if isinstance(c, StartTaskAt)] == []
    assert (job.tasks["a"].status, job.tasks["a"].failure, job.ending) == (FAILED, WHY, None)


@pytest.mark.parametrize(("start", "status"), [(CallState.LOST, READY), (CallState.OK, FAILED)])
def test_a_task_that_its_only_node_does_not_know_has_failed_if_it_was_accepted_there(start, status):
    job = a_job("a; c", JobStatus.RUNNING, roles={"guest": ("n1",)}, a=READY, c=RUNNING)
    part = replace(job.tasks["a"].nodes["n1"], start=replace(sent(), state=start))
    job = replace(job, tasks={**job.tasks, "a": replace(job.tasks["a"], nodes={"n1": part})})
    poll = PollTaskAt("n1", "a", ("guest",))
    job, requests = step(stopped(job), at(20))
    assert poll in requests
    job = after(job, TaskUnknown(poll, at(21)))
    assert (job.tasks["a"].status, job.ending) == (status, None)
    assert [c for c in plan(job, at(500)) if isinstance(c, StartTaskAt)] == []


def test_nodes_without_a_role_leave_a_task_that_stops_without_failing_the_job():
    job = stopped(step(a_job("a; c", JobStatus.RUNNING, c=RUNNING), at(0))[0])
    for node in ("n1", "n2"):
        job = exclude(job, StartTaskAt(node, "a"), at(2))
    assert (job.ending, job.tasks["a"].status, job.tasks["a"].failure) == (None, FAILED, WHY)
    assert due(job, 500) == []


# ---------------------------------------------------------------- while it stops


@pytest.mark.parametrize(("reason", "outcome"), [("STOPPED", Outcome.STOPPED), ("EXIT_3", Outcome.FAILED)])
def test_a_job_whose_party_ends_its_part_before_the_stop_is_heard_of_is_stopped(reason: str, outcome: Outcome):
    job = after(running(), reported(FAILED, "n2", failure=Failure(reason, "canceled at n2", "n2", task="a")))
    assert job.ending is not None and job.ending.outcome is outcome


def test_a_failure_elsewhere_still_ends_the_job_as_failed():
    job = after(stopped(running()), reported(FAILED, "n2", "c", failure=Failure("EXIT_1")))
    assert (job.ending.outcome, job.ending.failure.task) == (Outcome.FAILED, "c")


def test_a_stop_of_a_task_that_gets_no_answer_of_a_gateway_is_repeated_for_a_while():
    job, now = step(stopped(running()), at(1))[0], 1.0
    job = after(job, Accepted(StopTaskAt("n2", "a"), at(1)))
    asked = 1
    while True:
        job = after(job, Refused(StopTaskAt("n1", "a"), Failure("NO_ENVELOPE", "<html>"), at(now)))
        now += 20
        if StopTaskAt("n1", "a") not in due(job, now):
            break
        job, asked = step(job, at(now))[0], asked + 1
    assert asked == 10 and job.ending is None


# ---------------------------------------------------------------- the end of a job


def test_no_part_of_a_task_is_left_running_by_the_end_of_its_job():
    job = a_job("a -> b; c", JobStatus.RUNNING, a={"n1": RUNNING, "n2": SUCCESS}, c={"n1": FAILED, "n2": RUNNING})
    job = step(after(job, StopRequested("n1", at(1))), at(1))[0]
    job = after(job, Accepted(StopAt("n1"), at(2)), Accepted(StopAt("n2"), at(2)))
    assert statuses(job) == {"a": FAILED, "b": READY, "c": FAILED}
    parts = {(name, n): p.status for name, task in job.tasks.items() for n, p in task.nodes.items() if name != "b"}
    assert parts == {("a", "n1"): FAILED, ("a", "n2"): SUCCESS, ("c", "n1"): FAILED, ("c", "n2"): FAILED}


def test_a_task_that_its_node_forgot_is_not_running_for_ever_after_the_end():
    job = a_job("a", JobStatus.RUNNING, a=RUNNING, roles={"guest": ("n1",)})
    task = job.tasks["a"]
    forgotten = replace(task, nodes={"n1": replace(task.nodes["n1"], start=IDLE)})
    job = after(replace(job, tasks={"a": forgotten}), StopRequested("n1", at(1)))
    job = after(step(job, at(1))[0], Accepted(StopAt("n1"), at(2)))
    assert statuses(job) == {"a": FAILED}


@given(st.data())
@REPEATABLE
def test_which_tasks_a_stop_ends_follows_from_the_flow(data):
    plot = data.draw(plots(calm=True))
    names = [n.name for n in plot.spec.dag.nodes]
    open_ = downstream(plot.spec.dag, data.draw(st.frozensets(st.sampled_from(names), min_size=1)))
    done = set(names) - open_
    job = a_job(spec=plot.spec, status=JobStatus.RUNNING, **dict.fromkeys(done, SUCCESS))
    asked = data.draw(st.sampled_from(names))
    job = stopped(job, asked)
    expected = set() if asked in done else set(downstream(plot.spec.dag, [asked]))
    assert {name for name, task in job.tasks.items() if task.ending is not None} == expected
    assert (job.ending is not None) is (bool(expected) and expected | done == set(names))


# ---------------------------------------------------------------- racing with starts

RACE = Plot(a_spec("a -> b; c", {"guest": ("n1",), "host": ("n2",)}), pushes=frozenset({"n1"}))


def moments(plot: Plot, task: str) -> tuple[float, float]:
    """Return when the first start of the task is called and when the last of them has arrived, without a stop."""
    world = World(plot)
    world.run()
    starts = [str(StartTaskAt(node, task)) for node in plot.spec.nodes]
    times = [float(line.split()[0]) for line in world.works.story if any(start in line for start in starts)]
    return min(times), max(times)


def nothing_runs(world: World) -> bool:
    roles = [s for there in world.nodes.values() for task in there.tasks.values() for s in task.values()]
    return all(ended(TASK, status) for status in roles)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("task", "whole"), [("a", True), ("b", True), ("a", False), ("b", False), ("c", False)])
def test_a_stop_racing_a_start(seed, task, whole):
    """``whole``: the job is stopped, else the task."""
    plot = replace(RACE, seed=seed, planners=1 + seed % 2, fates=_slow(seed))
    first, last = moments(plot, task)
    when = Random(seed).uniform(first - 0.05, last + 0.05)
    world = World(replace(plot, stop_at=when) if whole else replace(plot, stop_tasks=((when, task),)))
    job = world.run()
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.STOPPED), "\n".join(world.works.story)
    assert nothing_runs(world), "\n".join(world.works.story)
    rest = set() if whole else {"a", "b", "c"} - downstream(plot.spec.dag, [task])
    assert all(job.tasks[name].status is SUCCESS for name in rest)
    _agree(world)


def _slow(seed: int) -> dict[tuple[str, str, str], Fate]:
    """Return fates that last longer than any race, so that no task succeeds before it is stopped."""
    random = Random(seed)
    places = [(t, n, r) for t in ("a", "b", "c") for n, r in (("n1", "guest"), ("n2", "host"))]
    return {place: Fate(random.uniform(0.0, 1.0), random.uniform(15.0, 40.0)) for place in places}


def _agree(world: World) -> None:
    """Check that whatever began has ended, and that the scheduling node and the others say the same of it."""
    for name, task in world.job.tasks.items():
        there = [s for node in world.nodes.values() for s in node.tasks.get(name, {}).values()]
        if there:
            assert task.status in (SUCCESS, FAILED), (name, task.status, there)
        if task.status is SUCCESS:
            assert set(there) == {SUCCESS}
        if FAILED in there:
            assert task.status is FAILED and task.failure.reason == "STOPPED"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_task_is_stopped_at_a_node_when_it_is_back(hangs):
    fates = {
        ("a", "n1", "guest"): Fate(ends=200),
        ("a", "n2", "host"): Fate(ends=200),
        ("c", "n1", "guest"): Fate(),
    }
    plot = replace(RACE, fates=fates, outages=(Outage("n2", 10, 60, hangs),), stop_tasks=((20.0, "a"),))
    plot = replace(plot, fates={**fates, ("c", "n2", "host"): Fate(ends=100)})
    world = World(plot)
    job = world.run()
    assert job.outcome is Outcome.STOPPED and job.tasks["c"].status is SUCCESS
    assert world.nodes["n2"].failures["a.host"].reason == "STOPPED"
    arrived = [line for line in world.works.story if "StopTaskAt(node='n1', task='a', attempt=0) arrives" in line]
    assert float(arrived[0].split()[0]) < 22, "the node that answers is stopped at once"


@given(plots(calm=True), SEEDS, st.data())
@REPEATABLE
def test_where_nothing_goes_wrong_each_stop_is_sent_once(plot, seed, data):
    names = [n.name for n in plot.spec.dag.nodes]
    times = Random(seed)
    asked = [(times.uniform(0.0, 30.0), task) for task in sorted(data.draw(some_of(names, 2)))]
    world = World(replace(plot, stop_tasks=tuple(asked)))
    job = world.run()
    assert job.outcome in (Outcome.SUCCEEDED, Outcome.STOPPED)
    assert all(n == 1 for request, n in world.calls.items() if isinstance(request, StopTaskAt | StopAt))
    for request in world.calls:
        if isinstance(request, StopTaskAt):
            assert request.task in world.stopped


def test_a_planner_may_die_at_every_single_pause_of_a_stop():
    slow = {(t, n, r): Fate(ends=5) for t in "ac" for n, r in (("n1", "guest"), ("n2", "host"))}
    pauses = 0
    while True:
        plot = replace(RACE, fates=slow, stop_tasks=((1.5, "a"),), dies_at=pauses + 1, seed=pauses)
        world = World(plot)
        job = world.run()
        assert job.outcome is Outcome.STOPPED, "\n".join(world.works.story)
        assert nothing_runs(world) and job.tasks["c"].status is SUCCESS
        if world.lives == 1:
            break
        pauses += 1
    assert pauses > 30
