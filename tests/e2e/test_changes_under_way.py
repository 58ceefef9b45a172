"""Jobs that get new parameters, or whose partner is cut off, while they run.

In each case no container stays and all nodes agree on the job's end.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import jobs
from tests.e2e.jobs import FOR_EVER, GUEST, HOST, STOP, events, job_of
from tests.e2e.nodes import Federation, Node, wait_for
from tests.e2e.under_way import wait_for_containers, wait_for_starts, wait_until_nothing_runs
from tools.chaos.proxy import Proxy


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


# ---------------------------------------------------------------- new parameters for future tasks


def submit_chain(
    guest: Node,
    register: Path,
) -> tuple[str, Path]:
    """Submit a job of the chain a, b, c; return its id and the file that a waits for."""
    start_file = register.with_name("go")
    body = job_of(
        register,
        {
            "a": 0,
            "b": 0,
            "c": 0,
        },
        {"b": "a", "c": "b"},
    )
    body["config"]["task_params"]["common"]["a"]["until"] = str(start_file)
    return guest.submit(body), start_file


def change_parameters(
    node: Node,
    job_id: str,
    parameters: Any,
    reason: str = "because",
) -> Any:
    """Change parameters of a job's future tasks; return the response."""
    body = {
        "parameters": parameters,
        "reason": reason,
    }
    return node.post(f"/api/v1/jobs/{job_id}/parameters", body)


def problem_paths(refused: Any) -> list[str]:
    """Return the paths of the problems in a refusal."""
    return [problem["path"] for problem in refused["data"]["problems"]]


def container_names(register: Path) -> list[str]:
    """Return name and role of every container that was started, sorted."""
    return sorted(file.name.partition(".0")[0] for file in register.iterdir())


@pytest.mark.slow
def test_new_parameters_of_wrong_tasks_and_parties_are_refused(guest, host, register):
    job_id, start_file = submit_chain(guest, register)
    wait_for_starts(register, 2)

    common = {
        "a": {"lasts": 1},
        "z": {},
        "b": 5,
    }
    refused = change_parameters(
        guest,
        job_id,
        {
            "common": common,
            "arbiter": {"0": {}},
        },
    )
    assert problem_paths(refused) == [
        "parameters.common.a",
        "parameters.common.z",
        "parameters.common.b",
        "parameters.arbiter",
    ]

    # Only the scheduling node may change parameters of all parties.
    refused = change_parameters(
        host,
        job_id,
        {"common": {"b": {"name": "x"}}},
    )
    assert refused["code"] == 400
    assert problem_paths(refused)[0] == "parameters.common"

    assert guest.job(job_id)["amendments"] == []
    assert host.job(job_id)["amendments"] == []
    start_file.touch()
    guest.wait_job(job_id)
    refused = change_parameters(
        guest,
        job_id,
        {"common": {"b": {"name": "x"}}},
    )
    assert refused["data"]["reason"] == "JOB_NOT_RUNNING"


@pytest.mark.slow
def test_a_task_to_come_runs_with_new_parameters_at_both_nodes(guest, host, register):
    job_id, start_file = submit_chain(guest, register)
    wait_for_starts(register, 2)

    changed = change_parameters(
        guest,
        job_id,
        {"common": {"b": {"name": "new"}}},
        "sooner",
    )
    assert changed["version"] == 1
    changed = change_parameters(
        host,
        job_id,
        {"host": {"0": {"c": {"name": "own"}}}},
        "ours",
    )
    assert changed["version"] == 2
    start_file.touch()
    guest.wait_job(job_id)

    assert container_names(register) == [
        "a.guest",
        "a.host",
        "c.guest",
        "new.guest",
        "new.host",
        "own.host",
    ]
    for node in (guest, host):
        amendments = node.job(job_id)["amendments"]
        assert [amendment["by"] for amendment in amendments] == [GUEST, HOST]
        assert [amendment["reason"] for amendment in amendments] == ["sooner", "ours"]
    assert host.job(job_id)["parameters"]["host.0"]["c"]["name"]["value"] == "own"
    assert guest.job(job_id)["parameters"]["guest.0"]["b"]["name"]["value"] == "new"
    assert audited_reasons(guest, job_id) == ["sooner"]

    # A rerun has the new parameters.
    rerun = guest.post(f"/api/v1/jobs/{job_id}/rerun", {"from": "c"})
    guest.wait_job(rerun["job_id"])
    assert rerun["inherits"] == ["a", "b"]
    assert container_names(register).count("own.host") == 2


def audited_reasons(
    node: Node,
    job_id: str,
) -> list[str]:
    """Return the reasons of a job's accepted changes, as the audit log has them."""
    reasons = []
    for entry in node.get("/api/v1/audit")["audit"]:
        if entry["action"].endswith(f"{job_id}/parameters") and entry["status"] == 200:
            reasons.append(entry["detail"]["reason"])
    return reasons


@contextmanager
def approvals_at(node: Node) -> Iterator[None]:
    """Have a person approve each job of a node."""
    node.stop()
    node.settings["approval"] = {"mode": "person"}
    node.start()
    try:
        yield
    finally:
        node.stop()
        del node.settings["approval"]
        node.start()


@pytest.mark.slow
def test_a_party_that_refuses_new_parameters_keeps_them_from_all(guest, host, register):
    """At the host a person approved the job with its first parameters."""
    with approvals_at(host):
        job_id, start_file = submit_chain(guest, register)
        wait_for(lambda: host.get("/api/v1/approvals")["approvals"])
        host.post(f"/api/v1/jobs/{job_id}/approve", {"reason": "read it"})
        wait_for_starts(register, 2)

        refused = change_parameters(
            guest,
            job_id,
            {"common": {"b": {"name": "new"}}},
        )

        assert refused["code"] == 403
        assert HOST in refused["msg"], refused
        start_file.touch()
        guest.wait_job(job_id)
        assert container_names(register) == [
            "a.guest",
            "a.host",
            "b.guest",
            "b.host",
            "c.guest",
            "c.host",
        ]
        for node in (guest, host):
            assert node.job(job_id)["amendments"] == []


# ---------------------------------------------------------------- a node that was cut off


def has_ended(
    node: Node,
    job_id: str,
    outcome: str,
) -> bool:
    """Return whether a job and its runs have ended at a node with an outcome."""
    job = node.job(job_id)
    if job["status"] != "FINISHED" or job["outcome"] != outcome:
        return False
    all_runs_ended = all(run["ended_at"] for run in job["runs"])
    return all_runs_ended and bool(events(node, job_id, "job FINISHED here"))


def put_route(
    node: Node,
    target: str,
    route: dict[str, Any],
) -> bool:
    """Set a route of a running node; return whether the node accepted it."""
    return node.ask("PUT", f"/api/v1/routes/{target}", json={"route": route}).is_success


def insert_proxy(
    stack: ExitStack,
    node: Node,
    partner: Node,
) -> Proxy:
    """Lead a node's route to its partner through a proxy until the stack is left."""
    proxy = stack.enter_context(Proxy("127.0.0.1", partner.peer_port))
    direct = yaml.safe_load((node.home / "routes.yml").read_text())[partner.id]
    stack.callback(put_route, node, partner.id, direct)
    by_proxy = {
        "port": proxy.port,
        "deadline": 2,
    }
    assert put_route(node, partner.id, direct | by_proxy)
    return proxy


@pytest.mark.slow
def test_a_node_that_was_cut_off_agrees_once_it_is_back(guest, host, register):
    """During the cut one job ends at both nodes, and one is stopped at its scheduling node."""
    end_of_first = register.with_name("cut")
    with ExitStack() as stack:
        proxies = [
            insert_proxy(stack, guest, host),
            insert_proxy(stack, host, guest),
        ]
        ending = guest.submit(job_of(register, {"first": 0}, until=str(end_of_first)))
        stopped = guest.submit(job_of(register, {"first": FOR_EVER}))
        wait_for_containers(register, 4)

        for proxy in proxies:
            proxy.turn("blackhole")
        end_of_first.touch()
        guest.post(STOP, {"job_id": stopped})
        guest.wait_job(stopped, 60, "STOPPED")
        # The host's container of the stopped job runs on: its node cannot learn of the stop.
        wait_for_containers(register, 1)
        assert guest.job(ending)["status"] == "RUNNING"

        for proxy in proxies:
            proxy.turn("")
        for node in (guest, host):
            wait_for(lambda node=node: has_ended(node, ending, "SUCCEEDED"))
            wait_for(lambda node=node: has_ended(node, stopped, "STOPPED"))
    wait_until_nothing_runs(register)
