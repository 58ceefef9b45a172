"""What a participating node has to do for the runs of a job: actions on its engine and calls, and decisions."""

from dataclasses import dataclass

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
