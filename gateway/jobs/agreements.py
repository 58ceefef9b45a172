"""Permits of flows and projects as conditions of jobs.

They are required at `trust.level: permit`, for a flow or project for which a partner of the job has
applied at this node. The partner has then agreed that jobs of it need a permission.
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

_REASONS = {
    Finding.MISSING: "PERMIT_MISSING",
    Finding.USED_UP: "PERMIT_USED_UP",
}


@dataclass(frozen=True)
class _Agreement:
    """The flow or project of a job, with all applications of one partner for it."""

    kind: Kind
    id: str
    partner: NodeId
    applications: Sequence[Application]  # oldest first; at least one


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
            finding = permits.decide_agreement(agreement.applications, job, now)
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
            permit = permits.agreement_permit(agreement.applications, job.counted, now)
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
        for partner in datasets.partners(spec, self._node):
            project = self._holdings.project_with(partner, spec, audited_project)
            for kind, id_ in ((Kind.FLOW, spec.flow_id), (Kind.PROJECT, project)):
                listed = self._applications.list(Side.THEIRS, kind, partner=partner)
                applications = [application for application in listed if application.subject == id_]
                if applications:
                    yield _Agreement(kind, id_, partner, applications)

    def _refusal(self, agreement: _Agreement, finding: Finding) -> NotAllowed:
        """Return the refusal of a job for the permit of its flow or project."""
        rule = f"a permit of {agreement.partner} is needed, in force and presented by the job"
        if finding is Finding.USED_UP:
            rule = "its permit was used by as many jobs as it allows"
        text = f"flow {agreement.id} at {self._node}: {rule}; apply for it there"
        if agreement.kind is Kind.PROJECT:
            text = f"project {agreement.id} at {self._node}: {rule}; apply for it there"
        refusal = NotAllowed(text, reason=_REASONS[finding])
        refusal.node = agreement.partner
        return refusal
