"""Stops of tasks and jobs, new parameters, tolerable failures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import quorum
from gateway.domain.dag import downstream
from gateway.domain.job import Job
from gateway.domain.scheduling.messages import (
    ParametersAgreed,
    PollTaskAt,
    StartTaskAt,
    StopRequested,
    SuspendRequested,
    TaskStopRequested,
    TaskUnknown,
)
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.spec import Amendment, CallState, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import IDLE, a_job, at, sent
from tests.domain.calls import X1, X2
from tests.domain.running_jobs import (
    BROKE,
    STOP_A1,
    STOP_A2,
    STOP_JOB,
    STOP_TASK_A,
    STOPPED_BY_N2,
    both_report,
    due_without_polls,
    job_with,
    job_with_running_tasks,
)
from tests.domain.script import ONE_GUEST, AcceptAll, accept, play, refuse, report_task
from tests.domain.strategies import REPEATABLE, plots

READY = TaskStatus.READY
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

STOP_TASK_C = TaskStopRequested("c", "n2", at(2))


def task_statuses(job: Job) -> dict[str, TaskStatus]:
    return {name: task.status for name, task in job.tasks.items()}


# ---------------------------------------------------------------- repeated stops

A_STOPPED = play(job_with_running_tasks(), STOP_TASK_A)
ALL_STOPPED = play(A_STOPPED, STOP_TASK_C)
ENDED_BY_STOPS = play(
    ALL_STOPPED,
    3,
    accept(X1, 4),
    accept(X2, 4),
    20,
    accept(X1, 21),
    accept(X2, 21),
)

IGNORED_STOPS = {
    "a task that succeeded": (
        job_with_running_tasks(a=SUCCESS, b=RUNNING),
        STOP_TASK_A,
    ),
    "a stopped task": (A_STOPPED, STOP_TASK_A),
    "a task after a stopped one": (
        A_STOPPED,
        TaskStopRequested("b", "n2", at(9)),
    ),
    "a task of an ending job": (ALL_STOPPED, STOP_TASK_A),
    "an ending job": (
        ALL_STOPPED,
        StopRequested("n1", at(9)),
    ),
    "a suspension of an ending job": (
        ALL_STOPPED,
        SuspendRequested("n1", at(9)),
    ),
    "an ended job": (ENDED_BY_STOPS, STOP_JOB),
    "a task of an ended job": (ENDED_BY_STOPS, STOP_TASK_A),
}


@pytest.mark.parametrize(
    ("job", "event"),
    IGNORED_STOPS.values(),
    ids=IGNORED_STOPS,
)
def test_a_stop_changes_nothing_that_has_ended_or_is_stopped(job: Job, event):
    assert play(job, event) is job


def test_a_job_whose_tasks_were_all_stopped_ends_as_stopped():
    assert ENDED_BY_STOPS.outcome is Outcome.STOPPED
    assert ENDED_BY_STOPS.ending.by == "n2"


def test_a_stop_of_an_upstream_task_leaves_an_earlier_stop_downstream():
    b_stopped = play(
        job_with_running_tasks(),
        TaskStopRequested("b", "n2", at(1)),
    )

    job = play(b_stopped, TaskStopRequested("a", "n2", at(5)))

    assert job.tasks["b"].ending == b_stopped.tasks["b"].ending
    assert job.tasks["a"].ending.at == at(5)


# ---------------------------------------------------------------- new parameters


def agree_on_parameters(
    amendment: str,
    task: str,
    predecessors: int,
) -> ParametersAgreed:
    """The nodes agree on new parameters of a task, knowing ``predecessors`` earlier amendments."""
    params = {"common": {task: {"x": 1}}}
    return ParametersAgreed(
        Amendment(amendment, params, "n2", "", at(2)),
        predecessors,
    )


def amendment_ids(job: Job) -> list[str]:
    return [amendment.id for amendment in job.amendments]


B_AMENDED = play(job_with_running_tasks(), agree_on_parameters("one", "b", 0))


def test_new_parameters_of_a_task_that_has_not_begun_hold():
    assert amendment_ids(B_AMENDED) == ["one"]
    assert amendment_ids(play(B_AMENDED, agree_on_parameters("two", "b", 1))) == ["one", "two"]


@pytest.mark.parametrize(
    ("job", "event"),
    [
        (B_AMENDED, agree_on_parameters("two", "b", 0)),
        (B_AMENDED, agree_on_parameters("two", "a", 1)),
        (play(job_with_running_tasks(), STOP_JOB), agree_on_parameters("one", "b", 0)),
    ],
    ids=["others came first", "the task has begun", "the job was stopped"],
)
def test_new_parameters_that_come_too_late_are_ignored(job: Job, event: ParametersAgreed):
    assert play(job, event).amendments == job.amendments


# ---------------------------------------------------------------- tasks without a response


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (CallState.LOST, READY),
        (CallState.OK, FAILED),
    ],
)
def test_a_task_that_its_only_node_forgot_after_acceptance_has_failed(
    start: CallState, status: TaskStatus
):
    job = a_job(
        "a; c",
        JobStatus.RUNNING,
        roles=ONE_GUEST,
        a=READY,
        c=RUNNING,
    )
    task = job.tasks["a"]
    part = replace(
        task.nodes["n1"],
        start=replace(sent(), state=start),
    )
    job = replace(job, tasks={**job.tasks, "a": replace(task, nodes={"n1": part})})

    job = play(
        job,
        STOP_TASK_A,
        20,
        TaskUnknown(
            PollTaskAt("n1", "a", ("guest",)),
            at(21),
        ),
    )

    assert (job.tasks["a"].status, job.ending) == (status, None)
    commands = due_without_polls(job, 500)
    assert not [command for command in commands if isinstance(command, StartTaskAt)]


def test_a_stopped_task_without_any_node_fails_because_of_its_stop():
    job = play(
        a_job("a; c", JobStatus.RUNNING, c=RUNNING),
        0,
        STOP_TASK_A,
    )

    for node in ("n1", "n2"):
        job = exclude_from_task(job, StartTaskAt(node, "a"), at(2))

    assert job.ending is None
    assert (job.tasks["a"].status, job.tasks["a"].failure) == (FAILED, STOPPED_BY_N2)
    assert due_without_polls(job, 500) == []


def test_an_unanswered_stop_of_a_task_is_repeated_for_a_while():
    proxy_page = Failure("NO_ENVELOPE", "<html>")
    job = play(job_with_running_tasks(), STOP_TASK_A, 1, accept(STOP_A2, 1))
    now = 1.0
    stops = 1
    job = play(job, refuse(STOP_A1, now, proxy_page))

    while STOP_A1 in due_without_polls(job, now + 20):
        now += 20
        stops += 1
        job = play(job, now, refuse(STOP_A1, now, proxy_page))

    assert stops == 10
    assert job.ending is None


# ---------------------------------------------------------------- the end of a job


def test_no_part_of_a_task_is_left_running_by_the_end_of_its_job():
    job = a_job(
        "a -> b; c",
        JobStatus.RUNNING,
        a={"n1": RUNNING, "n2": SUCCESS},
        c={"n1": FAILED, "n2": RUNNING},
    )

    job = play(
        job,
        StopRequested("n1", at(1)),
        AcceptAll(1),
    )

    assert task_statuses(job) == {
        "a": FAILED,
        "b": READY,
        "c": FAILED,
    }
    part_statuses = {
        (name, node): part.status
        for name in ("a", "c")
        for node, part in job.tasks[name].nodes.items()
    }
    assert part_statuses == {
        ("a", "n1"): FAILED,
        ("a", "n2"): SUCCESS,
        ("c", "n1"): FAILED,
        ("c", "n2"): FAILED,
    }


def test_a_running_task_without_a_recorded_start_fails_with_its_job():
    job = a_job(
        "a",
        JobStatus.RUNNING,
        a=RUNNING,
        roles=ONE_GUEST,
    )
    part = replace(
        job.tasks["a"].nodes["n1"],
        start=IDLE,
    )
    job = replace(
        job,
        tasks={"a": replace(job.tasks["a"], nodes={"n1": part})},
    )

    job = play(
        job,
        StopRequested("n1", at(1)),
        AcceptAll(1),
    )

    assert job.tasks["a"].status is FAILED


def test_a_job_succeeds_in_spite_of_a_tolerable_failure():
    failure = report_task(FAILED, seconds=6, failure=BROKE)
    new_job = job_with("a -> b -> c; d", tolerable_tasks=["a"])

    job = play(new_job, AcceptAll(5), failure, 7, *both_report("d", 8))

    assert (job.ending.outcome, job.ending.failure) == (Outcome.SUCCEEDED, None)
    assert quorum.tolerated_failures(job) == ["a"]
    assert job.tasks["b"].status is READY
    assert job.tasks["b"].ending.failure.reason == "UPSTREAM_FAILED"
    job = play(job, AcceptAll(30))
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)


def test_a_success_in_spite_of_a_stop_counts_next_to_a_tolerable_failure():
    new_job = job_with("a; d", tolerable_tasks=["a"])
    stop = TaskStopRequested("d", "n2", at(6))
    failure = report_task(FAILED, seconds=8, failure=BROKE)

    job = play(new_job, AcceptAll(5), stop, *both_report("d", 7), failure)

    assert quorum.tolerated_failures(job) == ["a"]
    assert job.tasks["d"].ending.outcome is Outcome.STOPPED
    assert (job.tasks["d"].status, job.ending.outcome) == (SUCCESS, Outcome.SUCCEEDED)


@given(st.data())
@settings(REPEATABLE, max_examples=40)
def test_a_stop_ends_the_task_and_everything_downstream(data):
    plot = data.draw(plots(calm=True))
    names = {node.name for node in plot.spec.dag.nodes}
    some_tasks = st.frozensets(
        st.sampled_from(sorted(names)),
        min_size=1,
    )
    open_tasks = downstream(plot.spec.dag, data.draw(some_tasks))
    finished = names - open_tasks
    job = a_job(
        spec=plot.spec,
        status=JobStatus.RUNNING,
        **dict.fromkeys(finished, SUCCESS),
    )
    task = data.draw(st.sampled_from(sorted(names)))

    job = play(job, TaskStopRequested(task, "n2", at(1)))

    stopped = set() if task in finished else set(downstream(plot.spec.dag, [task]))
    assert {name for name, t in job.tasks.items() if t.ending is not None} == stopped
    everything_has_ended = bool(stopped) and stopped | finished == names
    assert (job.ending is not None) is everything_has_ended
