"""Records with many tasks or runs: the rows hold these, and a change writes only what changes."""

import pytest
import sqlalchemy as sa

from gateway.domain.job import Attempt
from gateway.domain.records import replace
from gateway.domain.spec import Failure
from gateway.domain.states import RunStatus, TaskStatus
from gateway.store import schema
from gateway.store.part_rows import MAX_IN_RECORD
from gateway.store.serialization import dumps_record
from tests.builders import a_job, a_local_job, a_run
from tests.store.kinds import on_sqlite

pytestmark = pytest.mark.xdist_group("store")  # one database for the module

JOB = "job-1"
TASKS = MAX_IN_RECORD + 30
LAST = f"t{TASKS - 1}"
LONGEST_WRITE = 6000  # characters that a change of one task may send to the database


def a_large_job():
    """Return the scheduler's record of a job of independent tasks."""
    names = [f"t{number}" for number in range(TASKS)]
    dag = "; ".join(names)
    return a_job(dag)


def a_part_with(runs):
    """Return a party's record of a job with that many runs."""
    part_runs = [a_run(f"t{number}") for number in range(runs)]
    return a_local_job(*part_runs)


def set_status(
    store,
    name,
    status,
):
    """Store that a task of the job is in a state, and return the job."""

    def change(job):
        task = replace(
            job.tasks[name],
            status=status,
        )
        return job.with_task(task)

    return store.jobs.update(
        JOB,
        change,
    )


def retried(job):
    """Return a job whose last task runs again under another id."""
    task = job.tasks[LAST]
    attempt = Attempt(0, task.task_id, Failure("EXIT_1"))
    return job.with_task(
        replace(
            task,
            task_id="task_again",
            attempt=1,
            attempts=(attempt,),
        )
    )


def rows_with_states(store, table, job_id):
    """Return how many rows of a job hold a task or run."""
    query = sa.select(table.c.position).where(
        table.c.job_id == job_id,
        table.c.state.is_not(None),
    )
    return len(store.values(query))


def test_another_gateway_reads_a_large_job_as_it_was_written(stores):
    first, second = stores
    first.jobs.add(a_large_job(), "flow")

    written = set_status(
        first,
        "t7",
        TaskStatus.SUCCESS,
    )
    read = second.jobs.get(JOB)

    assert read == written
    assert list(read.tasks) == list(written.tasks)
    assert read.task_index == written.task_index


def test_a_stale_change_of_a_large_job_is_computed_anew(stores):
    first, second = stores
    first.jobs.add(a_large_job(), "flow")
    second.jobs.get(JOB)

    set_status(
        first,
        "t7",
        TaskStatus.RUNNING,
    )
    job = set_status(
        second,
        "t8",
        TaskStatus.RUNNING,
    )

    assert job.tasks["t7"].status is TaskStatus.RUNNING
    assert job.tasks["t8"].status is TaskStatus.RUNNING
    assert first.jobs.get(JOB) == second.jobs.get(JOB)


@on_sqlite
def test_a_change_of_one_task_of_many_writes_little(store):
    store.jobs.add(a_large_job(), "flow")
    sizes = []

    def note_size(_connection, _cursor, _text, values, *_):
        sizes.append(len(str(values)))

    sa.event.listen(sa.Engine, "before_cursor_execute", note_size)
    try:
        set_status(
            store,
            "t7",
            TaskStatus.RUNNING,
        )
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note_size)

    assert 0 < sum(sizes) < LONGEST_WRITE


@on_sqlite
def test_a_retried_task_of_many_is_read_once(stores):
    first, second = stores
    first.jobs.add(a_large_job(), "flow")
    set_status(
        first,
        LAST,
        TaskStatus.FAILED,
    )

    written = first.jobs.update(JOB, retried)

    assert second.jobs.get(JOB) == written
    assert rows_with_states(first, schema.task, JOB) == TASKS


@on_sqlite
def test_a_record_of_an_earlier_version_moves_its_tasks_when_written(stores):
    first, second = stores
    job = a_large_job()
    first.jobs.add(job, "flow")
    store_as_before(first, job)

    assert second.jobs.get(JOB) == job
    assert rows_with_states(first, schema.task, JOB) == 0
    written = set_status(
        second,
        "t7",
        TaskStatus.RUNNING,
    )

    assert rows_with_states(first, schema.task, JOB) == TASKS
    first.jobs.forget([JOB])
    assert first.jobs.get(JOB) == written


def store_as_before(store, job):
    """Store a job as versions before revision 0023 did: with all tasks in the record."""
    state, _ = dumps_record(job, "tasks", {})
    with store.write() as connection:
        connection.execute(schema.job.update().values(state=state))
        connection.execute(schema.task.update().values(state=None, position=None))


@on_sqlite
def test_runs_move_to_their_rows_once_they_are_many(stores):
    first, second = stores
    first.local_jobs.add(a_part_with(MAX_IN_RECORD), "flow")
    assert rows_with_states(first, schema.run, JOB) == 0
    more = [a_run("more"), a_run("last")]

    def add_runs(local):
        return local.with_new_runs(more)

    def launch_first(local):
        first_run = replace(
            local.runs[0],
            status=RunStatus.LAUNCHING,
        )
        return local.with_run(first_run)

    first.local_jobs.update(JOB, add_runs)
    written = first.local_jobs.update(JOB, launch_first)

    assert second.local_jobs.get(JOB) == written
    assert rows_with_states(first, schema.run, JOB) == MAX_IN_RECORD + 2


@on_sqlite
def test_a_small_record_keeps_its_tasks(store):
    store.jobs.add(a_job("a -> b"), "flow")

    assert rows_with_states(store, schema.task, JOB) == 0


def temporary_tables_on_disk(store):
    """Return how many a connection of MariaDB has created; this thread always gets the same one."""
    query = sa.text("show session status like 'Created_tmp_disk_tables'")
    with store.read() as connection:
        return int(connection.execute(query).one().Value)


@pytest.mark.parametrize(
    "shared_url",
    [pytest.param("mariadb", marks=pytest.mark.mariadb)],
    indirect=True,
)
def test_a_load_writes_no_temporary_table_to_the_disk_of_mariadb(stores):
    first, second = stores
    first.jobs.add(a_large_job(), "flow")
    second.jobs.get(JOB)  # has cached it then
    before = temporary_tables_on_disk(second)

    set_status(first, LAST, TaskStatus.RUNNING)
    second.jobs.get(JOB)
    second.jobs.get(JOB)

    assert temporary_tables_on_disk(second) == before
