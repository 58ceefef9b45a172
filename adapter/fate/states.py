"""FATE's words for states and ours, both ways.

FATE knows one word where the standard has two: PENDING and READY of a task are ``waiting``. It knows several where
the standard has one: how a finished job or a failed task ended is part of its state.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from gateway.domain.problems import Problem
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Invalid


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

REASONS: Mapping[str, str] = {"canceled": "STOPPED", "timeout": "TIMEOUT", "failed": "FAILED"}
"""FATE's word for an end -> our reason where it gives none."""

_TASK_WORDS: Mapping[TaskStatus, TaskWord] = {
    TaskStatus.PENDING: TaskWord.WAITING,
    TaskStatus.READY: TaskWord.WAITING,
    TaskStatus.RUNNING: TaskWord.RUNNING,
    TaskStatus.SUCCESS: TaskWord.SUCCESS,
    TaskStatus.FAILED: TaskWord.FAILED,
}
_JOB_WORDS: Mapping[JobStatus, JobWord] = {
    JobStatus.PENDING: JobWord.READY,
    JobStatus.READY: JobWord.WAITING,
    JobStatus.RUNNING: JobWord.RUNNING,
    JobStatus.FINISHED: JobWord.SUCCESS,
    JobStatus.REJECTED: JobWord.FAILED,
}
_OUTCOME_WORDS: Mapping[Outcome, JobWord] = {
    Outcome.SUCCEEDED: JobWord.SUCCESS,
    Outcome.FAILED: JobWord.FAILED,
    Outcome.STOPPED: JobWord.CANCELED,
    Outcome.REJECTED: JobWord.FAILED,
}
_WORDS_OF_REASONS: Mapping[str, str] = {reason: word for word, reason in REASONS.items()}


W = TypeVar("W", JobWord, TaskWord)


def word_in(words: type[W], value: Any, path: str = "status") -> W:
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


def job_word(status: JobStatus, outcome: Outcome | None = None, failure: Failure | None = None) -> JobWord:
    """Return a job's state in FATE's words; an ended one by how and why it ended."""
    if outcome is None:
        return _JOB_WORDS[status]
    word = _OUTCOME_WORDS[outcome]
    if word is JobWord.FAILED and failure is not None and failure.reason == REASONS["timeout"]:
        return JobWord.TIMEOUT
    return word
