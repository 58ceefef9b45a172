"""The ledger of the node's resources: every change under one lock, for all gateways on the database."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa

from gateway.domain.resources import Amounts, Claim, ClaimState, Ledger, NodeCapacity, Portions
from gateway.domain.states import JobStatus
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.store import Store

X = TypeVar("X")
_POOL = 1
"""id of the one row that is locked"""
_COUNTS = ("ignored", "repaired", "expired")


class Claims:
    """Who holds what of this node, and who waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def decide(
        self,
        means: NodeCapacity,
        job_id: str,
        change: Callable[[Ledger, str | None], tuple[Ledger, X]],
        enough: Callable[[X], bool] = lambda _: False,
    ) -> X:
        """Change the ledger; return what the change decided beside it. It may be called more than once.

        ``change`` also receives the state of the job's record here, None where there is none. With ``enough`` it
        first sees only this job and those that hold something; where that decides it, the others are not read.
        """
        c, job, pool = schema.resource_claim.c, schema.local_job.c, schema.resource_pool

        def work() -> X:
            with self._store.write() as connection:
                # the lock comes first: what is read after it was written by whoever had it before
                row = connection.execute(
                    sa.select(pool).where(pool.c.id == _POOL).with_for_update()
                ).one()
                status = connection.execute(
                    sa.select(job.status).where(job.job_id == job_id)
                ).scalar()
                old = self._load(
                    connection, means, row, sa.or_(c.state == ClaimState.HELD, c.job_id == job_id)
                )
                new, decided = change(old, status)
                if not enough(decided):
                    old = self._load(connection, means, row)
                    new, decided = change(old, status)
                self._save(connection, old, new)
            return decided

        return repeating(work)

    def ledger(self, means: NodeCapacity) -> Ledger:
        """Return the ledger as it is, without a lock."""
        with self._store.read() as connection:
            return self._load(
                connection, means, connection.execute(sa.select(schema.resource_pool)).one()
            )

    def find(self, job_id: str) -> Claim | None:
        """Return what a job holds or waits for; None: neither."""
        t = schema.resource_claim
        row = self._store.first(sa.select(t).where(t.c.job_id == job_id))
        return _claim(row) if row else None

    def with_states(self) -> list[tuple[Claim, str | None]]:
        """Return every claim with the state of its job here, None where this node has no record of the job."""
        t, job = schema.resource_claim, schema.local_job
        query = sa.select(t, job.c.status).select_from(t.outerjoin(job, job.c.job_id == t.c.job_id))
        return [(_claim(row), row.status) for row in self._store.rows(query)]

    @staticmethod
    def _load(
        connection: sa.Connection,
        means: NodeCapacity,
        counts: Any,
        *only: sa.ColumnElement[bool],
    ) -> Ledger:
        claims = map(_claim, connection.execute(sa.select(schema.resource_claim).where(*only)))
        known = {name: room.total for name, room in means.further.items() if room.total is not None}
        away = {name: room.away for name, room in means.further.items() if room.away}
        others = Portions.of(
            means.others, {name: room.others for name, room in means.further.items()}
        )
        counted = {name: getattr(counts, name) for name in _COUNTS}
        by_job = {c.job_id: c for c in claims}
        return Ledger(
            means.total,
            by_job,
            node=means.node,
            further=known,
            away=away,
            others=others,
            **counted,
        )

    @staticmethod
    def _save(
        connection: sa.Connection,
        old: Ledger,
        new: Ledger,
    ) -> None:
        t = schema.resource_claim
        for job_id in old.claims.keys() - new.claims.keys():
            connection.execute(t.delete().where(t.c.job_id == job_id))
        for job_id, claim in new.claims.items():
            known = old.claims.get(job_id)
            if known is None:
                connection.execute(t.insert().values(**_row(claim)))
            elif known != claim:
                connection.execute(t.update().where(t.c.job_id == job_id).values(**_row(claim)))
        counts = {
            name: getattr(new, name) for name in _COUNTS if getattr(new, name) != getattr(old, name)
        }
        if counts:
            connection.execute(schema.resource_pool.update().values(**counts))


def _claim(row: Any) -> Claim:
    same = {name: getattr(row, name) for name in _SAME}
    further = {name: Amounts(*amounts) for name, amounts in (row.further or {}).items()}
    amounts = Amounts(row.cpu, row.memory, row.disk, row.gpu)
    return Claim(
        amounts=amounts,
        state=ClaimState(row.state),
        further=further,
        **same,
    )


_SAME = ("job_id", "since", "asked_at", "priority", "scheduler", "held_at", "reason")
"""columns that hold a field as it is"""


def _row(claim: Claim) -> dict[str, Any]:
    further = {name: [a.cpu, a.memory, a.disk, a.gpu] for name, a in claim.further.items()}
    same = {name: getattr(claim, name) for name in _SAME}
    return {
        **same,
        **vars(claim.amounts),
        "state": claim.state,
        "further": further or None,
    }


def ended(status: str | None) -> bool:
    """Say whether a job of this state needs nothing any more; one without a record does not either."""
    return status in (None, JobStatus.FINISHED, JobStatus.REJECTED)


def again(ledger: Ledger, **more: int) -> Ledger:
    """Count something that happened."""
    return replace(ledger, **{name: getattr(ledger, name) + n for name, n in more.items()})
