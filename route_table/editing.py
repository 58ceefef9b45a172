"""Edits the YAML text of a route table.

An edit must not weaken a route by omission.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from route_table.document import parse
from route_table.model import Problem, Route, join


@dataclass(frozen=True)
class Change:
    """A change of one node's entry."""

    node: str
    values: Mapping[str, Any] | None  # None: the entry is removed; a value of None removes the key
    replaces: bool = True  # False: keys that are not in ``values`` stay as they are


# ------------------------------------------------------------ changes of one entry


def apply(text: str, change: Change) -> str:
    """Return the text with one entry changed; ``text`` itself if the routes stay the same.

    Raises `InvalidRoutes` if the result is not a valid route table.
    """
    # Imported late: the library that preserves comments takes a part of a node's start, and few
    # nodes change their routes.
    from route_table.yaml_edits import edited_text  # noqa: PLC0415

    return edited_text(text, change)


# ------------------------------------------------------------ edits that would weaken a route


def keep_signing(
    text: str,
    before: Mapping[str, Route],
) -> str:
    """Return the text with ``signing: required`` in each route that would lose it by omission.

    Such a route required signatures in ``before``, the routes that the text replaces, and now
    accepts unsigned requests by default: its last public key or its setting ``signing`` is gone. An
    explicit ``signing: accepted`` stays. A route that requires signatures and has no keys accepts
    no requests until it has a key again.
    """
    for node, route in parse(text).routes.items():
        former = before.get(node, route)  # a new route has lost nothing
        was_required = former.signing_mode == "required"
        if was_required and route.signing_mode == "accepted" and route.signing is None:
            change = Change(node, {"signing": "required"}, replaces=False)
            text = apply(text, change)
    return text


def problems_of_opened_routes(
    routes: Mapping[str, Route], before: Mapping[str, Route]
) -> Iterator[Problem]:
    """Yield a problem for each route that has lost its list of components.

    Such a route would allow every component. ``before`` are the routes that ``routes`` replace.
    """
    for node, route in routes.items():
        former = before.get(node, route)  # a new route has lost nothing
        if former.components and not route.components:
            yield missing_components(node)


def missing_components(node: str) -> Problem:
    """Return the problem of removing the list of components from a node's route."""
    rule = (
        "must not be removed, which would allow every component: "
        "say * for all, or disable the route"
    )
    return Problem(join(join("", node), "components"), rule)
