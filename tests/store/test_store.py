"""The store: round trips, lost races, migrations, on SQLite and on MariaDB."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.run import Address, Exit, LocalJob, Reporting, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import NotFound
from gateway.store import queries, records, schema
from gateway.store.database import open_database, outside_transaction
from gateway.store.serialization import dumps, loads, record
from gateway.store.store import Store
from tests.store.test_repositories import at_once

pytestmark = pytest.mark.xdist_group("store")  # one database for the module

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
            {"A": NodeTask("A", {"guest": TaskStatus.RUNNING}, reported_at=NOW)},
            failure=Failure("EXIT_1", "died", "A", "guest", name, 1),
        )
        for name in ("a", "b")
    }
    spec = replace(SPEC, job_id=job_id)
    return Job(
        spec,
        JobStatus.PENDING,
        NOW,
        nodes,
        tasks,
        ending=Ending(Outcome.FAILED, NOW),
        digest="d" * 64,
    )


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
        reporting=Reporting(TaskStatus.RUNNING, Call(CallState.LOST, NOW, NOW, 2, "r", "m")),
    )
    return LocalJob(SPEC, "A", JobStatus.RUNNING, NOW, "d" * 64, (run,), warnings=("w",))


def test_a_record_comes_back_as_it_was(stores: tuple[Store, Store]):
    store, again = stores  # the other has read nothing before, so all of it comes from the database
    job, local = a_job(), a_local_job()
    assert store.jobs.add(job, "flow")
    assert store.local_jobs.add(local, "flow")
    assert not store.jobs.add(replace(job, digest="other"), "flow")
    assert again.jobs.get("job-1") == job
    assert again.local_jobs.get("job-1") == local


def test_gateways_that_start_at_the_same_time_are_one_installation(stores: tuple[Store, Store]):
    """Each recognises its containers by it after a restart."""
    assert len(set(at_once(6, lambda i: stores[i % 2].installation()))) == 1


def test_a_change_builds_on_what_another_process_wrote(
    stores: tuple[Store, Store], read: list[str]
):
    store, other = stores
    store.jobs.add(a_job(), "flow")

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
        assert other.jobs.update("job-1", last_said_by(f"mine {i}")).warnings[-2:] == (
            f"theirs {i}",
            f"mine {i}",
        )
    with pytest.raises(ValueError, match="not theirs"):
        other.jobs.update("job-1", last_said_by("theirs 1"))
    assert len(read) == 1  # the job itself is the same


def test_jobs_with_long_texts_do_not_fill_the_memory(store: Store):
    """A partner makes such jobs, and ends them, as often as it likes."""
    store.jobs._cache._characters = 50_000
    for i in range(6):
        job = a_job(f"job-{i}")
        long = replace(SPEC, job_id=job.id, job_params={"common": {"blob": "x" * 10_000}})
        store.jobs.add(replace(job, spec=long), "flow")
        store.jobs.update(job.id, lambda job: replace(job, warnings=("w" * 5000,)))
        assert [*store.jobs._cache._entries] == [f"job-{j}" for j in range(max(i - 2, 0), i + 1)]
    assert store.jobs.get("job-0").warnings == ("w" * 5000,)
    store.jobs.forget(f"job-{i}" for i in range(6))
    assert store.jobs._cache._size == 0


def test_an_unchanged_record_is_not_read_again_and_a_recreated_one_is(store: Store):
    store.jobs.add(a_job(), "flow")
    known = store.jobs.get("job-1")
    assert store.jobs.get("job-1") is known
    with store.write() as connection:
        connection.execute(schema.job.delete())
        connection.execute(schema.task.delete())
    assert store.jobs.find("job-1") is None
    remade = replace(a_job(), created_at=NOW + timedelta(seconds=1), digest="e" * 64)
    store.jobs.add(remade, "flow")
    assert store.jobs.update("job-1", lambda job: replace(job, warnings=("w",))) == replace(
        remade, warnings=("w",)
    )
    with pytest.raises(NotFound):
        store.jobs.update("nothing", lambda job: job)


def test_a_change_never_builds_on_a_job_that_was_deleted_and_created_again(store: Store):
    store.jobs.add(a_job(), "flow")
    store.jobs.get("job-1")
    remade = replace(a_job(), created_at=NOW + timedelta(seconds=1), digest="e" * 64)
    with store.write() as connection:  # by another gateway: it has version 1 again
        row = {"created_at": remade.created_at.timestamp(), "state": record(remade, "tasks", {})[0]}
        connection.execute(schema.job.update().values(**row))
    changed = store.jobs.update("job-1", lambda job: replace(job, warnings=("w",)))
    assert changed == replace(remade, warnings=("w",))


def test_a_stored_record_leaves_out_defaults_and_nothing_else():
    job, local = replace(a_job(), warnings=("w",)), a_local_job()
    text, parts = record(job, "tasks", {})
    assert '"denials"' not in text and len(text) < 0.7 * len(dumps(job))
    assert loads(Job, text, spec=job.spec) == job
    assert loads(LocalJob, record(local, "runs", {})[0], spec=local.spec) == local
    assert loads(Call, '{"state": "OK", "unknown": 1}') == Call(CallState.OK)
    again = replace(job, tasks={**job.tasks, "a": replace(job.tasks["a"], attempt=3)})
    changed, of_again = record(again, "tasks", parts)
    assert loads(Job, changed, spec=job.spec) == again
    kept = [name for name, task in again.tasks.items() if of_again[id(task)] is parts.get(id(task))]
    assert kept == ["b"], "the text of a task that did not change is used again"


def test_notes_become_the_timeline_in_order_and_are_not_kept_in_the_record(store: Store):
    store.jobs.add(a_job().with_note(NOW, "first", "me", text="值"), "flow")
    store.jobs.update("job-1", lambda job: job.with_note(NOW, "second").with_note(NOW, "third"))
    assert [(e.event, e.by) for e in store.timeline("job-1")] == [
        ("first", "me"),
        ("second", ""),
        ("third", ""),
    ]
    assert store.timeline("job-1")[0].detail == {"text": "值"}
    assert store.timeline("job-1")[0].at == NOW
    store.jobs.update(
        "job-1", lambda job: job.with_note(NOW - timedelta(seconds=1), "written late")
    )
    assert store.timeline("job-1")[-1].event == "written late"
    assert store.jobs.get("job-1").notes == ()


def test_jobs_are_listed_by_flow_and_state_and_when_they_are_due(store: Store):
    for i, status in enumerate((JobStatus.PENDING, JobStatus.FINISHED, JobStatus.PENDING)):
        job = replace(
            a_job(f"job-{i}"),
            status=status,
            ending=None,
            created_at=NOW + timedelta(seconds=i),
        )
        store.jobs.add(job, "flow" if i else "other")
    store.local_jobs.add(a_local_job(), "flow")
    assert list(queries.statuses(store, "flow")) == queries.newest(store, 2) == ["job-2", "job-1"]
    assert store.jobs.in_state("PENDING", "READY") == ["job-0", "job-2"]
    due = scheduling_machine.next_due(store.jobs.get("job-0"))
    assert due is not None
    assert "job-0" not in store.jobs.due(due - timedelta(seconds=1))
    assert "job-0" in store.jobs.due(due + timedelta(seconds=1))
    due = machine.next_due(a_local_job())
    assert due is not None and store.local_jobs.due(due + timedelta(seconds=1)) == ["job-1"]


def test_tasks_and_runs_are_found_by_id(store: Store):
    store.jobs.add(a_job(), "flow")
    store.local_jobs.add(a_local_job(), "flow")
    assert store.job_of_task("task_job-1_b") == "job-1"
    assert store.local_job_of_task("task_1") == "job-1"
    assert store.job_of_run("r" * 64) == "job-1"
    assert store.job_of_container("bfia-0123456789abcdef") == ("job-1", "r" * 64)
    assert store.job_of_task("other") is None
    for node in ("S", "other"):
        store.add_submission("job-9", "f", node, NOW)
    assert (
        store.scheduler_of("job-9"),
        queries.submitted(store, "f"),
        queries.submitted(store, "g"),
    ) == (
        "S",
        [("job-9", "S")],
        [],
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of jobs that were read."""
    texts: list[str] = []

    def heard(
        kind: type,
        text: str,
        **elsewhere: Any,
    ) -> Any:
        texts.extend([text] if kind is JobSpec else [])
        return loads(kind, text, **elsewhere)

    monkeypatch.setattr(records, "loads", heard)
    return texts


def test_a_nodes_running_job_is_found_without_reading_other_jobs(store: Store, read: list[str]):
    parties = (Party("guest", 0, "A"), Party("host", 0, 'B"1\\余'))
    for i in range(3):
        job = a_job(f"job-{i}")
        store.jobs.add(
            replace(job, spec=replace(job.spec, parties=parties if i == 1 else SPEC.parties)),
            "flow",
        )
    assert store.in_use(parties[1].node) and len(read) == 1
    assert not store.in_use("") and not store.in_use("A1") and len(read) == 1


def test_no_call_to_the_outside_inside_a_transaction(store: Store):
    outside_transaction()
    with store.write(), pytest.raises(RuntimeError):
        outside_transaction()
    outside_transaction()


def test_a_look_for_a_job_that_is_not_there_leaves_the_others_in_memory(tmp_path: Path):
    store = Store(open_database(f"sqlite:///{tmp_path / 'node.db'}"), sole_writer=True)
    looks = iter([lambda: store.jobs.find("job-none")])
    sa.event.listen(store._engine, "commit", lambda _: next(looks, lambda: None)())
    assert store.jobs.add(a_job(), "flow")  # and another is looked for while it is written
    assert next(looks, None) is None and store.jobs.cached("job-1") is not None
    store.close()


def test_a_job_that_is_deleted_while_it_is_written_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where no other process writes the database, no record is read again."""
    put = records.RecordCache.put

    def deleted_before(cache: Any, *entry: Any) -> None:
        assert queries.drop_job(store, "job-1", NOW, "operator", {})
        put(cache, *entry)

    store = Store(open_database(f"sqlite:///{tmp_path / 'node.db'}"), sole_writer=True)
    assert store.jobs.add(a_job(), "flow")
    monkeypatch.setattr(records.RecordCache, "put", deleted_before)
    store.jobs.update("job-1", lambda job: replace(job, warnings=("w",)))
    with pytest.raises(NotFound):
        store.jobs.update("job-1", lambda job: replace(job, warnings=()))
    store.close()
