"""Sessions that have ended and are refused for a while, each remembered by a small file."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.broker.journal import folder_name

log = logging.getLogger(__name__)


class Tombstones:
    """The ended sessions under one root. ``seconds`` is how long each is remembered."""

    def __init__(self, root: Path, seconds: float, clock: Callable[[], float]) -> None:
        self._root = root
        self._seconds = seconds
        self._clock = clock
        self._ended_at: dict[str, float] = {}

    def load(self) -> None:
        """Reads the files back and removes those whose time is over; one that cannot be read is removed too."""
        for path in self._root.glob("*.new"):
            path.unlink()
        for path in self._root.glob("*.ended"):
            try:
                tombstone = json.loads(path.read_text())
                self._ended_at[str(tombstone["session"])] = float(tombstone["at"])
            except (ValueError, KeyError, TypeError) as error:
                log.warning("tombstone not readable", extra={"file": path.name, "error": str(error)})
                path.unlink()
        self._expire()

    def folders(self) -> set[str]:
        """Returns the names of the folders that the ended sessions had."""
        return {folder_name(session) for session in self._ended_at}

    def add(self, session: str) -> None:
        """Remembers a session as ended from now on."""
        now = self._clock()
        self._ended_at[session] = now
        path = self._path(session)
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps({"session": session, "at": now}))
            fresh.replace(path)
        except OSError as error:
            log.warning("tombstone not written", extra={"session": session, "error": str(error)})
        self._expire()

    def __contains__(self, session: str) -> bool:
        ended_at = self._ended_at.get(session)
        return ended_at is not None and ended_at + self._seconds > self._clock()

    def _expire(self) -> None:
        for session in [name for name in self._ended_at if name not in self]:
            del self._ended_at[session]
            self._path(session).unlink(missing_ok=True)

    def _path(self, session: str) -> Path:
        return self._root / f"{folder_name(session)}.ended"
