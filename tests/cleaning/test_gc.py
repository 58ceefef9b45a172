"""Cleaning: expired things are removed, things in use stay, and a dry run lists the same things."""

import asyncio
import json
import os
import sys
from dataclasses import replace

from adapter.bfia.environment import session_id
from engines.base import EngineDown, LaunchSpec, labels
from gateway.bootstrap.parts import Pace
from gateway.config.schema.jobs import Retention
from gateway.data.file_storage import STAGING_FOLDER, Staging
from gateway.domain.run import Address
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import DatabaseAway
from gateway.jobs.retention import Cleaner, Leftovers, size_of, unchanged_for
from gateway.store.database import open_database
from gateway.store.store import Store
from tests.builders import a_job, raising, with_data
from tests.cleaning.ended import (
    ago,
    are_stored,
    left_behind,
    logs_of,
    run_left_behind,
    session_folders,
    store_running_job,
    with_confirmed_stops,
)
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME

SLEEPER = "sleeper:1"
DAY = 86_400.0  # seconds


def start_node(
    world,
    cleaning=3600.0,
    storages=None,
    **retention,
):
    """Start a node with limits of retention; all times in seconds.

    ``cleaning``: the time between two cleanings.
    """
    return world.node(
        commands={SLEEPER: [sys.executable, "-c", "import time; time.sleep(60)"]},
        settings={"retention": retention, "storages": storages or {}},
        pace=Pace(cleaning=cleaning),
    )


def list_items(node, **query):
    """Return kind and name of everything that a cleaning would remove."""
    response = node.get(
        "/api/v1/gc",
        params=query,
    )
    assert response.status_code == 200, response.text
    return names_of(response.json()["items"])


def clean(node, **body):
    """Clean a node; return kind and name of everything that was removed."""
    response = node.post("/api/v1/gc", body)
    assert response.status_code == 200, response.text
    items = response.json()["items"]
    assert all(item["removed"] for item in items), items
    return names_of(items)


def names_of(items):
    """Return kind and name of items of a cleaning."""
    return {(item["kind"], item["name"]) for item in items}


def launch(node, name, job_id):
    """Launch a container with the labels of a job's run."""
    run_labels = labels(
        ME,
        node.store.installation(),
        job_id,
        "task_x",
        "guest",
        0,
        0,
    )
    spec = LaunchSpec(name, SLEEPER, {}, run_labels)
    node.engine.launch(spec)


def change_job(node, job_id, **changes):
    """Change fields of a node's record of a job."""

    def changed(job):
        return replace(job, **changes)

    node.store.local_jobs.update(job_id, changed)


def test_a_dry_run_lists_exactly_what_is_then_removed(world):
    node = start_node(
        world,
        logs_seconds=1000,
        outputs_seconds=10_000,
        jobs_seconds=100_000,
    )
    fresh = run_left_behind(node, "job-fresh", 1)
    quiet = run_left_behind(node, "job-quiet", 5000)
    stale = run_left_behind(node, "job-stale", 50_000)
    old = run_left_behind(node, "job-old", 500_000)
    staging = node.storage.root / STAGING_FOLDER
    dead_upload = staging / "dead"  # not locked, as after its process died
    dead_upload.mkdir(parents=True)
    (dead_upload / "upload").write_bytes(b"x" * 1000)
    live_upload = Staging(node.storage.root)

    expected = {
        ("job", "job-old"),
        ("upload", "dead"),
    }
    for run in (quiet, stale, old):
        expected.add(("logs", run.name))
    for run in (stale, old):
        for address in run.data.outputs.values():
            expected.add(("outputs", f"{address.namespace}#{address.name}"))

    assert list_items(node) == expected
    assert list_items(node) == expected
    assert clean(node, dry_run=False) == expected
    assert list_items(node) == set()

    assert logs_of(node, fresh).exists()
    assert not logs_of(node, quiet).exists()
    assert all(are_stored(node, quiet))
    assert not any(are_stored(node, stale))
    assert not (node.storage.root / "job-stale-guest-0").exists()
    assert node.store.local_jobs.find("job-stale") is not None
    assert node.store.local_jobs.find("job-old") is None
    assert live_upload.folder.exists()
    assert not dead_upload.exists()
    live_upload.close()


def store_job_with_checkpoint(node, job_id):
    """Store an ended job whose task wrote a checkpoint; return the checkpoint's address."""
    run = run_left_behind(node, job_id, 500)
    checkpoint = Address(f"{job_id}-guest-0", "a-checkpoint")
    step = node.storage.path(checkpoint) / "step-1"
    step.parent.mkdir()
    step.write_text("1")
    run = with_data(run, checkpoint=checkpoint)
    change_job(
        node,
        job_id,
        runs=(run,),
    )
    return checkpoint


def test_checkpoints_go_with_the_outputs_unless_a_later_job_resumes(world):
    node = start_node(world, outputs_seconds=100)
    unused = store_job_with_checkpoint(node, "job-old")
    resumed = store_job_with_checkpoint(node, "job-read")
    store_running_job(node, "job-later", checkpoint_from=resumed)

    clean(node)

    assert not node.storage.path(unused).exists()
    assert node.storage.path(resumed).is_dir()


def store_checkpoints(node, job_id, *tasks):
    """Store a running job whose tasks each wrote five checkpoints; return the folders by task."""
    folders = {}
    runs = []
    store_running_job(node, job_id)
    run = node.store.local_jobs.get(job_id).runs[0]
    for task in tasks:
        checkpoint = Address(f"{job_id}-guest-0", f"{task}-checkpoint")
        folder = node.storage.path(checkpoint)
        for step in range(1, 6):
            entry = folder / f"step-{step}"
            entry.mkdir(parents=True)
            (entry / "model").write_text("weights")
        (folder / "notes").write_text("not a checkpoint")
        runs.append(with_data(run, checkpoint=checkpoint))
        folders[task] = folder
    change_job(
        node,
        job_id,
        runs=tuple(runs),
    )
    return folders


def entries_of(folder):
    """Return the names of a folder's entries."""
    return sorted(path.name for path in folder.iterdir())


def test_of_each_task_the_newest_checkpoints_stay_while_it_runs(world):
    node = start_node(world, checkpoints=2)
    folders = store_checkpoints(node, "job-long", "a", "b")

    planned = list_items(node)
    removed = clean(node)

    assert planned == removed
    old = [
        "a-checkpoint/step-1",
        "a-checkpoint/step-2",
        "a-checkpoint/step-3",
        "b-checkpoint/step-1",
        "b-checkpoint/step-2",
        "b-checkpoint/step-3",
    ]
    assert removed == {("checkpoint", f"job-long-guest-0#{name}") for name in old}
    for folder in folders.values():
        assert entries_of(folder) == ["notes", "step-4", "step-5"]


def test_three_checkpoints_stay_by_default_and_all_by_choice(world):
    node = start_node(world)
    folder = store_checkpoints(node, "job-default", "a")["a"]
    clean(node)
    assert entries_of(folder) == [
        "notes",
        "step-3",
        "step-4",
        "step-5",
    ]

    keeps_all = start_node(world, checkpoints=None)
    folder = store_checkpoints(keeps_all, "job-all", "a")["a"]
    clean(keeps_all)
    assert len(entries_of(folder)) == 6


def test_what_a_task_writes_before_its_end_is_cleaned_once_more(world):
    node = start_node(world, checkpoints=1)
    folder = store_checkpoints(node, "job-ends", "a")["a"]
    clean(node)
    (folder / "step-6").write_text("late")
    change_job(
        node,
        "job-ends",
        status=JobStatus.FINISHED,
        ended_at=ago(0),
    )

    assert clean(node) == {("checkpoint", "job-ends-guest-0#a-checkpoint/step-5")}
    assert entries_of(folder) == ["notes", "step-6"]


def test_a_job_stays_while_another_job_resumes_from_its_checkpoints(world):
    node = start_node(world, jobs_seconds=20)
    resumed = store_job_with_checkpoint(node, "job-old")
    store_running_job(node, "job-later", checkpoint_from=resumed)

    clean(node)
    assert node.store.local_jobs.find("job-old") is not None

    change_job(
        node,
        "job-later",
        status=JobStatus.FINISHED,
        ended_at=ago(59),
        closed=True,
    )
    clean(node)
    assert node.store.local_jobs.find("job-old") is None
    assert not node.storage.path(resumed).exists()


def test_outputs_that_others_refer_to_are_kept_with_their_job(world):
    node = start_node(
        world,
        outputs_seconds=10,
        jobs_seconds=20,
    )
    held_run = run_left_behind(node, "job-held", 50)
    outputs = held_run.data.outputs
    table = outputs["out_name"]
    store_running_job(
        node,
        "job-reader",
        inputs={"in": table},
    )
    training = run_left_behind(node, "job-model", 50)
    model = training.data.outputs["model_name"]

    def users(address):
        if address == model:
            return ["a model refers to it"]
        return []

    node.leftovers.keepers.append(users)

    removed = clean(node)
    assert not {name for kind, name in removed if kind == "job"}
    assert node.storage.exists(table)
    assert node.storage.exists(model)
    assert not node.storage.exists(outputs["report_name"])

    change_job(
        node,
        "job-reader",
        status=JobStatus.FINISHED,
        ended_at=ago(59),
        closed=True,
    )
    node.leftovers.keepers.clear()

    removed = clean(node)
    assert ("job", "job-held") in removed
    assert ("job", "job-model") in removed
    assert ("job", "job-reader") in removed
    assert not node.storage.exists(table)


def test_leftover_containers_are_removed_and_unknown_ones_on_request(world):
    node = start_node(world)
    leftover = run_left_behind(node, "job-stray", 5).name
    launch(node, leftover, "job-stray")
    launch(node, "bfia-unknown", "job-nobody")
    fresh = run_left_behind(node, "job-up", 5).name

    assert fresh not in {name for _, name in list_items(node)}
    assert list_items(node) == {("container", leftover)}
    assert clean(node) == {("container", leftover)}
    (unknown,) = node.engine.list()
    assert unknown.name == "bfia-unknown"

    assert ("container", "bfia-unknown") in list_items(node, orphans="1")
    assert ("container", "bfia-unknown") in clean(node, orphans=True)
    assert node.engine.list() == []


def test_by_default_logs_go_after_thirty_days(world):
    node = start_node(world)
    left_behind(node, "job-young", 29 * DAY)
    old = run_left_behind(node, "job-old", 31 * DAY)

    assert list_items(node) == {("logs", old.name)}


def test_mailboxes_go_at_the_end_of_their_job_or_on_request(world):
    node = start_node(world)
    left_behind(node, "job-mail", 5)
    ended = ("session", session_id("job-mail"))
    unknown = ("session", session_id("job-unknown"))
    for _, session in (ended, unknown):
        push = node.broker.push(session, "topic", "there", b"hello")
        asyncio.run(push)

    assert list_items(node) == {ended}
    assert unknown in list_items(node, orphans=1)

    assert clean(node, orphans=True) >= {ended}
    assert node.broker.sessions() == ()
    assert session_folders(node.settings.state_dir) == []


def test_what_cannot_be_removed_is_reported_and_the_rest_is_removed(world, monkeypatch):
    node = start_node(
        world,
        logs_seconds=1,
        outputs_seconds=1,
    )
    run = run_left_behind(node, "job-stuck", 5)
    monkeypatch.setattr(
        node.storage,
        "delete",
        raising(PermissionError(13, "not permitted")),
    )

    items = node.post("/api/v1/gc").json()["items"]

    removed = {item["kind"]: item["removed"] for item in items}
    assert removed == {
        "logs": True,
        "outputs": False,
    }
    assert "not permitted" in json.dumps(items)
    assert not logs_of(node, run).exists()


def test_orphaned_logs_go_after_the_longest_time_or_on_request(world, monkeypatch):
    node = start_node(world, logs_seconds=1000)
    logs = node.settings.state_dir / "runs" / "bfia-unknown"
    logs.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(
            node.engine,
            "list",
            raising(EngineDown("no daemon")),
        )

        orphaned = {("logs", "bfia-unknown")}
        assert list_items(node) == set()
        assert list_items(node, orphans="1") == orphaned

        os.utime(logs, (1, 1))
        assert clean(node) == orphaned
        assert not logs.exists()


def test_a_job_is_not_over_while_a_node_has_not_confirmed_its_stop(tmp_path):
    store = Store(open_database(f"sqlite:///{tmp_path / 'gateway.db'}"))
    leftovers = Leftovers(
        store,
        storage=None,
        runs=tmp_path,
        keep=Retention(),
        keepers=[],
    )
    job = replace(
        a_job(status=JobStatus.FINISHED),
        ending=Ending(Outcome.STOPPED, ago(9)),
        outcome=Outcome.STOPPED,
        ended_at=ago(9),
    )
    store.jobs.add(job, "flow")
    job_id = job.spec.job_id
    assert leftovers.ended_at(job_id) is None

    store.jobs.update(job_id, with_confirmed_stops)
    assert leftovers.ended_at(job_id) == job.ended_at
    store.close()


def test_a_file_that_goes_while_it_is_measured_has_size_0(tmp_path):
    assert size_of(tmp_path / "gone") == 0
    assert unchanged_for(tmp_path / "gone", ago(0)) == 0


def test_an_unreachable_storage_keeps_nothing_else_from_being_cleaned(world):
    closed_port = free_ports(1)[0]
    lake = {
        "url": f"s3://127.0.0.1:{closed_port}/gone",
        "username": "key",
        "password": "secret",
    }
    node = start_node(
        world,
        storages={"lake": lake},
        outputs_seconds=10,
        jobs_seconds=10,
    )
    run = run_left_behind(node, "job-away", 50)
    in_lake = Address("job-away-guest-0", "model", "lake")
    outputs = run.data.outputs | {"model_name": in_lake}
    run = with_data(run, outputs=outputs)
    change_job(
        node,
        "job-away",
        runs=(run,),
    )
    left_behind(node, "job-here", 50)

    removed = clean(node)

    removed_jobs = [name for kind, name in removed if kind == "job"]
    assert removed_jobs == ["job-here"]
    assert node.storage.exists(run.data.outputs["out_name"])


def test_a_node_cleans_up_by_itself_after_a_cleaning_that_failed(world, monkeypatch):
    clean_up = Cleaner.clean
    failures = []

    def fail_once(cleaner):
        if failures:
            return clean_up(cleaner)
        failures.append(cleaner)
        raise DatabaseAway("not now")

    monkeypatch.setattr(Cleaner, "clean", fail_once)
    node = start_node(
        world,
        cleaning=0.1,
        logs_seconds=1,
    )
    run = run_left_behind(node, "job-old", 5)
    logs = logs_of(node, run)

    wait_for(lambda: not logs.exists(), 30)
