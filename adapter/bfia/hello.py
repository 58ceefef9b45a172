"""``/v1/interconn/schedule/node/hello``, an extension: says who this node is, and tries its way to the asker."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Body, Depends
from pydantic import Field

from adapter.bfia import wire
from adapter.bfia.envelope import ok
from adapter.bfia.headers import described
from adapter.bfia.interconn import SCHEDULE
from adapter.bfia.peer import Peer
from adapter.bfia.profiles import Profile
from adapter.bfia.requests import NO_ROUTE, Sender, on
from adapter.bfia.route_test import called_back
from adapter.json import JsonRoute
from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed
from gateway.http.paths import Paths
from gateway.ports import Limiters
from gateway.version import VERSION

PROTOCOL_VERSION = "1.2.0"


class Hello(wire.Body):
    """Who asks, and what to try."""

    node_id: wire.Text = Field(default="", description="the node that asks")
    padding: wire.Text = Field(default="", description="anything; tries how large a body may be")
    call_back: bool = Field(default=False, description="true: say hello back, and tell how that went")


@dataclass(frozen=True)
class HelloParts:
    """What the path is built of."""

    node: NodeId
    institution: str
    peer: Callable[[NodeId], Peer]
    knows: Callable[[NodeId], bool]
    profile_of: Callable[[NodeId], Profile]
    limiters: Limiters


def router(parts: HelloParts) -> Paths:
    """Return the path for peers."""
    router = Paths(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])

    @router.post(f"{SCHEDULE}/node/hello", summary="Who is there, and does it reach me? (extension)")
    async def hello(
        body: Annotated[Hello, Body(openapi_examples={"hello": {"value": {"node_id": "JG0100001100000010"}}})],
        sender: Sender,
    ) -> dict[str, Any]:
        known = bool(sender.source) and parts.knows(sender.source)
        data: dict[str, Any] = {
            "node_id": parts.node,
            "institution": parts.institution,
            "gateway": VERSION,
            "protocol": PROTOCOL_VERSION,
            "knows_you": known,
        }
        if body.call_back:
            if not known:
                raise NotAllowed(NO_ROUTE.format(sender.source or "(none named)"))
            data["back"] = await on(
                parts.limiters.peers, sender, lambda: called_back(parts.peer, parts.node, sender.source)
            )
        data["time_ms"] = time.time_ns() // 1_000_000
        return ok(data, parts.profile_of(sender.source))

    return router
