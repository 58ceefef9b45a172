"""``/metrics``: the figures are there, and they are right."""

import copy
import json
from dataclasses import replace
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap import parts
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, running


def figures(gateway: Any) -> dict[str, float]:
    answer = ask(gateway, "operator", "GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_jobs_runs_requests_and_the_engine_are_counted(tmp_path, monkeypatch):
    engine = {
        "kind": "process",
        "process": {"images": {"example:1.0.0": {"command": ["/bin/false"]}}},
    }
    usual = parts.call_timing
    monkeypatch.setattr(
        parts, "call_timing", lambda *given: replace(usual(*given), create_deadline=1.0)
    )
    with running(tmp_path, engine=engine) as node:
        before = figures(node)
        assert before["bfia_queue_age_seconds"] == 0
        assert before["bfia_channel_bytes"] == 0
        total, held, free = (
            before[f'bfia_resources_{name}{{kind="cpu"}}'] for name in ("total", "held", "free")
        )
        assert total == node.resources.means.total.cpu / 1000 == free
        assert held == 0
        assert before['bfia_resources_total{kind="memory"}'] > 2**20
        for silent in (PEER, STRANGER):
            ask(
                node,
                "operator",
                "PUT",
                f"/api/v1/routes/{silent}",
                json={"route": {"url": "http://127.0.0.1:1"}},
            )
        ask(node, "operator", "POST", f"/api/v1/routes/{PEER}/test")
        ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
        body = copy.deepcopy(A_JOB)
        body["config"]["initiator"] = {"role": "guest", "node_id": ME}
        body["config"]["role"] = {"guest": [ME], "host": [ME]}
        body["config"]["task_params"] = {}
        handed = ask(
            node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=body
        ).json()
        assert handed["code"] == 0, json.dumps(handed)
        job_id = handed["data"]["job_id"]
        wait_for(lambda: node.store.jobs.get(job_id).outcome is not None, 60)
        other = copy.deepcopy(body)
        other["config"]["role"]["host"] = [STRANGER]
        assert (
            ask(
                node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=other
            ).json()["code"]
            != 0
        )
        told = figures(node)
        assert told['bfia_jobs{outcome="FAILED",side="scheduler",status="FINISHED"}'] == 1
        assert told['bfia_jobs{outcome="FAILED",side="participant",status="FINISHED"}'] == 1
        assert told['bfia_runs{status="FAILED"}'] == 2
        assert not [name for name in told if name.startswith("bfia_tasks")], "its job has ended"
        assert told['bfia_engine_seconds_count{action="launch"}'] == 2
        path = "/v1/interconn/schedule/job/create"
        assert (
            told[
                f'bfia_peer_requests_total{{node="{STRANGER}",path="{path}",result="unreachable"}}'
            ]
            >= 1
        )
