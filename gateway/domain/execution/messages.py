"""What a participating node does for a job, and the events that can change it."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gateway.domain import orphans
from gateway.domain.run import Exit, FileSum
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class OnRun:
    """What is about one run, by its id."""

    run: str


class RunAction(OnRun):
    """An action on a run that is recorded as a `Call`."""

    call: ClassVar[str]  # the run's field with the call


class Launch(RunAction):
    """Start the run's container."""

    call = "launch"


class Collect(RunAction):
    """Save the run's logs and remove its container."""

    call = "collect"


class Seal(RunAction):
    """Fingerprint the files of the run's model."""

    call = "seal"


@dataclass(frozen=True)
class StopRun(RunAction):
    """Stop the run's container; it is killed after ``grace`` seconds."""

    grace: float
    call = "stop"


class Probe(OnRun):
    """Inspect the run's container."""


@dataclass(frozen=True)
class Tell(OnRun):
    """Report the run's state to the scheduling node."""

    status: TaskStatus


@dataclass(frozen=True)
class OnJob:
    """What is about the job as a whole."""


class Close(OnJob):
    """Release everything that the job holds here."""


class Confirm(OnJob):
    """Report the decision on the job to the scheduling node."""


class Prepare(OnJob):
    """Fetch the images that the job waits for."""


class QueryScheduler(OnJob):
    """Ask the scheduling node, silent for long, whether it still has the job."""


class Expire(OnJob):
    """Decision: nobody decided on the job in time."""


class Abandon(OnJob):
    """Decision: the scheduling node does not respond, so the job ends here."""


class Conclude(OnRun):
    """Decision on a run that will not report any more."""


Action = Launch | Probe | StopRun | Collect | Seal | Tell | Close | Confirm | Prepare | QueryScheduler
Command = Action | Conclude | Expire | Abandon


@dataclass(frozen=True)
class RunEvent:
    """News of one run."""

    run: str


@dataclass(frozen=True)
class Launched(RunEvent):
    """A run's container was started."""

    at: datetime
    image_digest: str = ""
    granted: tuple[str, ...] = ()  # privileges beyond the usual ones


@dataclass(frozen=True)
class LaunchFailed(RunEvent):
    """A run's container could not be started."""

    failure: Failure
    at: datetime
    engine_message: str = ""  # the engine's own message, for this node only; empty where the failure has it


@dataclass(frozen=True)
class Inspected(RunEvent):
    """The container is running."""

    at: datetime


@dataclass(frozen=True)
class EngineSilent(RunEvent):
    """The engine did not respond."""

    at: datetime


@dataclass(frozen=True)
class Broken(RunEvent):
    """The gateway must end the container."""

    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Exited(RunEvent):
    """``result_code`` and ``result_message`` are what the container's last line says, where it says so."""

    exit: Exit
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Gone(RunEvent):
    """The engine does not know the container any more."""

    at: datetime


@dataclass(frozen=True)
class Reported(RunEvent):
    """The container reported its state."""

    status: TaskStatus
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Done:
    """An action without an event of its own is finished; ``final`` False: retry later."""

    action: Collect | Tell | Close | StopRun | Confirm | Prepare | QueryScheduler
    at: datetime
    final: bool = True
    message: str = ""
    warnings: tuple[str, ...] = ()  # of a Collect: about the run's outputs


@dataclass(frozen=True)
class Sealed:
    """The files of a run's model were read; ``files`` None: they could not be, for the reason in ``message``."""

    run: str
    files: tuple[FileSum, ...] | None
    at: datetime
    message: str = ""


@dataclass(frozen=True)
class StopRequested:
    """The runs of these tasks (None: all, and the job with them) are to end."""

    at: datetime
    tasks: frozenset[str] | None
    ending: Ending | None
    by: str = ""


@dataclass(frozen=True)
class Restarted:
    """The process restarted, so its actions are no longer under way; ``owner`` empty: those of all runs."""

    at: datetime
    owner: str = ""


@dataclass(frozen=True)
class OwnerLost:
    """A gateway was silent for too long; what it had not started goes to the heir."""

    owner: str
    heir: str
    at: datetime


@dataclass(frozen=True)
class Decided:
    """A person has decided on the job. A refusal goes to every node with ``words``."""

    approve: bool
    by: str
    words: str
    at: datetime


@dataclass(frozen=True)
class Fetching:
    """Progress of the images that the job waits for."""

    progress: str
    at: datetime


@dataclass(frozen=True)
class Prepared:
    """The images are here, or (with a failure) cannot be pulled."""

    failure: Failure | None
    at: datetime


OfRun = Launched | LaunchFailed | Inspected | EngineSilent | Broken | Exited | Gone | Reported
Event = (
    OfRun
    | Done
    | Sealed
    | StopRequested
    | Restarted
    | OwnerLost
    | Decided
    | Fetching
    | Prepared
    | orphans.SchedulerAlive
)
