"""The table in force, followed to the file that an administrator edits."""

import hashlib
import logging
from pathlib import Path
from threading import Lock

from route_table.document import MAX_TEXT, parse
from route_table.model import InvalidRoutes, Problem, RouteTable
from route_table.tree import ROOT

log = logging.getLogger(__name__)

MAX_BYTES = 4 * MAX_TEXT


class LiveRoutes:
    """The current table, and what is wrong with the file's newest content, if anything.

    A change of the file is accepted as a whole or not at all: after an invalid edit, or while the file is missing,
    the last good table stays in force. Every accepted change of a route makes a new version. Safe to use
    from several threads; a table that was handed out never changes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = Lock()
        self._seen: str | None = None
        self._table = RouteTable()
        self._problems: tuple[Problem, ...] = ()
        self.reload()

    @property
    def table(self) -> RouteTable:
        return self._table

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the file's present content is not what is in force; empty if it is."""
        return self._problems

    def reload(self) -> bool:
        """Look at the file again; True if the table changed. Raises nothing on account of the file."""
        if self._path is None:
            return False
        with self._lock:
            try:
                content = _content(self._path)
            except InvalidRoutes as error:
                self._seen = None
                self._report(error.problems)
                return False
            digest = hashlib.sha256(content).hexdigest()
            if digest == self._seen:
                return False
            self._seen = digest
            try:
                table = parse(_decoded(content), self._table.version + 1)
            except InvalidRoutes as error:
                self._report(error.problems)
                return False
            self._problems = ()
            if table.routes == self._table.routes and self._table.version:
                return False
            self._table = table
            log.info("route table changed", extra={"version": table.version, "routes": len(table.routes)})
            return True

    def _report(self, problems: tuple[Problem, ...]) -> None:
        if problems != self._problems:
            log.warning(
                "route table file not accepted",
                extra={
                    "file": str(self._path),
                    "version": self._table.version,
                    "problems": list(map(str, problems)),
                },
            )
        self._problems = problems


def _content(path: Path) -> bytes:
    """Read a regular file up to the bound; raises InvalidRoutes. A pipe is not opened, as that would wait."""
    try:
        if not path.is_file():
            rule = "is not a file" if path.exists() else "does not exist"
            raise InvalidRoutes((Problem("route_table.file", rule, str(path)),))
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        rule = f"cannot be read: {error.strerror or error}"
        raise InvalidRoutes((Problem("route_table.file", rule, str(path)),)) from error
    if len(content) > MAX_BYTES:
        rule = f"must not be larger than {MAX_BYTES} bytes"
        raise InvalidRoutes((Problem("route_table.file", rule, str(path)),))
    return content


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRoutes((Problem(ROOT, "must be UTF-8 text", f"byte {error.start}"),)) from error
