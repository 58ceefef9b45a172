"""Keeps applications: one row each, changed under its version; and which jobs have used them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from gateway.domain.applications import APPLIED, APPROVED, Application, Kind, Side, next_due
from gateway.domain.approval import AuditStatus
from gateway.errors import NotFound
from gateway.store import schema
from gateway.store.database import InDatabase, Prepared, repeating
from gateway.store.serialization import dumps, loads

_T, _JOBS = schema.application, schema.application_job
_C = _T.c
_ROW = (_C.number, _C.jobs, _C.document)
_HELD = Prepared(
    sa.select(*_ROW)
    .where(
        _C.side == str(Side.MINE), _C.status == str(APPROVED), _C.partner == sa.bindparam("partner")
    )
    .order_by(_C.number)
)


class SqlApplications(InDatabase):
    """All applications, of both sides."""

    def add(self, new: Application, address: str = "") -> Application | None:
        """Keep a new application, with its number; None: there is one of that id already."""
        row = {
            "address": address,
            "jobs": 0,
            "version": 1,
            "id": new.id,
            **_columns(new),
        }
        row |= {
            "partner": new.partner,
            "side": str(new.side),
            "kind": str(new.kind),
        }
        try:
            with self._database.write() as connection:
                [number] = connection.execute(_T.insert().values(**row)).inserted_primary_key or [0]
        except sa.exc.IntegrityError:
            if self.find(new.side, new.partner, new.kind, new.id) is None:
                raise
            return None
        return replace(new, number=int(number))

    def get(self, number: int) -> Application:
        """Return an application. Raises `NotFound`."""
        row = self._database.first(sa.select(*_ROW).where(_C.number == number))
        if row is None:
            raise NotFound(f"no application has the number {number}", reason="APPLICATION_UNKNOWN")
        return _application(row)

    def find(
        self,
        side: Side,
        partner: str,
        kind: Kind,
        id_: str,
    ) -> Application | None:
        """Return the application of an id; None: there is none between this node and that partner."""
        mine = sa.and_(
            _C.partner == partner, _C.side == str(side), _C.kind == str(kind), _C.id == id_
        )
        row = self._database.first(sa.select(*_ROW).where(mine))
        return _application(row) if row else None

    def list(
        self,
        side: Side | None = None,
        kind: Kind | None = None,
        status: AuditStatus | None = None,
        partner: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[Application]:
        """Return applications, the oldest first."""
        wanted = {
            _C.side: side,
            _C.kind: kind,
            _C.status: status,
            _C.partner: partner,
        }
        query = sa.select(*_ROW).where(_C.number > after).order_by(_C.number).limit(limit)
        query = query.where(
            *(column == str(value) for column, value in wanted.items() if value is not None)
        )
        return [_application(row) for row in self._database.rows(query)]

    def held(self, partner: str) -> Sequence[Application]:
        """Return what a partner has approved of this node's applications."""
        return [_application(row) for row in self._database.rows(_HELD, partner=partner)]

    def contract(self, partner: str, now: datetime) -> Application | None:
        """Return the newest contract with a node that is in force; None: there is none."""
        found = self.list(None, Kind.CONTRACT, APPROVED, partner)
        return next((one for one in reversed(found) if one.holds(now)), None)

    def waiting(self, **narrow: str) -> int:
        """Return how many of others wait for a decision; ``narrow``: columns, such as address."""
        query = sa.select(sa.func.count()).where(
            _C.status == str(APPLIED), _C.side == str(Side.THEIRS)
        )
        return int(
            self._database.value(
                query.where(*(_C[name] == value for name, value in narrow.items()))
            )
        )

    def waiting_by_address(self, kind: Kind) -> dict[int, str]:
        """Return applications of unknown senders that wait for a decision: number -> address of the sender."""
        undecided = (_C.status == str(APPLIED), _C.side == str(Side.THEIRS), _C.kind == str(kind))
        query = sa.select(_C.number, _C.address).where(*undecided, _C.address != "")
        return {int(row.number): str(row.address) for row in self._database.rows(query)}

    def due(self, now: datetime) -> Sequence[str]:
        """Return the numbers of those about which something is to be done."""
        query = (
            sa.select(_C.number).where(_C.due_at <= now.timestamp()).order_by(_C.due_at).limit(100)
        )
        return [str(number) for number in self._database.values(query)]

    def change(self, number: int, change: Callable[[Application], Application]) -> Application:
        """Change an application. Raises `NotFound` and whatever ``change`` raises; then nothing is changed."""

        def work() -> Application | None:
            with self._database.write() as connection:
                row = connection.execute(
                    sa.select(*_ROW, _C.version).where(_C.number == number)
                ).first()
                if row is None:
                    raise NotFound(
                        f"no application has the number {number}", reason="APPLICATION_UNKNOWN"
                    )
                old = _application(row)
                new = change(old)
                if new == old:
                    return old
                same = sa.and_(_C.number == number, _C.version == row.version)
                values = {**_columns(new), "version": row.version + 1}
                return (
                    new
                    if connection.execute(_T.update().where(same).values(**values)).rowcount
                    else None
                )

        while (done := repeating(work)) is None:
            pass
        return done

    def drop(self, number: int) -> None:
        """Forget an application that its owner did not take."""
        self._database.execute(_T.delete().where(_C.number == number))

    def used_by(self, job_id: str) -> dict[int, bool]:
        """Return the applications that a job has used, and whether it came with their permits."""
        query = sa.select(_JOBS.c.number, _JOBS.c.permit).where(_JOBS.c.job_id == job_id)
        return {row.number: bool(row.permit) for row in self._database.rows(query)}

    def use(
        self,
        application: Application,
        job_id: str,
        *,
        permit: bool,
    ) -> bool:
        """Count a job, once and one at a time; False: as many as may have used the application."""
        row = {
            "job_id": job_id,
            "number": application.number,
            "permit": permit,
        }
        here = sa.and_(*(_JOBS.c[key] == row[key] for key in ("job_id", "number")))

        def work() -> bool:
            with self._database.write() as connection:
                ours = _C.number == application.number
                jobs = connection.execute(sa.select(_C.jobs).where(ours).with_for_update()).scalar()
                if connection.execute(sa.select(_JOBS.c.job_id).where(here)).first() is not None:
                    return True
                if jobs is None or jobs >= (application.most_jobs or 2**31 - 1):
                    return False
                connection.execute(_T.update().where(ours).values(jobs=jobs + 1))
                connection.execute(_JOBS.insert().values(**row))
                return True

        return repeating(work)


def _columns(value: Application) -> dict[str, Any]:
    due = next_due(value)
    plain = replace(value, number=0, jobs=0)
    return {
        "status": str(value.status),
        "due_at": None if due is None else due.timestamp(),
        "document": dumps(plain),
    }


def _application(row: Any) -> Application:
    return replace(loads(Application, row.document), number=int(row.number), jobs=int(row.jobs))
