"""The commands and events of a participating node's state machine for a job.

Commands come out of the agenda: actions to carry out, and decisions that are due. Events go in.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gateway.domain.attestation import Attestation
from gateway.domain.run import Exit, FileSum
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class OnRun:
    """A command about one run."""

    run: str  # the run's id
    # path of the action's `Call` in the run's record; empty for an action or decision without one
    call: ClassVar[str] = ""


class Launch(OnRun):
    """Start the run's container."""

    call = "launch"


class Collect(OnRun):
    """Save the run's logs and remove its container."""

    call = "collect"


class Seal(OnRun):
    """Fingerprint the files of the run's model."""

    call = "sealing.call"


@dataclass(frozen=True)
class StopRun(OnRun):
    """Stop the run's container; it is killed after ``grace`` seconds."""

    grace: float
    call = "stop"


@dataclass(frozen=True)
class Tell(OnRun):
    """Report the run's state to the scheduling node."""

    status: TaskStatus
    call = "reporting.call"


class Probe(OnRun):
    """Inspect the run's container."""


class Conclude(OnRun):
    """Decision: the time for further news of a run is over, so the run is judged as it is."""


@dataclass(frozen=True)
class OnJob:
    """A command about the job as a whole."""

    call: ClassVar[str] = ""  # path of the action's `Call` in the job's record; empty for none


class Close(OnJob):
    """Release everything that the job holds here."""

    call = "close"


class Confirm(OnJob):
    """Report the decision on the job to the scheduling node."""

    call = "approval.confirm"


class Prepare(OnJob):
    """Fetch the images that the job waits for."""

    call = "preparation.fetch"


class QueryScheduler(OnJob):
    """Ask a scheduling node that was silent for too long whether it still has the job."""

    call = "ask"


class AskStop(OnJob):
    """Have the scheduling node stop the job everywhere, as this node has ended its part alone."""

    call = "stop_call"


class QueryEnding(OnJob):
    """Ask the scheduling node how the job ended, as its stop did not say so."""

    call = "inquiry"


class Expire(OnJob):
    """Decision: the job was not approved, prepared or created here in time."""


class Abandon(OnJob):
    """Decision: the scheduling node does not respond, so the job ends here."""


class TimeOut(OnJob):
    """Decision: a partner's job has run here for as long as it may."""


OnRunAction = Launch | Probe | StopRun | Collect | Seal | Tell
OnJobAction = Close | Confirm | Prepare | QueryScheduler | AskStop | QueryEnding
Action = OnRunAction | OnJobAction
Decision = Conclude | Expire | Abandon | TimeOut
Command = Action | Decision


@dataclass(frozen=True)
class RunEvent:
    """News of one run."""

    run: str  # the run's id


@dataclass(frozen=True)
class Inspected(RunEvent):
    """The container is running."""

    at: datetime


@dataclass(frozen=True)
class EngineSilent(RunEvent):
    """The engine did not respond to an inspection."""

    at: datetime


@dataclass(frozen=True)
class Gone(RunEvent):
    """The engine does not know the container any more."""

    at: datetime


@dataclass(frozen=True)
class Launched(RunEvent):
    """A run's container was started."""

    at: datetime
    image_digest: str = ""
    granted: tuple[str, ...] = ()  # privileges beyond the usual ones
    # the report that the run has to bring; None: the node demands none
    attestation: Attestation | None = None


@dataclass(frozen=True)
class Attested(RunEvent):
    """The run's attestation report was verified."""

    attestation: Attestation
    at: datetime


@dataclass(frozen=True)
class LaunchFailed(RunEvent):
    """A run's container could not be started."""

    failure: Failure
    at: datetime
    # the engine's own message, for this node only; empty if the failure has it
    engine_message: str = ""


@dataclass(frozen=True)
class Broken(RunEvent):
    """The gateway has to end the container, because of the failure."""

    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Exited(RunEvent):
    """The container ended; the last line of its log may have a result code and message."""

    exit: Exit
    at: datetime
    result_code: str = ""
    result_message: str = ""
    # the failure of the run's storage that made the container fail; None without one
    cause: Failure | None = None


@dataclass(frozen=True)
class Reported(RunEvent):
    """The container reported its state."""

    status: TaskStatus
    at: datetime
    result_code: str = ""
    result_message: str = ""
    # the failure of the run's storage that made the container fail; None without one
    cause: Failure | None = None


@dataclass(frozen=True)
class Misreported:
    """A container reported a status that it cannot have; its report was refused.

    This is no `RunEvent`: it adds a warning to the job, and the run does not change.
    """

    run: str  # the run's id
    word: str  # the status in the report
    at: datetime


@dataclass(frozen=True)
class Done:
    """The end of an action that has no event of its own."""

    action: (
        Collect
        | Tell
        | Close
        | StopRun
        | Confirm
        | Prepare
        | QueryScheduler
        | AskStop
        | QueryEnding
    )
    at: datetime
    final: bool = True  # False: the action has failed and is retried later
    message: str = ""  # text of the failure, or of a refusal that is final
    warnings: tuple[str, ...] = ()  # about the run, after a `Collect` or `StopRun`


@dataclass(frozen=True)
class Sealed(RunEvent):
    """The files of a run's model were read, or could not be."""

    files: tuple[FileSum, ...] | None  # None: they could not be read
    at: datetime
    message: str = ""  # why they could not be read
    final: bool = False  # no further try could read them


@dataclass(frozen=True)
class StopRequested:
    """A stop of the runs of some tasks, or of the job."""

    at: datetime
    tasks: frozenset[str] | None  # tasks to stop; None: all tasks, and the job with them
    ending: Ending | None  # how the job ends; None: the stop does not say so
    by: str = ""  # the node that sends it
    # the outcome was inferred from states of tasks, which may be due to the stop itself
    is_inferred: bool = False


@dataclass(frozen=True)
class StopAskedHere:
    """People here have asked the scheduling node to stop the job, or it has refused that."""

    at: datetime
    by: str  # names the people; empty: the scheduling node has refused


@dataclass(frozen=True)
class StoppedHere:
    """People here stop the job while its scheduling node is silent."""

    at: datetime
    why: str  # as they give it


@dataclass(frozen=True)
class Restarted:
    """A gateway of this node restarted, so its actions are no longer under way.

    ``owner`` is the gateway's name; empty: it is the node's only gateway, and all runs are its own.
    """

    at: datetime
    owner: str = ""


@dataclass(frozen=True)
class OwnerLost:
    """A gateway of this node was silent for too long; another gateway, the heir, takes over."""

    owner: str  # name of the lost gateway
    heir: str  # name of the gateway that takes over
    at: datetime


@dataclass(frozen=True)
class Decided:
    """A person here has approved or refused the job."""

    approve: bool
    by: str  # the person
    words: str  # the person's reason; every node of the job sees that of a refusal
    at: datetime


@dataclass(frozen=True)
class Fetching:
    """News of the pull of the images that the job waits for."""

    progress: str  # for people
    at: datetime


@dataclass(frozen=True)
class Prepared:
    """The images are here, or (with a failure) cannot be pulled."""

    failure: Failure | None
    at: datetime


@dataclass(frozen=True)
class SchedulerAlive:
    """The scheduling node sent a request or a response."""

    at: datetime


# The events of one run, all subclasses of `RunEvent`.
AnyRunEvent = (
    Launched
    | LaunchFailed
    | Attested
    | Inspected
    | EngineSilent
    | Broken
    | Exited
    | Gone
    | Reported
    | Sealed
)
Event = (
    AnyRunEvent
    | Misreported
    | Done
    | StopRequested
    | StopAskedHere
    | StoppedHere
    | Restarted
    | OwnerLost
    | Decided
    | Fetching
    | Prepared
    | SchedulerAlive
)
