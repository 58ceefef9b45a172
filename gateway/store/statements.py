"""The statements that every step of every job makes, built once.

Building a statement costs several times what the database takes to answer it.
"""

from typing import Any

import sqlalchemy as sa

from gateway.store import schema

OVER = ("FINISHED", "REJECTED")
UNDER_WAY = ("PENDING", "READY", "RUNNING")
"""asked for by name: what is over is the most, and "not over" would read all of it"""


class JobStatements:
    """Those of one of the two tables of jobs."""

    def __init__(self, table: sa.Table) -> None:
        c = table.c
        job = c.job_id == sa.bindparam("job")
        same = sa.and_(c.version == sa.bindparam("version"), c.created_at == sa.bindparam("created"))
        self.load = sa.select(
            c.version,
            c.created_at,
            sa.case((same, None), else_=c.state).label("state"),
            sa.case((same, None), else_=c.spec).label("spec"),
        ).where(job)
        """``version`` and ``created`` are what is known of it: the same is not read again"""
        self.save = (
            table.update()
            .where(job, c.version == sa.bindparam("seen"), c.created_at == sa.bindparam("created"))
            .values(
                {name: sa.bindparam(f"new_{name}") for name in ("version", "status", "outcome", "due_at", "state")}
            )
        )
        self.add = table.insert()
        self.due = (
            sa.select(c.job_id)
            .where(c.due_at <= sa.bindparam("now"))
            .order_by(c.due_at)
            .limit(sa.bindparam("most", type_=sa.Integer))
        )
        self.under_way_naming = sa.select(c.spec).where(
            c.status.in_(UNDER_WAY), sa.func.instr(c.spec, sa.bindparam("word", type_=sa.Text)) > 0
        )
        """the database looks for the word: to hand over every job would take a thousand times as long"""
        self.unfinished = sa.union(
            sa.select(c.job_id).where(c.status.in_(UNDER_WAY)), sa.select(c.job_id).where(c.due_at >= 0)
        )


class RowStatements:
    """Those of a table that repeats a part of a job's record."""

    def __init__(self, table: sa.Table) -> None:
        key = table.primary_key.columns[0]
        self.key = str(key.name)
        self.add = table.insert()
        self.change = (
            table.update()
            .where(key == sa.bindparam("row_key"))
            .values({c.name: sa.bindparam(c.name) for c in table.columns})
        )


def _by(column: str, table: sa.Table, *wanted: str) -> sa.Select[Any]:
    return sa.select(*(table.c[name] for name in wanted)).where(table.c[column] == sa.bindparam("key"))


ADD_NOTES = schema.timeline.insert()
JOB_OF_TASK = _by("task_id", schema.task, "job_id")
LOCAL_JOB_OF_TASK = _by("task_id", schema.run, "job_id").limit(1)
JOB_OF_RUN = _by("run_id", schema.run, "job_id")
RUN_OF_TOKEN = _by("token", schema.run, "job_id", "run_id")
JOB_OF_CONTAINER = _by("name", schema.run, "job_id", "run_id")
PROVIDER = _by("provider_key", schema.provider, "document")


def _last_revision(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    t = schema.provider_revision
    own = t.c.provider_key == sa.bindparam("key")
    return sa.select(t).where(own, *conditions).order_by(t.c.number.desc()).limit(1)


_REVISED = schema.provider_revision.c
REVISED = _last_revision().with_only_columns(_REVISED.number, _REVISED.at)
REVISION_THEN = _last_revision(_REVISED.at <= sa.bindparam("moment"))
