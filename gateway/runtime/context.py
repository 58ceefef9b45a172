"""The context of work: node, peers, trace id, acting user, and its requests to other nodes.

Each protocol's client reports its requests to other nodes with `record_exchange`;
`collecting_exchanges` gathers them for a job's timeline.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.task_ids import TaskIds
from gateway.ports import Clock, ParticipantApi, ProtocolAdapter, SchedulerApi
from gateway.store.database import require_no_transaction
from gateway.store.store import Store

T = TypeVar("T")

_trace: ContextVar[str] = ContextVar("trace_id", default="")
_user: ContextVar[str] = ContextVar("acting_user", default="")
_exchanges: ContextVar[list["Exchange"] | None] = ContextVar(
    "exchanges",
    default=None,
)


@dataclass(frozen=True)
class NodeContext:
    """The dependencies of every use case of a node."""

    node: NodeId
    store: Store
    clock: Clock
    owner: str = ""  # this gateway's name among those that share the database; empty only in tests


class Peers:
    """Routes each call to a node: to this node's own use cases, or to a client of a protocol.

    No other code makes that choice.
    """

    def __init__(
        self,
        node: NodeId,
        adapters: Mapping[str, ProtocolAdapter],
        speaks: Callable[[NodeId, str], str],
        own_apis: Callable[[], tuple[SchedulerApi, ParticipantApi]],
    ) -> None:
        """Prepare calls to nodes.

        - ``adapters``: by the names of their protocols
        - ``speaks(node, protocol)`` returns the protocol in which a node is called. Its argument
          ``protocol`` is the protocol of the job: the node's route may say another one
        - ``own_apis`` returns this node's use cases. It is called at each use, as the use cases are
          built after this object
        """
        self.node = node
        self._adapters = adapters
        self._speaks = speaks
        self._own_apis = own_apis

    def scheduler(self, node: NodeId, protocol: str) -> SchedulerApi:
        """Return a node's scheduler: our own, or a client in the protocol that the node speaks.

        ``protocol``: the job's.
        """
        require_no_transaction()
        if node == self.node:
            scheduler, _ = self._own_apis()
            return scheduler
        return self._adapter_for(node, protocol).scheduler(node)

    def participant(self, node: NodeId, protocol: str) -> ParticipantApi:
        """Return a node's participant: our own, or a client in the protocol that the node speaks.

        ``protocol``: the job's.
        """
        require_no_transaction()
        if node == self.node:
            _, participant = self._own_apis()
            return participant
        return self._adapter_for(node, protocol).participant(node)

    def task_ids(self, spec: JobSpec) -> dict[NodeId, TaskIds]:
        """Return the form of task ids that each node of a job needs.

        This node needs the form of the job's protocol.
        """
        forms = {self.node: self._adapters[spec.protocol].task_ids(self.node)}
        for node in spec.nodes:
            if node != self.node:
                forms[node] = self._adapter_for(node, spec.protocol).task_ids(node)
        return forms

    def adapter(self, protocol: str) -> ProtocolAdapter:
        """Return a protocol's adapter by its name."""
        return self._adapters[protocol]

    def _adapter_for(self, node: NodeId, protocol: str) -> ProtocolAdapter:
        """Return the adapter for calls to a node in a job of ``protocol``."""
        return self._adapters[self._speaks(node, protocol)]


@dataclass(frozen=True)
class Exchange:
    """One request to another node and its response.

    Code and message are the other node's, unchanged.
    """

    node: str
    method: str
    path: str
    seconds: float  # until the response, or until the request was given up
    trace_id: str
    http: int | None = None  # HTTP status; None: no response
    code: Any = None  # of the response's envelope
    message: str = ""  # of the response, or the reason why there is none


# ------------------------------------------------------------ requests to other nodes


def record_exchange(exchange: Exchange) -> None:
    """Add a request to the list of the enclosing `collecting_exchanges` block, if there is one."""
    collected = _exchanges.get()
    if collected is not None:
        collected.append(exchange)


def collecting_exchanges() -> AbstractContextManager[list[Exchange]]:
    """Return a context with a list, to which each request to another node in the block is added."""
    return _set(_exchanges, [])


# ------------------------------------------------------------ trace ids


def new_trace_id() -> str:
    """Return a unique trace id."""
    return f"trace_{uuid4().hex}"


def current_trace() -> str:
    """Return the trace id of the current work, empty if it has none."""
    return _trace.get()


def traced(trace_id: str) -> AbstractContextManager[str]:
    """Run the block under a trace id."""
    return _set(_trace, trace_id)


# ------------------------------------------------------------ users


def acting(name: str) -> AbstractContextManager[str]:
    """Run the block in the name of a user."""
    return _set(_user, name)


def acting_user() -> str:
    """Return the user whose request for a change is handled now: the name of the user's token.

    Empty on a listener without tokens, for requests that only read, and for those of other nodes.
    """
    return _user.get()


def by_user() -> dict[str, str]:
    """Return the acting user as a detail of a line in a job's timeline; empty if there is none."""
    name = acting_user()
    if not name:
        return {}
    return {"user": name}


@contextmanager
def _set(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Set a context variable for the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
