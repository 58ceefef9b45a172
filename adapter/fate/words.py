"""FATE's words and ours, both ways: states, and the ids of jobs and tasks.

FATE knows one word where the standard has two: PENDING and READY of a task are ``waiting``. It knows several where
the standard has one: how a finished job or a failed task ended is part of its state.

FATE's id of a task is ``<job id>_<task name>``, and each attempt is another version of it. A task's id of the form
``<job id>_<task name>_<version>`` converts both ways; any other is sent as it is, which only a gateway like this
one understands.

FATE restarts a job under the same id, by a rerun or its automatic retry: its ends of a job are not final, the
standard's FINISHED is. So each restart is a job of its own here, ``<job id>-r<n>``, which inherits what had
finished in the one before; FATE always means the newest.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from gateway.domain.job import Job
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Invalid

PROTOCOL = "fate"

JobOf = Callable[[str], Job | None]
"""A job that this node schedules, by its id."""
LocalOf = Callable[[str], LocalJob | None]
"""A job in which this node takes part, by its id."""


class JobWord(StrEnum):
    """How a job is; from ``canceled`` on it has ended."""

    READY = "ready"
    WAITING = "waiting"
    RUNNING = "running"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    FAILED = "failed"
    SUCCESS = "success"


class TaskWord(StrEnum):
    """How a task is; from ``canceled`` on it has ended, ``pass`` as if it had succeeded.

    A task never fails while it is ``waiting``: whoever reports a failure has reported ``running`` before.
    """

    WAITING = "waiting"
    RUNNING = "running"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    FAILED = "failed"
    PASS = "pass"
    SUCCESS = "success"


OUR_TASK: Mapping[TaskWord, TaskStatus] = {
    TaskWord.WAITING: TaskStatus.READY,
    TaskWord.RUNNING: TaskStatus.RUNNING,
    TaskWord.CANCELED: TaskStatus.FAILED,
    TaskWord.TIMEOUT: TaskStatus.FAILED,
    TaskWord.FAILED: TaskStatus.FAILED,
    TaskWord.PASS: TaskStatus.SUCCESS,
    TaskWord.SUCCESS: TaskStatus.SUCCESS,
}
OUR_OUTCOME: Mapping[JobWord, Outcome] = {
    JobWord.SUCCESS: Outcome.SUCCEEDED,
    JobWord.FAILED: Outcome.FAILED,
    JobWord.TIMEOUT: Outcome.FAILED,
    JobWord.CANCELED: Outcome.STOPPED,
}
"""The ends of a job; the other words say that it has not ended."""
REASONS: Mapping[str, str] = {
    "canceled": "STOPPED",
    "timeout": "TIMEOUT",
    "failed": "FAILED",
}
"""FATE's word for an end -> our reason where it gives none."""

_WORDS_OF_REASONS = {reason: word for word, reason in REASONS.items()}
_TASK_WORDS: Mapping[TaskStatus, TaskWord] = {
    TaskStatus.PENDING: TaskWord.WAITING,
    TaskStatus.READY: TaskWord.WAITING,
    TaskStatus.RUNNING: TaskWord.RUNNING,
    TaskStatus.SUCCESS: TaskWord.SUCCESS,
    TaskStatus.FAILED: TaskWord.FAILED,
}
_JOB_WORDS: Mapping[JobStatus | Outcome, JobWord] = {
    JobStatus.PENDING: JobWord.READY,
    JobStatus.READY: JobWord.WAITING,
    JobStatus.RUNNING: JobWord.RUNNING,
    JobStatus.FINISHED: JobWord.SUCCESS,
    JobStatus.REJECTED: JobWord.FAILED,
    Outcome.SUCCEEDED: JobWord.SUCCESS,
    Outcome.FAILED: JobWord.FAILED,
    Outcome.STOPPED: JobWord.CANCELED,
    Outcome.REJECTED: JobWord.FAILED,
}

W = TypeVar("W", JobWord, TaskWord)


def word_in(
    words: type[W],
    value: Any,
    path: str = "status",
) -> W:
    """Read a state. Raises `Invalid` (STATUS_UNKNOWN) with the words there are."""
    try:
        return words(str(value))
    except ValueError:
        problem = Problem(path, f"must be one of {', '.join(words)}", value)
        raise Invalid([problem], reason="STATUS_UNKNOWN") from None


def task_word(status: TaskStatus, failure: Failure | None = None) -> TaskWord:
    """Return a task's state in FATE's words; a failed one by why it failed."""
    if status is TaskStatus.FAILED and failure is not None:
        return TaskWord(_WORDS_OF_REASONS.get(failure.reason, TaskWord.FAILED))
    return _TASK_WORDS[status]


def job_word(
    status: JobStatus,
    outcome: Outcome | None = None,
    failure: Failure | None = None,
) -> JobWord:
    """Return a job's state in FATE's words; an ended one by how and why it ended."""
    word = _JOB_WORDS[outcome or status]
    if (
        outcome
        and word is JobWord.FAILED
        and failure is not None
        and failure.reason == REASONS["timeout"]
    ):
        return JobWord.TIMEOUT
    return word


_RESTARTED = re.compile(r"-r[0-9]+$")
_NUMBERED = re.compile(r"([^_]+)_(.+)_([0-9]{1,6})")


class Key(NamedTuple):
    """A task as FATE names it."""

    job_id: str
    task_id: str
    version: int

    @property
    def name(self) -> str:
        """The task's name in the flow; empty if FATE's id does not contain it."""
        prefix = f"{self.job_id}_"
        return (
            self.task_id.removeprefix(prefix)
            if self.job_id and self.task_id.startswith(prefix)
            else ""
        )

    @property
    def here(self) -> str:
        """The task's id here."""
        return f"{self.task_id}_{self.version}" if self.name else self.task_id


def milliseconds(moment: datetime | None) -> int | None:
    """Return a time as FATE writes it: whole milliseconds that have passed."""
    return None if moment is None else int(moment.timestamp() * 1000)


def key_of(task_id: str, job_id: str = "") -> Key:
    """Return FATE's key of a task by its id here; ``job_id`` if it is known."""
    found = _NUMBERED.fullmatch(task_id)
    if found is None or job_id not in ("", found[1]):
        return Key(job_id, task_id, 0)
    return Key(found[1], f"{found[1]}_{found[2]}", int(found[3]))


def newest(job_id: str, local_of: LocalOf) -> LocalJob | None:
    """Return the newest job here that is FATE's job of this id; None where there is none."""
    found = local_of(job_id)
    number = 1
    while found is not None and (later := local_of(f"{job_id}-r{number}")) is not None:
        if (later.spec.old_job_id, later.spec.scheduler) != (found.id, found.spec.scheduler):
            break  # another job with such a name
        found, number = later, number + 1
    return found


def may_begin_again(local: LocalJob) -> bool:
    """Whether ``waiting`` restarts a job of FATE's: once FATE has reported its end.

    A job that has ended here alone, by a rejection or by itself, still goes on for FATE's scheduler, which may
    report ``waiting`` in every cycle.
    """
    ending = local.ending
    if local.spec.protocol != PROTOCOL or ending is None or local.is_ending_inferred:
        return False
    return ending.by == local.spec.scheduler or local.stop_request is not None


def begun_again(local: LocalJob, job_id: str) -> JobSpec:
    """Return the job that follows an ended one; it inherits whatever is unchanged."""
    params = dict(local.spec.job_params)
    if isinstance(common := params.get("common"), dict):
        params["common"] = {key: value for key, value in common.items() if key != "inherit"}
    again = f"{job_id}-r{number_of(local, job_id) + 1}"
    return replace(
        local.spec,
        job_id=again,
        old_job_id=local.id,
        job_params=params,
        flow_id=job_id,
    )


def continued(spec: JobSpec, local_of: LocalOf) -> JobSpec:
    """Return a job of FATE's that inherits from the newest restart of an earlier one."""
    if not spec.old_job_id or spec.protocol != PROTOCOL:
        return spec
    old = newest(spec.old_job_id, local_of)
    return spec if old is None else replace(spec, old_job_id=old.id)


def number_of(local: LocalJob, job_id: str) -> int:
    """Return how often FATE has restarted the job of this id before."""
    return 0 if local.id == job_id else int(local.id.removeprefix(f"{job_id}-r"))


def is_retry(local: LocalJob, job_id: str) -> bool:
    """Whether the next restart of a job is one of the retries that the job itself names, after a failure."""
    limits = local.spec.settings.time_limits
    retries = max(limits.of(task.name).retries for task in local.spec.dag.nodes)
    failed = local.ending is not None and local.ending.outcome is Outcome.FAILED
    return failed and number_of(local, job_id) < retries


def original(job_id: str) -> str:
    """Return FATE's id of a job here that FATE's nodes schedule."""
    return _RESTARTED.sub("", job_id)
