"""Jobs under way that are stopped, retried, changed, cut off, killed or silent.

Whatever happens, no container is left and all nodes say the same.
"""

import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from adapter.bfia.examples import A_PROVIDER
from tests import forks
from tests.e2e import jobs
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
    running,
    started,
    status,
)
from tests.e2e.nodes import Federation, Node, alive, process_engine, wait_for
from tools.chaos.proxy import Proxy

ENDS = ("FAILED", "READY", "FAILED")
DONE = {
    "code": 0,
    "msg": "success",
    "data": {},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with jobs.patient_nodes(
        tmp_path_factory.mktemp("nodes"), pace={"lost_call": 4.0}
    ) as federation:
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
        wait_for(
            lambda node=node: all(run["ended_at"] for run in node.job(job_id)["runs"]),
            30,
            about="runs end",
        )
    one, other = (status(node, job_id) for node in two.nodes.values())
    assert one == other
    assert one["outcome"] == "STOPPED"
    assert one["failed_by"]["reason"] == "STOPPED"
    for task in one["tasks"]:
        assert task["status"] in ("READY", "SUCCESS", "FAILED")
        if task["status"] == "FAILED":
            assert task["failed_by"]["reason"] == "STOPPED"
            states = {state for roles in task["parties"].values() for state in roles.values()}
            assert states <= {"FAILED", "SUCCESS"}
    return one


def test_either_platform_stops_a_job_whose_containers_do_not_end(two, guest, register):
    body = job_of(
        register,
        {
            "a": FOR_EVER,
            "b": 0,
            "c": FOR_EVER,
        },
        {"b": "a"},
        stubborn=True,
    )
    ids = {where: guest.submit(body) for where in (GUEST, HOST)}
    wait_for(lambda: running(register) == ["a"] * 4 + ["c"] * 4, 60)
    for where, job_id in ids.items():
        assert [two[where].post(STOP, {"job_id": job_id}) for _ in range(2)] == [DONE, DONE]
    for where, job_id in ids.items():
        shown = stopped_everywhere(two, job_id)
        assert [(t["task_name"], t["status"]) for t in shown["tasks"]] == list(
            zip("abc", ENDS, strict=True)
        )
        assert shown["failed_by"]["message"] == f"stopped by {where}"
        for node in two.nodes.values():
            failures = [run["failure"] for run in node.job(job_id)["runs"]]
            assert {(f["reason"], f["exit_code"]) for f in failures} == {("STOPPED", 137)}
            assert node.post(STOP, {"job_id": job_id}) == DONE
        assert status(guest, job_id) == shown
    nothing_runs(register)


def test_dying_nodes_keep_stops_timeouts_and_the_newest_job(two, guest, host, register):
    """The scheduling node is killed right after its responses, and its partner is down meanwhile."""
    stopped = guest.submit(job_of(register, {"a": FOR_EVER}))
    late_task = guest.submit(limited(job_of(register, {"b": FOR_EVER}), task_timeout=8))
    late_job = guest.submit(
        limited(job_of(register, {"c": FOR_EVER, "d": 0}, {"d": "c"}), timeout=8)
    )
    wait_for(lambda: len(started(register)) == 6, 60, about="each runs at both nodes")
    submitted = guest.submit(job_of(register, {"e": 0.2, "f": 0}, {"f": "e"}))
    guest.kill()
    guest.start()
    host.kill()
    assert guest.post(STOP, {"job_id": stopped}) == DONE
    guest.kill()
    guest.start()
    guest.wait_job(stopped, 60, outcome="STOPPED")
    wait_for(
        lambda: running(register).count("a") == 1,
        about="the container of the node that answers is gone",
    )
    host.start()
    stopped_everywhere(two, stopped)
    job = guest.wait_job(late_job, 60, outcome="FAILED")
    assert job["failure"]["reason"] == "TIMEOUT"
    assert "c, d" in job["failure"]["message"]
    guest.wait_job(late_task, 60, outcome="FAILED")
    assert seconds(guest, late_task, "job RUNNING", "task FAILED") >= 8
    wait_for(lambda: host.job(late_task)["status"] == "FINISHED", 30)
    one, other = (status(node, late_task) for node in (guest, host))
    assert one["failed_by"] == other["failed_by"]
    assert one["failed_by"]["reason"] == "TIMEOUT"
    assert one["failed_by"]["task"] == "b"
    assert [t["status"] for t in one["tasks"]] == ["FAILED"]
    guest.wait_job(submitted, 120)
    nothing_runs(register)


def test_a_job_stopped_by_the_partner_while_waiting_starts_nothing(guest, host, register):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes requests and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        route = {
            "url": address,
            "deadline": 2,
            "signing": "off",
        }
        for node in (guest, host):
            assert node.ask("PUT", f"/api/v1/routes/{ARBITER}", json={"route": route}).is_success
        body = job_of(register, {"a": 0})
        body["config"]["role"]["arbiter"] = [ARBITER]
        known = set(host.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"])
        answers: list[dict[str, Any]] = []
        waiting = Thread(
            target=lambda: answers.append(guest.post(f"{SCHEDULE}/job/create_all", body))
        )
        waiting.start()

        def new() -> set[str]:
            return set(host.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"]) - known

        (job_id,) = wait_for(new, 30, 0.02)
        assert status(guest, job_id)["job_status"] == "PENDING"
        assert host.post(STOP, {"job_id": job_id}) == DONE
        waiting.join(60)
        assert answers[0]["code"] != 0
        assert answers[0]["data"]["reason"] == "STOPPED"
        assert guest.wait_job(job_id, 30, outcome="STOPPED")["status"] == "REJECTED"
        wait_for(lambda: host.job(job_id)["status"] == "REJECTED", 30)
        assert [node.job(job_id)["runs"] for node in (guest, host)] == [[], []]
        assert events(guest, job_id, "job READY") == []
        for node in (guest, host):
            assert node.ask("DELETE", f"/api/v1/routes/{ARBITER}").is_success
    assert started(register) == []


@pytest.mark.slow
def test_a_drained_node_lets_its_jobs_end_and_then_exits(guest, host, register):
    """What runs ends, or where the node must go is stopped."""

    def submitted(until: str) -> str:
        job_id = guest.submit(job_of(register, {"first": 0}, until=str(register.with_name(until))))
        wait_for(lambda: len(running(register)) == 2, 60, about="its containers run")
        return job_id

    def drained(word: str) -> str:
        done = forks.run(["drain", word, "--config", str(host.home / "node.yml")])
        assert done.returncode == 0, done.stderr
        return done.stdout

    job_id = submitted("drained")
    drained("--no-wait")
    for node in (guest, host):  # a partner of the drained node is told why
        answer = node.post(f"{SCHEDULE}/job/create_all", job_of(register, {"first": 0}))
        assert answer["code"] != 0 and answer["data"]["reason"] == "DRAINING", answer
    register.with_name("drained").touch()
    guest.wait_job(job_id, 60)
    assert host.process is not None and host.process.wait(60) == 0, host.log()
    host.start()
    assert host.job(job_id)["status"] == "FINISHED"
    job_id = submitted("never")
    said = drained("--stop")
    assert job_id in said
    assert "the node has exited" in said
    assert host.process is not None
    assert host.process.poll() == 0
    guest.wait_job(job_id, 60, "STOPPED")
    assert running(register) == []
    host.start()


# ---------------------------------------------------------------- attempts


def test_a_task_that_fails_once_succeeds_in_its_second_attempt(guest, host, register):
    body = job_of(register, {"a": 0.2, "b": 0}, {"b": "a"})
    body["config"]["task_params"]["host"] = {"0": {"a": {"fails": 1}}}
    job_id = guest.submit(limited(body, auto_retries=1, auto_retry_delay=0.5))
    guest.wait_job(job_id, 60)
    shown = status(host, job_id)
    a = next(t for t in shown["tasks"] if t["task_name"] == "a")
    assert a["status"] == "SUCCESS"
    assert a["attempt"] == 1
    (past,) = a["attempts"]
    assert past["status"] == "FAILED"
    assert past["attempt"] == 0
    assert past["failed_by"]["reason"] == "EXIT_3"
    assert past["failed_by"]["node"] == HOST
    assert past["task_id"] not in shown["status"]
    assert shown["status"] == {t["task_id"]: "SUCCESS" for t in shown["tasks"]}
    assert guest.job(job_id)["tasks"][0]["attempts"][0]["failure"] == past["failed_by"]

    runs = [run for run in host.job(job_id)["runs"] if run["task_name"] == "a"]
    assert [(r["attempt"], r["status"], r["task_id"]) for r in runs] == [
        (0, "FAILED", past["task_id"]),
        (1, "SUCCESS", a["task_id"]),
    ]
    first, second = (host.ask("GET", run["log"]).text for run in runs)
    assert "container number 0 of a" in first
    assert "it broke" in first
    assert "it broke" in runs[0]["last_lines"]
    assert "container number 1 of a" in second
    assert "it broke" not in second
    lines = host.get(f"{SCHEDULE}/task/get_log_line", task_id=past["task_id"], log_level="info")
    assert lines["code"] == 0, lines
    (b,) = (run for run in host.job(job_id)["runs"] if run["task_name"] == "b")
    assert {address["name"] for address in b["inputs"].values()} == {f"{a['task_id']}-data0"}
    assert seconds(guest, job_id, "attempt failed, another follows", "next attempt") >= 0.5


def seconds(
    node: Node,
    job_id: str,
    first: str,
    last: str,
) -> float:
    """Return how long passed at the scheduler from an event to another."""
    at = [
        next(e["at"] for e in events(node, job_id, e) if e["side"] == "scheduler")
        for e in (first, last)
    ]
    begun, ended = map(datetime.fromisoformat, at)
    return (ended - begun).total_seconds()


# ---------------------------------------------------------------- new parameters for tasks that have not begun


def waiting(guest: Node, register: Path) -> tuple[str, Path]:
    """Return a job of which b and c wait for a, and the file for which a waits."""
    go = register.with_name("go")
    body = job_of(
        register,
        {
            "a": 0,
            "b": 0,
            "c": 0,
        },
        {"b": "a", "c": "b"},
    )
    body["config"]["task_params"]["common"]["a"]["until"] = str(go)
    return guest.submit(body), go


def change(
    node: Node,
    job_id: str,
    parameters: Any,
    reason: str = "because",
) -> Any:
    return node.post(
        f"/api/v1/jobs/{job_id}/parameters", {"parameters": parameters, "reason": reason}
    )


def containers(register: Path) -> list[str]:
    return sorted(path.name.partition(".0")[0] for path in register.iterdir())


@pytest.mark.slow
def test_a_task_to_come_runs_with_new_parameters_at_both_nodes(guest, host, register):
    job_id, go = waiting(guest, register)
    wait_for(lambda: len(started(register)) == 2)
    refused = change(
        guest,
        job_id,
        {
            "common": {
                "a": {"lasts": 1},
                "z": {},
                "b": 5,
            },
            "arbiter": {"0": {}},
        },
    )
    paths = [f"parameters.{path}" for path in ("common.a", "common.z", "common.b", "arbiter")]
    assert [p["path"] for p in refused["data"]["problems"]] == paths
    refused = change(host, job_id, {"common": {"b": {"name": "x"}}})
    assert refused["code"] == 400
    assert refused["data"]["problems"][0]["path"] == "parameters.common"
    assert guest.job(job_id)["amendments"] == host.job(job_id)["amendments"] == []
    assert change(guest, job_id, {"common": {"b": {"name": "new"}}}, "sooner")["version"] == 1
    assert change(host, job_id, {"host": {"0": {"c": {"name": "own"}}}}, "ours")["version"] == 2
    go.touch()
    guest.wait_job(job_id)
    assert containers(register) == [
        "a.guest",
        "a.host",
        "c.guest",
        "new.guest",
        "new.host",
        "own.host",
    ]
    for node in (guest, host):
        made = [(one["by"], one["reason"]) for one in node.job(job_id)["amendments"]]
        assert made == [(GUEST, "sooner"), (HOST, "ours")]
    assert host.job(job_id)["parameters"]["host.0"]["c"]["name"]["value"] == "own"
    assert guest.job(job_id)["parameters"]["guest.0"]["b"]["name"]["value"] == "new"
    entries = [
        e
        for e in guest.get("/api/v1/audit")["audit"]
        if e["action"].endswith(f"{job_id}/parameters")
    ]
    assert [e["detail"]["reason"] for e in entries if e["status"] == 200] == ["sooner"]
    assert (
        change(guest, job_id, {"common": {"b": {"name": "x"}}})["data"]["reason"]
        == "JOB_NOT_RUNNING"
    )
    again = guest.post(f"/api/v1/jobs/{job_id}/rerun", {"from": "c"})
    guest.wait_job(again["job_id"])
    assert again["inherits"] == ["a", "b"]
    assert containers(register).count("own.host") == 2


@pytest.mark.slow
def test_a_party_that_refuses_new_parameters_keeps_them_from_all(guest, host, register):
    """At the host a person agreed to the job with the parameters that it had."""
    host.stop()
    host.settings["approval"] = {"mode": "person"}
    host.start()
    try:
        job_id, go = waiting(guest, register)
        wait_for(lambda: host.get("/api/v1/approvals")["approvals"])
        host.post(f"/api/v1/jobs/{job_id}/approve", {"reason": "read it"})
        wait_for(lambda: len(started(register)) == 2)
        refused = change(guest, job_id, {"common": {"b": {"name": "new"}}})
        assert refused["code"] == 403 and HOST in refused["msg"], refused
        go.touch()
        guest.wait_job(job_id)
        assert containers(register) == [
            f"{task}.{role}" for task in "abc" for role in ("guest", "host")
        ]
        assert guest.job(job_id)["amendments"] == host.job(job_id)["amendments"] == []
    finally:
        host.stop()
        del host.settings["approval"]
        host.start()


# ---------------------------------------------------------------- a node that was cut off


def agree(
    nodes: tuple[Node, Node],
    job_id: str,
    outcome: str,
) -> bool:
    def over(node: Node) -> bool:
        job = node.job(job_id)
        ended = (job["status"], job["outcome"]) == ("FINISHED", outcome) and all(
            r["ended_at"] for r in job["runs"]
        )
        return ended and bool(events(node, job_id, "job FINISHED here"))

    return all(map(over, nodes))


@pytest.mark.slow
def test_a_node_that_was_cut_off_agrees_once_it_is_back(guest, host, register):
    """One job ended meanwhile at both nodes, one was stopped at the node that schedules it."""
    nodes = guest, host
    with ExitStack() as stack:
        ways = []
        for node, other in (nodes, nodes[::-1]):
            ways.append(stack.enter_context(Proxy("127.0.0.1", other.peer_port)))
            direct = yaml.safe_load((node.home / "routes.yml").read_text())[other.id]
            for route in (direct, direct | {"port": ways[-1].port, "deadline": 2}):
                put = partial(node.ask, "PUT", f"/api/v1/routes/{other.id}", json={"route": route})
                if route is direct:
                    stack.callback(put)
            assert put().is_success
        cut = register.with_name("cut")
        ends = guest.submit(job_of(register, {"first": 0}, until=str(cut)))
        stopped = guest.submit(job_of(register, {"first": FOR_EVER}))
        wait_for(lambda: len(running(register)) == 4, 60, about="all containers run")
        for way in ways:
            way.turn("blackhole")
        cut.touch()
        guest.post(STOP, {"job_id": stopped})
        guest.wait_job(stopped, 60, "STOPPED")
        wait_for(
            lambda: len(running(register)) == 1,
            about="only the container that cannot know of the stop runs",
        )
        assert guest.job(ends)["status"] == "RUNNING"
        for way in ways:
            way.turn("")
        wait_for(lambda: agree(nodes, ends, "SUCCEEDED") and agree(nodes, stopped, "STOPPED"))
    nothing_runs(register)


# ---------------------------------------------------------------- containers that report nothing


def quiet(
    register: Path,
    lasting: dict[str, float],
    flow: dict[str, str] | None = None,
    **more: Any,
) -> Any:
    """Return a job of containers that report nothing; one node plays both roles."""
    body = job_of(register, lasting, flow, silent=True, **more)
    body["config"]["role"] = {"guest": [GUEST], "host": [GUEST]}
    return body


def test_an_exit_code_counts_and_a_silent_success_too(guest, register):
    bodies = {
        "EXIT_1": quiet(register, {"a": 0}, code=1),
        "NO_CALLBACK": quiet(register, {"a": 0}, leaves=False),
        None: quiet(register, {"a": 0, "b": 0}, {"b": "a"}),
    }
    ids = {reason: guest.submit(body) for reason, body in bodies.items()}
    for reason, job_id in ids.items():
        job = guest.wait_job(job_id, 60, outcome="FAILED" if reason else "SUCCEEDED")
        assert (job["failure"] or {}).get("reason") == reason
    job = guest.job(ids["EXIT_1"])
    assert job["failure"]["exit_code"] == 1
    log = guest.get(
        f"{SCHEDULE}/task/get_log",
        task_id=job["tasks"][0]["task_id"],
        log_level="info",
        start=0,
    )
    assert "last words" in log["data"]["data"]


def test_containers_that_end_during_an_outage_keep_their_results(guest, register):
    down = register.with_name("down")
    good = guest.submit(quiet(register, {"a": 0, "b": 0}, {"b": "a"}, until=str(down)))
    bad = guest.submit(quiet(register, {"c": 0}, code=3, until=str(down)))

    def there() -> list[int]:
        return [pid for task, pid in started(register) if task in "ac"]

    wait_for(lambda: len(there()) == 4, 60, 0.02)
    guest.kill()
    down.touch()
    wait_for(
        lambda: not any(map(alive, there())), 60, 0.05, "all containers have ended by themselves"
    )
    guest.start()
    assert guest.wait_job(good, 60)["outcome"] == "SUCCEEDED"
    assert guest.wait_job(bad, 60, outcome="FAILED")["failure"]["reason"] == "EXIT_3"
    assert len(there()) == 4, "nothing was started again"


DYING = """
if [ -f "{register}/pid" ] && mkdir "{register}/there" 2>/dev/null
then while kill -0 "$(cat "{register}/pid")"; do sleep 0.01; done
fi
exec "{python}" "{component}"
"""
"""A component of which the first container waits for its gateway's death."""


def die_before_the_note(node: Node, there: Path) -> bool:
    """Kill the node once a container is there, and keep it from noting so; whether it had not done so before."""
    with closing(sqlite3.connect(node.home / "gateway.db", 30, isolation_level=None)) as disk:

        def states() -> set[str]:
            return {
                row[0]
                for row in disk.execute(
                    "select status from run where status not in ('SUCCESS', 'FAILED')"
                )
            }

        wait_for(
            lambda: {"LAUNCHING", "RUNNING"} & states(), 60, 0.0005, "a container is to be started"
        )
        disk.execute("begin immediate")  # from here on the node cannot write
        before = states()
        wait_for(there.is_dir, 60, 0.005, "a container is there")
        node.kill()
        disk.execute("rollback")
    return "RUNNING" not in before


def test_killed_between_the_start_of_a_container_and_the_note_of_it(tmp_path, register):
    """A container runs while on disk it is still to be started: the next gateway takes it for what it is."""
    script = DYING.format(
        register=register,
        python=sys.executable,
        component=Path(__file__).with_name("patient.py"),
    )
    caught, engine = 0, process_engine("example:1.0.0", command=["/bin/bash", "-c", script])
    with Federation(tmp_path, [GUEST], engine) as federation:
        node = federation[GUEST]
        node.register(A_PROVIDER)
        for i in range(10):
            assert node.process is not None
            (register / "pid").write_text(str(node.process.pid))
            job_id = node.submit(quiet(register, {f"a{i}": 1, f"b{i}": 0}, {f"b{i}": f"a{i}"}))
            caught += die_before_the_note(node, register / "there")
            (register / "pid").unlink()
            node.start()
            node.wait_job(job_id, 90)
            began = Counter(
                p.name.rsplit(".", 1)[0] for p in register.iterdir() if p.name[1:2] == str(i)
            )
            assert began == {f"{t}{i}.{role}.0": 1 for t in "ab" for role in ("guest", "host")}
            (register / "there").rmdir()
            if caught:
                return
    assert caught, "in none of ten tries the kill came before the note"
