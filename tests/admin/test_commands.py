"""Who commanded what: a person by the name of the token, in the job's timeline and in the audit."""

import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.auth import Role, new_token
from gateway.domain.spec import Call, CallState
from gateway.domain.states import JobStatus
from tests.builders import a_job
from tests.cleaning.ended import a_spec_of, ago, left_behind
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask, running

OWN = "0123456789abcdef0123"
SCHEDULE = "/v1/platform/schedule/job"


def test_the_timeline_names_whoever_asked_for_a_change_of_a_job(tmp_path: Path):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}}}
    with running(tmp_path, engine=engine, auth={"mode": "on", "token": OWN}) as node:
        text, token = new_token("li", Role.PLATFORM, datetime.now(UTC), None)
        node.tokens.add(token)

        def send(path: str, body: Any, bearer: str = text) -> Any:
            headers = {"authorization": f"Bearer {bearer}"}
            return ask(node, "operator", "POST", path, json=body, headers=headers).json()

        send("/v2/provider/register", A_PROVIDER, OWN)
        body = copy.deepcopy(A_JOB)
        body["config"]["initiator"] = {"role": "guest", "node_id": ME}
        body["config"]["role"] = {"guest": [ME], "host": [ME]}
        job_id = send(f"{SCHEDULE}/create_all", body)["data"]["job_id"]
        place = f"/api/v1/jobs/{job_id}"
        for word in ("suspend", "resume"):
            assert send(f"{place}/{word}", {})["suspended"] is (word == "suspend")
        assert send(f"{SCHEDULE}/stop_task", {"job_id": job_id, "task_name": "nothing"})["code"] == 404
        for _ in range(2):  # the second changes nothing, and nobody asked for anything by it
            assert send(f"{SCHEDULE}/stop_all", {"job_id": job_id}, OWN)["code"] == 0
        wait_for(lambda: node.store.jobs.get(job_id).status is JobStatus.FINISHED, 30, 0.02)
        again = send(f"{place}/rerun", {"from": "echo_1"})["job_id"]
        first = node.store.timeline(job_id)[0]
        assert (first.event, first.detail) == ("job PENDING", {"user": "li"})
        told = [e for e in node.store.timeline(job_id) if e.side == "operator"]
        assert [(e.event, e.by) for e in told] == [
            ("asked to suspend", "li"),
            ("asked to resume", "li"),
            ("asked to stop", "operator"),
            ("asked to run again", "li"),
        ]
        assert told[-1].detail == {"new_job": again}
        traces = {node.store.jobs.get(one).spec.trace_id for one in (job_id, again)}
        assert len(traces) == 2 and "" not in traces, "each job is followed by a trace id of its own"
        assert send(f"{SCHEDULE}/stop_all", {"job_id": again})["code"] == 0


def test_cleaning_a_task_and_cancelling_what_waits_are_in_the_audit(tmp_path: Path):
    (tmp_path / "routes.yml").write_text(f"{PEER}: {{host: 127.0.0.1, port: 9}}\n")
    with running(tmp_path, auth={"mode": "on", "token": OWN}) as node:
        headers = {"authorization": f"Bearer {OWN}"}
        left_behind(node, "job-clean", 5)
        waits = a_job(status=JobStatus.PENDING, spec=a_spec_of("job-waits"))
        later = Call(CallState.LOST, sent_at=ago(1), due_at=ago(-3600), tries=1)
        nodes = {name: replace(part, create=later) for name, part in waits.nodes.items()}
        assert node.store.jobs.add(replace(waits, nodes=nodes, created_at=ago(1)), "flow")
        outputs, cancel = "/api/v1/jobs/job-clean/tasks/a/outputs", "/api/v1/jobs/cancel-waiting"
        for dry in (True, False):
            query = {"dry_run": str(dry).lower()}
            cleaned = ask(node, "operator", "DELETE", outputs, params=query, headers=headers).json()
            assert {item["removed"] for item in cleaned["items"]} == {not dry}
            done = ask(node, "operator", "POST", cancel, json={"dry_run": dry}, headers=headers).json()
            assert done == {"dry_run": dry, "jobs": ["job-waits"]}
        wait_for(lambda: len(node.audit.list()) == 4, 20, 0.02)
        entries = [(e.who, e.action, e.detail) for e in reversed(node.audit.list())]
        names = [f"{item['kind']} {item['name']}" for item in cleaned["items"]]
        assert entries == [
            ("operator", f"DELETE {outputs}", {"dry_run": True}),
            ("operator", f"POST {cancel}", {"dry_run": True}),
            ("operator", f"DELETE {outputs}", {"before": names, "after": None}),
            ("operator", f"POST {cancel}", {"before": {"waiting": ["job-waits"]}, "after": {"waiting": []}}),
        ]
        asked = [(e.event, e.by) for e in node.store.timeline("job-waits") if e.side == "operator"]
        assert asked == [("asked to cancel while it waited", "operator")]
