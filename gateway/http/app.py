"""One application per listener: peers, this node's containers, this node's operators.

Each adapter brings routers; a path that two of them declare on one listener is refused at start, a path on the
wrong listener is not there.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import GatewayError, envelope
from gateway.version import VERSION

# Adds to an application's interface description what each operation answers: its schema and an example.
#
# The framework would read it from return types; ours are plain values, so tables of models say it.

Model = type[BaseModel]
Answers = Mapping[tuple[str, str], Model]
"""(method, path) -> what it answers in JSON"""
Tables = tuple[Callable[[str, str], Model | None], Callable[[str], Model]]
"""by method and path what an operation answers in JSON, by path how it refuses"""

_OK = ("200", "201")
_JSON = "application/json"
_PREFIX = "Answer."
_REF = "#/components/schemas/"
_BYTES = {"type": "string", "format": "binary"}
_TEXT = {"type": "string"}
_FRAMEWORKS_OWN = ("HTTPValidationError", "ValidationError")
_SAMPLES: Mapping[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


def describe(app: FastAPI, tables: Callable[[], Tables]) -> None:
    """Have the application's description hold answers and refusals; ``tables`` is asked when somebody reads it."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _fill(made(), *tables())
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "put", "post", "patch", "delete"):
                yield method, path, operation


def _fill(
    document: dict[str, Any],
    answer_of: Callable[[str, str], Model | None],
    refusal_of: Callable[[str], Model],
) -> None:
    found = {(m, p): (o, answer_of(m, p), refusal_of(p)) for m, p, o in operations(document)}
    models = dict.fromkeys(model for _, *both in found.values() for model in both if model is not None)
    names, definitions = models_json_schema(
        [(model, "serialization") for model in models], ref_template=f"{_REF}{_PREFIX}{{model}}"
    )
    schemas = definitions.get("$defs", {})
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components |= {f"{_PREFIX}{name}": schema for name, schema in schemas.items()}
    for name in _FRAMEWORKS_OWN:  # it is not how we refuse
        components.pop(name, None)

    def content(model: Model) -> dict[str, Any]:
        schema = names[model, "serialization"]
        return {"schema": schema, "example": sample(schema, components)}

    for operation, answer, refusal in found.values():
        responses = operation["responses"]
        responses.pop("422", None)
        responses.setdefault("default", {"description": "Refused.", "content": {_JSON: content(refusal)}})
        status = next((code for code in _OK if code in responses), "200")
        good = responses.setdefault(status, {"description": "Done."})
        kinds = good.setdefault("content", {})
        if answer is not None:
            kinds[_JSON] = content(answer) | {k: v for k, v in kinds.get(_JSON, {}).items() if k == "example"}
        for kind, said in kinds.items():
            if answer is not None and kind.endswith("+json"):
                said |= content(answer)
            if not said.get("schema"):
                said["schema"] = _TEXT if kind.startswith("text/") else _BYTES
            if kind == _JSON and not said.keys() & {"example", "examples"} and "example" not in said["schema"]:
                said["example"] = sample(said["schema"], components)


def sample(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """Return a value that keeps to a schema: its examples where it has some."""
    if "$ref" in schema:
        return sample(components[schema["$ref"].removeprefix(_REF)], components)
    for given in ("examples", "enum"):
        if schema.get(given):
            return schema[given][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], components)
    kind = schema.get("type")
    if kind == "array":
        return [sample(schema.get("items", {}), components)]
    if kind == "object":
        rest = schema.get("additionalProperties")
        named = {name: sample(inner, components) for name, inner in schema.get("properties", {}).items()}
        return named or ({"name": sample(rest, components)} if isinstance(rest, dict) and rest else {})
    return _SAMPLES.get(str(kind), {})


_PAGE = Path(__file__).with_name("docs_page.html")
_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
"""headers that browsers send and that no page can take away"""
_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Mounted:
    """A router and the largest body its paths take, in bytes."""

    router: APIRouter
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
    """Return the application of one listener; each of ``first`` may refuse a request. Raises `PathTaken`."""
    _refuse_duplicates(mounted.router for mounted in routers)
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
    if documented:

        def description() -> JSONResponse:
            return JSONResponse(app.openapi())

        app.add_api_route("/openapi.json", description, include_in_schema=False)
        app.add_api_route("/docs", _docs, include_in_schema=False, response_class=HTMLResponse)
    for mounted in routers:
        app.include_router(mounted.router, max_body_size=mounted.max_body)
    return app


async def _docs() -> HTMLResponse:
    return HTMLResponse(_PAGE.read_bytes(), headers={"content-security-policy": _POLICY})


def _refuse_duplicates(routers: Iterable[APIRouter]) -> None:
    seen: set[tuple[str, str]] = set()
    for route in (route for router in routers for route in router.routes if isinstance(route, APIRoute)):
        for method in route.methods or ():
            if (method, route.path) in seen:
                raise PathTaken(f"{method} {route.path} is declared twice on one listener")
            seen.add((method, route.path))


class ForeignOrigin(GatewayError):
    """A page of another site made a browser send the request."""

    reason = "FOREIGN_ORIGIN"
    code = 403


class LoopbackOnly:
    """Refuses requests that a page of another site makes a browser on this machine send.

    For a listener without a token, which trusts that only this machine reaches it. A foreign page is recognised by
    its ``Origin``, or by a name in ``Host`` that was made to resolve to this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what comes from this machine, refuse the rest with FOREIGN_ORIGIN."""
        if scope["type"] == "http" and not _from_here(scope):
            text = "without auth.mode: on this listener serves requests to and from loopback addresses only"
            await _refuse(ForeignOrigin(text), scope, receive, send)
            return
        await self._app(scope, receive, send)


class NoBrowsers:
    """Refuses what a page makes a person's browser send to a listener that is for programs only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve programs, refuse browsers with FOREIGN_ORIGIN."""
        if scope["type"] == "http" and any(name in _BROWSERS for name, _ in scope["headers"]):
            await _refuse(ForeignOrigin("this listener serves programs, not browsers"), scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _refuse(error: GatewayError, scope: Scope, receive: Receive, send: Send) -> None:
    scope.setdefault("state", {})["refused"] = error
    await JSONResponse(envelope(error), error.code)(scope, receive, send)


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
