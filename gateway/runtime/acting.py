"""Whose token, or signature, the request under way came with: kept with the jobs that it hands in."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
