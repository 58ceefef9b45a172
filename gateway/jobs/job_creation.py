"""Creation of a job at a participating node."""

from dataclasses import replace

from gateway.domain import approval
from gateway.domain.job import Acceptance
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec, NodeId
from gateway.errors import Conflict, Refused
from gateway.jobs.admission import Admission
from gateway.jobs.approvals import only_awaits_images
from gateway.jobs.executor import Executor
from gateway.jobs.ids import check_id_unused
from gateway.runtime.context import NodeContext
from provider_registry.registry import Registry


class JobCreation:
    """Checks the jobs that scheduling nodes create here, and stores them once."""

    def __init__(
        self,
        context: NodeContext,
        registry: Registry,
        admission: Admission,
        executor: Executor,
    ) -> None:
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._registry = registry
        self._admission = admission
        self._executor = executor

    def create(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Validate and store a job; return the conditions under which it is accepted.

        A repeated creation returns the same. Raises `Conflict` for the id of another job.
        """
        check_id_unused(self._store, new_id=spec.job_id, job_id=spec.job_id)
        with self._registry.one_view():
            local = self._admission.admit(spec, sender)
        if local.agreement and sender not in ("", self._node):
            self._check_not_deleted(spec.job_id)
        if not self._store.local_jobs.add(local, spec.flow_id):
            local = self._repeat_creation(local, sender)
        self._executor.watch(local)
        return self._acceptance(local)

    def _check_not_deleted(self, job_id: str) -> None:
        """Raise `Conflict` for a job that was deleted here, as it may have run.

        A signed agreement holds for one execution.
        """
        for entry in self._store.timeline(job_id):
            if entry.event == "job deleted":
                raise Conflict(
                    f"job {job_id} ran here already and was deleted; "
                    "what was signed is not run twice",
                    reason="JOB_ID_CONFLICT",
                )

    def _repeat_creation(self, new: LocalJob, sender: NodeId) -> LocalJob:
        """Return the record of a job that is here already. Raises `Conflict` if it is another job.

        A job that was only audited before becomes a created one.
        """
        existing = self._store.local_jobs.get(new.id)
        was_only_audited = approval.is_unused(existing)
        if was_only_audited:
            is_same = approval.is_same(existing, new.spec)
        else:
            is_same = existing.digest == new.digest
        if not is_same:
            text = f"job {new.id} is here already, with another body"
            if existing.spec.scheduler != new.spec.scheduler:
                text = f"job {new.id} is here already, from another node"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if not was_only_audited:
            return existing
        now = self._clock()

        def create(local: LocalJob) -> LocalJob:
            created = approval.record_creation(local, now, sender)
            return replace(
                created,
                checks=new.checks,
                agreement=new.agreement,
            )

        return self._executor.change(existing.id, create)

    def _acceptance(self, local: LocalJob) -> Acceptance:
        """Return the conditions under which a job is accepted.

        Raises `Refused` if the job was refused before: for a repeated creation, or for one that
        follows a refused audit.
        """
        refusal = _earlier_refusal(local)
        if refusal is not None:
            raise Refused(refusal.message, reason=refusal.reason)
        expires_at = approval.decide_by(local)
        expires_in = None  # seconds
        if expires_at is not None:
            remaining = expires_at - self._clock()
            expires_in = max(remaining.total_seconds(), 0.0)
        waits_for = ""
        if local.preparation is not None and only_awaits_images(local):
            waits_for = f"fetches {', '.join(local.preparation.images)}"
        tasks_at_once = None
        if local.pool is not None:
            tasks_at_once = local.pool.tasks_at_once
        return Acceptance(
            holds=local.pool is not None,
            tasks_at_once=tasks_at_once,
            waits=expires_at is not None,
            within=expires_in,
            inherited=local.can_inherit,
            waits_for=waits_for,
            checks=local.checks,
        )


def _earlier_refusal(local: LocalJob) -> Failure | None:
    """Return why a job was refused here before; None if it was not.

    An audited job that has ended before its creation also counts as refused: its audit was
    withdrawn, or has expired.
    """
    if local.approval is not None and local.approval.failure is not None:
        return local.approval.failure
    if approval.is_unused(local) and local.ending is not None:
        return local.ending.failure
    return None
