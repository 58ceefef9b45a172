"""Whose jobs may use which of this node's datasets: what an admin granted to partner nodes, and what a job wants.

A job shows what follows from a dataset to all participants, so every other node of the job counts, and the
one whose platform submitted it. Jobs among the own parties alone need no grant.

What a job left needs a grant as well, whatever the setting, before another job may name it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from gateway.domain.dag import RolesOf
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId, data_location

DISABLED = "DATASET_DISABLED"
NOT_GRANTED = "NOT_AUTHORISED"


class Default(StrEnum):
    """Who may use a dataset that was never granted to anybody."""

    OPEN = "open"
    """every node that may take part in jobs here; from its first grant on, only whom it is granted. For what was
    uploaded only: an output of a job is always as if `LISTED`"""
    LISTED = "listed"  # nobody


@dataclass(frozen=True)
class Grant:
    """One partner node may use one dataset, until it ends or is revoked; it stays on record then."""

    dataset: Address
    node: NodeId
    granted_at: datetime
    granted_by: str
    reason: str = ""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""

    def holds(self, now: datetime) -> bool:
        """Tell whether it is in force at a moment."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def state(self, now: datetime) -> str:
        """Return in force, expired, or revoked."""
        return "revoked" if self.revoked_at else "in force" if self.holds(now) else "expired"


@dataclass(frozen=True)
class Wanted:
    """A dataset of this node that a job names, and where it names it."""

    path: str
    dataset: Address


def wanted(
    spec: JobSpec,
    node: NodeId,
    roles_of: RolesOf,
) -> Iterator[Wanted]:
    """Yield the datasets of a node that a job names, in either form."""
    for task in spec.dag.nodes:
        if task.inputs:
            continue
        roles = roles_of(task)
        for party in spec.parties_at(node):
            where = data_location(spec.task_params, party, task.name)
            if where is None or (roles is not None and party.role not in roles):
                continue
            namespace, _, name = where.get("dataset_id", "").partition("#")
            key = "dataset_id" if "dataset_id" in where else "name"
            address = Address(where.get("namespace", namespace), where.get("name", name))
            yield Wanted(f"config.task_params.{party.label}.{task.name}.{key}", address)


def partners(spec: JobSpec, node: NodeId) -> list[NodeId]:
    """Return the other nodes of a job, who submitted it and who schedules it, each once."""
    nodes = (*(party.node for party in spec.parties), spec.initiator, spec.scheduler)
    return [other for other in dict.fromkeys(nodes) if other and other != node]


def without_grant(
    grants: Sequence[Grant],
    others: Iterable[NodeId],
    default: Default,
    now: datetime,
) -> list[tuple[NodeId, str]]:
    """Return the nodes that may not use the dataset of these grants, each with why."""
    if not grants and default is Default.OPEN:
        return []
    by_node = {grant.node: grant for grant in grants}
    found = []
    for other in others:
        grant = by_node.get(other)
        if grant is None:
            found.append((other, "was never granted it"))
        elif grant.revoked_at is not None:
            found.append(
                (
                    other,
                    f"had it granted until {grant.revoked_at:%Y-%m-%d %H:%M} UTC, when it was revoked",
                )
            )
        elif not grant.holds(now):
            found.append((other, f"had it granted until {grant.expires_at:%Y-%m-%d %H:%M} UTC"))
    return found


def refused(
    want: Wanted,
    node: NodeId,
    why: Sequence[tuple[NodeId, str]],
) -> Problem:
    """Return the problem of a dataset that is not granted to all its users, as this node's people see it."""
    dataset = want.dataset.dataset_id
    words = "; ".join(f"{other} {text}" for other, text in why)
    rule = f"{NOT_GRANTED}: dataset {dataset} is not granted at node {node}: {words}; ask its admin for a grant"
    return Problem(want.path, rule, dataset)


def not_here(
    want: Wanted,
    node: NodeId,
    others: Sequence[NodeId],
) -> Problem:
    """Return the problem as other nodes see it: the same for a dataset that is not there."""
    dataset = want.dataset.dataset_id
    rule = (
        f"dataset {dataset} is not at node {node}, or is not granted there to {', '.join(others)}"
    )
    return Problem(want.path, f"{NOT_GRANTED}: {rule}; ask its admin", dataset)


def closed(want: Wanted, node: NodeId) -> Problem:
    """Return the problem of a dataset that is disabled."""
    dataset = want.dataset.dataset_id
    rule = f"{DISABLED}: dataset {dataset} is disabled at node {node}; ask its admin to enable it"
    return Problem(want.path, rule, dataset)


@dataclass(frozen=True)
class Dataset:
    """A table in this node's storage."""

    namespace: str
    name: str
    columns: tuple[str, ...]
    count: int | None  # rows, headers not counted; None: not counted
    partitions: int
    meta: Mapping[
        str, Any
    ]  # as uploaded: delimiter is that of the uploaded file, in the storage it is a comma
    checksum: str  # sha256 of the uploaded file, hex
    size: int  # bytes of the uploaded file
    created_at: datetime
    origin: str  # ``path:`` and the server path, ``file:`` and the name of the file that was sent, or ``place:``
    disabled: bool = False
    types: tuple[str, ...] = ()  # of each column: int, float, boolean or string
    sid: str = ""  # name of the generated column, empty where there is none
    description: str = ""
    storage: str = ""  # which of the node's named storages; empty: the folder that every node has
    published: tuple[
        NodeId, ...
    ] = ()  # nodes that see its name, columns and count; "*": with a contract, all
    place: str = ""  # the name under which it lies there, new with each upload; empty: its own
    in_place: str = (
        ""  # ``file`` or ``folder`` if it was registered where it lies; ``place`` is the path there
    )
    stamp: str = ""  # what changes with its files, if it was registered where it lies
    format: str = "csv"  # or parquet
    stored: str = ""  # sha256 of the table as it lies there, hex; empty: not known, as it has several partitions
    warnings: tuple[str, ...] = ()  # what looked odd in it when it was read

    @property
    def address(self) -> Address:
        """Where it lies in the storage."""
        if self.in_place:
            folder, _, name = self.place.rpartition("/")
            return Address(folder, name, self.storage, self.in_place)
        return Address(self.namespace, self.place or self.name, self.storage)

    @property
    def dataset_id(self) -> str:
        """The name by which jobs ask for it."""
        return Address(self.namespace, self.name).dataset_id


class DatasetRepository(Protocol):
    """Keeps what is known of datasets."""

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""

    def put(self, dataset: Dataset) -> None:
        """Store a dataset; one of the same namespace and name is replaced."""

    def replace(self, before: Dataset | None, after: Dataset) -> bool:
        """Store a dataset unless something else than ``before`` is known of it by now; tell whether it did."""

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False where it is unknown."""

    def list(self) -> list[Dataset]:
        """Return all, by namespace and name."""


class MemoryDatasets:
    """A `DatasetRepository` that lives as long as its process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Dataset] = {}

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""
        return self._kept.get((namespace, name))

    def put(self, dataset: Dataset) -> None:
        """Keep what is known, in the place of what was known before."""
        self._kept[dataset.namespace, dataset.name] = dataset

    def replace(self, before: Dataset | None, after: Dataset) -> bool:
        """Keep what is known unless another was faster."""
        if self.get(after.namespace, after.name) != before:
            return False
        self.put(after)
        return True

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False: it was not known."""
        return self._kept.pop((namespace, name), None) is not None

    def list(self) -> list[Dataset]:
        """Return all of them, by namespace and name."""
        return [self._kept[key] for key in sorted(self._kept)]
