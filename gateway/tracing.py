"""The trace id that follows one job through every call, container and log line."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import uuid4

_trace: ContextVar[str] = ContextVar("trace_id", default="")


def new_trace_id() -> str:
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
