"""The transport's routers: ``push``, ``pop``, ``peek`` and ``release`` for this node's containers,
``invoke``, ``part`` and ``transport`` for other nodes.

The code of a response is in its body; the HTTP status is 200, except for a body over the limit
(413). Requests stay on the event loop while they wait; bodies over a quarter of a MiB are parsed
and written in threads.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from adapter.bfia.channel import responses
from adapter.bfia.channel.codec import CHANNEL, INVOKE, PART, PUSH, TRANSPORT
from adapter.bfia.channel.containers import ContainerHandlers
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.peers import PeerHandlers
from adapter.bfia.channel.refusals import Refusals
from gateway.errors import GatewayError, NotAllowed, brief, release_frames

_Handler = Callable[[Request], Awaitable[Response]]
# Operation, request, the error that the handler has raised
_RecordRefusal = Callable[[str, Request, GatewayError], Awaitable[None]]


class ChannelRoute(APIRoute):
    """A path of the channel: FastAPI describes and finds it; its endpoint gets the plain request.

    Resolving dependencies would take longer than all else that FastAPI does for a small message
    (ADR 33). So checks that an application declares as dependencies do not apply: the handlers
    authenticate senders themselves.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def container_router(parts: ChannelParts) -> APIRouter:
    """Return the paths for this node's containers: ``push``, ``pop``, ``peek`` and ``release``."""
    handlers = ContainerHandlers(parts)
    record = Refusals(parts.broker, parts.own_session).of_container
    router = _empty_router(parts)
    _add(router, PUSH, handlers.push, responses.PUSH_DESCRIPTION, record)
    _add(router, f"{CHANNEL}pop", handlers.pop, responses.POP_DESCRIPTION, record)
    _add(router, f"{CHANNEL}peek", handlers.peek, responses.PEEK_DESCRIPTION, record)
    _add(router, f"{CHANNEL}release", handlers.release, responses.RELEASE_DESCRIPTION, record)
    return router


def peer_router(parts: ChannelParts) -> APIRouter:
    """Return the paths for the transports of other nodes: ``invoke``, ``part`` and ``transport``.

    ``transport`` takes one message over HTTP, and begins a stream of messages over gRPC.
    """
    handlers = PeerHandlers(parts)
    record = Refusals(parts.broker, parts.own_session).of_node
    router = _empty_router(parts)
    _add(router, INVOKE, handlers.invoke, responses.INVOKE_DESCRIPTION, record)
    _add(router, PART, handlers.part, responses.PART_DESCRIPTION, record)
    _add(router, TRANSPORT, handlers.transport, responses.TRANSPORT_DESCRIPTION, record)
    return router


def _empty_router(parts: ChannelParts) -> APIRouter:
    """Return a router without paths, which closes the connections to peers when the node ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await parts.courier.close()

    return APIRouter(
        tags=["channel"],
        route_class=ChannelRoute,
        lifespan=lifespan,
    )


def _add(
    router: APIRouter,
    path: str,
    handle: _Handler,
    description: dict[str, Any],
    record_refusal: _RecordRefusal,
) -> None:
    """Add a path, whose errors become responses of the transport and are recorded."""
    operation = path.removeprefix(CHANNEL)

    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request)
        except ClientDisconnect:
            return Response(status_code=400)  # is never sent: the connection has ended
        except GatewayError as error:
            release_frames(error)  # otherwise the refused body would stay in memory
            await record_refusal(operation, request, error)
            if error.code == NotAllowed.code:
                # The listener writes this to the audit log.
                request.state.refused = brief(error)
            return responses.refusal(error, responses.response_form(request.headers.raw))

    endpoint.__name__ = f"chan_{operation}"
    router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model=None,
        **description,
    )
