"""Serves well-formed requests of plain paths before an application, at a fraction of what its layers cost.

A path is plain whose endpoint takes nothing but the request, its sender or caller, a body and texts of the query.
Whatever is long, or not as the path describes it, the application gets, to serve or refuse it as any other.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import Parameter, signature
from typing import Any, get_args

from fastapi import APIRouter, FastAPI, params
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia.envelope import Route
from adapter.bfia.requests import Caller, Incoming, Sender, incoming, is_short
from adapter.body import JsonRequest, is_json
from gateway.errors import Invalid

_Solve = Callable[[JsonRequest, Incoming], Awaitable[Any]]


def ahead(
    app: ASGIApp,
    within: FastAPI,
    routers: Iterable[APIRouter],
    most: int,
) -> ASGIApp:
    """Serve the plain paths of these routers before the layers of ``app``, of which ``within`` is the innermost.

    ``most``: bytes of a body that they take.
    """
    plain = {
        (method, route.path): (route.endpoint, takes)
        for router in routers
        for route in router.routes
        if isinstance(route, Route) and (takes := _takes(route)) is not None
        for method in route.methods or ()
    }

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        found = plain.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None or not is_short(request := JsonRequest(scope, receive), most):
            await app(scope, receive, send)
            return
        endpoint, takes = found
        scope["app"] = within
        try:
            for check in within.state.first:
                await check(request)
            try:
                sender = incoming(request)
                given = {name: await solve(request, sender) for name, solve in takes.items()}
            except (ValidationError, Invalid):
                await app(scope, _again(await request.body(), receive), send)
                return
            answer: Response = await endpoint(**given)
        except Exception as error:
            handlers: Any = within.exception_handlers
            handle = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
            answer = await handle(request, error)
        await answer(scope, receive, send)

    return served


def _takes(route: Route) -> dict[str, _Solve] | None:
    """Return how to find what an endpoint takes, None for one that is not plain."""
    if route.dependencies:
        return None
    found = {name: _solve(one) for name, one in signature(route.endpoint).parameters.items()}
    return (
        None
        if None in found.values()
        else {name: one for name, one in found.items() if one is not None}
    )


def _solve(parameter: Parameter) -> _Solve | None:
    kind, default = parameter.annotation, parameter.default
    if kind is Request:
        return _request
    if kind == Sender:
        return _sender
    if kind is Caller:
        return partial(_depending, default.dependency)
    if (
        isinstance(default, params.Query)
        and kind is str
        and default.default == ""
        and not default.metadata
    ):
        return partial(_text, parameter.name, default.default)
    model = next(iter(get_args(kind)), kind)
    return (
        partial(_body, model) if isinstance(model, type) and issubclass(model, BaseModel) else None
    )


async def _request(request: JsonRequest, _: Incoming) -> JsonRequest:
    return request


async def _sender(_: JsonRequest, sender: Incoming) -> Incoming:
    return sender


async def _depending(
    on: Callable[[Incoming], Awaitable[Any]],
    _: JsonRequest,
    sender: Incoming,
) -> Any:
    return await on(sender)


async def _text(
    name: str,
    default: str,
    request: JsonRequest,
    _: Incoming,
) -> str:
    return request.query_params.get(name, default)


async def _body(
    model: type[BaseModel],
    request: JsonRequest,
    _: Incoming,
) -> BaseModel:
    return model.model_validate(await request.json() if is_json(request) else None)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read once more."""
    messages: list[Message] = [
        {
            "type": "http.request",
            "body": body,
            "more_body": False,
        }
    ]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received
