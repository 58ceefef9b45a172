"""The route table in force.

It follows a file that an administrator edits; others change it by `edit`.

Every accepted change is stored as a version with its author and its text. The file is one gateway's
working copy: an edited file is the next version as a whole, and a version from another source is
written to it.
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
from route_table.document import MAX_TEXT, parse
from route_table.editing import Change, apply, keep_signing, problems_of_opened_routes
from route_table.entries import ROOT
from route_table.model import (
    Identity,
    InvalidRoutes,
    Problem,
    Route,
    RouteTable,
    UnknownNode,
    Unusable,
    join,
    read_file,
)

log = logging.getLogger(__name__)

MAX_BYTES = 4 * MAX_TEXT
_EMPTY = "{}\n"
_FILE = "file"  # source of a version that was written into the file
_LOOK_BACK = 100  # versions searched for the former route of a removed node
# What a node's former route takes from its very last entry.
_PROOF_FIELDS = ("keys", "signing", "bundles", "components")


@dataclass(frozen=True)
class Version:
    """One accepted state of the table, as the text that an administrator would see in the file."""

    number: int
    at: datetime
    author: str
    reason: str
    source: str  # file, api, rollback, or contract for the end of a contract
    text: str
    unchanged: bool = False  # the result of an edit that changed nothing; not stored


@dataclass(frozen=True)
class Export:
    """The file's content when this gateway last wrote or accepted it: version, and digest of its bytes."""

    number: int
    digest: str


class FieldChange(NamedTuple):
    """One value of a route before and after.

    ``field`` is empty if the route was added or removed.
    """

    node: str
    field: str
    before: Any
    after: Any


class Repository(Protocol):
    """Stores the versions. Several gateways may share one."""

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""

    def get(self, number: int) -> Version | None:
        """Return a version; None if the number is unknown."""

    def add(self, version: Version) -> bool:
        """Append a version; return False, without a change, if its number is taken."""

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""

    def exported(self) -> Export | None:
        """Return the last export; None if this gateway has written none yet."""

    def followed_by(self) -> str:
        """Return the address of another gateway of this node that follows a file; empty if there is none."""

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
        if not 0 < number <= len(self._versions):
            return None
        return self._versions[number - 1]

    def add(self, version: Version) -> bool:
        with self._lock:
            if version.number != len(self._versions) + 1:
                return False
            self._versions.append(version)
            return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        end = len(self._versions)
        if before is not None:
            end = max(0, min(before - 1, end))
        start = max(0, end - limit)
        return self._versions[start:end][::-1]

    def exported(self) -> Export | None:
        return self._exported

    def followed_by(self) -> str:
        return ""

    def set_exported(self, export: Export) -> None:
        self._exported = export


# From an identity, the path of its entry and the time, return the problems of its files.
FileCheck = Callable[[Identity, str, datetime], Iterable[Problem]]


class StaleVersion(Exception):
    """The table was changed since the editor read it.

    ``newest`` is the current version's number.
    """

    def __init__(self, expected: int, newest: int) -> None:
        super().__init__(
            f"the table is at version {newest}, not {expected}: read it again, then repeat the "
            f"change"
        )
        self.newest = newest


class UnknownVersion(Exception):
    """There is no such version."""


def _never_in_use(_node: str) -> bool:
    return False


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LiveRoutes:
    """The current table, and the problems of the file's newest content.

    A change is accepted as a whole or not at all: after an invalid edit, or while the file is
    missing, the last valid table stays in force. Safe to use from several threads; tables are
    immutable.
    """

    def __init__(
        self,
        path: Path | None,
        versions: Repository | None = None,
        in_use: Callable[[str], bool] = _never_in_use,
        clock: Callable[[], datetime] = _utc_now,
        files: FileCheck = certificates.problems,
        *,
        quiet: bool = False,
    ) -> None:
        """Adopt the newest version and read the file; ``quiet``: do not log its problems.

        ``in_use`` returns whether jobs with a node are running, ``files`` the problems of a route's
        PEM files.
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
        # Address of another gateway of this node whose routes the file would replace; empty: none.
        self.rival = ""
        # Node -> its former route and the table version it was looked up for.
        self._formers: dict[str, tuple[int, Route | None]] = {}
        self.reload()

    @property
    def table(self) -> RouteTable:
        """The table in force."""
        return self._table

    @property
    def path(self) -> Path | None:
        """The route file; None: the table exists only as versions."""
        return self._path

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems for which the file's present content is not in force; empty if it is.

        While there are any, changes from other sources are stored as versions but not written to
        the file; once accepted, its text replaces them.
        """
        return self._problems

    def resolve(self, node: str) -> Route:
        """Return the route to a node; while jobs with it are running, a removed route still counts.

        Raises UnknownNode. New jobs are checked against `table` alone.
        """
        has_jobs = not self._table.knows(node) and self._in_use(node)
        return self._resolve(node, has_jobs)

    def look(self, node: str) -> tuple[bool, Route | None]:
        """Return whether a node's requests are accepted, and the route to it, None if it has none.

        They are if it has a route of its own or running jobs.
        """
        accepted = self._table.knows(node) or self._in_use(node)
        try:
            return accepted, self._resolve(node, accepted)
        except UnknownNode:
            return self._table.knows(node), None

    def former(self, node: str) -> Route | None:
        """Return the last enabled route of a node while jobs with it are running."""
        if not self._in_use(node):
            return None
        return self._former(node)

    def _resolve(self, node: str, has_jobs: bool) -> Route:
        """Return a node's own route, or its former one, which precedes the default route."""
        if has_jobs and not self._table.knows(node):
            former = self._former(node)
            if former is not None:
                return former
        return self._table.resolve(node)

    def reload(self) -> bool:
        """Read the file and the versions again; return whether the table changed.

        Problems of the file are reported by `problems`, not raised.
        """
        with self._lock:
            before = self._table
            self._adopt_newest()
            if self._path is not None:
                self._follow(self._path)
            if self._table.version == before.version:
                return False
            return self._table.routes != before.routes

    def edit(
        self,
        change: Change,
        author: str,
        reason: str = "",
        expected: int | None = None,
        source: str = "api",
    ) -> Version:
        """Change one entry; return the version with the change, or the newest if nothing changed.

        Raises InvalidRoutes with every problem, StaleVersion if ``expected`` is not the newest
        version's number, UnknownNode for the removal of an absent entry.
        """

        def apply_change(text: str) -> str:
            if change.values is None and change.node not in parse(text).routes:
                raise UnknownNode(change.node, self._table.version)
            return apply(text, change)

        return self._add_between_reloads(apply_change, author, reason, source, expected)

    def rollback(
        self,
        number: int,
        author: str,
        reason: str = "",
        expected: int | None = None,
    ) -> Version:
        """Restore a version's table, as a new version. Raises UnknownVersion, StaleVersion."""
        old = self.version(number)
        reason = reason or f"back to version {number}"

        def restore(_newest_text: str) -> str:
            return old.text

        return self._add_between_reloads(restore, author, reason, "rollback", expected)

    def version(self, number: int) -> Version:
        """Return one version. Raises UnknownVersion."""
        version = self._versions.get(number)
        if version is None:
            raise UnknownVersion(
                f"the route table has no version {number}; the newest is {self._table.version}"
            )
        return version

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
        """Add a version on top of the file's present content, and write it to the file for its editor."""
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
        """Add and adopt the next version; start over if another gateway adds one first."""
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
                table = self._parse(text, number + 1)
                self._check_files(table, newest)
                version = Version(number + 1, self._clock(), author, reason, source, text)
                if self._versions.add(version):
                    self._adopt(table)
                    return version

    def _without_weakening(
        self,
        text: str,
        before: str,
        source: str,
    ) -> str:
        """Return the text of the next version, completed so that no omission weakens a route.

        Raises InvalidRoutes if a file omits a list of components.
        """
        routes = parse(text).routes
        former = dict(parse(before).routes)
        if source == _FILE:
            problems = tuple(problems_of_opened_routes(routes, former))
            if problems:
                raise InvalidRoutes(problems)
        for node in routes.keys() - former.keys():
            last = self._last_entry(node)
            if last is not None:
                former[node] = last
        return keep_signing(text, former)

    def _last_entry(self, node: str) -> Route | None:
        """Return the last entry of a node without a present one."""
        for version in self._versions.list(None, _LOOK_BACK):
            if node not in version.text:  # parsing every version takes long
                continue
            with suppress(InvalidRoutes):  # an old version that today's rules refuse
                entry = parse(version.text).routes.get(node)
                if entry is not None:
                    return entry
        return None

    def _parse(self, text: str, number: int = 1) -> RouteTable:
        """Read a table; its relative paths of files start at the route file's folder."""
        table = parse(text, number)
        folder = self._path.absolute().parent if self._path else Path.cwd()
        routes = {node: route.with_paths_from(folder) for node, route in table.routes.items()}
        return replace(table, routes=routes)

    def _check_files(self, table: RouteTable, newest: Version | None) -> None:
        """Refuse unusable certificates in changed routes. Raises InvalidRoutes.

        Certificates of unchanged routes were valid when they came; an expired one must not block
        edits.
        """
        before = self._table.routes
        if newest is not None and newest.number != self._table.version:
            before = self._parse(newest.text).routes
        problems: list[Problem] = []
        for node, route in table.routes.items():
            has_files = route.ca or route.certificate
            if has_files and route != before.get(node):
                problems += self._files(route.identity, join("", node), self._clock())
        if problems:
            raise InvalidRoutes(tuple(problems))

    def _newest(self) -> Version | None:
        number = self._versions.newest_number()
        if not number:
            return None
        return self._versions.get(number)

    def _adopt_newest(self) -> None:
        """Adopt a newer version, accepted by another gateway or by an earlier process of this one."""
        number = self._versions.newest_number()
        if number <= self._table.version:
            return
        newest = self._versions.get(number)
        if newest is not None:
            self._adopt(self._parse(newest.text, number))

    def _adopt(self, table: RouteTable) -> None:
        is_first = not self._table.version
        changed = table.routes != self._table.routes
        self._table = table
        if changed or is_first:
            extra = {"version": table.version, "routes": len(table.routes)}
            log.info("route table changed", extra=extra)

    def _follow(self, path: Path) -> None:
        """Accept an edit of the file, or write the newest version to it."""
        try:
            content = _content(path)
            exported = self._versions.exported()
            if exported is None or _digest(content) != exported.digest:
                exported = self._accept_file(path, content)
        except InvalidRoutes as error:  # retried: a file that a route names may still appear
            self._report(error.problems)
            return
        self._problems = ()
        if exported != Export(self._table.version, _digest(content)):
            self._write(path)

    def _accept_file(self, path: Path, content: bytes) -> Export:
        """Add an edited file as a version; return the stored export. Raises InvalidRoutes."""
        text = _decode(content)
        self.rival = rival(text, self._versions)
        if self.rival:
            rule = other_routes(self.rival)
            raise InvalidRoutes((Problem("route_table.file", rule, str(path)),))

        def take_file(_newest_text: str) -> str:
            return text

        version = self._add(take_file, "file", "", _FILE, None)
        number = version.number
        if version.text != text:  # a completed text: the file is still to be written
            number -= 1
        exported = Export(number, _digest(content))
        self._versions.set_exported(exported)
        return exported

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
            reason = error.strerror or error
            rule = f"cannot be written, so it lacks version {newest.number}: {reason}"
            self._report((Problem("route_table.file", rule, str(path)),))
            return
        self._versions.set_exported(Export(newest.number, _digest(content)))

    def _former(self, node: str) -> Route | None:
        """Return the last enabled route of a node, with keys and components of its very last entry."""
        number, former = self._formers.get(node, (-1, None))
        if number == self._table.version:
            return former
        last_entry: Route | None = None
        for version in self._versions.list(None, _LOOK_BACK):
            table = self._parse(version.text)
            last_entry = last_entry or table.routes.get(node)
            with suppress(UnknownNode):  # its next hop is disabled
                if table.knows(node):
                    former = table.resolve(node)
                    break
        if former is not None and last_entry is not None:
            proof = {name: getattr(last_entry, name) for name in _PROOF_FIELDS}
            former = replace(former, **proof)
        self._formers[node] = (self._table.version, former)
        return former

    def _report(self, problems: tuple[Problem, ...]) -> None:
        if problems != self._problems and not self._quiet:
            extra = {
                "file": str(self._path),
                "version": self._table.version,
                "problems": list(map(str, problems)),
            }
            log.warning("route table file not accepted", extra=extra)
        self._problems = problems


def rival(text: str, versions: Repository) -> str:
    """Return the address of another gateway of this node whose file has other routes; empty: none.

    A gateway that has written or accepted its file once keeps it in step with the others'. Raises
    InvalidRoutes.
    """
    number = versions.newest_number()
    if not number or versions.exported() is not None:
        return ""
    newest = versions.get(number)
    if newest is None or parse(text).routes == parse(newest.text).routes:
        return ""
    return versions.followed_by()


def other_routes(gateway: str) -> str:
    """Return the rule broken by a file with other routes than another gateway of this node."""
    return (
        f"has other routes than the gateway {gateway} of this node, which follows a file of its "
        "own: copy that file here, or set route_table.file: null"
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BYTES)
    except Unusable as error:
        raise InvalidRoutes((Problem("route_table.file", str(error), str(path)),)) from error


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = Problem(ROOT, "must be UTF-8 text", f"byte {error.start}")
        raise InvalidRoutes((problem,)) from error


def changes(old: RouteTable, new: RouteTable) -> Iterator[FieldChange]:
    """Yield the differences between two tables, by node."""
    for node in sorted(old.routes.keys() | new.routes.keys()):
        before = _route_fields(old, node)
        after = _route_fields(new, node)
        if before is None or after is None:
            yield FieldChange(node, "", before, after)
            continue
        for name, value in before.items():
            if after[name] != value:
                yield FieldChange(node, name, value, after[name])


def _route_fields(table: RouteTable, node: str) -> dict[str, Any] | None:
    route = table.routes.get(node)
    if route is None:
        return None
    names = [field.name for field in fields(Route) if field.name != "node"]
    return {name: getattr(route, name) for name in names}


def text_diff(old: Version | None, new: Version) -> str:
    """Return the unified diff of two versions' texts."""
    before = old.text.splitlines() if old else []
    after = new.text.splitlines()
    old_name = f"version {old.number if old else 0}"
    new_name = f"version {new.number}"
    return "\n".join(unified_diff(before, after, old_name, new_name, lineterm=""))
