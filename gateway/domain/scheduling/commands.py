"""What the scheduling node has to do: requests to make of other nodes, and decisions to take by itself."""

from dataclasses import dataclass

from gateway.domain import retries
from gateway.domain.spec import NodeId


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
