"""Writes log lines: one JSON object per line on stdout, and a copy in the platform's log
directory.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO


class JsonLog:
    """A `Log` for all threads of a run.

    `finish` writes the last line, the result; later lines are dropped.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        **common: Any,
    ) -> None:
        """``common`` fields are in every line; ``stream`` is stdout by default."""
        self._stream = stream or sys.stdout
        self._common = common
        self._copy: TextIO | None = None
        self._lock = threading.Lock()
        self._is_open = True

    def copy_to(
        self,
        directory: str,
        name: str,
        **common: Any,
    ) -> None:
        """Also write to a file in a directory, and add ``common`` fields to every line.

        Characters of ``name`` that are unusual in file names are replaced. An empty ``directory``
        means no copy; one that cannot be written costs a warning.
        """
        self._common |= common
        if not directory:
            return
        path = Path(
            directory,
            re.sub(r"[^\w.-]", "_", name),
        )
        try:
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            self._copy = path.open(
                "a",
                encoding="utf-8",
            )
        except (OSError, ValueError) as error:
            self(
                "warning",
                "log directory cannot be written",
                path=directory,
                error=str(error),
            )

    def __call__(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write a line, unless the log was finished."""
        with self._lock:
            if self._is_open:
                self._write(level, message, fields)

    def finish(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write the last line."""
        with self._lock:
            if self._is_open:
                self._write(level, message, fields)
                self._is_open = False
                if self._copy is not None:
                    self._copy.close()

    def _write(
        self,
        level: str,
        message: str,
        fields: dict[str, Any],
    ) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {
            "time": time,
            "level": level,
            "message": message,
            **self._common,
            **fields,
        }
        line = json.dumps(
            entry,
            ensure_ascii=False,
            default=str,
        )
        for stream in (self._stream, self._copy):
            if stream is not None:
                _write_line(stream, line)


def _write_line(stream: TextIO, line: str) -> None:
    """Write a line. A closed pipe, a full disk or a narrow encoding must not end the run."""
    with suppress(OSError, ValueError):
        try:
            stream.write(line + "\n")
        except UnicodeEncodeError:
            stream.write(json.dumps(json.loads(line)) + "\n")
        stream.flush()
