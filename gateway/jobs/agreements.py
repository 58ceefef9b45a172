"""Permits of flows and projects as conditions of jobs.

They are required at `trust.level: permit`, for a flow or project for which a partner of the job has
applied at this node. The partner has then agreed that jobs of it need a permission. The permit of a
flow covers only jobs with the tasks that its application names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.domain import datasets, permits
from gateway.domain.applications import Application, Kind, Side
from gateway.domain.permits import Finding, JobPermits
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed
from gateway.jobs.permit_holdings import PermitHoldings
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

_MAX_LISTED = 5  # largest number of deviating tasks that a message lists
_REASONS = {
    Finding.MISSING: "PERMIT_MISSING",
    Finding.OUT_OF_SCOPE: "FLOW_DIFFERS",
    Finding.USED_UP: "PERMIT_USED_UP",
}


@dataclass(frozen=True)
class _Agreement:
    """The flow or project of a job, with the permits of one partner for it.

    A partner that has no permit in force for it, but has applied for it, has an agreement, too.
    """

    kind: Kind
    id: str
    partner: NodeId
    permits: Sequence[Application]  # in force, and covering the job; oldest first
    # Tasks by which the job deviates from the flow of the newest permit, if no permit covers it.
    deviating: Sequence[str] = ()


class Agreements:
    """Decides whether the permits of a job's flow and project allow the job."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        holdings: PermitHoldings,
        clock: Clock,
    ) -> None:
        self._node = node
        self._applications = applications
        self._holdings = holdings
        self._clock = clock

    def refusal(
        self,
        spec: JobSpec,
        job: JobPermits,
        audited_project: str,
    ) -> NotAllowed | None:
        """Return the refusal of a job for a missing permit of its flow or project.

        None if no permit is missing. ``audited_project`` is as in `PermitHoldings.project_with`.
        """
        now = self._clock()
        for agreement in self._of(spec, audited_project):
            finding = permits.decide_agreement(agreement.permits, job, now)
            if agreement.deviating:
                finding = Finding.OUT_OF_SCOPE
            if finding is not Finding.ALLOWED:
                return self._refusal(agreement, finding)
        return None

    def use(
        self,
        spec: JobSpec,
        job: JobPermits,
        audited_project: str,
    ) -> None:
        """Count a created job as a use of the permits of its flow and project.

        Raises `NotAllowed` if other jobs have used a permit up since it was checked.
        """
        now = self._clock()
        for agreement in self._of(spec, audited_project):
            permit = permits.agreement_permit(agreement.permits, job.counted, now)
            is_counted = permit is not None and self._applications.use(
                permit, spec.job_id, permit=job.presents(permit)
            )
            if not is_counted:
                raise self._refusal(agreement, Finding.USED_UP)

    def _of(
        self,
        spec: JobSpec,
        audited_project: str,
    ) -> Iterator[_Agreement]:
        """Yield a job's flow and project, for each partner that has applied for them here."""
        now = self._clock()
        for partner in datasets.partners(spec, self._node):
            project = self._holdings.project_with(partner, spec, audited_project)
            for kind, id_ in ((Kind.FLOW, spec.flow_id), (Kind.PROJECT, project)):
                listed = self._applications.list(Side.THEIRS, kind, partner=partner)
                applications = [application for application in listed if application.subject == id_]
                if applications:
                    in_force = [permit for permit in applications if permit.holds(now)]
                    yield self._agreement(kind, id_, partner, in_force, spec)

    def _agreement(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        in_force: Sequence[Application],
        spec: JobSpec,
    ) -> _Agreement:
        """Return the agreement on a job's flow or project with the permits that cover the job.

        ``in_force``: the partner's permits for the flow or project, oldest first.
        """
        if kind is not Kind.FLOW:
            return _Agreement(kind, id_, partner, in_force)
        covering = []
        deviating: Sequence[str] = ()
        for permit in in_force:
            deviating = self._holdings.deviating_tasks(spec, permit)
            if not deviating:
                covering.append(permit)
        if covering:
            deviating = ()
        return _Agreement(kind, id_, partner, covering, deviating)

    def _refusal(self, agreement: _Agreement, finding: Finding) -> NotAllowed:
        """Return the refusal of a job for the permit of its flow or project."""
        rule = f"a permit of {agreement.partner} is needed, in force and presented by the job"
        if finding is Finding.USED_UP:
            rule = "its permit was used by as many jobs as it allows"
        if finding is Finding.OUT_OF_SCOPE:
            tasks = ", ".join(agreement.deviating[:_MAX_LISTED])
            rule = f"the job deviates from the permit of {agreement.partner} in its tasks {tasks}"
        text = f"flow {agreement.id} at {self._node}: {rule}; apply for it there"
        if agreement.kind is Kind.PROJECT:
            text = f"project {agreement.id} at {self._node}: {rule}; apply for it there"
        refusal = NotAllowed(text, reason=_REASONS[finding])
        refusal.node = agreement.partner
        return refusal
