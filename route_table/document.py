"""Reads a route table from YAML, strictly.

A table has one entry per node. The node's address is given as ``host`` and ``port`` with an
optional ``scheme``, as a ``url`` that may have a path prefix, or as ``via``, the node that passes
requests on; all keys are in `keys.KEYS`. The entry ``default`` serves nodes without an entry.
An unknown key is refused, since a misspelled ``enabled`` would leave a route open. Every problem is
reported with its path and line.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import yaml

from route_table.entries import (
    ROOT,
    Entry,
    describe,
    is_null,
    key_text,
    line_of,
    read_route,
    refusal,
)
from route_table.model import (
    DEFAULT_ENTRY,
    NODE_ID,
    NODE_RULE,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
    join,
    short,
)

MAX_TEXT = 4 * 1024 * 1024  # characters of a document
MAX_DEPTH = 8  # levels of nesting; a table needs two
MAX_PROBLEMS = 200  # reported for one document

_MAX_CAUSE = 200  # characters of the parser's message that a problem repeats
# A line {}, perhaps with a comment. [ \t] and not \s, which would also run across lines.
_EMPTY_TABLE = re.compile(r"^[ \t]*\{\}[ \t]*(?:#.*)?$", re.MULTILINE)
# Event of the YAML parser -> the change of the depth of nesting after it.
_DEPTH_CHANGES: Mapping[type, int] = {
    yaml.MappingStartEvent: 1,
    yaml.SequenceStartEvent: 1,
    yaml.MappingEndEvent: -1,
    yaml.SequenceEndEvent: -1,
}
# libyaml's loader is faster; it is missing where PyYAML was built without libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, version: int = 1) -> RouteTable:
    """Read a table from its YAML text, and give it a version number.

    Raises `InvalidRoutes` with every problem. An empty text is refused, since a file may be empty
    while an editor writes it; a table without routes is written ``{}``.
    """
    return RouteTable(version, _read_routes(text))


# An edit reads the old, the new and the currently effective text, and the old one is usually the
# effective one.
@lru_cache(maxsize=4)
def _read_routes(text: str) -> Mapping[str, Route]:
    """Return the routes of a text by node.

    Raises `InvalidRoutes` with the problems of all entries, at most `MAX_PROBLEMS`.
    """
    root = _entries(text)
    problems: list[Problem] = []
    routes: dict[str, Route] = {}
    lines: dict[str, int] = {}
    for key, value in root.value:
        node = key_text(key)
        line = line_of(key)
        path = join("", node)
        problems += _node_problems(node, line, lines.get(node))
        lines.setdefault(node, line)
        if isinstance(value, yaml.MappingNode):
            routes[node] = read_route(node, Entry(path, value, problems))
        else:
            rule = f"line {line_of(value)}: must be a mapping with host and port, or url"
            problems.append(Problem(path, rule, describe(value)))
    problems += _hop_problems(routes, lines)
    if problems:
        raise InvalidRoutes(_bounded(problems))
    return MappingProxyType(routes)


def _entries(text: str) -> yaml.MappingNode:
    """Return the mapping of node ids to entries. Raises `InvalidRoutes` for any other text."""
    root = _compose(text)
    if root is None or is_null(root):
        raise refusal("has no entries; write {} for a table without routes")
    if not isinstance(root, yaml.MappingNode):
        raise refusal(f"line {line_of(root)}: must map node ids to routes", describe(root))
    return root


def _node_problems(
    node: str,
    line: int,
    first_line: int | None,
) -> Iterator[Problem]:
    """Yield the problem of an invalid or duplicate node id.

    ``first_line`` is the line of an earlier entry with this id; None without one.
    """
    path = join("", node)
    if not NODE_ID.fullmatch(node):
        yield Problem(path, f"line {line}: {NODE_RULE}", short(node))
    elif first_line is not None:
        yield Problem(path, f"line {line}: duplicate key; first in line {first_line}")


def _bounded(problems: list[Problem]) -> tuple[Problem, ...]:
    """Return at most `MAX_PROBLEMS` problems, followed by a note if there are more."""
    if len(problems) <= MAX_PROBLEMS:
        return tuple(problems)
    rule = f"has more than the {MAX_PROBLEMS} problems listed here"
    return (*problems[:MAX_PROBLEMS], Problem(ROOT, rule))


# ------------------------------------------------------------ YAML


def _compose(text: str) -> yaml.Node | None:
    """Return the document's root node, with scalars as text; None if the document is empty.

    Raises `InvalidRoutes` for a text that is too long, is not YAML or nests too deeply.
    """
    if len(text) > MAX_TEXT:
        raise refusal(f"must not be longer than {MAX_TEXT} characters", len(text))
    try:
        _check_events(text)
        return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise refusal(_syntax_rule(text, error)) from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise refusal(f"is not YAML: {first_line[:_MAX_CAUSE]}") from error


def _syntax_rule(text: str, error: yaml.MarkedYAMLError) -> str:
    """Return the rule that a syntax error breaks, with a hint if entries follow ``{}``."""
    rule = f"is not YAML: {error.problem}"
    if error.problem_mark:
        rule = f"line {error.problem_mark.line + 1}: {rule}"
    if _EMPTY_TABLE.search(text):
        rule += "; remove the line {}, which stands for a table without routes"
    return rule


def _check_events(text: str) -> None:
    """Raise `InvalidRoutes` for deep nesting, anchors, aliases and tags.

    This check reads the parser's events before the composer runs, since the composer's recursion
    has no bound.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        # Only events that begin a node have an anchor, and only some of these have a tag.
        has_anchor = getattr(event, "anchor", None) is not None
        has_tag = getattr(event, "tag", None) is not None
        if has_anchor or has_tag:
            rule = "must not use anchors, aliases or tags; write the entry out"
            raise refusal(f"line {line_of(event)}: {rule}")
        depth += _DEPTH_CHANGES.get(type(event), 0)
        if depth > MAX_DEPTH:
            rule = f"must not nest deeper than {MAX_DEPTH} levels"
            raise refusal(f"line {line_of(event)}: {rule}", depth)


# ------------------------------------------------------------ next hops


def _hop_problems(
    routes: Mapping[str, Route],
    lines: Mapping[str, int],
) -> Iterator[Problem]:
    """Yield the problems of next hops: a ``via`` that names no entry, and circles of them.

    ``lines`` has the line of each entry, also of entries that could not be read.
    """
    visited: set[str] = set()
    for node, route in routes.items():
        if route.via is None:
            continue
        if route.via == DEFAULT_ENTRY or route.via not in lines:
            rule = "names a node without an entry of its own; add one that says how it is reached"
            yield _hop_problem(node, lines, rule, route.via)
        circle = _circle_after(node, routes, visited)
        if circle:
            rule = "leads in a circle; give one of its nodes an address"
            got = " via ".join(circle)
            yield _hop_problem(circle[0], lines, rule, got)


def _hop_problem(
    node: str,
    lines: Mapping[str, int],
    rule: str,
    got: str,
) -> Problem:
    """Return the problem of the ``via`` in a node's entry.

    ``lines`` has the line of each entry; ``got`` is the refused value, or the circle of nodes.
    """
    path = join(join("", node), "via")
    return Problem(path, f"line {lines[node]}: {rule}", short(got))


def _circle_after(
    node: str,
    routes: Mapping[str, Route],
    visited: set[str],
) -> list[str]:
    """Return the circle into which a node's next hops lead; its first node is repeated at the end.

    Empty if they lead to an address or to a node in ``visited``, which was followed before. The
    nodes that are followed now are added to ``visited``.
    """
    hops: list[str] = []
    hop: str | None = node
    while hop is not None and hop in routes and hop not in visited:
        visited.add(hop)
        hops.append(hop)
        hop = routes[hop].via
    if hop not in hops:
        return []
    return [*hops[hops.index(hop) :], hop]
