"""``/api/v1/routes``: the route table as administrators see and change it; every change is a version."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Body, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.deps import (
    OPERATOR,
    AdminParts,
    AfterNumber,
    AfterText,
    Limit,
    Number,
    api_router,
    named,
)
from gateway.admin.schemas import Model, Moment, NumberedPage, Page
from gateway.domain.problems import Problem
from gateway.errors import Conflict, Invalid, NotFound, PeerUnreachable
from gateway.http.pagination import page_of
from gateway.runtime.checks import Step, good
from route_table.document import parse
from route_table.edit import Change
from route_table.live import LiveRoutes, StaleVersion, UnknownVersion
from route_table.model import InvalidRoutes, Route, RouteTable, UnknownNode
from route_table.versions import Version, changes, text_diff

_LONGEST_TEST = 120.0
"""seconds"""
_NO_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "example": {}}}}}}
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


class Undo(BaseModel):
    """Who goes back to an earlier version, and why."""

    reason: str = Field(default="", max_length=1000, description="Why; kept in the history.")
    author: str = Field(default=OPERATOR, min_length=1, max_length=255, description="Who; kept in the history.")


class RouteEdit(Undo):
    """One change of one entry."""

    route: RouteEntry = Field(description="What the entry shall hold; null removes a key.")


class Routes(Page):
    """A page of the routes in force."""

    version: int
    file: str | None
    problems: list[str] = Field(description="why the file as it is now is not in force")
    routes: list[Route]


class OneRoute(Model):
    """One route, and the version of the table."""

    version: int
    route: Route


class RouteChange(Model):
    """One value of a route before and after."""

    node: str
    field: str = Field(description="empty: the whole route was added or removed")
    before: Any
    after: Any


class RouteVersion(Model):
    """Who changed the table when, why, and how."""

    version: int
    at: Moment
    author: str
    reason: str
    source: str = Field(examples=["api"])
    changes: list[RouteChange]


class NewRouteVersion(RouteVersion):
    """The version that a change made, which is in force."""

    not_in_file: list[str] = Field(
        description="why route_table.file cannot be used, and does not hold the change until it is corrected"
    )


class RouteVersions(NumberedPage):
    """A page of the versions of the route table."""

    versions: list[RouteVersion]


class FullRouteVersion(RouteVersion):
    """A version with its text, and the difference from the one before."""

    diff: str
    text: str


class RouteTest(Model):
    """A route test, step by step."""

    node: str
    good: bool
    steps: list[Step]


NodeInPath = Annotated[str, Path(examples=["JG0100002200000020"], description="id of the other node")]
Expected = Annotated[
    Number | None,
    Query(alias="version", description="the version that you looked at; another one in force is refused (409)"),
]
_PUT = {"route": {"host": "10.0.0.7", "port": 7380}, "reason": "new partner", "author": "ann"}
_PATCH = {"route": {"enabled": False}, "reason": "maintenance"}
_UNDO = {"reason": "the new address was wrong", "author": "ann"}


def router(parts: AdminParts) -> APIRouter:
    """Return the paths of the route table."""
    router = api_router()
    routes = parts.routes

    def edited(
        request: Request,
        node: str,
        values: Mapping[str, Any] | None,
        edit: Undo,
        expected: int | None,
        whole: bool,
    ) -> Any:
        change = Change(node, values, whole=whole)
        author = named(request, edit.author)
        return _changed(request, routes, lambda: routes.edit(change, author, edit.reason, expected))

    @router.get("/routes", summary="The routes in force", response_model=Routes)
    def listed(after: AfterText = "", limit: Limit = 100) -> Any:
        table = routes.table
        page = page_of(table.routes.values(), lambda route: (route.node,), after, limit)
        return {
            "version": table.version,
            "file": str(routes.path) if routes.path else None,
            "problems": [str(p) for p in routes.problems],
            **page.shown("routes"),
        }

    @router.get("/routes/{node}", summary="One route", response_model=OneRoute)
    def one(node: str) -> Any:
        return {"version": routes.table.version, "route": _known(routes, node)}

    @router.put("/routes/{node}", summary="Add a route, or write its entry anew", response_model=NewRouteVersion)
    def put(
        request: Request,
        node: NodeInPath,
        edit: Annotated[RouteEdit, Body(examples=[_PUT])],
        expected: Expected = None,
    ) -> Any:
        values = edit.route.model_dump(exclude_none=True)
        _refuse_own(parts.node, node, values)
        return edited(request, node, values, edit, expected, True)

    @router.patch("/routes/{node}", summary="Change some keys of a route", response_model=NewRouteVersion)
    def patch(
        request: Request,
        node: NodeInPath,
        edit: Annotated[RouteEdit, Body(examples=[_PATCH])],
        expected: Expected = None,
    ) -> Any:
        values = edit.route.model_dump(exclude_unset=True)
        _refuse_own(parts.node, node, {**asdict(_known(routes, node)), **values})
        return edited(request, node, values, edit, expected, False)

    @router.delete("/routes/{node}", summary="Remove a route", response_model=NewRouteVersion)
    def remove(
        request: Request,
        node: NodeInPath,
        reason: Annotated[str, Query(max_length=1000, description="why; kept in the history")] = "",
        author: Annotated[str, Query(min_length=1, max_length=255, description="who")] = OPERATOR,
        expected: Expected = None,
    ) -> Any:
        return edited(request, node, None, Undo(reason=reason, author=author), expected, True)

    @router.get("/route-versions", summary="Who changed the routes, when and why", response_model=RouteVersions)
    def versions(after: AfterNumber = None, limit: Limit = 100) -> Any:
        found = routes.history(after, limit + 1)
        return {
            "versions": [_shown(routes, v) for v in found[:limit]],
            "next": found[limit - 1].number if len(found) > limit else None,
        }

    @router.get(
        "/route-versions/{number}", summary="One version, with its difference", response_model=FullRouteVersion
    )
    def version(
        number: Number,
        since: Annotated[
            Number | None, Query(description="version to compare with; default: the one before")
        ] = None,
    ) -> Any:
        try:
            found = routes.version(number)
            before = _before(routes, found) if since is None else routes.version(since)
        except UnknownVersion as error:
            raise NotFound(str(error), reason="VERSION_UNKNOWN") from error
        return {
            **_shown(routes, found),
            "changes": _changes(before, found),
            "diff": text_diff(before, found),
            "text": found.text,
        }

    @router.post(
        "/route-versions/{number}/rollback",
        summary="Make the routes what they were at a version",
        response_model=NewRouteVersion,
    )
    def rollback(
        request: Request,
        number: Annotated[Number, Path(examples=[1])],
        undo: Annotated[Undo, Body(examples=[_UNDO])],
        expected: Expected = None,
    ) -> Any:
        author = named(request, undo.author)
        return _changed(request, routes, lambda: routes.rollback(number, author, undo.reason, expected))

    @router.post(
        "/routes/{node}/test",
        summary="Test a route in both directions, step by step",
        response_model=RouteTest,
        openapi_extra=_NO_BODY,
    )
    async def test(node: NodeInPath) -> Any:
        with anyio.move_on_after(_LONGEST_TEST):
            steps = await anyio.to_thread.run_sync(
                parts.try_route, node, limiter=parts.limiters.peers, abandon_on_cancel=True
            )
            return {"node": node, "good": good(steps), "steps": steps}
        raise PeerUnreachable(f"the test of the route to {node} did not end within {_LONGEST_TEST:g} s")

    return router


def _refuse_own(me: str, node: str, values: Mapping[str, Any]) -> None:
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
        raise NotFound(str(UnknownNode(node, routes.table.version)), reason="NODE_UNKNOWN")
    return found


def _changed(request: Request, routes: LiveRoutes, change: Callable[[], Version]) -> dict[str, Any]:
    """Change the table, leave the change to the audit log, and return its version."""
    try:
        done = _shown(routes, change())
    except InvalidRoutes as error:
        problems = [Problem(p.path, _LINE.sub("", p.rule), p.got) for p in error.problems]
        raise Invalid(problems, reason="ROUTE_INVALID") from error
    except StaleVersion as error:
        raise Conflict(str(error), reason="VERSION_STALE") from error
    except UnknownNode as error:
        raise NotFound(str(error), reason="NODE_UNKNOWN") from error
    except UnknownVersion as error:
        raise NotFound(str(error), reason="VERSION_UNKNOWN") from error
    request.state.audit = {"version": done["version"], "changes": done["changes"]}
    problems_of_file = routes.file_problems() or routes.problems  # none: it follows in two seconds
    return {**done, "not_in_file": [f"{routes.path}: {problem}" for problem in problems_of_file]}


def _shown(routes: LiveRoutes, version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "at": version.at,
        "author": version.author,
        "reason": version.reason,
        "source": version.source,
        "changes": [] if version.unchanged else _changes(_before(routes, version), version),
    }


def _changes(before: Version | None, after: Version) -> list[dict[str, Any]]:
    return [change._asdict() for change in changes(_parsed(before), _parsed(after))]


def _before(routes: LiveRoutes, version: Version) -> Version | None:
    return routes.version(version.number - 1) if version.number > 1 else None


def _parsed(version: Version | None) -> RouteTable:
    return RouteTable() if version is None else parse(version.text, version.number)
