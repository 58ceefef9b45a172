"""Next hops: whether every ``via`` of a table leads to an address."""

from collections.abc import Iterator, Mapping

from route_table.model import DEFAULT_ENTRY, Problem, Route
from route_table.tree import short, step

_MOST_SHOWN = 10
"""nodes of a circle that a problem names"""


def problems(routes: Mapping[str, Route], lines: Mapping[str, int]) -> Iterator[Problem]:
    """Yield a problem for each ``via`` that names no entry, and one for each circle, naming those in it.

    ``lines`` tells where each entry stands, those too that are no routes for another reason.
    """
    seen: set[str] = set()
    for node, route in routes.items():
        if route.via is None:
            continue
        if route.via == DEFAULT_ENTRY or route.via not in lines:
            rule = "names a node without an entry of its own; add one that says how it is reached"
            yield Problem(_path(node), f"line {lines[node]}: {rule}", short(route.via))
        if node not in seen:
            circle = _circle(routes, node, seen)
            if circle:
                shown = circle if len(circle) <= _MOST_SHOWN else [*circle[:_MOST_SHOWN], "…", circle[-1]]
                rule = "leads in a circle; give one of its nodes an address"
                yield Problem(_path(circle[0]), f"line {lines[circle[0]]}: {rule}", " via ".join(shown))


def _circle(routes: Mapping[str, Route], node: str, seen: set[str]) -> list[str]:
    """Follow the hops from a node; return the circle that they end in, closed, if it was not seen before."""
    way: dict[str, None] = {}
    at: str | None = node
    while at is not None and at in routes and at not in seen:
        seen.add(at)
        way[at] = None
        at = routes[at].via
    if at is None or at not in way:
        return []
    trail = list(way)
    return [*trail[trail.index(at) :], at]


def _path(node: str) -> str:
    return step(step("", node), "via")
