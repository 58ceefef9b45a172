"""Writes log lines: one JSON object per line on stdout, and a copy in the platform's log directory."""

from __future__ import annotations

import json
import re
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO


class JsonLog:
    """A `Log` that every thread of a run shares. After `finish` it is silent, so its last line is the result."""

    def __init__(self, stream: TextIO | None = None, **always: Any) -> None:
        self._stream = stream or sys.stdout
        self._always = always
        self._copy: TextIO | None = None
        self._lock = threading.Lock()
        self._open = True

    def copy_to(
        self,
        directory: str,
        name: str,
        **always: Any,
    ) -> None:
        """Also write to a file of that name, odd characters replaced, in a directory.

        A directory that cannot be written costs one warning, no more.
        """
        self._always |= always
        if not directory:
            return
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._copy = Path(directory, re.sub(r"[^\w.-]", "_", name)).open("a", encoding="utf-8")  # noqa: SIM115 - open for the whole run
        except (OSError, ValueError) as error:
            self("warning", "log directory cannot be written", path=directory, error=str(error))

    def __call__(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write a line, unless the log was finished."""
        with self._lock:
            if self._open:
                self._write(level, message, fields)

    def finish(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write the last line."""
        with self._lock:
            if self._open:
                self._write(level, message, fields)
                self._open = False
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
            **self._always,
            **fields,
        }
        line = json.dumps(entry, ensure_ascii=False, default=str)
        for stream in (self._stream, self._copy):
            if stream is not None:
                _put(stream, line)


def _put(stream: TextIO, line: str) -> None:
    """Write a line; a reader that went away, a full disk or a narrow encoding must not end the run."""
    try:
        try:
            stream.write(line + "\n")
        except UnicodeEncodeError:
            stream.write(json.dumps(json.loads(line)) + "\n")
        stream.flush()
    except (OSError, ValueError):
        pass
