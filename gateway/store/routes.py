"""The versions of the route table: `route_table.versions.Repository`."""

from collections.abc import Sequence

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.rows import as_time
from gateway.store.store import Store
from route_table.versions import Export, Version

_HERE = 1


class SqlRouteVersions:
    """Kept in the node's database, so that several gateways of the node have one table."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""
        t = schema.route_version
        with self._store.read() as connection:
            return int(connection.execute(sa.select(sa.func.max(t.c.number))).scalar() or 0)

    def get(self, number: int) -> Version | None:
        """Return a version; None: there is none of that number."""
        t = schema.route_version
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.number == number)).first()
        return _version(row) if row else None

    def add(self, version: Version) -> bool:
        """Append a version; False where its number is taken. Author and reason are cut to the columns."""
        row = {
            "number": version.number,
            "at": version.at.timestamp(),
            "author": version.author[:255],
            "reason": version.reason[:1000],
            "source": version.source,
            "text": version.text,
        }
        try:
            with self._store.write() as connection:
                connection.execute(schema.route_version.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""
        t = schema.route_version
        query = sa.select(t).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        with self._store.read() as connection:
            return [_version(row) for row in connection.execute(query)]

    def exported(self) -> Export | None:
        """Return what the file held last; None: no gateway has written one yet."""
        t = schema.route_export
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.id == _HERE)).first()
        return Export(row.number, row.digest) if row else None

    def set_exported(self, export: Export) -> None:
        """Note what the file holds now."""
        t = schema.route_export
        values = {"number": export.number, "digest": export.digest}

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(sa.select(t.c.id).where(t.c.id == _HERE)).first():
                    connection.execute(t.insert().values(id=_HERE, **values))
                else:
                    connection.execute(t.update().where(t.c.id == _HERE).values(**values))

        repeating(work)


def _version(row: sa.Row[tuple[object, ...]]) -> Version:
    r = row._mapping
    return Version(r["number"], as_time(r["at"]), r["author"], r["reason"], r["source"], r["text"])
