"""Ends a job whose record cannot be read any more: nothing can go on from it, and nobody is to wait for it."""

from datetime import datetime

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.serialization import dumps
from gateway.store.store import Store

ABNORMAL = "ABNORMAL"


def abandon(store: Store, side: str, job_id: str, at: datetime, why: str) -> list[str]:
    """End the job as FAILED, by its columns alone; return the names of its containers here.

    ``side``: ``scheduler`` or ``participant``. What it did is in its timeline; the unread record stays as it is.
    """
    t = schema.job if side == "scheduler" else schema.local_job
    with store.write() as connection:
        changed = connection.execute(
            t.update()
            .where(t.c.job_id == job_id, t.c.status.not_in(("FINISHED", "REJECTED")))
            .values(status="FINISHED", outcome="FAILED", due_at=None, version=t.c.version + 1)
        )
        connection.execute(t.update().where(t.c.job_id == job_id).values(due_at=None))
        if changed.rowcount:
            line = {"event": "job ABNORMAL", "actor": "", "detail": dumps({"reason": ABNORMAL, "message": why})}
            connection.execute(
                schema.timeline.insert().values(job_id=job_id, side=side, at=at.timestamp(), **line)
            )
        if side == "scheduler":
            return []
        r = schema.run
        names = connection.execute(sa.select(r.c.name).where(r.c.job_id == job_id)).scalars()
        return list(names)
