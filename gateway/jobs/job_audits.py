"""Job audits of the management layer: a node asks another whether it agrees to a job."""

import secrets
from dataclasses import dataclass, replace
from functools import partial

from gateway.domain import approval
from gateway.domain.approval import AuditStatus
from gateway.domain.approval_rules import Policy
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.job import Job
from gateway.domain.run import Audit, LocalJob
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, ended
from gateway.errors import Conflict, NotFound
from gateway.jobs.admission import Admission
from gateway.jobs.executor import Executor
from gateway.jobs.ids import check_id_unused
from gateway.ports import SchedulerApi
from gateway.runtime.context import NodeContext
from gateway.store.repositories import SqlJobAudits

_PERMIT_BYTES = 32  # random bytes of the permit that the approval of an audit issues


@dataclass(frozen=True)
class IssuedPermit:
    """The permit for an audited job."""

    job_id: str
    owner: NodeId  # this node
    token: str


class JobAudits:
    """Judges jobs of other nodes, and records the decisions of other nodes on jobs of this node."""

    def __init__(
        self,
        context: NodeContext,
        admission: Admission,
        scheduler: SchedulerApi,
        executor: Executor,
        policy: Policy,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._audits = SqlJobAudits(context.store)
        self._admission = admission
        self._scheduler = scheduler
        self._executor = executor
        self._policy = policy

    def apply(
        self,
        spec: JobSpec,
        audit: Audit,
        sender: NodeId,
    ) -> None:
        """Judge a job as for its creation and store the audit; the decision is sent afterwards.

        A repetition changes nothing. Raises `Conflict` for an id that was used otherwise, and the
        errors of a creation.
        """
        check_id_unused(self._store, new_id=spec.job_id, job_id=spec.job_id)
        audit = replace(audit, permit=secrets.token_urlsafe(_PERMIT_BYTES))
        local = self._admission.validate(spec, sender, audit)
        stored_job_id = self._audits.add(sender, audit.id, spec.job_id)
        if stored_job_id != spec.job_id:
            raise Conflict(
                f"audit {audit.id} of {sender} is about another job", reason="AUDIT_ID_CONFLICT"
            )
        verdict, words = self._admission.judge(spec, sender)
        audited = approval.open_audit(
            local,
            audit,
            self._policy,
            verdict,
            words,
            self._clock(),
        )
        if not self._store.local_jobs.add(audited, spec.flow_id):
            add_audit = partial(
                self._add_audit,
                new=local,
                audit=audit,
            )
            audited = self._executor.change(spec.job_id, add_audit)
        self._executor.watch(audited)

    def _add_audit(
        self,
        existing: LocalJob,
        new: LocalJob,
        audit: Audit,
    ) -> LocalJob:
        """Return the record of a job that is here already, with the audit added to it.

        ``new`` is the record of the audited job, for comparison. Raises `Conflict` if the existing
        job is a different one, has another audit, or has ended.
        """
        other_audit = existing.audit is not None and existing.audit.id != audit.id
        if other_audit or not approval.is_same(existing, new.spec):
            text = f"job {existing.id} is here already, with another body or another audit"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if existing.audit is not None:
            return existing
        if ended(JOB, existing.status):
            raise Conflict(f"job {existing.id} has ended here", reason="JOB_ENDED")
        return approval.audit_existing(existing, audit, self._clock())

    def confirm(
        self,
        audit_id: str,
        failure: Failure | None,
        sender: NodeId,
        permit: str = "",
    ) -> None:
        """Record a node's decision on an audited job; ``failure`` is None if the node agrees.

        ``permit`` is the token that the job's creation presents; empty if the node issues none.
        """
        job = self._scheduled_job(audit_id, sender)
        self._scheduler.confirm_job(job.id, failure, sender, permit=permit)

    def terminate(
        self,
        audit_id: str,
        sender: NodeId,
        ending: Ending | None = None,
    ) -> None:
        """Withdraw the audit that the sender requested, or stop the job that it had agreed to.

        If the sender has requested no audit with this id here, the id is that of an audit that this
        node requested from the sender. ``ending`` is that of a withdrawn job, as its scheduling
        node reports it; None if none is reported.
        """
        if self._audits.job_of(sender, audit_id) is None:
            self._stop_scheduled_job(audit_id, sender)
            return
        audited = self._audited_job(audit_id, sender)
        self._executor.change(
            audited.id,
            partial(
                self._withdraw,
                sender=sender,
                ending=ending,
            ),
        )

    def _stop_scheduled_job(self, audit_id: str, sender: NodeId) -> None:
        """Stop the job scheduled here that the sender had agreed to; do nothing if it has ended.

        A sender outside the job gets the refusal by `stop_job` even then.
        """
        job = self._scheduled_job(audit_id, sender)
        if sender not in job.nodes or not ended(JOB, job.status):
            self._scheduler.stop_job(job.id, "", sender)

    def _withdraw(
        self,
        local: LocalJob,
        sender: NodeId,
        ending: Ending | None,
    ) -> LocalJob:
        """Return the job as withdrawn by the node that requested the audit.

        Raises `Conflict` (JOB_STARTED) for a job that runs: it has to be stopped.
        """
        if local.status is JobStatus.RUNNING:
            text = f"job {local.id} runs here already; job/stop ends it"
            raise Conflict(text, reason="JOB_STARTED")
        now = self._clock()
        withdrawal = approval.withdrawal(sender, now, ending)
        stop = StopRequested(at=now, tasks=None, ending=withdrawal, by=sender)
        return machine.apply(local, stop)

    def status(self, audit_id: str, sender: NodeId) -> AuditStatus:
        """Return the status of the sender's audit. Raises `NotFound`, also for audits of others."""
        return approval.audit_status(self._audited_job(audit_id, sender))

    def permit(self, audit_id: str, sender: NodeId) -> IssuedPermit | None:
        """Return the permit of the sender's approved audit; None if it has none.

        Raises `NotFound` as `status` does.
        """
        local = self._audited_job(audit_id, sender)
        token = approval.issued_permit(local)
        if not token:
            return None
        return IssuedPermit(local.id, local.node, token)

    def _audited_job(self, audit_id: str, sender: NodeId) -> LocalJob:
        """Return the job here that an audit of the sender is about. Raises `NotFound`."""
        job_id = self._audits.job_of(sender, audit_id)
        if job_id is not None:
            local = self._store.local_jobs.find(job_id)
            if local is not None and local.audit is not None and local.audit.id == audit_id:
                return local
        raise _audit_unknown(audit_id, sender)

    def _scheduled_job(self, audit_id: str, sender: NodeId) -> Job:
        """Return the job scheduled here that an audit of this node is about. Raises `NotFound`."""
        job = self._store.jobs.find(approval.job_of_audit(audit_id))
        if job is None:
            raise _audit_unknown(audit_id, sender)
        return job


def _audit_unknown(audit_id: str, sender: NodeId) -> NotFound:
    """Return the error for an audit that does not exist, or is another node's."""
    return NotFound(
        f"no audit {audit_id} between this node and {sender} is known here", reason="AUDIT_UNKNOWN"
    )
