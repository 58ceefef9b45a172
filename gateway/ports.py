"""The interfaces between the core and its adapters.

`SchedulerApi` and `ParticipantApi` are implemented by the use cases of this node (`Coordinator`,
`Participant`) and by each protocol's client, so a call looks the same whether it stays in the
process or goes to another node.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from anyio import CapacityLimiter

from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance, Attempt, Lineage, Origin
from gateway.domain.quorum import PartyDetail
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.task_ids import TaskIds
from gateway.domain.waiting import Waiting


@dataclass(frozen=True)
class TaskNews:
    """The state of a task at one node, or of one of its roles there."""

    status: TaskStatus
    failure: Failure | None = None


@dataclass(frozen=True)
class TaskReport:
    """The state of a task at one role, as a participating node sends it to the scheduling node."""

    task_id: str
    role: str
    status: TaskStatus
    failure: Failure | None = None
    job_id: str = ""
    # How often the report was sent, this time included. After a response of `Busy`, an earlier
    # report may have arrived nevertheless.
    tries: int = 1


@dataclass(frozen=True)
class Callback:
    """A container's report about itself."""

    status: TaskStatus | None  # None: ``word`` is not a known status, so the report changes nothing
    task_id: str = ""
    role: str = ""
    run_id: str = ""
    result_code: str = ""
    result_message: str = ""
    address: str = ""  # IP address of the sender
    word: str = ""  # the status as the container wrote it


@dataclass(frozen=True)
class TaskView:
    """A task as it is reported to others."""

    task_id: str
    name: str
    status: TaskStatus
    failure: Failure | None = None
    # node -> role -> status of the task at this role of the node
    nodes: Mapping[NodeId, Mapping[str, TaskStatus]] = field(default_factory=dict)
    since: datetime | None = None  # when the attempt began
    attempt: int = 0  # number of the attempt, from 0
    attempts: Sequence[Attempt] = ()  # earlier attempts, which failed
    waiting: Waiting | None = None  # why it has not ended yet
    inherited: Lineage | None = None  # the task of an earlier job whose outputs it uses as its own


@dataclass(frozen=True)
class JobView:
    """A job as it is reported to those with permission to read it."""

    job_id: str
    status: JobStatus
    tasks: Sequence[TaskView] = ()
    outcome: Outcome | None = None
    failure: Failure | None = None
    progress: int = 0  # percent
    flow_id: str = ""
    scheduler: NodeId = ""
    warnings: Sequence[str] = ()
    waiting: Waiting | None = None  # why it has not ended yet, or what is left to do after its end
    parties: Sequence[PartyDetail] = ()
    tolerated: Sequence[str] = ()  # tasks that failed without the job failing
    old_job_id: str = ""  # the job whose finished tasks it took over
    origin: Origin | None = None  # the job that it runs again
    # the outcome is inferred from the tasks: the scheduling node reports none, and does not tell
    # stopped tasks from failed ones
    is_inferred: bool = False
    # True: at its scheduling node, a job with ``sync_type: callback`` stays RUNNING forever
    never_ends_callback_jobs: bool = False


class SchedulerApi(Protocol):
    """The requests of initiators and participants to a scheduling node."""

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Create the job at every node; return its id once all nodes have accepted it.

        The id is the submitted one; only nodes of FATE choose an id of their own. Raises
        `Refused`, `Invalid`, `Conflict`.
        """

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Stop the job everywhere (``task_name`` empty), or one task and all that need its output.

        ``why`` is the sender's explanation. If its reason is not STOPPED, the job ends as failed.
        The stop of an ended task changes nothing. The call may be repeated. Raises `NotFound`, and
        `NotAllowed` for a node without a part in the job.
        """

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Return the state of a job. Raises `NotFound`."""

    def suspend_job(
        self,
        job_id: str,
        should_be_suspended: bool,
        sender: NodeId,
    ) -> None:
        """Start no further task of the job until it is resumed, or resume it. May be repeated.

        Raises `NotFound`, `NotAllowed`, `Conflict` if the job has ended, `NotServed` for a peer
        without this request.
        """

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Give new parameters to tasks that have not begun, at every node or at none.

        Returns the number of the parameters' version.

        Raises `NotFound`, `NotAllowed`, `Invalid`, `Conflict` (JOB_NOT_RUNNING, TASK_BEGUN), the
        error of a node that refuses the parameters, and `NotServed`.
        """

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
        permit: str = "",
    ) -> None:
        """Record a person's approval of the job at the sender or, with a ``failure``, the refusal.

        ``audit`` is the id of the sender's audit of the job (see `ParticipantApi.ask_first`); empty
        if the job was created without one. ``permit`` is the token that the creation of an audited
        job has to present; empty if it needs none. The call may be repeated. Raises `NotFound`,
        `NotAllowed` for a node without a part, `Conflict` for a decision that differs from the
        recorded one, and for a refusal once the job is READY.
        """

    def rerun_job(self, order: Order, sender: NodeId) -> RerunResult:
        """Run an ended job again from a task on, as a new job.

        Returns once every node has accepted it.

        Raises `NotFound`, `NotAllowed`, `Conflict` (JOB_NOT_ENDED), `Invalid`, `Refused`
        (INHERITANCE_FAILED, …).
        """

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Record a task's state, which may be late or repeated.

        Raises `NotFound` for a task unknown here.
        """

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Note that the sender has free resources for a waiting job.

        The call is a hint that may be lost: the scheduling node also asks again by itself.
        """


class ParticipantApi(Protocol):
    """The requests of a scheduling node to a participating node. Every call may be repeated."""

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Check and store the job.

        Raises `Invalid` with every problem, `Conflict`, `NotAllowed`.
        """

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Ask a node before the creation of a job whether it accepts the job: request an audit.

        Returns None if the node does not audit jobs before their creation. Otherwise its decision
        arrives by `SchedulerApi.confirm_job`. Raises the errors of `create_job`.
        """

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Withdraw an audit, undecided or approved, of a job that was not created at the node.

        ``ending`` is how the job ended, and why; None if that is not known. A node that is not
        reached keeps its record until the record expires.
        """

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Return the checks of a job here without creating it.

        Raises `NotAllowed`, `NotServed`, `Refused`.
        """

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve the job's resources here until it ends. Raises `Refused` with RESOURCES_BUSY."""

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Release the reservation of a job that has not begun; `hold` may follow again."""

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Begin the job, and reserve the resources that are not reserved yet.

        ``without`` names the excluded parties.

        Raises `Conflict`, `NotAllowed`, `Refused` with RESOURCES_BUSY.
        """

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        offers_in_force: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Offer new parameters, which take effect once a task's start names them.

        ``offers_in_force`` are the ids of the earlier offers whose parameters are in force.
        ``amended`` is the job with these parameters and the new ones, for protocols that sign it.

        Raises `Invalid`, `Conflict`, `NotAllowed`, `NotServed`.
        """

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        offers_in_force: Sequence[str] = (),
    ) -> None:
        """Accept the task's runs, which start afterwards.

        ``offers_in_force``: ids of offered parameters, each accepted by the node before. Raises
        `Refused` with NO_ROLE_HERE if the node has no role in the task.
        """

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Return a task's state at a role; at all roles of the node if ``role`` is empty.

        Raises `NotFound` with TASK_UNKNOWN.
        """

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """End the job here (``task_name`` empty), or one task and its downstream tasks.

        ``ending`` has the same meaning as in `withdraw`.
        """

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End one task and its downstream tasks, unless it has succeeded or never started.

        Some peers know tasks only by their ids: then ``job_id`` and ``task_name`` are empty. Raises
        `NotFound`.
        """

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete an ended job with its logs and outputs; a job unknown here counts as deleted.

        Raises `Conflict` (JOB_NOT_ENDED, OUTPUTS_IN_USE), `NotAllowed`, `NotServed`.
        """

    def clean_task(
        self,
        job_id: str,
        task_name: str,
        content: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete the outputs of a task of an ended job; without any here, nothing happens.

        ``content``: "outputs" for tables and models, "metrics" for reports. Raises the errors of
        `delete_job`.
        """


@dataclass(frozen=True)
class Site:
    """The facts about a node that one of its containers needs."""

    storage_url: str
    callback_url: str  # for the container's reports, with the token of its run
    transport: str  # host:port of the channel, without a scheme
    log_path: str
    institution_of: Mapping[NodeId, str]  # node of the job -> institution that runs it
    checkpoint: str = ""  # the folder for checkpoints; empty: none
    checkpoint_at: Address | None = None  # address in a remote storage, instead of that folder
    compute: str = ""  # a computing engine that the admin lets the provider use
    attestation: "AttestationSite | None" = None  # None: the run has to bring no report
    # n_threads and chunk_size; 0 if the admin does not set them
    tuning: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class AttestationSite:
    """The facts with which a run makes and submits its attestation report."""

    platform: str  # the platform that the node demands
    url: str  # takes the report; with the token of the run
    binding: str  # first half of the report's user data, in hexadecimal digits


class ProtocolAdapter(Protocol):
    """A protocol: its clients for calls to other nodes, and its environment of containers."""

    name: str

    def task_ids(self, node: NodeId) -> TaskIds:
        """Return the form of task ids that a node needs."""

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules."""

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part."""

    def environment(
        self,
        local: LocalJob,
        run: Run,
        site: Site,
    ) -> dict[str, str]:
        """Return the variables of a run's container."""

    def container_status(self, run: Run, address: str) -> TaskStatus | None:
        """Ask a container for its state, at the control port that it serves.

        Returns None if the container does not respond, or has not ended its work.
        """

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the body of a request that submits the job in this protocol."""


@dataclass(frozen=True)
class JobSelection:
    """The jobs of a list of states."""

    flow_id: str | None = None  # only jobs of this flow
    since: datetime | None = None  # only jobs created from this time on
    limit: int | None = None  # only this number of jobs, the newest; None: all


@dataclass(frozen=True)
class Limiters:
    """Threads for blocking use cases, in separate pools so that slow peers delay nothing else."""

    peers: CapacityLimiter  # requests that wait for other nodes
    news: CapacityLimiter  # callbacks and polls, which are short, and on which jobs wait
    rest: CapacityLimiter  # everything else
    # Verifications of reports for other nodes: computing, of which partners may request any number.
    verification: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 2))


Clock = Callable[[], datetime]  # returns the time now, timezone-aware in UTC

_MAX_SECONDS = 1e9  # larger numbers exceed the range of clocks


def as_seconds(value: Any) -> float | None:
    """Return the value if it is a number of seconds that a clock can count, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) < _MAX_SECONDS:  # also true for nan
        return None
    return float(value)
