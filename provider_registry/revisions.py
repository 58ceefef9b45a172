"""Revisions of a provider, and the differences between two of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from provider_registry.model import (
    Provider,
    as_text,
    join,
    shorten,
)

MAX_CHANGES = 200  # differences that are reported between two states of a provider
MAX_ENTRY_NAME = 128  # characters of a list entry's name in a path
_NAME_FIELDS = ("name", "value", "resultCode")  # fields that identify the entries of a list
_ABSENT: Any = object()  # the value of a field that an object lacks; null is a value


class Action(StrEnum):
    """The kinds of revisions of a provider.

    PINNED: the node itself approved an image at its first start, since no admin had approved it.
    """

    REGISTERED = "registered"
    UPDATED = "updated"
    RETIRED = "retired"
    UNRETIRED = "unretired"
    APPROVED = "approved"
    PINNED = "pinned"
    DELETED = "deleted"


# Actions that make no revision if they would not change the provider.
IDEMPOTENT = (Action.UPDATED, Action.RETIRED, Action.UNRETIRED, Action.PINNED)


@dataclass(frozen=True)
class Revision:
    """A state of a provider, with the author and the reason of the change that led to it.

    ``number`` counts from 1 per key, and continues after a deletion. ``provider`` is the new state;
    for a deletion, the last one.
    """

    key: str
    number: int
    at: datetime
    author: str
    action: Action
    reason: str
    provider: Provider


class Change(NamedTuple):
    """One difference between two states of a provider, at a path of its document.

    ``before`` is None for a new value, ``after`` for a removed one.
    """

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Return the difference in one line: ``+`` if new, ``-`` if removed, ``~`` if changed."""
        if self.before is None:
            return f"+ {self.path}: {as_text(self.after)}"
        if self.after is None:
            return f"- {self.path}: {as_text(self.before)}"
        before = as_text(self.before)
        after = as_text(self.after)
        if before == after:  # of different types, such as 1 and "1": JSON shows the difference
            before = json.dumps(self.before)
            after = json.dumps(self.after)
        return f"~ {self.path}: {before} → {after}"


def changes(
    before: Provider | None,
    after: Provider | None,
) -> tuple[Change, ...]:
    """Return the differences between two states of a provider, at most `MAX_CHANGES`.

    None means that there is no provider. Values are shortened. Entries of lists are compared by
    their names, so that a different order does not matter. Warnings are not compared.
    """
    differences = _differences("", _comparable(before), _comparable(after))
    return tuple(islice(differences, MAX_CHANGES))


def _comparable(provider: Provider | None) -> dict[str, Any]:
    """Return a provider's document without its warnings; without a provider, an empty one."""
    document: dict[str, Any] = {}
    if provider is not None:
        document = provider.document()
    document["warnings"] = None  # the same in both compared documents, so no difference
    return document


def _differences(
    path: str,
    old: Any,
    new: Any,
) -> Iterator[Change]:
    """Yield the differences between two JSON values, part by part.

    ``path`` is the path of both values; a missing value is `_ABSENT`.
    """
    old_parts = parts_by_name(old)
    new_parts = parts_by_name(new)
    if old_parts is None or new_parts is None:
        if not _is_same(old, new):
            yield Change(path, _change_value(old), _change_value(new))
        return
    is_list = isinstance(new, list)
    for name in dict.fromkeys((*old_parts, *new_parts)):
        part_path = f"{path}[{name}]" if is_list else join(path, name)
        old_part = old_parts.get(name, _ABSENT)
        new_part = new_parts.get(name, _ABSENT)
        yield from _differences(part_path, old_part, new_part)


def _is_same(old: Any, new: Any) -> bool:
    """True if two values are equal in JSON, where true, 1 and 1.0 differ, unlike in Python."""
    if _ABSENT in (old, new):
        return False  # they are never both absent
    old_text = json.dumps(old, sort_keys=True)
    new_text = json.dumps(new, sort_keys=True)
    return old_text == new_text


def parts_by_name(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object, or the entries of a list by their names.

    Returns None for anything else, also for a list whose entries have no names of their own.
    """
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value:
        return None
    for field in _NAME_FIELDS:
        entries = _entries_by_field(value, field)
        # Fewer entries than values: some have no name, or two have the same.
        if len(entries) == len(value):
            return entries
    return None


def _entries_by_field(values: Sequence[Any], field: str) -> dict[str, Any]:
    """Return the entries of a list by the text of one of their fields.

    Texts are cut after `MAX_ENTRY_NAME` characters. Entries without such a text are left out; of
    several with the same text, the last one stays.
    """
    entries: dict[str, Any] = {}
    for value in values:
        name = value.get(field) if isinstance(value, Mapping) else None
        if isinstance(name, str):
            entries[name[:MAX_ENTRY_NAME]] = value
    return entries


def _change_value(value: Any) -> Any:
    """Return a value as a `Change` shows it: shortened; None if absent, "null" for JSON's null.

    JSON's null becomes a text because None in a `Change` means that there is no value.
    """
    if value is _ABSENT:
        return None
    if value is None:
        return "null"
    return shorten(value)
