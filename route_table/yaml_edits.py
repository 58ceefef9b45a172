"""Edits of a route table's YAML text that preserve its comments and quotes.

Comments before a line ``---`` are lost, as ruamel does not keep them.
"""

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tokens import CommentToken

from route_table.document import parse
from route_table.entries import refusal
from route_table.keys import ADDRESS_KEYS, TLS_KEYS

if TYPE_CHECKING:
    from route_table.editing import Change

_LINE_WIDTH = 4096  # characters; longer values would be folded
_DEFAULT_INDENT = 2  # spaces
_AFTER_VALUE = 2  # index, among ruamel's comments of a key, of the one after the value
_INDENTATION = re.compile(r"^( +)[^\s#]", re.MULTILINE)  # blanks before a line's content


def edited_text(text: str, change: "Change") -> str:
    """Return the text with one entry changed; ``text`` itself if the routes stay the same.

    Raises `InvalidRoutes` if the result is not a valid route table.
    """
    yaml = _yaml(text)
    try:
        document: CommentedMap = yaml.load(text)
    except (YAMLError, ValueError) as error:
        raise refusal(f"cannot be edited; correct it in the file: {error}") from error
    _change_document(document, change)
    out = io.StringIO()
    yaml.dump(document, out)
    edited = out.getvalue()
    if parse(edited).routes == parse(text).routes:
        return text
    return edited


def _change_document(document: CommentedMap, change: "Change") -> None:
    """Remove, change or add the entry of a node.

    The removal of an absent entry, and values of None in a new one, change nothing.
    """
    if change.values is None:
        _remove(document, change.node)
    elif change.node in document:
        # ruamel attaches the comment below an entry to its last key, which may change.
        comment = _take_comment_below(document, change.node)
        _update(document[change.node], change.values, change.replaces)
        _put_comment_below(document, change.node, comment)
    else:
        if not document:
            document.fa.set_block_style()  # the table was {}
        document[change.node] = CommentedMap(_spell(change.values))


def _update(
    entry: CommentedMap,
    new_values: Mapping[str, Any],
    replaces: bool,
) -> None:
    """Set the keys of an entry, and remove those without a value.

    A change that replaces the entry removes all keys that it does not name. Any other change
    removes only the keys with the value None, and those of another kind of address than its own.
    """
    values = dict(new_values)
    if not replaces:
        values |= dict.fromkeys(_obsolete_keys(values))  # the value None removes them below
    spellings = _spell(values)
    entry.update(spellings)
    removed = entry.keys() - spellings.keys()
    if not replaces:
        removed &= values.keys()
    for key in removed:
        entry.pop(key, None)
        entry.ca.items.pop(key, None)


def _obsolete_keys(values: Mapping[str, Any]) -> set[str]:
    """Return the keys of another kind of address than the one in ``values``.

    An entry has one kind: ``reached``, ``via``, ``url``, or host and port. Empty if ``values`` has
    no address. A key that ``values`` itself sets is never among them: if it contradicts the
    address, the check of the edited table refuses it, and it is not dropped silently.
    """
    present = {key for key, value in values.items() if value is not None}
    obsolete: set[str] = set()
    if "reached" in present:
        obsolete = {"url", "transport", "via", "dial", *ADDRESS_KEYS, *TLS_KEYS}
    elif "via" in present:
        obsolete = {"url", "transport", "dial", "reached", *ADDRESS_KEYS, *TLS_KEYS}
    elif "url" in present:
        obsolete = {"via", "reached", *ADDRESS_KEYS}
    elif present.intersection(ADDRESS_KEYS):
        obsolete = {"via", "url", "reached"}
    return obsolete - present


def _spell(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as the file spells them, by key.

    Keys with None, which removes them from the entry, are left out.
    """
    spellings = {}
    for key, value in values.items():
        if isinstance(value, bool):
            spellings[key] = str(value).lower()
        elif value is not None:
            spellings[key] = str(value)
    return spellings


def _remove(document: CommentedMap, node: str) -> None:
    """Remove an entry. Comment lines below it stay, since they belong to the next entry."""
    if node not in document:
        return
    comment = _take_comment_below(document, node)
    position = list(document).index(node)
    del document[node]
    document.ca.items.pop(node, None)
    if not document:
        # ruamel does not write the comments at the end of a table without entries.
        comment += "".join(token.value for token in document.ca.end)
    is_first = position == 0
    if not is_first:
        _put_comment_below(document, list(document)[position - 1], comment)
    elif comment:
        _append_to_heading(document, comment)


# ------------------------------------------------------------ ruamel's comments
# ``ca`` of a mapping holds its comments: ``comment`` those before it, ``items`` those of its keys.


def _append_to_heading(document: CommentedMap, comment: str) -> None:
    """Append a comment to the ones before the first entry.

    ``comment`` has its lines with their ``#`` and their ends.
    """
    # The second item of ruamel's pair has the comments before the first entry; the first is unused.
    _, heading = document.ca.comment or (None, None)
    token = CommentToken(comment, CommentMark(0), None)
    document.ca.comment = [None, [*(heading or []), token]]


def _take_comment_below(document: CommentedMap, node: str) -> str:
    """Remove the comment lines between an entry and the next one, and return them; "" if none."""
    holder, key = _last_value(document, node)
    slots = holder.ca.items.get(key)
    if not slots or not slots[_AFTER_VALUE]:
        return ""
    # ruamel's comment after a value is the rest of the value's line and all comment lines below.
    same_line, _, below = slots[_AFTER_VALUE].value.partition("\n")
    token = None
    if same_line:
        token = CommentToken(f"{same_line}\n", slots[_AFTER_VALUE].start_mark, None)
    slots[_AFTER_VALUE] = token
    return str(below)


def _put_comment_below(
    document: CommentedMap,
    node: str,
    comment: str,
) -> None:
    """Add comment lines below an entry; nothing happens for ""."""
    if not comment:
        return
    holder, key = _last_value(document, node)
    slots = holder.ca.items.setdefault(
        key,
        [None, None, None, None],
    )
    same_line = slots[_AFTER_VALUE]
    if same_line:
        token = CommentToken(same_line.value + comment, same_line.start_mark, None)
    else:
        # The line feed ends the line of the value, which has no comment.
        token = CommentToken("\n" + comment, CommentMark(0), None)
    slots[_AFTER_VALUE] = token


def _last_value(
    document: CommentedMap,
    node: str,
) -> tuple[CommentedMap, str]:
    """Return the mapping, and the key in it, to which ruamel attaches the comment below an entry.

    For an entry in block style, these are the entry and its last key; otherwise, they are the
    document and the node.
    """
    entry = document[node]
    if isinstance(entry, CommentedMap) and entry and not entry.fa.flow_style():
        return entry, list(entry)[-1]
    return document, node


class _TextResolver(VersionedResolver):
    """Reads every plain value as text, so that ``0123`` and ``no`` are written back unchanged."""

    def resolve(
        self,
        kind: Any,
        value: Any,
        implicit: Any,
    ) -> Any:
        """Return the tag of a node: text for every plain scalar."""
        is_plain_scalar = kind is ScalarNode and implicit[0]
        if is_plain_scalar:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)


def _yaml(text: str) -> YAML:
    """Return a parser and writer that keeps the quotes and the indentation of a text."""
    yaml = YAML()
    yaml.Resolver = _TextResolver
    yaml.preserve_quotes = True
    yaml.width = _LINE_WIDTH
    yaml.indent(mapping=_indent_of(text))
    return yaml


def _indent_of(text: str) -> int:
    """Return the indentation of the first indented line that is neither blank nor a comment.

    A text without such a line has `_DEFAULT_INDENT`.
    """
    indentation = _INDENTATION.search(text)
    if indentation is None:
        return _DEFAULT_INDENT
    return len(indentation[1])
