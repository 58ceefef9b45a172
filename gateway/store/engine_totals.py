"""What the engines beside the main one had when they last answered: it stands while they are away."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

import sqlalchemy as sa

from engines.base import Capacity
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.store import Store

_LONGEST = 255


class EngineTotals:
    """By the engine's name, for all gateways of the node."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def known(self) -> Mapping[str, Capacity]:
        """Return what each engine had when it last answered."""
        with self._store.read() as connection:
            rows = connection.execute(sa.select(schema.resource_engine)).all()
        return {row.engine: Capacity(row.cpu, row.memory) for row in rows}

    def keep(self, engine: str, capacity: Capacity, at: datetime) -> None:
        """Write down what an engine tells; one whose name is too long for that is forgotten with the process."""
        if len(engine) <= _LONGEST:
            repeating(partial(self._keep, engine, capacity, at))

    def _keep(self, engine: str, capacity: Capacity, at: datetime) -> None:
        t = schema.resource_engine
        told = {"cpu": capacity.cpu, "memory": capacity.memory, "seen_at": at.timestamp()}
        with self._store.write() as connection:
            known = connection.execute(sa.select(t.c.engine).where(t.c.engine == engine).with_for_update()).first()
            if known is None:
                connection.execute(t.insert().values(engine=engine, **told))
            else:
                connection.execute(t.update().where(t.c.engine == engine).values(**told))
