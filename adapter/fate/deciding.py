"""A job of FATE's own nodes that waits for a person here.

FATE knows no such wait. It starts a job once every party has applied for the job's resources, one job after the
other: a party that said no there would hold up all other jobs of the site that schedules. So the job is let begin
there while nothing of it begins here, and its tasks' resources are refused until somebody has agreed, which FATE
asks for again with every turn. Whoever refuses has the scheduling site stop the job.
"""

from adapter.fate.dag.description import PROTOCOL
from adapter.fate.requests import FateParts
from adapter.fate.reruns import begun_again
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId
from gateway.domain.states import JobStatus
from gateway.errors import Refused
from gateway.ports import ParticipantApi


def undecided(local: LocalJob) -> bool:
    """Return whether a job that FATE's own node schedules still waits for a person here."""
    return local.status is JobStatus.PENDING and local.spec.protocol == PROTOCOL


def begun(participant: ParticipantApi, local: LocalJob, sender: NodeId) -> None:
    """Begin a job whose start could not be taken up when FATE told it. Raises `Refused` where nobody has agreed.

    FATE applies for a task's resources only in a job that it has started, whatever was answered to the start.
    """
    if undecided(local):
        until = local.approval.until.isoformat(timespec="seconds") if local.approval else ""
        text = f"job {local.id} waits until {until} for somebody at {local.node} to agree"
        raise Refused(text, reason="NOT_APPROVED")
    if local.status is JobStatus.READY and local.spec.protocol == PROTOCOL:
        participant.start_job(local.id, sender)


def again(parts: FateParts, local: LocalJob, job_id: str, sender: NodeId) -> None:
    """Create the job that follows on one of FATE's that has ended; who had agreed to that one has to this one."""
    spec = begun_again(local, job_id)
    accepted = parts.participant.create_job(spec, sender)
    known = local.approval
    if accepted.waits and known is not None and known.decision is JobStatus.READY:
        parts.agree(spec.job_id, known.by, f"as before to job {local.id}, which begins again")
