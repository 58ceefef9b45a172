"""The requests and decisions of the scheduling node for a job, and the events that change it."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Acceptance
from gateway.domain.retries import TimeOut, TryAgain
from gateway.domain.spec import Amendment, Failure, NodeId
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class Request:
    """A request to a node; the docstring of each subclass says what the node is requested to do."""

    node: NodeId
    # path of the request's `Call` in the `NodeJob`, or in the `NodeTask` for a request about a task
    call: ClassVar[str]
    name: ClassVar[str]  # the request's name in a timeline


class CreateAt(Request):
    """Accept the job."""

    call, name = "create", "create"


class ReserveAt(Request):
    """Reserve the job's resources at the node."""

    call, name = "reservation.request", "resources"


class ReleaseAt(Request):
    """Release the reservation, because another node has too little free."""

    call, name = "reservation.give_back", "return of resources"


class StartAt(Request):
    """Start the job."""

    call, name = "start", "start"


class StopAt(Request):
    """Stop the job, with its outcome."""

    call, name = "stop", "stop"


@dataclass(frozen=True)
class StartTaskAt(Request):
    """Start the node's part of a task."""

    task: str
    attempt: int = 0
    call, name = "start", "task start"


@dataclass(frozen=True)
class PollTaskAt(Request):
    """Report the state of the node's part of a task."""

    task: str
    roles: tuple[str, ...]  # roles of the node whose states are requested
    attempt: int = 0
    call, name = "poll", "task poll"


@dataclass(frozen=True)
class StopTaskAt(Request):
    """Stop the node's part of a task that was stopped or whose attempt has failed."""

    task: str
    attempt: int = 0
    call, name = "stop", "task stop"


@dataclass(frozen=True)
class GiveUp:
    """Decision: a node was unreachable for too long, by the rule in `reachability`."""

    node: NodeId


@dataclass(frozen=True)
class Expire:
    """Decision: the job was not approved at a node in time."""

    node: NodeId


TaskRequest = StartTaskAt | PollTaskAt | StopTaskAt
Decision = GiveUp | Expire | TimeOut | TryAgain
Command = Request | Decision


@dataclass(frozen=True)
class Accepted:
    """The node did as requested."""

    request: Request
    at: datetime
    acceptance: Acceptance | None = None  # after a creation: the conditions that the node added


@dataclass(frozen=True)
class Refused:
    """The node refused."""

    request: Request
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Lost:
    """No response came."""

    request: Request
    at: datetime
    delivered: bool  # False: the request certainly did not arrive
    message: str = ""  # why no response came
    reason: str = ""  # symbol of the error that ``message`` describes; empty: it has none


@dataclass(frozen=True)
class Delayed:
    """A request claimed earlier has waited for its turn and is sent now, if it is still needed."""

    request: Request
    claimed: datetime  # when it was claimed
    at: datetime  # when it is really sent


@dataclass(frozen=True)
class TaskUnknown:
    """The node does not know the task, according to a poll after the deadline of the start."""

    request: PollTaskAt
    at: datetime
    message: str = ""  # text of the node's response
    # when the poll was claimed; a poll that was repeated since does not count. None: it counts
    claimed: datetime | None = None


# What came of a request.
Response = Accepted | Refused | Lost | TaskUnknown


@dataclass(frozen=True)
class TaskReported:
    """The state of a task at a node, pushed or polled."""

    task_id: str
    node: NodeId
    role: str  # empty: all roles of that node
    status: TaskStatus
    at: datetime
    failure: Failure | None = None
    pushed: bool = False  # False: the node was polled


@dataclass(frozen=True)
class RoleNotPlayed:
    """The node has the task but does not play this role in it.

    The node was polled for the role because the component's roles are unknown here.
    """

    task_id: str
    node: NodeId
    role: str
    at: datetime


@dataclass(frozen=True)
class Freed:
    """A node for whose resources the job waits has capacity again."""

    node: NodeId
    at: datetime


@dataclass(frozen=True)
class StopRequested:
    """A stop of the job."""

    by: str
    at: datetime
    message: str = ""
    if_waiting: bool = False  # do not stop a job that is already running
    # STOPPED: the outcome is STOPPED; any other reason: something has failed at the node that
    # requests the stop, and the outcome is FAILED
    reason: str = "STOPPED"


@dataclass(frozen=True)
class SuspendRequested:
    """A request to start no further task; with ``on`` False, to start tasks again."""

    by: NodeId
    at: datetime
    on: bool = True


@dataclass(frozen=True)
class ParametersAgreed:
    """Every node has accepted new parameters for tasks that have not started."""

    amendment: Amendment
    after: int  # number of earlier amendments in force when the nodes were asked

    @property
    def at(self) -> datetime:
        """When the change was requested."""
        return self.amendment.at


@dataclass(frozen=True)
class TaskStopRequested:
    """A stop of a task and everything downstream of it; finished tasks stay as they are."""

    task: str
    by: str
    at: datetime
    message: str = ""


Event = (
    Response
    | ApprovalReported
    | Delayed
    | TaskReported
    | RoleNotPlayed
    | Freed
    | StopRequested
    | TaskStopRequested
    | SuspendRequested
    | ParametersAgreed
)
