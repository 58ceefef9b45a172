"""Requests between real nodes in their order, with the scheduler on a third node."""

import json
from collections import Counter
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from adapter.bfia.peer import PROFILE_QUESTION
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation
from tests.e2e.recorder import Exchange, Recorder

SCHEDULER = "JG0100009900000099"
NODE_IDS = [GUEST, HOST, SCHEDULER]
CONTROL = "/v1/interconn/schedule"
# Headers that every request between nodes has.
HEADERS = (
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-target-node-id",
    "x-nonce",
    "x-trace-id",
    "x-timestamp",
)


def two_task_job(register: Any) -> Any:
    """Return a job with parameters of its own for each party."""
    body = jobs.job_of(
        register,
        {"a": 0.2, "b": 0},
        {"b": "a"},
    )
    for role in ("guest", "host"):
        parameters = {"a": {"own": f"of the {role}"}}
        body["config"]["task_params"][role] = {"0": parameters}
    return body


def control_requests(recorder: Recorder) -> list[Exchange]:
    """Return the requests that control jobs."""
    requests = []
    for exchange in recorder.exchanges:
        is_control = exchange.path.startswith(CONTROL)
        if is_control and exchange.body != PROFILE_QUESTION:
            requests.append(exchange)
    return requests


def paths_to(
    node: str,
    requests: list[Exchange],
) -> list[str]:
    """Return the paths of the requests to a node."""
    return [exchange.path.removeprefix(CONTROL) for exchange in requests if exchange.to == node]


def test_a_third_node_schedules_a_job_in_the_order_of_the_standard(tmp_path, register):
    federation = Federation(tmp_path, NODE_IDS, jobs.PATIENT_ENGINE)
    guest = federation[GUEST]
    host = federation[HOST]
    guest.settings["node"]["coordinator"] = SCHEDULER
    with Recorder({node.id: node.peer_port for node in federation.nodes.values()}) as recorder:
        for node in federation.nodes.values():
            partners = [node_id for node_id in NODE_IDS if node_id != node.id]
            node.route(**dict.fromkeys(partners, recorder.port))
        with federation:
            guest.register(A_PROVIDER)
            host.register(A_PROVIDER)
            job_id = guest.submit(two_task_job(register))
            job = guest.wait_job(job_id)
            assert job["scheduler"] == SCHEDULER
            host.wait_job(job_id)  # the scheduling node does not wait for the parties
            told_to_stop = set()
            for exchange in recorder.exchanges:
                if exchange.path == f"{CONTROL}/job/stop":
                    told_to_stop.add(exchange.to)
            assert told_to_stop == {GUEST, HOST}

    requests = control_requests(recorder)
    check_order(requests, job_id)
    check_headers(requests, job["trace_id"])
    check_parameters_stay_private(requests)


def check_order(
    requests: list[Exchange],
    job_id: str,
) -> None:
    """Check which requests each node received, and the parties their order."""
    counts = Counter((exchange.path.removeprefix(CONTROL), exchange.to) for exchange in requests)
    assert counts["/job/create_all", SCHEDULER] == 1
    for node in (GUEST, HOST):
        assert counts["/job/create", node] == 1
        assert counts["/job/start", node] == 1
        started_tasks = []
        for exchange in requests:
            if exchange.to == node and exchange.path.endswith("/task/start"):
                started_tasks.append(exchange.body["task_name"])
        assert started_tasks == ["a", "b"]

    order = [path for path in paths_to(HOST, requests) if "poll" not in path]
    assert order == ["/job/create", "/job/start", "/task/start", "/task/start", "/job/stop"]

    # The scheduler has no role, so no task is started there.
    assert set(paths_to(SCHEDULER, requests)) <= {
        "/job/create_all",
        "/job/status_all",
        f"/job/status_all?job_id={job_id}",
        "/task/callback",
    }


def check_headers(
    requests: list[Exchange],
    trace_id: str,
) -> None:
    """Check the headers and responses of all requests, which belong to one trace."""
    for exchange in requests:
        for header in HEADERS:
            assert exchange.headers.get(header), (header, exchange)
        assert exchange.headers["x-target-node-id"] == exchange.to
        assert exchange.headers["x-trace-id"] == trace_id
        assert exchange.response["code"] == 0
        assert set(exchange.response) >= {"code", "msg", "data"}
    nonces = {exchange.headers["x-nonce"] for exchange in requests}
    assert len(nonces) == len(requests)


def check_parameters_stay_private(requests: list[Exchange]) -> None:
    """Check that a party does not get the other party's own parameters."""
    bodies = {}
    for exchange in requests:
        if exchange.path.endswith("/job/create"):
            bodies[exchange.to] = exchange.body
    assert bodies[HOST]["config"]["task_params"]["guest"] == {"0": {}}
    assert bodies[GUEST]["config"]["task_params"]["host"] == {"0": {}}
    assert "of the guest" not in json.dumps(bodies[HOST])
    assert "of the host" not in json.dumps(bodies[GUEST])
