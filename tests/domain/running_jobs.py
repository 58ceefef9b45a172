"""Jobs with running tasks, and the steps of their attempts and stops."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gateway.domain import task_ids
from gateway.domain.job import Job
from gateway.domain.scheduling.messages import (
    PollTaskAt,
    StartTaskAt,
    StopRequested,
    StopTaskAt,
    TaskReported,
    TaskStopRequested,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, TaskStatus
from tests.builders import a_job, a_spec, at
from tests.domain.calls import POLL_2
from tests.domain.script import AcceptAll, Step, accept, due_commands, play, report_task

RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

# Requests: the second attempt of task a, and stops of task a.
SECOND_A1 = StartTaskAt("n1", "a", 1)
SECOND_A2 = StartTaskAt("n2", "a", 1)
STOP_A1 = StopTaskAt("n1", "a")
STOP_A2 = StopTaskAt("n2", "a")

# Events of users.
STOP_TASK_A = TaskStopRequested("a", "n2", at(1))
STOP_JOB = StopRequested("n1", at(3))

BROKE = Failure("EXIT_1", "it broke")
STOPPED_BY_N2 = Failure("STOPPED", "stopped by n2", task="a")


def job_with(
    dag: str = "a -> b",
    status: JobStatus = JobStatus.RUNNING,
    **common: Any,
) -> Job:
    """Return a job with these common settings, started at second 0."""
    job = a_job(
        status=status,
        spec=a_spec(
            dag,
            job_params={"common": common},
        ),
    )
    return replace(job, started_at=at(0))


def begun_job(dag: str = "a -> b", **common: Any) -> Job:
    """Return a job whose first tasks were just started at both nodes."""
    return play(job_with(dag, **common), AcceptAll(0))


def job_with_running_tasks(dag: str = "a -> b; c", **statuses: Any) -> Job:
    """Return a job whose tasks a and c run, unless they have another status."""
    all_statuses = {"a": RUNNING, "c": RUNNING} | statuses
    return a_job(dag, JobStatus.RUNNING, **all_statuses)


def due_without_polls(job: Job, seconds: float) -> list[Any]:
    """Return the commands except polls that are due at a moment."""
    commands = due_commands(job, seconds)
    return [command for command in commands if not isinstance(command, PollTaskAt)]


def due_without_polls_at_each(
    job: Job,
    moments: Iterable[float],
) -> dict[float, list[Any]]:
    """Return the due commands except polls by moment (seconds)."""
    return {seconds: due_without_polls(job, seconds) for seconds in moments}


def both_report(
    task: str,
    seconds: float,
    status: TaskStatus = SUCCESS,
) -> list[Step]:
    """Both nodes report the same state of a task."""
    return [report_task(status, node, task, seconds) for node in ("n1", "n2")]


def report_second_attempt(
    status: TaskStatus,
    node: str,
    seconds: float,
    failure: Failure | None = None,
) -> TaskReported:
    """A node reports the second attempt of task a."""
    task_id = task_ids.next_task_id("job-1", "a", 1, "task_a")
    return TaskReported(task_id, node, "", status, at(seconds), failure)


# Task a runs at n2 and fails at n1.
ONE_FAILS: list[Step] = [
    report_task(RUNNING),
    report_task(FAILED, "n1", failure=BROKE),
]

# Then its part at n2 is stopped.
BOTH_ENDED: list[Step] = [
    *ONE_FAILS,
    report_task(
        FAILED,
        seconds=2,
        failure=Failure("STOPPED"),
    ),
]

# Then the second attempt begins.
SECOND_ATTEMPT: list[Step] = [
    *BOTH_ENDED,
    2,
    accept(SECOND_A1, 2),
    accept(SECOND_A2, 2),
]

# Or n2 accepts the stop and is polled, but its part is still running.
STOP_ACCEPTED: list[Step] = [*ONE_FAILS, 1, accept(STOP_A2, 1), 60, accept(POLL_2, 60)]
STOP_IGNORED: list[Step] = [*STOP_ACCEPTED, 62, accept(POLL_2, 62), 62]
