"""Jobs that are stopped, retried, timed out, killed or many: no container is left, all nodes say the same."""

import socket
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.e2e.jobs import (
    ARBITER,
    FOR_EVER,
    GUEST,
    HOST,
    SCHEDULE,
    STOP,
    events,
    job_of,
    limited,
    patient_nodes,
    running,
    started,
    status,
)
from tests.e2e.nodes import Federation, Node, wait_for
from tools.bench.load import asked_meanwhile, at_once

ENDS = ("FAILED", "READY", "FAILED")
DONE = {"code": 0, "msg": "success", "data": {}}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with patient_nodes(tmp_path_factory.mktemp("nodes")) as federation:
        yield federation


@pytest.fixture
def guest(two: Federation) -> Node:
    return two[GUEST]


@pytest.fixture
def host(two: Federation) -> Node:
    return two[HOST]


def nothing_runs(register: Path) -> None:
    wait_for(lambda: running(register) == [], 30, about="no container is left")


def stopped_everywhere(two: Federation, job_id: str) -> dict[str, Any]:
    """Wait until every run of the job is over and every node knows its end; return how it is shown."""
    two[GUEST].wait_job(job_id, 60, outcome="STOPPED")
    for node in two.nodes.values():
        wait_for(lambda node=node: node.job(job_id)["status"] in ("FINISHED", "REJECTED"), 30)
        wait_for(lambda node=node: all(run["ended_at"] for run in node.job(job_id)["runs"]), 30, about="runs end")
    one, other = (status(node, job_id) for node in two.nodes.values())
    assert one == other
    assert one["outcome"] == "STOPPED" and one["failed_by"]["reason"] == "STOPPED"
    for task in one["tasks"]:
        assert task["status"] in ("READY", "SUCCESS", "FAILED")
        if task["status"] == "FAILED":
            assert task["failed_by"]["reason"] == "STOPPED"
            states = {state for roles in task["parties"].values() for state in roles.values()}
            assert states <= {"FAILED", "SUCCESS"}
    return one


def test_a_job_is_stopped_from_either_platform_even_where_its_containers_will_not_end(
    two: Federation, guest: Node, register: Path
):
    body = job_of(register, {"a": FOR_EVER, "b": 0, "c": FOR_EVER}, {"b": "a"}, stubborn=True)
    ids = {where: guest.submit(body) for where in (GUEST, HOST)}
    wait_for(lambda: running(register) == ["a"] * 4 + ["c"] * 4, 60)
    for where, job_id in ids.items():
        assert [two[where].post(STOP, {"job_id": job_id}) for _ in range(2)] == [DONE, DONE]
    for where, job_id in ids.items():
        shown = stopped_everywhere(two, job_id)
        assert [(t["task_name"], t["status"]) for t in shown["tasks"]] == list(zip("abc", ENDS, strict=True))
        assert shown["failed_by"]["message"] == f"stopped by {where}"
        for node in two.nodes.values():
            failures = [run["failure"] for run in node.job(job_id)["runs"]]
            assert {(f["reason"], f["exit_code"]) for f in failures} == {("STOPPED", 137)}
            assert node.post(STOP, {"job_id": job_id}) == DONE
        assert status(guest, job_id) == shown
    nothing_runs(register)


def test_nodes_that_die_keep_stops_timeouts_and_the_job_that_was_just_submitted(
    two: Federation, guest: Node, host: Node, register: Path
):
    """The scheduling node is killed right after its responses, and its partner is down meanwhile."""
    stopped = guest.submit(job_of(register, {"a": FOR_EVER}))
    late_task = guest.submit(limited(job_of(register, {"b": FOR_EVER}), task_timeout=8))
    late_job = guest.submit(limited(job_of(register, {"c": FOR_EVER, "d": 0}, {"d": "c"}), timeout=8))
    wait_for(lambda: len(started(register)) == 6, 60, about="each runs at both nodes")
    submitted = guest.submit(job_of(register, {"e": 0.2, "f": 0}, {"f": "e"}))
    guest.kill()
    guest.start()
    host.kill()
    assert guest.post(STOP, {"job_id": stopped}) == DONE
    guest.kill()
    guest.start()
    guest.wait_job(stopped, 60, outcome="STOPPED")
    wait_for(lambda: running(register).count("a") == 1, about="the container of the node that answers is gone")
    host.start()
    stopped_everywhere(two, stopped)
    job = guest.wait_job(late_job, 60, outcome="FAILED")
    assert job["failure"]["reason"] == "TIMEOUT" and "c, d" in job["failure"]["message"]
    guest.wait_job(late_task, 60, outcome="FAILED")
    assert seconds(guest, late_task, "job RUNNING", "task FAILED") >= 8
    wait_for(lambda: host.job(late_task)["status"] == "FINISHED", 30)
    one, other = (status(node, late_task) for node in (guest, host))
    assert one["failed_by"] == other["failed_by"] and one["failed_by"]["reason"] == "TIMEOUT"
    assert one["failed_by"]["task"] == "b" and [t["status"] for t in one["tasks"]] == ["FAILED"]
    guest.wait_job(submitted, 120)
    nothing_runs(register)


def test_a_job_stopped_at_the_partners_platform_while_it_waits_starts_nothing(
    guest: Node, host: Node, register: Path
):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes requests and never answers
        route = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}", "deadline": 2}
        for node in (guest, host):
            assert node.ask("PUT", f"/api/v1/routes/{ARBITER}", json={"route": route}).is_success
        body = job_of(register, {"a": 0})
        body["config"]["role"]["arbiter"] = [ARBITER]
        known = set(host.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"])
        answers: list[dict[str, Any]] = []
        waiting = Thread(target=lambda: answers.append(guest.post(f"{SCHEDULE}/job/create_all", body)))
        waiting.start()

        def new() -> set[str]:
            return set(host.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"]) - known

        (job_id,) = wait_for(new, 30, 0.02)
        assert status(guest, job_id)["job_status"] == "PENDING"
        assert host.post(STOP, {"job_id": job_id}) == DONE
        waiting.join(60)
        assert answers[0]["code"] != 0 and answers[0]["data"]["reason"] == "STOPPED"
        assert guest.wait_job(job_id, 30, outcome="STOPPED")["status"] == "REJECTED"
        wait_for(lambda: host.job(job_id)["status"] == "REJECTED", 30)
        assert [node.job(job_id)["runs"] for node in (guest, host)] == [[], []]
        assert events(guest, job_id, "job READY") == []
        for node in (guest, host):
            assert node.ask("DELETE", f"/api/v1/routes/{ARBITER}").is_success
    assert started(register) == []


# ---------------------------------------------------------------- attempts


def test_a_task_that_fails_once_succeeds_in_its_second_attempt(guest: Node, host: Node, register: Path):
    body = job_of(register, {"a": 0.2, "b": 0}, {"b": "a"})
    body["config"]["task_params"]["host"] = {"0": {"a": {"fails": 1}}}
    job_id = guest.submit(limited(body, auto_retries=1, auto_retry_delay=0.5))
    guest.wait_job(job_id, 60)
    shown = status(host, job_id)
    a = next(t for t in shown["tasks"] if t["task_name"] == "a")
    assert (a["status"], a["attempt"]) == ("SUCCESS", 1)
    (past,) = a["attempts"]
    assert (past["status"], past["attempt"], past["failed_by"]["reason"]) == ("FAILED", 0, "EXIT_3")
    assert past["failed_by"]["node"] == HOST and past["task_id"] not in shown["status"]
    assert shown["status"] == {t["task_id"]: "SUCCESS" for t in shown["tasks"]}
    assert guest.job(job_id)["tasks"][0]["attempts"][0]["failure"] == past["failed_by"]

    runs = [run for run in host.job(job_id)["runs"] if run["task_name"] == "a"]
    assert [(r["attempt"], r["status"], r["task_id"]) for r in runs] == [
        (0, "FAILED", past["task_id"]),
        (1, "SUCCESS", a["task_id"]),
    ]
    first, second = (host.ask("GET", run["log"]).text for run in runs)
    assert "container number 0 of a" in first and "it broke" in first and "it broke" in runs[0]["last_lines"]
    assert "container number 1 of a" in second and "it broke" not in second
    lines = host.get(f"{SCHEDULE}/task/get_log_line", task_id=past["task_id"], log_level="info")
    assert lines["code"] == 0, lines
    (b,) = (run for run in host.job(job_id)["runs"] if run["task_name"] == "b")
    assert {address["name"] for address in b["inputs"].values()} == {f"{a['task_id']}-data0"}
    assert seconds(guest, job_id, "attempt failed, another follows", "next attempt") >= 0.5


def seconds(node: Node, job_id: str, first: str, last: str) -> float:
    """Return how long passed at the scheduler from an event to another."""
    at = [next(e["at"] for e in events(node, job_id, e) if e["side"] == "scheduler") for e in (first, last)]
    begun, ended = map(datetime.fromisoformat, at)
    return (ended - begun).total_seconds()


# ---------------------------------------------------------------- many at once


@pytest.mark.slow
def test_jobs_submitted_at_once_by_16_clients_all_end_and_none_runs_twice(guest: Node, host: Node, register: Path):
    first = guest.submit(job_of(register, {"first": 0.0}))
    ids, times = asked_meanwhile(guest, first, lambda: at_once(guest, job_of(register, {"a": 0.0}), 24, 16))
    assert len(set(ids)) == 24 and times
    for job_id in ids:
        guest.wait_job(job_id, 300)
        assert len(events(host, job_id, "run RUNNING")) == 1
    assert Counter(path.name.split(".")[0] for path in register.iterdir()) == {"first": 2, "a": 48}
