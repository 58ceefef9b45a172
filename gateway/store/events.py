"""Reads all timelines as one sequence of events, and stores the position of each receiver in it."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, or_, select

from gateway.store import schema
from gateway.store.database import repeat_on_conflict
from gateway.store.store import Store

_MAX_NUMBERS = 10_000  # numbers read in one search for a gap
_WEBHOOK = schema.webhook


# ------------------------------------------------------------ entries of timelines


def has_many_writers(store: Store) -> bool:
    """Return whether entries may become visible in another order than that of their numbers.

    That is so on a server, where several transactions write at the same time.
    """
    with store.read() as connection:
        return connection.dialect.name != "sqlite"


def newest_number(store: Store) -> int:
    """Return the number of the newest entry, 0 if there is none."""
    query = select(func.max(schema.timeline.c.id))
    return int(store.value(query) or 0)


def until_gap(
    store: Store,
    start: int,
    end: int,
) -> int:
    """Return the number up to which no number after ``start`` is missing; at most ``end``.

    That is ``start`` if the next number is missing. A number is missing while the transaction that
    took it is open, and forever if that transaction fails. No more than `_MAX_NUMBERS` numbers are
    searched.
    """
    c = schema.timeline.c
    query = select(c.id).where(c.id > start, c.id <= end)
    numbers = store.values(query.order_by(c.id).limit(_MAX_NUMBERS))
    last = start
    for number in numbers:
        if number != last + 1:
            break
        last = number
    return last


def after(
    store: Store,
    number: int,
    until: int,
    names: Sequence[str],
    job_id: str,
    limit: int,
) -> list[Any]:
    """Return the rows with numbers after ``number`` and up to ``until``, oldest first.

    ``names``: only timeline entries with one of these names; none if it is empty. ``job_id``: only
    entries of this job; all jobs if it is empty.
    """
    t = schema.timeline
    query = select(t).where(
        t.c.id > number,
        t.c.id <= until,
        t.c.event.in_(names),
    )
    if job_id:
        query = query.where(t.c.job_id == job_id)
    return store.rows(query.order_by(t.c.id).limit(limit))


# ------------------------------------------------------------ positions of receivers


def cursor(store: Store, key: str) -> int | None:
    """Return the number of the last entry delivered to a receiver; None for an unknown receiver."""
    query = select(_WEBHOOK.c.number).filter_by(key=key)
    number: int | None = store.value(query)
    return number


def add_cursor(
    store: Store,
    key: str,
    number: int,
) -> None:
    """Store the position of a new receiver, whose events begin after the entry ``number``.

    An existing receiver keeps its position.
    """
    row = {
        "key": key,
        "number": number,
        "holder": "",
        "until": 0.0,  # any gateway may take the lease
    }
    with suppress(sa.exc.IntegrityError):
        store.insert(_WEBHOOK, row)


def hold_cursor(
    store: Store,
    key: str,
    holder: str,
    now: float,
    until: float,
) -> bool:
    """Take or extend the lease of a receiver; return False if another gateway has it now.

    ``until``: the end of the lease; both times are seconds since the epoch.
    """
    is_free = or_(
        _WEBHOOK.c.holder == holder,
        _WEBHOOK.c.until < now,
    )
    update = _WEBHOOK.update().where(_WEBHOOK.c.key == key, is_free)
    update = update.values(
        holder=holder,
        until=until,
    )
    return repeat_on_conflict(partial(store.execute, update)) == 1


def move_cursor(
    store: Store,
    key: str,
    holder: str,
    number: int,
) -> bool:
    """Store that all entries up to a number are delivered.

    Returns False if another gateway has the lease.
    """
    update = _WEBHOOK.update().filter_by(key=key, holder=holder)
    update = update.values(number=number)
    return repeat_on_conflict(partial(store.execute, update)) == 1
