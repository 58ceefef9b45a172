"""The route table in force.

It follows a file that an administrator edits; the operators' API and the CLI change it by
`LiveRoutes.edit`. Every accepted change is stored as a version with its author and its text. The
file is one gateway's working copy: an edited file is the next version as a whole, and a version
from another source is written to it.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from route_table.proxies import DefaultProxy

log = logging.getLogger(__name__)

MAX_BYTES = 4 * MAX_TEXT  # of the file: a character takes at most 4 bytes in UTF-8
_EMPTY = "{}\n"  # the text of a table without routes
_FILE = "file"  # the source of a version that an administrator wrote into the file
_LOOK_BACK = 100  # versions searched for the former route of a removed node
# The fields that a node's former route takes from its very last entry, see `LiveRoutes._former`.
_PROOF_FIELDS = (
    "keys",
    "signing",
    "bundles",
    "sealing",
    "control_sealing",
    "components",
)


@dataclass(frozen=True)
class Version:
    """One accepted state of the table, as the text that an administrator would see in the file."""

    number: int
    at: datetime  # when it was accepted
    author: str  # who made the change; ``file`` for an edit of the file
    reason: str  # as the author gives it; may be empty
    source: str  # file, api, rollback, or contract for the end of a contract
    text: str
    unchanged: bool = False  # the result of an edit that changed nothing; not stored


# In place of the newest version while there is none. It is never stored.
_NO_VERSION = Version(
    number=0,
    at=datetime.min.replace(tzinfo=UTC),
    author="",
    reason="",
    source="",
    text=_EMPTY,
)


@dataclass(frozen=True)
class Export:
    """The file's content when this gateway last wrote or accepted it."""

    number: int  # the number of the version with this content
    digest: str  # SHA-256 of the bytes in hexadecimal


class FieldChange(NamedTuple):
    """One value of a route before and after a change.

    ``field`` is "" if the whole route was added or removed. ``before`` and ``after`` are then all
    fields of the route by name, or None where there is no route.
    """

    node: str
    field: str
    before: Any
    after: Any


class Repository(Protocol):
    """Stores the versions. Several gateways may share a repository."""

    def newest_number(self) -> int:
        """Return the newest version's number; 0 without any version."""

    def get(self, number: int) -> Version | None:
        """Return a version; None if the number is unknown."""

    def add(self, version: Version) -> bool:
        """Append a version; return False, without a change, if its number is taken."""

    def list(
        self,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Version]:
        """Return at most ``limit`` versions, newest first; with ``before``, only lower numbers."""

    def exported(self) -> Export | None:
        """Return the last export.

        None if this gateway has neither written nor accepted a file yet.
        """

    def other_follower(self) -> str:
        """Return the URL of another gateway of this node that follows a file.

        Returns "" if there is none.
        """

    def set_exported(self, export: Export) -> None:
        """Store the last export."""


class MemoryVersions:
    """Versions that last as long as the process; see `Repository`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._versions: list[Version] = []
        self._exported: Export | None = None

    def newest_number(self) -> int:
        """Return the newest version's number: the number of versions, as none is ever removed."""
        return len(self._versions)

    def get(self, number: int) -> Version | None:
        """Return a version; None if the number is unknown."""
        if not 0 < number <= len(self._versions):
            return None
        return self._versions[number - 1]

    def add(self, version: Version) -> bool:
        """Append a version; return False if its number is not the next one."""
        with self._lock:
            if version.number != len(self._versions) + 1:
                return False
            self._versions.append(version)
            return True

    def list(
        self,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Version]:
        """Return at most ``limit`` versions, newest first; see `Repository.list`."""
        end = len(self._versions)
        if before is not None:
            end = max(0, min(before - 1, end))
        start = max(0, end - limit)
        return self._versions[start:end][::-1]

    def exported(self) -> Export | None:
        """Return the last export; None before the first one."""
        return self._exported

    def other_follower(self) -> str:
        """Return "": no other gateway shares these versions."""
        return ""

    def set_exported(self, export: Export) -> None:
        """Keep the last export."""
        self._exported = export


# Returns the problems of an identity's files; takes the identity, its entry's path and the time.
FileCheck = Callable[[Identity, str, datetime], Iterable[Problem]]


class StaleVersion(Exception):
    """The table was changed after the editor had read it.

    ``newest`` is the present version's number.
    """

    def __init__(self, expected: int, newest: int) -> None:
        """Take the number that the editor had read, and the newest one."""
        super().__init__(
            f"the table is at version {newest}, not {expected}: "
            "read it again, then repeat the change"
        )
        self.newest = newest


class UnknownVersion(Exception):
    """There is no such version."""


def _never_in_use(_node: str) -> bool:
    """Return False: a table outside a gateway has no jobs."""
    return False


def _utc_now() -> datetime:
    """Return the time in UTC, in which versions are dated."""
    return datetime.now(UTC)


class LiveRoutes:
    """The table in force, and the problems of the file's newest content.

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
        proxy: DefaultProxy = DefaultProxy(),
    ) -> None:
        """Adopt the newest version and read the file.

        - ``path``: the route file; None without one
        - ``versions``: None keeps them in memory
        - ``in_use``: returns whether jobs with a node are running
        - ``files``: the check that returns the problems of a route's PEM files
        - ``quiet``: do not log problems of the file
        - ``proxy``: on the way to nodes whose entries name none
        """
        self._path = path
        self._versions: Repository = versions or MemoryVersions()
        self._in_use = in_use
        self._clock = clock
        self._files = files
        self._quiet = quiet
        self._proxy = proxy
        self._lock = RLock()
        self._table = RouteTable()
        self._problems: tuple[Problem, ...] = ()
        # URL of another gateway of this node whose routes the file would replace; empty: none.
        self.rival = ""
        # Node -> (version of the table at the search, former route found then); see `_former`.
        self._formers: dict[str, tuple[int, Route | None]] = {}
        self.reload()

    @property
    def table(self) -> RouteTable:
        """The table in force; without any version, the empty table with the number 0."""
        return self._table

    @property
    def path(self) -> Path | None:
        """The route file; None: the table exists only as versions."""
        return self._path

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The reasons why the file's present content is not in force; empty if it is.

        While the file has problems, changes from other sources are stored as versions but not
        written to the file. Once it is corrected, its text is the next version, without these
        changes.
        """
        return self._problems

    def resolve(self, node: str) -> Route:
        """Return the route to a node; a removed route counts while jobs with the node are running.

        Raises `UnknownNode`. New jobs are checked against `table` alone.
        """
        # The search for running jobs is made only for a node without an enabled entry.
        may_use_former = not self._table.knows(node) and self._in_use(node)
        return self._resolve(node, may_use_former)

    def look_up(
        self,
        node: str,
    ) -> tuple[bool, Route | None]:
        """Return whether requests of a node are accepted, and the route to it, or None without one.

        Requests are accepted from a node with an enabled entry. They are also accepted from a node
        with running jobs, if there is any route to it: a former one, or the default one.
        """
        accepted = self._table.knows(node) or self._in_use(node)
        try:
            return accepted, self._resolve(node, accepted)
        except UnknownNode:
            # There is no route, not even a former one, so running jobs do not suffice.
            return self._table.knows(node), None

    def former(self, node: str) -> Route | None:
        """Return the last enabled route of a node, even a removed one.

        Returns None if no jobs with the node are running, or if no such route is found.
        """
        if not self._in_use(node):
            return None
        return self._former(node)

    def _resolve(self, node: str, may_use_former: bool) -> Route:
        """Return a node's own route, else its former one if that may be used, else the default one.

        Raises `UnknownNode`.
        """
        if may_use_former and not self._table.knows(node):
            former = self._former(node)
            if former is not None:
                return former
        return self._table.resolve(node)

    def reload(self) -> bool:
        """Read the file and the versions again; return whether the table changed.

        Problems of the file are reported by `problems`, not raised. Raises `InvalidRoutes` if the
        newest version was added elsewhere and today's rules refuse it.
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
        """Change one entry; return the new version, or the newest one if nothing changed.

        - ``expected``: number of the version that the editor has read; None: any
        - ``source``: as in `Version`

        Raises `InvalidRoutes` with every problem, `StaleVersion` if ``expected`` is not the newest
        number, `UnknownNode` for the removal of an absent entry.
        """

        def apply_change(text: str) -> str:
            # values of None: the change is the removal of the entry
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
        """Restore the table of an earlier version, as a new version.

        Raises `UnknownVersion`, `StaleVersion`, and `InvalidRoutes` if today's rules refuse the
        table.
        """
        old = self.version(number)
        reason = reason or f"back to version {number}"

        def restore(_newest_text: str) -> str:
            return old.text

        return self._add_between_reloads(
            restore, author, reason, source="rollback", expected=expected
        )

    def version(self, number: int) -> Version:
        """Return one version.

        Raises `UnknownVersion`, whose text says which number is the newest.
        """
        version = self._versions.get(number)
        if version is None:
            raise UnknownVersion(
                f"the route table has no version {number}; the newest is {self._table.version}"
            )
        return version

    def history(
        self,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Version]:
        """Return versions, newest first; see `Repository.list`."""
        return self._versions.list(before, limit)

    def _add_between_reloads(
        self,
        change: Callable[[str], str],
        author: str,
        reason: str,
        source: str,
        expected: int | None,
    ) -> Version:
        """Add a version on top of the file's present content, then write it to the file.

        The first reload makes an edit of the file a version of its own, with the file as its
        source.
        """
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
        """Add and adopt the next version, whose text ``change`` makes from the present one.

        Starts over if another gateway adds a version first. Raises `InvalidRoutes`, `StaleVersion`.
        """
        with self._lock:
            while True:
                newest = self._newest()
                if expected not in (None, newest.number):
                    raise StaleVersion(expected, newest.number)
                text = self._without_weakening(change(newest.text), newest.text, source)
                # The first version is stored even if it has no routes.
                if newest.number and text == newest.text:
                    return replace(newest, unchanged=True)
                table = self._parse(text, newest.number + 1)
                self._check_files(table, newest)
                version = Version(
                    newest.number + 1,
                    self._clock(),
                    author,
                    reason,
                    source,
                    text,
                )
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

        A route that lost its keys must continue to require signatures, and so must a route that an
        earlier version had and that now comes back without its keys. ``before`` is the text of the
        newest version. Raises `InvalidRoutes` if a file omits a list of components that a route had
        in ``before``; other editors of the table check that themselves.
        """
        routes = parse(text).routes
        earlier = dict(parse(before).routes)
        if source == _FILE:
            problems = tuple(problems_of_opened_routes(routes, earlier))
            if problems:
                raise InvalidRoutes(problems)
        for node in routes.keys() - earlier.keys():
            last = self._last_entry(node)
            if last is not None:
                earlier[node] = last
        return keep_signing(text, earlier)

    def _last_entry(self, node: str) -> Route | None:
        """Return the last entry of a node that has none at present.

        Returns None if the last `_LOOK_BACK` versions have no valid one.
        """
        for version in self._versions.list(None, _LOOK_BACK):
            if node not in version.text:  # saves the parsing of a version, which takes long
                continue
            with suppress(InvalidRoutes):  # an old version that today's rules refuse
                entry = parse(version.text).routes.get(node)
                if entry is not None:
                    return entry
        return None

    def _parse(self, text: str, number: int = 1) -> RouteTable:
        """Return the table in a text, with full paths of files and ``number`` as its version.

        Callers that need only the routes omit the number.

        Relative paths are resolved against the route file's folder, without a file against the
        working folder. Raises `InvalidRoutes`.
        """
        table = parse(text, number)
        folder = self._path.absolute().parent if self._path else Path.cwd()
        routes = {}
        for node, route in table.routes.items():
            routes[node] = self._proxy.applied(route.with_paths_from(folder))
        return replace(table, routes=routes)

    def _check_files(self, table: RouteTable, newest: Version) -> None:
        """Refuse unusable certificates in changed routes. Raises `InvalidRoutes`.

        ``newest`` is the version that the table would follow. Certificates of unchanged routes were
        valid when they were added; one that has expired since must not block edits.
        """
        before = self._table.routes
        if newest.number != self._table.version:  # another gateway has added a version since
            before = self._parse(newest.text).routes
        problems: list[Problem] = []
        for node, route in table.routes.items():
            if route != before.get(node):
                problems += self._files(
                    route.identity,
                    join("", node),
                    self._clock(),
                )
        if problems:
            raise InvalidRoutes(tuple(problems))

    def _newest(self) -> Version:
        """Return the newest version; without any, version 0, which has no routes."""
        number = self._versions.newest_number()
        return self._versions.get(number) or _NO_VERSION

    def _adopt_newest(self) -> None:
        """Adopt the newest version if another gateway, or the process before this one, added it.

        Raises `InvalidRoutes` if today's rules refuse its text.
        """
        number = self._versions.newest_number()
        if number <= self._table.version:
            return
        newest = self._versions.get(number)
        if newest is not None:
            self._adopt(self._parse(newest.text, number))

    def _adopt(self, table: RouteTable) -> None:
        """Put a table in force; log it if its routes differ or it is the first one."""
        is_first = self._table.version == 0
        changed = table.routes != self._table.routes
        self._table = table
        if changed or is_first:
            extra = {
                "version": table.version,
                "routes": len(table.routes),
            }
            log.info("route table changed", extra=extra)

    def _follow(self, path: Path) -> None:
        """Accept an edit of the file, or write the newest version to it.

        A file that cannot be accepted is reported; every reload tries it again, since a PEM file
        that a route names may appear later.
        """
        try:
            content = _content(path)
            exported = self._versions.exported()
            if exported is None or _digest(content) != exported.digest:
                exported = self._accept_file(path, content)
        except InvalidRoutes as error:
            self._report(error.problems)
            return
        self._problems = ()
        if exported != Export(self._table.version, _digest(content)):
            self._write(path)

    def _accept_file(self, path: Path, content: bytes) -> Export:
        """Add the content of an edited file as a version; return the stored export.

        Raises `InvalidRoutes`, also if the file would replace the routes of another gateway.
        """
        text = _decode(content)
        self.rival = rival(text, self._versions)
        if self.rival:
            rule = other_routes(self.rival)
            raise InvalidRoutes((Problem("route_table.file", rule, str(path)),))

        def take_file(_newest_text: str) -> str:
            return text

        version = self._add(
            take_file,
            author="file",
            reason="",
            source=_FILE,
            expected=None,
        )
        number = version.number
        if version.text != text:
            # `_add` has completed the text. The number of the version before makes `_follow` write
            # the completed text to the file.
            number -= 1
        exported = Export(number, _digest(content))
        self._versions.set_exported(exported)
        return exported

    def _write(self, path: Path) -> None:
        """Write the newest version to the file, completely or not at all.

        A failure is reported as a problem. The file keeps its permissions.
        """
        newest = self._newest()
        if not newest.number:
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
        """Return the last enabled route of a node; None if the stored versions have none.

        Its fields `_PROOF_FIELDS` are those of the node's very last entry, perhaps a disabled one:
        an administrator may have restricted them since.
        """
        never_searched = (-1, None)  # no table has this version
        number, former = self._formers.get(node, never_searched)
        if number != self._table.version:
            former = self._find_former(node, former)
            self._formers[node] = (self._table.version, former)
        return former

    def _find_former(
        self,
        node: str,
        former: Route | None,
    ) -> Route | None:
        """Search the last versions for the route that `_former` returns.

        ``former`` is the result of an earlier search, which stays if these versions have none.
        """
        last_entry: Route | None = None
        for version in self._versions.list(None, _LOOK_BACK):
            try:
                table = self._parse(version.text)
            except InvalidRoutes:  # an old version that today's rules refuse
                continue
            last_entry = last_entry or table.routes.get(node)
            if not table.knows(node):
                continue
            with suppress(UnknownNode):  # its next hop is disabled in this version
                former = table.resolve(node)
                break
        if former is None or last_entry is None:
            return former
        proof = {name: getattr(last_entry, name) for name in _PROOF_FIELDS}
        return replace(former, **proof)

    def _report(self, problems: tuple[Problem, ...]) -> None:
        """Store the problems of the file; log them if they are new.

        Each reload finds the same problems until the file is corrected.
        """
        if problems != self._problems and not self._quiet:
            extra = {
                "file": str(self._path),
                "version": self._table.version,
                "problems": [str(problem) for problem in problems],
            }
            log.warning("route table file not accepted", extra=extra)
        self._problems = problems


def rival(text: str, versions: Repository) -> str:
    """Return the URL of another gateway of this node whose file has other routes than a text.

    Returns "" if there is none, or if this gateway has written or accepted its file before, since
    that file then follows the shared versions. Raises `InvalidRoutes`.
    """
    if versions.exported() is not None:
        return ""
    newest = versions.get(versions.newest_number())
    if newest is None or parse(text).routes == parse(newest.text).routes:
        return ""
    return versions.other_follower()


def other_routes(gateway: str) -> str:
    """Return the rule broken by a file whose routes differ from another gateway's file."""
    return (
        f"has other routes than the gateway {gateway} of this node, which follows a file of its "
        "own: copy that file here, or set route_table.file: null"
    )


def _digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    """Return the content of the route file. Raises `InvalidRoutes`."""
    try:
        return read_file(path, MAX_BYTES)
    except Unusable as error:
        raise InvalidRoutes((Problem("route_table.file", str(error), str(path)),)) from error


def _decode(content: bytes) -> str:
    """Return the text of the route file. Raises `InvalidRoutes`."""
    try:
        return content.decode("utf-8-sig")  # some editors begin files with a byte order mark
    except UnicodeDecodeError as error:
        problem = Problem(ROOT, "must be UTF-8 text", f"byte {error.start}")
        raise InvalidRoutes((problem,)) from error


def changes(old: RouteTable, new: RouteTable) -> Iterator[FieldChange]:
    """Yield the differences between two tables, by node.

    An added or removed route is one change, see `FieldChange`.
    """
    for node in sorted(old.routes.keys() | new.routes.keys()):
        before = _route_fields(old, node)
        after = _route_fields(new, node)
        if before is None or after is None:
            yield FieldChange(node, "", before, after)
        else:
            yield from _field_changes(node, before, after)


def _field_changes(
    node: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FieldChange]:
    """Yield the fields of one node's route that differ.

    ``before`` and ``after`` have the same keys, see `_route_fields`.
    """
    for name, value in before.items():
        if after[name] != value:
            yield FieldChange(node, name, value, after[name])


def _route_fields(
    table: RouteTable,
    node: str,
) -> dict[str, Any] | None:
    """Return the fields of a node's route by name, without the node; None without a route."""
    route = table.routes.get(node)
    if route is None:
        return None
    values = dict(vars(route))
    del values["node"]
    return values


def text_diff(old: Version | None, new: Version) -> str:
    """Return the unified diff of two versions' texts; an ``old`` of None is the empty table."""
    before: list[str] = []
    old_number = 0
    if old is not None:
        before = old.text.splitlines()
        old_number = old.number
    after = new.text.splitlines()
    names = (f"version {old_number}", f"version {new.number}")
    return "\n".join(unified_diff(before, after, *names, lineterm=""))
