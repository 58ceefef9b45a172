"""``/api/v1/routes``: the route table as administrators see and change it; every change is a version."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Body, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.deps import NUMBER, AdminParts, AfterNumber, AfterText, Answer, Limit, named, refusal
from gateway.domain.problems import Problem
from gateway.errors import Conflict, Invalid, NotFound, PeerUnreachable
from gateway.http.pagination import page_of
from gateway.runtime.checks import good
from gateway.store.serialization import to_plain
from route_table.document import parse
from route_table.edit import Change
from route_table.live import LiveRoutes, StaleVersion, UnknownVersion
from route_table.model import InvalidRoutes, Route, RouteTable, UnknownNode
from route_table.versions import Version, changes, text_diff

_LONGEST_TRIAL = 120.0
"""seconds"""
_NOTHING = {"type": "object", "example": {}, "description": "nothing is asked for"}
_FILES = ("ca", "certificate", "server_name")
_LINE = re.compile(r"^line \d+: ")


class RouteEntry(BaseModel):
    """The keys of an entry, as in the file: ``host`` and ``port`` (and ``scheme``), or ``url``, or ``via``."""

    model_config = ConfigDict(extra="allow")

    host: str | None = Field(default=None, description="Host name or address.")
    port: int | None = Field(default=None, description="1 to 65535.")
    scheme: str | None = Field(default=None, description="http (default) or https.")
    url: str | None = Field(default=None, description="In place of host and port; may have a path prefix.")
    profile: str | None = Field(
        default=None, description="The peer's dialect: spec (default), fate, kuscia or audited."
    )
    institution: str | None = Field(default=None, description="Who owns the node.")
    deadline: float | None = Field(default=None, description="Seconds that one call may take; default 10.")
    enabled: bool | None = Field(default=None, description="false keeps the entry and does not use it.")
    via: str | None = Field(default=None, description="In place of an address: the node that passes requests on.")
    relay: bool | None = Field(
        default=None, description="true: this node passes on what is from or for that node."
    )
    ca: str | None = Field(default=None, description="PEM file of the authorities of the peer's certificate.")
    certificate: str | None = Field(default=None, description="PEM file of the certificate shown to the peer.")
    key: str | None = Field(default=None, description="PEM file of its key.")
    server_name: str | None = Field(default=None, description="Name that the peer's certificate must bear.")
    peer_certificate: str | None = Field(
        default=None,
        description="What the certificate that the peer connects with must bear: subject alternative names, or "
        "sha256: and the digest of its public key, separated by commas; default: the node id.",
    )
    components: str | None = Field(
        default=None, description="What the node may have run here: provider/name patterns, separated by commas."
    )


class RouteEdit(BaseModel):
    """One change of one entry."""

    route: RouteEntry = Field(description="What the entry shall hold; null takes a key away.")
    reason: str = Field(default="", max_length=1000, description="Why; kept in the history.")
    author: str = Field(default="operator", min_length=1, max_length=255, description="Who; kept in the history.")


class Undo(BaseModel):
    """Who goes back to an earlier version, and why."""

    reason: str = Field(default="", max_length=1000)
    author: str = Field(default="operator", min_length=1, max_length=255)


NodeInPath = Annotated[str, Path(examples=["JG0100002200000020"], description="id of the other node")]
Expected = Annotated[
    int | None,
    NUMBER,
    Query(alias="version", description="the version that you looked at; another one in force is refused (409)"),
]
EXAMPLE = {"route": {"host": "10.0.0.7", "port": 7380}, "reason": "new partner", "author": "ann"}


def add_routes(router: APIRouter, parts: AdminParts, run: Answer) -> None:
    """Add the paths of the route table."""
    routes = parts.routes

    async def noted(request: Request, change: Callable[[], dict[str, Any]]) -> Any:
        """Do a change and leave to the audit what it changed."""

        def work() -> dict[str, Any]:
            done = change()
            request.state.audit = {"version": done["version"], "changes": done["changes"]}
            return done

        return await run(work)

    @router.get("/api/v1/routes", summary="The routes in force", response_model=None)
    async def shown(after: AfterText = "", limit: Limit = 100) -> Any:
        """By node id. ``next``: what to send as ``after`` for the next page; null on the last one."""
        return await run(lambda: _table(routes, after, limit))

    @router.get("/api/v1/routes/{node}", summary="One route", response_model=None)
    async def one(node: str) -> Any:
        return await run(lambda: {"version": routes.table.version, "route": _route(_known(routes, node))})

    @router.put("/api/v1/routes/{node}", summary="Add a route, or write its entry anew", response_model=None)
    async def put(
        request: Request,
        node: NodeInPath,
        edit: Annotated[RouteEdit, Body(examples=[EXAMPLE])],
        expected: Expected = None,
    ) -> Any:
        values = _given(edit, nulls=False)
        change = Change(node, values)
        author = named(request, edit.author)

        def work() -> Any:
            _not_own(parts.node, node, values)
            return _edited(routes, change, author, edit.reason, expected)

        return await noted(request, work)

    @router.patch("/api/v1/routes/{node}", summary="Change some keys of a route", response_model=None)
    async def patch(
        request: Request,
        node: NodeInPath,
        edit: Annotated[RouteEdit, Body(examples=[{"route": {"enabled": False}, "reason": "maintenance"}])],
        expected: Expected = None,
    ) -> Any:
        author = named(request, edit.author)

        def work() -> Any:
            values = _given(edit, nulls=True)
            _not_own(parts.node, node, {**_route(_known(routes, node)), **values})
            change = Change(node, values, whole=False)
            return _edited(routes, change, author, edit.reason, expected)

        return await noted(request, work)

    @router.delete("/api/v1/routes/{node}", summary="Remove a route", response_model=None)
    async def remove(
        request: Request,
        node: NodeInPath,
        reason: Annotated[str, Query(max_length=1000, description="why; kept in the history")] = "",
        author: Annotated[str, Query(min_length=1, max_length=255, description="who")] = "operator",
        expected: Expected = None,
    ) -> Any:
        who = named(request, author)
        return await noted(request, lambda: _edited(routes, Change(node, None), who, reason, expected))

    @router.get("/api/v1/route-versions", summary="Who changed the routes, when and why", response_model=None)
    async def versions(after: AfterNumber = None, limit: Limit = 100) -> Any:
        def work() -> dict[str, Any]:
            found = routes.history(after, limit + 1)
            return {
                "versions": [_listed(routes, v) for v in found[:limit]],
                "next": found[limit - 1].number if len(found) > limit else None,
            }

        return await run(work)

    @router.get("/api/v1/route-versions/{number}", summary="One version, with its difference", response_model=None)
    async def version(
        number: Annotated[int, NUMBER],
        since: Annotated[
            int | None, NUMBER, Query(description="version to compare with; default: the one before")
        ] = None,
    ) -> Any:
        return await run(lambda: _version(routes, number, since))

    @router.post(
        "/api/v1/route-versions/{number}/rollback",
        summary="Make the routes what they were at a version",
        response_model=None,
    )
    async def rollback(
        request: Request,
        number: Annotated[int, NUMBER, Path(examples=[1])],
        undo: Annotated[Undo, Body(examples=[{"reason": "the new address was wrong", "author": "ann"}])],
        expected: Expected = None,
    ) -> Any:
        author = named(request, undo.author)
        return await noted(
            request, lambda: _accepted(routes, lambda: routes.rollback(number, author, undo.reason, expected))
        )

    @router.post(
        "/api/v1/routes/{node}/test",
        summary="Try a route in both directions, step by step",
        response_model=None,
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": _NOTHING}}}},
    )
    async def test(node: Annotated[str, Path(examples=["JG0100002200000020"])]) -> Any:
        def work() -> dict[str, Any]:
            steps = parts.try_route(node)
            return {"node": node, "good": good(steps), "steps": to_plain(steps)}

        with anyio.move_on_after(_LONGEST_TRIAL):
            return await anyio.to_thread.run_sync(work, limiter=parts.limiters.peers, abandon_on_cancel=True)
        return refusal(PeerUnreachable(f"the trial of {node} did not end within {_LONGEST_TRIAL:g} s"))


def _given(edit: RouteEdit, *, nulls: bool) -> dict[str, Any]:
    said = edit.route.model_dump(exclude_unset=True)
    return said if nulls else {key: value for key, value in said.items() if value is not None}


def _table(routes: LiveRoutes, after: str, limit: int) -> dict[str, Any]:
    table = routes.table
    page = page_of(table.routes.values(), lambda route: (route.node,), after, limit)
    return {
        "version": table.version,
        "file": str(routes.path) if routes.path else None,
        "problems": [str(p) for p in routes.problems],
        "routes": [_route(route) for route in page.entries],
        "total": page.total,
        "next": page.next,
    }


def _route(route: Route) -> dict[str, Any]:
    return {f.name: getattr(route, f.name) for f in fields(route)}


def _not_own(me: str, node: str, values: Mapping[str, Any]) -> None:
    """Refuse an entry for this node itself, unless it is for its further gateways. Raises `Invalid`."""
    if node != me or any(values.get(key) for key in _FILES):
        return
    rule = (
        "is this node's own id, and a node needs no route to itself: name the partner's id (an entry that is there"
        " does nothing, and can be removed); only several gateways of one node on one database have such an entry,"
        f" for their {', '.join(_FILES)}"
    )
    raise Invalid([Problem(node, rule)], reason="ROUTE_INVALID")


def _known(routes: LiveRoutes, node: str) -> Route:
    found = routes.table.routes.get(node)
    if found is None:
        raise _no_route(UnknownNode(node, routes.table.version))
    return found


def _no_route(error: UnknownNode) -> NotFound:
    return NotFound(str(error), reason="NODE_UNKNOWN")


def _edited(routes: LiveRoutes, change: Change, author: str, reason: str, expected: int | None) -> dict[str, Any]:
    return _accepted(routes, lambda: routes.edit(change, author, reason, expected))


def _accepted(routes: LiveRoutes, work: Any) -> dict[str, Any]:
    """Do a change and answer with its version. Raises `Invalid`, `Conflict`, `NotFound`."""
    try:
        version = work()
        return {**_listed(routes, version), "not_in_file": _not_in_file(routes)}
    except InvalidRoutes as error:
        problems = [Problem(p.path, _LINE.sub("", p.rule), p.got) for p in error.problems]
        raise Invalid(problems, reason="ROUTE_INVALID") from error
    except StaleVersion as error:
        raise Conflict(str(error), reason="VERSION_STALE") from error
    except UnknownNode as error:
        raise _no_route(error) from error
    except UnknownVersion as error:
        raise NotFound(str(error), reason="VERSION_UNKNOWN") from error


def _not_in_file(routes: LiveRoutes) -> list[str]:
    """Return why a change in force is not in the file; nothing where it is there within a second or two."""
    return [f"{routes.path}: {problem}" for problem in (routes.look_at_file() or routes.problems)]


def _listed(routes: LiveRoutes, version: Version) -> dict[str, Any]:
    before = _before(routes, version)
    return {
        "version": version.number,
        "at": version.at.isoformat(),
        "author": version.author,
        "reason": version.reason,
        "source": version.source,
        "changes": [] if version.unchanged else [c._asdict() for c in changes(_parsed(before), _parsed(version))],
    }


def _version(routes: LiveRoutes, number: int, since: int | None) -> Mapping[str, Any]:
    try:
        version = routes.version(number)
        before = _before(routes, version) if since is None else routes.version(since)
    except UnknownVersion as error:
        raise NotFound(str(error), reason="VERSION_UNKNOWN") from error
    return {
        **_listed(routes, version),
        "changes": [c._asdict() for c in changes(_parsed(before), _parsed(version))],
        "diff": text_diff(before, version),
        "text": version.text,
    }


def _before(routes: LiveRoutes, version: Version) -> Version | None:
    return routes.version(version.number - 1) if version.number > 1 else None


def _parsed(version: Version | None) -> RouteTable:
    return RouteTable() if version is None else parse(version.text, version.number)
