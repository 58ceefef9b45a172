"""The ledger of the node's resources.

Every change takes the same lock, so that one gateway on the database changes the ledger at a time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import or_, select

from gateway.domain.amounts import Amounts, AmountsByEngine
from gateway.domain.resources import Claim, ClaimState, Ledger, NodeCapacity
from gateway.domain.states import JobStatus
from gateway.store import schema
from gateway.store.database import repeat_on_conflict
from gateway.store.store import Store

X = TypeVar("X")
_POOL = 1  # id of the only row of the pool, which serves as the lock
_COUNTS = ("ignored", "repaired", "expired")  # counters of the ledger and columns of the pool
# Fields of a claim that their columns hold unchanged.
_PLAIN_FIELDS = (
    "job_id",
    "since",
    "asked_at",
    "priority",
    "scheduler",
    "held_at",
    "reason",
)


class Claims:
    """The jobs' claims on the resources of this node, held or waiting."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def decide(
        self,
        capacity: NodeCapacity,
        job_id: str,
        change: Callable[[Ledger, str | None], tuple[Ledger, X]],
        enough: Callable[[X], bool] | None = None,
    ) -> X:
        """Change the ledger under its lock; return the second value of ``change``.

        ``change`` takes the ledger and the status of the job's record here (None without a record),
        and may be called repeatedly. First it gets a ledger without the claims of other waiting
        jobs, which is faster. If ``enough`` returns True for the second value of that call, the
        call counts; otherwise, or without ``enough``, ``change`` is called again with the complete
        ledger.
        """
        claim = schema.resource_claim.c
        job = schema.local_job.c
        pool = schema.resource_pool
        lock_pool = select(pool).where(pool.c.id == _POOL).with_for_update()
        select_status = select(job.status).where(job.job_id == job_id)
        is_held_or_of_job = or_(
            claim.state == ClaimState.HELD,
            claim.job_id == job_id,
        )

        def work() -> X:
            with self._store.write() as connection:
                # The lock comes first, so that all later reads see the last holder's writes.
                pool_row = connection.execute(lock_pool).one()
                status = connection.execute(select_status).scalar()
                old = self._load(connection, capacity, pool_row, is_held_or_of_job)
                new, decision = change(old, status)
                if enough is None or not enough(decision):
                    old = self._load(connection, capacity, pool_row)
                    new, decision = change(old, status)
                self._save(connection, old, new)
            return decision

        return repeat_on_conflict(work)

    def ledger(self, capacity: NodeCapacity) -> Ledger:
        """Return the current ledger, without a lock."""
        with self._store.read() as connection:
            pool_row = connection.execute(select(schema.resource_pool)).one()
            return self._load(connection, capacity, pool_row)

    def find(self, job_id: str) -> Claim | None:
        """Return the claim of a job, held or waiting; None if it has none."""
        t = schema.resource_claim
        row = self._store.first(select(t).where(t.c.job_id == job_id))
        if row is None:
            return None
        return _claim(row)

    def with_job_statuses(self) -> list[tuple[Claim, str | None]]:
        """Return every claim with the status of its job here; None for a job without a record."""
        t = schema.resource_claim
        job = schema.local_job
        claims_with_jobs = t.outerjoin(
            job,
            job.c.job_id == t.c.job_id,
        )
        query = select(t, job.c.status).select_from(claims_with_jobs)
        return [(_claim(row), row.status) for row in self._store.rows(query)]

    @staticmethod
    def _load(
        connection: sa.Connection,
        capacity: NodeCapacity,
        pool_row: Any,
        *conditions: sa.ColumnElement[bool],
    ) -> Ledger:
        """Return the ledger with the claims that meet the conditions."""
        query = select(schema.resource_claim).where(*conditions)
        claims = {row.job_id: _claim(row) for row in connection.execute(query)}
        counts = {name: getattr(pool_row, name) for name in _COUNTS}
        totals = {}
        away_reasons = {}
        unmanaged = {}  # used by other programs
        for name, engine in capacity.further.items():
            unmanaged[name] = engine.others
            if engine.total is not None:
                totals[name] = engine.total
            if engine.away:
                away_reasons[name] = engine.away
        return Ledger(
            capacity.total,
            claims,
            node=capacity.node,
            further=totals,
            away=away_reasons,
            others=AmountsByEngine.of(capacity.others, unmanaged),
            **counts,
        )

    @staticmethod
    def _save(
        connection: sa.Connection,
        old: Ledger,
        new: Ledger,
    ) -> None:
        """Write the claims and counters that differ between the two ledgers.

        The stored claims that `decide` left out of both ledgers stay unchanged.
        """
        t = schema.resource_claim
        for job_id in old.claims.keys() - new.claims.keys():
            connection.execute(t.delete().where(t.c.job_id == job_id))
        for job_id, claim in new.claims.items():
            before = old.claims.get(job_id)
            if before is None:
                connection.execute(t.insert().values(**_row(claim)))
            elif before != claim:
                update = t.update().where(t.c.job_id == job_id)
                connection.execute(update.values(**_row(claim)))
        counts = {}
        for name in _COUNTS:
            count = getattr(new, name)
            if count != getattr(old, name):
                counts[name] = count
        if counts:
            connection.execute(schema.resource_pool.update().values(**counts))


def _claim(row: Any) -> Claim:
    """Return the claim of a row."""
    plain_fields = {name: getattr(row, name) for name in _PLAIN_FIELDS}
    further = {name: Amounts(*amounts) for name, amounts in (row.further or {}).items()}
    amounts = Amounts(
        row.cpu,
        row.memory,
        row.disk,
        row.gpu,
    )
    return Claim(
        amounts=amounts,
        state=ClaimState(row.state),
        further=further,
        **plain_fields,
    )


def _row(claim: Claim) -> dict[str, Any]:
    """Return the row of a claim."""
    further = {}
    for engine, amounts in claim.further.items():
        further[engine] = [amounts.cpu, amounts.memory, amounts.disk, amounts.gpu]
    plain_fields = {name: getattr(claim, name) for name in _PLAIN_FIELDS}
    return {
        **plain_fields,
        **vars(claim.amounts),
        "state": claim.state,
        "further": further or None,
    }


def ended(status: str | None) -> bool:
    """Return whether a job of this status needs no resources any more.

    True for None: a job without a record here.
    """
    return status in (None, JobStatus.FINISHED, JobStatus.REJECTED)


def with_increased(ledger: Ledger, **increases: int) -> Ledger:
    """Return the ledger with counters increased: name of the counter -> increase."""
    counts = {name: getattr(ledger, name) + increase for name, increase in increases.items()}
    return replace(ledger, **counts)
