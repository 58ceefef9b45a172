"""Signatures that stand for one request each, heard by any gateway on this database."""

import threading
from collections.abc import Callable

import sqlalchemy as sa

from gateway.ports import Clock
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.store import Store

_TIDY_EVERY = 60.0
"""seconds between deletions of what no longer holds"""


class SqlHeardSignatures:
    """Remembers each for as long as it holds; safe to use from several threads and gateways."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._tidy_at = 0.0

    def first(self, signature: str, request: str, seconds: float) -> str:
        """Return the fingerprint of the request that came first with a signature: ``request`` where this one did.

        It is remembered for so many seconds from then on.
        """
        t, now = schema.heard_signature, self._clock().timestamp()
        mine = t.c.signature == signature

        def work() -> str:
            with self._store.write() as connection:
                known = connection.execute(sa.select(t.c.request).where(mine, t.c.until >= now)).scalar()
                if known is not None:
                    return str(known)
                connection.execute(t.delete().where(mine, t.c.until < now))
                connection.execute(t.insert().values(signature=signature, request=request, until=now + seconds))
                return request

        found = repeating(work)
        if self._due(now):
            repeating(self._tidy(now))
        return found

    def _due(self, now: float) -> bool:
        with self._lock:
            due = now >= self._tidy_at
            if due:
                self._tidy_at = now + _TIDY_EVERY
            return due

    def _tidy(self, now: float) -> Callable[[], None]:
        def work() -> None:
            t = schema.heard_signature
            with self._store.write() as connection:
                connection.execute(t.delete().where(t.c.until < now))

        return work
