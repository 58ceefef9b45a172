"""``/api/v1/routes``: the route table as administrators see and change it; every change is a
version.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, ConfigDict, Field, create_model

from gateway.admin.deps import (
    OPERATOR,
    AfterNumber,
    AfterText,
    Authored,
    Empty,
    Limit,
    Number,
    Reply,
    api_router,
    author_of,
    content,
    service,
)
from gateway.admin.responses import partners as responses
from gateway.admin.route_tests import RouteTests, RouteTestStream
from gateway.domain.pacing import PaceState
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.domain.volumes import RecentVolumes
from gateway.errors import Conflict, Invalid, NotFound
from gateway.http.pagination import numbered_page, page_of
from gateway.links.links import Connector
from gateway.runtime.trials import ignore
from route_table.document import parse
from route_table.editing import Change, missing_components
from route_table.keys import KEYS
from route_table.live import LiveRoutes, StaleVersion, UnknownVersion, Version, changes, text_diff
from route_table.model import (
    DEFAULT_ENTRY,
    FATE_PARTNER,
    InvalidRoutes,
    Route,
    RouteTable,
    UnknownNode,
    join,
    switch_word,
)
from route_table.proof import UNPROVEN, ListenerProof, mending_command, proof_of

_CERTIFICATE_KEYS = ("ca", "certificate", "server_name")  # of an entry
# Beginning of a problem of the route file. It is removed for a request, which has no lines.
_LINE = re.compile(r"^line \d+: ")
# Text with the word off, which YAML's words for false stand for, too.
_SwitchWord = Annotated[str, BeforeValidator(switch_word)]
# Types of the keys of an entry that are not plain text.
_TYPES: dict[str, Any] = {
    "port": int,
    "deadline": float,
    "parallel": int,
    "bandwidth": int | str,
    "enabled": bool,
    "relay": bool,
    "signing": _SwitchWord,
    "sealing": _SwitchWord,
    "control_sealing": _SwitchWord,
}
_FIELDS: dict[str, Any] = {
    key: (
        _TYPES.get(key, str) | None,
        Field(None, description=row.about),
    )
    for key, row in KEYS.items()
}
_ABOUT = (
    "The keys of an entry, as in the file: ``host`` and ``port`` (and ``scheme``), or ``url``, "
    "or ``via``."
)
RouteEntry = create_model(
    "RouteEntry",
    __config__=ConfigDict(extra="allow"),
    __doc__=_ABOUT,
    **_FIELDS,
)


class RouteEdit(Authored):
    """One change of one entry."""

    route: RouteEntry = Field(description="What the entry shall hold; null removes a key.")


NodeInPath = Annotated[
    str, Path(examples=["JG0100002200000020"], description="id of the other node")
]
Expected = Annotated[
    Number | None,
    Query(
        alias="version",
        description="the version that you looked at; refused (409) if another one is in force",
    ),
]
_PUT_EXAMPLE = {
    "route": {"host": "10.0.0.7", "port": 7380},
    "reason": "new partner",
    "author": "ann",
}
_PATCH_EXAMPLE = {"route": {"enabled": False}, "reason": "maintenance"}
_ROLLBACK_EXAMPLE = {"reason": "the new address was wrong", "author": "ann"}


@dataclass(frozen=True)
class RouteServices:
    """The services that the paths of routes use."""

    node: NodeId  # this node
    routes: LiveRoutes
    tests: RouteTests
    # Whether a node must sign its requests as FATE's sites do.
    signs_as_fate: Callable[[NodeId], bool]
    listener: ListenerProof  # what the listener for peers demands of all nodes
    links: Connector  # the links that stand
    volumes: Callable[[NodeId], RecentVolumes]  # bytes exchanged with a node
    sending: Callable[[NodeId], PaceState | None]  # None: without a limit
    receiving: Callable[[NodeId], PaceState | None]


_Services = Annotated[RouteServices, Depends(service(RouteServices))]
router = api_router()


@router.get(
    "/routes",
    summary="The routes in force",
    response_model=responses.RoutesPage,
    name="listed",
)
def list_routes(
    services: _Services,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    routes = services.routes
    table = routes.table
    show = partial(_with_proof, services)
    page = page_of("routes", table.routes.values(), _sort_key, after, limit, show)
    file = None
    if routes.path:
        file = str(routes.path)
    return Reply(
        {
            "version": table.version,
            "file": file,
            "problems": [str(problem) for problem in routes.problems],
            **page,
        }
    )


@router.get(
    "/routes/{node}",
    summary="One route",
    response_model=responses.OneRoute,
    name="one",
)
def get_route(services: _Services, node: str) -> Response:
    table = services.routes.table
    route = _with_proof(services, _find(table, node))
    return Reply(
        {
            "version": table.version,
            "route": route,
            "traffic": services.volumes(node),
            "sending": services.sending(node),
            "receiving": services.receiving(node),
        }
    )


@router.put(
    "/routes/{node}",
    summary="Add a route, or replace its entry",
    response_model=responses.NewRouteVersion,
)
def put(
    request: Request,
    services: _Services,
    node: NodeInPath,
    edit: Annotated[RouteEdit, Body(examples=[_PUT_EXAMPLE])],
    expected: Expected = None,
) -> Response:
    values = _with_signing(services, node, edit.route.model_dump(exclude_none=True))
    _check_entry(services, node, values)
    return _edit(request, services.routes, Change(node, values), edit, expected)


@router.patch(
    "/routes/{node}",
    summary="Change fields of a route",
    response_model=responses.NewRouteVersion,
)
def patch(
    request: Request,
    services: _Services,
    node: NodeInPath,
    edit: Annotated[RouteEdit, Body(examples=[_PATCH_EXAMPLE])],
    expected: Expected = None,
) -> Response:
    values = edit.route.model_dump(exclude_unset=True)  # null stays: it removes a key
    route = _find(services.routes.table, node)
    _check_entry(services, node, {**asdict(route), **values})
    return _edit(request, services.routes, Change(node, values, replaces=False), edit, expected)


@router.delete(
    "/routes/{node}",
    summary="Remove a route",
    response_model=responses.NewRouteVersion,
)
def remove(
    request: Request,
    services: _Services,
    node: NodeInPath,
    reason: Annotated[str, Query(max_length=1000, description="why; kept in the history")] = "",
    author: Annotated[
        str,
        Query(min_length=1, max_length=255, description="who"),
    ] = OPERATOR,
    expected: Expected = None,
) -> Response:
    authored = Authored(reason=reason, author=author)
    return _edit(request, services.routes, Change(node, values=None), authored, expected)


@router.get(
    "/route-versions",
    summary="Who changed the routes, when and why",
    response_model=responses.VersionsPage,
)
def versions(
    services: _Services,
    after: AfterNumber = None,
    limit: Limit = 100,
) -> Response:
    # The newest come first. One more than requested shows whether there is a next page.
    history = services.routes.history(before=after, limit=limit + 1)
    show = partial(_version_fields, services.routes)
    return Reply(numbered_page("versions", history, limit, "number", show))


@router.get(
    "/route-versions/{number}",
    summary="One version, with its difference",
    response_model=responses.FullRouteVersion,
)
def version(
    services: _Services,
    number: Number,
    since: Annotated[
        Number | None, Query(description="version to compare with; default: the one before")
    ] = None,
) -> Response:
    routes = services.routes
    try:
        after = routes.version(number)
        if since is None:
            before = _version_before(routes, after)
        else:
            before = routes.version(since)
    except UnknownVersion as error:
        raise NotFound(str(error), reason="VERSION_UNKNOWN") from error
    return Reply(
        {
            **_version_fields(routes, after),
            "changes": _changes(before, after),
            "diff": text_diff(before, after),
            "text": after.text,
        }
    )


@router.post(
    "/route-versions/{number}/rollback",
    summary="Roll the routes back to a version",
    response_model=responses.NewRouteVersion,
)
def rollback(
    request: Request,
    services: _Services,
    number: Annotated[Number, Path(examples=[1])],
    undo: Annotated[Authored, Body(examples=[_ROLLBACK_EXAMPLE])],
    expected: Expected = None,
) -> Response:
    author = author_of(request, undo.author)
    routes = services.routes
    change = partial(routes.rollback, number, author, undo.reason, expected)
    return _apply(request, routes, change)


@router.post(
    "/routes/{node}/test",
    summary="Test a route in both directions, step by step",
    response_model=responses.RouteTest,
    responses=content("text/event-stream"),
)
async def test(
    services: _Services,
    node: NodeInPath,
    body: Empty = None,
    follow: Annotated[
        bool, Query(description="1: server-sent events, one for each step as it was taken")
    ] = False,
) -> Response:
    """A stream has an event ``step`` with each step, and at last ``end`` with the whole result.

    ``problem`` in place of ``end`` has a ``message``: the test took too long.
    """
    if follow:
        return RouteTestStream(services.tests, node)
    return Reply(await services.tests.take(node, ignore))


def _sort_key(route: Route) -> tuple[str]:
    return (route.node,)


def _with_proof(services: RouteServices, route: Route) -> responses.Route:
    """Return a route with its links and what proves the requests of its node.

    No node sends requests by this node's own entry, or by the default entry.
    """
    if route.node in (services.node, DEFAULT_ENTRY):
        return responses.Route(**vars(route))
    links = services.links.of(route.node)
    standing = []
    for link in links.standing:
        standing.append(
            responses.RouteLink(
                link.since,
                link.address,
                link.dials_out,
                link.gateway,
            )
        )
    failure = None
    if links.last_failure is not None:
        failure = responses.LinkFailure(**vars(links.last_failure))
    proof = proof_of(route, services.listener)
    remedy = ""
    if proof in UNPROVEN:
        remedy = mending_command(route)
    return responses.Route(
        **vars(route),
        proof=proof,
        remedy=remedy,
        links=standing,
        link_failure=failure,
    )


def _find(table: RouteTable, node: str) -> Route:
    """Return the route of a node. Raises `NotFound` without one."""
    route = table.routes.get(node)
    if route is None:
        raise NotFound(
            str(UnknownNode(node, table.version)),
            reason="NODE_UNKNOWN",
        )
    return route


def _with_signing(
    services: RouteServices,
    node: NodeId,
    entry: dict[str, Any],
) -> dict[str, Any]:
    """Return a new entry with ``signing: required`` if it says nothing about signing.

    By default, the gateway accepts only requests of the node that are proven. This node's own entry
    and the default entry need no proof. An entry of a FATE partner stays as it is if the partner's
    site has to sign. Raises `Invalid` (ROUTE_INVALID) if that site need not sign.
    """
    if node in (services.node, DEFAULT_ENTRY) or entry.get("signing"):
        return entry
    if entry.get("profile") != FATE_PARTNER:
        return {**entry, "signing": "required"}
    if services.signs_as_fate(node):
        return entry
    rule = (
        "is missing: fate.sites expects no signature of this node; say off if its requests need "
        "no proof"
    )
    raise Invalid(
        [Problem(join(join("", node), "signing"), rule)],
        reason="ROUTE_INVALID",
    )


def _check_entry(
    services: RouteServices,
    node: NodeId,
    entry: Mapping[str, Any],
) -> None:
    """Raise `Invalid` for an entry that a node must not get.

    Such an entry is a route of this node to itself, unless it names certificates; or an entry
    without ``components``, if the node's present route lists components; or one that requires
    seals, and has no key for them.
    """
    names_certificates = any(entry.get(key) for key in _CERTIFICATE_KEYS)
    if node == services.node and not names_certificates:
        rule = (
            "is this node's own id, and a node needs no route to itself: name the partner's id; "
            "only several gateways of one node on one database have such an entry, for their "
            f"{', '.join(_CERTIFICATE_KEYS)}"
        )
        raise Invalid([Problem(node, rule)], reason="ROUTE_INVALID")
    before = services.routes.table.routes.get(node)
    lists_components = before is not None and bool(before.components)
    if lists_components and not entry.get("components"):
        raise Invalid([missing_components(node)], reason="ROUTE_INVALID")
    if node == DEFAULT_ENTRY:
        return
    demands_before: list[str] = []
    if before is not None:
        demands_before = _unkeyed_demands(asdict(before))
    # An entry that has been so can still be disabled, for instance.
    new_demands = [key for key in _unkeyed_demands(entry) if key not in demands_before]
    if new_demands:
        problems = [_missing_sealing_key(node, key) for key in new_demands]
        raise Invalid(problems, reason="ROUTE_INVALID")


def _unkeyed_demands(entry: Mapping[str, Any]) -> list[str]:
    """Return the keys of an entry that require seals although it has no sealing key."""
    if entry.get("sealing_key"):
        return []
    return [key for key in ("sealing", "control_sealing") if entry.get(key) == "required"]


def _missing_sealing_key(node: str, key: str) -> Problem:
    """Return the problem of a ``key`` that requires seals without a sealing key."""
    rule = (
        "needs sealing_key, without which no message can be sent to the node: exchange "
        "invitations again (bfia-gateway partner accept --replace)"
    )
    return Problem(join(join("", node), key), rule)


def _edit(
    request: Request,
    routes: LiveRoutes,
    change: Change,
    edit: Authored,
    expected: int | None,
) -> Response:
    """Change one entry; ``expected``: the version that must be in force, None for any."""
    author = author_of(request, edit.author)
    return _apply(request, routes, partial(routes.edit, change, author, edit.reason, expected))


def _apply(
    request: Request,
    routes: LiveRoutes,
    change: Callable[[], Version],
) -> Response:
    """Change the table, record the change for the audit log, and reply with the new version."""
    try:
        version = _version_fields(routes, change())
    except InvalidRoutes as error:
        problems = [
            problem._replace(rule=_LINE.sub("", problem.rule)) for problem in error.problems
        ]
        raise Invalid(problems, reason="ROUTE_INVALID") from error
    except StaleVersion as error:
        raise Conflict(str(error), reason="VERSION_STALE") from error
    except UnknownNode as error:
        raise NotFound(str(error), reason="NODE_UNKNOWN") from error
    except UnknownVersion as error:
        raise NotFound(str(error), reason="VERSION_UNKNOWN") from error
    request.state.audit = {
        "version": version["version"],
        "changes": version["changes"],
    }
    not_in_file = [f"{routes.path}: {problem}" for problem in routes.problems]
    return Reply({**version, "not_in_file": not_in_file})


def _version_fields(routes: LiveRoutes, version: Version) -> dict[str, Any]:
    """Return a version as responses show it, with its changes since the version before."""
    differences = []
    if not version.unchanged:
        differences = _changes(_version_before(routes, version), version)
    return {
        "version": version.number,
        "at": version.at,
        "author": version.author,
        "reason": version.reason,
        "source": version.source,
        "changes": differences,
    }


def _changes(
    before: Version | None,
    after: Version,
) -> list[dict[str, Any]]:
    """Return the changed fields of routes between two versions."""
    return [change._asdict() for change in changes(_table_of(before), _table_of(after))]


def _version_before(routes: LiveRoutes, version: Version) -> Version | None:
    """Return the version before another one; None before the first."""
    if version.number <= 1:
        return None
    return routes.version(version.number - 1)


def _table_of(version: Version | None) -> RouteTable:
    """Return the table of a version; an empty one before the first version."""
    if version is None:
        return RouteTable()
    return parse(version.text, version.number)
