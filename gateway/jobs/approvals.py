"""Approval of jobs by persons at a participating node."""

from gateway.domain import approval
from gateway.domain.execution.messages import Decided
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus
from gateway.errors import Conflict
from gateway.jobs.executor import Executor
from gateway.runtime.context import NodeContext
from gateway.store.queries import is_known
from gateway.store.records import job_unknown


class Approvals:
    """The jobs that wait for a person's approval here, and the decisions on them."""

    def __init__(self, context: NodeContext, executor: Executor) -> None:
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._executor = executor

    def waiting(self) -> list[LocalJob]:
        """Return the jobs here that wait for a person's approval, oldest first."""
        pending = self._store.local_jobs.in_state(JobStatus.PENDING)
        jobs = [self._store.local_jobs.get(job_id) for job_id in pending]
        return [local for local in jobs if approval.awaits_person(local)]

    def decide(
        self,
        job_id: str,
        approve: bool,
        by: str,
        words: str,
    ) -> tuple[LocalJob, bool]:
        """Record a person's decision on a job that waits for one.

        ``by`` is the person, ``words`` the explanation. Returns the job, and whether this decision
        was recorded: False if it repeats an earlier decision, which is kept with its ``words``.
        Raises `NotFound`, and `Conflict` for a job that does not wait (NOT_WAITING) or has the
        opposite decision (ALREADY_DECIDED).
        """
        local = self._store.local_jobs.find(job_id)
        if local is None and not is_known(self._store, job_id):
            raise job_unknown(job_id)
        # A known job without a local record is another node's, or only scheduled here.
        if local is None or local.approval is None or approval.awaited_only_images(local):
            raise Conflict(
                f"job {job_id} does not wait for approval at {self._node}", reason="NOT_WAITING"
            )
        event = Decided(approve, by, words, self._clock())
        local = self._executor.record(job_id, event)
        if not _has_decision(local, approve):
            raise Conflict(
                f"job {job_id} is {_decision_word(local)} here already", reason="ALREADY_DECIDED"
            )
        recorded = local.approval
        is_recorded = recorded is not None and (recorded.decided_at, recorded.by) == (event.at, by)
        return local, is_recorded


def only_awaits_images(local: LocalJob) -> bool:
    """Return whether a job waits now for its images and for no person.

    `approval.awaited_only_images` also covers a job that has waited for them.
    """
    awaits_images = approval.pending_preparation(local) is not None
    return awaits_images and not approval.awaits_person(local)


def _has_decision(local: LocalJob, approve: bool) -> bool:
    """Return whether a job's approval is decided in this way.

    An approved job whose images are still being fetched is not READY yet, but counts as approved.
    """
    if local.approval is None:
        return False
    if approve:
        return local.approval.decision is JobStatus.READY or only_awaits_images(local)
    return local.approval.decision is JobStatus.REJECTED


def _decision_word(local: LocalJob) -> str:
    """Return the decision on a job for a message, READY or REJECTED; without one "ended"."""
    if approval.pending_preparation(local):
        return JobStatus.READY
    if local.approval is None or local.approval.decision is JobStatus.PENDING:
        return "ended"
    return local.approval.decision
