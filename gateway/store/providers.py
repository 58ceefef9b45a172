"""The table of providers and of their revisions."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from gateway.store import schema
from gateway.store.database import (
    Database,
    InDatabase,
    Prepared,
    repeat_on_conflict,
    upsert,
)
from gateway.store.serialization import dumps, loads
from provider_registry.model import Provider
from provider_registry.registration import from_document
from provider_registry.registry import Stale
from provider_registry.revisions import Action, Revision

X = TypeVar("X")

MAX_CACHED_READS = 1000  # cached results of reading providers; at this limit all are dropped

_SELECT_PROVIDER = Prepared(
    select(schema.provider.c.document).where(schema.provider.c.provider_key == bindparam("key"))
)


class SqlProviders(InDatabase):
    """Providers, their revisions and the owners of their names.

    Implements `provider_registry.registry.Repository`.
    """

    def __init__(
        self,
        database: Database,
        *,
        sole_writer: bool = False,
    ) -> None:
        """``sole_writer``: no other process writes the database.

        The results of reads are then cached until the next write.
        """
        super().__init__(database)
        self._sole_writer = sole_writer
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], Any] = {}

    def get(self, key: str) -> Provider | None:
        """Return the registered provider with a key; None if there is none."""

        def read() -> str | None:
            return self._database.text(
                _SELECT_PROVIDER,
                key=key,
            )

        document = self._cached("document", key, read)
        if not document:
            return None
        return _parse_provider(document)

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        provider = schema.provider.c
        query = select(provider.document).order_by(provider.provider_key)
        return [_parse_provider(document) for document in self._database.values(query)]

    def write(self, revision: Revision) -> None:
        """Append a revision and bring the provider to the revision's state.

        Raises `Stale` if another writer has taken the revision's number.
        """
        try:
            repeat_on_conflict(partial(self._write_once, revision))
        finally:  # also after an error, as the revision may have been stored all the same
            with self._lock:
                self._cache.clear()

    def _write_once(self, revision: Revision) -> None:
        """Write a revision in one transaction. Raises `Stale` if its number is taken."""
        document = dumps(revision.provider.document())
        row = {
            "provider_key": revision.key,
            "number": revision.number,
            "at": revision.at,
            "author": revision.author,
            "action": revision.action,
            "reason": revision.reason,
            "document": document,
        }
        try:
            with self._database.write() as connection:
                connection.execute(schema.provider_revision.insert().values(**row))
                _apply_revision(connection, revision, document)
        except sa.exc.IntegrityError as error:
            text = f"revision {revision.number} of {revision.key} is there already"
            raise Stale(text) from error

    def newest_number(self, key: str) -> int:
        """Return the number of a provider's last revision, 0 if there never was one."""
        newest = func.max(schema.provider_revision.c.number)
        query = select(newest).filter_by(provider_key=key)
        return int(self._database.value(query) or 0)

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return a provider's revisions, newest first; with ``before``, only lower numbers."""
        query = _select_revisions(key).limit(limit)
        if before is not None:
            query = query.where(schema.provider_revision.c.number < before)
        return [_to_revision(row) for row in self._database.rows(query)]

    def superseded_since(
        self,
        key: str,
        moment: datetime,
    ) -> Revision | None:
        """Return the revision that was the newest one at a moment, if a later one has replaced it.

        None if there is no later one, or if there was no revision yet at that moment.
        """
        c = schema.provider_revision.c
        select_newest = _select_revisions(key).with_only_columns(c.at).limit(1)

        def read_newest() -> Any:
            return self._database.first(select_newest)

        newest = self._cached("newest revision", key, read_newest)
        if newest is None or newest.at <= moment:
            return None
        until_moment = _select_revisions(key).where(c.at <= moment)
        row = self._database.first(until_moment.limit(1))
        return _to_revision(row) if row else None

    def owner(self, name: str) -> str | None:
        """Return the owner of a provider's name, or None if the name has none yet."""
        query = select(schema.provider_owner.c.owner).filter_by(name=name)
        return self._database.text(query)

    def claim(
        self,
        name: str,
        owner: str,
    ) -> str:
        """Make ``owner`` the owner of a name that has none; return the name's owner after that."""
        try:
            self._database.insert(
                schema.provider_owner,
                {"name": name, "owner": owner},
            )
        except sa.exc.IntegrityError:  # the name has an owner
            return self.owner(name) or ""
        return owner

    def give(
        self,
        name: str,
        owner: str,
    ) -> None:
        """Set the owner of a name, whether it has one or not."""
        self._database.put(
            schema.provider_owner,
            {"name": name},
            {"owner": owner},
        )

    def _cached(
        self,
        kind: str,
        key: str,
        read: Callable[[], X],
    ) -> X:
        """Return the result of ``read``, from the cache if no other process writes the database.

        ``kind`` and ``key`` identify the result in the cache.
        """
        if not self._sole_writer:
            return read()
        # The lock is held during `read`. `write` needs the lock to drop the cache, and so drops it
        # after every `read` that began before the revision was stored.
        with self._lock:
            if (kind, key) not in self._cache:
                if len(self._cache) >= MAX_CACHED_READS:
                    self._cache.clear()
                self._cache[kind, key] = read()
            result: X = self._cache[kind, key]
        return result


def _apply_revision(
    connection: sa.Connection,
    revision: Revision,
    document: str,
) -> None:
    """Bring a provider's row to the state of its newest revision."""
    provider = schema.provider
    if revision.action is Action.DELETED:
        connection.execute(provider.delete().filter_by(provider_key=revision.key))
        return
    upsert(
        connection,
        provider,
        {"provider_key": revision.key},
        {
            "document": document,
            "updated_at": revision.at.timestamp(),
        },
    )


def _select_revisions(key: str) -> sa.Select[Any]:
    """Build the query for a provider's revisions, newest first."""
    t = schema.provider_revision
    query = select(t).filter_by(provider_key=key)
    return query.order_by(t.c.number.desc())


def _to_revision(row: Any) -> Revision:
    """Return the revision of a row."""
    return Revision(
        row.provider_key,
        row.number,
        row.at,
        row.author,
        Action(row.action),
        row.reason,
        _parse_provider(row.document),
    )


@lru_cache(maxsize=256)
def _parse_provider(document: str) -> Provider:
    """Parse a stored provider; cached, as most stored texts are read many times."""
    return from_document(loads(dict, document))
