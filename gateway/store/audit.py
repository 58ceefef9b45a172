"""The audit log: every change that was asked for, in one chain for all gateways on the database.

A line's number and hash follow from the line before. A gateway remembers the last line, and reads it again where
another gateway was faster: of two lines with one number, the table takes the first.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from gateway.identity.audit_head import Head, HeadFile
from gateway.identity.keys import KeyPair
from gateway.identity.statements import HEAD, Line, hash_of, signed_head
from gateway.store import schema
from gateway.store.database import Database, repeating
from gateway.store.serialization import as_time, to_plain

log = logging.getLogger(__name__)

_INSERT = schema.audit.insert()
_PAGE = 1000
_RACES = 100
"""that another gateway may win in a row: it need not read the last line, and is faster"""
_HEAD_EVERY = timedelta(days=1)


@dataclass(frozen=True)
class AuditEntry:
    """One change that was requested, and its result."""

    id: int
    """grows in the order in which changes were written down"""
    at: datetime
    who: str
    action: str
    status: int
    """of HTTP"""
    code: int | None
    """in the response's envelope; None where it had none"""
    detail: Mapping[str, Any]
    hash: str | None
    """of the line and the hash before it; None: older than the chain"""

    def line(self) -> Line:
        """Return it as it is exported, and hashed."""
        return {**vars(self), "at": self.at.isoformat()}


class SqlAudit:
    """The record of changes; nothing is ever deleted from it here."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._alone = threading.Lock()
        self._last: tuple[int, str] | None = None
        """number and hash of the last line; None: to be read"""

    def add(
        self,
        at: datetime,
        who: str,
        action: str,
        status: int,
        code: int | None,
        detail: Mapping[str, Any] | Callable[[int, str], Mapping[str, Any]],
    ) -> None:
        """Write one line; texts are cut to what the columns hold. ``detail`` may be made of the line before."""
        self._write(at, who, action, status, code, detail)

    def _write(
        self,
        at: datetime,
        who: str,
        action: str,
        status: int,
        code: int | None,
        detail: Mapping[str, Any] | Callable[[int, str], Mapping[str, Any]],
    ) -> tuple[int, str]:
        """Write one line; return its number and hash."""

        def work() -> tuple[int, str]:
            number, hashed = self._last or self._newest()
            self._last = None
            plain = to_plain(detail(number, hashed) if callable(detail) else detail)
            kept = (as_time(at.timestamp()), who[:255], action[:1000], status, code, plain)
            entry = AuditEntry(number + 1, *kept, hash=None)
            made = hash_of(entry.line(), hashed)
            self._database.execute(_INSERT, **vars(entry) | {"hash": made})
            self._last = number + 1, made
            return self._last

        with self._alone:
            return repeating(work, _RACES)

    def sign(
        self,
        node: str,
        pair: KeyPair,
        at: datetime,
        kept: HeadFile | None = None,
    ) -> None:
        """Write a line that signs the one before, and keep it in a file as well."""
        number, hashed = self._write(
            at,
            "gateway",
            HEAD,
            200,
            None,
            lambda *last: {"head": signed_head(pair, node, at, *last)},
        )
        if kept is not None:
            self._keep(kept, Head(number, hashed, at.isoformat()))

    def sign_daily(
        self,
        node: str,
        pair: KeyPair | None,
        at: datetime,
        kept: HeadFile | None = None,
    ) -> None:
        """Write such a line where there is none yet, or the newest is a day old and others follow it."""
        t = schema.audit
        if pair is None or (number := self._newest()[0]) == 0:
            return
        newest = self._database.first(
            sa.select(t.c.id, t.c.at, t.c.hash)
            .where(t.c.action == HEAD)
            .order_by(t.c.id.desc())
            .limit(1)
        )
        if newest is None or (newest.id != number and at - newest.at >= _HEAD_EVERY):
            self.sign(node, pair, at, kept)
        elif kept is not None:  # an earlier version kept none, or another gateway has signed since
            self._keep(kept, Head(newest.id, newest.hash or "", newest.at.isoformat()))

    def _keep(self, kept: HeadFile, head: Head) -> None:
        """Keep a newer head, unless the log lacks the one before: that is what tells that it was cut off."""
        try:
            before = kept.read()
            if before is None or (before.line < head.line and not self._lacks(before)):
                kept.write(head)
        except (OSError, ValueError) as error:
            log.warning("the head of the audit log cannot be kept: %s", error)

    def _lacks(self, head: Head) -> bool:
        """Tell whether a signed head is gone, but for one that went with the oldest lines; log so."""
        c = schema.audit.c
        hashed = self._database.value(sa.select(c.hash).where(c.id == head.line))
        oldest = self._database.value(sa.select(sa.func.min(c.id)))
        went_with_oldest = hashed is None and oldest is not None and oldest > head.line
        if hashed == head.hash or went_with_oldest:
            return False
        log.error(
            "the audit log lacks line %d, signed at %s: see bfia-gateway audit verify",
            head.line,
            head.at,
        )
        return True

    def _newest(self) -> tuple[int, str]:
        """Return number and hash of the newest line, (0, "") of an empty log: one look by the table's key."""
        c = schema.audit.c
        newest = sa.select(sa.func.max(c.id)).scalar_subquery()
        line = self._database.first(sa.select(c.id, c.hash).where(c.id == newest))
        if line is None:
            return 0, ""
        return line.id, line.hash or ""

    def lines(self) -> Iterator[Line]:
        """Yield the whole log, the oldest line first."""
        last, c = 0, schema.audit.c
        while rows := self._database.rows(
            sa.select(schema.audit).where(c.id > last).order_by(c.id).limit(_PAGE)
        ):
            yield from (AuditEntry(*row).line() for row in rows)
            last = rows[-1].id

    def list(
        self,
        before: int | None = None,
        limit: int = 100,
        who: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        refused: bool | None = None,
        alike: Sequence[str] = (),
    ) -> list[AuditEntry]:
        """Return entries, newest first. ``refused``: whether the change was not made.

        ``action``: a part of it, or it is like one of ``alike``, in which % stands for any text.
        """
        c = schema.audit.c
        query = sa.select(schema.audit).order_by(c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(c.id < before)
        if who is not None:
            query = query.where(c.who == who)
        if action is not None:
            query = query.where(
                sa.or_(c.action.contains(action, autoescape=True), *map(c.action.like, alike))
            )
        if since is not None:
            query = query.where(c.at >= since)
        if until is not None:
            query = query.where(c.at < until)
        if refused is not None:
            not_made = sa.or_(c.status >= 400, sa.func.coalesce(c.code, 0).not_in((0, 200)))
            query = query.where(not_made if refused else ~not_made)
        return [AuditEntry(*row) for row in self._database.rows(query)]
