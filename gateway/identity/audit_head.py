"""The newest signed head of the audit log.

The head is stored in the node's state folder, as the keys are, where administrators of the database
cannot change it. Without the stored head nobody could tell whether the end of the log was cut off,
or the whole log emptied.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "audit-head.json"


@dataclass(frozen=True)
class Head:
    """A line of the audit log that contains a signature over all lines before this line."""

    line: int  # number of this line
    hash: str  # hash of this line, which covers the hash of the line before
    at: str  # time of the signature, ISO 8601


class HeadFile:
    """The file with the newest head that a gateway has signed."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FILE

    def read(self) -> Head | None:
        """Return the head; None if there is no file yet.

        Raises `OSError` if the file cannot be read, and `ValueError` if it contains no head.
        """
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
        # No crash may leave, and no reader see, half a file: so a complete file replaces it.
        part = self._path.with_name(f"{_FILE}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(head)), encoding="utf-8")
        part.chmod(0o600)
        part.replace(self._path)

    def delete(self) -> None:
        """Delete the file if it exists, because its head belongs to an earlier log.

        Raises `OSError`.
        """
        self._path.unlink(missing_ok=True)
