"""The store of jobs: the two records of a job, its timeline, and the submissions of this node."""

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import sqlalchemy as sa
from sqlalchemy import bindparam, select, union_all

from gateway.auth import with_origin
from gateway.domain.execution import machine as execution_machine
from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Note
from gateway.domain.states import RunStatus
from gateway.domain.timeouts import RunTiming, Timing
from gateway.store import schema
from gateway.store.database import Database, Prepared
from gateway.store.models import publish
from gateway.store.part_rows import Rows, run_rows, task_rows, tasks_by_name
from gateway.store.records import Records
from gateway.store.serialization import as_time, loads
from gateway.store.timeline import TimelineEntry, add_notes

# The largest number of tasks whose jobs are remembered. A remembered job never becomes wrong, as a
# task never changes its job.
MAX_TASK_IDS = 10_000

_RUN = schema.run.c
_TASK = schema.task.c
_LOCAL_JOB = schema.local_job.c
_ID: sa.BindParameter[str] = bindparam("id")

_JOB_OF_TASK = Prepared(select(_TASK.job_id).where(_TASK.task_id == _ID))
_LOCAL_JOB_OF_TASK = Prepared(select(_RUN.job_id).where(_RUN.task_id == _ID).limit(1))
_LOCAL_JOB_OF_JOB_OR_TASK = Prepared(
    union_all(
        select(_LOCAL_JOB.job_id).where(_LOCAL_JOB.job_id == _ID),
        select(_RUN.job_id).where(_RUN.task_id == _ID),
    )
)
_JOB_OF_RUN = Prepared(select(_RUN.job_id).where(_RUN.run_id == _ID))
_RUN_OF_TOKEN = Prepared(select(_RUN.job_id, _RUN.run_id).where(_RUN.token == _ID))
_TIMELINE = Prepared(
    select(schema.timeline).where(schema.timeline.c.job_id == _ID).order_by(schema.timeline.c.id)
)
_RUN_OF_CONTAINER = Prepared(select(_RUN.job_id, _RUN.run_id).where(_RUN.name == _ID))


@dataclass(frozen=True)
class KnownRun:
    """A run, as its row in the table `run` has it."""

    name: str  # of the container
    job_id: str
    task_id: str
    role: str
    index: int
    attempt: int  # from 0
    status: str

    @property
    def over(self) -> bool:
        """Whether the run has ended for good."""
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED)


# The columns of the fields of `KnownRun`, in their order.
RUN_COLUMNS = (
    _RUN.name,
    _RUN.job_id,
    _RUN.task_id,
    _RUN.role,
    _RUN.idx,
    _RUN.attempt,
    _RUN.status,
)


class Store(Database):
    """The node's database with the records of its jobs. Every method is one short transaction."""

    def __init__(
        self,
        engine: sa.Engine,
        timing: Timing = Timing(),
        run_timing: RunTiming = RunTiming(),
        *,
        sole_writer: bool = False,
    ) -> None:
        """``timing`` determines the due times of jobs, ``run_timing`` those of local jobs.

        ``sole_writer``: no other process writes the database.
        """
        super().__init__(engine)
        self.timing = timing
        self.run_timing = run_timing
        self._jobs_of_tasks: dict[str, str] = {}
        self.jobs = Records[Job](
            self,
            table=schema.job,
            side="scheduler",
            cls=Job,
            next_due=partial(
                scheduling_machine.next_due,
                timing=timing,
            ),
            rows=Rows(
                table=schema.task,
                field="tasks",
                part_class=Task,
                collect=tasks_by_name,
                rows_of=task_rows,
            ),
            sole_writer=sole_writer,
        )
        self.local_jobs = Records[LocalJob](
            self,
            table=schema.local_job,
            side="participant",
            cls=LocalJob,
            next_due=partial(
                execution_machine.next_due,
                timing=run_timing,
            ),
            rows=Rows(
                table=schema.run,
                field="runs",
                part_class=Run,
                collect=tuple,
                rows_of=run_rows,
            ),
            on_change=publish,
            sole_writer=sole_writer,
        )

    # ------------------------------------------------------------ the node

    def installation(self) -> str:
        """Return the id of this installation; the first call on a database creates the id."""
        # Other gateways may call this at the same time. The row of the pool serves as the lock, as
        # even a new database has it.
        lock = select(schema.resource_pool.c.id).with_for_update()
        with self.write() as connection:
            connection.execute(lock)
            existing = connection.execute(select(schema.installation.c.id)).scalar()
            if existing:
                return str(existing)
            new_id = str(uuid.uuid4())
            row = {
                "id": new_id,
                "created_at": time.time(),
            }
            connection.execute(schema.installation.insert().values(**row))
        return new_id

    def has_active_job_with(self, node: str) -> bool:
        """Return whether an active job on record here has a party at that node."""
        return self.jobs.involves(node) or self.local_jobs.involves(node)

    # ------------------------------------------------------------ jobs and their ids

    def record(
        self,
        job_id: str,
    ) -> Job | LocalJob | None:
        """Return the scheduler's record of a job if this node has it, else the participant's."""
        return self.jobs.find(job_id) or self.local_jobs.find(job_id)

    def job_of_task(self, task_id: str) -> str | None:
        """Return the job of a task that this node schedules or has scheduled; None if unknown."""
        job_id = self._jobs_of_tasks.get(task_id)
        if job_id is not None:
            return job_id
        job_id = self.text(
            _JOB_OF_TASK,
            id=task_id,
        )
        if job_id is None:
            return None
        if len(self._jobs_of_tasks) >= MAX_TASK_IDS:
            self._jobs_of_tasks.clear()
        self._jobs_of_tasks[task_id] = job_id
        return job_id

    def local_job_of(self, id_: str) -> str | None:
        """Return the job with a part here that has this id, or runs of a task with this id.

        None if there is no such job.
        """
        return self.text(
            _LOCAL_JOB_OF_JOB_OR_TASK,
            id=id_,
        )

    def local_job_of_task(self, task_id: str) -> str | None:
        """Return the job with a part here that has runs of this task; None if there is none."""
        return self.text(
            _LOCAL_JOB_OF_TASK,
            id=task_id,
        )

    def job_of_run(self, run_id: str) -> str | None:
        """Return the job of a run at this node; None for an unknown run."""
        return self.text(_JOB_OF_RUN, id=run_id)

    def run_of_token(
        self,
        token: str,
    ) -> tuple[str, str] | None:
        """Return (job id, run id) of the run with a token; None if there is none.

        ``token`` is the stored id within the token that a container has: see `RunTokens.id_of`.
        """
        row = self.first(
            _RUN_OF_TOKEN,
            id=token,
        )
        return (row.job_id, row.run_id) if row else None

    def job_of_container(
        self,
        name: str,
    ) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose container has this name; None if unknown."""
        row = self.first(
            _RUN_OF_CONTAINER,
            id=name,
        )
        return (row.job_id, row.run_id) if row else None

    def launched(self, owner: str) -> list[KnownRun]:
        """Return the runs that should have a container now, those of a gateway and those of none.

        ``owner``: the gateway's name. A run is of no gateway if it has no owner yet.
        """
        has_container = _RUN.status.in_((RunStatus.RUNNING, RunStatus.STOPPING))
        query = select(*RUN_COLUMNS).where(has_container, _RUN.owner.in_((owner, "")))
        return [KnownRun(*row) for row in self.rows(query)]

    # ------------------------------------------------------------ timelines

    def timeline(self, job_id: str) -> list[TimelineEntry]:
        """Return a job's timeline in the order of writing, so that causes precede their effects."""
        entries = []
        rows = self.rows(_TIMELINE, id=job_id)
        for row in rows:
            entry = TimelineEntry(
                as_time(row.at),
                row.side,
                row.event,
                row.actor,
                loads(dict, row.detail),
            )
            entries.append(entry)
        return entries

    def note(
        self,
        job_id: str,
        side: str,
        notes: Sequence[Note],
    ) -> None:
        """Append notes to the timeline of a job, which need not have a record here."""
        if not notes:
            return
        with self.write() as connection:
            add_notes(connection, job_id, side, map(with_origin, notes))

    # ------------------------------------------------------------ submissions

    def add_submission(
        self,
        job_id: str,
        flow_id: str,
        scheduler: str,
        at: datetime,
    ) -> None:
        """Store the scheduling node of a job submitted here, unless it is stored already."""
        row = {
            "job_id": job_id,
            "flow_id": flow_id,
            "scheduler": scheduler,
            "created_at": at.timestamp(),
        }
        with suppress(sa.exc.IntegrityError):
            self.insert(schema.submission, row)

    def drop_submission(self, job_id: str) -> None:
        """Delete a submission that the scheduling node did not accept."""
        self.execute(schema.submission.delete().filter_by(job_id=job_id))

    def scheduler_of(self, job_id: str) -> str | None:
        """Return the scheduling node of a job submitted here, or None for any other job."""
        query = select(schema.submission.c.scheduler).filter_by(job_id=job_id)
        return self.text(query)
