"""What the core offers to adapters, and what adapters offer to the core.

The same two interfaces are implemented by the use cases of this node (`Coordinator`, `Participant`) and by each
protocol's client, so a call looks the same whether it stays in the process or goes out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from anyio import CapacityLimiter

from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance, Attempt, Lineage, Origin
from gateway.domain.quorum import PartyDetail
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.waiting import Waiting


@dataclass(frozen=True)
class TaskNews:
    """The state of a task at one node, or of one role there."""

    status: TaskStatus
    failure: Failure | None = None


@dataclass(frozen=True)
class TaskReport:
    """News that a participating node sends to the scheduling node."""

    task_id: str
    role: str
    status: TaskStatus
    failure: Failure | None = None
    job_id: str = ""
    tries: int = 1
    """how often this was told, with this time; a node that may not have taken it in yet is `Busy`"""


@dataclass(frozen=True)
class Callback:
    """What a container says of itself."""

    status: TaskStatus | None
    """None: ``word`` names no status, so that the report changes nothing"""
    task_id: str = ""
    role: str = ""
    run_id: str = ""
    result_code: str = ""
    result_message: str = ""
    address: str = ""
    """from which it came"""
    word: str = ""


@dataclass(frozen=True)
class TaskView:
    """A task as it is reported to others."""

    task_id: str
    name: str
    status: TaskStatus
    failure: Failure | None = None
    nodes: Mapping[NodeId, Mapping[str, TaskStatus]] = field(default_factory=dict)
    """node -> role -> how the task is there"""
    since: datetime | None = None
    """when the attempt began"""
    attempt: int = 0
    """number of the attempt, from 0"""
    attempts: Sequence[Attempt] = ()
    """earlier ones, which failed"""
    waiting: Waiting | None = None
    """why it has not ended yet"""
    inherited: Lineage | None = None
    """the task of an earlier job whose outputs stand for its own"""


@dataclass(frozen=True)
class JobView:
    """A job as it is reported to whoever may read it."""

    job_id: str
    status: JobStatus
    tasks: Sequence[TaskView] = ()
    outcome: Outcome | None = None
    failure: Failure | None = None
    progress: int = 0
    """percent"""
    flow_id: str = ""
    scheduler: NodeId = ""
    warnings: Sequence[str] = ()
    waiting: Waiting | None = None
    """why it has not ended yet; of an ended one, what is still to do"""
    parties: Sequence[PartyDetail] = ()
    tolerated: Sequence[str] = ()
    """tasks that failed without the job failing"""
    old_job_id: str = ""
    """the job of which it took over finished tasks"""
    origin: Origin | None = None
    """the job that it runs again"""
    is_inferred: bool = False
    """whether its node tells no outcome, and leaves tasks FAILED by a stop as by a failure"""
    ends_no_callback_job: bool = False
    """whether its node is known never to end a job with ``sync_type: callback``"""


class SchedulerApi(Protocol):
    """What a scheduling node does for initiators and participants."""

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Create the job at every node; return its id when all accepted: FATE's nodes give it one of their own.

        Raises `Refused`, `Invalid`, `Conflict`.
        """

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Stop the job everywhere (``task_name`` empty), or one task and all that needs its output.

        ``why``: what the sender says about it; with another reason than STOPPED the job has failed.
        What is over stays as it is, with all that follows it. Repeated: no error. Raises `NotFound`, and
        `NotAllowed` for a node without a part in the job.
        """

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Tell how a job stands. Raises `NotFound`."""

    def suspend_job(
        self,
        job_id: str,
        on: bool,
        sender: NodeId,
    ) -> None:
        """Start no further task, or (``on`` False) go on. Repeated: no error.

        Raises `NotFound`, `NotAllowed`, `Conflict` where the job has ended, `NotServed` by a peer without it.
        """

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Give tasks that have not begun new parameters, at every node or at none; return the version.

        Raises `NotFound`, `NotAllowed`, `Invalid`, `Conflict` (TASK_BEGUN, JOB_ENDED), what a node answers that
        refuses them, and `NotServed`.
        """

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
    ) -> None:
        """Take in that somebody at a node agreed to the job, or (with a failure) refused it.

        ``audit``: the question that this answers, where the job was asked about before it was created.

        Repeated: no error. Raises `NotFound`, `NotAllowed` for a node without a part, `Conflict` for another
        answer than before, and for a refusal once the job is READY.
        """

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunResult:
        """Run an ended job again from a task on, as a new job; return when every node has accepted that.

        Raises `NotFound`, `NotAllowed`, `Conflict` (JOB_NOT_ENDED), `Invalid`, `Refused` (INHERITANCE_FAILED, …).
        """

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Take in news. Late or repeated news is not an error. Raises `NotFound` for a task unknown here."""

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Take in that the sender has something free that the job waits for. A hint: nothing depends on it."""


class ParticipantApi(Protocol):
    """What a participating node does for the scheduling node. Every call may be repeated without harm."""

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Check and store the job. Raises `Invalid` with every problem, `Conflict`, `NotAllowed`."""

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Ask whether the node would take the job, where it wants to be asked before; None: it does not.

        What it decides comes by `SchedulerApi.confirm_job`. Raises as `create_job` does.
        """

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Take back a question, or what was agreed to. A node that cannot be told waits in vain.

        ``ending`` tells how the job ended, and why.
        """

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Tell what would happen to a job here; create nothing. Raises `NotAllowed`, `NotServed`, `Refused`."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Keep what the job needs here until it ends. Raises `Refused` with RESOURCES_BUSY."""

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Take back what the job holds here, until it is asked for again; for a job that has not begun."""

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Begin. ``without`` names the parties that are left out; what was not held before is held now.

        Raises `Conflict`, `NotAllowed`, `Refused` with RESOURCES_BUSY.
        """

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        holding: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Put new parameters aside, which hold once a task's start names them; ``holding``: ids of earlier ones.

        ``amended``, the job with them, is what a request signs.

        Raises `Invalid`, `Conflict`, `NotAllowed`, `NotServed`.
        """

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Accept the task's runs; they start afterwards. Raises `Refused` with NO_ROLE_HERE where it has none.

        ``holding`` names the offered parameters that hold; a node has agreed to each.
        """

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Tell how a task stands at a role, or (empty) at all of the node. Raises `NotFound` with TASK_UNKNOWN."""

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """End the job here (``task_name`` empty) or one task and what follows it."""

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End one task and what follows it; one that has succeeded, or never started, is left as it is.

        Some peers know it by its id only: then ``job_id`` and ``task_name`` are empty. Raises `NotFound`.
        """

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete an ended job with its logs and outputs; one that is not there is deleted already.

        Raises `Conflict` (JOB_NOT_ENDED, OUTPUTS_IN_USE), `NotAllowed`, `NotServed`.
        """


@dataclass(frozen=True)
class Site:
    """What a container needs to know about the node it runs at."""

    storage_url: str
    callback_url: str
    transport: str
    """host:port, without a scheme"""
    log_path: str
    institution_of: Mapping[NodeId, str]
    checkpoint: str = ""
    """the folder for checkpoints; empty: it has none"""
    checkpoint_at: Address | None = None
    """where they lie at its storage, if that is elsewhere and it has no folder for them"""
    compute: str = ""
    """a computing engine that the admin lets the provider use"""
    tuning: Mapping[str, int] = field(default_factory=dict)
    """n_threads, chunk_size where the admin sets them"""


class ProtocolAdapter(Protocol):
    """A protocol: its client for calls that go out, and the container's environment it defines."""

    name: str
    numbers_tasks: bool
    """whether its nodes know a task by its name and the number of its attempt, so that its id has to tell both"""

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
        """Ask a container that serves its state; None where it does not answer, or has not ended its work."""

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return a job as this protocol submits it."""


@dataclass(frozen=True)
class Limiters:
    """Threads for blocking use cases, apart by what they wait for, so that slow peers starve nobody."""

    peers: CapacityLimiter
    """requests that wait for other nodes"""
    news: CapacityLimiter
    """callbacks and polls: short, and jobs stand still without them"""
    rest: CapacityLimiter


Clock = Callable[[], datetime]
"""returns the time, aware, in UTC"""


def as_seconds(value: Any) -> float | None:
    """Return the value if it is a number of seconds that a clock can count, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        return None
    return float(value)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
