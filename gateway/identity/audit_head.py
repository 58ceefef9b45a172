"""The newest signed head of the audit log, kept beside the keys: whoever can write the database cannot reach it.

Without it, a log that is cut off at the end, or emptied, would verify as one that never was longer.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "audit-head.json"


@dataclass(frozen=True)
class Head:
    """A line that signs all lines before it."""

    line: int
    hash: str
    at: str
    """ISO 8601"""


class HeadFile:
    """The file with the newest head that a gateway has signed."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FILE

    def read(self) -> Head | None:
        """Return the head, None where none was kept yet. Raises `OSError`, `ValueError`."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            content = json.loads(text)
            return Head(int(content["line"]), str(content["hash"]), str(content["at"]))
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{self._path} is not the head of an audit log") from error

    def write(self, head: Head) -> None:
        """Keep a head in place of the one before. Raises `OSError`."""
        part = self._path.with_name(f"{_FILE}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(head)), encoding="utf-8")
        part.chmod(0o600)
        part.replace(self._path)

    def delete(self) -> None:
        """Forget the head: the log is another one from now on. Raises `OSError`."""
        self._path.unlink(missing_ok=True)
