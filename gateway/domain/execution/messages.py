"""The news that can change a job at a participating node."""

from dataclasses import dataclass
from datetime import datetime

from gateway.domain import orphans
from gateway.domain.run import Exit, FileSum
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class Launch:
    """Start a run's container."""

    run: str


@dataclass(frozen=True)
class Probe:
    """Look how a run's container is."""

    run: str


@dataclass(frozen=True)
class StopRun:
    """End a run's container; it is killed after ``grace`` seconds."""

    run: str
    grace: float


@dataclass(frozen=True)
class Collect:
    """Save the run's logs and remove its container."""

    run: str


@dataclass(frozen=True)
class Seal:
    """Fingerprint the files of a run's model."""

    run: str


@dataclass(frozen=True)
class Tell:
    """Tell the scheduling node a run's state."""

    run: str
    status: TaskStatus


@dataclass(frozen=True)
class Close:
    """Give back everything the job holds here."""


@dataclass(frozen=True)
class Confirm:
    """Tell the scheduling node what somebody here decided on the job."""


@dataclass(frozen=True)
class Prepare:
    """Fetch the images that the job waits for."""


@dataclass(frozen=True)
class AskScheduler:
    """Ask the scheduling node, long not heard of, whether it still has the job."""


@dataclass(frozen=True)
class Expire:
    """Not an action: nobody decided on the job in time."""


@dataclass(frozen=True)
class Abandon:
    """Not an action: the scheduling node does not answer, so the job ends here."""


@dataclass(frozen=True)
class Weigh:
    """Not an action: the decision on a run whose report will not come any more."""

    run: str


Action = Launch | Probe | StopRun | Collect | Seal | Tell | Close | Confirm | Prepare | AskScheduler
Command = Action | Weigh | Expire | Abandon


@dataclass(frozen=True)
class Launched:
    """A run's container was started."""

    run: str
    at: datetime
    image_digest: str = ""
    granted: tuple[str, ...] = ()
    """what it got beyond the ordinary"""


@dataclass(frozen=True)
class LaunchFailed:
    """A run's container could not be started."""

    run: str
    failure: Failure
    at: datetime
    said: str = ""
    """the engine's own words, for the people here; empty where the failure has them"""


@dataclass(frozen=True)
class Seen:
    """A look showed the container running."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Unseen:
    """The engine did not answer."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Broken:
    """The container may not go on, for a reason that is ours."""

    run: str
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class HasExited:
    """``result_code`` and ``result_message`` are what the container's last line says, where it says so."""

    run: str
    exit: Exit
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Gone:
    """The engine does not know the container any more."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Reported:
    """The container told its state."""

    run: str
    status: TaskStatus
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Done:
    """An action without news of its own is through. ``final`` False: try again later."""

    action: Collect | Tell | Close | StopRun | Confirm | Prepare | AskScheduler
    at: datetime
    final: bool = True
    message: str = ""
    warnings: tuple[str, ...] = ()
    """of a Collect: what is odd about the run's outputs"""


@dataclass(frozen=True)
class Sealed:
    """The files of a run's model were read; ``files`` None: they could not be, because of ``message``."""

    run: str
    files: tuple[FileSum, ...] | None
    at: datetime
    message: str = ""


@dataclass(frozen=True)
class StopAsked:
    """The runs of these tasks (None: all, and the job with them) are to end."""

    at: datetime
    tasks: frozenset[str] | None
    ending: Ending | None
    by: str = ""


@dataclass(frozen=True)
class Restarted:
    """This process began anew: what it had in hand is not in hand any more; ``owner`` empty: of all runs."""

    at: datetime
    owner: str = ""


@dataclass(frozen=True)
class OwnerLost:
    """A gateway was silent for too long; what it had not begun goes to the heir."""

    owner: str
    heir: str
    at: datetime


@dataclass(frozen=True)
class Decided:
    """A person has decided on the job. ``words`` go to every node with a refusal."""

    approve: bool
    by: str
    words: str
    at: datetime


@dataclass(frozen=True)
class Fetching:
    """How far the images have come that the job waits for."""

    progress: str
    at: datetime


@dataclass(frozen=True)
class Prepared:
    """They are here, or (with a failure) cannot be had."""

    failure: Failure | None
    at: datetime


OfRun = Launched | LaunchFailed | Seen | Unseen | Broken | HasExited | Gone | Reported
Event = OfRun | Done | Sealed | StopAsked | Restarted | OwnerLost | Decided | Fetching | Prepared | orphans.Heard
