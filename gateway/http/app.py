"""One application per listener: peers, this node's containers, this node's operators.

The adapters provide the routers; a listener does not serve the paths of another one.
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
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError, envelope
from gateway.language.catalogue import ENGLISH, add_next_steps, in_language, next_step, of_header
from gateway.version import VERSION

_PAGE = Path(__file__).with_name("docs_page.html")
# Headers that browsers send and pages cannot remove.
_BROWSER_HEADERS = frozenset({b"origin", b"sec-fetch-site"})
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


# FastAPI would look for exporters of OpenTelemetry at each request; a node has its own metrics.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
}

# Raises GatewayError to refuse a request.
Check = Callable[[Request], Awaitable[None]]


@dataclass(frozen=True)
class Mounted:
    """A router of a listener, and the rules for its requests.

    - ``max_body``: the limit for bodies in bytes; None: this listener sets no limit for the router
    - ``refusal``: the model of its refusals in the OpenAPI document; None: they are not in it
    - ``checks``: the checks of its requests, after those of the application
    """

    router: APIRouter
    max_body: int | None
    refusal: type[BaseModel] | None = None
    checks: Sequence[Check] = ()


def create_app(
    title: str,
    routers: Sequence[Mounted],
    *,
    documented: bool = False,
    checks: Sequence[Check] = (),
) -> FastAPI:
    """Return the application of one listener.

    ``documented`` adds ``/openapi.json`` and ``/docs``. ``checks`` are made for every request.
    """
    app = FastAPI(
        title=f"BFIA interconnection gateway: {title}",
        version=VERSION,
        # FastAPI's own page loads scripts from the internet, which a closed network cannot reach.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI would build the description on the event loop
        redirect_slashes=False,
        strict_content_type=False,
        telemetry=_NO_TELEMETRY,
        dependencies=[Depends(check) for check in checks],
    )
    app.state.checks = checks  # for a listener that makes a check before the body is read
    if documented:
        add_description(app, routers)
    include(app, routers)
    return app


def include(app: FastAPI, routers: Sequence[Mounted]) -> None:
    """Add routers to an application, behind those that it has."""
    for mounted in routers:
        responses: dict[int | str, dict[str, Any]] = {}
        if mounted.refusal is not None:
            responses["default"] = {
                "model": mounted.refusal,
                "description": "Refused.",
            }
        app.include_router(
            mounted.router,
            max_body_size=mounted.max_body,
            responses=responses,
            dependencies=[Depends(check) for check in mounted.checks],
        )


def add_description(app: FastAPI, routers: Sequence[Mounted]) -> None:
    """Add ``/openapi.json``, which describes these routers, and ``/docs``."""
    refusing_paths = set()
    for mounted in routers:
        if mounted.refusal is not None:
            api_routes = [r for r in mounted.router.routes if isinstance(r, APIRoute)]
            refusing_paths |= {route.path for route in api_routes}

    @cache
    def document() -> dict[str, Any]:
        return _with_refusals(deepcopy(app.openapi()), refusing_paths)

    # Not async, so that FastAPI builds the document in a thread.
    def description() -> JSONResponse:
        return JSONResponse(document())

    async def page() -> HTMLResponse:
        return HTMLResponse(_PAGE.read_bytes(), headers=_PAGE_HEADERS)

    app.add_api_route("/openapi.json", description, include_in_schema=False)
    app.add_api_route("/docs", page, include_in_schema=False)


def _with_refusals(
    document: dict[str, Any],
    paths: Set[str],
) -> dict[str, Any]:
    """Describe the HTTP 200 response of each path as either its result or its refusal.

    Refusals also have HTTP 200. The OpenAPI document is changed in place, and returned.
    """
    for path in paths & document["paths"].keys():
        for operation in document["paths"][path].values():
            responses = operation["responses"]
            refusal = responses["default"]["content"]["application/json"]["schema"]
            success = responses.get("200", {}).get("content", {}).get("application/json")
            if success is not None:
                success["schema"] = {"anyOf": [success["schema"], refusal]}
    return document


class ForeignOrigin(GatewayError):
    """A browser may have sent the request for a page of another site."""

    reason = "FOREIGN_ORIGIN"
    code = 403


def refusal(
    error: GatewayError,
    scope: Scope,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return the response for an error of a middleware, in the language of the request."""
    language = of_header(Headers(scope=scope).get("accept-language", ""))
    body = envelope(error)
    step = next_step(error.reason, language, error.node)
    if step:
        body["data"]["next_step"] = step
    add_next_steps(body["data"], language)
    if language != ENGLISH:
        body = in_language(body, error.reason, language, error.node)
    return JSONResponse(body, error.code, headers)


def without_foreign(
    app: ASGIApp,
    cause_of_refusal: Callable[[Scope], str],
) -> ASGIApp:
    """Refuse requests that may come from other sites' pages (FOREIGN_ORIGIN).

    ``cause_of_refusal`` is `from_browser` or `from_elsewhere`. It returns "" for a request that is
    allowed.
    """

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        cause = cause_of_refusal(scope)
        if not cause:
            await app(scope, receive, send)
            return
        error = ForeignOrigin(cause)
        # For the audit log, if an outer layer records refusals (`gateway.http.guard`).
        scope.setdefault("state", {})["refused"] = error
        await refusal(error, scope)(scope, receive, send)

    return serve


def with_head(app: ASGIApp) -> ASGIApp:
    """Serve HEAD by an application that serves GET: the same head, and no body."""

    async def serve(
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
            elif not is_complete:  # complete at the first piece of a stream
                is_complete = True
                await send({"type": "http.response.body"})

        # Without extensions: they would write a body directly to the client's socket.
        get_scope = {
            **scope,
            "method": "GET",
            "extensions": {},
        }
        await app(get_scope, receive, send_head)

    return serve


def from_browser(scope: Scope) -> str:
    """Return why a browser's request is refused; "" for a program's.

    For listeners that serve only programs.
    """
    for name, _ in scope["headers"]:
        if name in _BROWSER_HEADERS:
            return "this listener serves programs, not browsers"
    return ""


def from_elsewhere(scope: Scope) -> str:
    """Return why a request is refused whose ``Host`` or ``Origin`` is not this machine, else "".

    For a listener without tokens, which binds a loopback address. The ``Origin`` shows a page of
    another site. The ``Host`` shows one whose name has been made to resolve to this machine.
    """
    if _has_local_host(scope) and _has_local_origins(scope):
        return ""
    return "without auth.mode: on this listener serves requests to and from loopback addresses only"


def _has_local_host(scope: Scope) -> bool:
    """True if a request has exactly one ``Host``, and that is a loopback address."""
    hosts = _header_values(scope, b"host")
    if not hosts:
        # A health check by HTTP/1.0 may send none; browsers always do.
        return bool(scope["http_version"] == "1.0")
    return len(hosts) == 1 and _is_loopback(f"//{hosts[0]}")


def _has_local_origins(scope: Scope) -> bool:
    """True if every ``Origin`` of a request is a loopback address; programs send none."""
    origins = _header_values(scope, b"origin")
    return all("://" in origin and _is_loopback(origin) for origin in origins)


def _header_values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, which may be repeated."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


@lru_cache(maxsize=256)
def _is_loopback(url: str) -> bool:
    """Return whether the host of a URL is a loopback address or localhost."""
    if "@" in url:
        return False
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
