"""A participating node's record of a job: what it accepted, who approved it, and a `Run` per container."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from gateway.domain.dag import ComponentRef
from gateway.domain.resources import Amounts, Pool, Portions
from gateway.domain.spec import (
    Amendment,
    Call,
    CallState,
    Ending,
    Failure,
    JobSpec,
    NodeId,
    Note,
    Party,
)
from gateway.domain.states import TASK_OF_RUN, JobStatus, Outcome, RunStatus, TaskStatus, replace


@dataclass(frozen=True)
class Address:
    """Where a table, model or report lies in a node's storage."""

    namespace: str
    name: str
    storage: str = ""  # which of the node's named storages; empty: the folder that every node has
    in_place: str = field(default="", compare=False)
    """``file`` or ``folder`` for a table that was registered where it lies: the namespace may be a path, and
    files may have any name"""

    @property
    def dataset_id(self) -> str:
        """The id by which a job asks for a table there."""
        return f"{self.namespace}#{self.name}"

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return {"namespace": self.namespace, "name": self.name}


def job_of(output: Address) -> str:
    """Return the id of the job whose output lies at an address, if that is an output's."""
    return output.namespace.rsplit("-", 2)[0]


@dataclass(frozen=True)
class Exit:
    """How a container exited, as the engine reports it."""

    code: int
    signal: int | None = None  # by which it died; None: by none
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    missing_outputs: tuple[
        str, ...
    ] = ()  # outputs that the job names and that are not in the storage


@dataclass(frozen=True)
class FileSum:
    """A file of an output, as it lay in the storage when its run had succeeded."""

    name: str  # ``data_<n>`` or ``metadata``
    size: int  # bytes
    sha256: str
    output: str = ""  # the output that it belongs to, by its name in the component's description


@dataclass(frozen=True)
class Reporting:
    """The state of a run last reported to the scheduling node, and the call under way."""

    status: TaskStatus | None = None
    call: Call = Call()


@dataclass(frozen=True)
class Run:
    """One container run of (task, role, index, attempt) on this node."""

    run_id: str  # random; the token in the callback address given to the container begins with it
    name: str  # deterministic: the container's name
    task_id: str
    task_name: str
    party: Party
    component: ComponentRef
    image: str
    created_at: datetime
    image_profile: str = (
        ""  # metadata.profile: which older forms of storage and addresses its environment has
    )
    declared: Mapping[str, int] = field(default_factory=dict)
    """what its registration says beside the image: control_port, n_threads, chunk_size"""
    engine: str = ""  # which of several engines runs it; empty: the main one
    attempt: int = 0  # from 0, of this node's own counting
    status: RunStatus = RunStatus.WAITING
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Address] = field(
        default_factory=dict
    )  # name in the component's description -> address
    outputs: Mapping[str, Address] = field(
        default_factory=dict
    )  # name in the component's description -> address
    output_keys: Mapping[str, str] = field(default_factory=dict)
    """key in the flow -> name in the component's description"""
    checkpoint: Address | None = (
        None  # the folder for checkpoints of the task; None: the job wants none
    )
    checkpoint_from: Address | None = None  # where an earlier job left its checkpoints
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """cpu in cores, memory and disk in bytes, pids; None: unlimited"""
    limit_origins: Mapping[str, str] = field(default_factory=dict)
    """cpu, memory, disk -> where the limit comes from, such as ``guest.0`` or ``site default``"""
    roles: tuple[str, ...] = ()  # roles that take part in the task
    results: Mapping[str, str] = field(
        default_factory=dict
    )  # the vendor's result codes and what they mean
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
    reporting: Reporting = field(default=Reporting(), metadata={"stored": "told"})
    image_digest: str = ""
    expected_digest: str = ""  # of the image that was approved; empty: any
    granted: tuple[
        str, ...
    ] = ()  # privileges of its container beyond the usual ones, by the admin's settings
    away_at: datetime | None = None  # since when the engine has not responded
    token: str = ""  # random; the container's token on the channel begins with it: `gateway.auth`
    owner: str = ""  # gateway instance and engine that own the container
    of_job: str = ""  # the earlier job that it belongs to, where its outputs are inherited
    to_seal: tuple[str, ...] = ()
    """outputs that are models, by their names in the description: fingerprinted when the run has succeeded"""
    seal: Call = Call()
    files: tuple[FileSum, ...] = ()  # what the sealed outputs consist of
    warnings: tuple[str, ...] = ()  # about what it reads and leaves

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED)

    @property
    def unsealed(self) -> bool:
        """Whether it has succeeded, and its model's files still have to be fingerprinted."""
        return self.status is RunStatus.SUCCESS and bool(self.to_seal) and not self.seal.completed

    @property
    def reported_status(self) -> TaskStatus:
        """The status reported to other nodes: success only once its model is fingerprinted."""
        return TaskStatus.RUNNING if self.unsealed else TASK_OF_RUN[self.status]

    @property
    def done_with(self) -> bool:
        """Whether nothing is left to do: it has ended, is reported, and its container is removed."""
        reported = self.reporting.status is TASK_OF_RUN[self.status]
        return self.over and self.collect.state is CallState.OK and reported


@dataclass(frozen=True)
class Approval:
    """The approval of a job by a person here; decided once."""

    since: datetime
    until: datetime  # silence by then is a refusal
    decision: JobStatus = JobStatus.PENDING  # PENDING, then READY or REJECTED
    by: str = ""  # the person as the admin API names them; empty for the deadline
    failure: Failure | None = None  # why it was refused, as every node sees it
    decided_at: datetime | None = None
    confirm: Call = Call()  # reports the decision to the scheduling node


@dataclass(frozen=True)
class Preparation:
    """Images that are pulled here before the job is READY; it waits as it does for an `Approval`."""

    images: Mapping[str, str]  # image -> name of the engine that is to have it
    since: datetime
    until: datetime  # what is not here by then rejects the job
    agreed: bool = True  # no approval is needed any more
    fetch: Call = Call()  # settled once everything is here, or cannot be pulled
    progress: str = ""  # how far it has come, in words


@dataclass(frozen=True)
class Audit:
    """The request of another node whether this one takes part in a job that it has not created yet."""

    id: str  # made by the requesting node
    name: str = ""
    project_id: str = ""
    created: bool = False  # the job has been created since


@dataclass(frozen=True)
class Agreement:
    """What a job's initiator has signed, as this node has accepted it."""

    bundle: Mapping[str, Any]  # the statement in its envelope
    key: str  # the public key that has signed it: base64 of SubjectPublicKeyInfo
    images: Mapping[str, str] = field(
        default_factory=dict
    )  # component -> digest of its image approved here


@dataclass(frozen=True)
class StopRequest:
    """The request of people here that another node stop a job."""

    by: str  # the person, or the node where people do not say who they are
    at: datetime


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
    closed: bool = False  # everything that the job held here is released
    inherited: tuple[Run, ...] = ()  # runs of earlier jobs that this one can inherit here
    can_inherit: tuple[str, ...] | None = None
    """tasks that it can inherit as far as this node is concerned; None: it inherits nothing"""
    heirs: tuple[str, ...] = ()  # later jobs that inherited runs of this one
    home: str = ""  # the gateway, of several on this database, that has the job's channel and runs its containers
    close: Call = Call()
    model_saved: bool = False  # the job has succeeded, and its models are kept
    approval: Approval | None = None  # None: no approval was needed
    audit: Audit | None = None  # None: there was no audit before the job was created
    agreement: Agreement | None = None  # None: its initiator has signed nothing
    preparation: Preparation | None = None  # None: everything that it needs was here
    checks: Mapping[str, str] = field(default_factory=dict)
    """problems of image, storage or transport when the job was created; empty for none"""
    excluded: tuple[str, ...] = ()  # parties without which the job runs
    last_contact: datetime | None = field(default=None, metadata={"stored": "heard_at"})
    """when the scheduling node last sent anything; kept coarsely"""
    ask: Call = Call()  # asks the scheduling node whether the job still exists there
    wish: Call | None = (
        None  # has the scheduling node, silent when people here stopped the job, stop it
    )
    stop_request: StopRequest | None = None
    inquiry: Call | None = (
        None  # asks the scheduling node, whose stop did not say so, how the job ended
    )
    warnings: tuple[str, ...] = ()
    progress: int = (
        0  # per cent that the scheduling node reported last, while the job had not succeeded
    )
    pool: Pool | None = (
        None  # what the job has reserved here for its tasks; None: nothing that is counted
    )
    offered: tuple[
        Amendment, ...
    ] = ()  # new parameters that the scheduling node may have the job go on with
    amendments: tuple[
        str, ...
    ] = ()  # ids of those that hold, as far as a task's start has named them
    notes: tuple[Note, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.job_id

    @property
    def own_failure(self) -> Failure | None:
        """Why a task failed here for a cause of its own, and not as it was stopped."""
        last = {(run.task_name, run.party): run for run in self.runs}.values()
        return next(
            (run.failure for run in last if run.failure and run.failure.reason != "STOPPED"), None
        )

    @property
    def is_ending_inferred(self) -> bool:
        """Whether the scheduling node has not told how the job ended, so that what is recorded was inferred."""
        if self.inquiry is None:
            return False
        return self.inquiry.state is not CallState.OK or self.inquiry.message != ""

    def noted(
        self,
        at: datetime,
        event: str,
        by: str = "",
        **detail: Any,
    ) -> Self:
        """Return the job with one more line for its timeline."""
        return replace(self, notes=(*self.notes, Note(at, event, by, detail)))

    def runs_of(
        self,
        task_id: str,
        role: str = "",
        index: int | None = None,
    ) -> tuple[Run, ...]:
        """Return the runs of a task, narrowed to a role and an index where they are given."""
        return tuple(
            run
            for run in self.runs
            if run.task_id == task_id
            and (not role or run.party.role == role)
            and (index is None or run.party.index == index)
        )

    def standing(self, task_name: str = "") -> tuple[Run, ...]:
        """Return the runs whose outputs count: this job's own, else inherited ones; of one task where named."""
        own = {run.task_name for run in self.runs}
        found = (*(run for run in self.inherited if run.task_name not in own), *self.runs)
        return tuple(run for run in found if task_name in ("", run.task_name))

    def newest_runs(self, task_name: str) -> tuple[Run, ...]:
        """Return the runs of a task's newest attempt here."""
        newest = next(
            (run.task_id for run in reversed(self.runs) if run.task_name == task_name), ""
        )
        return self.runs_of(newest)


# A job's own pool: what it holds at this node, and what its runs have borrowed of it.
#
# A run borrows when it is launched and returns when it is over; nothing is counted up and down, so nothing can be
# returned twice. The runs of one task borrow together or not at all, tasks in the order in which they were
# accepted unless a later one fits.


def amounts(run: Run) -> Amounts:
    """Return what a run borrows."""
    limits = run.limits
    return Amounts.of(
        limits.get("cpu"), limits.get("memory"), limits.get("disk"), limits.get("gpu")
    )


def portions(local: LocalJob, run: Run) -> Portions:
    """Return what a run borrows, and where: cores, memory and GPUs of its engine, disk of the storage.

    A job that was taken in before further engines were counted has all of it from the main one.
    """
    needed = amounts(run)
    if local.pool is None or run.engine not in local.pool.further:
        return Portions({"": needed})
    return Portions.of(Amounts(disk=needed.disk), {run.engine: replace(needed, disk=0)})


def borrowed(local: LocalJob) -> Portions:
    """Return what the job's runs use of its pool now."""
    return sum(
        (
            portions(local, r)
            for r in local.runs
            if not r.over and r.status is not RunStatus.WAITING
        ),
        Portions(),
    )


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
        needed = sum((portions(local, run) for run in runs), Portions())
        if needed.fits(left):
            left -= needed
            found.update(run.run_id for run in runs)
    return found


def waits_for(local: LocalJob, run: Run) -> str:
    """Return why a waiting run is not launched yet; empty for one that is about to be, or was."""
    if run.status is not RunStatus.WAITING or local.pool is None or run.run_id in may_launch(local):
        return ""
    waiting = (r for r in local.runs if r.task_id == run.task_id and r.status is RunStatus.WAITING)
    needed, left = sum((portions(local, r) for r in waiting), Portions()), remaining(local)
    busy = [r for r in local.runs if not r.over and r.status is not RunStatus.WAITING]
    lines = []
    for engine, one in needed:
        if lacks := one.lacking(left[engine]):
            users = sorted({r.task_name for r in busy if portions(local, r)[engine]})
            of = f"the job's pool at engine {engine}" if engine else "the job's pool"
            free = f"free {left[engine].text(lacks)}, borrowed by {', '.join(users)}"
            lines.append(f"needs {one.text(lacks)} of {of}, {free}")
    return "; ".join(lines)


# The progress of a job as a participating node knows it: what the scheduling node reported last, or what has
# succeeded here where that is more.

MOST = 99
"""per cent of a job that has not succeeded"""


def with_progress(local: LocalJob, percent: float) -> LocalJob:
    """Return the job with the progress that the scheduling node reported; it never falls."""
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
