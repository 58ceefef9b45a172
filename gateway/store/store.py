"""All that is kept of jobs: the two records of each, their timelines, and what was handed in here."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from gateway.domain.execution import machine
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Note
from gateway.domain.states import RunStatus
from gateway.domain.timeouts import RunTiming, Timing
from gateway.store import records, schema
from gateway.store.database import Database
from gateway.store.records import Records, publish
from gateway.store.serialization import as_time, loads, note_row, run_rows, runs_of, task_rows, tasks_of


@dataclass(frozen=True)
class TimelineEntry:
    """One written line of a job's timeline."""

    at: datetime
    side: str
    event: str
    by: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class LaunchedRun:
    """A run whose container was started and is not known to have ended."""

    name: str
    job_id: str
    task_id: str
    role: str
    index: int
    attempt: int
    """from 0"""
    status: str


class Store(Database):
    """All that is kept. Every method is one short transaction."""

    def __init__(self, engine: sa.Engine, timing: Timing = Timing(), run_timing: RunTiming = RunTiming()) -> None:
        """The timings are those by which jobs are advanced: when each is due next is stored with it."""
        super().__init__(engine)
        self.jobs = Records[Job](
            self,
            schema.job,
            "scheduler",
            Job,
            partial(scheduling_machine.next_due, timing=timing),
            tasks_of,
            task_rows,
            schema.task,
        )
        self.local_jobs = Records[LocalJob](
            self,
            schema.local_job,
            "participant",
            LocalJob,
            partial(machine.next_due, timing=run_timing),
            runs_of,
            run_rows,
            schema.run,
            publish,
        )

    def in_use(self, node: str) -> bool:
        """Tell whether a job with a party at that node is under way here."""
        return self.jobs.names(node) or self.local_jobs.names(node)

    def installation(self) -> str:
        """Return the id that was made with this database."""
        with self.write() as connection:
            found = connection.execute(sa.select(schema.installation.c.id)).scalar()
            if found:
                return str(found)
            made = str(uuid.uuid4())
            connection.execute(schema.installation.insert().values(id=made, created_at=time.time()))
            return made

    def job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node schedules and the task belongs to."""
        with self.read() as connection:
            return connection.execute(records.JOB_OF_TASK, {"key": task_id}).scalar()

    def local_job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node takes part in and the task's runs belong to."""
        with self.read() as connection:
            return connection.execute(records.LOCAL_JOB_OF_TASK, {"key": task_id}).scalar()

    def job_of_run(self, run_id: str) -> str | None:
        """Return the job that this node takes part in and the run belongs to."""
        with self.read() as connection:
            return connection.execute(records.JOB_OF_RUN, {"key": run_id}).scalar()

    def run_of_token(self, token: str) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose token on the channel begins with this."""
        with self.read() as connection:
            row = connection.execute(records.RUN_OF_TOKEN, {"key": token}).first()
        return (row.job_id, row.run_id) if row else None

    def job_of_container(self, name: str) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose container has this name."""
        with self.read() as connection:
            row = connection.execute(records.JOB_OF_CONTAINER, {"key": name}).first()
        return (row.job_id, row.run_id) if row else None

    def launched(self, owner: str) -> list[LaunchedRun]:
        """Return the runs of one owner, or of nobody in particular, that should have a container just now."""
        t = schema.run
        query = sa.select(t.c.name, t.c.job_id, t.c.task_id, t.c.role, t.c.idx, t.c.attempt, t.c.status).where(
            t.c.status.in_((RunStatus.RUNNING, RunStatus.STOPPING)), t.c.owner.in_((owner, ""))
        )
        with self.read() as connection:
            return [LaunchedRun(*row) for row in connection.execute(query)]

    def timeline(self, job_id: str) -> list[TimelineEntry]:
        """Return what happened to a job, oldest first."""
        t = schema.timeline
        with self.read() as connection:
            rows = connection.execute(sa.select(t).where(t.c.job_id == job_id).order_by(t.c.id)).all()
        return [TimelineEntry(as_time(r.at), r.side, r.event, r.actor, loads(dict, r.detail)) for r in rows]

    def note(self, job_id: str, side: str, notes: Sequence[Note]) -> None:
        """Write lines into the timeline of a job of which this node need not have a record."""
        if notes:
            with self.write() as connection:
                connection.execute(records.ADD_NOTES, [note_row(job_id, side, note) for note in notes])

    def add_submission(self, job_id: str, flow_id: str, scheduler: str, at: datetime) -> None:
        """Note which node schedules a job that was handed in here; the first note stays."""
        with self.write() as connection:
            if not connection.execute(
                sa.select(schema.submission.c.job_id).where(schema.submission.c.job_id == job_id)
            ).scalar():
                connection.execute(
                    schema.submission.insert().values(
                        job_id=job_id, flow_id=flow_id, scheduler=scheduler, created_at=at.timestamp()
                    )
                )

    def drop_submission(self, job_id: str) -> None:
        """Forget a job that the scheduling node did not take."""
        with self.write() as connection:
            connection.execute(schema.submission.delete().where(schema.submission.c.job_id == job_id))

    def submissions(self, flow_id: str | None = None) -> list[tuple[str, str]]:
        """Return (job id, scheduling node) of the jobs handed in here, newest first."""
        t = schema.submission
        query = sa.select(t.c.job_id, t.c.scheduler).order_by(t.c.created_at.desc())
        if flow_id is not None:
            query = query.where(t.c.flow_id == flow_id)
        with self.read() as connection:
            return [(r.job_id, r.scheduler) for r in connection.execute(query)]

    def scheduler_of(self, job_id: str) -> str | None:
        """Return the node that schedules a job handed in here for another one; None: there is no such job."""
        t = schema.submission
        with self.read() as connection:
            return connection.execute(sa.select(t.c.scheduler).where(t.c.job_id == job_id)).scalar()
