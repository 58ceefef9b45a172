"""FATE's words and ours, both ways: states, and the ids of jobs and tasks.

FATE has one word for the standard's PENDING and READY of a task: ``waiting``. It has several words
for the standard's FINISHED and FAILED, so the state of an ended job or task says how it ended.

FATE's id of a task is ``<job id>_<task name>``, and each attempt is another version of it. A task's
id of the form ``<job id>_<task name>_<version>`` converts both ways; any other id is sent
unchanged, which only a gateway like this one understands.

FATE restarts a job under the same id, by a rerun or its automatic retry: unlike the standard's
FINISHED, an end is not final for FATE. So each restart is a further job here, ``<job id>-r<n>``,
which inherits the finished tasks of its predecessor. FATE's id of a job stands for its newest
restart.
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

_RESTART_SUFFIX = re.compile(r"-r[0-9]+$")  # end of a restart's id, see the module's docstring
# A task's id at this node: job id, task name and version
_VERSIONED_TASK_ID = re.compile(r"([^_]+)_(.+)_([0-9]{1,6})")

JobOf = Callable[[str], Job | None]  # a job that this node schedules, by its id
LocalOf = Callable[[str], LocalJob | None]  # a job in which this node takes part, by its id


class JobWord(StrEnum):
    """States of a job; from ``canceled`` on it has ended."""

    READY = "ready"
    WAITING = "waiting"
    RUNNING = "running"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    FAILED = "failed"
    SUCCESS = "success"


class TaskWord(StrEnum):
    """States of a task; from ``canceled`` on it has ended. ``pass`` means success.

    A task never fails while it is ``waiting``: ``running`` must be reported before a failure.
    """

    WAITING = "waiting"
    RUNNING = "running"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    FAILED = "failed"
    PASS = "pass"
    SUCCESS = "success"


# FATE's state of a task -> ours
OUR_TASK_STATUS: Mapping[TaskWord, TaskStatus] = {
    TaskWord.WAITING: TaskStatus.READY,
    TaskWord.RUNNING: TaskStatus.RUNNING,
    TaskWord.CANCELED: TaskStatus.FAILED,
    TaskWord.TIMEOUT: TaskStatus.FAILED,
    TaskWord.FAILED: TaskStatus.FAILED,
    TaskWord.PASS: TaskStatus.SUCCESS,
    TaskWord.SUCCESS: TaskStatus.SUCCESS,
}
# FATE's word for a job's end -> our outcome; the words that are not here mean no end.
OUR_OUTCOME: Mapping[JobWord, Outcome] = {
    JobWord.SUCCESS: Outcome.SUCCEEDED,
    JobWord.FAILED: Outcome.FAILED,
    JobWord.TIMEOUT: Outcome.FAILED,
    JobWord.CANCELED: Outcome.STOPPED,
}
# FATE's word for the end of a job or task -> the reason of our failure, if FATE gives no failure
REASONS_OF_ENDS: Mapping[str, str] = {
    "canceled": "STOPPED",
    "timeout": "TIMEOUT",
    "failed": "FAILED",
}
_WORDS_OF_REASONS = {reason: word for word, reason in REASONS_OF_ENDS.items()}
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


def read_word(
    words: type[W],
    value: Any,
    path: str = "status",
) -> W:
    """Read a state; ``path``: its place in the body.

    Raises `Invalid` (STATUS_UNKNOWN), which lists the known words.
    """
    try:
        return words(str(value))
    except ValueError:
        problem = Problem(path, f"must be one of {', '.join(words)}", value)
        raise Invalid([problem], reason="STATUS_UNKNOWN") from None


def task_word(status: TaskStatus, failure: Failure | None = None) -> TaskWord:
    """Return a task's state in FATE's words, which tell failures apart by their cause."""
    word = _TASK_WORDS[status]
    if word is TaskWord.FAILED and failure is not None:
        return TaskWord(_WORDS_OF_REASONS.get(failure.reason, word))
    return word


def job_word(
    status: JobStatus,
    outcome: Outcome | None = None,
    failure: Failure | None = None,
) -> JobWord:
    """Return a job's state in FATE's words, which tell ends apart by their outcome and cause.

    ``outcome`` and ``failure``: of an ended job, as far as they are known.
    """
    if outcome is None:
        return _JOB_WORDS[status]
    word = _JOB_WORDS[outcome]
    is_timeout = failure is not None and failure.reason == REASONS_OF_ENDS["timeout"]
    if is_timeout and word is JobWord.FAILED:
        return JobWord.TIMEOUT
    return word


class Key(NamedTuple):
    """A task as FATE names it."""

    job_id: str
    task_id: str
    version: int  # the number of the attempt, from 0

    @property
    def name(self) -> str:
        """The task's name in the flow; empty if FATE's id does not contain it."""
        prefix = f"{self.job_id}_"
        has_name = bool(self.job_id) and self.task_id.startswith(prefix)
        if not has_name:
            return ""
        return self.task_id.removeprefix(prefix)

    @property
    def local_id(self) -> str:
        """The task's id at this node, which contains the version if FATE's id contains the name."""
        if not self.name:
            return self.task_id
        return f"{self.task_id}_{self.version}"


def milliseconds(moment: datetime | None) -> int | None:
    """Return a time in FATE's form: whole milliseconds since 1970; None for no time."""
    if moment is None:
        return None
    return int(moment.timestamp() * 1000)


def key_of(task_id: str, job_id: str = "") -> Key:
    """Return FATE's key of a task by its id at this node.

    ``job_id``: the task's job, if it is known. An id of another form than FATE's becomes version 0
    of a task with that id.
    """
    match = _VERSIONED_TASK_ID.fullmatch(task_id)
    if match is None or job_id not in ("", match[1]):
        return Key(job_id, task_id, 0)
    return Key(match[1], f"{match[1]}_{match[2]}", int(match[3]))


def newest_restart(job_id: str, local_of: LocalOf) -> LocalJob | None:
    """Return the newest restart of the job that has this id at FATE.

    That is the job itself if it has no restart. None if this node has no such job.
    """
    job = local_of(job_id)
    number = 1
    while job is not None:
        restart = local_of(f"{job_id}-r{number}")
        if restart is None or not _is_restart_of(job, restart):
            break
        job = restart
        number += 1
    return job


def _is_restart_of(job: LocalJob, later: LocalJob) -> bool:
    """True unless ``later`` is an unrelated job whose id looks like a restart's."""
    return later.spec.old_job_id == job.id and later.spec.scheduler == job.spec.scheduler


def can_restart(local: LocalJob) -> bool:
    """True if a report of ``waiting`` restarts a job: FATE has reported its end or stopped it.

    Always False for jobs of other protocols. A job that ended only at this node, e.g. by a
    rejection, has not ended for FATE's scheduler, which may report ``waiting`` in every cycle.
    """
    ending = local.ending
    if local.spec.protocol != PROTOCOL or ending is None:
        return False
    if local.is_ending_inferred:  # FATE has not reported the end
        return False
    is_reported = ending.by == local.spec.scheduler
    return is_reported or local.stop_request is not None


def restarted_spec(local: LocalJob, job_id: str) -> JobSpec:
    """Return the job that follows an ended one and inherits its unchanged tasks.

    ``job_id``: FATE's id of the job, which also becomes the id of the flow. The setting ``inherit``
    is dropped: it names tasks of the job that the ended one inherited from.
    """
    params = dict(local.spec.job_params)
    common = params.get("common")
    if isinstance(common, dict):
        params["common"] = dict(common)
        params["common"].pop("inherit", None)
    return replace(
        local.spec,
        job_id=f"{job_id}-r{restart_count(local, job_id) + 1}",
        old_job_id=local.id,
        job_params=params,
        flow_id=job_id,
    )


def with_newest_predecessor(spec: JobSpec, local_of: LocalOf) -> JobSpec:
    """Return a job of FATE's with the newest restart of its predecessor as ``old_job_id``.

    Unchanged if the job has no predecessor, or one that is unknown here.
    """
    is_fate_job = spec.protocol == PROTOCOL
    if not is_fate_job or not spec.old_job_id:
        return spec
    predecessor = newest_restart(spec.old_job_id, local_of)
    if predecessor is None:
        return spec
    return replace(spec, old_job_id=predecessor.id)


def restart_count(local: LocalJob, job_id: str) -> int:
    """Return the number of restarts by FATE that led to ``local``; 0 for the job itself.

    ``job_id``: FATE's id of the job.
    """
    if local.id == job_id:
        return 0
    return int(local.id.removeprefix(f"{job_id}-r"))


def is_retry(local: LocalJob, job_id: str) -> bool:
    """True if the next restart is one of the retries that the job allows after a failure.

    ``job_id``: FATE's id of the job.
    """
    has_failed = local.ending is not None and local.ending.outcome is Outcome.FAILED
    if not has_failed:
        return False
    limits = local.spec.settings.time_limits
    most_retries = max(limits.of(task.name).retries for task in local.spec.dag.nodes)
    return restart_count(local, job_id) < most_retries


def fate_job_id(job_id: str) -> str:
    """Return the id at FATE of a job here, which FATE's nodes schedule."""
    return _RESTART_SUFFIX.sub("", job_id)
