"""A participating node's record of a job: what it accepted, who had to agree, and a `Run` per container."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from gateway.domain.amounts import Pool
from gateway.domain.dag import ComponentRef
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, NodeId, Note, Party
from gateway.domain.states import TASK_OF_RUN, JobStatus, RunStatus, TaskStatus


@dataclass(frozen=True)
class Address:
    """Where a table, model or report lies in a node's storage."""

    namespace: str
    name: str

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return {"namespace": self.namespace, "name": self.name}


def job_of(output: Address) -> str:
    """Return the id of the job whose output lies at an address, if that is an output's."""
    return output.namespace.rsplit("-", 2)[0]


@dataclass(frozen=True)
class Exit:
    """How a container ended, as the engine tells it."""

    code: int
    signal: int | None = None
    """by which it died; None: by none"""
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
    """bytes"""
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
    """random; the token in the callback address handed to the container begins with it"""
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
    """from 0, of this node's own counting"""
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
    """random; what the container shows on the channel begins with it: `gateway.run_tokens`"""
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
        """Whether it has ended for good."""
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
    progress: int = 0
    """per cent that the scheduling node told last, while the job had not succeeded"""
    pool: Pool | None = None
    """what the job holds here while it runs, for its tasks to borrow from; None: nothing that is counted"""
    notes: tuple[Note, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.job_id

    def noted(self, at: datetime, event: str, by: str = "", **detail: Any) -> Self:
        """Return the job with one more line for its timeline."""
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
