"""The use of this node's datasets by jobs: grants to partner nodes, and the datasets of a job.

All participants of a job see results of a dataset that it uses. So every other node of the job
needs a grant, and so does the node whose platform submitted it. A job without other nodes needs no
grant.

An output of a job needs a grant before another job may name it, even if the node's `Default` is
`OPEN`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from gateway.domain.dag import DagNode, RolesOf
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec, NodeId, Party, data_location

_IN_FORCE = "in force"  # the state of a grant that holds

# Reasons of refusals.
DISABLED = "DATASET_DISABLED"
NOT_GRANTED = "NOT_AUTHORISED"


class Default(StrEnum):
    """Who may use a dataset without any grant."""

    # Every node that may take part in jobs here, until the dataset has its first grant. This holds
    # only for uploads: an output of a job is always `LISTED`.
    OPEN = "open"
    LISTED = "listed"  # no node


@dataclass(frozen=True)
class Grant:
    """Permission of one partner node to use one dataset; it stays on record after its end."""

    dataset: Address
    node: NodeId
    granted_at: datetime
    granted_by: str
    reason: str = ""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""

    def holds(self, now: datetime) -> bool:
        """Return whether the grant is in force at a time: neither revoked nor expired."""
        return self.state(now) == _IN_FORCE

    def state(self, now: datetime) -> str:
        """Return the state at a time, for people: in force, expired, or revoked.

        The grant has expired from `expires_at` on. A revoked grant stays revoked after that time.
        """
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return _IN_FORCE


@dataclass(frozen=True)
class NamedDataset:
    """A dataset of this node that a job names."""

    path: str  # path, in the job's body, of the parameter that names it
    dataset: Address
    component: str  # code of the component that reads it: ``provider/name``


def named_datasets(
    spec: JobSpec,
    node: NodeId,
    roles_of: RolesOf,
) -> Iterator[NamedDataset]:
    """Yield the datasets of a node that a job names, by id or by namespace and name.

    Tasks that take outputs of other tasks name no datasets. Parties without a role in a task are
    left out, unless the roles of its component are not known.
    """
    for use in _dataset_uses(spec, node):
        if use.party.takes_part(roles_of(use.task)):
            yield use.named


@dataclass(frozen=True)
class _DatasetUse:
    """A dataset that a job names for a task at a party."""

    task: DagNode
    party: Party
    named: NamedDataset


def _dataset_uses(spec: JobSpec, node: NodeId) -> list[_DatasetUse]:
    """Return the datasets that a job names for the parties of a node.

    They are kept with the job, as they are checked at each start of a task.
    """
    key = ("datasets", node)
    if key not in spec.memo:
        spec.memo[key] = list(_find_dataset_uses(spec, node))
    uses: list[_DatasetUse] = spec.memo[key]
    return uses


def _find_dataset_uses(spec: JobSpec, node: NodeId) -> Iterator[_DatasetUse]:
    """Yield the datasets that a job names for the parties of a node."""
    parties = spec.parties_at(node)
    for task in spec.dag.nodes:
        if task.inputs:
            continue
        for party in parties:
            location = data_location(spec.task_params, party, task.name)
            if location is not None:
                path = f"config.task_params.{party.label}.{task.name}"
                named = _named_at(location, path, task.component.code)
                yield _DatasetUse(task, party, named)


def _named_at(
    location: Mapping[str, str],
    path: str,
    component: str,
) -> NamedDataset:
    """Return the dataset of a location, with the path of the parameter that names it.

    ``path`` is the path of the task's parameters, ``component`` the code of the task's component. A
    location has either a ``dataset_id``, or a ``namespace`` and a ``name``.
    """
    if "dataset_id" in location:
        namespace, _, name = location["dataset_id"].partition("#")
        return NamedDataset(f"{path}.dataset_id", Address(namespace, name), component)
    address = Address(location["namespace"], location["name"])
    return NamedDataset(f"{path}.name", address, component)


def partners(spec: JobSpec, node: NodeId) -> list[NodeId]:
    """Return the other nodes of a job, each once, including its initiator and scheduling node.

    ``node`` is this node, which is left out.
    """
    involved = dict.fromkeys([*spec.nodes, spec.initiator, spec.scheduler])
    return [partner for partner in involved if partner not in ("", node)]


def without_grant(
    grants: Sequence[Grant],
    nodes: Iterable[NodeId],
    default: Default,
    now: datetime,
) -> list[tuple[NodeId, str]]:
    """Return those of ``nodes`` that may not use a dataset, each with the cause.

    ``grants`` are all grants of the dataset, including ended ones. A node has at most one grant of
    a dataset: a new grant replaces the earlier one. ``default`` holds while there is no grant.
    """
    if not grants and default is Default.OPEN:
        return []
    by_node = {grant.node: grant for grant in grants}
    refusals = []
    for node in nodes:
        cause = _refusal(by_node.get(node), now)
        if cause:
            refusals.append((node, cause))
    return refusals


def _refusal(grant: Grant | None, now: datetime) -> str:
    """Return why a node may not use a dataset; empty if it may.

    ``grant`` is the node's grant of the dataset, in force or ended; None if the node never had one.
    """
    if grant is None:
        return "was never granted it"
    if grant.revoked_at is not None:
        return f"had it granted until {grant.revoked_at:%Y-%m-%d %H:%M} UTC, when it was revoked"
    if not grant.holds(now):
        return f"had it granted until {grant.expires_at:%Y-%m-%d %H:%M} UTC"
    return ""


def not_granted(
    named_dataset: NamedDataset,
    node: NodeId,
    refusals: Sequence[tuple[NodeId, str]],
) -> Problem:
    """Return the problem of a dataset without all grants, for people of this node.

    ``refusals`` are the nodes without a grant, each with the cause.
    """
    dataset = named_dataset.dataset.dataset_id
    words = "; ".join(f"{partner} {cause}" for partner, cause in refusals)
    rule = f"dataset {dataset} is not granted at node {node}: {words}; ask its admin for a grant"
    return Problem(named_dataset.path, rule, dataset, reason=NOT_GRANTED)


def missing_or_not_granted(
    named_dataset: NamedDataset,
    node: NodeId,
    partner_nodes: Sequence[NodeId],
) -> Problem:
    """Return the problem of a dataset without all grants, for people of other nodes.

    A missing dataset has the same problem, so that the text does not show whether it exists. For
    the same reason ``partner_nodes`` are all other nodes of the job, also those with a grant.
    """
    dataset = named_dataset.dataset.dataset_id
    rule = (
        f"dataset {dataset} is not at node {node}, or is not granted there "
        f"to {', '.join(partner_nodes)}; ask its admin"
    )
    return Problem(named_dataset.path, rule, dataset, reason=NOT_GRANTED)


def disabled(named_dataset: NamedDataset, node: NodeId) -> Problem:
    """Return the problem of a disabled dataset."""
    dataset = named_dataset.dataset.dataset_id
    rule = f"dataset {dataset} is disabled at node {node}; ask its admin to enable it"
    return Problem(named_dataset.path, rule, dataset, reason=DISABLED)


@dataclass(frozen=True)
class Dataset:
    """A table in this node's storage."""

    namespace: str
    name: str
    columns: tuple[str, ...]
    count: int | None  # number of rows without headers; None: unknown
    partitions: int  # number of files that the table is stored in
    # metadata as uploaded; its delimiter is the one of the uploaded file, not of the stored one
    meta: Mapping[str, Any]
    checksum: str  # sha256 of the uploaded file, hex
    size: int  # bytes of the uploaded file
    created_at: datetime
    # ``path:`` with a path on the server, ``file:`` with the name of the file that was sent, or
    # ``place:`` for a table that was registered without a copy
    origin: str
    disabled: bool = False
    types: tuple[str, ...] = ()  # type of each column: int, float, boolean or string
    # name of the column of ids that the upload added (``extend_sid``); empty: none was added
    sid: str = ""
    description: str = ""
    storage: str = ""  # name of one of the node's storages; empty: the folder that every node has
    # nodes that may see its name, columns and count; "*": every node with a contract
    published: tuple[NodeId, ...] = ()
    place: str = ""  # its name in the storage, new with each upload; empty: same as ``name``
    # For a table that was registered without a copy: ``file`` or ``folder``, and ``place`` is the
    # path of that file or folder. Empty for any other table.
    in_place: str = ""
    # for a table that was registered without a copy: a text that changes when its files change
    stamp: str = ""
    format: str = "csv"  # csv or parquet
    # sha256 of the table in the storage, hex; empty: unknown, as it has several partitions
    stored: str = ""
    warnings: tuple[str, ...] = ()  # problems of its content, noticed when it was uploaded

    @property
    def address(self) -> Address:
        """The address of its files in the storage.

        A table that was registered without a copy has the path in `place`: its last part is the
        address's name, all before it the namespace.
        """
        if self.in_place:
            folder, _, name = self.place.rpartition("/")
            return Address(folder, name, self.storage, self.in_place)
        return Address(self.namespace, self.place or self.name, self.storage)

    @property
    def dataset_id(self) -> str:
        """Its id in jobs, ``namespace#name``; it stays the same when the table is replaced."""
        return Address(self.namespace, self.name).dataset_id


class DatasetRepository(Protocol):
    """The catalogue of this node's datasets."""

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return a dataset; None if it is unknown."""

    def put(self, dataset: Dataset) -> None:
        """Store a dataset; one of the same namespace and name is replaced."""

    def replace(self, before: Dataset | None, after: Dataset) -> bool:
        """Store a dataset if its current record is still ``before``.

        ``before`` is None for a new dataset. Returns whether it was stored.
        """

    def delete(self, namespace: str, name: str) -> bool:
        """Remove a dataset; return False if it is unknown, otherwise True."""

    def list(self) -> list[Dataset]:
        """Return all datasets, by namespace and name."""


class MemoryDatasets:
    """A `DatasetRepository` in memory."""

    def __init__(self) -> None:
        self._datasets: dict[tuple[str, str], Dataset] = {}

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return a dataset; None if it is unknown."""
        return self._datasets.get((namespace, name))

    def put(self, dataset: Dataset) -> None:
        """Store a dataset; one of the same namespace and name is replaced."""
        self._datasets[dataset.namespace, dataset.name] = dataset

    def replace(self, before: Dataset | None, after: Dataset) -> bool:
        """Store a dataset if its current record is still ``before``; return whether it did."""
        if self.get(after.namespace, after.name) != before:
            return False
        self.put(after)
        return True

    def delete(self, namespace: str, name: str) -> bool:
        """Remove a dataset; return False if it is unknown, otherwise True."""
        return self._datasets.pop((namespace, name), None) is not None

    def list(self) -> list[Dataset]:
        """Return all datasets, by namespace and name."""
        return [self._datasets[key] for key in sorted(self._datasets)]
