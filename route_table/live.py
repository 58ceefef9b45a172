"""The table in force: followed to the file that an administrator edits, changed by others through `edit`.

Every accepted change is a version that is kept with its author and its text. The file is one gateway's working
copy: its changed text is the next version as a whole, and a version made elsewhere is written to it.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from threading import Lock, RLock
from typing import Any, NamedTuple, Protocol

from route_table import certificates
from route_table.document import (
    MAX_TEXT,
    ROOT,
    Change,
    apply,
    opened_to_all,
    parse,
    step,
    with_proof_kept,
)
from route_table.model import (
    Identity,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
    UnknownNode,
    Unusable,
    read_file,
)

log = logging.getLogger(__name__)

MAX_BYTES = 4 * MAX_TEXT
_EMPTY = "{}\n"
_FILE = "file"
"""source of a version that somebody has written into the file"""
_LOOK_BACK = 100
"""versions in which the former route of a removed node is looked for"""


@dataclass(frozen=True)
class Version:
    """One accepted state of the table, as the text that an administrator would see in the file."""

    number: int
    at: datetime
    author: str
    reason: str
    source: str
    """file, api, rollback, or contract for the end of one"""
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

    def followed_by(self) -> str:
        """Return the address of another gateway that serves this node and follows a file; empty: none does."""

    def set_exported(self, export: Export) -> None:
        """Store the last export."""


class MemoryVersions:
    """Versions for as long as the process lives."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._versions: list[Version] = []
        self._exported: Export | None = None

    def newest_number(self) -> int:
        return len(self._versions)

    def get(self, number: int) -> Version | None:
        return self._versions[number - 1] if 0 < number <= len(self._versions) else None

    def add(self, version: Version) -> bool:
        with self._lock:
            if version.number != len(self._versions) + 1:
                return False
            self._versions.append(version)
            return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        newest = len(self._versions) if before is None else min(before - 1, len(self._versions))
        return self._versions[max(0, newest - limit) : max(0, newest)][::-1]

    def exported(self) -> Export | None:
        return self._exported

    def followed_by(self) -> str:
        return ""

    def set_exported(self, export: Export) -> None:
        self._exported = export


FileCheck = Callable[[Identity, str, datetime], Iterable[Problem]]


class StaleVersion(Exception):
    """The table was changed since the editor read it; ``newest`` is the current version's number."""

    def __init__(self, expected: int, newest: int) -> None:
        super().__init__(
            f"the table is at version {newest}, not {expected}: read it again, then repeat the change"
        )
        self.newest = newest


class UnknownVersion(Exception):
    """There is no such version."""


class LiveRoutes:
    """The current table, and what is wrong with the file's newest content, if anything.

    A change is accepted as a whole or not at all: after an invalid edit, or while the file is missing,
    the last good table stays in force. Safe to use from several threads; a table that was handed out never
    changes.
    """

    def __init__(
        self,
        path: Path | None,
        versions: Repository | None = None,
        in_use: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        files: FileCheck = certificates.problems,
        *,
        quiet: bool = False,
    ) -> None:
        """Adopt the newest version and read the file; ``quiet``: log nothing of what is wrong with it.

        ``in_use`` says whether jobs with a node are under way, ``files`` what is wrong with a route's PEM files.
        """
        self._path = path
        self._versions: Repository = versions or MemoryVersions()
        self._in_use = in_use
        self._clock = clock
        self._files = files
        self._quiet = quiet
        self._lock = RLock()
        self._table = RouteTable()
        self._problems: tuple[Problem, ...] = ()
        self.rival = ""
        """the other gateway of this node whose routes the file would replace, if this one followed it"""
        self._formers: dict[str, tuple[int, Route | None]] = {}
        self.reload()

    @property
    def table(self) -> RouteTable:
        """The table in force."""
        return self._table

    @property
    def path(self) -> Path | None:
        """The file that is followed; None: the table is kept as versions alone."""
        return self._path

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the file's present content is not what is in force; empty if it is.

        While there is such a cause, changes by other ways are kept as versions and are not in the file, whose text
        replaces them once it is accepted.
        """
        return self._problems

    def resolve(self, node: str) -> Route:
        """Return the route to a node, also one that was removed while jobs with it are under way.

        Raises UnknownNode. New jobs are checked against `table` alone.
        """
        return self._resolve(node, not self._table.knows(node) and self._in_use(node))

    def look(self, node: str) -> tuple[bool, Route | None]:
        """Return whether a node's requests are accepted, as it has a route of its own or a job under way.

        Beside it the route to the node, None where there is none.
        """
        used = self._table.knows(node) or self._in_use(node)
        try:
            return used, self._resolve(node, used)
        except UnknownNode:
            return self._table.knows(node), None

    def former(self, node: str) -> Route | None:
        """Return the last enabled route that a node had, while jobs with it are under way."""
        return self._former(node) if self._in_use(node) else None

    def _resolve(self, node: str, used: bool) -> Route:
        former = None  # before the default route: jobs go on as they began
        if used and not self._table.knows(node):
            former = self._former(node)
        return former or self._table.resolve(node)

    def reload(self) -> bool:
        """Read the file and the versions again; True if the table changed.

        Raises nothing on account of the file.
        """
        with self._lock:
            before = self._table.routes
            number = self._table.version
            self._adopt_newest()
            if self._path is not None:
                self._follow(self._path)
            return self._table.version != number and self._table.routes != before

    def edit(
        self,
        change: Change,
        author: str,
        reason: str = "",
        expected: int | None = None,
        source: str = "api",
    ) -> Version:
        """Change one entry; return the version that has the change, or the newest if nothing changed.

        Raises InvalidRoutes with every problem, StaleVersion where ``expected`` is not the newest version's
        number, UnknownNode where the entry to remove is not there.
        """

        def changed(text: str) -> str:
            if change.values is None and change.node not in parse(text).routes:
                raise UnknownNode(change.node, self._table.version)
            return apply(text, change)

        return self._add_between_reloads(changed, author, reason, source, expected)

    def rollback(
        self,
        number: int,
        author: str,
        reason: str = "",
        expected: int | None = None,
    ) -> Version:
        """Make the table what it was at a version; this is a new version. Raises UnknownVersion, StaleVersion."""
        old = self.version(number)
        reason = reason or f"back to version {number}"
        return self._add_between_reloads(lambda _: old.text, author, reason, "rollback", expected)

    def version(self, number: int) -> Version:
        """Return one version. Raises UnknownVersion."""
        found = self._versions.get(number)
        if found is None:
            raise UnknownVersion(
                f"the route table has no version {number}; the newest is {self._table.version}"
            )
        return found

    def history(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions, newest first."""
        return self._versions.list(before, limit)

    def _add_between_reloads(
        self,
        change: Callable[[str], str],
        author: str,
        reason: str,
        source: str,
        expected: int | None,
    ) -> Version:
        """Add a version to what the file says now, and write it to the file, so that its editor sees it."""
        with self._lock:
            self.reload()
            version = self._add(change, author, reason, source, expected)
            self.reload()
            return version

    def _add(
        self,
        change: Callable[[str], str],
        author: str,
        reason: str,
        source: str,
        expected: int | None,
    ) -> Version:
        with self._lock:
            while True:
                newest = self._newest()
                number = newest.number if newest else 0
                if expected is not None and expected != number:
                    raise StaleVersion(expected, number)
                before = newest.text if newest else _EMPTY
                text = self._without_weakening(change(before), before, source)
                if newest is not None and text == newest.text:
                    return replace(newest, unchanged=True)
                table = self._parsed(text, number + 1)
                self._check_files(table, newest)
                version = Version(number + 1, self._clock(), author, reason, source, text)
                if self._versions.add(version):  # else another gateway was first
                    self._adopt(table)
                    return version

    def _without_weakening(
        self,
        text: str,
        before: str,
        source: str,
    ) -> str:
        """Return the text of the next version, in which what was left out makes no route weaker.

        Raises InvalidRoutes where a file leaves out a list of components.
        """
        routes = parse(text).routes
        former = dict(parse(before).routes)
        if source == _FILE:
            problems = tuple(opened_to_all(routes, former))
            if problems:
                raise InvalidRoutes(problems)
        for node in routes.keys() - former.keys():
            last = self._last_entry(node)
            if last is not None:
                former[node] = last
        return with_proof_kept(text, former)

    def _last_entry(self, node: str) -> Route | None:
        """Return the last entry of a node that has none now."""
        for version in self._versions.list(None, _LOOK_BACK):
            if node in version.text:  # to read every version takes long
                with suppress(InvalidRoutes):  # of one that today's rules refuse
                    entry = parse(version.text).routes.get(node)
                    if entry is not None:
                        return entry
        return None

    def _parsed(self, text: str, number: int = 1) -> RouteTable:
        """Read a table; files that it names are beside the route file, unless their path begins at the root."""
        table = parse(text, number)
        folder = self._path.absolute().parent if self._path else Path.cwd()
        return replace(
            table, routes={node: route.beside(folder) for node, route in table.routes.items()}
        )

    def _check_files(self, table: RouteTable, newest: Version | None) -> None:
        """Refuse certificates that cannot be used in the routes that change. Raises InvalidRoutes.

        Those of other routes were valid when they came; one that has expired since must not block an edit.
        """
        before = self._table.routes
        if newest is not None and newest.number != self._table.version:
            before = self._parsed(newest.text).routes
        problems: list[Problem] = []
        for node, route in table.routes.items():
            if (route.ca or route.certificate) and route != before.get(node):
                problems += self._files(route.identity, step("", node), self._clock())
        if problems:
            raise InvalidRoutes(tuple(problems))

    def _newest(self) -> Version | None:
        number = self._versions.newest_number()
        return self._versions.get(number) if number else None

    def _adopt_newest(self) -> None:
        """Adopt what another gateway on the database, or an earlier run of this one, has accepted."""
        number = self._versions.newest_number()
        if number > self._table.version and (newest := self._versions.get(number)) is not None:
            self._adopt(self._parsed(newest.text, number))

    def _adopt(self, table: RouteTable) -> None:
        changed = table.routes != self._table.routes or not self._table.version
        self._table = table
        if changed:
            log.info(
                "route table changed", extra={"version": table.version, "routes": len(table.routes)}
            )

    def _follow(self, path: Path) -> None:
        """Accept an edit of the file, or write the newest version to it."""
        try:
            content = _content(path)
            exported = self._versions.exported()
            if exported is None or _digest(content) != exported.digest:
                text = _decoded(content)
                self.rival = rival(text, self._versions)
                if self.rival:
                    raise InvalidRoutes(
                        (Problem("route_table.file", other_routes(self.rival), str(path)),)
                    )
                version = self._add(lambda _: text, "file", "", _FILE, None)
                same = version.text == text
                exported = Export(version.number if same else version.number - 1, _digest(content))
                self._versions.set_exported(exported)
        except InvalidRoutes as error:  # tried again: a file that a route names may still come
            self._report(error.problems)
            return
        self._problems = ()
        if exported is None or (exported.number, exported.digest) != (
            self._table.version,
            _digest(content),
        ):
            self._write(path)

    def _write(self, path: Path) -> None:
        """Write the newest version to the file, whole or not at all."""
        newest = self._newest()
        if newest is None:
            return
        content = newest.text.encode()
        part = path.with_name(f".{path.name}.part")
        try:
            mode = path.stat().st_mode & 0o777
            part.write_bytes(content)
            part.chmod(mode)
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            rule = (
                f"cannot be written, so it lacks version {newest.number}: {error.strerror or error}"
            )
            self._report((Problem("route_table.file", rule, str(path)),))
            return
        self._versions.set_exported(Export(newest.number, _digest(content)))

    def _former(self, node: str) -> Route | None:
        """Return the last enabled route that a node had, with keys and components of its last entry of all."""
        number, found = self._formers.get(node, (-1, None))
        if number == self._table.version:
            return found
        newest: Route | None = None
        for version in self._versions.list(None, _LOOK_BACK):
            table = self._parsed(version.text)
            newest = newest or table.routes.get(node)
            with suppress(UnknownNode):  # where its next hop is disabled
                if table.knows(node):
                    found = table.resolve(node)
                    break
        if found is not None and newest is not None:
            last = {
                name: getattr(newest, name) for name in ("keys", "signing", "bundles", "components")
            }
            found = replace(found, **last)
        self._formers[node] = (self._table.version, found)
        return found

    def _report(self, problems: tuple[Problem, ...]) -> None:
        if problems != self._problems and not self._quiet:
            about = {
                "file": str(self._path),
                "version": self._table.version,
                "problems": list(map(str, problems)),
            }
            log.warning("route table file not accepted", extra=about)
        self._problems = problems


def rival(text: str, versions: Repository) -> str:
    """Return the address of another gateway of this node whose file has other routes than a text; empty: none.

    A gateway that has followed its file once keeps it in step with the others'. Raises InvalidRoutes.
    """
    number = versions.newest_number()
    newest = versions.get(number) if number and versions.exported() is None else None
    differs = newest is not None and parse(text).routes != parse(newest.text).routes
    return versions.followed_by() if differs else ""


def other_routes(gateway: str) -> str:
    """Return what is wrong with a file whose routes differ from those of another gateway of this node."""
    return (
        f"has other routes than the gateway {gateway} of this node, which follows a file of its own: "
        "copy that file here, or set route_table.file: null"
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BYTES)
    except Unusable as error:
        raise InvalidRoutes((Problem("route_table.file", str(error), str(path)),)) from error


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRoutes(
            (Problem(ROOT, "must be UTF-8 text", f"byte {error.start}"),)
        ) from error


def changes(old: RouteTable, new: RouteTable) -> Iterator[FieldChange]:
    """Yield what differs between two tables, by node."""
    names = [field.name for field in fields(Route) if field.name != "node"]
    for node in sorted(old.routes.keys() | new.routes.keys()):
        before, after = (
            {name: getattr(table.routes[node], name) for name in names}
            if node in table.routes
            else None
            for table in (old, new)
        )
        if before is None or after is None:
            yield FieldChange(node, "", before, after)
        else:
            yield from (
                FieldChange(node, n, before[n], after[n]) for n in names if before[n] != after[n]
            )


def text_diff(old: Version | None, new: Version) -> str:
    """Return the difference of two versions' texts, as people read it."""
    before = old.text.splitlines() if old else []
    names = (f"version {old.number if old else 0}", f"version {new.number}")
    return "\n".join(unified_diff(before, new.text.splitlines(), *names, lineterm=""))
