"""The parts that both records of a job share: specification, parties, calls, failures and notes.

A job has two records. `gateway.domain.job.Job` is the scheduling node's, about all nodes.
`gateway.domain.run.LocalJob` is a participating node's, about its own runs. A node that both
schedules a job and takes part in it has both. All values are frozen; a change makes a new one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeVar

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.entries import as_mapping
from gateway.domain.job_settings import JobSettings
from gateway.domain.problems import Problem
from gateway.domain.records import replace
from gateway.domain.states import Outcome

NodeId = str

PROVIDERS = "providers"  # key in a party's job_params: task -> name:version of the provider it uses


def moment(at: datetime) -> str:
    """Format a time for messages to people."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class UnknownField:
    """A warning about an unknown field of the submitted job."""

    path: str
    rule: str
    got: str = ""  # the name of the field
    near: str = ""  # the name that was probably meant; empty for none

    @property
    def problem(self) -> Problem:
        """The warning as a `Problem`."""
        return Problem(
            self.path,
            self.rule,
            self.got,
            self.near,
            remedy="write it as the standard does, or leave it out",
        )


@dataclass(frozen=True)
class Party:
    """One role of a job: its position in the role's list, and the node that plays it."""

    role: str
    index: int
    node: NodeId

    @property
    def label(self) -> str:
        """Role and index, such as ``guest.0``."""
        return f"{self.role}.{self.index}"

    def takes_part(self, roles: Iterable[str] | None) -> bool:
        """Return whether the party takes part in a task whose component has these roles.

        None means that the component is not registered here: every party counts as taking part,
        because the roles are unknown.
        """
        return roles is None or self.role in roles


@dataclass(frozen=True)
class JobSpec:
    """A job as submitted. Never changes."""

    job_id: str
    flow_id: str
    dag: Dag
    parties: tuple[Party, ...]
    initiator: NodeId
    initiator_role: str
    scheduler: NodeId
    protocol: str  # by which the nodes exchange the job
    trace_id: str
    # common -> settings, role -> index -> settings
    job_params: Mapping[str, Any] = field(default_factory=dict)
    # common -> task -> parameters, role -> index -> task -> parameters
    task_params: Mapping[str, Any] = field(default_factory=dict)
    version: str = "2.0.0"  # of the form of the job's configuration, as the submitter sent it
    old_job_id: str = ""  # an earlier job whose finished tasks are taken over; empty for none
    # ignored keys of a job submitted here; not sent to other nodes
    unknown_fields: tuple[UnknownField, ...] = field(
        default=(),
        metadata={"stored": "unread"},
    )
    # node -> the statement for that node, signed by the initiator
    bundles: Mapping[NodeId, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Values that other modules have derived from the job as submitted."""
        return {}

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Every node of the job once, in the order of the parties.

        The scheduling node and the initiator are included only if they play a party.
        """
        return tuple(dict.fromkeys(party.node for party in self.parties))

    def parties_at(self, node: NodeId) -> tuple[Party, ...]:
        """Return the parties that a node plays; none for a node outside the job."""
        return tuple(party for party in self.parties if party.node == node)

    @property
    def common(self) -> Mapping[str, Any]:
        """The settings that hold for all parties, as they were submitted.

        Empty if there are none, or if they are not an object.
        """
        return as_mapping(self.job_params.get("common"))

    @property
    def settings(self) -> JobSettings:
        """The settings that hold for all parties, as typed values."""
        return JobSettings(self.common)

    def for_node(self, node: NodeId) -> Self:
        """Return the job as one node gets it: entries for parties at other nodes are emptied.

        It has the flow with the node's own providers, and only the node's bundle.
        """
        labels = {party.label for party in self.parties_at(node)}
        bundles = {}
        if node in self.bundles:
            bundles[node] = self.bundles[node]
        return replace(
            self,
            dag=self.dag_at(node),
            job_params=_entries_for(self.job_params, labels),
            task_params=_entries_for(self.task_params, labels),
            bundles=bundles,
        )

    def providers_of(self, party: Party) -> Mapping[str, ComponentRef]:
        """Return task -> component for each task whose provider a party replaces.

        Such a component keeps the name that the flow gives, and has the provider and version that
        the party gives as ``provider:version``. Tasks that are not in the flow are left out.
        """
        providers = {}
        for task, entry in overlay(self.job_params, party, PROVIDERS).items():
            planned_task = self.dag.get(task)
            if planned_task is not None:
                provider, _, version = str(entry.value).partition(":")
                providers[task] = ComponentRef(
                    provider,
                    version,
                    planned_task.component.name,
                )
        return providers

    def dag_at(self, node: NodeId) -> Dag:
        """Return the flow as a node runs it: with the providers that its parties name."""
        components: dict[str, ComponentRef] = {}
        for party in self.parties_at(node):
            components |= self.providers_of(party)
        if not components:
            return self.dag
        tasks = []
        for task in self.dag.nodes:
            component = components.get(task.name, task.component)
            tasks.append(replace(task, component=component))
        return Dag(tuple(tasks), self.dag.version)

    def with_single_indices(
        self,
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Split entries of several indices, such as ``0|1``, into one per index.

        Some peers read only keys of one index. Indices without a party are left out, as a key may
        list any number of them, and each would get a copy of the entry. Common entries stay as they
        are.
        """
        result = dict(params)
        for role, by_index in role_entries(params):
            indices = {str(party.index) for party in self.parties if party.role == role}
            result[role] = _split_keys(by_index, indices)
        return result


def _split_keys(
    by_index: Mapping[str, Any],
    indices: set[str],
) -> dict[str, Any]:
    """Return a role's entries with one key for each of these indices.

    Later entries overlay earlier ones. Other indices are left out.
    """
    entries: dict[str, Any] = {}
    for key, entry in by_index.items():
        for index in dict.fromkeys(key.split("|")):  # each once, in their order
            if index in indices:
                entries[index] = merged_entry(entries.get(index), entry)
    return entries


def merged_entry(old: Any, new: Any) -> Any:
    """Return one entry overlaid by another, parameter by parameter of each task.

    A value that is not an object replaces the old one.
    """
    if not isinstance(new, Mapping):
        return new
    old_entry = as_mapping(old)
    merged = {**old_entry, **new}
    for task in old_entry.keys() & new.keys():
        new_values = new[task]
        if isinstance(new_values, Mapping):
            old_values = as_mapping(old_entry[task])
            merged[task] = {**old_values, **new_values}
    return merged


def _entries_for(
    params: Mapping[str, Any],
    labels: set[str],
) -> dict[str, Any]:
    """Return parameters with the entries of all parties but these emptied.

    ``labels`` are those of the parties that keep their entries, such as ``guest.0``. Keys stay, so
    that the receiver sees the same form as the submitter sent.
    """
    result = dict(params)
    for role, by_index in role_entries(params):
        entries: dict[str, Any] = {}
        for key, entry in by_index.items():
            entry_labels = [f"{role}.{index}" for index in key.split("|")]
            is_foreign = labels.isdisjoint(entry_labels)
            entries[key] = {} if is_foreign else entry
        result[role] = entries
    return result


def is_own(spec: JobSpec, node: NodeId) -> bool:
    """Return whether a node both submitted and schedules a job.

    Any other job is a partner's. Stricter limits may hold for it.
    """
    return node == spec.initiator == spec.scheduler


def is_outside(spec: JobSpec, node: NodeId) -> bool:
    """Return whether a node is not involved in a job, and so must not learn of it.

    An empty id means this node, which is never outside.
    """
    involved = (*spec.nodes, spec.scheduler, spec.initiator)
    return node != "" and node not in involved


# ---------------------------------------------------------------- parameters of a party


@dataclass(frozen=True)
class Effective:
    """A parameter's value, and the entry that it comes from."""

    value: Any
    origin: str  # the entry's keys: ``common``, ``guest.0``, or ``guest.0|1`` for two indices


def effective(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> dict[str, Effective]:
    """Return the parameters of a task at a party: common ones, overlaid by the party's own.

    A value that is an object is replaced as a whole. The party's own ``dataset_id`` is left out: it
    names an input.
    """
    parameters: dict[str, Effective] = {}
    for name, value in _object_at(params.get("common"), task).items():
        parameters[name] = Effective(value, "common")
    own_parameters = overlay(params, party, task)
    own_parameters.pop("dataset_id", None)
    return {**parameters, **own_parameters}


def overlay(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> dict[str, Effective]:
    """Return the party's own parameters of a task; empty for a party without an entry.

    If several entries are for the party's index, such as ``0`` and ``0|1``, the last one that has a
    parameter determines its value. If ``params`` are a job's settings, ``task`` is the key of a
    setting, such as ``resources``.
    """
    parameters: dict[str, Effective] = {}
    index = str(party.index)
    for key, by_task in _object_at(params, party.role).items():
        if index not in key.split("|"):
            continue
        for name, value in _object_at(by_task, task).items():
            parameters[name] = Effective(value, f"{party.role}.{key}")
    return parameters


def _object_at(entry: Any, key: str) -> Mapping[str, Any]:
    """Return the object under a key of an entry, such as the parameters of a task.

    Empty if the entry is not an object, or has no object under the key.
    """
    value = as_mapping(entry).get(key)
    return as_mapping(value)


def role_entries(params: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each role in settings or parameters with its entries by index.

    The common entries are left out, and so is a role whose value is not an object:
    `gateway.domain.validation` reports it.
    """
    for role, by_index in params.items():
        if role != "common" and isinstance(by_index, Mapping):
            yield role, by_index


def data_location(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> Mapping[str, str] | None:
    """Return the dataset of a task that the party's own entry names; None without one.

    It is ``{dataset_id}`` or ``{namespace, name}``. An empty ``dataset_id`` means no dataset.
    """
    entry = overlay(params, party, task)
    values = {name: parameter.value for name, parameter in entry.items()}
    dataset_id = values.get("dataset_id")
    if dataset_id:
        return {"dataset_id": str(dataset_id)}
    has_names = {"namespace", "name"} <= values.keys()
    if "dataset_id" in values or not has_names:
        return None
    return {
        "namespace": str(values["namespace"]),
        "name": str(values["name"]),
    }


def tasks_in(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tasks that a change of parameters names, sorted.

    ``changes`` has the form of ``task_params``, and was checked: each entry is an object.
    """
    tasks: set[str] = set(changes.get("common", {}))
    for _, by_index in role_entries(changes):
        for by_task in by_index.values():
            tasks.update(by_task)
    return tuple(sorted(tasks))


@dataclass(frozen=True)
class Amendment:
    """One change of a job's parameters after its creation; the n-th change makes version n."""

    id: str
    # in the form of ``task_params``; a node gets the entries of its own parties only
    parameters: Mapping[str, Any]
    by: NodeId  # the node that requested it
    reason: str
    at: datetime
    # the job's bundle with the change, signed by the job's initiator or scheduling node; None: no
    # bundle was sent
    bundle: Mapping[str, Any] | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that get other parameters."""
        return tasks_in(self.parameters)


# ---------------------------------------------------------------- timelines, calls and endings


@dataclass(frozen=True)
class Note:
    """One line of a job's timeline: event, cause and details."""

    at: datetime
    event: str
    by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class CallState(StrEnum):
    """The progress of a request."""

    IDLE = "IDLE"  # not under way: never made, or planned to be made again at `Call.due_at`
    SENT = "SENT"  # made, without a response so far
    OK = "OK"
    REFUSED = "REFUSED"
    LOST = "LOST"  # it may or may not have arrived; made again at `Call.due_at`


@dataclass(frozen=True)
class Call:
    """One request to one node: the record of the intent, and its response."""

    state: CallState = CallState.IDLE
    sent_at: datetime | None = None  # when it was made last; None: never
    # when a call that is IDLE or LOST is made, or made again; None: immediately
    due_at: datetime | None = None
    tries: int = 0  # how often it was made
    reason: str = ""  # symbol of the refusal, such as ``RESOURCES_BUSY``
    message: str = ""  # text of the refusal, or why no response came

    @property
    def completed(self) -> bool:
        """Whether its response has arrived, so that it is not made again.

        The response may be a refusal.
        """
        return self.state in (CallState.OK, CallState.REFUSED)

    def sent(self, now: datetime) -> "Call":
        """Return the call as made now, with one more try."""
        return replace(
            self,
            state=CallState.SENT,
            sent_at=now,
            due_at=None,
            tries=self.tries + 1,
        )

    def interrupted(self) -> "Call":
        """Return the call after its response may have been missed: due now if it was under way.

        That is after a restart of this node, and after a silence of the called one. The call may
        have arrived, so that it counts as lost. A call that was not under way stays as it is.
        """
        if self.state is not CallState.SENT:
            return self
        return replace(
            self,
            state=CallState.LOST,
            due_at=None,
        )

    def hurried(self) -> "Call":
        """Return the call, due now if it waits for a retry: its node is reachable again.

        It waits if it was lost, or if it has failed and its next try is planned. Any other call
        stays as it is, such as one that was never made.
        """
        was_tried = self.tries > 0 and self.state in (CallState.IDLE, CallState.LOST)
        if not was_tried or self.due_at is None:
            return self
        return replace(self, due_at=None)


R = TypeVar("R")


def changed(
    record: R,
    path: str,
    change: Callable[[Any], Any],
) -> R:
    """Return a record with the value at a dotted path, such as ``reporting.call``, changed.

    The same record is returned if a part of the path is None, or the value stays the same object.
    """
    name, _, rest = path.partition(".")
    parent: Any = record  # the same object; type checkers do not know the fields of an ``R``
    old: Any = getattr(parent, name)
    if old is None:
        return record
    if rest:
        new = changed(old, rest, change)
    else:
        new = change(old)
    if new is old:
        return record
    result: R = replace(parent, **{name: new})
    return result


# Reasons of refusals after which the request may have been carried out all the same: an internal
# error of the node, and responses of a machine between the nodes.
UNCERTAIN = (
    "INTERNAL",
    "NO_ENVELOPE",
    "LOGIN_IN_BETWEEN",
    "FILTER_IN_BETWEEN",
    "BODY_LIMIT_IN_BETWEEN",
)


@dataclass(frozen=True)
class Failure:
    """Why something failed, in the same words for every party.

    Node, role and task are where it failed; each is empty if it is not known or not a single one.
    """

    reason: str
    message: str = ""
    node: NodeId = ""
    role: str = ""
    task: str = ""
    exit_code: int | None = None  # of the container; None if none has ended

    @property
    def outcome(self) -> Outcome:
        """Outcome of a job that ends with this failure.

        STOPPED if the reason is a stop on request, FAILED for every other reason.
        """
        if self.reason == "STOPPED":
            return Outcome.STOPPED
        return Outcome.FAILED

    def as_dict(self) -> dict[str, Any]:
        """Return the failure for JSON, with all fields, also the empty ones."""
        return dict(vars(self))  # flat, so that nothing has to be copied in depth


def failure_detail(failure: Failure | None) -> dict[str, Any]:
    """Return the details of a failure for the timeline; empty without a failure."""
    if failure is None:
        return {}
    return failure.as_dict()


@dataclass(frozen=True)
class Ending:
    """The decision that a job ends or a task is stopped, and its outcome; made once."""

    outcome: Outcome
    at: datetime
    failure: Failure | None = None  # None for a success, or if no cause was reported
    by: str = ""  # node or person that decided it; empty for a decision by the scheduling rules
