"""The ids of a task's attempts: opaque, or such that they tell the task and the attempt.

Nodes that know a task only by its name and the number of its attempt need the second kind; a job whose first
attempts have it keeps to it.
"""

import hashlib


def telling(job_id: str, task: str, attempt: int) -> str:
    """Return an id that tells what it is the id of."""
    return f"{job_id}_{task}_{attempt}"


def following(job_id: str, task: str, attempt: int, before: str) -> str:
    """Return the id of an attempt after the one with the id ``before``: of the same kind.

    It is always the same one, so that two planners agree on it.
    """
    if before == telling(job_id, task, attempt - 1):
        return telling(job_id, task, attempt)
    return "task_" + hashlib.sha256(f"{job_id}\n{task}\n{attempt}".encode()).hexdigest()[:32]
