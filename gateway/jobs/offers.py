"""The lists that a partner with a contract may request.

These are datasets, projects and components of this node, never rows of data.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.data.datasets import Datasets
from gateway.data.sharing import Sharing
from gateway.domain.applications import APPLIED, APPROVED, Application, Kind, Side
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.errors import Invalid, NotFound
from gateway.ports import Clock
from gateway.store.applications import SqlApplications
from provider_registry.model import Component, Provider
from provider_registry.registry import Registry

# In a job this text, as the node of a party, means every node of the job's project.
ALL_SITES = "ALL_SITES"
# A dataset that is published for this node id is published for every node with a contract.
ALL = "*"


@dataclass(frozen=True)
class Project:
    """A project between this node and others, according to the applications for it."""

    id: str
    request: Mapping[str, Any]  # of the newest application, as the applicant sent it
    nodes: Sequence[NodeId]  # the applicant is the first


class Offers:
    """This node's datasets, projects and components in the view of a partner."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        datasets: Datasets,
        sharing: Sharing,
        registry: Registry,
        why_barred: Callable[[NodeId, str], str],
        clock: Clock,
    ) -> None:
        """``why_barred`` returns why a node may not run a component here; empty if it may."""
        self._node = node
        self._applications = applications
        self._datasets = datasets
        self._sharing = sharing
        self._registry = registry
        self._why_barred = why_barred
        self._clock = clock

    def datasets(self, partner: NodeId) -> list[Dataset]:
        """Return the datasets that are published for a node or granted to it.

        Disabled datasets are left out.
        """
        now = self._clock()
        grants = self._sharing.grants.all(partner)
        granted = {grant.dataset for grant in grants if grant.holds(now)}
        offers = []
        for dataset in self._datasets.list():
            is_published = not {ALL, partner}.isdisjoint(dataset.published)
            is_granted = Address(dataset.namespace, dataset.name) in granted
            if not dataset.disabled and (is_published or is_granted):
                offers.append(dataset)
        return offers

    def dataset(self, partner: NodeId, dataset_id: str) -> Dataset:
        """Return one of the datasets offered to a node.

        Raises the same `NotFound` for a dataset that does not exist and for one that is not
        offered.
        """
        for dataset in self.datasets(partner):
            if dataset.dataset_id == dataset_id:
                return dataset
        text = f"no dataset of that id is published here for {partner}"
        raise NotFound(text, reason="DATASET_NOT_PUBLISHED")

    def projects(self, partner: NodeId) -> list[Project]:
        """Return the projects of this node and a partner, whichever side applied.

        Expired ones are left out.
        """
        now = self._clock()
        applications = self._applications.list(
            kind=Kind.PROJECT,
            partner=partner,
        )
        latest = {}
        for application in applications:  # oldest first, so that the newest one stays
            is_current = application.status in (APPLIED, APPROVED)
            if is_current and not application.has_expired(now):
                latest[application.subject] = application
        return [
            Project(project_id, application.request, self._nodes(application))
            for project_id, application in latest.items()
        ]

    def project(self, partner: NodeId, project_id: str) -> Project:
        """Return one of the projects of this node and a partner. Raises `NotFound`."""
        for project in self.projects(partner):
            if project.id == project_id:
                return project
        text = f"no project of that id is shared with {partner}"
        raise NotFound(text, reason="PROJECT_UNKNOWN")

    def components(
        self,
        partner: NodeId,
    ) -> Iterator[tuple[Provider, Component]]:
        """Yield the components that a partner may run here."""
        for provider in self._registry.query():
            for component in provider.components.values():
                if not self._why_barred(partner, f"{provider.name}/{component.name}"):
                    yield provider, component

    def expanded(self, spec: JobSpec) -> JobSpec:
        """Return a job with the nodes of its project in place of `ALL_SITES`.

        The project's id is the job's flow id. Its nodes are this node and the partners with an
        approved application for it. A node that is named for another party of the job is left out.
        Raises `Invalid`.
        """
        wildcards = [party for party in spec.parties if party.node == ALL_SITES]
        if not wildcards:
            return spec
        partners = self._approved_partners(spec.flow_id)
        explicit = {party.node for party in spec.parties}
        nodes = [node for node in (self._node, *partners) if node not in explicit]
        rule = ""
        reason = Invalid.reason
        if len(wildcards) > 1:
            rule = f"{ALL_SITES} may be named once"
        elif not partners:
            rule = (
                f"needs an approved project {spec.flow_id!r} of this node, "
                "which the job names by flow_id"
            )
            reason = "PROJECT_UNKNOWN"
        elif not nodes:
            rule = f"no node is left of project {spec.flow_id!r}, which the job names by flow_id"
        if not rule:
            return replace(
                spec,
                parties=_with_nodes(spec.parties, nodes),
            )
        problems = [
            Problem(f"config.role.{party.role}[{party.index}]", rule, ALL_SITES)
            for party in wildcards
        ]
        raise Invalid(problems, reason=reason)

    def _nodes(self, application: Application) -> list[NodeId]:
        """Return the nodes of the project that an application is for.

        A project begun here has this node, the partners that approved it, and the partner of this
        application; a project begun by a partner has that partner and this node.
        """
        if application.side is Side.THEIRS:
            return [application.partner, self._node]
        partners = self._approved_partners(application.subject)
        nodes = (self._node, *partners, application.partner)
        return list(dict.fromkeys(nodes))

    def _approved_partners(self, project_id: str) -> list[NodeId]:
        """Return the partners with an approved application for a project; empty if it is ambiguous.

        A project begun here takes precedence over those of partners. Partners may use the same id
        for different projects: if several partners began one with this id, none counts.
        """
        now = self._clock()
        begun_here: dict[NodeId, None] = {}
        begun_there: dict[NodeId, None] = {}
        for application in self._applications.list(kind=Kind.PROJECT, status=APPROVED):
            if application.subject != project_id or not application.holds(now):
                continue
            if application.side is Side.MINE:
                begun_here[application.partner] = None
            else:
                begun_there[application.partner] = None
        if begun_here:
            return list(begun_here)
        if len(begun_there) > 1:
            return []
        return list(begun_there)


def _with_nodes(
    parties: Sequence[Party],
    project_nodes: Sequence[NodeId],
) -> tuple[Party, ...]:
    """Return the parties, with one party per node of the project in place of `ALL_SITES`.

    The parties of each role are numbered again.
    """
    expanded: list[Party] = []
    next_index: Counter[str] = Counter()
    for party in parties:
        nodes = [party.node]
        if party.node == ALL_SITES:
            nodes = list(project_nodes)
        for node in nodes:
            expanded.append(Party(party.role, next_index[party.role], node))
            next_index[party.role] += 1
    return tuple(expanded)
