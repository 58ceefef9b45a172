"""Ids of tasks and jobs between nodes.

FATE's id of a task is ``<job id>_<task name>``, and each attempt is another version of it. A task's id of the form
``<job id>_<task name>_<version>`` converts both ways; any other is sent as it is, which only a gateway like this
one understands.

FATE restarts a job under the same id, by a rerun or its automatic retry: its ends of a job are not final, the
standard's FINISHED is. So each restart is a job of its own here, ``<job id>-r<n>``, which inherits what had
finished in the one before; FATE always means the newest.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.ports import LocalOf
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec

LONGEST_JOB_ID = 25
"""characters that FATE stores in MySQL; in SQLite, and in a gateway like this one, ids may be longer"""
_RESTARTED = re.compile(r"-r[0-9]+$")
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


def newest(job_id: str, local_of: LocalOf) -> LocalJob | None:
    """Return the newest job here that is FATE's job of this id; None where there is none."""
    found = local_of(job_id)
    number = 1
    while found is not None and (later := local_of(_named(job_id, number))) is not None:
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
    return local.spec.protocol == PROTOCOL and ending is not None and ending.by == local.spec.scheduler


def begun_again(local: LocalJob, job_id: str) -> JobSpec:
    """Return the job that follows an ended one; it inherits whatever is unchanged."""
    params = dict(local.spec.job_params)
    if isinstance(common := params.get("common"), dict):
        params["common"] = {key: value for key, value in common.items() if key != "inherit"}
    return replace(
        local.spec,
        job_id=_named(job_id, number_of(local, job_id) + 1),
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
    return 0 if local.id == job_id else int(local.id.removeprefix(_named(job_id, "")))


def original(job_id: str) -> str:
    """Return FATE's id of a job here that FATE's nodes schedule."""
    return _RESTARTED.sub("", job_id)


def _named(job_id: str, number: int | str) -> str:
    return f"{job_id}-r{number}"
