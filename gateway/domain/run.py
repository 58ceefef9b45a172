"""A participating node's record of a job: what it accepted, who had to agree, and a `Run` per container."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from gateway.domain.dag import ComponentRef
from gateway.domain.resources import Amounts, Pool, Portions, together
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, NodeId, Note, Party
from gateway.domain.states import TASK_OF_RUN, JobStatus, Outcome, RunStatus, TaskStatus


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
    """random; what the container shows on the channel begins with it: `gateway.auth`"""
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

    @property
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


# A job's own pool: what it holds at this node, and what its runs have borrowed of it.
#
# A run borrows when it is launched and returns when it is over; nothing is counted up and down, so nothing can be
# returned twice. The runs of one task borrow together or not at all, tasks in the order in which they were
# accepted unless a later one fits.


def amounts(run: Run) -> Amounts:
    """Return what a run borrows."""
    limits = run.limits
    return Amounts.of(limits.get("cpu"), limits.get("memory"), limits.get("disk"))


def portions(local: LocalJob, run: Run) -> Portions:
    """Return what a run borrows, and where: cores and memory of its engine, disk of the storage.

    A job that was taken in before further engines were counted has all of it from the main one.
    """
    needed = amounts(run)
    if local.pool is None or run.engine not in local.pool.further:
        return Portions({"": needed})
    return Portions.of(Amounts(disk=needed.disk), {run.engine: replace(needed, disk=0)})


def borrowed(local: LocalJob) -> Portions:
    """Return what the job's runs use of its pool now."""
    return together(portions(local, r) for r in local.runs if not r.over and r.status is not RunStatus.WAITING)


def remaining(local: LocalJob) -> Portions:
    """Return what is left of the job's pool."""
    return (local.pool.portions if local.pool else Portions()) - borrowed(local)


def may_launch(local: LocalJob) -> set[str]:
    """Return the ids of the waiting runs for which the job's pool has enough now."""
    waiting = [run for run in local.runs if run.status is RunStatus.WAITING]
    if local.pool is None or not waiting:
        return {run.run_id for run in waiting}
    left = remaining(local)
    found: set[str] = set()
    for task_id in dict.fromkeys(run.task_id for run in waiting):
        runs = [run for run in waiting if run.task_id == task_id]
        needed = together(portions(local, run) for run in runs)
        if needed.fits(left):
            left -= needed
            found.update(run.run_id for run in runs)
    return found


def waits_for(local: LocalJob, run: Run) -> str:
    """Say why a waiting run is not launched yet; empty for one that is about to be, or was."""
    if run.status is not RunStatus.WAITING or local.pool is None or run.run_id in may_launch(local):
        return ""
    waiting = (r for r in local.runs if r.task_id == run.task_id and r.status is RunStatus.WAITING)
    needed, left = together(portions(local, r) for r in waiting), remaining(local)
    busy = [r for r in local.runs if not r.over and r.status is not RunStatus.WAITING]
    said = []
    for engine, one in needed:
        if lacks := one.lacking(left[engine]):
            users = sorted({r.task_name for r in busy if portions(local, r)[engine]})
            of = f"the job's pool at engine {engine}" if engine else "the job's pool"
            free = f"free {left[engine].text(lacks)}, borrowed by {', '.join(users)}"
            said.append(f"needs {one.text(lacks)} of {of}, {free}")
    return "; ".join(said)


# How far a job is as a participating node knows it, for when the scheduling node is not there to be asked.
#
# What that node told last is kept, and never falls; what has succeeded here counts too, if that makes it more.

MOST = 99
"""per cent of a job that has not succeeded"""


def told(local: LocalJob, percent: float) -> LocalJob:
    """Return the job after the scheduling node said how far it is; nothing changes where more was known."""
    known = int(min(max(percent, 0), MOST)) if math.isfinite(percent) else 0
    return replace(local, progress=known) if known > local.progress else local


def of(local: LocalJob) -> int:
    """Return the share of finished tasks in per cent; 100 only once the job has succeeded."""
    if local.ending is not None and local.ending.outcome is Outcome.SUCCEEDED:
        return 100
    latest = {(run.task_name, run.party): run for run in local.standing()}
    failed = {name for (name, _), run in latest.items() if run.status is not RunStatus.SUCCESS}
    done = {name for name, _ in latest} - failed
    tasks = len(local.spec.dag.nodes)
    return max(local.progress, min(MOST, 100 * len(done) // tasks) if tasks else 0)
