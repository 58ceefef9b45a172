"""Ids of the attempts of a task. All attempts of a task have ids of the same form."""

import hashlib
from collections.abc import Collection
from enum import StrEnum


class TaskIds(StrEnum):
    """Forms of task ids; each value is the beginning of such ids."""

    OPAQUE = "task_"
    # Names of objects of Kubernetes: lower-case letters, digits and hyphens (RFC 1123).
    KUBERNETES = "task-"
    # Made of job, task and number of the attempt, for nodes that know a task only by these.
    NUMBERED = ""

    @staticmethod
    def strictest(forms: Collection["TaskIds"]) -> "TaskIds":
        """Return the form for nodes that need several forms; opaque ids if none is needed.

        No form is both numbered and for Kubernetes: numbered ids contain underscores.
        """
        for form in (TaskIds.NUMBERED, TaskIds.KUBERNETES):
            if form in forms:
                return form
        return TaskIds.OPAQUE


def first_task_id(
    form: TaskIds,
    job_id: str,
    task: str,
    random: str,
) -> str:
    """Return the id of a task's first attempt.

    ``random``: 32 hexadecimal digits, which ids without number contain.
    """
    if form is TaskIds.NUMBERED:
        return numbered_id(job_id, task, attempt=0)
    return form.value + random


def numbered_id(
    job_id: str,
    task: str,
    attempt: int,
) -> str:
    """Return an id made of job, task and attempt.

    ``attempt`` is the number of the attempt, from 0.
    """
    return f"{job_id}_{task}_{attempt}"


def next_task_id(
    job_id: str,
    task: str,
    attempt: int,
    before: str,
) -> str:
    """Return the id of the attempt after the one with the id ``before``, of the same form.

    It depends on the arguments only, so that two planners agree on it.
    """
    if before == numbered_id(job_id, task, attempt - 1):
        return numbered_id(job_id, task, attempt)
    form = TaskIds.OPAQUE
    if before.startswith(TaskIds.KUBERNETES.value):
        form = TaskIds.KUBERNETES
    digest = hashlib.sha256(f"{job_id}\n{task}\n{attempt}".encode()).hexdigest()
    return form.value + digest[:32]
