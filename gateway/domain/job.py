"""The scheduling node's record of a job: its nodes, its tasks, and its ending."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self

from gateway.domain.records import carry, derived_from, replace
from gateway.domain.spec import Amendment, Call, CallState, Ending, Failure, JobSpec, NodeId, Note
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended, may, merge
from gateway.domain.task_index import TaskIndex, index_of

_MAX_PROGRESS = 99  # per cent; the largest progress of a job that has not succeeded
GRACE = 30.0  # seconds after a node's own deadline in which its report may still arrive


@dataclass(frozen=True)
class Acceptance:
    """Details of a node's acceptance of a job; a peer that follows the standard sends none."""

    # the job needs resources of the node that must be reserved before it starts
    holds: bool = False
    # number of tasks that can run in parallel on this reservation; None: no limit
    tasks_at_once: int | None = None
    waits: bool = False  # the job needs approval there; the node reports the decision
    # seconds until the deadline of the node's decision; None: not reported
    within: float | None = None
    # tasks of the earlier job that the node can inherit; None: it does not report them
    inherited: tuple[str, ...] | None = None
    # the node was requested to audit the job before its creation, and does not have the job yet
    asked_only: bool = False
    # what the node waits for, in its own words, if no person has to decide; else empty
    waits_for: str = ""
    # states of those facilities (image, data, storage, transport) that are not ready, by name
    checks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reservation:
    """The reservation of a job at one node, as the scheduler knows it."""

    acceptance: Acceptance = field(
        default=Acceptance(),
        metadata={"stored": "said"},
    )
    # requests the reservation; OK: the node has granted it; SENT or LOST: it may have granted it
    request: Call = field(
        default=Call(),
        metadata={"stored": "apply"},
    )
    give_back: Call = Call()  # releases the reservation
    waiting_since: datetime | None = None  # when the node first had too little free
    freed_at: datetime | None = None  # when it last reported free capacity


@dataclass(frozen=True)
class Consent:
    """The approval of a job at a node that takes part, as the scheduler knows it."""

    # when the node responded that it decides later; if its decision came first, the time of that
    asked_at: datetime
    until: datetime  # at this time an undecided node counts as refusing
    status: JobStatus = JobStatus.PENDING  # PENDING, then READY or REJECTED for good
    # the job is not created there yet: it is created once the node has agreed
    asked_only: bool = False
    # what the node waits for, in its own words, if no person has to decide; else empty
    waits_for: str = ""
    permit: str = ""  # token of the permit for the job that the node has issued; empty for none

    @property
    def decides_by(self) -> datetime:
        """The node's own deadline, which is earlier than ``until`` by `GRACE`.

        A node without a decision at that time refuses; its report may take `GRACE` more. The
        deadline is never before the request.
        """
        return max(self.until - timedelta(seconds=GRACE), self.asked_at)


@dataclass(frozen=True)
class NodeJob:
    """The scheduler's record of one node's part in the whole job."""

    node: NodeId
    create: Call = Call()
    start: Call = Call()
    stop: Call = Call()
    # when its silence began, by the rule in `scheduling.reachability`; None: it is not silent
    unreachable_since: datetime | None = None
    # the node pushes its states, or did so in an earlier job, so that it is polled rarely
    pushes: bool = False
    reservation: Reservation = field(
        default=Reservation(),
        metadata={"stored": "holding"},
    )
    consent: Consent | None = None  # None: the node needs no approval
    excluded: Failure | None = None  # why the job runs without this optional node
    # seconds that the creation and the start of the job may each take there, with all tries; None:
    # the limits of `Timing`
    call_limit: float | None = None

    @property
    def consent_status(self) -> JobStatus | None:
        """The decision of the node: PENDING, READY or REJECTED; None if it needs no approval."""
        if self.consent is None:
            return None
        return self.consent.status

    @property
    def pending_consent(self) -> Consent | None:
        """The approval of this node that the job still waits for.

        None once the node has decided, and for a node that needs no approval.
        """
        if self.consent_status is JobStatus.PENDING:
            return self.consent
        return None

    @property
    def awaits_approval(self) -> bool:
        """Whether the job still waits for this node's approval.

        False once the node has decided, and for a node that needs no approval.
        """
        return self.pending_consent is not None

    @property
    def refusal(self) -> Failure:
        """Why the node refused to take part; with an empty reason if it has not refused.

        The message of the refusal may begin with the node's id and the reason. The failure has
        fields for both, so that its message leaves them out.
        """
        reason = self.create.reason
        message = self.create.message.removeprefix(f"{self.node}: ")
        message = message.removeprefix(f"{reason}: ")
        return Failure(reason, message, self.node)

    @property
    def asked_only(self) -> bool:
        """Whether the job is not created there yet: the node was only requested to audit it.

        False for a node that needs no approval.
        """
        return self.consent is not None and self.consent.asked_only


@dataclass(frozen=True)
class NodeTask:
    """The scheduler's record of one node's part in a task."""

    node: NodeId
    roles: Mapping[str, TaskStatus]
    start: Call = Call()
    poll: Call = Call()
    stop: Call = Call()
    reported_at: datetime | None = field(
        default=None,
        metadata={"stored": "heard_at"},
    )
    # answered polls since the last news, including the poll that brought the news; the pause
    # between polls grows with this number
    polls: int = 0
    # answered polls in a row that brought no news; logged with the next poll that brings news
    polls_without_news: int = field(
        default=0,
        metadata={"stored": "quiet"},
    )
    denials: int = 0  # polls refused in a row
    unknowns: int = 0  # how often the node did not know the task after a start had been sent

    @cached_property
    def status(self) -> TaskStatus:
        """The merged status of its roles.

        It is the first of FAILED, RUNNING, READY and PENDING that some role has, else SUCCESS.
        """
        return merge(self.roles.values())

    @property
    def open_roles(self) -> dict[str, TaskStatus]:
        """The roles that have not ended at the node, with their statuses; empty if all have."""
        return {role: status for role, status in self.roles.items() if not ended(TASK, status)}

    def failed(self) -> Self:
        """Return the part with each of its open roles failed; an equal part if none is open."""
        failed_roles = dict.fromkeys(self.open_roles, TaskStatus.FAILED)
        return replace(self, roles={**self.roles, **failed_roles})

    @property
    def is_accepted(self) -> bool:
        """Whether the node has accepted the task: by its response, or by a report of its state.

        A report may arrive while the response to the start is lost.
        """
        is_reported = any(status is not TaskStatus.PENDING for status in self.roles.values())
        return is_reported or self.start.state is CallState.OK

    @property
    def over(self) -> bool:
        """Whether the present attempt has ended at the node, or never began there.

        An attempt has ended at the node once each of its roles has.
        """
        was_never_started = self.start.state is CallState.IDLE
        return was_never_started or not self.open_roles


@dataclass(frozen=True)
class Attempt:
    """A failed attempt of a task, which was retried under another id."""

    number: int  # from 0
    task_id: str
    failure: Failure
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Lineage:
    """The origin of inherited outputs: the task that wrote them, and the job in which it ran."""

    job_id: str
    task_id: str


@dataclass(frozen=True)
class Task:
    """The scheduler's record of one task of the flow."""

    name: str
    task_id: str
    status: TaskStatus
    nodes: Mapping[NodeId, NodeTask]
    attempt: int = 0  # number of the present attempt, from 0
    failure: Failure | None = None  # of the present attempt
    # set once the task has to stop at every node, or must never start; the status of the task
    # follows later
    ending: Ending | None = None
    started_at: datetime | None = None  # when the first start of the present attempt was sent
    ended_at: datetime | None = None
    # when the attempt failed, while a retry follows: it is stopped at every node first
    failed_at: datetime | None = field(
        default=None,
        metadata={"stored": "again_from"},
    )
    attempts: tuple[Attempt, ...] = ()  # earlier ones, oldest first
    # origin of the outputs: while the job is PENDING, the task may be inherited from there; later,
    # it was inherited from there. None: the task runs in this job.
    lineage: Lineage | None = None

    def has(self, task_id: str) -> bool:
        """Return whether the id is the task's, of the present attempt or of an earlier one."""
        earlier_ids = [attempt.task_id for attempt in self.attempts]
        return task_id in (self.task_id, *earlier_ids)

    @cached_property
    def reported(self) -> TaskStatus:
        """The status that the nodes report: the merged status of all roles at all nodes.

        It may be ahead of ``status``, which changes with the next step of the scheduler.
        """
        statuses: list[TaskStatus] = []
        for part in self.nodes.values():
            statuses += part.roles.values()
        return merge(statuses)

    @cached_property
    def is_up_to_date(self) -> bool:
        """Whether the task stays as it is until its nodes report something, or it is stopped.

        This is cached, as it is asked for all tasks of a job at each of the job's writes.
        """
        return self.ending is None and not may(TASK, self.status, self.reported)

    @property
    def known_failure(self) -> Failure:
        """The failure of the present attempt; one with the reason FAILED if none was reported.

        It says nothing about whether the attempt has failed: ``failure`` and ``status`` do.
        """
        return self.failure or Failure("FAILED", task=self.name)

    @cached_property
    def begun(self) -> bool:
        """Whether some node was asked to start the present attempt, even if it has not answered."""
        return any(part.start.tries for part in self.nodes.values())

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Values that other modules have derived from this version of the task."""
        return {}

    @property
    def is_under_way(self) -> bool:
        """Whether some node was asked to start the present attempt, and the task has not ended."""
        return self.begun and not ended(TASK, self.status)

    @property
    def is_stopping(self) -> bool:
        """Whether the present attempt has to end at every node.

        It has to because the task is stopped, or because it failed and another attempt follows.
        """
        return self.ending is not None or self.failed_at is not None

    @property
    def amendable(self) -> bool:
        """Whether its parameters may still change: no node was asked to start it, nor has it ended.

        A task that is inherited ends without a start.
        """
        return not self.begun and not ended(TASK, self.status)


@dataclass(frozen=True)
class Suspension:
    """The suspension of a job: no further task is started; running ones continue."""

    by: NodeId
    at: datetime


@dataclass(frozen=True)
class Origin:
    """The job that this one runs again."""

    job_id: str
    start: str  # the task from which on it runs again
    by: NodeId  # the node that requested it
    changed: tuple[str, ...] = ()  # tasks with other parameters
    # changed parameters in the form of ``task_params``; not reported to other nodes, as they may be
    # those of a single party
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """The scheduling node's record of a job."""

    spec: JobSpec
    status: JobStatus
    created_at: datetime
    nodes: Mapping[NodeId, NodeJob]
    tasks: Mapping[str, Task]
    outcome: Outcome | None = None  # set once the job is over
    ending: Ending | None = None  # set once it is decided that the job ends: its nodes are stopped
    started_at: datetime | None = None  # when every node had started it
    ended_at: datetime | None = None
    suspended: Suspension | None = None
    warnings: tuple[str, ...] = ()
    digest: str = ""  # of the submitted body: the same id with another body is a conflict
    origin: Origin | None = None  # set if it runs another job again
    amendments: tuple[Amendment, ...] = ()  # new parameters that hold at every node, oldest first
    user: str = ""  # who submitted it at this node, by token or signature; not sent to others
    # lines for the timeline that the store has not written yet
    notes: tuple[Note, ...] = field(
        default=(),
        compare=False,
    )

    @property
    def active(self) -> list[NodeJob]:
        """The nodes with which the job runs: all but the optional nodes that were excluded."""
        return [node for node in self.nodes.values() if node.excluded is None]

    @property
    def id(self) -> str:
        """The job's id, which is the same at all of its nodes."""
        return self.spec.job_id

    @property
    def refusals(self) -> list[Failure]:
        """Why nodes refused to take part, each in its own words.

        Empty if no node has refused. Excluded nodes are included.
        """
        return [node.refusal for node in self.nodes.values() if node.create.reason]

    def with_note(
        self,
        at: datetime,
        event: str,
        by: str = "",
        **detail: Any,
    ) -> Self:
        """Return the job with one more line for its timeline.

        ``event`` says what happened, and ``by`` names the node or person that caused it; it is
        empty for the scheduler itself. ``detail`` are further values that the line shows.
        """
        note = Note(at, event, by, detail)
        return replace(self, notes=(*self.notes, note))

    def with_node(self, node: NodeJob) -> Self:
        """Return the job with another record of one node, in place of the present one."""
        nodes = {**self.nodes, node.node: node}
        return replace(self, nodes=nodes)

    @derived_from("tasks", "spec")
    def task_index(self) -> TaskIndex:
        """The tasks in groups; the next version of the job gets its index from this one."""
        return index_of(self.spec.dag, self.tasks)

    def with_task(self, task: Task) -> Self:
        """Return the job with another record of one task, in place of the present one."""
        tasks = {**self.tasks, task.name: task}
        job = replace(self, tasks=tasks)
        index = self.task_index.after(self.spec.dag, tasks, self.tasks[task.name])
        carry(job, "task_index", index)
        return job

    def with_part(self, task: str, part: NodeTask) -> Self:
        """Return the job with another record of one node's part in a task.

        ``task`` is the task's name; the part names its node.
        """
        record = self.tasks[task]
        parts = {**record.nodes, part.node: part}
        return self.with_task(replace(record, nodes=parts))

    @property
    def progress(self) -> int:
        """The share of successful tasks in per cent.

        At most `_MAX_PROGRESS` until the job has succeeded, then 100.
        """
        if self.outcome is Outcome.SUCCEEDED:
            return 100
        if not self.tasks:
            return 0
        succeeded = sum(task.status is TaskStatus.SUCCESS for task in self.tasks.values())
        return min(_MAX_PROGRESS, 100 * succeeded // len(self.tasks))
