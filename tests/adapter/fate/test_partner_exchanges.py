"""The partner protocol, every path in both directions: requests and answers stand in one file.

``partner-exchanges.json``: ``asked of us`` is a FATE-Flow's side of two jobs, with our answers; ``asked by us`` is
what our clients send for each use case. Paths, fields and codes are those that a FATE-Flow 2.2.0 was seen to send
and take (``tests/e2e/test_fate_flow.py``); what is ours beside them it ignores. With REGENERATE_GOLDEN set the
file is written anew, and what has changed fails all the same.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.domain.rerun import Order
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Busy
from gateway.ports import TaskReport
from tests.adapter.fate.flowing import PATHS, Flow, dag, party, task
from tests.adapter.fate.test_client import ME as BY
from tests.adapter.fate.test_client import OK, SPEC, Fate, participant, scheduling
from tests.builders import T0
from tests.contracts.apis import World
from tests.inprocess import ME, PEER

GOLDEN = Path(__file__).parent / "golden" / "partner-exchanges.json"
JOB = "202411220101990000000"
BEFORE = """
job/status/update status=waiting
job/resource/apply
job/resource/return
job/resource/apply
job/start
job/status/update status=running
task/resource/apply
task/status/update status=running
task/collect
task/start
"""
AFTER = """
task/collect
task/collect
task/rerun new_version=1
task/stop status=success
task/resource/return
job/update progress=100.0
job/status/update status=success
job/stop
"""
"""FATE takes no end of what it does not know to run, so the first is answered with ``running``"""
BY_PEER = {"x-source-node-id": PEER, "initiator-party-id": PEER}


def test_what_is_asked_of_us(world, flow):
    same("asked of us", [*taken_part_in(world, flow), *scheduled(world, flow)])
    ending = world.local(JOB).ending
    assert ending is not None
    assert ending.outcome is Outcome.SUCCEEDED


def test_what_is_asked_by_us():
    there = Fate()
    client, scheduler = participant(there), scheduling(there)
    failed = Ending(Outcome.FAILED, T0, Failure("EXIT_1", "exit code 1", BY, "guest", "a", 1), BY)
    running = OK | {"data": {"party_status": "running"}}
    client.create_job(SPEC, BY)
    client.hold(SPEC.job_id, BY)
    client.give_back(SPEC.job_id, BY)
    client.start_job(SPEC.job_id, BY)
    full = {"code": 2004, "message": "Task resource application failed"}
    there.answers = {
        "/partner/task/collect": lambda body: OK | {"data": {"party_status": "waiting"}},
        "/partner/task/resource/apply": lambda body: full if body["role"] == "arbiter" else OK,
    }
    with pytest.raises(Busy):
        client.start_task(SPEC.job_id, "20241_a_0", "a", BY)
    there.answers = {"/partner/task/collect": running}
    client.start_task(SPEC.job_id, "20241_a_1", "a", BY)
    client.poll_task("20241_a_1", "host", BY)
    client.stop_task(SPEC.job_id, "20241_a_1", "a", BY)
    client.stop_job(SPEC.job_id, "", failed, BY)
    client.stop_job(SPEC.job_id, "", Ending(Outcome.SUCCEEDED, T0), BY)
    scheduler.submit_job(SPEC, BY)
    scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241"), BY)
    scheduler.stop_job("20241", "", BY)
    scheduler.rerun_job(Order("20241", "20242", "a", {}), BY)
    same("asked by us", [{"path": path, "asks": body} for path, body in there.asked])


def taken_part_in(world: World, flow: Flow) -> Iterator[dict[str, Any]]:
    """A job that FATE schedules, from its creation to its end."""
    create = ("/partner/job/create", {**dag(), **party(JOB)})
    yield from (told(flow, *step) for step in (create, *steps(BEFORE)))
    world.end(JOB, "a", "host.0")
    yield from (told(flow, *step) for step in steps(AFTER))


def steps(of: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield paths and bodies: each line has a path and what it says beside job, party and task."""
    for line in of.strip().splitlines():
        path, *said = line.split()
        body = task(job=JOB) if path.startswith("task/") else party(JOB)
        yield (
            f"/partner/{path}",
            body | {k: yaml.safe_load(v) for k, v in (one.split("=") for one in said)},
        )


def told(
    flow: Flow,
    path: str,
    body: dict[str, Any],
    **headers: str,
) -> dict[str, Any]:
    return {
        "path": path,
        "asks": body,
        "answers": flow.post(path, body, **headers),
    }


def scheduled(world: World, flow: Flow) -> Iterator[dict[str, Any]]:
    """A job submitted for this node to schedule, stopped and run again."""

    ask = partial(told, flow, **BY_PEER)
    described = dag(ME)
    made = ask("/scheduler/job/create", described)
    job = made["answers"]["job_id"]
    yield made
    world.run(job, "a", "host.0")
    at = {
        "job_id": job,
        "role": "guest",
        "party_id": PEER,
        "task_id": f"{job}_a",
        "task_version": 0,
    }
    yield ask("/scheduler/task/report", {**at, "status": "running"})
    yield ask("/scheduler/job/stop", {"job_id": job, "stop_status": "canceled"})
    world.wait_status(job, JobStatus.FINISHED)
    again = ask("/scheduler/job/rerun", {"job_id": job})
    yield again
    world.me.coordinator.stop_job(again["answers"]["job_id"], "", ME)


def same(key: str, exchanges: list[Any]) -> None:
    """Fail unless the exchanges are those of the file, and every path is among them."""
    found = steady(exchanges)
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if os.environ.get("REGENERATE_GOLDEN"):
        lines = {k: ",\n".join(map(json.dumps, v)) for k, v in {**known, key: found}.items()}
        text = ",\n".join(f'"{k}": [\n{v}\n]' for k, v in lines.items())
        GOLDEN.write_text(f"{{{text}}}\n", encoding="utf-8")
    assert found == known.get(key)
    assert {one["path"] for one in found} == set(PATHS)


def steady(found: list[Any]) -> list[Any]:
    """Return exchanges without ids and times that differ from run to run."""
    ids: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        return ids.setdefault(match[0], f"<job {len(ids) + 1}>")

    text = re.sub(r'"(\w+_time|elapsed)": \d+', r'"\1": 0', json.dumps(found))
    kept: list[Any] = json.loads(re.sub(r"\b20\d{16,23}|job-[0-9a-f]{16,32}", named, text))
    return kept
