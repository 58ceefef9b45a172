"""The accepted versions of a route table: who changed what, when and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import unified_diff
from threading import Lock
from typing import Any, NamedTuple, Protocol

from route_table.model import Route, RouteTable


@dataclass(frozen=True)
class Version:
    """One accepted state of the table, as the text that an administrator would see in the file."""

    number: int
    at: datetime
    author: str
    reason: str
    source: str
    """file, api or rollback"""
    text: str
    unchanged: bool = False
    """not stored: the result of an edit that changed nothing"""


@dataclass(frozen=True)
class Export:
    """The file's content when this gateway last wrote or accepted it: version, and digest of its bytes."""

    number: int
    digest: str


class FieldChange(NamedTuple):
    """One value of a route before and after; ``field`` is empty where the whole route came or went."""

    node: str
    field: str
    before: Any
    after: Any


class Repository(Protocol):
    """Keeps the versions. Several gateways may share one."""

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""

    def get(self, number: int) -> Version | None:
        """Return a version; None: there is none of that number."""

    def add(self, version: Version) -> bool:
        """Append a version; False, and nothing done, where its number is taken."""

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""

    def exported(self) -> Export | None:
        """Return the last export; None: this gateway has written none yet."""

    def set_exported(self, export: Export) -> None:
        """Store the last export."""


class MemoryVersions:
    """Versions for as long as the process lives."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._versions: list[Version] = []
        self._exported: Export | None = None

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""
        return len(self._versions)

    def get(self, number: int) -> Version | None:
        """Return a version; None: there is none of that number."""
        return self._versions[number - 1] if 0 < number <= len(self._versions) else None

    def add(self, version: Version) -> bool:
        """Append a version; False where its number is taken."""
        with self._lock:
            if version.number != len(self._versions) + 1:
                return False
            self._versions.append(version)
            return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""
        newest = len(self._versions) if before is None else min(before - 1, len(self._versions))
        return self._versions[max(0, newest - limit) : max(0, newest)][::-1]

    def exported(self) -> Export | None:
        """Return the last export."""
        return self._exported

    def set_exported(self, export: Export) -> None:
        """Store the last export."""
        self._exported = export


def changes(old: RouteTable, new: RouteTable) -> Iterator[FieldChange]:
    """Yield what differs between two tables, by node."""
    for node in sorted(old.routes.keys() | new.routes.keys()):
        before, after = old.routes.get(node), new.routes.get(node)
        if before is None or after is None:
            yield FieldChange(node, "", _shown(before), _shown(after))
            continue
        for field in fields(Route):
            was, now = getattr(before, field.name), getattr(after, field.name)
            if was != now:
                yield FieldChange(node, field.name, was, now)


def text_diff(old: Version | None, new: Version) -> str:
    """Return the difference of two versions' texts, as people read it."""
    lines = unified_diff(
        old.text.splitlines() if old else [],
        new.text.splitlines(),
        f"version {old.number if old else 0}",
        f"version {new.number}",
        lineterm="",
    )
    return "\n".join(lines)


def _shown(route: Route | None) -> Mapping[str, Any] | None:
    return None if route is None else {f.name: getattr(route, f.name) for f in fields(Route) if f.name != "node"}
