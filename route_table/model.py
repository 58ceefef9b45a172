"""The values of this room: a route to one node, and the table of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PROFILES = ("spec", "fate", "kuscia", "audited")
DEFAULT_PROFILE = "spec"
DEFAULT_DEADLINE = 10.0


class Problem(NamedTuple):
    """One thing wrong in an input: where, which rule, and what was found there."""

    path: str
    rule: str
    got: Any = None

    def __str__(self) -> str:
        got = repr(self.got)
        return f"{self.path}: {self.rule} (got {got if len(got) <= 200 else got[:200] + '…'})"


class InvalidRoutes(Exception):
    """A route table cannot be used; ``problems`` holds every reason with its path."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems[:20])))
        self.problems = problems


class UnknownNode(Exception):
    """The table has no route to a node that may be used. The message says how to add one."""

    def __init__(self, node: str, version: int, disabled: bool = False) -> None:
        self.node = node
        self.version = version
        self.disabled = disabled
        shown = node if len(node) <= 128 else node[:128] + "…"
        if disabled:
            text = (
                f"the route to node {shown!r} is disabled in version {version} of the route table; "
                f"set enabled: true in its entry"
            )
        else:
            text = (
                f"node {shown!r} has no route in version {version} of the route table; "
                f"add an entry under {shown!r} with its host and port, or its url"
            )
        super().__init__(text)


@dataclass(frozen=True)
class Route:
    """How one node is reached.

    ``url`` is scheme, host, port unless it is the scheme's own, and path prefix, without a slash at its end.
    ``profile`` names the peer's dialect, ``institution`` its owner where that is known. ``deadline`` is the
    time in seconds that one call may take. A disabled route is kept, but not used.
    """

    node: str
    url: str
    profile: str = DEFAULT_PROFILE
    institution: str | None = None
    deadline: float = DEFAULT_DEADLINE
    enabled: bool = True


@dataclass(frozen=True)
class RouteTable:
    """One version of all routes, by node id. Version 0 is the table before anything was read."""

    version: int = 0
    routes: Mapping[str, Route] = field(default_factory=dict)

    def resolve(self, node: str) -> Route:
        """Return the route to a node; raises UnknownNode if there is none, or it is disabled."""
        route = self.routes.get(node)
        if route is None or not route.enabled:
            raise UnknownNode(node, self.version, disabled=route is not None)
        return route

    def knows(self, node: str) -> bool:
        """Tell whether a node has an enabled route."""
        route = self.routes.get(node)
        return route is not None and route.enabled
