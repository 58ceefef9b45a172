"""One application per listener: peers, this node's containers, this node's operators.

Each adapter brings routers; a path that two of them declare on one listener is refused at start, a path on the
wrong listener is not there.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.paths import Paths, build_all
from gateway.version import VERSION

_PAGE = Path(__file__).with_name("docs_page.html")
_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
"""headers that browsers send and that no page can take away"""
_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Mounted:
    """A router and the largest body its paths take, in bytes."""

    router: Paths
    max_body: int | None


class PathTaken(Exception):
    """Two adapters declare the same path and method on one listener."""


def create_app(
    title: str,
    routers: Sequence[Mounted],
    *,
    documented: bool = False,
    first: Sequence[Callable[[Request], Awaitable[None]]] = (),
) -> FastAPI:
    """Return the application of one listener; each of ``first`` may refuse a request. Raises `PathTaken`.

    The first request to a path has that path to build, and never others: that would hold up every other one.
    """
    _refuse_duplicates(m.router for m in routers)
    app = FastAPI(
        title=f"BFIA interconnection gateway: {title}",
        version=VERSION,
        docs_url=None,  # the framework's page loads its parts from elsewhere: a closed network has no such place
        redoc_url=None,
        openapi_url=None,  # the framework would make the description on the event loop
        redirect_slashes=False,
        strict_content_type=False,
        dependencies=[Depends(look) for look in first],
    )
    if documented:
        app.add_api_route("/openapi.json", _described(app), include_in_schema=False)
        app.add_api_route("/docs", _page, include_in_schema=False, response_class=HTMLResponse)
    for mounted in routers:
        mounted.router.put_into(app.router, mounted.max_body)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        build_all(app.router)
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> Callable[[], Awaitable[Response]]:
    """Return what answers with the description, made in a thread when it is first asked for: it takes a while."""
    made: list[bytes] = []
    one_at_a_time = CapacityLimiter(1)

    def make() -> bytes:
        if not made:
            made.append(bytes(JSONResponse(app.openapi()).body))
        return made[0]

    async def description() -> Response:
        body = await anyio.to_thread.run_sync(make, limiter=one_at_a_time)
        return Response(body, media_type="application/json")

    return description


async def _page() -> HTMLResponse:
    return HTMLResponse(_PAGE.read_bytes(), headers={"content-security-policy": _POLICY})


def _refuse_duplicates(routers: Iterable[Paths]) -> None:
    seen: set[tuple[str, str]] = set()
    for router in routers:
        for method, path in router.declared():
            if (method, path) in seen:
                raise PathTaken(f"{method} {path} is declared twice on one listener")
            seen.add((method, path))


class LoopbackOnly:
    """Refuses requests that a page of another site makes a browser on this machine send.

    For a listener without a token: what it trusts is that only this machine reaches it. A foreign page is told by
    its ``Origin``, or by a name in ``Host`` that was made to lead here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what comes from this machine, refuse the rest with FOREIGN_ORIGIN."""
        if scope["type"] == "http" and not _from_here(scope):
            text = "without auth.mode: on this listener serves requests to and from loopback addresses only"
            await _foreign(text)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class NoBrowsers:
    """Refuses what a page makes a person's browser send to a listener that is for programs only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve programs, refuse browsers with FOREIGN_ORIGIN."""
        if scope["type"] == "http" and any(name in _BROWSERS for name, _ in scope["headers"]):
            await _foreign("this listener serves programs, and no page in a browser")(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _foreign(text: str) -> Response:
    body = {"code": 403, "msg": f"FOREIGN_ORIGIN: {text}", "data": {"reason": "FOREIGN_ORIGIN"}}
    return JSONResponse(body, status_code=403)


def _from_here(scope: Scope) -> bool:
    hosts = [v.decode("latin-1") for k, v in scope["headers"] if k == b"host"]
    origins = [v.decode("latin-1") for k, v in scope["headers"] if k == b"origin"]
    return (
        len(hosts) == 1
        and _is_loopback(f"//{hosts[0]}")
        and all("://" in origin and _is_loopback(origin) for origin in origins)
    )


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return "@" not in url and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
