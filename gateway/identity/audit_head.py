"""The newest signed head of the audit log.

It is stored next to the keys, where administrators of the database cannot change it. Without it
nobody could tell whether the end of the log was cut off, or the whole log emptied.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "audit-head.json"


@dataclass(frozen=True)
class Head:
    """A line of the audit log with a signature that covers all lines before it."""

    line: int  # its number
    hash: str  # of the line, which covers the hash of the line before it
    at: str  # ISO 8601


class HeadFile:
    """The file with the newest head that a gateway has signed."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FILE

    def read(self) -> Head | None:
        """Return the head; None if there is none yet. Raises `OSError`, `ValueError`."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            content = json.loads(text)
            return Head(
                line=int(content["line"]),
                hash=str(content["hash"]),
                at=str(content["at"]),
            )
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{self._path} is not the head of an audit log") from error

    def write(self, head: Head) -> None:
        """Replace the stored head. Raises `OSError`."""
        part = self._path.with_name(f"{_FILE}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(head)), encoding="utf-8")
        part.chmod(0o600)
        part.replace(self._path)

    def delete(self) -> None:
        """Delete the head, for a new log. Raises `OSError`."""
        self._path.unlink(missing_ok=True)
