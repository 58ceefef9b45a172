"""One application per listener: peers, this node's containers, this node's operators.

Each adapter brings routers; a path on the wrong listener is not there.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError, envelope
from gateway.language.catalogue import ENGLISH, in_language, next_step, of_header
from gateway.version import VERSION

_PAGE = Path(__file__).with_name("docs_page.html")
_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
"""headers that browsers send and that no page can remove"""
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Mounted:
    """A router, the largest body its paths take, in bytes, and the model of its errors."""

    router: APIRouter
    max_body: int | None
    refusal: type[BaseModel] | None = None
    first: Sequence[Callable[[Request], Awaitable[None]]] = ()
    """each may refuse a request"""


def create_app(
    title: str,
    routers: Sequence[Mounted],
    *,
    documented: bool = False,
    first: Sequence[Callable[[Request], Awaitable[None]]] = (),
) -> FastAPI:
    """Return the application of one listener; each of ``first`` may refuse a request."""
    app = FastAPI(
        title=f"BFIA interconnection gateway: {title}",
        version=VERSION,
        docs_url=None,  # the framework's page loads scripts from other hosts, which a closed network cannot reach
        redoc_url=None,
        openapi_url=None,  # the framework would build the description on the event loop
        redirect_slashes=False,
        strict_content_type=False,
        dependencies=[Depends(check) for check in first],
    )
    app.state.first = first
    if documented:
        routes = [route for one in routers if one.refusal for route in one.router.routes]
        refusing = {route.path for route in routes if isinstance(route, APIRoute)}

        @cache
        def described() -> dict[str, Any]:
            return _with_refusals(deepcopy(app.openapi()), refusing)

        def description() -> JSONResponse:
            return JSONResponse(described())

        async def page() -> HTMLResponse:
            return HTMLResponse(_PAGE.read_bytes(), headers=_PAGE_HEADERS)

        app.add_api_route("/openapi.json", description, include_in_schema=False)
        app.add_api_route("/docs", page, include_in_schema=False)
    for mounted in routers:
        refused = {"model": mounted.refusal, "description": "Refused."}
        responses: dict[int | str, dict[str, Any]] = {"default": refused} if mounted.refusal else {}
        checks = [Depends(check) for check in mounted.first]
        app.include_router(
            mounted.router,
            max_body_size=mounted.max_body,
            responses=responses,
            dependencies=checks,
        )
    return app


def _with_refusals(document: dict[str, Any], paths: Set[str]) -> dict[str, Any]:
    """Say of paths with an envelope that a refusal comes with HTTP 200, too."""
    for path in paths & document["paths"].keys():
        for operation in document["paths"][path].values():
            refusal = operation["responses"]["default"]["content"]["application/json"]["schema"]
            usual = operation["responses"].get("200", {}).get("content", {}).get("application/json")
            if usual is not None:
                usual["schema"] = {"anyOf": [usual["schema"], refusal]}
    return document


class ForeignOrigin(GatewayError):
    """A page of another site made a browser send the request."""

    reason = "FOREIGN_ORIGIN"
    code = 403


def refusal(
    error: GatewayError,
    scope: Scope,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return the response that reports an error, for requests that reach no application, in their language."""
    language = of_header(Headers(scope=scope).get("accept-language", ""))
    body = envelope(error)
    if step := next_step(error.reason, language, error.node):
        body["data"]["next_step"] = step
    if language != ENGLISH:
        body = in_language(body, error.reason, language, error.node)
    return JSONResponse(body, error.code, headers)


def without_foreign(app: ASGIApp, foreign: Callable[[Scope], str]) -> ASGIApp:
    """Refuse, before another application, what a page makes a browser send (FOREIGN_ORIGIN).

    ``foreign`` returns why a request is refused: see `from_browser` and `from_elsewhere`.
    """

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if why := foreign(scope):
            error = ForeignOrigin(why)
            scope.setdefault("state", {})["refused"] = error
            await refusal(error, scope)(scope, receive, send)
            return
        await app(scope, receive, send)

    return served


def with_head(app: ASGIApp) -> ASGIApp:
    """Answer HEAD by an application that serves GET: the same head, and no body."""

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return
        is_complete = False

        async def send_head(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                await send(message)
            elif not is_complete:  # of what is streamed, the end is not waited for
                is_complete = True
                await send({"type": "http.response.body"})

        # without the extensions by which a response's body is written past what sends it
        await app(
            {
                **scope,
                "method": "GET",
                "extensions": {},
            },
            receive,
            send_head,
        )

    return served


def from_browser(scope: Scope) -> str:
    """Refuse browsers: for a listener that serves programs only."""
    browser = any(name in _BROWSERS for name, _ in scope["headers"])
    return "this listener serves programs, not browsers" if browser else ""


def from_elsewhere(scope: Scope) -> str:
    """Refuse what does not come from this machine: for a listener without a token.

    A foreign page is recognised by its ``Origin``, or by a name in ``Host`` that was made to resolve to here.
    """
    hosts = [v.decode("latin-1") for k, v in scope["headers"] if k == b"host"]
    if not hosts and scope["http_version"] == "1.0":
        hosts = ["localhost"]  # by that version a health check may name none; browsers always do
    origins = [v.decode("latin-1") for k, v in scope["headers"] if k == b"origin"]
    if (
        len(hosts) == 1
        and _is_loopback(f"//{hosts[0]}")
        and all("://" in origin and _is_loopback(origin) for origin in origins)
    ):
        return ""
    return "without auth.mode: on this listener serves requests to and from loopback addresses only"


@lru_cache(maxsize=256)
def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return "@" not in url and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
