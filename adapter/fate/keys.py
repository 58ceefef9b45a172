"""Task ids between nodes: FATE's id and version, and the one id that a task has here.

FATE's id is ``<job id>_<task name>``, and each attempt is another version of it. A task's id of the form
``<job id>_<task name>_<version>`` converts both ways; any other is sent as it is, which only a gateway like this
one understands.
"""

import re
from typing import NamedTuple

LONGEST_JOB_ID = 25
"""characters that FATE stores in MySQL; in SQLite, and in a gateway like this one, ids may be longer"""
_NUMBERED = re.compile(r"([^_]+)_(.+)_([0-9]{1,6})")


class Key(NamedTuple):
    """A task as FATE names it."""

    job_id: str
    task_id: str
    version: int


def key_of(task_id: str, job_id: str = "") -> Key:
    """Return FATE's key of a task by its id here; ``job_id`` if it is known."""
    found = _NUMBERED.fullmatch(task_id)
    if found is None or job_id not in ("", found[1]):
        return Key(job_id, task_id, 0)
    return Key(found[1], f"{found[1]}_{found[2]}", int(found[3]))


def id_of(key: Key) -> str:
    """Return a task's id here by FATE's key."""
    return f"{key.task_id}_{key.version}" if name_of(key) else key.task_id


def name_of(key: Key) -> str:
    """Return the task's name in the flow; empty if FATE's id does not contain it."""
    prefix = f"{key.job_id}_"
    return key.task_id.removeprefix(prefix) if key.job_id and key.task_id.startswith(prefix) else ""
