"""What every router of this protocol does before and after a use case: who asks, what, and on which threads."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Request

from adapter.bfia.headers import Incoming, incoming
from adapter.reading import NotFit, read_aside
from gateway.domain.model import NodeId
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed
from gateway.tracing import new_trace_id, traced

X = TypeVar("X")


async def _sender(request: Request) -> Incoming:  # else the framework would read headers on another thread
    return incoming(request)


Sender = Annotated[Incoming, Depends(_sender)]
"""What the request's headers say of its sender."""


def named(knows: Callable[[NodeId], bool], sender: Incoming) -> NodeId:
    """Return the sender's node id, "" where it names none. Raises `NotAllowed` for one without a route."""
    if sender.source and not knows(sender.source):
        raise NotAllowed(f"node {sender.source} has no enabled route here")
    return sender.source


def known(knows: Callable[[NodeId], bool], sender: Incoming) -> NodeId:
    """Return the sender's node id. Raises `NotAllowed` where it names none, or one without a route."""
    if not sender.source:
        raise NotAllowed("say which node asks, in the header x-source-node-id")
    return named(knows, sender)


async def on(limiter: CapacityLimiter, sender: Incoming, work: Callable[[], X]) -> X:
    """Run blocking work on the given threads, under the trace id of the request."""

    def run() -> X:
        with traced(sender.trace_id or new_trace_id()):
            return work()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


async def asked(request: Request, *names: str) -> dict[str, str]:
    """Return parameters of a GET from its query or, as some peers send them, from a JSON body.

    Null and absent are the same. A parameter that is no text is an `Invalid`.
    """
    body: Any = {}
    raw = await request.body()
    if raw.strip():
        try:
            body = await read_aside(raw)
        except NotFit as error:
            raise Invalid(error.problems) from None
        if not isinstance(body, dict):
            raise Invalid([Problem("body", "must be a JSON object, or absent", body)])
    found = {}
    for name in names:
        value = request.query_params.get(name, body.get(name))
        if value is None:
            continue
        if not isinstance(value, str):
            raise Invalid([Problem(name, "must be a text", value)])
        found[name] = value
    return found


def required(values: dict[str, str], name: str) -> str:
    """Return a parameter. Raises `Invalid` where it is missing or empty."""
    if not values.get(name):
        raise Invalid([Problem(name, "is required, in the query or in a JSON body", values.get(name))])
    return values[name]
