"""Rewrites a session's journal without what nobody needs any more, a piece at a time.

The event loop writes the journal, so a rewrite must never hold it for long: it goes on by some bytes whenever
a message is discarded. First comes the state as it was at the beginning, then all that the old journal has got
since, byte for byte: read in order, the two make the state of now. Until the last step puts it in place of the
old one, the new journal is only a file that nobody reads; after a death it is a leftover, removed at the start.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.broker.journal import Kind, Spool, encoded, opened_private
from gateway.broker.mailbox import Stored

Entry = tuple[Kind, dict[str, Any], bytes]


class Rewrite:
    """One rewrite under way. What is read through ``spool`` is the old journal until ``step`` says True."""

    def __init__(
        self,
        spool: Spool,
        before: Iterable[Entry],
        live: Sequence[Stored],
        push: Callable[[Stored], Entry],
        after: Iterable[Entry],
    ) -> None:
        """``push`` makes the record of one of ``live``; ``before`` and ``after`` stand around all of these."""
        self._spool = spool
        self._before = list(before)
        self._live = list(reversed(live))
        self._push = push
        self._after = list(after)
        self._began_at = self._tail_at = spool.size
        self._snapshot = self._size = 0
        self._bodies: dict[int, int] = {}
        self._begun = False

    def step(self, most: int) -> bool:
        """Copies some more, hardly above ``most`` bytes; True once the new journal has taken the old one's place.

        OSError if the disk refuses: then call `drop`; the old journal is as it was.
        """
        end = self._size + most
        with open(self._fresh, "ab" if self._begun else "wb", opener=opened_private) as fresh:
            self._begun = True
            for entry in self._taken(self._before):
                self._size += fresh.write(encoded(*entry))
            while self._live and self._size < end:
                stored = self._live.pop()
                entry = self._push(stored)
                self._size += fresh.write(encoded(*entry))
                self._bodies[stored.number] = self._size - len(entry[2])
            if self._live:
                return False
            for entry in self._taken(self._after):
                self._size += fresh.write(encoded(*entry))
            if not self._snapshot:
                self._snapshot = self._size
            while self._tail_at < self._spool.size:
                if self._size >= end:
                    return False
                length = min(most, self._spool.size - self._tail_at)
                self._size += fresh.write(self._spool.read(self._tail_at, length))
                self._tail_at += length
        self._spool.replace(self._fresh, self._size)
        return True

    def moved(self, stored: Stored) -> int | None:
        """Returns where a message's payload lies in the new journal; None where it has a file of its own."""
        if stored.offset is None:
            return None
        body = self._bodies.get(stored.number)
        return body if body is not None else stored.offset - self._began_at + self._snapshot

    def drop(self) -> None:
        """Gives it up: removes the new journal."""
        with contextlib.suppress(OSError):
            os.unlink(self._fresh)

    @property
    def _fresh(self) -> Path:
        return self._spool.path.with_suffix(".new")

    def _taken(self, entries: list[Entry]) -> list[Entry]:
        taken = entries[:]
        entries.clear()
        return taken
