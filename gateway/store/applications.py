"""Stores applications, one row each, and the jobs that have used them.

By an application, one node asks another for a permission: a contract, or the use of a dataset,
project, flow or model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import and_, bindparam, func, select

from gateway.domain.applications import APPLIED, APPROVED, Application, Kind, Side, next_due
from gateway.domain.approval import AuditStatus
from gateway.errors import NotFound
from gateway.store import schema
from gateway.store.database import InDatabase, Prepared, repeat_on_conflict
from gateway.store.serialization import dumps, loads

_MAX_DUE = 100  # due applications returned by one query
# The limit of jobs of an application without such a limit: the largest number of the column.
_UNLIMITED_JOBS = 2**31 - 1

_APPLICATION = schema.application
_APPLICATION_JOB = schema.application_job
_C = _APPLICATION.c
_SELECT = select(
    _C.number,
    _C.jobs,
    _C.document,
    _C.version,
)
# Condition for the applications of this node that partners have approved.
_IS_APPROVED_MINE = and_(
    _C.side == str(Side.MINE),
    _C.status == str(APPROVED),
)
# Condition for the applications of partners that this node has not decided.
_IS_UNDECIDED_THEIRS = and_(
    _C.side == str(Side.THEIRS),
    _C.status == str(APPLIED),
)
_SELECT_APPROVED = Prepared(
    _SELECT.where(_IS_APPROVED_MINE, _C.partner == bindparam("partner")).order_by(_C.number)
)
_SELECT_USES = Prepared(
    select(_APPLICATION_JOB.c.number, _APPLICATION_JOB.c.permit).where(
        _APPLICATION_JOB.c.job_id == bindparam("job")
    )
)


class SqlApplications(InDatabase):
    """The applications of this node to its partners, and those of its partners to this node."""

    def add(
        self,
        application: Application,
        address: str = "",
    ) -> Application | None:
        """Store a new application and return it with its number; None if its id exists.

        ``address`` is the IP address of an unknown sender; empty for a known one.
        """
        row = {
            "address": address,
            "jobs": 0,
            "version": 1,
            "id": application.id,
            "partner": application.partner,
            "side": str(application.side),
            "kind": str(application.kind),
            **_changing_columns(application),
        }
        try:
            with self._database.write() as connection:
                inserted = connection.execute(_APPLICATION.insert().values(**row))
                [number] = inserted.inserted_primary_key or [0]
        except sa.exc.IntegrityError:
            existing = self.find(
                application.side,
                application.partner,
                application.kind,
                application.id,
            )
            if existing is None:
                raise
            return None
        return replace(
            application,
            number=int(number),
        )

    def get(self, number: int) -> Application:
        """Return an application. Raises `NotFound`."""
        row = self._database.first(_SELECT.where(_C.number == number))
        if row is None:
            raise _unknown(number)
        return _to_application(row)

    def find(
        self,
        side: Side,
        partner: str,
        kind: Kind,
        id_: str,
    ) -> Application | None:
        """Return the application of this id between this node and a partner; None if unknown.

        ``side`` says which of the two nodes has applied.
        """
        query = _SELECT.where(
            _C.partner == partner,
            _C.side == str(side),
            _C.kind == str(kind),
            _C.id == id_,
        )
        row = self._database.first(query)
        return _to_application(row) if row else None

    def list(
        self,
        side: Side | None = None,
        kind: Kind | None = None,
        status: AuditStatus | None = None,
        partner: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[Application]:
        """Return applications, oldest first.

        None for a filter matches all. ``after`` is the number of the last application of the page
        before, 0 for the first page.
        """
        filters = {
            _C.side: side,
            _C.kind: kind,
            _C.status: status,
            _C.partner: partner,
        }
        query = _SELECT.where(_C.number > after)
        for column, value in filters.items():
            if value is not None:
                query = query.where(column == str(value))
        rows = self._database.rows(query.order_by(_C.number).limit(limit))
        return [_to_application(row) for row in rows]

    def approved_by(self, partner: str) -> Sequence[Application]:
        """Return this node's applications that a partner has approved."""
        rows = self._database.rows(
            _SELECT_APPROVED,
            partner=partner,
        )
        return [_to_application(row) for row in rows]

    def contract(
        self,
        partner: str,
        now: datetime,
    ) -> Application | None:
        """Return the newest contract with a partner that is in force at a time, or None.

        Either of the two nodes may have applied for the contract.
        """
        approved = self.list(
            kind=Kind.CONTRACT,
            status=APPROVED,
            partner=partner,
        )
        for contract in reversed(approved):
            if contract.holds(now):
                return contract
        return None

    def count_undecided(self, **columns: str) -> int:
        """Return how many undecided applications of partners have these values in these columns."""
        query = select(func.count()).where(_IS_UNDECIDED_THEIRS)
        for name, value in columns.items():
            query = query.where(_C[name] == value)
        return int(self._database.value(query))

    def undecided_addresses(
        self,
        kind: Kind,
    ) -> dict[int, str]:
        """Return the senders of undecided applications of unknown peers: number -> IP address."""
        query = select(_C.number, _C.address).where(
            _IS_UNDECIDED_THEIRS,
            _C.kind == str(kind),
            _C.address != "",
        )
        return {int(row.number): str(row.address) for row in self._database.rows(query)}

    def due(self, now: datetime) -> Sequence[str]:
        """Return the numbers, as texts, of the applications whose next action is due.

        The application that is overdue the longest comes first.
        """
        query = select(_C.number).where(_C.due_at <= now.timestamp())
        numbers = self._database.values(query.order_by(_C.due_at).limit(_MAX_DUE))
        return [str(number) for number in numbers]

    def change(
        self,
        number: int,
        change: Callable[[Application], Application],
    ) -> Application:
        """Change an application and return it as stored.

        ``change`` is called again if another gateway wrote first. Raises `NotFound` and the errors
        of ``change``; then nothing is changed.
        """
        while True:
            changed = repeat_on_conflict(partial(self._try_change, number, change))
            if changed is not None:
                return changed

    def _try_change(
        self, number: int, change: Callable[[Application], Application]
    ) -> Application | None:
        """Change an application under its version; return None if another write was first."""
        with self._database.write() as connection:
            row = connection.execute(_SELECT.where(_C.number == number)).first()
            if row is None:
                raise _unknown(number)
            old = _to_application(row)
            new = change(old)
            if new == old:
                return old
            update = _APPLICATION.update().where(
                _C.number == number,
                _C.version == row.version,
            )
            values = {
                "version": row.version + 1,
                **_changing_columns(new),
            }
            updated = connection.execute(update.values(**values))
            if not updated.rowcount:
                return None
        return new

    def drop(self, number: int) -> None:
        """Delete an application, such as one that its receiver did not accept."""
        self._database.execute(_APPLICATION.delete().filter_by(number=number))

    def used_by(
        self,
        job_id: str,
    ) -> dict[int, bool]:
        """Return the applications that count a job: number -> whether it presented the permit."""
        rows = self._database.rows(
            _SELECT_USES,
            job=job_id,
        )
        return {row.number: bool(row.permit) for row in rows}

    def use(
        self,
        application: Application,
        job_id: str,
        *,
        permit: bool,
    ) -> bool:
        """Count a job as a user of an application, once; return whether it is counted now.

        False if the application's limit of jobs is reached, or the application was deleted.
        ``permit``: whether the job presented the application's permit.
        """
        number = application.number
        limit = application.most_jobs or _UNLIMITED_JOBS
        c = _APPLICATION_JOB.c
        select_use = select(c.job_id).where(c.job_id == job_id, c.number == number)
        # The lock on the row makes concurrent jobs wait for each other.
        select_jobs = select(_C.jobs).where(_C.number == number).with_for_update()
        row = {
            "job_id": job_id,
            "number": number,
            "permit": permit,
        }

        def count_use() -> bool:
            with self._database.write() as connection:
                jobs = connection.execute(select_jobs).scalar()
                is_counted = connection.execute(select_use).first() is not None
                if is_counted:
                    return True
                if jobs is None or jobs >= limit:
                    return False
                update = _APPLICATION.update().where(_C.number == number)
                connection.execute(update.values(jobs=jobs + 1))
                connection.execute(_APPLICATION_JOB.insert().values(**row))
            return True

        return repeat_on_conflict(count_use)


def _unknown(number: int) -> NotFound:
    """Return the error for a number without an application."""
    return NotFound(f"no application has the number {number}", reason="APPLICATION_UNKNOWN")


def _changing_columns(application: Application) -> dict[str, Any]:
    """Return the columns that a change of the application rewrites."""
    due = next_due(application)
    # Number and jobs have columns of their own.
    stored = replace(
        application,
        number=0,
        jobs=0,
    )
    return {
        "status": str(application.status),
        "due_at": None if due is None else due.timestamp(),
        "document": dumps(stored),
    }


def _to_application(row: Any) -> Application:
    """Return the application of a row; number and jobs have columns of their own."""
    application = loads(Application, row.document)
    return replace(
        application,
        number=int(row.number),
        jobs=int(row.jobs),
    )
