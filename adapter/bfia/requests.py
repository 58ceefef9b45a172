"""What every router of this protocol does before and after a use case: who asks, what, and on which threads."""

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, Request
from starlette.types import Scope

from adapter.bfia.envelope import ok
from adapter.bfia.headers import Incoming, incoming
from adapter.bfia.profiles import Profile
from adapter.body import read_json
from gateway.auth import origin
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, NotAllowed
from gateway.runtime.context import new_trace_id, traced

X = TypeVar("X")


async def _sender(request: Request) -> Incoming:  # else the framework would read headers on another thread
    return incoming(request)


Sender = Annotated[Incoming, Depends(_sender)]
"""What the request's headers say of its sender."""


NO_ROUTE = "node {} has no enabled route here: ask the admin of this node for one"


def named(knows: Callable[[NodeId], bool], sender: Incoming) -> NodeId:
    """Return the sender's node id, "" where it names none. Raises `NotAllowed` for one without a route."""
    if sender.source and not knows(sender.source):
        raise NotAllowed(NO_ROUTE.format(sender.source))
    origin().node = sender.source
    return sender.source


def known(knows: Callable[[NodeId], bool], sender: Incoming) -> NodeId:
    """Return the sender's node id. Raises `NotAllowed` where it names none, or one without a route."""
    if not sender.source:
        raise NotAllowed("say which node asks, in the header x-source-node-id")
    return named(knows, sender)


_CONTROL = ("/v1/interconn/schedule/", "/v1/interconn/job/audit/")
_HELLO = "/v1/interconn/schedule/node/hello"
"""judges an unknown or unnamed sender itself"""


def known_first(scope: Scope, knows: Callable[[NodeId], bool], here: NodeId) -> None:
    """Raise `NotAllowed` for a control request of an unknown sender; its body has not been read yet."""
    if scope["method"] != "POST" or not scope["path"].startswith(_CONTROL) or scope["path"] == _HELLO:
        return
    sender = incoming(Request(scope))
    if sender.target in ("", here):  # else it is passed on, or denied as a relay
        known(knows, sender)


async def on(limiter: CapacityLimiter, sender: Incoming, work: Callable[[], X]) -> X:
    """Run blocking work on the given threads, under the trace id of the request."""

    def run() -> X:
        with traced(sender.trace_id or new_trace_id()):
            return work()

    return await anyio.to_thread.run_sync(run, limiter=limiter)


class Partners(Protocol):
    """What the parts of a router for peers say of them."""

    @property
    def knows(self) -> Callable[[NodeId], bool]:
        """Tells whether a node is listened to: it has a route, or had one and takes part in a job under way."""

    @property
    def profile_of(self) -> Callable[[NodeId], Profile]:
        """Tells in which spelling a node speaks and hears."""


async def done(
    parts: Partners, limiter: CapacityLimiter, sender: Incoming, work: Callable[[NodeId], object]
) -> dict[str, Any]:
    """Do on the given threads what a known node asks, told its id, and answer a bare yes. Raises `NotAllowed`."""
    source = known(parts.knows, sender)
    await on(limiter, sender, lambda: work(source))
    return ok(profile=parts.profile_of(source))


async def given(request: Request, *names: str) -> dict[str, Any]:
    """Return parameters of a GET from its query or, as some peers send them, from a JSON body, as they are.

    Null and absent are the same: None. Raises `Invalid` for a body that is no JSON object.
    """
    raw = await request.body()
    body = read_json(raw) if raw.strip() else {}
    if not isinstance(body, dict):
        raise Invalid([Problem("body", "must be a JSON object, or absent", body)])
    return {name: request.query_params.get(name, body.get(name)) for name in names}


async def asked(request: Request, *names: str) -> dict[str, str]:
    """Return those parameters, read as by `given`, that are there. Raises `Invalid` for one that is no text."""
    found = {name: value for name, value in (await given(request, *names)).items() if value is not None}
    for name, value in found.items():
        if not isinstance(value, str):
            raise Invalid([Problem(name, "must be a text", value)])
    return found


def required(values: dict[str, str], name: str) -> str:
    """Return a parameter. Raises `Invalid` where it is missing or empty."""
    if not values.get(name):
        raise Invalid([Problem(name, "is required, in the query or in a JSON body", values.get(name))])
    return values[name]
