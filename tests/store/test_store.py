"""The store: round trips, lost races, migrations, on SQLite and on MariaDB."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.run import Address, Exit, LocalJob, Reporting, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import NotFound
from gateway.store import records, schema
from gateway.store.database import connect, migrate, outside_transaction
from gateway.store.serialization import dumps, loads, record
from gateway.store.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SPEC = JobSpec(
    "job-1",
    "flow",
    Dag(
        (
            DagNode("a", ComponentRef("p", "1", "C"), (), (DagOutput("dataset", "d"),)),
            DagNode("b", ComponentRef("p", "1", "D"), (DagInput("dataset", "a", "d"),)),
        )
    ),
    (Party("guest", 0, "A"), Party("host", 0, "B")),
    "A",
    "guest",
    "A",
    "bfia",
    "trace",
    {"common": {"sync_type": "poll"}},
    {"common": {"a": {"名字": ["x", 1, 2.5, None, True, {"k": "值"}]}}},
)


def a_job(job_id: str = "job-1") -> Job:
    nodes = {n: NodeJob(n, create=Call(CallState.SENT, NOW, None, 1)) for n in SPEC.nodes}
    tasks = {
        name: Task(
            name,
            f"task_{job_id}_{name}",
            TaskStatus.PENDING,
            {"A": NodeTask("A", {"guest": TaskStatus.RUNNING}, heard_at=NOW)},
            failure=Failure("EXIT_1", "died", "A", "guest", name, 1),
        )
        for name in ("a", "b")
    }
    spec = replace(SPEC, job_id=job_id)
    return Job(spec, JobStatus.PENDING, NOW, nodes, tasks, ending=Ending(Outcome.FAILED, NOW), digest="d" * 64)


def a_local_job() -> LocalJob:
    run = Run(
        "r" * 64,
        "bfia-0123456789abcdef",
        "task_1",
        "a",
        Party("guest", 0, "A"),
        ComponentRef("p", "1", "C"),
        "image:1",
        NOW,
        status=RunStatus.RUNNING,
        parameters={"x": [1, None, "值"]},
        inputs={"train": Address("n", "m")},
        limits={"cpu": 0.5, "memory": None},
        exit=Exit(137, 9, True, NOW, NOW, ("model",)),
        told=Reporting(TaskStatus.RUNNING, Call(CallState.LOST, NOW, NOW, 2, "r", "m")),
    )
    return LocalJob(SPEC, "A", JobStatus.RUNNING, NOW, "d" * 64, (run,), warnings=("w",))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    engine = connect(database_url)
    migrate(engine)
    store = Store(engine)
    yield store
    store.close()


def test_a_record_comes_back_as_it_was(store: Store, database_url: str):
    job, local = a_job(), a_local_job()
    assert store.jobs.add(job, "flow")
    assert store.local_jobs.add(local, "flow")
    again = Store(connect(database_url))  # nothing read before, so all of it comes from the database
    assert again.jobs.get("job-1") == job
    assert again.local_jobs.get("job-1") == local
    again.close()


def test_what_another_process_wrote_is_read_anew(store: Store, database_url: str):
    store.jobs.add(a_job(), "flow")
    other = Store(connect(database_url))
    for i in range(3):
        changed = other.jobs.update("job-1", lambda job, i=i: replace(job, warnings=(f"{i}",)))
        assert store.jobs.get("job-1") == changed
    other.close()


def test_a_change_is_made_of_what_another_process_wrote(store: Store, database_url: str):
    store.jobs.add(a_job(), "flow")
    other = Store(connect(database_url))

    def further(said: str) -> Callable[[Job], Job]:
        return lambda job: replace(job, warnings=(*job.warnings, said))

    def last_said_by(said: str) -> Callable[[Job], Job]:
        def change(job: Job) -> Job:
            if job.warnings[-1:] != (said,):
                raise ValueError(f"not {said}")
            return job

        return change

    for i in range(2):
        other.jobs.update("job-1", further(f"theirs {i}"))
        store.jobs.update("job-1", further(f"mine {i}"))
        assert other.jobs.update("job-1", last_said_by(f"mine {i}")).warnings[-2:] == (f"theirs {i}", f"mine {i}")
    with pytest.raises(ValueError, match="not theirs"):
        other.jobs.update("job-1", last_said_by("theirs 1"))
    other.close()


def test_a_change_is_never_made_of_a_job_that_was_deleted_and_made_anew(store: Store):
    store.jobs.add(a_job(), "flow")
    store.jobs.get("job-1")
    remade = replace(a_job(), created_at=NOW + timedelta(seconds=1), digest="e" * 64)
    with store.write() as connection:
        connection.execute(schema.job.update().values(created_at=remade.created_at.timestamp()))
        connection.execute(schema.job.update().values(state=record(remade)))
    changed = store.jobs.update("job-1", lambda job: replace(job, warnings=("w",)))
    assert changed == replace(remade, warnings=("w",))


def test_an_unchanged_record_is_not_read_again_and_a_remade_one_is(store: Store):
    store.jobs.add(a_job(), "flow")
    known = store.jobs.get("job-1")
    assert store.jobs.get("job-1") is known
    with store.write() as connection:
        connection.execute(schema.job.delete())
        connection.execute(schema.task.delete())
    assert store.jobs.find("job-1") is None
    remade = replace(a_job(), created_at=NOW + timedelta(seconds=1), digest="e" * 64)
    store.jobs.add(remade, "flow")
    assert store.jobs.get("job-1") == remade


def test_a_stored_text_leaves_out_what_is_as_by_default_and_keeps_the_rest():
    job = replace(a_job(), warnings=("w",))
    text = record(job)
    assert '"denials"' not in text and len(text) < 0.7 * len(dumps(job))
    assert loads(Job, text, spec=job.spec) == job
    part = job.tasks["a"]
    again = replace(job, tasks={**job.tasks, "a": replace(part, attempt=3)})
    assert loads(Job, record(again), spec=job.spec) == again  # a changed part is written anew
    assert loads(Job, record(job), spec=job.spec) == job


def test_the_same_id_is_stored_once(store: Store):
    assert store.jobs.add(a_job(), "flow")
    assert not store.jobs.add(replace(a_job(), digest="other"), "flow")
    assert store.jobs.get("job-1").digest == "d" * 64


def test_what_is_not_there_is_not_found(store: Store):
    with pytest.raises(NotFound):
        store.jobs.get("nothing")
    with pytest.raises(NotFound):
        store.jobs.update("nothing", lambda job: job)


def test_changes_of_many_threads_are_all_kept(store: Store):
    store.jobs.add(a_job(), "flow")

    def add(i: int) -> None:
        for k in range(10):
            store.jobs.update("job-1", lambda job, k=k: replace(job, warnings=(*job.warnings, f"{i}-{k}")))

    threads = [threading.Thread(target=add, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.jobs.get("job-1").warnings) == sorted(f"{i}-{k}" for i in range(6) for k in range(10))


def test_a_change_that_raises_changes_nothing(store: Store):
    store.jobs.add(a_job(), "flow")

    def fail(job: Job) -> Job:
        raise ValueError

    with pytest.raises(ValueError):
        store.jobs.update("job-1", fail)
    assert store.jobs.get("job-1") == a_job()


def test_notes_become_the_timeline_in_order_and_are_not_kept_in_the_record(store: Store):
    store.jobs.add(a_job().noted(NOW, "first", "me", text="值"), "flow")
    store.jobs.update("job-1", lambda job: job.noted(NOW, "second").noted(NOW, "third"))
    assert [(e.event, e.by) for e in store.timeline("job-1")] == [("first", "me"), ("second", ""), ("third", "")]
    assert store.timeline("job-1")[0].detail == {"text": "值"}
    assert store.timeline("job-1")[0].at == NOW
    assert store.jobs.get("job-1").notes == ()


def test_tasks_and_runs_are_found_by_id(store: Store):
    store.jobs.add(a_job(), "flow")
    store.local_jobs.add(a_local_job(), "flow")
    assert store.job_of_task("task_job-1_b") == "job-1"
    assert store.local_job_of_task("task_1") == "job-1"
    assert store.job_of_run("r" * 64) == "job-1"
    assert store.job_of_container("bfia-0123456789abcdef") == ("job-1", "r" * 64)
    assert store.job_of_task("other") is None


def test_due_jobs_are_those_whose_time_has_come(store: Store):
    store.jobs.add(replace(a_job(), ending=None), "flow")
    due = scheduling_machine.next_due(store.jobs.get("job-1"))
    assert due is not None
    assert store.jobs.due(due - timedelta(seconds=1)) == []
    assert store.jobs.due(due + timedelta(seconds=1)) == ["job-1"]


def test_local_jobs_are_due_by_their_own_rules(store: Store):
    store.local_jobs.add(a_local_job(), "flow")
    due = machine.next_due(a_local_job())
    assert due is not None
    assert store.local_jobs.due(due + timedelta(seconds=1)) == ["job-1"]


def test_jobs_are_listed_by_flow_newest_first(store: Store):
    for i in range(3):
        job = replace(a_job(f"job-{i}"), created_at=NOW + timedelta(seconds=i))
        store.jobs.add(job, "flow" if i else "other")
    assert [j.job_id for j in store.jobs.list("flow")] == ["job-2", "job-1"]
    assert [j.job_id for j in store.jobs.list()] == ["job-2", "job-1", "job-0"]


def test_jobs_are_listed_by_state(store: Store):
    for i, status in enumerate((JobStatus.PENDING, JobStatus.FINISHED)):
        store.jobs.add(replace(a_job(f"job-{i}"), status=status), "flow")
    assert [j.job_id for j in store.jobs.list(status=JobStatus.FINISHED)] == ["job-1"]


def test_whether_a_node_takes_part_in_a_job_under_way_is_seen_without_reading_other_jobs(store: Store):
    parties = (Party("guest", 0, "A"), Party("host", 0, 'B"1\\余'))
    for i in range(3):
        job = a_job(f"job-{i}")
        store.jobs.add(replace(job, spec=replace(job.spec, parties=parties if i == 1 else SPEC.parties)), "flow")
    read: list[str] = []

    def heard(*args: Any) -> None:
        read.append(args[0])

    real, records._spec = records._spec, lambda text: heard(text) or real(text)
    try:
        assert store.in_use(parties[1].node)
        assert len(read) == 1
        assert not store.in_use("") and not store.in_use("A1") and len(read) == 1
    finally:
        records._spec = real


def test_submissions_remember_the_scheduler(store: Store):
    store.add_submission("job-9", "f", "S", NOW)
    store.add_submission("job-9", "f", "other", NOW)
    assert store.scheduler_of("job-9") == "S"
    assert store.submissions("f") == [("job-9", "S")]
    assert store.submissions("g") == []


def test_the_migrations_make_exactly_the_tables(database_url: str):
    engine = connect(database_url)
    migrate(engine)
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
    engine.dispose()


def test_the_installation_id_is_made_once(store: Store, database_url: str):
    first = store.installation()
    again = Store(connect(database_url))
    assert again.installation() == first
    again.close()


def test_no_call_to_the_outside_inside_a_transaction(store: Store):
    outside_transaction()
    with store.write(), pytest.raises(RuntimeError):
        outside_transaction()
    outside_transaction()


def test_a_text_that_lacks_a_field_takes_its_default():
    assert loads(Call, '{"state": "OK", "unknown": 1}') == Call(CallState.OK)
    assert loads(Call, dumps(Call(CallState.LOST, NOW))) == Call(CallState.LOST, NOW)
