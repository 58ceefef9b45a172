"""The node that work is done for, who its calls go to, and what follows the work: trace id, user, requests made.

Each protocol's client reports every request to another node by `exchanged`; `listening` collects them for a job's
timeline.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from gateway.domain.spec import JobSpec, NodeId
from gateway.ports import Clock, ParticipantApi, ProtocolAdapter, SchedulerApi
from gateway.store.database import outside_transaction
from gateway.store.store import Store


@dataclass(frozen=True)
class NodeContext:
    """What every use case of a node works with."""

    node: NodeId
    store: Store
    clock: Clock
    owner: str = ""
    """this gateway, among those on the database"""


class Peers:
    """Chooses who a call goes to: this node's own use cases, or a protocol's client; nothing else does."""

    def __init__(
        self,
        node: NodeId,
        adapters: Mapping[str, ProtocolAdapter],
        speaks: Callable[[NodeId, str], str],
        here: Callable[[], tuple[SchedulerApi, ParticipantApi]],
    ) -> None:
        """``speaks`` tells which protocol a node speaks in a job; ``here`` returns this node's own use cases."""
        self.node = node
        self._adapters = adapters
        self._speaks = speaks
        self._here = here

    def scheduler(self, node: NodeId, protocol: str) -> SchedulerApi:
        """Return who schedules at a node: our own use case, or a client in the protocol that its route names."""
        outside_transaction()
        own = node == self.node
        return (
            self._here()[0] if own else self._adapters[self._speaks(node, protocol)].scheduler(node)
        )

    def participant(self, node: NodeId, protocol: str) -> ParticipantApi:
        """Return who takes part at a node: as `scheduler`."""
        outside_transaction()
        own = node == self.node
        return (
            self._here()[1]
            if own
            else self._adapters[self._speaks(node, protocol)].participant(node)
        )

    def numbers_tasks(self, spec: JobSpec) -> bool:
        """Say whether the ids of a job's tasks have to tell the task, for one of its nodes."""
        spoken = {
            spec.protocol,
            *(self._speaks(node, spec.protocol) for node in spec.nodes if node != self.node),
        }
        return any(self._adapters[protocol].numbers_tasks for protocol in spoken)

    def adapter(self, protocol: str) -> ProtocolAdapter:
        """Return a protocol's adapter by its name."""
        return self._adapters[protocol]


@dataclass(frozen=True)
class Exchange:
    """One request to another node, and what came back; ``code`` and ``message`` are the other's own, unchanged."""

    node: str
    method: str
    path: str
    seconds: float
    """until the answer was here, or was given up"""
    trace_id: str
    http: int | None = None
    """HTTP status; None: no answer came"""
    code: Any = None
    """of the answer's envelope"""
    message: str = ""
    """of the response, or why there is none"""


_trace: ContextVar[str] = ContextVar("trace_id", default="")
_user: ContextVar[str] = ContextVar("acting_user", default="")
_exchanges: ContextVar[list[Exchange] | None] = ContextVar("exchanges", default=None)
T = TypeVar("T")


@contextmanager
def _set(variable: ContextVar[Any], value: T) -> Iterator[T]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def exchanged(exchange: Exchange) -> None:
    """Report a request to what collects them in this work."""
    if (collected := _exchanges.get()) is not None:
        collected.append(exchange)


def listening() -> AbstractContextManager[list[Exchange]]:
    """Collect the requests that are made inside."""
    return _set(_exchanges, [])


def new_trace_id() -> str:
    """Return an id that no other work has."""
    return f"trace_{uuid4().hex}"


def current_trace() -> str:
    """Return the trace id of the work under way, empty outside of any."""
    return _trace.get()


def traced(trace_id: str) -> AbstractContextManager[str]:
    """Work under this trace id."""
    return _set(_trace, trace_id)


def acting(name: str) -> AbstractContextManager[str]:
    """Do what is inside in a person's name."""
    return _set(_user, name)


def acting_user() -> str:
    """Return who asks; empty where no token is needed, and for what other nodes ask."""
    return _user.get()


def by_user() -> dict[str, str]:
    """Return who asks as a detail of a line in a job's timeline; empty where nobody is known."""
    return {"user": name} if (name := acting_user()) else {}
