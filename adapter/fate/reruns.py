"""Jobs that FATE restarts under the same id, by a rerun or its automatic retry: here another job each time.

FATE's ends of a job are not final, the standard's FINISHED is. So each restart is a job of its own here,
``<job id>-r<n>``, which inherits what had finished in the one before; FATE always means the newest.
"""

import re
from dataclasses import replace

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.ports import LocalOf
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec

_AGAIN = re.compile(r"-r[0-9]+$")


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
    return _AGAIN.sub("", job_id)


def _named(job_id: str, number: int | str) -> str:
    return f"{job_id}-r{number}"
