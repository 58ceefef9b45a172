"""The news that can change a job at the scheduling node."""

from dataclasses import dataclass
from datetime import datetime

from gateway.domain import retries
from gateway.domain.consent import Confirmed
from gateway.domain.job import Acceptance
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class CreateAt:
    """Ask a node to accept the job."""

    node: NodeId


@dataclass(frozen=True)
class HoldAt:
    """Have a node keep what the job needs there."""

    node: NodeId


@dataclass(frozen=True)
class ReturnAt:
    """Have a node take that back, because another one has too little free."""

    node: NodeId


@dataclass(frozen=True)
class StartAt:
    """Tell a node that the job begins."""

    node: NodeId


@dataclass(frozen=True)
class StartTaskAt:
    """Have a node start its part of a task."""

    node: NodeId
    task: str
    attempt: int = 0


@dataclass(frozen=True)
class PollTaskAt:
    """Ask a node how its part of a task stands."""

    node: NodeId
    task: str
    roles: tuple[str, ...]
    attempt: int = 0


@dataclass(frozen=True)
class StopAt:
    """Tell a node that the job has ended, and how."""

    node: NodeId


@dataclass(frozen=True)
class StopTaskAt:
    """Have a node end its part of a failed attempt."""

    node: NodeId
    task: str
    attempt: int = 0


@dataclass(frozen=True)
class GiveUp:
    """Not a request: the decision that a node has been silent for too long."""

    node: NodeId


@dataclass(frozen=True)
class Expire:
    """Not a request: the decision that nobody at a node agreed to the job in time."""

    node: NodeId


Request = CreateAt | HoldAt | ReturnAt | StartAt | StartTaskAt | PollTaskAt | StopAt | StopTaskAt
TaskRequest = StartTaskAt | PollTaskAt | StopTaskAt
Decision = GiveUp | Expire | retries.TimeOut | retries.TryAgain
Command = Request | Decision

NAMES = {
    CreateAt: "create",
    HoldAt: "resources",
    ReturnAt: "return of resources",
    StartAt: "start",
    StartTaskAt: "task start",
    PollTaskAt: "task poll",
    StopAt: "stop",
    StopTaskAt: "task stop",
}
"""what a timeline calls each request"""


@dataclass(frozen=True)
class Answered:
    """The node did as asked."""

    request: Request
    at: datetime
    said: Acceptance | None = None
    """beside yes, where a job was to be created"""


@dataclass(frozen=True)
class Denied:
    """The node said no."""

    request: Request
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Lost:
    """No answer came; ``delivered`` is False when the request certainly never arrived."""

    request: Request
    at: datetime
    delivered: bool
    message: str = ""


@dataclass(frozen=True)
class Delayed:
    """A request claimed then has waited until now for its turn and is sent now, if it is still wanted."""

    request: Request
    claimed: datetime
    at: datetime


@dataclass(frozen=True)
class UnknownThere:
    """The node, asked after its call's deadline, does not know the task."""

    request: PollTaskAt
    at: datetime


@dataclass(frozen=True)
class Heard:
    """News of a task at a node, from its push or from the answer to a poll."""

    task_id: str
    node: NodeId
    role: str
    """empty: all roles of that node"""
    status: TaskStatus
    at: datetime
    failure: Failure | None = None
    pushed: bool = False


@dataclass(frozen=True)
class NotPlayed:
    """The node has the task, but not in this role: it was asked because nobody here knew the component's roles."""

    task_id: str
    node: NodeId
    role: str
    at: datetime


@dataclass(frozen=True)
class Freed:
    """A node has something free again that the job waits for."""

    node: NodeId
    at: datetime


@dataclass(frozen=True)
class StopAsked:
    """Somebody wants the job to end."""

    by: str
    at: datetime
    message: str = ""
    if_waiting: bool = False
    """leave a job alone that runs by now"""


@dataclass(frozen=True)
class SuspendAsked:
    """No further task is to start, or (``on`` False) they may again."""

    by: NodeId
    at: datetime
    on: bool = True


@dataclass(frozen=True)
class TaskStopAsked:
    """A task and everything that needs its output are to stop; what has succeeded stays as it is."""

    task: str
    by: str
    at: datetime
    message: str = ""


Event = (
    Answered
    | Confirmed
    | Denied
    | Lost
    | Delayed
    | UnknownThere
    | Heard
    | NotPlayed
    | Freed
    | StopAsked
    | TaskStopAsked
    | SuspendAsked
)
