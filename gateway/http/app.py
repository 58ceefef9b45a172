"""One application per listener: peers, this node's containers, this node's operators.

Each adapter brings routers; a path that two of them declare on one listener is refused at start, a path on the
wrong listener is not there.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

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


# The paths that an adapter brings, noted until somebody asks for them.
#
# The framework's own router would build each path where it is declared and once more in the application that takes
# it. That was half of what a node needs to start; a path of its own takes a millisecond or two, so the first
# request to it builds it, and holds up nobody else for longer.


class Paths(APIRouter):
    """A router of which nothing is asked itself: `put_into` hands its paths to an application's."""

    def __init__(self, **options: Any) -> None:
        """Take what the framework's router takes."""
        super().__init__(**options)
        self._lives = options.get("lifespan") is not None
        self._noted: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Note a path; the framework's decorators come here as well."""
        self._noted.append((path, endpoint, options))

    def declared(self) -> Iterator[tuple[str, str]]:
        """Yield the method and the path of all that was noted."""
        for path, _, options in self._noted:
            for method in options.get("methods") or ("GET",):
                yield method, path

    def put_into(self, target: APIRouter, max_body: int | None) -> None:
        """Add the paths to an application's router. A path that names no largest body takes ``max_body`` bytes."""
        for path, endpoint, options in self._noted:
            own = {
                "tags": [*self.tags, *(options.get("tags") or ())],
                "dependencies": [*self.dependencies, *(options.get("dependencies") or ())],
                "route_class_override": options.get("route_class_override") or self.route_class,
                "max_body_size": max_body if options.get("max_body_size") is None else options["max_body_size"],
            }
            target.routes.append(_Noted(target, path, endpoint, options | own))
        if self._lives:  # there is no path in it any more, and its beginning and end are the application's
            target.include_router(self)


def build_all(router: APIRouter) -> None:
    """Build every path of an application's router that nobody has asked for, as its description needs them all."""
    for route in list(router.routes):
        if isinstance(route, _Noted):
            route.built()


class _Noted(BaseRoute):
    """Stands for a path until it is asked for; then the path takes its place."""

    def __init__(
        self, router: APIRouter, path: str, endpoint: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        self._router = router
        self._place = len(router.routes)
        self._declared = path, endpoint, options
        self._lock = Lock()  # the description is made in a thread
        self._route: BaseRoute | None = None
        self._regex, self.path_format, _ = compile_path(path)

    def built(self) -> BaseRoute:
        """Return the path itself, built now if it was not yet."""
        with self._lock:
            if self._route is None:
                path, endpoint, options = self._declared
                alone = _alone_like(self._router)
                alone.add_api_route(path, endpoint, **options)
                (self._route,) = alone.routes
                self._router.routes[self._place] = self._route
            return self._route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Say what the path would, which is built for a request that may be for it."""
        if scope["type"] != "http" or self._regex.match(scope["path"]) is None:
            return Match.NONE, {}
        return self.built().matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the path answer."""
        await self.built().handle(scope, receive, send)


def _alone_like(router: APIRouter) -> APIRouter:
    """Return an empty router that gives its paths what this one does."""
    return APIRouter(
        dependencies=router.dependencies,
        dependency_overrides_provider=router.dependency_overrides_provider,
        strict_content_type=router.strict_content_type,
    )


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
