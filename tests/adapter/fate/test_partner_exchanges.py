"""The partner protocol, every path in both directions, literally: what is asked and answered stands in one file.

``partner-exchanges.json``: ``asked of us`` is a FATE-Flow's side of two jobs, with our answers; ``asked by us`` is
what our clients send for each use case. Paths, fields and codes are those that a FATE-Flow 2.2.0 was seen to send
and take (``tests/e2e/test_fate_flow.py`` holds it to that); what is ours beside them it leaves aside. With
REGENERATE_GOLDEN set the file is written anew, and what has changed fails all the same.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.fate.client import Caller, ParticipantClient, SchedulerClient
from adapter.fate.endpoints import ENDPOINTS
from gateway.domain.rerun import Order
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Busy
from gateway.ports import TaskReport
from tests.adapter.fate import test_calls as calls
from tests.adapter.fate.flowing import Flow, dag, party, task
from tests.builders import T0, a_job
from tests.contracts.apis import World
from tests.inprocess import ME, PEER

GOLDEN = Path(__file__).parent / "golden" / "partner-exchanges.json"
JOB = "202411220101990000000"
PATHS = {found.path.removeprefix("/v2") for found in ENDPOINTS}
BY_PEER = {"x-source-node-id": PEER, "initiator-party-id": PEER}


class There(calls.Fate):
    """A node that says yes, but has no room for one role where it is told so."""

    full_for = ""

    def __call__(self, node: str, path: str, body: Any, headers: Any, timeout_factor: float) -> tuple[int, Any]:
        said = super().__call__(node, path, body, headers, timeout_factor)
        if not self.full_for or body.get("role") != self.full_for:
            return said
        if path.endswith("/task/collect"):
            return 200, calls.OK | {"data": {"party_status": "waiting"}}
        full = path.endswith("/task/resource/apply")
        return (200, {"code": 2004, "message": "Task resource application failed"}) if full else said


def test_what_is_asked_of_us(world: World, flow: Flow):
    same("asked of us", steady([*taken_part_in(world, flow), *scheduled(world, flow)]), PATHS)


def test_what_is_asked_by_us():
    there = There()
    for client in (_participating(there), _handing_in(there)):
        for work in client:
            work()
    found = [{"path": path, "asks": body} for path, body in there.asked]
    same("asked by us", steady(found), PATHS)


def taken_part_in(world: World, flow: Flow) -> Iterator[dict[str, Any]]:
    """A job that FATE schedules, from its creation to its end."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"path": path, "asks": body, "answers": flow.post(path, body)}

    yield ask("/partner/job/create", {**dag(), **party(JOB)})
    yield ask("/partner/job/status/update", party(JOB, status="waiting"))
    yield ask("/partner/job/resource/apply", party(JOB))
    yield ask("/partner/job/resource/return", party(JOB))
    yield ask("/partner/job/resource/apply", party(JOB))
    yield ask("/partner/job/start", party(JOB))
    yield ask("/partner/job/status/update", party(JOB, status="running"))
    yield ask("/partner/task/resource/apply", task(job=JOB))
    yield ask("/partner/task/status/update", task(job=JOB, status="running"))
    yield ask("/partner/task/collect", task(job=JOB))
    yield ask("/partner/task/start", task(job=JOB))
    world.end(JOB, "a", "host.0")
    yield ask("/partner/task/collect", task(job=JOB))  # FATE takes no end of what it does not know to run
    yield ask("/partner/task/collect", task(job=JOB))
    yield ask("/partner/task/rerun", task(job=JOB, new_version=1))
    yield ask("/partner/task/stop", task(job=JOB, status="success"))
    yield ask("/partner/task/resource/return", task(job=JOB))
    yield ask("/partner/job/update", party(JOB, progress=100.0))
    yield ask("/partner/job/status/update", party(JOB, status="success"))
    yield ask("/partner/job/stop", party(JOB))


def scheduled(world: World, flow: Flow) -> Iterator[dict[str, Any]]:
    """A job handed in for this node to schedule, stopped and run again."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"path": path, "asks": body, "answers": flow.post(path, body, **BY_PEER)}

    described = dag(ME, initiator_party_id=PEER)
    described["dag"]["parties"][0]["party_id"] = [PEER]
    made = ask("/scheduler/job/create", described)
    job = made["answers"]["job_id"]
    yield made
    world.run(job, "a", "host.0")
    told = {"job_id": job, "role": "guest", "party_id": PEER, "task_id": f"{job}_a", "task_version": 0}
    yield ask("/scheduler/task/report", {**told, "status": "running"})
    yield ask("/scheduler/job/stop", {"job_id": job, "stop_status": "canceled"})
    world.wait_status(job, JobStatus.FINISHED)
    again = ask("/scheduler/job/rerun", {"job_id": job})
    yield again
    world.me.coordinator.stop_job(again["answers"]["job_id"], "", ME)


def _participating(there: There) -> Iterator[Callable[[], object]]:
    """What a node is asked that takes part in a job of ours."""
    spec, by = calls.SPEC, calls.ME
    job = a_job(spec=spec, status=JobStatus.RUNNING, a=TaskStatus.RUNNING)
    caller = Caller(calls.FATE, there, calls.signed)
    jobs: Any = {spec.job_id: job}.get
    plain: Any = calls.Plain()
    beside: Any = calls.Standard()
    client = ParticipantClient(caller, plain, beside, jobs)
    there.says = {"/partner/task/collect": calls.OK | {"data": {"party_status": "running"}}}
    failed = Ending(Outcome.FAILED, T0, Failure("EXIT_1", "exit code 1", by, "guest", "a", 1), by)
    yield lambda: client.create_job(spec, by)
    yield lambda: client.hold(spec.job_id, by)
    yield lambda: client.give_back(spec.job_id, by)
    yield lambda: client.start_job(spec.job_id, by)
    there.full_for = "arbiter"
    yield lambda: _refused(lambda: client.start_task(spec.job_id, "20241_a_0", "a", by))
    there.full_for = ""
    yield lambda: client.start_task(spec.job_id, "20241_a_1", "a", by)
    yield lambda: client.poll_task("20241_a_1", "host", by)
    yield lambda: client.stop_task(spec.job_id, "20241_a_1", "a", by)
    yield lambda: client.stop_job(spec.job_id, "", failed, by)
    yield lambda: client.stop_job(spec.job_id, "", Ending(Outcome.SUCCEEDED, T0), by)


def _handing_in(there: There) -> Iterator[Callable[[], object]]:
    """What a node is asked that schedules a job of ours."""
    plain: Any = calls.Plain()
    beside: Any = calls.Standard()
    client = SchedulerClient(calls.ME, Caller(calls.FATE, there, calls.signed), plain, beside, lambda _: "fate")
    report = TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241")
    yield lambda: client.submit_job(calls.SPEC, calls.ME)
    yield lambda: client.report_task(report, calls.ME)
    yield lambda: client.stop_job("20241", "", calls.ME)
    yield lambda: client.rerun_job(Order("20241", "20242", "a", {}), calls.ME)


def _refused(work: Any) -> None:
    with pytest.raises(Busy):
        work()


def same(key: str, found: list[Any], paths: set[str]) -> None:
    """Fail unless the exchanges are those of the file, and every path is among them."""
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if os.environ.get("REGENERATE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**known, key: found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == known.get(key)
    assert {one["path"] for one in found} == paths


def steady(found: list[Any]) -> list[Any]:
    """Return exchanges without ids and times that differ from run to run."""
    ids: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        return ids.setdefault(match[0], f"<job {len(ids) + 1}>")

    text = re.sub(r'"(\w+_time|elapsed)": \d+', r'"\1": 0', json.dumps(found))
    kept: list[Any] = json.loads(re.sub(r"\b20\d{16,23}|job-[0-9a-f]{16,32}", named, text))
    return kept
