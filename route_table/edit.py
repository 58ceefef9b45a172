"""Changes entries in the text of a table; comments and style of the rest stay as they are."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tokens import CommentToken

from route_table.document import ADDRESS_KEYS, ROOT, TLS_KEYS, parse
from route_table.model import InvalidRoutes, Problem


@dataclass(frozen=True)
class Change:
    """What a node's entry shall hold. A value of None removes the key."""

    node: str
    values: Mapping[str, Any] | None
    """None: the entry is removed"""
    whole: bool = True
    """False: keys that are not named stay as they are"""


def apply(text: str, change: Change) -> str:
    """Return the text with one entry changed. Raises InvalidRoutes if the result is not a valid route table."""
    yaml = _yaml(text)
    try:
        document: CommentedMap = yaml.load(text)
    except (YAMLError, ValueError) as error:
        raise InvalidRoutes((Problem(ROOT, f"cannot be edited; correct it in the file: {error}"),)) from error
    if change.values is None:
        _remove(document, change.node)
    elif change.node in document:
        below = _take_below(document, change.node)
        _update(document[change.node], change)
        _put_below(document, change.node, below)
    else:
        if not document:
            document.fa.set_block_style()  # the table was {}
        document[change.node] = CommentedMap(_texts(change.values))
    out = io.StringIO()
    yaml.dump(document, out)
    edited = out.getvalue()
    return text if parse(edited).routes == parse(text).routes else edited


def _update(entry: CommentedMap, change: Change) -> None:
    """Set and remove keys; another kind of address replaces the one that was there."""
    values = dict(change.values or {})
    if not change.whole:
        given = {key for key, value in values.items() if value is not None}
        if "via" in given:
            values |= dict.fromkeys({"url", *ADDRESS_KEYS, *TLS_KEYS} - given)
        elif "url" in given:
            values |= dict.fromkeys(("via", *ADDRESS_KEYS))
        elif given & set(ADDRESS_KEYS):
            values |= dict.fromkeys(("via", "url"))
    entry.update(_texts(values))
    for key in [key for key in entry if values.get(key) is None and (change.whole or key in values)]:
        del entry[key]
        entry.ca.items.pop(key, None)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
        if value is not None
    }


def _remove(document: CommentedMap, node: str) -> None:
    """Remove an entry but not the comments in the lines below it, which belong to what follows."""
    if node not in document:
        return
    below = _take_below(document, node)
    position = list(document).index(node)
    del document[node]
    document.ca.items.pop(node, None)
    if position:
        _put_below(document, list(document)[position - 1], below)
    elif below:
        above = (document.ca.comment or [None, None])[1] or []
        document.ca.comment = [None, [*above, CommentToken(below, CommentMark(0), None)]]


def _take_below(document: CommentedMap, node: str) -> str:
    """Remove and return the lines of comment after an entry, up to the next one."""
    holder, key = _last_value(document, node)
    slots = holder.ca.items.get(key)
    if not slots or not slots[2]:
        return ""
    comment, _, below = slots[2].value.partition("\n")
    slots[2] = CommentToken(f"{comment}\n", slots[2].start_mark, None) if comment else None
    return str(below)


def _put_below(document: CommentedMap, node: str, below: str) -> None:
    if below:
        holder, key = _last_value(document, node)
        slots = holder.ca.items.setdefault(key, [None, None, None, None])
        before = slots[2]
        mark = before.start_mark if before else CommentMark(0)
        slots[2] = CommentToken((before.value if before else "\n") + below, mark, None)


def _last_value(document: CommentedMap, node: str) -> tuple[CommentedMap, str]:
    """Return where the comment after an entry is kept: at the last key of a block, else at the node itself."""
    entry = document[node]
    if isinstance(entry, CommentedMap) and entry and not entry.fa.flow_style():
        return entry, list(entry)[-1]
    return document, node


class _Texts(VersionedResolver):
    """Takes every plain value for the text that is written, so that ``0123`` and ``no`` stay what they are."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode and implicit[0]:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.Resolver = _Texts
    yaml.preserve_quotes = True
    yaml.width = 4096
    inner = next(
        (line for line in text.splitlines() if line.startswith(" ") and line.lstrip()[:1] not in "#"), "  "
    )
    yaml.indent(mapping=max(len(inner) - len(inner.lstrip(" ")), 1))
    return yaml
