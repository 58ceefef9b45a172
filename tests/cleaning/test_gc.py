"""Cleaning: what outlived its end goes, what policy or others keep stays, and the list is what is done."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from typing import Any

from adapter.bfia.environment import session_id
from engines.base import EngineDown, LaunchSpec, labels
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace
from gateway.data.file_storage import Staging
from gateway.domain.run import Address
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import DatabaseAway
from gateway.jobs.retention import Cleaner, _end_of, _unchanged_for, size_of
from tests.builders import OK, a_job, raising
from tests.cleaning.ended import ago, left_behind, logs_of, under_way
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, ask, running

SLEEPER = "sleeper:1"
DAY = 86_400.0


def with_policy(**retention: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    return {
        "engine": {"kind": "process", "process": {"images": {SLEEPER: {"command": command}}}},
        "retention": retention,
        "pace": Pace(cleaning=3600.0),
    }


def listed(node: Gateway, **query: Any) -> set[tuple[str, str]]:
    answer = ask(node, "operator", "GET", "/api/v1/gc", params=query)
    assert answer.status_code == 200, answer.text
    return {(i["kind"], i["name"]) for i in answer.json()["items"]}


def cleaned(node: Gateway, **body: Any) -> set[tuple[str, str]]:
    answer = ask(node, "operator", "POST", "/api/v1/gc", json=body)
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    assert all(i["removed"] for i in items), items
    return {(i["kind"], i["name"]) for i in items}


def launch(
    node: Gateway,
    name: str,
    job: str,
) -> None:
    own = labels(ME, node.store.installation(), job, "task_x", "guest", 0, 0)
    node.engine.launch(LaunchSpec(name, SLEEPER, {}, own))


def test_a_dry_run_lists_exactly_what_is_then_removed(tmp_path):
    with running(
        tmp_path,
        **with_policy(
            logs_seconds=1000,
            outputs_seconds=10_000,
            jobs_seconds=100_000,
        ),
    ) as node:
        fresh = left_behind(node, "job-fresh", 1)
        quiet = left_behind(node, "job-quiet", 5000)
        stale = left_behind(node, "job-stale", 50_000)
        old = left_behind(node, "job-old", 500_000)
        dead = Staging(node.storage.root)
        (dead.folder / "upload").write_bytes(b"x" * 1000)
        os.close(dead._lock)  # as the death of its process does
        alive = Staging(node.storage.root)

        expected = {("logs", local.runs[0].name) for local in (quiet, stale, old)}
        for local in (stale, old):
            expected |= {
                ("outputs", f"{a.namespace}#{a.name}") for a in local.runs[0].outputs.values()
            }
        expected |= {("job", "job-old"), ("upload", dead.folder.name)}
        before = listed(node)
        assert before == expected
        assert listed(node) == before
        assert cleaned(node, dry_run=False) == before
        assert listed(node) == set()

        assert logs_of(node, fresh.runs[0]).exists()
        assert not logs_of(node, quiet.runs[0]).exists()
        assert all(node.storage.exists(a) for a in quiet.runs[0].outputs.values())
        assert not any(node.storage.exists(a) for a in stale.runs[0].outputs.values())
        assert not (node.storage.root / "job-stale-guest-0").exists()
        assert node.store.local_jobs.find("job-stale") is not None
        assert node.store.local_jobs.find("job-old") is None
        assert alive.folder.exists()
        assert not dead.folder.exists()
        alive.close()


def test_checkpoints_go_with_the_outputs_unless_a_later_job_resumes(tmp_path):
    with running(tmp_path, **with_policy(outputs_seconds=100)) as node:
        kept = {}
        for name in ("job-old", "job-read"):
            local = left_behind(node, name, 500)
            kept[name] = Address(f"{name}-guest-0", "a-checkpoint")
            step = node.storage.path(kept[name]) / "step-1"
            step.parent.mkdir()
            step.write_text("1")
            run = replace(local.runs[0], checkpoint=kept[name])
            node.store.local_jobs.update(name, lambda local, run=run: replace(local, runs=(run,)))
        under_way(node, "job-later", checkpoint_from=kept["job-read"])
        cleaned(node)
        assert not node.storage.path(kept["job-old"]).exists()
        assert node.storage.path(kept["job-read"]).is_dir()


def test_outputs_that_others_refer_to_are_kept_with_their_job(tmp_path):
    with running(tmp_path, **with_policy(outputs_seconds=10, jobs_seconds=20)) as node:
        held, model = left_behind(node, "job-held", 50), left_behind(node, "job-model", 50)
        read = held.runs[0].outputs["out_name"]
        under_way(node, "job-reader", inputs={"in": read})
        kept = model.runs[0].outputs["model_name"]
        node.leftovers.keepers.append(
            lambda address: ["a model refers to it"] if address == kept else []
        )
        gone = cleaned(node)
        assert not {k for k in gone if k[0] == "job"}
        assert node.storage.exists(read)
        assert node.storage.exists(kept)
        assert not node.storage.exists(held.runs[0].outputs["report_name"])
        node.store.local_jobs.update(
            "job-reader",
            lambda job: replace(
                job,
                status=JobStatus.FINISHED,
                ended_at=ago(59),
                closed=True,
            ),
        )
        node.leftovers.keepers.clear()
        assert {("job", "job-held"), ("job", "job-model"), ("job", "job-reader")} <= cleaned(node)
        assert not node.storage.exists(read)


def test_leftover_containers_are_removed_and_unknown_ones_on_request(tmp_path):
    with running(tmp_path, **with_policy()) as node:
        stray = left_behind(node, "job-stray", 5).runs[0].name
        launch(node, stray, "job-stray")
        launch(node, "bfia-unknown", "job-nobody")
        running_run = replace(left_behind(node, "job-up", 5).runs[0])
        assert running_run.name not in {name for _, name in listed(node)}
        try:
            assert listed(node) == {("container", stray)}
            assert cleaned(node) == {("container", stray)}
            assert [f.name for f in node.engine.list()] == ["bfia-unknown"]
            assert ("container", "bfia-unknown") in listed(node, orphans="1")
            assert ("container", "bfia-unknown") in cleaned(node, orphans=True)
            assert node.engine.list() == []
        finally:
            for name in (stray, "bfia-unknown"):
                node.engine.remove(name)


def test_by_default_mailboxes_go_at_the_end_and_logs_after_thirty_days(tmp_path):
    with running(tmp_path, **with_policy()) as node:
        left_behind(node, "job-young", 29 * DAY)
        old = left_behind(node, "job-old", 31 * DAY)
        assert listed(node) == {("logs", old.runs[0].name)}
        cleaned(node)
        left_behind(node, "job-mail", 5)

        async def push(job: str) -> None:
            await node.broker.push(session_id(job), "topic", "there", b"hello")

        for job in ("job-mail", "job-unknown"):
            asyncio.run(push(job))
        assert listed(node) == {("session", session_id("job-mail"))}
        assert ("session", session_id("job-unknown")) in listed(node, orphans=1)
        assert cleaned(node, orphans=True) >= {("session", session_id("job-mail"))}
        assert node.broker.sessions() == ()
        assert [p.name for p in (tmp_path / "state" / "channel").iterdir() if p.is_dir()] == []


def test_what_cannot_be_removed_is_reported_and_the_rest_is_removed(tmp_path, monkeypatch):
    with running(tmp_path, **with_policy(logs_seconds=1, outputs_seconds=1)) as node:
        local = left_behind(node, "job-stuck", 5)
        monkeypatch.setattr(node.storage, "delete", raising(PermissionError(13, "not permitted")))
        items = ask(node, "operator", "POST", "/api/v1/gc").json()["items"]
        assert {i["kind"]: i["removed"] for i in items} == {"logs": True, "outputs": False}
        assert "not permitted" in json.dumps(items)
        assert not logs_of(node, local.runs[0]).exists()


def test_orphaned_logs_go_after_the_longest_time_or_on_request(tmp_path, monkeypatch):
    with (
        running(tmp_path, **with_policy(logs_seconds=1000)) as node,
        monkeypatch.context() as patch,
    ):
        patch.setattr(node.engine, "list", raising(EngineDown("no daemon")))
        logs = node.settings.state_dir / "runs" / "bfia-unknown"
        logs.mkdir(parents=True)
        assert listed(node) == set()
        assert listed(node, orphans="1") == {("logs", "bfia-unknown")}
        os.utime(logs, (1, 1))
        assert cleaned(node) == {("logs", "bfia-unknown")}
        assert not logs.exists()


def test_a_job_that_a_node_has_still_to_be_stopped_of_is_not_past():
    ending = Ending(Outcome.STOPPED, ago(9))
    job = replace(
        a_job(status=JobStatus.FINISHED),
        ending=ending,
        outcome=Outcome.STOPPED,
        ended_at=ago(9),
    )
    assert _end_of(job) is None
    done = replace(job, nodes={name: replace(node, stop=OK) for name, node in job.nodes.items()})
    assert _end_of(done) == job.ended_at


def test_what_goes_while_it_is_measured_has_no_size(tmp_path):
    assert size_of(tmp_path / "gone") == 0
    assert _unchanged_for(tmp_path / "gone", ago(0)) == 0


def test_a_storage_that_is_away_keeps_nothing_else_from_being_cleaned(tmp_path):
    away = {
        "lake": {
            "url": f"s3://127.0.0.1:{free_ports(1)[0]}/gone",
            "username": "key",
            "password": "secret",
        }
    }
    with running(
        tmp_path, storages=away, **with_policy(outputs_seconds=10, jobs_seconds=10)
    ) as node:
        run = left_behind(node, "job-away", 50).runs[0]
        run = replace(
            run, outputs=run.outputs | {"model_name": Address("job-away-guest-0", "model", "lake")}
        )
        node.store.local_jobs.update("job-away", lambda local: replace(local, runs=(run,)))
        left_behind(node, "job-here", 50)
        assert {key for key in cleaned(node) if key[0] == "job"} == {("job", "job-here")}
        assert node.storage.exists(run.outputs["out_name"])


def test_a_node_cleans_up_by_itself_after_a_cleaning_that_failed(tmp_path, monkeypatch):
    clean = Cleaner.clean

    def fails(self: Cleaner) -> list[Any]:
        monkeypatch.setattr(Cleaner, "clean", clean)
        raise DatabaseAway("not now")

    monkeypatch.setattr(Cleaner, "clean", fails)
    with running(tmp_path, **with_policy(logs_seconds=1) | {"pace": Pace(cleaning=0.1)}) as node:
        folder = logs_of(node, left_behind(node, "job-old", 5).runs[0])
        wait_for(lambda: not folder.exists(), 30)
