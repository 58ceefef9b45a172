"""Keeps records as they were last read or written here, so that an unchanged one is not read as text again.

Only a memory aid: whoever uses an entry asks the database first whether its version is still the newest.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class Entry(Generic[R]):
    """A record and the version at which it was so; ``size`` is in characters of its text."""

    version: int
    created_at: float
    """a record that was deleted and made anew begins with version 1 again"""
    value: R
    size: int


class Seen(Generic[R]):
    """The records used last, up to so many characters of their texts."""

    def __init__(self, room: int = 64 * 1024**2) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Entry[R]] = OrderedDict()
        self._used = 0

    def get(self, job_id: str) -> Entry[R] | None:
        """Return what is remembered, and remember it for longer; None: nothing."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is not None:
                self._entries.move_to_end(job_id)
            return entry

    def put(self, job_id: str, entry: Entry[R]) -> None:
        """Keep a record; an older version never takes a newer one's place."""
        with self._lock:
            known = self._entries.get(job_id)
            if known is not None and known.created_at == entry.created_at and known.version > entry.version:
                return
            self._forget(job_id)
            self._entries[job_id] = entry
            self._used += entry.size
            while self._used > self._room and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))

    def drop(self, job_id: str) -> None:
        """Forget a record."""
        with self._lock:
            self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            self._used -= entry.size
