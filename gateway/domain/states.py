"""Every state and every legal move; nothing else in the project decides what is allowed.

Three tables (job, task, run) and two questions: `may` a thing move, and what do several states `merge` to.
The names of job and task states are those of the standard; how a finished job ended is our own `Outcome`,
because the standard's FINISHED does not say.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(record, /, **changes):
        """Return a record with other values of some fields, at a tenth of what `dataclasses.replace` takes.

        Records of this package keep what their constructors get, and nothing else.
        """
        made = object.__new__(type(record))
        made.__dict__.update(record.__dict__, **changes)
        return made


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


JOB: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.PENDING: frozenset({JobStatus.READY, JobStatus.REJECTED}),
    JobStatus.READY: frozenset({JobStatus.RUNNING, JobStatus.FINISHED}),
    JobStatus.RUNNING: frozenset({JobStatus.FINISHED}),
    JobStatus.FINISHED: frozenset(),
    JobStatus.REJECTED: frozenset(),
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

TASK_OF_RUN: Mapping[RunStatus, TaskStatus] = {
    RunStatus.WAITING: TaskStatus.READY,
    RunStatus.LAUNCHING: TaskStatus.READY,
    RunStatus.RUNNING: TaskStatus.RUNNING,
    RunStatus.STOPPING: TaskStatus.RUNNING,
    RunStatus.SUCCESS: TaskStatus.SUCCESS,
    RunStatus.FAILED: TaskStatus.FAILED,
}
"""The status of a run as reported to other nodes."""

S = TypeVar("S", JobStatus, TaskStatus, RunStatus)

_PRECEDENCE = (
    TaskStatus.FAILED,
    TaskStatus.RUNNING,
    TaskStatus.READY,
    TaskStatus.PENDING,
    TaskStatus.SUCCESS,
)


class IllegalMove(Exception):
    """We decided on a move that the table does not have: a bug of ours, never of a peer."""


def may(
    table: Mapping[S, frozenset[S]],
    old: S,
    new: S,
) -> bool:
    """Say whether the table has this move."""
    return new in table[old]


def ended(table: Mapping[S, frozenset[S]], status: S) -> bool:
    """Say whether nothing follows this status."""
    return not table[status]


def move(
    table: Mapping[S, frozenset[S]],
    old: S,
    new: S,
) -> S:
    """Return ``new`` if the table has the move. Raises `IllegalMove`."""
    if not may(table, old, new):
        raise IllegalMove(f"{old} -> {new}")
    return new


def merge(statuses: Iterable[TaskStatus]) -> TaskStatus:
    """Fold the states of several parties into the task's: the first present of FAILED, RUNNING, READY, PENDING.

    A task is SUCCESS only when every party is; the order of the parties does not matter.
    """
    present = list(statuses)
    for status in _PRECEDENCE:
        if status in present:
            return status
    return TaskStatus.SUCCESS
