"""A participating node's record of a job: acceptance, approval, and a `Run` per container."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from gateway.domain.amounts import MAIN, Amounts, AmountsByEngine, Pool
from gateway.domain.attestation import Attestation
from gateway.domain.dag import ComponentRef
from gateway.domain.records import carry, derived_from, replace
from gateway.domain.run_index import EMPTY_INDEX, RunIndex
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
from gateway.domain.states import TASK_OF_RUN, JobStatus, Outcome, RunStatus, TaskStatus

NODE_FOLDER = ""  # name of the storage that every node has, which is a folder

# Metadata of a field that holds a part of a run, such as the run's data. The fields of the part are
# stored as fields of the run itself: see `gateway.store.serialization`.
_FLAT = {"flat": True}


@dataclass(frozen=True)
class Address:
    """The storage, namespace and name of a table, model or report of a node."""

    namespace: str
    name: str
    storage: str = NODE_FOLDER  # name of the storage
    # For a table that was registered without a copy: ``file`` or ``folder``. Its namespace may be a
    # path, and its files may have any name. Empty for any other address.
    in_place: str = field(
        default="",
        compare=False,
    )

    @property
    def dataset_id(self) -> str:
        """The table's id in jobs: ``namespace#name``, whatever its storage."""
        return f"{self.namespace}#{self.name}"

    def as_dict(self) -> dict[str, str]:
        """Return namespace and name for JSON; the storage is the node's own matter."""
        return {
            "namespace": self.namespace,
            "name": self.name,
        }


def job_of(output: Address) -> str:
    """Return the id of the job that wrote an output.

    The namespace of an output is ``<job>-<role>-<index>``.
    """
    return output.namespace.rsplit("-", 2)[0]


@dataclass(frozen=True)
class Exit:
    """How a container exited, as the engine reports it, and the run's missing outputs."""

    code: int  # its exit code
    signal: int | None = None  # the signal that ended it; None if it ended by itself
    oom_killed: bool = False  # the kernel has ended it for lack of memory
    started_at: datetime | None = None
    finished_at: datetime | None = None
    missing_outputs: tuple[str, ...] = ()  # names of the run's outputs that are not in the storage


@dataclass(frozen=True)
class FileSum:
    """The fingerprint of an output's file, taken after its run had succeeded."""

    name: str  # ``data_<n>`` or ``metadata``
    size: int  # bytes
    sha256: str
    output: str = ""  # name of its output in the component's description


@dataclass(frozen=True)
class Reporting:
    """The state of a run last reported to the scheduling node, and the call that reports."""

    status: TaskStatus | None = None  # last reported; None: nothing was reported yet
    call: Call = Call()  # reports the run's present state, if it differs from ``status``


@dataclass(frozen=True)
class Software:
    """The software of a run: its component, and the image that implements the component."""

    component: ComponentRef
    image: str
    # name of the older conventions that the image expects (``metadata.profile``); empty: none
    profile: str = field(
        default="",
        metadata={"stored": "image_profile"},
    )
    # values from its provider's registration: control_port, n_threads, chunk_size
    declared: Mapping[str, int] = field(default_factory=dict)
    roles: tuple[str, ...] = ()  # roles that take part in the task
    # the vendor's result codes -> their meaning
    results: Mapping[str, str] = field(default_factory=dict)
    # digest of the approved image; empty: no image was approved when the run was planned
    expected_digest: str = ""
    # digest of the image from which the container was started; empty: the container was not started
    # yet, or its engine has no digest of the image
    digest: str = field(
        default="",
        metadata={"stored": "image_digest"},
    )


@dataclass(frozen=True)
class RunData:
    """The parameters of a run, and the addresses of the data that it reads and writes."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    # name in the component's description -> address; so in ``outputs``
    inputs: Mapping[str, Address] = field(default_factory=dict)
    outputs: Mapping[str, Address] = field(default_factory=dict)
    # of outputs: key in the flow -> name in the component's description
    output_keys: Mapping[str, str] = field(default_factory=dict)
    # names in the description of outputs that later tasks of the same party read
    needed_outputs: tuple[str, ...] = ()
    checkpoint: Address | None = None  # folder for checkpoints of the task; None: the job has none
    # folder with checkpoints of an earlier job, with which the run begins; None: without any
    checkpoint_from: Address | None = None

    def output(self, key: str) -> Address:
        """Return the address of the output with this key in the flow."""
        return self.outputs[self.output_keys[key]]

    def keys_of(self, names: Collection[str]) -> list[str]:
        """Return the keys in the flow of outputs that are given by their names."""
        return [key for key, name in self.output_keys.items() if name in names]

    def outputs_by_key(self) -> dict[str, Address]:
        """Return the addresses of all outputs by their keys in the flow."""
        return {key: self.outputs[name] for key, name in self.output_keys.items()}


@dataclass(frozen=True)
class ContainerReport:
    """The last state and result that a container reported.

    The result may also come from the last line of the container's log.
    """

    # None: the container has reported no state yet
    status: TaskStatus | None = field(
        default=None,
        metadata={"stored": "reported"},
    )
    # time of the last report; None: no report has come yet
    at: datetime | None = field(
        default=None,
        metadata={"stored": "reported_at"},
    )
    result_code: str = ""
    result_message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the container reported its success or failure."""
        return self.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)


@dataclass(frozen=True)
class Sealing:
    """The fingerprinting of the models among a run's outputs, once the run has succeeded."""

    # outputs that are models, by their names in the component's description
    outputs: tuple[str, ...] = field(
        default=(),
        metadata={"stored": "to_seal"},
    )
    # computes the fingerprints of these outputs
    call: Call = field(
        default=Call(),
        metadata={"stored": "seal"},
    )
    files: tuple[FileSum, ...] = ()  # the fingerprints; empty before they are computed


@dataclass(frozen=True)
class Run:
    """One container run of (task, role, index, attempt) on this node."""

    run_id: str  # random; the token in the callback address given to the container begins with it
    name: str  # deterministic: the container's name
    task_id: str
    task_name: str
    party: Party
    software: Software = field(metadata=_FLAT)
    created_at: datetime
    data: RunData = field(
        default=RunData(),
        metadata=_FLAT,
    )
    # cpu in cores, memory and disk in bytes, pids, and gpu if it has any; None: no limit by the job
    # or the node's defaults, so that only the ceiling applies that follows from the engine
    limits: Mapping[str, float | None] = field(default_factory=dict)
    # cpu, memory, disk -> the origin of the limit, such as ``guest.0`` or ``site default``
    limit_origins: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""  # name of its engine; empty: the main one
    attempt: int = 0  # from 0, as counted by this node
    owner: str = ""  # id of the gateway that runs the container; empty: the node's only one
    of_job: str = ""  # for an inherited run: id of the earlier job that it belongs to
    token: str = ""  # random; the container's token on the channel begins with it: `gateway.auth`

    # The state of the run.
    status: RunStatus = RunStatus.WAITING
    ended_at: datetime | None = None
    failure: Failure | None = None  # None unless it has failed
    no_callback: bool = False  # it has succeeded without any report
    warnings: tuple[str, ...] = ()  # about its inputs and outputs

    # Its container, from the launch to the removal.
    launch: Call = Call()  # starts its container
    started_at: datetime | None = None  # when its container was started
    granted: tuple[str, ...] = ()  # extra privileges of its container, by the admin's settings
    probe_at: datetime | None = None  # when its container is inspected next
    away_at: datetime | None = None  # since when the engine has not responded; None: it responds
    container_report: ContainerReport = field(
        default=ContainerReport(),
        metadata=_FLAT,
    )
    # the report of its TEE; None: the node demands none
    attestation: Attestation | None = None
    exit: Exit | None = None  # None: no exit of its container is known
    stop_at: datetime | None = None  # when its stop was requested
    stop: Call = Call()  # stops its container
    collect: Call = Call()  # saves its logs and removes its container

    sealing: Sealing = field(
        default=Sealing(),
        metadata=_FLAT,
    )
    reporting: Reporting = field(
        default=Reporting(),
        metadata={"stored": "told"},
    )

    @property
    def over(self) -> bool:
        """Whether it has ended for good: it has succeeded or failed.

        The run's logs may still have to be saved, its container removed, its model fingerprinted.
        """
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED)

    @property
    def unsealed(self) -> bool:
        """Whether it has succeeded, and its model's files still have to be fingerprinted.

        False for a run that leaves no model.
        """
        has_model = bool(self.sealing.outputs)
        is_sealed = self.sealing.call.completed
        return self.status is RunStatus.SUCCESS and has_model and not is_sealed

    @property
    def lacks_attestation(self) -> bool:
        """Whether the node demands a report of the run's TEE, and has verified none."""
        return self.attestation is not None and self.attestation.verified_at is None

    @property
    def reported_status(self) -> TaskStatus:
        """The status reported to other nodes: success only once its model is fingerprinted."""
        if self.unsealed:
            return TaskStatus.RUNNING
        return TASK_OF_RUN[self.status]

    @cached_property
    def done_with(self) -> bool:
        """Whether nothing is left to do: the run is over, reported, and its container removed.

        Such a run needs no further step of the executor.
        """
        # Not `reported_status`: that is RUNNING until the run's model is fingerprinted.
        is_reported = self.reporting.status is TASK_OF_RUN[self.status]
        is_removed = self.collect.state is CallState.OK
        return self.over and is_removed and is_reported

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Values that other modules have derived from this version of the run."""
        return {}


@dataclass(frozen=True)
class Approval:
    """The approval of a job by a person here; decided once."""

    since: datetime  # when the person was asked
    until: datetime  # silence until this time is a refusal
    decision: JobStatus = JobStatus.PENDING  # PENDING, then READY or REJECTED
    by: str = ""  # the person as the admin API names them; empty if no person has decided
    failure: Failure | None = None  # why it was refused, as every node sees it
    decided_at: datetime | None = None
    confirm: Call = Call()  # reports the decision to the scheduling node


@dataclass(frozen=True)
class Preparation:
    """Images that are pulled here before the job is READY.

    Until then the job is PENDING, like a job that waits for approval.
    """

    images: Mapping[str, str]  # image -> name of its engine
    since: datetime  # when the job began to wait for the images
    until: datetime  # if an image is still missing at this time, the job is rejected
    agreed: bool = True  # False while a person still has to approve the job
    fetch: Call = Call()  # pulls the images; settled once all are here, or one cannot be pulled
    progress: str = ""  # progress of the pull, in words


@dataclass(frozen=True)
class Audit:
    """Another node's question whether this node takes part in a job, before the job is created.

    It is the audit of the standard, not an entry of the audit log.
    """

    id: str  # id of the audit, chosen by the requesting node
    # name and project as the requesting node sent them
    name: str = ""
    project_id: str = ""
    created: bool = False  # True once the job is created here
    # Token of the permit that an approval issues to the requesting node; empty once the job is
    # created, which uses the permit up, and for audits of earlier versions.
    permit: str = ""


@dataclass(frozen=True)
class Agreement:
    """The statement of a job's initiator that this node has accepted."""

    bundle: Mapping[str, Any]  # the statement in its envelope
    key: str  # the public key of the signature: base64 of SubjectPublicKeyInfo
    # component -> digest of its image approved here
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StopRequest:
    """The request of a person here that the scheduling node stop a job."""

    by: str  # the person, or the node if the person is not known
    at: datetime


@dataclass(frozen=True)
class LocalJob:
    """A participating node's record of a job."""

    spec: JobSpec
    node: NodeId
    status: JobStatus
    created_at: datetime
    digest: str  # fingerprint of the job as submitted: `gateway.jobs.fingerprint`
    runs: tuple[Run, ...] = ()
    ended_at: datetime | None = None
    ending: Ending | None = None  # None while it goes on, or if nothing shows how it ended
    closed: bool = False  # everything that the job held here is released
    inherited: tuple[Run, ...] = ()  # runs of earlier jobs that this one can inherit here
    # names of the tasks that this node offers to inherit; None: the job inherits nothing
    can_inherit: tuple[str, ...] | None = None
    # later jobs that inherited runs of this one
    inheriting_jobs: tuple[str, ...] = field(
        default=(),
        metadata={"stored": "heirs"},
    )
    # which gateway on this database has the job's channel and runs its containers; empty: any
    home: str = ""
    close: Call = Call()  # releases everything that the job holds here
    # True once the job has succeeded and its models are entered among the node's models
    model_saved: bool = False
    approval: Approval | None = None  # None: no approval was needed
    audit: Audit | None = None  # None: there was no audit before the job was created
    agreement: Agreement | None = None  # None: its initiator has signed nothing
    preparation: Preparation | None = None  # None: everything that it needs was here
    # image, storage or transport -> its problem when the job was created; empty for none
    checks: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()  # labels of parties without which the job runs
    # when the scheduling node last sent anything; stored coarsely
    last_contact: datetime | None = field(
        default=None,
        metadata={"stored": "heard_at"},
    )
    ask: Call = Call()  # asks the scheduling node whether the job still exists there
    # asks the scheduling node to stop the job, as it was silent when people here stopped the job;
    # None: not needed
    stop_call: Call | None = field(
        default=None,
        metadata={"stored": "wish"},
    )
    # the request of a person here to stop the job, which explains the stop that then arrives from
    # the scheduling node; None: no request
    stop_request: StopRequest | None = None
    # asks the scheduling node how the job ended, as its stop did not tell; None: not asked
    inquiry: Call | None = None
    warnings: tuple[str, ...] = ()
    run_warnings: int = 0  # number of the warnings of its runs, which lists show after a success
    # per cent, at most `MAX_UNFINISHED`: the largest number that the scheduling node has reported
    progress: int = 0
    pool: Pool | None = None  # amounts to reserve here for its tasks; None: it needs none
    # new parameters that the scheduling node has offered; only those in ``amendments`` apply
    offered: tuple[Amendment, ...] = ()
    # ids of the offered parameters in force, which starts of tasks have named
    amendments: tuple[str, ...] = ()
    notes: tuple[Note, ...] = field(
        default=(),
        compare=False,
    )

    @property
    def id(self) -> str:
        """The job's id, which is the same at all of its nodes."""
        return self.spec.job_id

    @derived_from("runs")
    def run_index(self) -> RunIndex:
        """The positions of the runs; the next version of the job gets its index from this one."""
        return EMPTY_INDEX.extended(self.runs)

    @property
    def open_runs(self) -> list[Run]:
        """The runs that still need steps of the executor."""
        return [self.runs[position] for position in self.run_index.open]

    def run(self, run_id: str) -> Run | None:
        """Return a run of the job by its id; None if it is unknown."""
        position = self.run_index.by_id.get(run_id)
        if position is None:
            return None
        return self.runs[position]

    def with_run(self, run: Run) -> Self:
        """Return the job with another version of a run that it has, in place of the present one."""
        position = self.run_index.by_id[run.run_id]
        runs = (*self.runs[:position], run, *self.runs[position + 1 :])
        local = replace(self, runs=runs)
        carry(local, "run_index", self.run_index.after_change(position, run))
        return local

    def with_new_runs(self, new_runs: Sequence[Run]) -> Self:
        """Return the job with further runs, behind the others."""
        local = replace(self, runs=(*self.runs, *new_runs))
        carry(local, "run_index", self.run_index.extended(new_runs))
        return local

    @property
    def own_failure(self) -> Failure | None:
        """The first failure of a task's last run here, other than a stop; None without one.

        Failures of earlier attempts do not count, as a later attempt may have succeeded.
        """
        for run in latest_runs(self.runs):
            failure = run.failure
            if failure is not None and failure.reason != "STOPPED":
                return failure
        return None

    @property
    def is_ending_inferred(self) -> bool:
        """Whether the recorded ending was inferred, as the scheduling node has not reported it.

        False for a job without an inquiry: its ending came with the stop. A completed inquiry with
        a message is one whose response named no ending.
        """
        if self.inquiry is None:
            return False
        has_ending = self.inquiry.state is CallState.OK and self.inquiry.message == ""
        return not has_ending

    @property
    def expected_runs(self) -> int:
        """The number of runs of tasks that have not begun here, if this node plays all their roles.

        Tasks that are skipped or inherited count, too: it is the most that may come.
        """
        begun = {run.task_name for run in self.runs}
        remaining = [task for task in self.spec.dag.nodes if task.name not in begun]
        parties = self.spec.parties_at(self.node)
        return len(remaining) * len(parties)

    def with_note(
        self,
        at: datetime,
        event: str,
        by: str = "",
        **detail: Any,
    ) -> Self:
        """Return the job with one more line for its timeline.

        ``event`` says what happened, and ``by`` names the node or person that caused it; it is
        empty for this node itself. ``detail`` are further values that the line shows.
        """
        note = Note(at, event, by, detail)
        return replace(self, notes=(*self.notes, note))

    def runs_of(
        self,
        task_id: str,
        role: str = "",
        index: int | None = None,
    ) -> tuple[Run, ...]:
        """Return the runs of a task's attempt, optionally of one role or index only.

        ``task_id`` is the id of the attempt. An empty role means all roles, and None all indices.
        Empty for an attempt that is not known here.
        """
        runs = []
        for position in self.run_index.by_task.get(task_id, ()):
            run = self.runs[position]
            is_role = role in ("", run.party.role)
            is_index = index in (None, run.party.index)
            if is_role and is_index:
                runs.append(run)
        return tuple(runs)

    def runs_that_count(self, task_name: str = "") -> tuple[Run, ...]:
        """Return the runs whose outputs count, optionally of one task only.

        For a task with runs of this job, these runs count, otherwise the inherited ones. An empty
        name means all tasks.
        """
        own_tasks = {run.task_name for run in self.runs}
        runs = [run for run in self.inherited if run.task_name not in own_tasks]
        runs += self.runs
        return tuple(run for run in runs if task_name in ("", run.task_name))

    def newest_runs(self, task_name: str) -> tuple[Run, ...]:
        """Return the runs of a task's newest attempt here; empty if it never ran here."""
        for run in reversed(self.runs):
            if run.task_name == task_name:
                return self.runs_of(run.task_id)
        return ()


def latest_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the last run of each task and party.

    ``runs`` are in the order of the attempts. The result is in the order of the first runs.
    """
    latest = {(run.task_name, run.party): run for run in runs}
    return list(latest.values())


# ---------------------------------------------------------------- a job's own pool
#
# A run borrows its amounts from its launch until it is over. There is no counter that could go
# wrong: the rest is always the pool minus the amounts of the runs under way. The runs of one task
# are launched together or not at all, in the order in which their tasks were accepted, except that
# a later task may go ahead if it fits.


def amounts(run: Run) -> Amounts:
    """Return the amounts that a run borrows from the job's pool; 0 for kinds without a limit."""
    limits = run.limits
    return Amounts.of(
        cpu=limits.get("cpu"),
        memory=limits.get("memory"),
        disk=limits.get("disk"),
        gpu=limits.get("gpu"),
    )


def amounts_by_engine(local: LocalJob, run: Run) -> AmountsByEngine:
    """Return the amounts that a run borrows from the job's pool, by engine.

    The disk always counts at the main engine. The other amounts count at the run's engine if the
    job's pool lists it, and otherwise at the main engine: pools stored by older releases list no
    further engines, and count all amounts at the main one.
    """
    needed = amounts(run)
    if local.pool is None or run.engine not in local.pool.further:
        return AmountsByEngine({MAIN: needed})
    main = Amounts(disk=needed.disk)
    further = replace(needed, disk=0)
    return AmountsByEngine.of(main, {run.engine: further})


def borrowed(local: LocalJob) -> AmountsByEngine:
    """Return the amounts of the job's pool that its runs borrow now, by engine.

    Runs borrow from their launch until they are over.
    """
    return _sum_of_runs(local, _borrowers(local))


def remaining(local: LocalJob) -> AmountsByEngine:
    """Return the job's pool minus the amounts that its runs borrow, by engine.

    A job without a pool counts as having a pool of 0, so that its rest is 0 or negative.
    """
    total = AmountsByEngine()
    if local.pool is not None:
        total = local.pool.by_engine
    return total - borrowed(local)


def may_launch(local: LocalJob) -> set[str]:
    """Return the ids of the waiting runs for which the job's pool has enough now.

    All runs of a task are launched together or none; a later task may go ahead of one that does not
    fit. Without a pool every waiting run may be launched.
    """
    free = remaining(local)
    run_ids: set[str] = set()
    for runs in _waiting_by_task(local).values():
        needed = _sum_of_runs(local, runs)
        if local.pool is None or needed.fits(free):
            free -= needed
            run_ids.update(run.run_id for run in runs)
    return run_ids


def waits_for(local: LocalJob, run: Run) -> str:
    """Return in words the shortage that keeps a waiting run from its launch.

    Empty for a run that may be launched, or was launched before.
    """
    if run.status is not RunStatus.WAITING or run.run_id in may_launch(local):
        return ""
    task_runs = _waiting_by_task(local)[run.task_id]  # runs of a task are launched together
    free = remaining(local)
    shortages = []
    for engine, needed in _sum_of_runs(local, task_runs):
        kinds = needed.lacking(free[engine])
        if kinds:
            shortages.append(_shortage(local, engine, needed.text(kinds), free[engine].text(kinds)))
    return "; ".join(shortages)


def _shortage(
    local: LocalJob,
    engine: str,
    needed: str,
    free: str,
) -> str:
    """Describe a shortage at an engine, with the tasks that borrow amounts there.

    ``needed`` and ``free`` are amounts in words, of the kinds that are short. ``engine`` is empty
    for the main engine.
    """
    borrowers = _borrowers(local)
    users = {run.task_name for run in borrowers if amounts_by_engine(local, run)[engine]}
    rest = f"free {free}, borrowed by {', '.join(sorted(users))}"
    if engine:
        return f"needs {needed} of the job's pool at engine {engine}, {rest}"
    return f"needs {needed} of the job's pool, {rest}"


def _borrowers(local: LocalJob) -> list[Run]:
    """Return the runs that borrow from the pool: launched, and not over."""
    borrowing = (RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.STOPPING)
    return [run for run in local.open_runs if run.status in borrowing]


def _waiting_by_task(local: LocalJob) -> dict[str, list[Run]]:
    """Return the waiting runs by task id, in the order in which the tasks were accepted.

    Tasks without a waiting run are left out.
    """
    waiting: dict[str, list[Run]] = {}
    for run in local.open_runs:
        if run.status is RunStatus.WAITING:
            waiting.setdefault(run.task_id, []).append(run)
    return waiting


def _sum_of_runs(local: LocalJob, runs: Iterable[Run]) -> AmountsByEngine:
    """Return the amounts that runs borrow together, by engine."""
    total = AmountsByEngine()
    for run in runs:
        total += amounts_by_engine(local, run)
    return total


# ---------------------------------------------------------------- progress

MAX_UNFINISHED = 99  # per cent; the largest progress of a job that has not succeeded


def with_progress(local: LocalJob, percent: float) -> LocalJob:
    """Return the job with the progress that the scheduling node reported, if that is larger.

    ``percent`` is limited to the range from 0 to `MAX_UNFINISHED`; infinity and NaN are ignored.
    """
    if not math.isfinite(percent):
        return local
    progress = int(min(max(percent, 0), MAX_UNFINISHED))
    if progress <= local.progress:
        return local
    return replace(local, progress=progress)


def progress_of(local: LocalJob) -> int:
    """Return the progress of a job in per cent; 100 only once the job has succeeded.

    It is the larger of two numbers: the share of tasks that have succeeded here, and the scheduling
    node's last report, which also counts tasks of other nodes.
    """
    if local.ending is not None and local.ending.outcome is Outcome.SUCCEEDED:
        return 100
    total = len(local.spec.dag.nodes)
    if not total:
        return local.progress
    share = 100 * _number_done(local) // total
    return max(local.progress, min(MAX_UNFINISHED, share))


def _number_done(local: LocalJob) -> int:
    """Return how many tasks have succeeded at all of their parties here.

    Inherited runs count too. Of several runs of a party the latest one counts.
    """
    tasks = set()
    unfinished = set()
    for run in latest_runs(local.runs_that_count()):
        tasks.add(run.task_name)
        if run.status is not RunStatus.SUCCESS:
            unfinished.add(run.task_name)
    return len(tasks - unfinished)
