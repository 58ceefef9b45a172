"""What a partner with a contract sees here: published datasets, shared projects, components. Never rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.data.datasets import Datasets
from gateway.data.sharing import Sharing
from gateway.domain.applications import APPLIED, APPROVED, Application, Kind, Side
from gateway.domain.datasets import Dataset
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.errors import NotFound
from gateway.ports import Clock
from gateway.store.applications import SqlApplications
from provider_registry.model import Component, Provider
from provider_registry.registry import Registry

ALL = "*"
"""among the nodes that a dataset is published for: every one with a contract"""


@dataclass(frozen=True)
class Project:
    """A project between this node and others, as the applications for it have it."""

    id: str
    request: Mapping[str, Any]
    nodes: Sequence[NodeId]


class Offers:
    """The lists that partners ask for."""

    def __init__(
        self,
        node: NodeId,
        kept: SqlApplications,
        datasets: Datasets,
        sharing: Sharing,
        registry: Registry,
        barred: Callable[[NodeId, str], str],
        clock: Clock,
    ) -> None:
        """``barred`` tells why a node may not have a component run here; empty where it may."""
        self._node = node
        self._kept = kept
        self._datasets = datasets
        self._sharing = sharing
        self._registry = registry
        self._barred = barred
        self._clock = clock

    def datasets(self, partner: NodeId) -> list[Dataset]:
        """Return the datasets that are published for a node or granted to it."""
        now = self._clock()
        granted = {grant.dataset for grant in self._sharing.all_grants(partner) if grant.holds(now)}
        return [
            one
            for one in self._datasets.list()
            if not one.disabled
            and (not {ALL, partner}.isdisjoint(one.published) or Address(one.namespace, one.name) in granted)
        ]

    def dataset(self, partner: NodeId, dataset_id: str) -> Dataset:
        """Return one of them. Raises `NotFound`, the same for what is not there and what is not for the node."""
        found = next((one for one in self.datasets(partner) if one.dataset_id == dataset_id), None)
        if found is None:
            text = f"no dataset of that id is published here for {partner}"
            raise NotFound(text, reason="DATASET_NOT_PUBLISHED")
        return found

    def projects(self, partner: NodeId) -> list[Project]:
        """Return the projects of this node and a partner, whoever of both applied."""
        latest = {one.subject: one for one in self._shared(partner)}
        return [Project(id_, one.request, self._nodes(one)) for id_, one in latest.items()]

    def project(self, partner: NodeId, project_id: str) -> Project:
        """Return one of them. Raises `NotFound`."""
        found = next((one for one in self.projects(partner) if one.id == project_id), None)
        if found is None:
            raise NotFound(f"no project of that id is shared with {partner}", reason="PROJECT_UNKNOWN")
        return found

    def components(self, partner: NodeId) -> Iterator[tuple[Provider, Component]]:
        """Yield the components that a partner may have run here."""
        for provider in self._registry.query():
            for component in provider.components.values():
                if not self._barred(partner, f"{provider.name}/{component.name}"):
                    yield provider, component

    def _shared(self, partner: NodeId | None) -> list[Application]:
        found = self._kept.list(kind=Kind.PROJECT, partner=partner)
        return [one for one in found if one.status in (APPLIED, APPROVED)]

    def _nodes(self, project: Application) -> list[NodeId]:
        """Return the nodes of a project: of one that this node has begun, all that it has asked."""
        if project.side is Side.THEIRS:
            return [project.partner, self._node]
        asked = (one for one in self._shared(None) if (one.side, one.subject) == (Side.MINE, project.subject))
        return [self._node, *dict.fromkeys(one.partner for one in asked)]
