"""The YAML form of a route table, read strictly and written back.

One entry per node: ``host`` and ``port`` with an optional ``scheme``, a ``url`` that may have a path prefix, or
``via``, the node that passes on; the other keys are in `route_table.entry.KEYS`. The entry ``default`` serves
nodes without one. A key that is not known is refused, since a misspelled ``enabled`` would leave a route open.
Every problem is told at once, with its path and line.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType

import yaml

from route_table import hops
from route_table.entry import MAX_PROBLEMS, NODE_ID, NODE_RULE, Entry, route_of
from route_table.model import (
    DEFAULT_DEADLINE,
    DEFAULT_PROFILE,
    Identity,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
)
from route_table.tree import ROOT, Entries, Items, Node, Scalar, kind, short, step

MAX_TEXT = 4 * 1024 * 1024
"""characters of a document"""
MAX_DEPTH = 8
MAX_EVENTS = 200_000
"""keys, values and marks; about 10,000 entries with every key"""
MAX_ROUTES = 20_000

_IDENTITY = tuple(field.name for field in fields(Identity))
_SMALL = 1 << 18
"""characters of a text whose tree is kept for the next step of the same edit"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, version: int = 1, *, linked: bool = True) -> RouteTable:
    """Read a table from its YAML text; ``version`` is what the table will call itself.

    ``linked``: False for a part of a table, of which next hops may be missing. Raises InvalidRoutes with every
    problem. A text without any entry is refused, as half-written files look like that; an empty table is written
    ``{}``.
    """
    return RouteTable(version, _routes(text, linked))


@lru_cache(maxsize=4)  # an edit asks for the same text several times: before, after, and when it is taken up
def _routes(text: str, linked: bool) -> Mapping[str, Route]:
    root = read(text)
    if not isinstance(root, Entries):
        if root is None or (isinstance(root, Scalar) and root.is_null):
            raise InvalidRoutes((Problem(ROOT, "has no entries; write {} for a table without routes"),))
        rule = f"line {root.line}: must map node ids to routes"
        raise InvalidRoutes((Problem(ROOT, rule, kind(root)),))
    if len(root.items) > MAX_ROUTES:
        rule = f"must not hold more than {MAX_ROUTES} routes"
        raise InvalidRoutes((Problem(ROOT, rule, len(root.items)),))
    problems: list[Problem] = []
    routes: dict[str, Route] = {}
    lines: dict[str, int] = {}
    for key, value in root.items:
        node = key.text
        path = step("", node)
        if not NODE_ID.fullmatch(node):
            problems.append(Problem(path, f"line {key.line}: {NODE_RULE}", short(node)))
        elif node in lines:
            rule = f"line {key.line}: is given a second time; first in line {lines[node]}"
            problems.append(Problem(path, rule))
        lines.setdefault(node, key.line)
        if isinstance(value, Entries):
            routes[node] = route_of(node, Entry(node, value, problems))
        else:
            rule = f"line {value.line}: must be a mapping with host and port, or url"
            problems.append(Problem(path, rule, kind(value)))
        if len(problems) > MAX_PROBLEMS:
            break
    if linked and len(problems) <= MAX_PROBLEMS:
        problems += hops.problems(routes, lines)
    if problems:
        if len(problems) > MAX_PROBLEMS:
            problems[MAX_PROBLEMS:] = [Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")]
        raise InvalidRoutes(tuple(problems))
    return MappingProxyType(routes)


def dump(table: RouteTable) -> str:
    """Write a table as YAML that `parse` reads into the same routes. Ids and texts are quoted."""
    if not table.routes:
        return "{}\n"
    entries = []
    for node, route in table.routes.items():
        at = f"  via: {_quoted(route.via)}" if route.via is not None else f"  url: {_quoted(route.url)}"
        lines = [f"{_quoted(node)}:", at]
        if route.profile != DEFAULT_PROFILE:
            lines.append(f"  profile: {_quoted(route.profile)}")
        if route.institution is not None:
            lines.append(f"  institution: {_quoted(route.institution)}")
        if route.deadline != DEFAULT_DEADLINE:
            lines.append(f"  deadline: {_decimal(route.deadline)}")
        if not route.enabled:
            lines.append("  enabled: false")
        if route.peer_certificate:
            lines.append(f"  peer_certificate: {_quoted(', '.join(route.peer_certificate))}")
        if route.components:
            lines.append(f"  components: {_quoted(', '.join(route.components))}")
        if route.relay:
            lines.append("  relay: true")
        lines += [
            f"  {key}: {_quoted(getattr(route, key))}" for key in _IDENTITY if getattr(route, key) is not None
        ]
        entries.append("\n".join(lines))
    return "\n".join(entries) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _decimal(number: float) -> str:
    """Write a number without an exponent."""
    text = repr(number).removesuffix(".0")
    return f"{number:.18f}" if "e" in text else text


def read(text: str) -> Node | None:
    """Return the tree of a document's text, None if it holds nothing but comments.

    The parser's events are read one by one, so a key such as ``0123``, ``no`` or ``22:30`` stays the text it is, a
    repeated key is seen, and what could grow without bound (depth, aliases, length) ends the reading at once.
    """
    return _kept_tree(text) if len(text) <= _SMALL else _tree(text)


def _tree(text: str) -> Node | None:
    if len(text) > MAX_TEXT:
        raise _refusal(f"must not be longer than {MAX_TEXT} characters", len(text))
    try:
        return _document(_events(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        hint = (
            "; the line {} stands for a table without routes and goes when there are some" if _ended(text) else ""
        )
        raise _refusal(f"{where}is not YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise _refusal(f"is not YAML: {reason}") from error


def _ended(text: str) -> bool:
    """Tell whether a line of its own says that there are no routes."""
    return any(line.partition("#")[0].strip() == "{}" for line in text.splitlines())


_kept_tree = lru_cache(maxsize=2)(_tree)


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield the parser's events up to the bounds, refusing those that have no place in a route table."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MAX_EVENTS:
            raise _refusal(f"line {_line(event)}: must not hold more than {MAX_EVENTS} values and marks", count)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if event.anchor is not None:
                shown = short(f"&{event.anchor}")
                raise _refusal(f"line {_line(event)}: must not use anchors; write the entry out", shown)
            if event.tag is not None:
                raise _refusal(f"line {_line(event)}: must not use tags", short(event.tag))
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise _refusal(f"line {_line(event)}: must not nest deeper than {MAX_DEPTH} levels", depth)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            rule = f"line {_line(event)}: must not use aliases; write the entry out"
            raise _refusal(rule, short(f"*{event.anchor}"))
        yield event


def _document(events: Iterator[yaml.Event]) -> Node | None:
    root: Node | None = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _refusal(f"line {_line(event)}: must hold one document only", "a second document")
        elif isinstance(event, yaml.NodeEvent):
            root = _node(event, events)
    return root


def _node(event: yaml.Event, events: Iterator[yaml.Event]) -> Node:
    """Read the node that begins with an event; its depth is bounded by `_events`."""
    line = _line(event)
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(event.value, event.style is None or event.style == "", line)
    if isinstance(event, yaml.SequenceStartEvent):
        while not isinstance(following := next(events), yaml.SequenceEndEvent):
            _node(following, events)
        return Items(line)
    items: list[tuple[Scalar, Node]] = []
    while not isinstance(following := next(events), yaml.MappingEndEvent):
        key = _node(following, events)
        if not isinstance(key, Scalar):
            raise _refusal(f"line {key.line}: must have text for a key", "a list or a mapping")
        items.append((key, _node(next(events), events)))
    braces = isinstance(event, yaml.MappingStartEvent) and event.flow_style
    return Entries(tuple(items), line, _line(following) if braces else 0)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _refusal(rule: str, got: object = None) -> InvalidRoutes:
    return InvalidRoutes((Problem(ROOT, rule, got),))
