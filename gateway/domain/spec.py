"""What both records of a job are made of: what was submitted, who takes part, a call, a failure, a note.

A job has two records. `gateway.domain.job.Job` is the scheduling node's: what it knows of everyone.
`gateway.domain.run.LocalJob` is a participating node's: what it accepted and what it runs. A node that does
both has both. All these values are frozen; a change makes a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self, TypeVar

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.problems import Problem
from gateway.domain.states import Outcome, replace

NodeId = str


def moment(at: datetime) -> str:
    """Return a time as texts for people have it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class TaskLimits:
    """The limits of one task; times in seconds."""

    timeout: float | None = None  # of one attempt, from when its first start is sent
    retries: int = 0  # how often it is retried
    retry_delay: float = 0.0  # between the failure of an attempt and the start of the next one


@dataclass(frozen=True)
class Limits:
    """The limits of a job and its tasks: extensions, absent by default."""

    job_timeout: float | None = None  # seconds, from when every node has started the job
    usual: TaskLimits = TaskLimits()
    tasks: Mapping[str, TaskLimits] = field(
        default_factory=dict
    )  # tasks that differ from the usual

    def of(self, task: str) -> TaskLimits:
        """Return the rules for one task."""
        return self.tasks.get(task, self.usual)


@dataclass(frozen=True)
class UnknownField:
    """An unknown field of the submitted job, and what was probably meant; a warning."""

    path: str
    rule: str
    got: str = ""
    near: str = ""

    @property
    def problem(self) -> Problem:
        """The field as a warning, or in a strict job a problem."""
        return Problem(self.path, self.rule, self.got, self.near)


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


PROVIDERS = "providers"
"""of a party in ``job_params``: task -> name:version of the provider whose component runs there"""


@dataclass(frozen=True)
class JobSpec:
    """What was submitted. Never changes."""

    job_id: str
    flow_id: str
    dag: Dag
    parties: tuple[Party, ...]
    initiator: NodeId
    initiator_role: str
    scheduler: NodeId
    protocol: str
    trace_id: str
    job_params: Mapping[str, Any] = field(default_factory=dict)
    """common, then role -> index -> settings of the job there"""
    task_params: Mapping[str, Any] = field(default_factory=dict)
    """common, then role -> index, then task -> parameters"""
    version: str = "2.0.0"
    old_job_id: str = ""  # an earlier job of which finished tasks are taken over; empty for none
    unknown_fields: tuple[UnknownField, ...] = field(default=(), metadata={"stored": "unread"})
    """ignored keys of what was submitted here; other nodes do not get them"""
    bundles: Mapping[NodeId, Mapping[str, Any]] = field(default_factory=dict)
    """what its initiator has signed for nodes of the job, on its way to them"""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Every node of the job once, in the order of the parties."""
        return tuple(dict.fromkeys(p.node for p in self.parties))

    def parties_at(self, node: NodeId) -> tuple[Party, ...]:
        """Return the roles that a node plays; none where it has no part."""
        return tuple(p for p in self.parties if p.node == node)

    @property
    def common(self) -> Mapping[str, Any]:
        """The settings that hold for all parties."""
        common = self.job_params.get("common")
        return common if isinstance(common, Mapping) else {}

    def flag(self, name: str) -> bool:
        """Return a common setting that is true or false, as a boolean or as text; absent is false."""
        return str(self.common.get(name)).lower() == "true"

    @property
    def by_callback(self) -> bool:
        """Whether participants push their states; by default the scheduler polls."""
        return self.common.get("sync_type") == "callback"

    @property
    def time_limits(self) -> Limits:
        """How long the job and its tasks may take, and how often a task is tried again."""
        common = self.common
        usual = TaskLimits(
            common.get("task_timeout"),
            common.get("auto_retries") or 0,
            common.get("auto_retry_delay") or 0.0,
        )
        own = {name: _of_task(entry, usual) for name, entry in (common.get("tasks") or {}).items()}
        return Limits(common.get("timeout"), usual, own)

    def for_node(self, node: NodeId) -> Self:
        """Return the job as that node gets it: entries of parties at other nodes are emptied."""
        mine = {p.label for p in self.parties_at(node)}
        bundles = {to: bundle for to, bundle in self.bundles.items() if to == node}
        params, tasks = _only(self.job_params, mine), _only(self.task_params, mine)
        return replace(
            self,
            dag=self.dag_at(node),
            job_params=params,
            task_params=tasks,
            bundles=bundles,
        )

    def providers_of(self, party: Party) -> Mapping[str, ComponentRef]:
        """Return for which tasks a party has another provider of the same component, and which."""
        found = {}
        for task, one in overlay(self.job_params, party, PROVIDERS).items():
            provider, _, version = str(one.value).partition(":")
            if (node := self.dag.get(task)) is not None:
                found[task] = ComponentRef(provider, version, node.component.name)
        return found

    def dag_at(self, node: NodeId) -> Dag:
        """Return the flow as a node runs it: with the providers that its parties have."""
        own = {
            task: ref
            for party in self.parties_at(node)
            for task, ref in self.providers_of(party).items()
        }
        if not own:
            return self.dag
        nodes = (replace(one, component=own.get(one.name, one.component)) for one in self.dag.nodes)
        return Dag(tuple(nodes), self.dag.version)

    def one_by_one(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Write entries of several indices, such as ``0|1``, once for each: not every peer reads them otherwise.

        Indices that no party has are left out, so that a long key does not multiply its entry.
        """
        parties = {(p.role, str(p.index)) for p in self.parties}
        result: dict[str, Any] = {}
        for role, by_index in params.items():
            if role == "common" or not isinstance(by_index, Mapping):
                result[role] = by_index
                continue
            single: dict[str, Any] = {}
            for key, entry in by_index.items():
                for index in dict.fromkeys(key.split("|")):
                    if (role, index) in parties:
                        single[index] = _overlaid(single.get(index), entry)
            result[role] = single
        return result


def _of_task(entry: Mapping[str, Any], usual: TaskLimits) -> TaskLimits:
    """Return a task's own entry over what holds for all; null counts as absent."""
    timeout, retries, delay = (
        entry.get(name) for name in ("timeout", "auto_retries", "auto_retry_delay")
    )
    return TaskLimits(
        usual.timeout if timeout is None else timeout,
        usual.retries if retries is None else retries,
        usual.retry_delay if delay is None else delay,
    )


def _overlaid(old: Any, new: Any) -> Any:
    """Lay one entry over another as `overlay` does: by task, shallow."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    both = {
        k: {**old[k], **v}
        for k, v in new.items()
        if isinstance(v, Mapping) and isinstance(old.get(k), Mapping)
    }
    return {
        **old,
        **new,
        **both,
    }


def _only(params: Mapping[str, Any], mine: set[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for role, by_index in params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            kept[role] = by_index
            continue
        kept[role] = {
            key: value if any(f"{role}.{i}" in mine for i in key.split("|")) else {}
            for key, value in by_index.items()
        }
    return kept


def is_own(spec: JobSpec, node: NodeId) -> bool:
    """Tell whether a node has both submitted and scheduled a job; any other is a partner's to it."""
    return {spec.initiator, spec.scheduler} <= {node}


# Which value each parameter has at which party, and where it came from.


@dataclass(frozen=True)
class Effective:
    """A parameter's value and the entry it was taken from, such as ``common`` or ``guest.0``."""

    value: Any
    origin: str


def overlay(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> dict[str, Effective]:
    """Merge the entries that the role holds for this index: role index over common is done by `effective`."""
    found: dict[str, Effective] = {}
    by_index = params.get(party.role)
    if not isinstance(by_index, Mapping):
        return found
    index = str(party.index)
    for key, by_task in by_index.items():
        if index not in (key.split("|") if "|" in key else (key,)) or not isinstance(
            by_task, Mapping
        ):
            continue
        values = by_task.get(task)
        if isinstance(values, Mapping):
            found |= {
                name: Effective(value, f"{party.role}.{key}") for name, value in values.items()
            }
    return found


def is_outside(spec: JobSpec, node: NodeId) -> bool:
    """Tell whether another node has no part in a job, and so learns nothing of it; an empty id is this node."""
    return bool(node) and node not in (*spec.nodes, spec.scheduler, spec.initiator)


def effective(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> dict[str, Effective]:
    """Return the parameters of a task at a party: common, overlaid by the party's own, shallow.

    Data locations are left out: ``dataset_id`` of the party's own entry names an input, not a parameter.
    """
    merged: dict[str, Effective] = {}
    common = params.get("common")
    values = common.get(task) if isinstance(common, Mapping) else None
    if isinstance(values, Mapping):
        merged = {name: Effective(value, "common") for name, value in values.items()}
    own = overlay(params, party, task)
    return merged | {name: value for name, value in own.items() if name != "dataset_id"}


def data_location(
    params: Mapping[str, Any],
    party: Party,
    task: str,
) -> Mapping[str, str] | None:
    """Return ``{dataset_id}`` or ``{namespace, name}`` of the party's own entry, if it has one."""
    own = overlay(params, party, task)
    if "dataset_id" in own:
        named = str(own["dataset_id"].value or "")
        return {"dataset_id": named} if named else None
    if "namespace" in own and "name" in own:
        return {"namespace": str(own["namespace"].value), "name": str(own["name"].value)}
    return None


@dataclass(frozen=True)
class Note:
    """One line of a job's timeline: what happened, to whom, caused by whom."""

    at: datetime
    event: str
    by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class CallState(StrEnum):
    """What has become of a request."""

    IDLE = "IDLE"
    SENT = "SENT"
    OK = "OK"
    REFUSED = "REFUSED"
    LOST = "LOST"  # no answer came; may be tried again at `Call.due_at`


@dataclass(frozen=True)
class Call:
    """One request to one node: the record of the intent, and what came back."""

    state: CallState = CallState.IDLE
    sent_at: datetime | None = None
    due_at: datetime | None = (
        None  # of one that is to be made, or made again: when; None: immediately
    )
    tries: int = 0  # how often it was made
    reason: str = ""  # why it was refused
    message: str = ""

    @property
    def completed(self) -> bool:
        """Whether its response is known, so that it is not made again."""
        return self.state in (CallState.OK, CallState.REFUSED)

    def sent(self, now: datetime) -> "Call":
        """Return the call as made just now."""
        return replace(
            self,
            state=CallState.SENT,
            sent_at=now,
            due_at=None,
            tries=self.tries + 1,
        )

    def interrupted(self) -> "Call":
        """Return a call that may be under way as one to be made again immediately."""
        return (
            replace(self, state=CallState.LOST, due_at=None)
            if self.state is CallState.SENT
            else self
        )

    def hurried(self) -> "Call":
        """Return a call that was tried and got no answer as due now; any other as it is."""
        waits = self.state is CallState.LOST or (self.state is CallState.IDLE and self.tries > 0)
        return replace(self, due_at=None) if waits and self.due_at is not None else self


R = TypeVar("R")


def changed(
    record: R,
    path: str,
    change: Callable[[Any], Any],
) -> R:
    """Return a record with the value at a dotted path changed; as it is where a part of the path is None."""
    of: Any = record
    name, _, rest = path.partition(".")
    old: Any = getattr(of, name)
    if old is None:
        return record
    new = changed(old, rest, change) if rest else change(old)
    return record if new is old else replace(of, **{name: new})


UNCERTAIN = (
    "INTERNAL",
    "NO_ENVELOPE",
    "LOGIN_IN_BETWEEN",
    "FILTER_IN_BETWEEN",
    "BODY_LIMIT_IN_BETWEEN",
)
"""Reasons of refusals that leave open whether what was asked was done: an error of the node's own, and an answer
that is none, as something gives that stands in the node's place."""


@dataclass(frozen=True)
class Failure:
    """Why something failed, in the same words for every party."""

    reason: str
    message: str = ""
    node: NodeId = ""
    role: str = ""
    task: str = ""
    exit_code: int | None = None  # of the container; None where none has ended

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Ending:
    """The decision that a job ends, or that a task is stopped, and how; made once."""

    outcome: Outcome
    at: datetime
    failure: Failure | None = None
    by: str = ""


def tasks_in(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tasks that changes of parameters name."""
    entries = [
        changes.get("common", {}),
        *(e for r, by in changes.items() if r != "common" for e in by.values()),
    ]
    return tuple(sorted({task for by_task in entries for task in by_task}))


@dataclass(frozen=True)
class Amendment:
    """One change of parameters; its version is its place among the job's, from 1."""

    id: str
    parameters: Mapping[str, Any]
    """in the form of ``task_params``; a node gets those of its own parties"""
    by: NodeId
    reason: str
    at: datetime
    bundle: Mapping[str, Any] | None = None
    """what the job's initiator or its scheduling node has signed of the job with them, for the node that has it"""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that get other parameters."""
        return tasks_in(self.parameters)
