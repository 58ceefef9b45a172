"""Timeouts and retries on real nodes: every attempt is seen, nothing runs on, a restart changes nothing."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, alive, wait_for
from tests.e2e.test_stop import FOR_EVER, job_of, running, started, status, two_patient_nodes


@pytest.fixture
def two(tmp_path: Path, register: Path) -> Iterator[Federation]:
    with two_patient_nodes(tmp_path) as federation:
        yield federation
        for _, pid in started(register):
            assert not alive(pid)


def limited(body: Any, **common: Any) -> Any:
    body["config"]["job_params"]["common"] |= common
    return body


def log_of(node: Node, run: dict[str, Any]) -> str:
    return node.ask("GET", run["log"]).text


def seconds_between(first: dict[str, Any], last: dict[str, Any]) -> float:
    return (datetime.fromisoformat(last["at"]) - datetime.fromisoformat(first["at"])).total_seconds()


def event(node: Node, job_id: str, name: str) -> dict[str, Any]:
    return next(e for e in node.timeline(job_id) if e["event"] == name and e["side"] == "scheduler")


def test_a_task_that_fails_once_succeeds_in_its_second_attempt(two: Federation, register: Path):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    body = job_of(register, {"a": 0.2, "b": 0}, {"b": "a"})
    body["config"]["task_params"]["host"] = {"0": {"a": {"fails": 1}}}
    job_id = guest.submit(limited(body, auto_retries=1, auto_retry_delay=0.5))
    guest.wait_job(job_id, 60)
    shown = status(host, job_id)
    a = next(t for t in shown["tasks"] if t["task_name"] == "a")
    assert (a["status"], a["attempt"]) == ("SUCCESS", 1)
    (past,) = a["attempts"]
    assert (past["status"], past["attempt"], past["failed_by"]["reason"]) == ("FAILED", 0, "EXIT_3")
    assert past["failed_by"]["node"] == jobs.HOST and past["task_id"] not in shown["status"]
    assert shown["status"] == {t["task_id"]: "SUCCESS" for t in shown["tasks"]}
    assert guest.job(job_id)["tasks"][0]["attempts"][0]["failure"] == past["failed_by"]

    runs = [run for run in host.job(job_id)["runs"] if run["task_name"] == "a"]
    assert [(r["attempt"], r["status"], r["task_id"]) for r in runs] == [
        (0, "FAILED", past["task_id"]),
        (1, "SUCCESS", a["task_id"]),
    ]
    first, second = (log_of(host, run) for run in runs)
    assert "container number 0 of a" in first and "it broke" in first
    assert "container number 1 of a" in second and "it broke" not in second
    assert "it broke" in runs[0]["last_lines"]
    lines = host.get("/v1/platform/schedule/task/get_log_line", task_id=past["task_id"], log_level="info")
    assert lines["code"] == 0, lines
    b = next(run for run in host.job(job_id)["runs"] if run["task_name"] == "b")
    assert {address["name"] for address in b["inputs"].values()} == {f"{a['task_id']}-data0"}
    waited = seconds_between(
        event(guest, job_id, "attempt failed, another follows"), event(guest, job_id, "next attempt")
    )
    assert waited >= 0.5


def test_a_task_that_takes_too_long_fails_everywhere_even_over_a_restart(two: Federation, register: Path):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id = guest.submit(limited(job_of(register, {"a": FOR_EVER}), task_timeout=8))
    wait_for(lambda: running(register) == ["a", "a"], 60)
    guest.kill()
    guest.start()
    guest.wait_job(job_id, 60, outcome="FAILED")
    ended = seconds_between(event(guest, job_id, "job RUNNING"), event(guest, job_id, "task FAILED"))
    assert ended >= 8
    wait_for(lambda: running(register) == [], 30, about="no container is left")
    wait_for(lambda: host.job(job_id)["status"] == "FINISHED", 30)
    one, other = (status(node, job_id) for node in (guest, host))
    assert one["failed_by"] == other["failed_by"] and one["failed_by"]["reason"] == "TIMEOUT"
    assert one["failed_by"]["task"] == "a" and [t["status"] for t in one["tasks"]] == ["FAILED"]


def test_a_job_that_takes_too_long_ends_everywhere(two: Federation, register: Path):
    guest = two[jobs.GUEST]
    job_id = guest.submit(limited(job_of(register, {"a": FOR_EVER, "b": 0}, {"b": "a"}), timeout=4))
    job = guest.wait_job(job_id, 60, outcome="FAILED")
    assert job["failure"]["reason"] == "TIMEOUT" and "a, b" in job["failure"]["message"]
    wait_for(lambda: running(register) == [], 30, about="no container is left")
