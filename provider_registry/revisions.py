"""What happened to a provider: its revisions, and in words what one changed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from provider_registry.limits import as_text, join, shorten
from provider_registry.model import Provider

MOST_CHANGES = 200
_NAMES = ("name", "value", "resultCode")
"""by which of its fields an entry of a list is recognised, if each entry has it"""
_ABSENT: Any = object()


class Action(StrEnum):
    """What somebody did to a provider."""

    REGISTERED = "registered"
    UPDATED = "updated"
    RETIRED = "retired"
    UNRETIRED = "unretired"
    APPROVED = "approved"
    PINNED = "pinned"
    """the node itself, when an image that was not here at the registration was here for the first time"""
    DELETED = "deleted"


@dataclass(frozen=True)
class Revision:
    """A state of a provider and who made it so. Numbers count from 1 per key, and go on after a deletion."""

    key: str
    number: int
    at: datetime
    author: str
    action: Action
    reason: str
    provider: Provider
    """as it was from then on; of a deletion, as it was until then"""


class Change(NamedTuple):
    """One difference. ``before`` is None where something is new, ``after`` where it is gone."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {as_text(self.after)}"
        if self.after is None:
            return f"- {self.path}: {as_text(self.before)}"
        before, after = as_text(self.before), as_text(self.after)
        if before == after:  # of another type
            before, after = json.dumps(self.before), json.dumps(self.after)
        return f"~ {self.path}: {before} → {after}"


def changes(before: Provider | None, after: Provider | None) -> tuple[Change, ...]:
    """Return how two states of a provider differ, each place with both values cut short; `MOST_CHANGES` at most.

    Entries of lists are compared by their names, so that moving one is no change. Warnings are not compared.
    """
    old, new = _plain(before), _plain(after)
    return tuple(islice(_differences("", old, new), MOST_CHANGES))


def _plain(provider: Provider | None) -> dict[str, Any]:
    if provider is None:
        return {}
    document = provider.document()
    del document["warnings"]
    return document


def _differences(path: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    old_parts, new_parts = _parts(old), _parts(new)
    if old_parts is None or new_parts is None:
        yield Change(path, _shown(old), _shown(new))
        return
    for name in dict.fromkeys((*old_parts, *new_parts)):
        at = f"{path}[{name}]" if isinstance(new, list) else join(path, name)
        yield from _differences(at, old_parts.get(name, _ABSENT), new_parts.get(name, _ABSENT))


def _parts(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or a list whose entries have names, as parts by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(entry, Mapping) for entry in value):
        return None
    for field in _NAMES:
        names = [entry.get(field) for entry in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return {str(name)[:128]: entry for name, entry in zip(names, value, strict=True)}
    return None


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else "null" if value is None else shorten(value)
