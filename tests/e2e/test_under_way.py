"""Jobs that are stopped, drained, retried, killed or silent while they run.

In each case no container stays and all nodes agree on the job's end.
"""

import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

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
from tests.e2e.under_way import wait_for_containers, wait_for_starts, wait_until_nothing_runs

SUCCESS = {
    "code": 0,
    "msg": "success",
    "data": {},
}
TASK_STATUSES = {"READY", "SUCCESS", "FAILED"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    home = tmp_path_factory.mktemp("nodes")
    with jobs.patient_nodes(home, pace={"lost_call": 4.0}) as federation:
        yield federation


@pytest.fixture
def guest(federation: Federation) -> Node:
    return federation[GUEST]


@pytest.fixture
def host(federation: Federation) -> Node:
    return federation[HOST]


# ---------------------------------------------------------------- stops and timeouts


def is_over(node: Node, job_id: str) -> bool:
    """Return whether a job and all of its runs have ended at a node."""
    job = node.job(job_id)
    all_runs_ended = all(run["ended_at"] for run in job["runs"])
    return all_runs_ended and job["status"] in ("FINISHED", "REJECTED")


def wait_for_stop_everywhere(federation: Federation, job_id: str) -> dict[str, Any]:
    """Wait until a job is stopped at all nodes; return its status, which is the same at both."""
    guest, host = federation.nodes.values()
    guest.wait_job(job_id, 60, outcome="STOPPED")
    for node in (guest, host):
        wait_for(lambda node=node: is_over(node, job_id), 30, about="runs end")
    wait_for(
        lambda: status(host, job_id) == status(guest, job_id),
        30,
        about="both nodes say the same",
    )
    job = status(guest, job_id)
    assert job["outcome"] == "STOPPED"
    assert job["failed_by"]["reason"] == "STOPPED"
    for task in job["tasks"]:
        assert task["status"] in TASK_STATUSES
        if task["status"] == "FAILED":
            check_stopped_task(task)
    return job


def check_stopped_task(task: dict[str, Any]) -> None:
    """Check that a stopped task has ended at all parties."""
    assert task["failed_by"]["reason"] == "STOPPED"
    for roles in task["parties"].values():
        assert set(roles.values()) <= {"FAILED", "SUCCESS"}


@pytest.mark.parametrize("stopper_id", [GUEST, HOST])
def test_either_platform_stops_a_job_whose_containers_do_not_end(
    federation, guest, register, stopper_id
):
    tasks = {
        "a": FOR_EVER,
        "b": 0,
        "c": FOR_EVER,
    }
    stopper = federation[stopper_id]
    body = job_of(
        register,
        tasks,
        {"b": "a"},
        stubborn=True,
    )
    job_id = guest.submit(body)
    wait_for(lambda: running(register) == ["a", "a", "c", "c"], 60)

    # A repeated stop is a success, too.
    for _ in range(2):
        assert stopper.post(STOP, {"job_id": job_id}) == SUCCESS

    job = wait_for_stop_everywhere(federation, job_id)
    task_statuses = {}
    for task in job["tasks"]:
        task_statuses[task["task_name"]] = task["status"]
    assert task_statuses == {
        "a": "FAILED",
        "b": "READY",
        "c": "FAILED",
    }
    assert job["failed_by"]["message"] == f"stopped by {stopper_id}"
    for node in federation.nodes.values():
        for run in node.job(job_id)["runs"]:
            assert run["failure"]["reason"] == "STOPPED"
            assert run["failure"]["exit_code"] == 137  # killed, as it ignored SIGTERM
        assert node.post(STOP, {"job_id": job_id}) == SUCCESS
    assert status(guest, job_id) == job
    wait_until_nothing_runs(register)


def test_dying_nodes_keep_stops_timeouts_and_the_newest_job(federation, guest, host, register):
    """The scheduling node is killed right after its responses, while its partner is down."""
    task_a = job_of(register, {"a": FOR_EVER})
    task_b = job_of(register, {"b": FOR_EVER})
    stopped = guest.submit(task_a)
    late_task = guest.submit(limited(task_b, task_timeout=8))
    two_tasks = job_of(
        register,
        {"c": FOR_EVER, "d": 0},
        {"d": "c"},
    )
    late_job = guest.submit(limited(two_tasks, timeout=8))
    wait_for_starts(register, 6)  # three jobs at two nodes
    short_tasks = job_of(
        register,
        {"e": 0.2, "f": 0},
        {"f": "e"},
    )
    newest = guest.submit(short_tasks)
    guest.kill()
    guest.start()
    host.kill()
    assert guest.post(STOP, {"job_id": stopped}) == SUCCESS
    guest.kill()
    guest.start()

    guest.wait_job(
        stopped,
        60,
        outcome="STOPPED",
    )
    wait_for(
        lambda: running(register).count("a") == 1,
        about="the container of the node that runs is gone",
    )
    host.start()
    wait_for_stop_everywhere(federation, stopped)

    job = guest.wait_job(
        late_job,
        60,
        outcome="FAILED",
    )
    assert job["failure"]["reason"] == "TIMEOUT"
    assert "c, d" in job["failure"]["message"]
    check_task_timeout(guest, host, late_task)

    guest.wait_job(newest, 120)
    wait_until_nothing_runs(register)


def check_task_timeout(
    guest: Node,
    host: Node,
    job_id: str,
) -> None:
    """Check that the task b of a job timed out after 8 s, and that both nodes agree on it."""
    guest.wait_job(job_id, 60, outcome="FAILED")
    assert seconds_between(guest, job_id, "job RUNNING", "task FAILED") >= 8
    host.wait_status(job_id, "FINISHED", 30)
    job = status(guest, job_id)
    assert job["failed_by"] == status(host, job_id)["failed_by"]
    assert job["failed_by"]["reason"] == "TIMEOUT"
    assert job["failed_by"]["task"] == "b"
    (task,) = job["tasks"]
    assert task["status"] == "FAILED"


def seconds_between(
    node: Node,
    job_id: str,
    first: str,
    last: str,
) -> float:
    """Return the seconds from an event of the scheduler to another."""
    times = []
    for name in (first, last):
        by_scheduler = [
            event for event in events(node, job_id, name) if event["side"] == "scheduler"
        ]
        times.append(datetime.fromisoformat(by_scheduler[0]["at"]))
    begin, end = times
    return (end - begin).total_seconds()


@contextmanager
def silent_partner(*nodes: Node) -> Iterator[None]:
    """Give nodes a route to an arbiter that accepts requests and never responds."""
    path = f"/api/v1/routes/{ARBITER}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, port = silent.getsockname()
        route = {
            "url": f"http://127.0.0.1:{port}",
            "deadline": 5,  # also the time that the job waits for it
            "signing": "off",
        }
        for node in nodes:
            response = node.ask("PUT", path, json={"route": route})
            assert response.is_success
        yield
        for node in nodes:
            response = node.ask("DELETE", path)
            assert response.is_success


def job_ids(node: Node) -> set[str]:
    """Return the ids of all jobs of a node."""
    listing = node.get(f"{SCHEDULE}/job/query_job_list")
    return set(listing["data"]["job_list"])


def test_a_job_stopped_by_the_partner_while_waiting_starts_nothing(guest, host, register):
    body = job_of(register, {"a": 0})
    body["config"]["role"]["arbiter"] = [ARBITER]
    earlier = job_ids(host)
    with silent_partner(guest, host), ThreadPoolExecutor(1) as pool:
        # The response comes when the job has ended.
        submission = pool.submit(guest.post, f"{SCHEDULE}/job/create_all", body)
        (job_id,) = wait_for(lambda: job_ids(host) - earlier, 30, 0.02)
        assert status(guest, job_id)["job_status"] == "PENDING"

        assert host.post(STOP, {"job_id": job_id}) == SUCCESS

        refused = submission.result(60)
        assert refused["code"] != 0
        assert refused["data"]["reason"] == "STOPPED"
        job = guest.wait_job(job_id, 30, outcome="STOPPED")
        assert job["status"] == "REJECTED"
        host.wait_status(job_id, "REJECTED", 30)
        for node in (guest, host):
            assert node.job(job_id)["runs"] == []
        assert events(guest, job_id, "job READY") == []
    assert started(register) == []


# ---------------------------------------------------------------- draining


def drain(node: Node, option: str) -> str:
    """Drain a node by the command line; return the command's output."""
    config = str(node.home / "node.yml")
    process = forks.run(["drain", option, "--config", config])
    assert process.returncode == 0, process.stderr
    return str(process.stdout)


def has_exited(node: Node) -> bool:
    """Wait for the end of a node's process; return whether it was a success."""
    assert node.process is not None
    return node.process.wait(60) == 0


def submit_until(
    guest: Node,
    register: Path,
    file: Path,
) -> str:
    """Submit a job that runs until a file exists; return its id when it runs at both nodes."""
    body = job_of(register, {"first": 0}, until=str(file))
    job_id = guest.submit(body)
    wait_for_containers(register, 2)
    return job_id


@pytest.mark.slow
def test_a_drained_node_lets_its_jobs_end_and_then_exits(guest, host, register):
    end_of_tasks = register.with_name("drained")
    job_id = submit_until(guest, register, end_of_tasks)

    drain(host, "--no-wait")

    for node in (guest, host):  # a partner of the drained node is told why
        refused = node.post(
            f"{SCHEDULE}/job/create_all",
            job_of(register, {"first": 0}),
        )
        assert refused["code"] != 0
        assert refused["data"]["reason"] == "DRAINING", refused
    end_of_tasks.touch()
    guest.wait_job(job_id, 60)
    assert has_exited(host), host.log()
    host.start()
    assert host.job(job_id)["status"] == "FINISHED"


@pytest.mark.slow
def test_a_node_that_must_exit_now_stops_its_jobs(guest, host, register):
    job_id = submit_until(guest, register, register.with_name("never"))

    output = drain(host, "--stop")

    assert job_id in output
    assert "the node has exited" in output
    assert host.process is not None
    assert host.process.poll() == 0
    guest.wait_job(job_id, 60, "STOPPED")
    assert running(register) == []
    host.start()


# ---------------------------------------------------------------- attempts


def test_a_task_that_fails_once_succeeds_in_its_second_attempt(guest, host, register):
    body = job_of(
        register,
        {"a": 0.2, "b": 0},
        {"b": "a"},
    )
    params_of_host = {"a": {"fails": 1}}
    body["config"]["task_params"]["host"] = {"0": params_of_host}
    body = limited(
        body,
        auto_retries=1,
        auto_retry_delay=0.5,
    )
    job_id = guest.submit(body)
    guest.wait_job(job_id, 60)

    job = status(host, job_id)
    a, _ = sorted(job["tasks"], key=itemgetter("task_name"))
    assert a["status"] == "SUCCESS"
    assert a["attempt"] == 1
    (first_attempt,) = a["attempts"]
    assert first_attempt["status"] == "FAILED"
    assert first_attempt["attempt"] == 0
    assert first_attempt["failed_by"]["reason"] == "EXIT_3"
    assert first_attempt["failed_by"]["node"] == HOST
    assert first_attempt["task_id"] not in job["status"]
    task_ids = [task["task_id"] for task in job["tasks"]]
    assert job["status"] == dict.fromkeys(task_ids, "SUCCESS")
    task_of_guest = guest.job(job_id)["tasks"][0]
    assert task_of_guest["attempts"][0]["failure"] == first_attempt["failed_by"]
    retry_delay = seconds_between(guest, job_id, "attempt failed, another follows", "next attempt")
    assert retry_delay >= 0.5

    check_runs_of_attempts(
        host,
        job_id,
        first_attempt["task_id"],
        a["task_id"],
    )
    # The next task reads the output of the second attempt.
    (run_of_b,) = host.runs_of(job_id, "b")
    for address in run_of_b["inputs"].values():
        assert address["name"] == f"{a['task_id']}-data0"


@pytest.mark.parametrize(
    ("task_sessions", "outcome"),
    [
        (True, "SUCCEEDED"),
        (False, "FAILED"),
    ],
)
def test_an_attempt_with_its_own_session_gets_its_own_messages_only(
    guest, host, register, task_sessions, outcome
):
    """The first attempt leaves a message unread, under a topic that does not name the task."""
    body = job_of(register, {"a": 0}, rounds=3)
    body["config"]["task_params"]["host"] = {"0": {"a": {"fails": 1, "unread": True}}}
    body = limited(
        body,
        auto_retries=1,
        task_sessions=task_sessions,
    )
    job_id = guest.submit(body)
    guest.wait_job(job_id, 60, outcome)

    _, second = guest.runs_of(job_id, "a")
    log = guest.ask("GET", second["log"]).text
    assert second["attempt"] == 1
    assert ("number 0 was lost or came twice" in log) is not task_sessions


def check_runs_of_attempts(
    host: Node,
    job_id: str,
    first_id: str,
    second_id: str,
) -> None:
    """Check runs and logs of the task a, whose first attempt failed."""
    first, second = host.runs_of(job_id, "a")
    assert first["attempt"] == 0
    assert first["status"] == "FAILED"
    assert first["task_id"] == first_id
    assert second["attempt"] == 1
    assert second["status"] == "SUCCESS"
    assert second["task_id"] == second_id
    assert "it broke" in first["last_lines"]
    first_log = host.ask("GET", first["log"]).text
    assert "container number 0 of a" in first_log
    assert "it broke" in first_log
    second_log = host.ask("GET", second["log"]).text
    assert "container number 1 of a" in second_log
    assert "it broke" not in second_log
    lines = host.get(
        f"{SCHEDULE}/task/get_log_line",
        task_id=first_id,
        log_level="info",
    )
    assert lines["code"] == 0, lines


# ---------------------------------------------------------------- containers that report nothing


# Duration of each task in seconds, and the upstream task of b.
TWO_TASKS = ({"a": 0, "b": 0}, {"b": "a"})


def silent_job(
    register: Path,
    lasting: dict[str, float],
    flow: dict[str, str] | None = None,
    **parameters: Any,
) -> Any:
    """Return a job of containers that report nothing; one node plays both roles."""
    body = job_of(register, lasting, flow, silent=True, **parameters)
    body["config"]["role"] = {"guest": [GUEST], "host": [GUEST]}
    return body


def test_an_exit_code_counts_and_a_silent_success_too(guest, register):
    job_with_error = silent_job(register, {"a": 0}, code=1)
    job_without_output = silent_job(register, {"a": 0}, leaves=False)
    exits_with_1 = guest.submit(job_with_error)
    writes_nothing = guest.submit(job_without_output)
    succeeds = guest.submit(silent_job(register, *TWO_TASKS))

    job = guest.wait_job(
        exits_with_1,
        60,
        outcome="FAILED",
    )
    assert job["failure"]["reason"] == "EXIT_1"
    assert job["failure"]["exit_code"] == 1
    task_id = job["tasks"][0]["task_id"]
    log = guest.get(
        f"{SCHEDULE}/task/get_log",
        task_id=task_id,
        log_level="info",
        start=0,
    )
    assert "last words" in log["data"]["data"]

    job = guest.wait_job(
        writes_nothing,
        60,
        outcome="FAILED",
    )
    assert job["failure"]["reason"] == "NO_CALLBACK"

    job = guest.wait_job(succeeds, 60)
    assert not job["failure"]


def test_containers_that_end_during_an_outage_keep_their_results(guest, register):
    end_of_tasks = register.with_name("down")
    good_job = silent_job(
        register,
        *TWO_TASKS,
        until=str(end_of_tasks),
    )
    bad_job = silent_job(
        register,
        {"c": 0},
        code=3,
        until=str(end_of_tasks),
    )
    good = guest.submit(good_job)
    bad = guest.submit(bad_job)

    def pids_of_first_tasks() -> list[int]:
        return [pid for task, pid in started(register) if task in ("a", "c")]

    def all_have_ended() -> bool:
        return not any(alive(pid) for pid in pids_of_first_tasks())

    wait_for(lambda: len(pids_of_first_tasks()) == 4, 60, 0.02)
    guest.kill()
    end_of_tasks.touch()
    wait_for(
        all_have_ended,
        60,
        0.05,
        "all containers have ended by themselves",
    )
    guest.start()

    job = guest.wait_job(good, 60)
    assert job["outcome"] == "SUCCEEDED"
    job = guest.wait_job(bad, 60, outcome="FAILED")
    assert job["failure"]["reason"] == "EXIT_3"
    assert len(pids_of_first_tasks()) == 4  # nothing was started again


# ---------------------------------------------------------------- a kill between start and record

# A component whose first container waits for its gateway's death.
WAIT_FOR_DEATH = """
if [ -f "{register}/pid" ] && mkdir "{register}/there" 2>/dev/null
then while kill -0 "$(cat "{register}/pid")"; do sleep 0.01; done
fi
exec "{python}" "{component}"
"""


def kill_before_the_record(node: Node, container_mark: Path) -> bool:
    """Kill the node after the start of a container, whose record it cannot write any more.

    Returns False if the node had recorded the start already.
    """
    connection = sqlite3.connect(
        node.home / "gateway.db",
        30,
        isolation_level=None,
    )
    with closing(connection) as database:
        wait_for(
            lambda: {"LAUNCHING", "RUNNING"} & statuses_of_runs(database),
            60,
            0.0005,
            "a container is about to start",
        )
        # The write lock: the node cannot write from now on.
        database.execute("begin immediate")
        statuses = statuses_of_runs(database)
        wait_for(container_mark.is_dir, 60, 0.005, "a container is there")
        node.kill()
        database.execute("rollback")
    return "RUNNING" not in statuses


def statuses_of_runs(database: sqlite3.Connection) -> set[str]:
    """Return the statuses of the runs that have not ended."""
    query = "select status from run where status not in ('SUCCESS', 'FAILED')"
    return {status for (status,) in database.execute(query)}


def starts_of_try(register: Path, number: int) -> Counter[str]:
    """Return how many containers were started in a try, by task and party."""
    counts: Counter[str] = Counter()
    for file in register.iterdir():
        name, _, _ = file.name.rpartition(".")
        if name[1:2] == str(number):
            counts[name] += 1
    return counts


def kill_in_try(
    node: Node,
    register: Path,
    number: int,
) -> bool:
    """Run a job whose node is killed at the start of its first container.

    Returns whether the kill came before the record.
    """
    assert node.process is not None
    pid_file = register / "pid"
    container_mark = register / "there"
    pid_file.write_text(str(node.process.pid))
    a = f"a{number}"
    b = f"b{number}"
    body = silent_job(
        register,
        {a: 1, b: 0},
        {b: a},
    )
    job_id = node.submit(body)
    was_unrecorded = kill_before_the_record(node, container_mark)
    pid_file.unlink()
    node.start()
    node.wait_job(job_id, 90)
    assert starts_of_try(register, number) == {
        f"{a}.guest.0": 1,
        f"{a}.host.0": 1,
        f"{b}.guest.0": 1,
        f"{b}.host.0": 1,
    }
    container_mark.rmdir()
    return was_unrecorded


def test_killed_between_the_start_of_a_container_and_the_note_of_it(tmp_path, register):
    """A container runs without a record of its start: the next gateway adopts it."""
    script = WAIT_FOR_DEATH.format(
        register=register,
        python=sys.executable,
        component=Path(__file__).with_name("patient.py"),
    )
    engine = process_engine("example:1.0.0", command=["/bin/bash", "-c", script])
    with Federation(tmp_path, [GUEST], engine) as federation:
        node = federation[GUEST]
        node.register(A_PROVIDER)
        # A try has the wrong moment if the node was faster than the test.
        succeeded = any(kill_in_try(node, register, number) for number in range(10))
    assert succeeded, "in none of ten tries the kill came before the note"
