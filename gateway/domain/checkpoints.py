"""Folders in which tasks keep what they need to go on after they were cut short: an extension that a job asks for.

With ``job_params.common.checkpoints: true`` each party of a task has one such folder in a job. Every attempt finds
there what the earlier ones left; the first attempt in a job that takes over from another (``old_job_id``) finds a
copy of what the same task left there.
"""

from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, Party


def place(spec: JobSpec, task: str, party: Party) -> Address | None:
    """Return where a party of a task keeps them; None where the job does not ask for any."""
    return _address(spec.job_id, task, party) if spec.flag("checkpoints") else None


def source(spec: JobSpec, task: str, party: Party) -> Address | None:
    """Return where the same party of the task kept them in the job that this one takes over from."""
    return _address(spec.old_job_id, task, party) if spec.flag("checkpoints") and spec.old_job_id else None


def _address(job_id: str, task: str, party: Party) -> Address:
    return Address(f"{job_id}-{party.role}-{party.index}", f"{task}-checkpoint")
