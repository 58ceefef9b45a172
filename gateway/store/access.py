"""Tokens, and the record of who changed what."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from gateway.auth import Role, Token
from gateway.store import schema
from gateway.store.rows import as_time
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store


@dataclass(frozen=True)
class AuditEntry:
    """One change that somebody asked for, and how that went."""

    id: int
    """grows in the order in which changes were written down"""
    at: datetime
    who: str
    action: str
    status: int
    """of HTTP"""
    code: int | None
    """in the answer's envelope; None where it had none"""
    detail: Mapping[str, Any]


class SqlTokens:
    """The tokens of this node."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, token: Token) -> None:
        """Keep a new token; of what opens it only the digest."""
        row = {
            "id": token.id,
            "name": token.name,
            "role": str(token.role),
            "digest": token.digest,
            "created_at": token.created_at.timestamp(),
            "expires_at": token.expires_at.timestamp() if token.expires_at else None,
            "revoked_at": None,
        }
        with self._store.write() as connection:
            connection.execute(schema.token.insert().values(**row))

    def find(self, digest: str) -> Token | None:
        """Return a token by its digest, revoked and expired ones too; None: there is none."""
        t = schema.token
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.digest == digest)).first()
        return _token(row) if row else None

    def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        with self._store.read() as connection:
            return [_token(row) for row in connection.execute(sa.select(schema.token).order_by("created_at"))]

    def revoke(self, name_or_id: str, now: datetime) -> int:
        """Revoke every token of that name, or the one with that id; return how many were still good."""
        t = schema.token
        which = sa.or_(t.c.name == name_or_id, t.c.id == name_or_id) & t.c.revoked_at.is_(None)
        with self._store.write() as connection:
            return connection.execute(t.update().where(which).values(revoked_at=now.timestamp())).rowcount


class SqlAudit:
    """The record of changes; nothing is ever taken out of it here."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, at: datetime, who: str, action: str, status: int, code: int | None, detail: Mapping[str, Any]
    ) -> None:
        """Write one line; texts are cut to what the columns hold."""
        row = {
            "at": at.timestamp(),
            "who": _whole(who)[:255],
            "action": _whole(action)[:1000],
            "status": status,
            "code": code,
            "detail": _whole(dumps(detail)),
        }
        with self._store.write() as connection:
            connection.execute(schema.audit.insert().values(**row))

    def list(
        self,
        before: int | None = None,
        limit: int = 100,
        who: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        refused: bool | None = None,
    ) -> list[AuditEntry]:
        """Return entries, newest first. ``action``: a part of it; ``refused``: whether the change was not made."""
        t = schema.audit
        query = sa.select(t).order_by(t.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.id < before)
        if who is not None:
            query = query.where(t.c.who == who)
        if action is not None:
            query = query.where(t.c.action.contains(action, autoescape=True))
        if since is not None:
            query = query.where(t.c.at >= since.timestamp())
        if until is not None:
            query = query.where(t.c.at < until.timestamp())
        if refused is not None:
            not_made = sa.or_(t.c.status >= 400, sa.func.coalesce(t.c.code, 0).not_in((0, 200)))
            query = query.where(not_made if refused else ~not_made)
        with self._store.read() as connection:
            return [
                AuditEntry(r.id, as_time(r.at), r.who, r.action, r.status, r.code, loads(dict, r.detail))
                for r in connection.execute(query)
            ]


def _whole(text: str) -> str:
    """Return a text that every database takes: what somebody sent may hold half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _token(row: Any) -> Token:
    return Token(
        row.id,
        row.name,
        Role(row.role),
        row.digest,
        as_time(row.created_at),
        as_time(row.expires_at) if row.expires_at is not None else None,
        as_time(row.revoked_at) if row.revoked_at is not None else None,
    )
