"""The permits that the partners of a job have for what the job uses at this node."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.domain import datasets
from gateway.domain.applications import APPROVED, Application, Kind, Side
from gateway.domain.approved_flows import deviating_tasks
from gateway.domain.dag import Dag, RolesOf, once_per_component
from gateway.domain.datasets import NamedDataset
from gateway.domain.permit_scope import Use
from gateway.domain.permits import Holding
from gateway.domain.spec import JobSpec, NodeId
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

# Returns the flow in the body of an application: one without tasks if it cannot be read.
FlowReader = Callable[[Mapping[str, Any]], Dag]


@dataclass(frozen=True)
class DatasetUse:
    """A dataset of this node in a job, with the permits that partners of the job have for it."""

    dataset: NamedDataset
    holdings: Sequence[Holding]  # none for a partner without a permit in force


class PermitHoldings:
    """Finds the permits that concern a job."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        roles_of: RolesOf,
        read_flow: FlowReader,
        clock: Clock,
    ) -> None:
        self._node = node
        self._applications = applications
        self._roles_of = roles_of
        self._read_flow = read_flow
        self._clock = clock

    def of_datasets(
        self,
        spec: JobSpec,
        audited_project: str,
    ) -> list[DatasetUse]:
        """Return the datasets of this node in a job, with the permits in force.

        ``audited_project`` is as in `project_with`.
        """
        roles = once_per_component(self._roles_of)
        uses = list(datasets.named_datasets(spec, self._node, roles))
        if not uses:
            return []
        permits = self._permits_of_partners(spec)
        projects = {}
        for partner in {permit.partner for permit in permits}:
            projects[partner] = self.project_with(partner, spec, audited_project)
        return [DatasetUse(use, _holdings(use, permits, projects)) for use in uses]

    def project_with(
        self,
        partner: NodeId,
        spec: JobSpec,
        audited_project: str = "",
    ) -> str:
        """Return the project of a job, as this node and a partner understand it.

        The first of these counts:

        - the project in the newest approved application for the job's flow, of either node, unless
          the job deviates from that flow
        - ``audited_project``: the project in the partner's audit of the job; empty without one
        - the id of the flow, by which jobs without either name their project
        """
        now = self._clock()
        flows = self._applications.list(
            kind=Kind.FLOW,
            status=APPROVED,
            partner=partner,
        )
        for flow in reversed(flows):
            project = str(flow.request.get("project_id") or "")
            is_in_force = flow.subject == spec.flow_id and flow.holds(now)
            if project and is_in_force and not self.deviating_tasks(spec, flow):
                return project
        return audited_project or spec.flow_id

    def deviating_tasks(
        self,
        spec: JobSpec,
        flow: Application,
    ) -> list[str]:
        """Return the tasks by which a job deviates from the flow of an application, sorted."""
        return deviating_tasks(spec.dag, self._read_flow(flow.request))

    def _permits_of_partners(self, spec: JobSpec) -> list[Application]:
        """Return the permits in force of a job's other nodes for any dataset, oldest first."""
        now = self._clock()
        partners = datasets.partners(spec, self._node)
        approved = self._applications.list(Side.THEIRS, Kind.DATASET, APPROVED)
        return [permit for permit in approved if permit.partner in partners and permit.holds(now)]


def _holdings(
    use: NamedDataset,
    permits: Collection[Application],
    projects: Mapping[NodeId, str],
) -> list[Holding]:
    """Return each partner's permits for a dataset; partners without a permit are left out.

    - ``permits``: the permits of all partners, for any dataset
    - ``projects``: the project of the job by partner, as `PermitHoldings.project_with` returns it
    """
    holdings = []
    for partner, project in projects.items():
        partner_permits = [
            permit
            for permit in permits
            if permit.partner == partner and permit.subject == use.dataset.dataset_id
        ]
        if partner_permits:
            scope_use = Use(partner, project, use.component)
            holdings.append(Holding(scope_use, partner_permits))
    return holdings
