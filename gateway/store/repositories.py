"""Providers, what became of them, and whose their names are: `provider_registry.repository.Repository`."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from gateway.store import schema, statements
from gateway.store.database import repeating
from gateway.store.rows import as_time
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store
from provider_registry.model import Provider
from provider_registry.registration import from_document
from provider_registry.repository import Stale
from provider_registry.revisions import Action, Revision


class SqlProviders:
    """Kept in the node's database. A revision and the state it leads to are one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> Provider | None:
        """Return what is registered now; None: nothing."""
        with self._store.read() as connection:
            text = connection.execute(statements.PROVIDER, {"key": key}).scalar()
        return _provider(text) if text else None

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        t = schema.provider
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document).order_by(t.c.provider_key)).scalars().all()
        return [_provider(text) for text in texts]

    def write(self, revision: Revision) -> None:
        """Append a revision. Raises `Stale`: the number is the primary key, so of two writers one comes second."""
        t = schema.provider
        here = t.c.provider_key == revision.key
        at = revision.at.timestamp()
        document = dumps(revision.provider.document())
        row = {
            "provider_key": revision.key,
            "number": revision.number,
            "at": at,
            "author": revision.author[:255],
            "action": str(revision.action),
            "reason": revision.reason[:1000],
            "document": document,
        }

        def work() -> None:
            try:
                with self._store.write() as connection:
                    connection.execute(schema.provider_revision.insert().values(**row))
                    if revision.action is Action.DELETED:
                        connection.execute(t.delete().where(here))
                        return
                    present = {"document": document, "updated_at": at}
                    if not connection.execute(t.update().where(here).values(**present)).rowcount:
                        connection.execute(t.insert().values(provider_key=revision.key, **present))
            except sa.exc.IntegrityError as error:
                raise Stale(f"revision {revision.number} of {revision.key} is there already") from error

        repeating(work)

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0: there was never one."""
        t = schema.provider_revision
        with self._store.read() as connection:
            found = connection.execute(sa.select(sa.func.max(t.c.number)).where(t.c.provider_key == key)).scalar()
        return int(found or 0)

    def history(self, key: str, before: int | None = None, limit: int = 50) -> Sequence[Revision]:
        """Return revisions, newest first."""
        t = schema.provider_revision
        query = sa.select(t).where(t.c.provider_key == key).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        with self._store.read() as connection:
            return [_revision(row) for row in connection.execute(query)]

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment, if another one followed it."""
        asked = {"key": key, "moment": moment.timestamp()}
        with self._store.read() as connection:
            last = connection.execute(statements.REVISED, {"key": key}).first()
            if last is None or last.at <= asked["moment"]:
                return None
            row = connection.execute(statements.REVISION_THEN, asked).first()
        return _revision(row) if row else None

    def owner(self, name: str) -> str | None:
        """Return who owns a name; None: nobody yet."""
        t = schema.provider_owner
        with self._store.read() as connection:
            found: str | None = connection.execute(sa.select(t.c.owner).where(t.c.name == name)).scalar()
        return found

    def claim(self, name: str, owner: str) -> str:
        """Make somebody the owner of a name that has none; return who owns it now."""
        known = self.owner(name)
        if known is not None:
            return known
        try:
            with self._store.write() as connection:
                connection.execute(schema.provider_owner.insert().values(name=name, owner=owner))
        except sa.exc.IntegrityError:  # another was first
            return self.owner(name) or ""
        return owner

    def give(self, name: str, owner: str) -> None:
        """Make somebody the owner of a name."""
        t = schema.provider_owner

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(sa.select(t.c.name).where(t.c.name == name)).first():
                    connection.execute(t.insert().values(name=name, owner=owner))
                else:
                    connection.execute(t.update().where(t.c.name == name).values(owner=owner))

        repeating(work)


def _revision(row: Any) -> Revision:
    return Revision(
        row.provider_key,
        row.number,
        as_time(row.at),
        row.author,
        Action(row.action),
        row.reason,
        _provider(row.document),
    )


@lru_cache(maxsize=256)
def _provider(text: str) -> Provider:
    """Parse a stored provider; the same text is parsed once."""
    return from_document(loads(dict, text))
