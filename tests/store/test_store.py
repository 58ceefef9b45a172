"""The records of jobs: round trips, races, the cache, and searches."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.run import (
    Address,
    Exit,
    LocalJob,
    Reporting,
    Run,
    RunData,
    Software,
)
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import NotFound
from gateway.ports import JobSelection
from gateway.store import queries, records, schema
from gateway.store.database import open_database, require_no_transaction
from gateway.store.serialization import dumps, dumps_record, loads
from gateway.store.store import Store
from tests.contracts.databases import a_store
from tests.store.kinds import on_sqlite
from tests.store.parallel import in_parallel

pytestmark = pytest.mark.xdist_group("store")  # one database for the module

# The constants and builders here repeat the values in the rows of revision_0015/.
NOW = datetime(
    2026,
    1,
    2,
    3,
    4,
    5,
    678901,
    tzinfo=UTC,
)
SECOND = timedelta(seconds=1)
GUEST = Party("guest", 0, "A")
HOST = Party("host", 0, "B")
SPEC = JobSpec(
    job_id="job-1",
    flow_id="flow",
    dag=Dag(
        (
            DagNode(
                "a",
                ComponentRef("p", "1", "C"),
                (),
                (DagOutput("dataset", "d"),),
            ),
            DagNode(
                "b",
                ComponentRef("p", "1", "D"),
                (DagInput("dataset", "a", "d"),),
            ),
        )
    ),
    parties=(GUEST, HOST),
    initiator="A",
    initiator_role="guest",
    scheduler="A",
    protocol="bfia",
    trace_id="trace",
    job_params={"common": {"sync_type": "poll"}},
    task_params={"common": {"a": {"名字": ["x", 1, 2.5, None, True, {"k": "值"}]}}},
)


def a_job(job_id: str = "job-1") -> Job:
    create = Call(
        state=CallState.SENT,
        sent_at=NOW,
        tries=1,
    )
    return Job(
        replace(SPEC, job_id=job_id),
        JobStatus.PENDING,
        NOW,
        nodes={node: NodeJob(node, create=create) for node in SPEC.nodes},
        tasks={name: a_task(job_id, name) for name in ("a", "b")},
        ending=Ending(Outcome.FAILED, NOW),
        digest="d" * 64,
    )


def a_task(job_id: str, name: str) -> Task:
    at_scheduler = NodeTask(
        "A",
        {"guest": TaskStatus.RUNNING},
        reported_at=NOW,
    )
    return Task(
        name,
        f"task_{job_id}_{name}",
        TaskStatus.PENDING,
        {"A": at_scheduler},
        failure=Failure(
            "EXIT_1",
            "died",
            "A",
            "guest",
            name,
            1,
        ),
    )


def a_local_job() -> LocalJob:
    lost_report = Call(
        CallState.LOST,
        NOW,
        NOW,
        2,
        "r",
        "m",
    )
    run = Run(
        run_id="r" * 64,
        name="bfia-0123456789abcdef",
        task_id="task_1",
        task_name="a",
        party=GUEST,
        software=Software(ComponentRef("p", "1", "C"), "image:1"),
        created_at=NOW,
        status=RunStatus.RUNNING,
        data=RunData(
            parameters={"x": [1, None, "值"]},
            inputs={"train": Address("n", "m")},
        ),
        limits={
            "cpu": 0.5,
            "memory": None,
        },
        exit=Exit(
            137,
            9,
            True,
            NOW,
            NOW,
            ("model",),
        ),
        reporting=Reporting(TaskStatus.RUNNING, lost_report),
    )
    return LocalJob(
        SPEC,
        "A",
        JobStatus.RUNNING,
        NOW,
        digest="d" * 64,
        runs=(run,),
        warnings=("w",),
    )


def add_warning(text):
    """Return a change of a job that appends a warning."""

    def change(job):
        return replace(job, warnings=(*job.warnings, text))

    return change


@pytest.fixture
def sole_store(tmp_path):
    """The store of a node that alone writes its database, so that it never reads a record twice."""
    store = Store(
        open_database(f"sqlite:///{tmp_path / 'node.db'}"),
        sole_writer=True,
    )
    yield store
    store.close()


@pytest.fixture
def parsed_specs(monkeypatch):
    """The texts of the jobs' specs that were read from the database and parsed."""
    texts = []

    def load_and_note(cls, text, **fields):
        if cls is JobSpec:
            texts.append(text)
        return loads(cls, text, **fields)

    monkeypatch.setattr(records, "loads", load_and_note)
    return texts


# ------------------------------------------------------------ round trips


def test_a_record_comes_back_as_it_was(stores):
    store, second_store = stores  # the second one has cached nothing
    job = a_job()
    local = a_local_job()

    assert store.jobs.add(job, "flow")
    assert store.local_jobs.add(local, "flow")
    assert not store.jobs.add(replace(job, digest="other"), "flow")
    assert second_store.jobs.get("job-1") == job
    assert second_store.local_jobs.get("job-1") == local


def test_a_stored_record_leaves_out_defaults_and_nothing_else():
    job = replace(
        a_job(),
        warnings=("w",),
    )
    local = a_local_job()

    text, _ = dumps_record(job, "tasks", {})
    assert '"denials"' not in text
    assert len(text) < 0.7 * len(dumps(job))
    assert loads(Job, text, spec=job.spec) == job

    local_text, _ = dumps_record(local, "runs", {})
    assert loads(LocalJob, local_text, spec=local.spec) == local


def test_an_unknown_key_of_a_stored_value_is_ignored():
    assert loads(Call, '{"state": "OK", "unknown": 1}') == Call(CallState.OK)


def test_the_text_of_an_unchanged_task_is_used_again():
    job = a_job()
    _, part_texts = dumps_record(job, "tasks", {})
    changed_task = replace(
        job.tasks["a"],
        attempt=3,
    )
    changed_job = replace(job, tasks={**job.tasks, "a": changed_task})

    text, new_part_texts = dumps_record(changed_job, "tasks", part_texts)

    assert loads(Job, text, spec=job.spec) == changed_job
    same_texts = []
    for name, task in changed_job.tasks.items():
        if new_part_texts[id(task)] is part_texts.get(id(task)):
            same_texts.append(name)
    assert same_texts == ["b"]


def test_notes_become_the_timeline_in_order_and_are_not_kept_in_the_record(store):
    def note_twice(job):
        return job.with_note(NOW, "second").with_note(NOW, "third")

    def note_late(job):
        return job.with_note(NOW - SECOND, "written late")

    store.jobs.add(
        a_job().with_note(NOW, "first", "me", text="值"),
        "flow",
    )
    store.jobs.update("job-1", note_twice)
    timeline = store.timeline("job-1")
    assert [entry.event for entry in timeline] == ["first", "second", "third"]
    assert [entry.by for entry in timeline] == ["me", "", ""]
    assert timeline[0].detail == {"text": "值"}
    assert timeline[0].at == NOW

    store.jobs.update("job-1", note_late)
    assert store.timeline("job-1")[-1].event == "written late"
    assert store.jobs.get("job-1").notes == ()


# ------------------------------------------------------------ races


def test_gateways_that_start_at_the_same_time_are_one_installation(stores):
    """A gateway recognises its containers by the installation's id after a restart."""

    def read_installation(number):
        return stores[number % 2].installation()

    assert len(set(in_parallel(6, read_installation))) == 1


def test_a_change_builds_on_what_another_process_wrote(stores, parsed_specs):
    store, second_store = stores
    store.jobs.add(a_job(), "flow")

    def require_last_warning(text):
        def change(job):
            if job.warnings[-1:] != (text,):
                raise ValueError(f"not {text}")
            return job

        return change

    for number in range(2):
        second_store.jobs.update("job-1", add_warning(f"theirs {number}"))
        store.jobs.update("job-1", add_warning(f"mine {number}"))
        job = second_store.jobs.update("job-1", require_last_warning(f"mine {number}"))
        assert job.warnings[-2:] == (f"theirs {number}", f"mine {number}")
    with pytest.raises(ValueError, match="not theirs"):
        second_store.jobs.update("job-1", require_last_warning("theirs 1"))
    assert len(parsed_specs) == 1, "a job's spec never changes, so it is parsed once"


def test_a_change_never_builds_on_a_job_that_was_deleted_and_created_again(store):
    store.jobs.add(a_job(), "flow")
    store.jobs.get("job-1")
    recreated = replace(a_job(), created_at=NOW + SECOND, digest="e" * 64)
    state, _ = dumps_record(recreated, "tasks", {})
    row = {
        "created_at": recreated.created_at.timestamp(),
        "state": state,
    }
    with store.write() as connection:  # as another gateway; the new record has version 1 as well
        connection.execute(schema.job.update().values(**row))

    changed = store.jobs.update("job-1", add_warning("w"))

    assert changed == replace(
        recreated,
        warnings=("w",),
    )


@on_sqlite
def test_no_call_to_the_outside_inside_a_transaction(store):
    require_no_transaction()
    with store.write(), pytest.raises(RuntimeError):
        require_no_transaction()
    require_no_transaction()


# ------------------------------------------------------------ the cache


@on_sqlite
def test_jobs_with_long_texts_do_not_fill_the_memory(store, shared_url, monkeypatch):
    """A partner may create such jobs, and end them, as often as it likes."""
    monkeypatch.setattr(records, "MAX_CACHED_CHARACTERS", 50_000)  # three of the jobs below

    with a_store(shared_url) as small_store:
        jobs = small_store.jobs
        for start in (0, 6):
            job_ids = [f"job-{number}" for number in range(start, start + 6)]
            for count, job_id in enumerate(job_ids, 1):
                add_long_job(jobs, job_id)
                cached = [each for each in job_ids[:count] if jobs.cached(each)]
                assert cached == job_ids[:count][-3:]
            assert jobs.get(job_ids[0]).warnings == ("w" * 5000,)
            jobs.forget(job_ids)  # leaves the whole size to the jobs of the second round


def add_long_job(jobs, job_id):
    """Store a job with a text of 10 000 characters; an update adds one of 5 000."""
    spec = replace(SPEC, job_id=job_id, job_params={"common": {"blob": "x" * 10_000}})
    jobs.add(
        replace(
            a_job(job_id),
            spec=spec,
        ),
        "flow",
    )
    jobs.update(job_id, add_warning("w" * 5000))


@on_sqlite
def test_an_unchanged_record_is_not_read_again_and_a_recreated_one_is(store):
    store.jobs.add(a_job(), "flow")
    cached = store.jobs.get("job-1")
    assert store.jobs.get("job-1") is cached

    with store.write() as connection:
        connection.execute(schema.job.delete())
        connection.execute(schema.task.delete())
    assert store.jobs.find("job-1") is None

    recreated = replace(a_job(), created_at=NOW + SECOND, digest="e" * 64)
    store.jobs.add(recreated, "flow")
    changed = store.jobs.update("job-1", add_warning("w"))
    assert changed == replace(
        recreated,
        warnings=("w",),
    )
    with pytest.raises(NotFound):
        store.jobs.update("nothing", add_warning("w"))


def test_a_search_for_an_unknown_job_leaves_the_others_in_memory(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'node.db'}")
    store = Store(engine, sole_writer=True)
    searches = []

    def search_once(connection):
        if not searches:
            searches.append("job-none")
            store.jobs.find("job-none")

    sa.event.listen(engine, "commit", search_once)
    assert store.jobs.add(a_job(), "flow")

    assert searches, "the search takes place while the job is written"
    assert store.jobs.cached("job-1") is not None
    store.close()


def test_a_job_that_is_deleted_while_it_is_written_is_gone(sole_store, monkeypatch):
    put = records.RecordCache.put

    def put_after_deletion(cache, *entry):
        assert queries.drop_job(
            sole_store,
            "job-1",
            NOW,
            "operator",
            {},
        )
        put(cache, *entry)

    assert sole_store.jobs.add(a_job(), "flow")
    monkeypatch.setattr(records.RecordCache, "put", put_after_deletion)
    sole_store.jobs.update("job-1", add_warning("w"))

    with pytest.raises(NotFound):
        sole_store.jobs.update("job-1", add_warning("x"))


# ------------------------------------------------------------ searches


def test_jobs_are_listed_by_flow_and_state_and_when_they_are_due(store):
    statuses = {
        "job-0": JobStatus.PENDING,
        "job-1": JobStatus.FINISHED,
        "job-2": JobStatus.PENDING,
    }
    flow_ids = {
        "job-0": "other",
        "job-1": "flow",
        "job-2": "flow",
    }
    for number, (job_id, status) in enumerate(statuses.items()):
        changes = {
            "status": status,
            "ending": None,
            "created_at": NOW + number * SECOND,
        }
        store.jobs.add(replace(a_job(job_id), **changes), flow_ids[job_id])
    store.local_jobs.add(a_local_job(), "flow")

    selections = (
        JobSelection("flow"),
        JobSelection(limit=2),
        JobSelection(since=NOW + SECOND),
    )
    for selection in selections:
        assert list(queries.statuses(store, selection)) == ["job-2", "job-1"]
    latest = JobSelection(
        "flow",
        since=NOW + 2 * SECOND,
    )
    assert list(queries.statuses(store, latest)) == ["job-2"]
    assert queries.newest(store, 2) == ["job-2", "job-1"]
    assert store.jobs.in_state("PENDING", "READY") == ["job-0", "job-2"]

    due = scheduling_machine.next_due(store.jobs.get("job-0"))
    assert due is not None
    assert "job-0" not in store.jobs.due(due - SECOND)
    assert "job-0" in store.jobs.due(due + SECOND)

    local_due = machine.next_due(a_local_job())
    assert local_due is not None
    assert store.local_jobs.due(local_due + SECOND) == ["job-1"]


@on_sqlite
def test_tasks_and_runs_are_found_by_id(store):
    store.jobs.add(a_job(), "flow")
    store.local_jobs.add(a_local_job(), "flow")

    assert store.job_of_task("task_job-1_b") == "job-1"
    assert store.local_job_of_task("task_1") == "job-1"
    assert store.job_of_run("r" * 64) == "job-1"
    assert store.job_of_container("bfia-0123456789abcdef") == ("job-1", "r" * 64)
    assert store.job_of_task("other") is None


def test_the_first_scheduler_of_a_submission_stays(store):
    for scheduler in ("S", "other"):
        store.add_submission("job-9", "f", scheduler, NOW)

    assert store.scheduler_of("job-9") == "S"
    of_flow = JobSelection("f")
    since_then = JobSelection(since=NOW)
    assert queries.submitted(store, of_flow) == [("job-9", "S")]
    assert queries.submitted(store, since_then) == [("job-9", "S")]
    selections = (
        JobSelection("g"),
        JobSelection(since=NOW + SECOND),
        JobSelection(limit=0),
    )
    for selection in selections:
        assert queries.submitted(store, selection) == []


def test_a_nodes_running_job_is_found_without_reading_other_jobs(store, parsed_specs):
    odd_node = 'B"1\\余'  # quotes, backslashes and other alphabets are escaped in the stored text
    parties = {
        "job-0": SPEC.parties,
        "job-1": (
            GUEST,
            Party("host", 0, odd_node),
        ),
        "job-2": SPEC.parties,
    }
    for job_id, job_parties in parties.items():
        job = a_job(job_id)
        store.jobs.add(
            replace(
                job,
                spec=replace(
                    job.spec,
                    parties=job_parties,
                ),
            ),
            "flow",
        )

    assert store.has_active_job_with(odd_node)
    assert len(parsed_specs) == 1
    assert not store.has_active_job_with("")
    assert not store.has_active_job_with("A1")
    assert len(parsed_specs) == 1
