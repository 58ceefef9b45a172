"""Reads the timeline as one sequence over all jobs; keeps how far each receiver of events has got."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.serialization import loads
from gateway.store.store import Store


@dataclass(frozen=True)
class Row:
    """A line of the timeline; ``at`` is in seconds since the epoch."""

    id: int
    job_id: str
    side: str
    at: float
    event: str
    actor: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Cursor:
    """How far a receiver has got, and who delivers to it until when."""

    number: int
    """of the last line of the timeline that it has taken"""
    holder: str
    until: float
    """seconds since the epoch; then another gateway may deliver"""


def has_many_writers(store: Store) -> bool:
    """Say whether entries may become visible in another order than that of their numbers."""
    with store.read() as connection:
        return connection.dialect.name != "sqlite"


def newest(store: Store) -> int:
    """Return the number of the newest line; 0: there is none."""
    with store.read() as connection:
        return int(connection.execute(sa.select(sa.func.max(schema.timeline.c.id))).scalar() or 0)


def until_gap(store: Store, start: int, end: int) -> int:
    """Return the last number behind ``start`` before the first that is missing, at most ``end``."""
    t = schema.timeline
    last = start
    with store.read() as connection:
        query = sa.select(t.c.id).where(t.c.id > start, t.c.id <= end).order_by(t.c.id).limit(10_000)
        for number in connection.execute(query).scalars():
            if number != last + 1:
                break
            last = number
    return last


def after(store: Store, number: int, until: int, entries: Sequence[str], job_id: str, limit: int) -> list[Row]:
    """Return lines of these kinds behind a number, up to another one, oldest first.

    ``job_id`` empty: of all jobs.
    """
    t = schema.timeline
    query = sa.select(t).where(t.c.id > number, t.c.id <= until, t.c.event.in_(entries))
    if job_id:
        query = query.where(t.c.job_id == job_id)
    with store.read() as connection:
        rows = connection.execute(query.order_by(t.c.id).limit(limit)).all()
    return [Row(r.id, r.job_id, r.side, r.at, r.event, r.actor, loads(dict, r.detail)) for r in rows]


def cursor(store: Store, key: str) -> Cursor | None:
    """Return how far a receiver has got; None: it has never been told anything."""
    t = schema.webhook
    with store.read() as connection:
        row = connection.execute(sa.select(t).where(t.c.key == key)).first()
    return Cursor(row.number, row.holder, row.until) if row else None


def add_cursor(store: Store, key: str, number: int) -> None:
    """Note where a new receiver begins; nothing where it is known already."""

    def add() -> None:
        with store.write() as connection:
            known = connection.execute(sa.select(schema.webhook.c.key).where(schema.webhook.c.key == key)).scalar()
            if known is None:
                connection.execute(schema.webhook.insert().values(key=key, number=number, holder="", until=0.0))

    repeating(add)


def hold_cursor(store: Store, key: str, holder: str, now: float, until: float) -> bool:
    """Take or keep the delivery to a receiver, unless another holds it just now."""
    t = schema.webhook
    free = sa.or_(t.c.holder == holder, t.c.until < now)

    def hold() -> bool:
        with store.write() as connection:
            done = connection.execute(t.update().where(t.c.key == key, free).values(holder=holder, until=until))
            return bool(done.rowcount == 1)

    return repeating(hold)


def move_cursor(store: Store, key: str, holder: str, number: int) -> bool:
    """Note that everything up to a number was taken; False where another delivers by now."""
    t = schema.webhook

    def move() -> bool:
        with store.write() as connection:
            done = connection.execute(t.update().where(t.c.key == key, t.c.holder == holder).values(number=number))
            return bool(done.rowcount == 1)

    return repeating(move)
