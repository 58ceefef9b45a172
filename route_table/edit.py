"""Changes single routes in the text of a table, and leaves everything else in it, comments too, as it stands.

Only the lines of the one entry are rewritten. What comes out is read again; where the careful way does not give
the wanted table (a text in flow style, for instance), the table is written anew.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from route_table.document import Entries, Node, dump, parse, read
from route_table.model import InvalidRoutes, RouteTable


@dataclass(frozen=True)
class Change:
    """What a node's entry shall hold. A value of None takes the key away."""

    node: str
    values: Mapping[str, Any] | None
    """None: the entry is removed"""
    whole: bool = True
    """False: keys that are not named stay as they are"""


@dataclass(frozen=True)
class _Block:
    start: int
    """index of the entry's first line"""
    end: int
    """index after its last line"""


def apply(text: str, change: Change) -> str:
    """Return the text with one entry changed. Raises InvalidRoutes if the result is no route table."""
    before = parse(text)
    if change.values is None:
        wanted = {node: route for node, route in before.routes.items() if node != change.node}
    else:
        entry = dict(change.values) if change.whole else entry_values(text, change.node) | dict(change.values)
        alone = _alone(change.node, {key: value for key, value in entry.items() if value is not None})
        wanted = {**before.routes, **parse(alone, linked=False).routes}
    if wanted == before.routes:
        return text
    try:
        edited = _edited(text, change)
        if parse(edited).routes == wanted:
            return edited
    except (YAMLError, InvalidRoutes, ValueError):
        pass
    return dump(RouteTable(0, wanted))


def _alone(node: str, values: Mapping[str, Any]) -> str:
    """Write one entry as a document of its own."""
    return _dumped(CommentedMap({node: CommentedMap(values)}), 2)


def _edited(text: str, change: Change) -> str:
    lines = text.splitlines(keepends=True)
    block = _block(text, change.node)
    if block is None:
        if change.values is None:
            return text
        given = {key: value for key, value in change.values.items() if value is not None}
        return _appended(text, _alone(change.node, given))
    if change.values is None:
        left = "".join([*lines[: block.start], *lines[block.end :]])
        return left if len(parse(text).routes) > 1 else f"{left}{{}}\n"
    own = lines[block.start : block.end]
    document: CommentedMap = _yaml(_indent(own)).load("".join(own))
    key = next(iter(document))
    entry = document[key]
    if change.whole:
        for gone in [name for name in entry if name not in change.values]:
            del entry[gone]
    for name, value in change.values.items():
        if value is None:
            entry.pop(name, None)
        else:
            entry[name] = value
    return "".join([*lines[: block.start], _dumped(document, _indent(own)), *lines[block.end :]])


def _appended(text: str, entry: str) -> str:
    root = read(text)
    if isinstance(root, Entries) and not root.items:  # {}
        kept = [line for line in text.splitlines(keepends=True) if not line.strip().startswith("{}")]
        return "".join(kept) + entry
    return text + ("" if text.endswith("\n") else "\n") + entry


def entry_values(text: str, node: str) -> dict[str, Any]:
    """Return what is written in a node's entry, each value as the text it is; nothing if there is none."""
    root = read(text)
    for key, value in root.items if isinstance(root, Entries) else ():
        if key.text == node and isinstance(value, Entries):
            return {k.text: getattr(v, "text", None) for k, v in value.items}
    return {}


def _block(text: str, node: str) -> _Block | None:
    """Find the lines of a node's entry: from its key to its last value."""
    root = read(text)
    for key, value in root.items if isinstance(root, Entries) else ():
        if key.text == node:
            return _Block(key.line - 1, _last_line(value))
    return None


def _last_line(node: Node) -> int:
    if isinstance(node, Entries):
        return max([node.line, node.last, *(_last_line(value) for _, value in node.items)])
    return node.line


def _indent(lines: list[str]) -> int:
    inner = next((line for line in lines[1:] if line.strip() and not line.lstrip().startswith("#")), "  ")
    return max(len(inner) - len(inner.lstrip(" ")), 1)


def _yaml(indent: int) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=indent)
    return yaml


def _dumped(document: CommentedMap, indent: int) -> str:
    out = io.StringIO()
    _yaml(indent).dump(document, out)
    return out.getvalue()
