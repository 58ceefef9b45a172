"""All that is kept of jobs: the two records of each, their timelines, and what was submitted here."""

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import sqlalchemy as sa

from gateway.auth import proven
from gateway.domain.execution import machine
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Note
from gateway.domain.states import RunStatus
from gateway.domain.timeouts import RunTiming, Timing
from gateway.store import schema
from gateway.store.database import Database, Prepared
from gateway.store.models import publish
from gateway.store.records import Records, Rows, run_rows, task_rows
from gateway.store.serialization import as_time, loads
from gateway.store.timeline import TimelineEntry, add_notes

_RUN = schema.run.c
_ID: sa.BindParameter[str] = sa.bindparam("id")
_JOB_OF_TASK = Prepared(sa.select(schema.task.c.job_id).where(schema.task.c.task_id == _ID))
_LOCAL_JOB_OF_TASK = Prepared(sa.select(_RUN.job_id).where(_RUN.task_id == _ID).limit(1))
_LOCAL_JOB_OF = Prepared(
    sa.union_all(
        sa.select(schema.local_job.c.job_id).where(schema.local_job.c.job_id == _ID),
        sa.select(_RUN.job_id).where(_RUN.task_id == _ID),
    )
)
_JOB_OF_RUN = Prepared(sa.select(_RUN.job_id).where(_RUN.run_id == _ID))
_RUN_OF_TOKEN = Prepared(sa.select(_RUN.job_id, _RUN.run_id).where(_RUN.token == _ID))
_RUN_OF_CONTAINER = Prepared(sa.select(_RUN.job_id, _RUN.run_id).where(_RUN.name == _ID))
_MOST_IDS = 10_000
"""ids of tasks whose jobs are remembered: of no task does that change"""


@dataclass(frozen=True)
class KnownRun:
    """A run by its container's name."""

    name: str
    job_id: str
    task_id: str
    role: str
    index: int
    attempt: int
    """from 0"""
    status: str

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED)


RUN_COLUMNS = (_RUN.name, _RUN.job_id, _RUN.task_id, _RUN.role, _RUN.idx, _RUN.attempt, _RUN.status)
"""what `KnownRun` is made of"""


class Store(Database):
    """All that is kept. Every method is one short transaction."""

    def __init__(
        self,
        engine: sa.Engine,
        timing: Timing = Timing(),
        run_timing: RunTiming = RunTiming(),
        *,
        alone: bool = False,
    ) -> None:
        """The timings are those by which jobs are advanced: when each is due next is stored with it.

        ``alone``: no other process writes this database.
        """
        super().__init__(engine)
        self.timing, self.run_timing = timing, run_timing
        self._jobs_of_tasks: dict[str, str] = {}
        self.jobs = Records[Job](
            self,
            schema.job,
            "scheduler",
            Job,
            partial(scheduling_machine.next_due, timing=timing),
            Rows(schema.task, "tasks", task_rows),
            alone=alone,
        )
        self.local_jobs = Records[LocalJob](
            self,
            schema.local_job,
            "participant",
            LocalJob,
            partial(machine.next_due, timing=run_timing),
            Rows(schema.run, "runs", run_rows),
            publish,
            alone=alone,
        )

    def record(self, job_id: str) -> Job | LocalJob | None:
        """Return what this node knows best of a job: what it schedules, else what it takes part in."""
        return self.jobs.find(job_id) or self.local_jobs.find(job_id)

    def in_use(self, node: str) -> bool:
        """Tell whether a job with a party at that node is under way here."""
        return self.jobs.names(node) or self.local_jobs.names(node)

    def installation(self) -> str:
        """Return the id of this database; the first gateway that asks makes it."""
        with self.write() as connection:
            connection.execute(
                sa.select(schema.resource_pool.c.id).with_for_update()
            )  # others may ask now, too
            found = connection.execute(sa.select(schema.installation.c.id)).scalar()
            if found:
                return str(found)
            made = str(uuid.uuid4())
            connection.execute(schema.installation.insert().values(id=made, created_at=time.time()))
            return made

    def job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node schedules, or did, and the task belongs to."""
        if (known := self._jobs_of_tasks.get(task_id)) is None:
            known = self.text(_JOB_OF_TASK, id=task_id)
            if known is not None:
                if len(self._jobs_of_tasks) >= _MOST_IDS:
                    self._jobs_of_tasks.clear()
                self._jobs_of_tasks[task_id] = known
        return known

    def local_job_of(self, id_: str) -> str | None:
        """Return the job that this node takes part in and whose id this is, or the id of one of its tasks."""
        return self.text(_LOCAL_JOB_OF, id=id_)

    def local_job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node takes part in and the task's runs belong to."""
        return self.text(_LOCAL_JOB_OF_TASK, id=task_id)

    def job_of_run(self, run_id: str) -> str | None:
        """Return the job that this node takes part in and the run belongs to."""
        return self.text(_JOB_OF_RUN, id=run_id)

    def run_of_token(self, token: str) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose token on the channel begins with this."""
        row = self.first(_RUN_OF_TOKEN, id=token)
        return (row.job_id, row.run_id) if row else None

    def job_of_container(self, name: str) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose container has this name."""
        row = self.first(_RUN_OF_CONTAINER, id=name)
        return (row.job_id, row.run_id) if row else None

    def launched(self, owner: str) -> list[KnownRun]:
        """Return the runs of one owner, or of nobody in particular, that should have a container just now."""
        running = _RUN.status.in_((RunStatus.RUNNING, RunStatus.STOPPING))
        query = sa.select(*RUN_COLUMNS).where(running, _RUN.owner.in_((owner, "")))
        return [KnownRun(*row) for row in self.rows(query)]

    def timeline(self, job_id: str) -> list[TimelineEntry]:
        """Return what happened to a job, as it was written: a cause before its effect, whatever the clocks say."""
        rows = self.rows(sa.select(schema.timeline).filter_by(job_id=job_id).order_by("id"))
        return [
            TimelineEntry(as_time(r.at), r.side, r.event, r.actor, loads(dict, r.detail))
            for r in rows
        ]

    def note(
        self,
        job_id: str,
        side: str,
        notes: Sequence[Note],
    ) -> None:
        """Write lines into the timeline of a job of which this node need not have a record."""
        if notes:
            with self.write() as connection:
                add_notes(connection, job_id, side, map(proven, notes))

    def add_submission(
        self,
        job_id: str,
        flow_id: str,
        scheduler: str,
        at: datetime,
    ) -> None:
        """Note which node schedules a job that was submitted here; the first note stays."""
        row = {
            "job_id": job_id,
            "flow_id": flow_id,
            "scheduler": scheduler,
            "created_at": at.timestamp(),
        }
        with suppress(sa.exc.IntegrityError):
            self.execute(schema.submission.insert().values(**row))

    def drop_submission(self, job_id: str) -> None:
        """Forget a job that the scheduling node did not accept."""
        self.execute(schema.submission.delete().where(schema.submission.c.job_id == job_id))

    def scheduler_of(self, job_id: str) -> str | None:
        """Return the node that schedules a job submitted here for another one; None: there is no such job."""
        return self.text(
            sa.select(schema.submission.c.scheduler).where(schema.submission.c.job_id == job_id)
        )
