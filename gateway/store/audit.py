"""The audit log: every requested change, in one chain for all gateways on the database.

A line's number and hash follow from the line before, so each gateway remembers the last line. If
another gateway has appended one since, the next number is taken: the insert violates the primary
key, and the gateway reads the end of the log again and retries.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import func, or_, select

from gateway.errors import SigningFailed
from gateway.identity.audit_chain import HEAD, Line, hash_of, head_key, signed_head
from gateway.identity.audit_head import Head, HeadFile
from gateway.identity.signers import SIGNER_TIMEOUT, Signer
from gateway.store import schema
from gateway.store.database import Database, InDatabase, repeat_on_conflict
from gateway.store.dialects import without_nul
from gateway.store.serialization import as_time, to_plain

log = logging.getLogger(__name__)

# Retries of an append. A gateway may lose many races in a row: the gateway that won the last one
# knows the end of the log and is faster.
_RACE_RETRIES = 100
_LINES_PER_QUERY = 1000  # lines of the log read at a time
_SIGNING_INTERVAL = timedelta(days=1)  # age of the newest head at which the log is signed again
_SIGNING_TRIES = 20  # tries to sign the end of the log before another line follows
_GATEWAY = "gateway"  # author of the signed heads
_INSERT = schema.audit.insert()

Detail = Mapping[str, Any]


@dataclass(frozen=True)
class AuditEntry:
    """A requested change and its result."""

    id: int  # grows in the order of writing
    at: datetime
    who: str
    action: str
    status: int  # HTTP status of the response
    code: int | None  # code in the response's envelope; None: it had no envelope
    detail: Detail
    hash: str | None  # over the line and the hash of the line before; None: older than the chain

    def line(self) -> Line:
        """Return the entry in the form that is exported and hashed."""
        return {**vars(self), "at": self.at.isoformat()}


class ChainEnd(NamedTuple):
    """The last line of the log."""

    number: int
    hash: str


_EMPTY_LOG = ChainEnd(0, "")


class _Outdated(Exception):
    """Another line was written while the end of the log was being signed."""


class SqlAudit(InDatabase):
    """The audit log. No method deletes lines; an admin may delete old ones in the database."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._lock = threading.Lock()
        self._end: ChainEnd | None = None  # None: the last line has to be read

    # ------------------------------------------------------------ writing

    def add(
        self,
        at: datetime,
        who: str,
        action: str,
        status: int,
        code: int | None,
        detail: Detail,
    ) -> None:
        """Append a line; texts are cut to the width of their columns."""

        def entry_after(end: ChainEnd) -> AuditEntry:
            return _entry_after(
                end,
                at=at,
                who=who,
                action=action,
                status=status,
                code=code,
                detail=detail,
            )

        self._append(entry_after)

    def sign(
        self,
        node: str,
        signer: Signer,
        at: datetime,
        file: HeadFile | None = None,
    ) -> None:
        """Append a head: a line that signs the line before. Write it to ``file`` unless None.

        Raises `SigningFailed`, also if other lines are written faster than the key signs.
        """
        for _ in range(_SIGNING_TRIES):
            try:
                end = self._append_head(node, signer, at)
            except _Outdated:
                continue
            if file is not None:
                self._write_head(file, Head(end.number, end.hash, at.isoformat()))
            return
        text = "the audit log grows faster than the key signs its head"
        raise SigningFailed(text, reason=SIGNER_TIMEOUT)

    def _append_head(
        self,
        node: str,
        signer: Signer,
        at: datetime,
    ) -> ChainEnd:
        """Sign the end of the log and append the signature; return the new end.

        No lock is held while the key signs, as a token or command may take seconds. Raises
        `_Outdated` if the log has another end afterwards.
        """
        signed_end = self._read_end()
        head = signed_head(
            signer,
            node,
            at,
            signed_end.number,
            signed_end.hash,
        )

        def head_entry(end: ChainEnd) -> AuditEntry:
            if end != signed_end:
                raise _Outdated
            return _entry_after(
                end,
                at=at,
                who=_GATEWAY,
                action=HEAD,
                status=200,
                code=None,  # no envelope
                detail={"head": head},
            )

        return self._append(head_entry)

    def sign_daily(
        self,
        node: str,
        signer: Signer | None,
        at: datetime,
        file: HeadFile | None = None,
    ) -> None:
        """Sign the log if it has no head, or if lines follow the newest head and it is a day old.

        A newest head of another key is immediately followed by a new one, which covers all earlier
        heads. Otherwise write the newest head to ``file``. Do nothing for an empty log, or for a
        node without a key (None). Raises as `sign` does.
        """
        end = self._read_end()
        if signer is None or end == _EMPTY_LOG:
            return
        head = self._newest_head()
        if head is None or head_key(head.detail) != signer.id:
            self.sign(node, signer, at, file)
            return
        has_later_lines = head.id != end.number
        if has_later_lines and at - head.at >= _SIGNING_INTERVAL:
            self.sign(node, signer, at, file)
        elif file is not None:  # the file may lack a head that another gateway signed
            self._write_head(file, Head(head.id, head.hash or "", head.at.isoformat()))

    def _append(
        self,
        entry_after: Callable[[ChainEnd], AuditEntry],
    ) -> ChainEnd:
        """Append the entry that follows the last line; return the new end of the log.

        ``entry_after`` is called again with the new last line if another gateway wrote first.
        """

        def work() -> ChainEnd:
            end = self._end or self._read_end()
            self._end = None  # has to be read again if the insert fails
            entry = entry_after(end)
            hashed = hash_of(entry.line(), end.hash)
            row = {**vars(entry), "hash": hashed}
            self._database.execute(_INSERT, **row)
            self._end = ChainEnd(entry.id, hashed)
            return self._end

        with self._lock:
            return repeat_on_conflict(work, _RACE_RETRIES)

    def _read_end(self) -> ChainEnd:
        """Return the last line, or `_EMPTY_LOG`."""
        c = schema.audit.c
        # The last line is found by the primary key alone, which is fast.
        newest = select(func.max(c.id)).scalar_subquery()
        row = self._database.first(select(c.id, c.hash).where(c.id == newest))
        if row is None:
            return _EMPTY_LOG
        return ChainEnd(row.id, row.hash or "")

    def _newest_head(self) -> Any:
        """Return number, time, hash and detail of the last head; None without one."""
        c = schema.audit.c
        query = select(c.id, c.at, c.hash, c.detail).where(c.action == HEAD)
        return self._database.first(query.order_by(c.id.desc()).limit(1))

    # ------------------------------------------------------------ the file of the head

    def _write_head(
        self,
        file: HeadFile,
        head: Head,
    ) -> None:
        """Write a head to the file if it is newer than the head in the file.

        If the log lacks the head in the file, that head stays in the file, as the proof that lines
        of the log were removed or changed.
        """
        try:
            head_in_file = file.read()
            if head_in_file is not None:
                is_newer = head.line > head_in_file.line
                if not is_newer or self._lacks(head_in_file):
                    return
            file.write(head)
        except (OSError, ValueError) as error:
            log.warning("the head of the audit log cannot be kept: %s", error)

    def _lacks(self, head: Head) -> bool:
        """Return whether the line of a head is missing or changed; log an error if so.

        A line older than the oldest stored one does not count as missing: an admin may delete old
        lines in the database.
        """
        c = schema.audit.c
        stored_hash = self._database.value(select(c.hash).where(c.id == head.line))
        if stored_hash == head.hash:
            return False
        oldest = self._database.value(select(func.min(c.id)))
        if stored_hash is None and oldest is not None and oldest > head.line:
            return False
        log.error(
            "the audit log lacks line %d, signed at %s: see bfia-gateway audit verify",
            head.line,
            head.at,
        )
        return True

    # ------------------------------------------------------------ reading

    def lines(self) -> Iterator[Line]:
        """Yield the complete log, the oldest line first."""
        t = schema.audit
        last = 0
        while True:
            query = select(t).where(t.c.id > last)
            rows = self._database.rows(query.order_by(t.c.id).limit(_LINES_PER_QUERY))
            if not rows:
                return
            for row in rows:
                yield AuditEntry(*row).line()
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
        patterns: Sequence[str] = (),
    ) -> list[AuditEntry]:
        """Return entries, newest first.

        ``before`` is the number of the last entry of the page before. With ``action``, the action
        contains this text or matches one of ``patterns`` (of SQL LIKE). ``refused``: True for the
        changes that were not made, False for those that were.
        """
        c = schema.audit.c
        conditions = []
        if before is not None:
            conditions.append(c.id < before)
        if who is not None:
            conditions.append(c.who == who)
        if action is not None:
            contains_text = c.action.contains(
                action,
                autoescape=True,
            )
            matches_pattern = [c.action.like(pattern) for pattern in patterns]
            conditions.append(or_(contains_text, *matches_pattern))
        if since is not None:
            conditions.append(c.at >= since)
        if until is not None:
            conditions.append(c.at < until)
        if refused is not None:
            conditions.append(_was_refused() if refused else ~_was_refused())
        query = select(schema.audit).where(*conditions)
        rows = self._database.rows(query.order_by(c.id.desc()).limit(limit))
        return [AuditEntry(*row) for row in rows]


def _entry_after(
    end: ChainEnd,
    *,
    at: datetime,
    who: str,
    action: str,
    status: int,
    code: int | None,
    detail: Detail,
) -> AuditEntry:
    """Return the entry that follows the end of the log, without its hash.

    The values are as the table returns them, so that the hash can be checked later.
    """
    return AuditEntry(
        id=end.number + 1,
        at=as_time(at.timestamp()),
        who=without_nul(who[:255]),
        action=without_nul(action[:1000]),
        status=status,
        code=code,
        detail=to_plain(detail),
        hash=None,
    )


def _was_refused() -> sa.ColumnElement[bool]:
    """Return the condition for changes that were not made."""
    c = schema.audit.c
    # Codes 0 and 200 mean success; a response without a code counts by its HTTP status alone.
    return or_(
        c.status >= 400,
        func.coalesce(c.code, 0).not_in((0, 200)),
    )
