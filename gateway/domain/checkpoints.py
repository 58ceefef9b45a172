"""Folders in which tasks keep what they need to go on after they were cut short: an extension that a job asks for.

With ``job_params.common.checkpoints: true`` each party of a task has one such folder in a job. Every attempt finds
there what the earlier ones left; the first attempt in a job that takes over from another (``old_job_id``) finds a
copy of what the same task left there.
"""

from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, Party

SETTING = "checkpoints"
_WORDS = {"true": True, "false": False}


def wanted(spec: JobSpec) -> bool:
    """Say whether the job asks for them; what `check` refuses counts as no."""
    common = spec.job_params.get("common")
    return _read(common.get(SETTING)) is True if isinstance(common, dict) else False


def check(common: Any, path: str) -> list[Problem]:
    """Find what is wrong in the setting."""
    value = common.get(SETTING) if isinstance(common, dict) else None
    if value is None or _read(value) is not None:
        return []
    return [Problem(f"{path}.{SETTING}", "must be true or false", value)]


def place(spec: JobSpec, task: str, party: Party) -> Address | None:
    """Return where a party of a task keeps them; None where the job does not ask for any."""
    return _address(spec.job_id, task, party) if wanted(spec) else None


def source(spec: JobSpec, task: str, party: Party) -> Address | None:
    """Return where the same party of the task kept them in the job that this one takes over from."""
    return _address(spec.old_job_id, task, party) if wanted(spec) and spec.old_job_id else None


def _address(job_id: str, task: str, party: Party) -> Address:
    return Address(f"{job_id}-{party.role}-{party.index}", f"{task}-checkpoint")


def _read(value: Any) -> bool | None:
    return value if isinstance(value, bool) else _WORDS.get(value.lower()) if isinstance(value, str) else None
