"""Every path of the partner protocol in both directions; one file has the requests and responses.

In ``partner-exchanges.json``, ``asked of us`` has the requests of a FATE-Flow about two jobs with
our responses, and ``asked by us`` has the requests of our clients for each use case. A FATE-Flow
2.2.0 was seen to send and accept these paths, fields and codes (``tests/e2e/test_fate_flow.py``);
it ignores our further fields. With REGENERATE_GOLDEN set, the file is written again, and the tests
of changed exchanges still fail.
"""

import json
import os
import re
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
from tests.adapter.fate.test_client import ME as SENDER
from tests.adapter.fate.test_client import (
    OK,
    SPEC,
    Fate,
    participant_client,
    scheduler_client,
)
from tests.builders import T0
from tests.contracts.apis import World
from tests.inprocess import ME, PEER

GOLDEN = Path(__file__).parent / "golden" / "partner-exchanges.json"
JOB = "202411220101990000000"
# Requests about a job that FATE schedules: a path below /partner and fields of the body,
# first up to the start of its task.
REQUESTS_UP_TO_START = """
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
# The rest, after the container has ended. FATE accepts no end of a task that it does not know to
# run, so the response to the first `task/collect` is `running`.
REQUESTS_AFTER_END = """
task/collect
task/collect
task/rerun new_version=1
task/stop status=success
task/resource/return
job/update progress=100.0
job/status/update status=success
job/stop
"""
HEADERS_OF_PEER = {"x-source-node-id": PEER, "initiator-party-id": PEER}


def test_our_responses_to_fate_are_as_recorded(world, flow):
    exchanges = [
        *exchanges_of_a_job_that_fate_schedules(world, flow),
        *exchanges_of_a_job_that_we_schedule(world, flow),
    ]

    check_golden("asked of us", exchanges)
    ending = world.local(JOB).ending
    assert ending is not None
    assert ending.outcome is Outcome.SUCCEEDED


def test_our_requests_to_fate_are_as_recorded():
    fate = Fate()
    send_requests_of_a_scheduler(fate)
    send_requests_of_a_participant(fate)

    check_golden("asked by us", [{"path": path, "asks": body} for path, body in fate.requests])


def send_requests_of_a_scheduler(fate: Fate) -> None:
    """Call each use case of our client for a participating FATE node."""
    participant = participant_client(fate)
    job_id = SPEC.job_id
    participant.create_job(SPEC, SENDER)
    participant.hold(job_id, SENDER)
    participant.give_back(job_id, SENDER)
    participant.start_job(job_id, SENDER)

    task_full = {"code": 2004, "message": "Task resource application failed"}
    by_role = {"host": OK, "arbiter": task_full}
    fate.responses = {
        "/partner/task/collect": OK | {"data": {"party_status": "waiting"}},
        "/partner/task/resource/apply": lambda body: by_role[body["role"]],
    }
    with pytest.raises(Busy):
        participant.start_task(job_id, "20241_a_0", "a", SENDER)

    fate.responses = {"/partner/task/collect": OK | {"data": {"party_status": "running"}}}
    participant.start_task(job_id, "20241_a_1", "a", SENDER)
    participant.poll_task("20241_a_1", "host", SENDER)
    participant.stop_task(job_id, "20241_a_1", "a", SENDER)

    failure = Failure("EXIT_1", "exit code 1", SENDER, "guest", "a", 1)
    participant.stop_job(
        job_id,
        "",
        Ending(Outcome.FAILED, T0, failure, SENDER),
        SENDER,
    )
    participant.stop_job(
        job_id,
        "",
        Ending(Outcome.SUCCEEDED, T0),
        SENDER,
    )


def send_requests_of_a_participant(fate: Fate) -> None:
    """Call each use case of our client for a scheduling FATE node."""
    scheduler = scheduler_client(fate)
    report = TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241")
    scheduler.submit_job(SPEC, SENDER)
    scheduler.report_task(report, SENDER)
    scheduler.stop_job("20241", "", SENDER)
    scheduler.rerun_job(
        Order("20241", "20242", "a", {}),
        SENDER,
    )


def exchanges_of_a_job_that_fate_schedules(
    world: World,
    flow: Flow,
) -> list[dict[str, Any]]:
    """Run a job from its creation to its success."""
    exchanges = [exchange(flow, "/partner/job/create", {**dag(), **party(JOB)})]
    for path, body in parse_requests(REQUESTS_UP_TO_START):
        exchanges.append(exchange(flow, path, body))
    world.end(JOB, "a", "host.0")
    for path, body in parse_requests(REQUESTS_AFTER_END):
        exchanges.append(exchange(flow, path, body))
    return exchanges


def exchanges_of_a_job_that_we_schedule(
    world: World,
    flow: Flow,
) -> list[dict[str, Any]]:
    """Submit a job to this node as `PEER`, stop it and run it again."""
    post = partial(exchange, flow, **HEADERS_OF_PEER)
    create = post("/scheduler/job/create", dag(ME))
    job = create["answers"]["job_id"]
    world.run(job, "a", "host.0")
    report = {
        "job_id": job,
        "role": "guest",
        "party_id": PEER,
        "task_id": f"{job}_a",
        "task_version": 0,
        "status": "running",
    }
    exchanges = [
        create,
        post("/scheduler/task/report", report),
        post("/scheduler/job/stop", {"job_id": job, "stop_status": "canceled"}),
    ]
    world.wait_status(job, JobStatus.FINISHED)
    rerun = post("/scheduler/job/rerun", {"job_id": job})
    world.me.coordinator.stop_job(
        rerun["answers"]["job_id"],
        "",
        ME,
    )
    return [*exchanges, rerun]


def parse_requests(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return path and body of each line; bodies also name job, party and task."""
    requests = []
    for line in text.strip().splitlines():
        path, *fields = line.split()
        body = task(job=JOB) if path.startswith("task/") else party(JOB)
        for field in fields:
            name, _, value = field.partition("=")
            body[name] = yaml.safe_load(value)
        requests.append((f"/partner/{path}", body))
    return requests


def exchange(
    flow: Flow,
    path: str,
    body: dict[str, Any],
    **headers: str,
) -> dict[str, Any]:
    """Send a request; return it with its response as in the file."""
    return {
        "path": path,
        "asks": body,
        "answers": flow.post(path, body, **headers),
    }


def check_golden(
    key: str,
    exchanges: list[Any],
) -> None:
    """Fail unless the exchanges equal the file's and cover every path."""
    comparable = without_ids_and_times(exchanges)
    recorded = {}
    if GOLDEN.exists():
        recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if os.environ.get("REGENERATE_GOLDEN"):
        write_golden({**recorded, key: comparable})
    assert comparable == recorded.get(key)
    assert {item["path"] for item in comparable} == set(PATHS)


def write_golden(exchanges_by_key: dict[str, list[Any]]) -> None:
    """Write the file with one exchange per line."""
    lists = []
    for key, exchanges in exchanges_by_key.items():
        lines = ",\n".join(json.dumps(item) for item in exchanges)
        lists.append(f'"{key}": [\n{lines}\n]')
    text = ",\n".join(lists)
    GOLDEN.write_text(f"{{{text}}}\n", encoding="utf-8")


def without_ids_and_times(exchanges: list[Any]) -> list[Any]:
    """Return exchanges with placeholders for ids and times, which differ from run to run."""
    placeholders: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        job_id = match[0]
        return placeholders.setdefault(job_id, f"<job {len(placeholders) + 1}>")

    text = re.sub(
        r'"(\w+_time|elapsed)": \d+',
        r'"\1": 0',
        json.dumps(exchanges),
    )
    text = re.sub(r"\b20\d{16,23}|job-[0-9a-f]{16,32}", placeholder, text)
    return list(json.loads(text))
