"""The values the gateway reasons about. All frozen; a change makes a new value.

A job has two records. `Job` is the scheduling node's: what it knows of everyone. `LocalJob` is a
participating node's: what it accepted and what it runs. A node that does both has both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from gateway.domain import lifetimes
from gateway.domain.amounts import Pool
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.states import (
    TASK_OF_RUN,
    JobStatus,
    Outcome,
    RunStatus,
    TaskStatus,
    merge,
)

NodeId = str


@dataclass(frozen=True)
class Party:
    """One role of a job: its position in the role's list, and the node that plays it."""

    role: str
    index: int
    node: NodeId

    @property
    def label(self) -> str:
        return f"{self.role}.{self.index}"


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
    old_job_id: str = ""
    """an earlier job of which finished tasks are taken over; empty for none"""

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """Every node of the job once, in the order of the parties."""
        return tuple(dict.fromkeys(p.node for p in self.parties))

    def parties_at(self, node: NodeId) -> tuple[Party, ...]:
        return tuple(p for p in self.parties if p.node == node)

    @property
    def by_callback(self) -> bool:
        """Whether participants push their states; by default the scheduler polls."""
        common = self.job_params.get("common")
        return isinstance(common, Mapping) and common.get("sync_type") == "callback"

    @cached_property
    def lifetimes(self) -> lifetimes.Lifetimes:
        """How long the job and its tasks may take, and how often a task is tried again."""
        return lifetimes.read(self.job_params.get("common"))

    def for_node(self, node: NodeId) -> Self:
        """Return what that node is told: entries of parties at other nodes are emptied."""
        mine = {p.label for p in self.parties_at(node)}
        return replace(
            self,
            job_params=_only(self.job_params, mine),
            task_params=_only(self.task_params, mine),
        )


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


@dataclass(frozen=True)
class Note:
    """One line of a job's timeline: what happened, to whom, caused by whom."""

    at: datetime
    event: str
    by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


class CallState(StrEnum):
    IDLE = "IDLE"
    SENT = "SENT"
    OK = "OK"
    REFUSED = "REFUSED"
    LOST = "LOST"
    """no answer came; may be tried again at `Call.due_at`"""


@dataclass(frozen=True)
class Call:
    """One request to one node: the record of the intent, and what came back."""

    state: CallState = CallState.IDLE
    sent_at: datetime | None = None
    due_at: datetime | None = None
    tries: int = 0
    reason: str = ""
    message: str = ""

    @property
    def settled(self) -> bool:
        return self.state in (CallState.OK, CallState.REFUSED)


@dataclass(frozen=True)
class Failure:
    """Why something did not work, in words that every party gets alike."""

    reason: str
    message: str = ""
    node: NodeId = ""
    role: str = ""
    task: str = ""
    exit_code: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "message": self.message,
            "node": self.node,
            "role": self.role,
            "task": self.task,
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True)
class Ending:
    """The decision that a job ends, or that a task is stopped, and how; made once."""

    outcome: Outcome
    at: datetime
    failure: Failure | None = None
    by: str = ""


@dataclass(frozen=True)
class Acceptance:
    """What a node says beside yes when it takes a job; a peer that keeps to the standard says nothing."""

    holds: bool = False
    """the job needs something of the node that must be held before it starts"""
    tasks_at_once: int | None = None
    """for how many tasks at once that is enough; None is without a bound"""
    waits: bool = False
    """somebody there has still to agree; the node tells what was decided"""
    within: float | None = None
    """seconds that this may take, where it says so"""
    inherited: tuple[str, ...] | None = None
    """tasks of the earlier job that the node can take over; None: it does not say"""
    asked_only: bool = False
    """the job is not created there yet: the node was asked first, and decides"""
    waits_for: str = ""
    """what the node waits for where that is no person, in its words"""
    checks: Mapping[str, str] = field(default_factory=dict)
    """what it looked at: image, data, storage, transport -> how each is"""


@dataclass(frozen=True)
class Holding:
    """What the scheduler knows of what the job holds of one node."""

    said: Acceptance = Acceptance()
    apply: Call = Call()
    """OK while the node has granted it; SENT or LOST: it may have"""
    give_back: Call = Call()
    waiting_since: datetime | None = None
    """when the node first had too little free"""
    freed_at: datetime | None = None
    """when it last said that it had something free again"""


@dataclass(frozen=True)
class Consent:
    """What the scheduler knows of a node that asks somebody before it takes part."""

    asked_at: datetime
    until: datetime
    """without an answer by then the node counts as having refused"""
    status: JobStatus = JobStatus.PENDING
    """PENDING, then READY or REJECTED, once"""
    asked_only: bool = False
    """the job is not created there yet; that follows once the node has agreed"""
    waits_for: str = ""
    """what it waits for where that is no person, in the node's words"""


@dataclass(frozen=True)
class NodeJob:
    """What the scheduler knows of one node's part in the job as a whole."""

    node: NodeId
    create: Call = Call()
    start: Call = Call()
    stop: Call = Call()
    unreachable_since: datetime | None = None
    pushes: bool = False
    """the node has reported by itself, so it need not be asked often"""
    holding: Holding = Holding()
    consent: Consent | None = None
    """None: the node did not say that it asks anybody"""
    excluded: Failure | None = None
    """why the job runs without this node, where it may"""


@dataclass(frozen=True)
class NodeTask:
    """What the scheduler knows of one node's part in a task."""

    node: NodeId
    roles: Mapping[str, TaskStatus]
    start: Call = Call()
    poll: Call = Call()
    stop: Call = Call()
    heard_at: datetime | None = None
    polls: int = 0
    """polls since the last news; the pause between them grows with it"""
    quiet: int = 0
    """polls in a row that brought no news; told with the next one that does"""
    denials: int = 0
    """polls refused in a row"""
    unknowns: int = 0
    """how often the node did not know the task after a start had been sent"""

    @cached_property
    def status(self) -> TaskStatus:
        return merge(self.roles.values())


@dataclass(frozen=True)
class Attempt:
    """An earlier try of a task: it failed, and the task was begun again under another id."""

    number: int
    task_id: str
    failure: Failure
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Lineage:
    """The task of an earlier job whose outputs stand for this one's: the job in which it really ran."""

    job_id: str
    task_id: str


@dataclass(frozen=True)
class Task:
    """The scheduler's record of one instance of the flow."""

    name: str
    task_id: str
    status: TaskStatus
    nodes: Mapping[NodeId, NodeTask]
    attempt: int = 0
    failure: Failure | None = None
    ending: Ending | None = None
    """set once the task is to stop at every node, or never to start; what it becomes then is its status"""
    started_at: datetime | None = None
    """of the attempt"""
    ended_at: datetime | None = None
    again_from: datetime | None = None
    """when the attempt failed, while another is to follow: it is stopped at every node first"""
    attempts: tuple[Attempt, ...] = ()
    """earlier ones, oldest first"""
    lineage: Lineage | None = None
    """while the job is PENDING what it could take over; then what it has"""

    def has(self, task_id: str) -> bool:
        """Say whether the id is that of the task, now or in an earlier attempt."""
        return task_id == self.task_id or any(past.task_id == task_id for past in self.attempts)

    @cached_property
    def begun(self) -> bool:
        """Whether some node was asked to start it."""
        return any(part.start.tries for part in self.nodes.values())


@dataclass(frozen=True)
class Suspension:
    """No further task is started; what runs, runs on."""

    by: NodeId
    at: datetime


@dataclass(frozen=True)
class Origin:
    """The job that this one runs again."""

    job_id: str
    start: str
    """the task from which on"""
    by: NodeId
    changed: tuple[str, ...] = ()
    """tasks with other parameters"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """these, in the form of ``task_params``; known to the scheduling node only, as they may be one party's own"""


@dataclass(frozen=True)
class Job:
    """The scheduling node's record of a job."""

    spec: JobSpec
    status: JobStatus
    created_at: datetime
    nodes: Mapping[NodeId, NodeJob]
    tasks: Mapping[str, Task]
    outcome: Outcome | None = None
    ending: Ending | None = None
    started_at: datetime | None = None
    """when every node had started it"""
    ended_at: datetime | None = None
    suspended: Suspension | None = None
    warnings: tuple[str, ...] = ()
    digest: str = ""
    """of the submitted body: the same id with another body is a conflict"""
    origin: Origin | None = None
    """where it runs another job again"""
    user: str = ""
    """who handed it in at this node, by token or signature; stays here"""
    notes: tuple[Note, ...] = field(default=(), compare=False)
    """lines for the timeline that are not written yet; the store drains them"""

    @property
    def id(self) -> str:
        return self.spec.job_id

    def noted(self, at: datetime, event: str, by: str = "", **detail: Any) -> Self:
        return replace(self, notes=(*self.notes, Note(at, event, by, detail)))

    @property
    def progress(self) -> int:
        """Return the share of finished tasks in percent; 100 only once the job has succeeded."""
        if self.outcome is Outcome.SUCCEEDED:
            return 100
        done = sum(t.status is TaskStatus.SUCCESS for t in self.tasks.values())
        return min(99, 100 * done // len(self.tasks)) if self.tasks else 0


@dataclass(frozen=True)
class Address:
    """Where a table, model or report lies in a node's storage."""

    namespace: str
    name: str

    def as_dict(self) -> dict[str, str]:
        return {"namespace": self.namespace, "name": self.name}


@dataclass(frozen=True)
class Exit:
    """How a container ended, as the engine tells it."""

    code: int
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    missing_outputs: tuple[str, ...] = ()
    """outputs that the job names and that are not in the storage"""


@dataclass(frozen=True)
class FileSum:
    """A file of an output, as it lay in the storage when its run had succeeded."""

    name: str
    """``data_<n>`` or ``metadata``"""
    size: int
    sha256: str
    output: str = ""
    """the output that it belongs to, by its name in the component's description"""


@dataclass(frozen=True)
class Told:
    """What the scheduling node was last told of a run, and the call under way."""

    status: TaskStatus | None = None
    call: Call = Call()


@dataclass(frozen=True)
class Run:
    """One container run of (task, role, index, attempt) on this node."""

    run_id: str
    """random; part of the callback address handed to the container, told to nobody else"""
    name: str
    """deterministic: the container's name"""
    task_id: str
    task_name: str
    party: Party
    component: ComponentRef
    image: str
    created_at: datetime
    engine: str = ""
    """which of several engines runs it; empty: the main one"""
    attempt: int = 0
    status: RunStatus = RunStatus.WAITING
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Address] = field(default_factory=dict)
    """name in the component's description -> address"""
    outputs: Mapping[str, Address] = field(default_factory=dict)
    """name in the component's description -> address"""
    output_keys: Mapping[str, str] = field(default_factory=dict)
    """key in the flow -> name in the component's description"""
    checkpoint: Address | None = None
    """the folder for what later attempts of the task can go on from; None: the job asks for none"""
    checkpoint_from: Address | None = None
    """where an earlier job left that"""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """cpu in cores, memory and disk in bytes, pids; None is no limit"""
    limit_origins: Mapping[str, str] = field(default_factory=dict)
    """cpu, memory, disk -> where the limit comes from, such as ``guest.0`` or ``site default``"""
    roles: tuple[str, ...] = ()
    """roles that take part in the task"""
    results: Mapping[str, str] = field(default_factory=dict)
    """the vendor's result codes and what they mean"""
    launch: Call = Call()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    probe_at: datetime | None = None
    reported: TaskStatus | None = None
    reported_at: datetime | None = None
    result_code: str = ""
    result_message: str = ""
    exit: Exit | None = None
    stop_at: datetime | None = None
    stop: Call = Call()
    failure: Failure | None = None
    no_callback: bool = False
    collect: Call = Call()
    told: Told = Told()
    image_digest: str = ""
    expected_digest: str = ""
    """of the image that was approved; empty: any"""
    granted: tuple[str, ...] = ()
    """what its container got beyond the ordinary, by the admin's settings"""
    away_at: datetime | None = None
    """since when the engine has not answered for it"""
    token: str = ""
    """random; the container's name on the channel. Partners see it there, so it opens nothing"""
    owner: str = ""
    """gateway instance and engine that own the container"""
    of_job: str = ""
    """the earlier job that it belongs to, where its outputs stand for those of this job"""
    to_seal: tuple[str, ...] = ()
    """outputs that are models, by their names in the description: fingerprinted when the run has succeeded"""
    seal: Call = Call()
    files: tuple[FileSum, ...] = ()
    """what the sealed outputs consist of"""
    warnings: tuple[str, ...] = ()
    """what is odd about the outputs"""

    @property
    def over(self) -> bool:
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED)

    @cached_property
    def done_with(self) -> bool:
        """Whether nothing is left to do for it: it is over, told of, and its container is removed."""
        return self.over and self.collect.state is CallState.OK and self.told.status is TASK_OF_RUN[self.status]


@dataclass(frozen=True)
class Approval:
    """Somebody here has to agree to a job, or has done so or refused; decided once."""

    since: datetime
    until: datetime
    """silence by then is a refusal"""
    decision: JobStatus = JobStatus.PENDING
    """PENDING, then READY or REJECTED"""
    by: str = ""
    """the person as the operator's interface names them, or empty for the deadline"""
    failure: Failure | None = None
    """why it was refused, in the words that every node gets"""
    decided_at: datetime | None = None
    confirm: Call = Call()
    """tells the scheduling node"""


@dataclass(frozen=True)
class Preparation:
    """What is fetched here before the job is READY. The job waits as it does for a person: `Approval`."""

    images: Mapping[str, str]
    """image -> name of the engine that is to have it"""
    since: datetime
    until: datetime
    """what has not come by then refuses the job"""
    agreed: bool = True
    """nobody has to agree any more"""
    fetch: Call = Call()
    """settled once everything is here, or cannot be had"""
    progress: str = ""
    """how far it has come, in words"""


@dataclass(frozen=True)
class Audit:
    """The question of another node whether this one takes part in a job, asked before it creates the job."""

    id: str
    """made by the node that asks"""
    name: str = ""
    project_id: str = ""
    created: bool = False
    """the job was created since, so that all else is as with every job"""


@dataclass(frozen=True)
class LocalJob:
    """A participating node's record of a job."""

    spec: JobSpec
    node: NodeId
    status: JobStatus
    created_at: datetime
    digest: str
    runs: tuple[Run, ...] = ()
    ended_at: datetime | None = None
    ending: Ending | None = None
    closed: bool = False
    """everything the job held here is given back"""
    inherited: tuple[Run, ...] = ()
    """runs of earlier jobs that this one can take over here"""
    can_inherit: tuple[str, ...] | None = None
    """tasks that it can take over as far as this node is concerned; None: it does not ask"""
    heirs: tuple[str, ...] = ()
    """later jobs that took over runs of this one"""
    home: str = ""
    """the gateway, of several on this database, that has the job's channel and runs its containers"""
    close: Call = Call()
    model_saved: bool = False
    """the job has succeeded, and its models are kept"""
    approval: Approval | None = None
    """None: nobody had to be asked"""
    audit: Audit | None = None
    """None: nobody asked before the job was created"""
    preparation: Preparation | None = None
    """None: all that it needs was here"""
    checks: Mapping[str, str] = field(default_factory=dict)
    """what was the matter with image, storage or transport when the job came; empty for nothing"""
    excluded: tuple[str, ...] = ()
    """parties without which the job runs"""
    heard_at: datetime | None = None
    """when the scheduling node was last heard of; kept coarsely"""
    ask: Call = Call()
    """asks the scheduling node whether it still has the job"""
    warnings: tuple[str, ...] = ()
    pool: Pool | None = None
    """what the job holds here while it runs, for its tasks to borrow from; None: nothing that is counted"""
    notes: tuple[Note, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        return self.spec.job_id

    def noted(self, at: datetime, event: str, by: str = "", **detail: Any) -> Self:
        return replace(self, notes=(*self.notes, Note(at, event, by, detail)))

    def runs_of(self, task_id: str, role: str = "", index: int | None = None) -> tuple[Run, ...]:
        """Return the runs of a task, narrowed to a role and an index where they are given."""
        return tuple(
            run
            for run in self.runs
            if run.task_id == task_id
            and (not role or run.party.role == role)
            and (index is None or run.party.index == index)
        )

    def standing(self, task_name: str = "") -> tuple[Run, ...]:
        """Return the runs whose outputs count: this job's own, else those taken over; of one task where named."""
        own = {run.task_name for run in self.runs}
        found = (*(run for run in self.inherited if run.task_name not in own), *self.runs)
        return tuple(run for run in found if task_name in ("", run.task_name))

    def newest_runs(self, task_name: str) -> tuple[Run, ...]:
        """Return the runs of a task's newest attempt here."""
        newest = next((run.task_id for run in reversed(self.runs) if run.task_name == task_name), "")
        return self.runs_of(newest)
