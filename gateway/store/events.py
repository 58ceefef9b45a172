"""Reads the timeline as one sequence over all jobs; keeps how far each receiver of events has got."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.store import Store

_WEBHOOK = schema.webhook


def has_many_writers(store: Store) -> bool:
    """Say whether entries may become visible in another order than that of their numbers."""
    with store.read() as connection:
        return connection.dialect.name != "sqlite"


def newest(store: Store) -> int:
    """Return the number of the newest line; 0: there is none."""
    return int(store.value(sa.select(sa.func.max(schema.timeline.c.id))) or 0)


def until_gap(
    store: Store,
    start: int,
    end: int,
) -> int:
    """Return the last number after ``start`` before the first that is missing, at most ``end``."""
    c = schema.timeline.c
    last = start
    for number in store.values(
        sa.select(c.id).where(c.id > start, c.id <= end).order_by(c.id).limit(10_000)
    ):
        if number != last + 1:
            break
        last = number
    return last


def after(
    store: Store,
    number: int,
    until: int,
    entries: Sequence[str],
    job_id: str,
    limit: int,
) -> list[Any]:
    """Return rows of these kinds after a number, up to another one, of a job or (empty) of all, oldest first."""
    t = schema.timeline
    query = sa.select(t).where(t.c.id > number, t.c.id <= until, t.c.event.in_(entries))
    if job_id:
        query = query.where(t.c.job_id == job_id)
    return store.rows(query.order_by(t.c.id).limit(limit))


def cursor(store: Store, key: str) -> int | None:
    """Return the number of the last line that a receiver has received; None: it is not known."""
    number: int | None = store.value(sa.select(_WEBHOOK.c.number).where(_WEBHOOK.c.key == key))
    return number


def add_cursor(
    store: Store,
    key: str,
    number: int,
) -> None:
    """Note where a new receiver begins; nothing where it is known already."""
    with suppress(sa.exc.IntegrityError):
        store.execute(
            _WEBHOOK.insert().values(
                key=key,
                number=number,
                holder="",
                until=0.0,
            )
        )


def hold_cursor(
    store: Store,
    key: str,
    holder: str,
    now: float,
    until: float,
) -> bool:
    """Take or keep the delivery to a receiver, unless another holds it just now."""
    free = sa.or_(_WEBHOOK.c.holder == holder, _WEBHOOK.c.until < now)
    statement = (
        _WEBHOOK.update().where(_WEBHOOK.c.key == key, free).values(holder=holder, until=until)
    )
    return repeating(lambda: store.execute(statement)) == 1


def move_cursor(
    store: Store,
    key: str,
    holder: str,
    number: int,
) -> bool:
    """Note that everything up to a number was delivered; False where another delivers by now."""
    mine = (_WEBHOOK.c.key == key, _WEBHOOK.c.holder == holder)
    return (
        repeating(lambda: store.execute(_WEBHOOK.update().where(*mine).values(number=number))) == 1
    )
