"""The node that work is done for, and what follows the work under way: trace id, acting user, requests made.

Each protocol's client reports every request to another node by `exchanged`; `listening` collects them for a job's
timeline.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from gateway.domain.spec import NodeId
from gateway.ports import Clock
from gateway.store.store import Store


@dataclass(frozen=True)
class NodeContext:
    """What every use case of a node works with."""

    node: NodeId
    store: Store
    clock: Clock
    owner: str = ""
    """this gateway, among those on the database"""


_trace: ContextVar[str] = ContextVar("trace_id", default="")


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

    def as_dict(self) -> dict[str, Any]:
        """Return it for a timeline, where the message is called ``said``."""
        found = asdict(self)
        return {**found, "said": found.pop("message")}


_exchanges: ContextVar[list[Exchange] | None] = ContextVar("exchanges", default=None)


def exchanged(exchange: Exchange) -> None:
    """Tell of a request to whoever listens in this work."""
    if (collected := _exchanges.get()) is not None:
        collected.append(exchange)


@contextmanager
def listening() -> Iterator[list[Exchange]]:
    """Collect the requests that are made inside."""
    collected: list[Exchange] = []
    token = _exchanges.set(collected)
    try:
        yield collected
    finally:
        _exchanges.reset(token)


def new_trace_id() -> str:
    """Return an id that no other work has."""
    return f"trace_{uuid4().hex}"


def current_trace() -> str:
    """Return the trace id of the work under way, empty outside of any."""
    return _trace.get()


@contextmanager
def traced(trace_id: str) -> Iterator[None]:
    """Work under this trace id."""
    token = _trace.set(trace_id)
    try:
        yield
    finally:
        _trace.reset(token)


_user: ContextVar[str] = ContextVar("acting_user", default="")


def acting_user() -> str:
    """Return who asks; empty where no token is needed, and for what other nodes ask."""
    return _user.get()


def by_user() -> dict[str, str]:
    """Return who asks as a detail of a line in a job's timeline; empty where nobody is known."""
    return {"user": name} if (name := acting_user()) else {}


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Have what is done inside be done by somebody."""
    token = _user.set(name)
    try:
        yield
    finally:
        _user.reset(token)
