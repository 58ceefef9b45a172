"""``/metrics``: the figures are present and right."""

import copy
import json
from dataclasses import replace
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap import parts
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, Node

SUBMIT = "/v1/platform/schedule/job/create_all"
CREATE = "/v1/interconn/schedule/job/create"
FAILS = {"example:1.0.0": ["/bin/false"]}


def read_metrics(node: Node) -> dict[str, float]:
    """Return the node's figures, by name with labels."""
    response = node.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    figures = {}
    for line in response.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            figures[name] = float(value)
    return figures


def test_jobs_runs_requests_and_the_engine_are_counted(world, monkeypatch):
    usual_timing = parts.call_timing

    def short_timing(*args):
        return replace(usual_timing(*args), create_deadline=1.0)

    monkeypatch.setattr(parts, "call_timing", short_timing)
    node = world.node(commands=FAILS)
    check_a_new_node(node)

    for silent in (PEER, STRANGER):
        route = {"url": "http://127.0.0.1:1"}
        node.request(
            "PUT",
            f"/api/v1/routes/{silent}",
            json={"route": route},
        )
    node.post(f"/api/v1/routes/{PEER}/test")
    body = job_of_me()
    job_id = submit(node, body)
    wait_for_end(node, job_id)

    body["config"]["role"]["host"] = [STRANGER]
    assert node.post(SUBMIT, body).json()["code"] != 0

    figures = read_metrics(node)
    assert figures['bfia_jobs{outcome="FAILED",side="scheduler",status="FINISHED"}'] == 1
    assert figures['bfia_jobs{outcome="FAILED",side="participant",status="FINISHED"}'] == 1
    assert figures['bfia_runs{status="FAILED"}'] == 2
    assert not [name for name in figures if name.startswith("bfia_tasks")], "the job has ended"
    assert figures['bfia_engine_seconds_count{action="launch"}'] == 2
    labels = f'node="{STRANGER}",path="{CREATE}",result="unreachable"'
    assert figures[f"bfia_peer_requests_total{{{labels}}}"] >= 1


def test_requests_to_a_scheduling_node_take_no_time_of_the_engine(world):
    approval = {"mode": "rules", "rules": [{"decide": "ask"}]}
    node = world.node(commands=FAILS, settings={"approval": approval})
    job_id = submit(node, job_of_me())
    approved = node.post(f"/api/v1/jobs/{job_id}/approve").json()
    assert approved["repeated"] is False
    wait_for_end(node, job_id)

    figures = read_metrics(node)

    beginning = 'bfia_engine_seconds_count{action="'
    actions = {name.split('"')[1] for name in figures if name.startswith(beginning)}
    assert "launch" in actions
    assert actions <= {"prepare", "launch", "probe", "stoprun", "collect"}


def job_of_me() -> dict[str, Any]:
    """Build a job whose parties are all at `ME`."""
    body = copy.deepcopy(A_JOB)
    body["config"] |= {
        "initiator": {"role": "guest", "node_id": ME},
        "role": {"guest": [ME], "host": [ME]},
        "task_params": {},
    }
    return body


def submit(node: Node, body: dict[str, Any]) -> str:
    """Register the provider of the job's tasks and submit the job; return its id."""
    node.post("/v2/provider/register", A_PROVIDER)
    submission = node.post(SUBMIT, body).json()
    assert submission["code"] == 0, json.dumps(submission)
    return submission["data"]["job_id"]


def wait_for_end(node: Node, job_id: str) -> None:
    wait_for(lambda: node.store.jobs.get(job_id).outcome is not None, 60)


def check_a_new_node(node: Node) -> None:
    """Check the figures of a node without a job: no queue, and all resources free."""
    figures = read_metrics(node)
    assert figures["bfia_queue_age_seconds"] == 0
    assert figures["bfia_channel_bytes"] == 0
    total = figures['bfia_resources_total{kind="cpu"}']
    assert total == node.resources.capacity.total.cpu / 1000
    assert figures['bfia_resources_free{kind="cpu"}'] == total
    assert figures['bfia_resources_held{kind="cpu"}'] == 0
    assert figures['bfia_resources_total{kind="memory"}'] > 2**20
