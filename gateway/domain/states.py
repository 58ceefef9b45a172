"""Every state and every legal move of jobs, tasks and runs.

Only these tables decide which moves are allowed. `merge` folds a task's states at several parties
into one. The names of job and task states are the standard's. The outcome of a job is our own
`Outcome`, as the standard has only FINISHED.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar


class JobStatus(StrEnum):
    """A job's states, in the standard's words."""

    PENDING = "PENDING"
    READY = "READY"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    REJECTED = "REJECTED"


class TaskStatus(StrEnum):
    """A task's states, in the standard's words."""

    PENDING = "PENDING"
    READY = "READY"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class RunStatus(StrEnum):
    """A container run's states, which are ours alone."""

    WAITING = "WAITING"
    LAUNCHING = "LAUNCHING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    REJECTED = "REJECTED"


# The tables of moves: a status -> the statuses that may follow it. `TASK` and `RUN` are below.
JOB: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.PENDING: frozenset({JobStatus.READY, JobStatus.REJECTED}),
    JobStatus.READY: frozenset({JobStatus.RUNNING, JobStatus.FINISHED}),
    JobStatus.RUNNING: frozenset({JobStatus.FINISHED}),
    JobStatus.FINISHED: frozenset(),
    JobStatus.REJECTED: frozenset(),
}

# The status of a job after its end, by its status before: a PENDING job has never begun.
FINAL_STATUS: Mapping[JobStatus, JobStatus] = {
    JobStatus.PENDING: JobStatus.REJECTED,
    JobStatus.READY: JobStatus.FINISHED,
    JobStatus.RUNNING: JobStatus.FINISHED,
}

TASK: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset(
        {TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED}
    ),
    TaskStatus.READY: frozenset({TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED}),
    TaskStatus.RUNNING: frozenset({TaskStatus.SUCCESS, TaskStatus.FAILED}),
    TaskStatus.SUCCESS: frozenset(),
    TaskStatus.FAILED: frozenset(),
}

RUN: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.WAITING: frozenset({RunStatus.LAUNCHING, RunStatus.FAILED}),
    RunStatus.LAUNCHING: frozenset({RunStatus.RUNNING, RunStatus.STOPPING, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.STOPPING}),
    RunStatus.STOPPING: frozenset({RunStatus.FAILED}),
    RunStatus.SUCCESS: frozenset(),
    RunStatus.FAILED: frozenset(),
}

# The status of a run as reported to other nodes.
TASK_OF_RUN: Mapping[RunStatus, TaskStatus] = {
    RunStatus.WAITING: TaskStatus.READY,
    RunStatus.LAUNCHING: TaskStatus.READY,
    RunStatus.RUNNING: TaskStatus.RUNNING,
    RunStatus.STOPPING: TaskStatus.RUNNING,
    RunStatus.SUCCESS: TaskStatus.SUCCESS,
    RunStatus.FAILED: TaskStatus.FAILED,
}

S = TypeVar("S", JobStatus, TaskStatus, RunStatus)

# `merge` returns the first of these states that some party has.
_PRECEDENCE = (
    TaskStatus.FAILED,
    TaskStatus.RUNNING,
    TaskStatus.READY,
    TaskStatus.PENDING,
    TaskStatus.SUCCESS,
)


class IllegalMove(Exception):
    """A move that the table does not have.

    Of a job, task or run it is a bug of this gateway. Applications of nodes to each other have a
    table of their own (`gateway.domain.applications`): a move that it lacks may be a mistake of the
    partner or of a person.
    """


def may(
    table: Mapping[S, frozenset[S]],
    old: S,
    new: S,
) -> bool:
    """Return whether the table has this move.

    ``table`` maps each status to the statuses that may follow it. No status follows itself.
    """
    return new in table[old]


def ended(
    table: Mapping[S, frozenset[S]],
    status: S,
) -> bool:
    """Return whether the table has no move from this status.

    ``table`` maps each status to the statuses that may follow it.
    """
    return not table[status]


def move(
    table: Mapping[S, frozenset[S]],
    old: S,
    new: S,
) -> S:
    """Return ``new`` if the table has the move. Otherwise raises `IllegalMove`."""
    if not may(table, old, new):
        raise IllegalMove(f"{old} -> {new}")
    return new


def merge(statuses: Iterable[TaskStatus]) -> TaskStatus:
    """Return a task's status, by the statuses of its parties.

    It is the first of FAILED, RUNNING, READY and PENDING that some party has. A task is SUCCESS
    only if every party is.
    """
    present = list(statuses)
    for status in _PRECEDENCE:
        if status in present:
            return status
    return TaskStatus.SUCCESS  # also for a task without parties
