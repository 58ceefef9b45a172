"""Use cases of the job audit: other nodes ask about a job before they create it, or answer when this one asks."""

from gateway.domain import approval
from gateway.domain.approval import AuditStatus, Policy
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.run import Audit, LocalJob
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, ended
from gateway.errors import Conflict, NotFound
from gateway.jobs.admission import Admission
from gateway.jobs.executor import Executor
from gateway.ports import SchedulerApi
from gateway.runtime.context import NodeContext
from gateway.store.repositories import SqlJobAudits


class JobAudits:
    """The job audit of the management layer, as the node is asked by others."""

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

    def apply(self, spec: JobSpec, audit: Audit, sender: NodeId) -> None:
        """Judge the job as for its creation, and keep the question; the answer is sent afterwards."""
        local = self._admission.validated(spec, sender)
        if self._audits.add(sender, audit.id, spec.job_id) != spec.job_id:
            raise Conflict(f"audit {audit.id} of {sender} is about another job", reason="AUDIT_ID_CONFLICT")
        verdict, words = self._admission.judged(spec, sender)
        now = self._clock()
        new = approval.asked(local, audit, self._policy, verdict, words, now)
        if not self._store.local_jobs.add(new, spec.flow_id):
            new = self._executor.change(spec.job_id, lambda known: self._again(known, local, audit))
        self._executor.watch(new)

    def _again(self, known: LocalJob, asked: LocalJob, audit: Audit) -> LocalJob:
        same = approval.is_same(known, asked.spec)
        if not same or (known.audit is not None and known.audit.id != audit.id):
            text = f"job {known.id} is here already, with another body or another audit"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if known.audit is not None:
            return known
        if ended(JOB, known.status):
            raise Conflict(f"job {known.id} has ended here", reason="JOB_ENDED")
        return approval.asked_late(known, audit, self._clock())

    def confirm(self, audit_id: str, failure: Failure | None, sender: NodeId) -> None:
        """Hand the answer to the job that it is about."""
        job_id = approval.job_of(audit_id)
        if self._store.jobs.find(job_id) is None:
            raise _unknown(audit_id, sender)
        self._scheduler.confirm_job(job_id, failure, sender)

    def terminate(self, audit_id: str, sender: NodeId, ending: Ending | None = None) -> None:
        """Take back what the sender asked, or stop the job that the sender had agreed to."""
        job_id = self._audits.job_of(sender, audit_id)
        if job_id is not None:
            self._take_back(self._of(job_id, audit_id, sender), sender, ending)
            return
        job = self._store.jobs.find(approval.job_of(audit_id))
        if job is None:
            raise _unknown(audit_id, sender)
        if sender not in job.nodes or not ended(JOB, job.status):
            self._scheduler.stop_job(job.id, "", sender)

    def _take_back(self, local: LocalJob, sender: NodeId, reported: Ending | None) -> None:
        def change(local: LocalJob) -> LocalJob:
            if local.status is JobStatus.RUNNING:
                text = f"job {local.id} runs here already; job/stop ends it"
                raise Conflict(text, reason="JOB_STARTED")
            now = self._clock()
            ending = approval.withdrawal(sender, now, reported)
            return machine.apply(local, StopRequested(now, None, ending, sender))

        self._executor.change(local.id, change)

    def status(self, audit_id: str, sender: NodeId) -> AuditStatus:
        """Tell how a question of the sender's stands. Raises `NotFound` for those of others, too."""
        job_id = self._audits.job_of(sender, audit_id)
        if job_id is None:
            raise _unknown(audit_id, sender)
        return approval.status(self._of(job_id, audit_id, sender))

    def _of(self, job_id: str, audit_id: str, sender: NodeId) -> LocalJob:
        local = self._store.local_jobs.find(job_id)
        if local is None or local.audit is None or local.audit.id != audit_id:
            raise _unknown(audit_id, sender)
        return local


def _unknown(audit_id: str, sender: NodeId) -> NotFound:
    return NotFound(f"no audit {audit_id} between this node and {sender} is known here", reason="AUDIT_UNKNOWN")
