"""What was done to a provider, how two states of it differ, and where providers and their revisions are kept."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, Protocol

from provider_registry.model import Provider, as_text, join, shorten

MOST_CHANGES = 200
_PARTS = re.compile(r"[0-9]+|[^0-9.]+")
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

    Entries of lists are compared by their names, so that moving one is not a change. Warnings are not compared.
    """
    old, new = ({**p.document(), "warnings": None} if p else {"warnings": None} for p in (before, after))
    return tuple(islice(_differences("", old, new), MOST_CHANGES))


def _differences(path: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    old_parts, new_parts = parts(old), parts(new)
    if old_parts is None or new_parts is None:
        yield Change(path, _shown(old), _shown(new))
        return
    for name in dict.fromkeys((*old_parts, *new_parts)):
        at = f"{path}[{name}]" if isinstance(new, list) else join(path, name)
        yield from _differences(at, old_parts.get(name, _ABSENT), new_parts.get(name, _ABSENT))


def parts(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or a list whose entries have names, as parts by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(entry, Mapping) for entry in value):
        return None
    for name_field in _NAMES:
        names = [entry.get(name_field) for entry in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return {str(name)[:128]: entry for name, entry in zip(names, value, strict=True)}
    return None


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else "null" if value is None else shorten(value)


def order(version: str) -> tuple[Any, ...]:
    """Return what versions are sorted by: 1.9 before 1.10, 2.0.0-rc1 before 2.0.0; no two versions are alike.

    What follows a ``+`` counts only between versions that are otherwise the same.
    """
    main, _, before = version.partition("+")[0].removeprefix("v").partition("-")
    return _version_parts(main), not before, _version_parts(before), version


def _version_parts(text: str) -> tuple[tuple[int, int, str], ...]:
    found: list[tuple[int, int, str]] = [
        (1, int(p), "") if p.isdecimal() else (0, 0, p) for p in _PARTS.findall(text)
    ]
    while found and found[-1] == (1, 0, ""):
        found.pop()
    return tuple(found)


class Stale(Exception):
    """Somebody else wrote the revision of that number."""


class Repository(Protocol):
    """Where providers are kept, by `Provider.key`. Safe to use from several threads and processes."""

    def get(self, key: str) -> Provider | None:
        """Return what is registered now, retired or not."""
        ...

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        ...

    def write(self, revision: Revision) -> None:
        """Store a revision and its provider as the present state. Raises `Stale` if its number is taken."""
        ...

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0 if there was never one."""
        ...

    def history(self, key: str, before: int | None = None, limit: int = 50) -> Sequence[Revision]:
        """Return revisions, newest first; with ``before`` those of lower numbers."""
        ...

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment if another one followed it, else None."""
        ...

    def owner(self, name: str) -> str | None:
        """Return who owns a provider's name; empty: the node's admins; None: nobody yet."""
        ...

    def claim(self, name: str, owner: str) -> str:
        """Set the owner of a name that has none; return who owns it now."""
        ...

    def give(self, name: str, owner: str) -> None:
        """Set the owner of a name."""
        ...
