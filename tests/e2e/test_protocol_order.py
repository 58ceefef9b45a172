"""What goes over the wire, recorded between real nodes, with the scheduler on a third node."""

import json
from collections import Counter

from adapter.bfia.examples import A_PROVIDER
from adapter.bfia.peer import PROFILE_QUESTION
from tests.e2e import jobs
from tests.e2e.nodes import Federation
from tests.e2e.recorder import Recorder

SCHEDULER = "JG0100009900000099"
CONTROL = "/v1/interconn/schedule"
HEADERS = (
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-target-node-id",
    "x-nonce",
    "x-trace-id",
    "x-timestamp",
)


def test_the_scheduler_on_a_third_node(tmp_path, register):
    ids = [jobs.GUEST, jobs.HOST, SCHEDULER]
    federation = Federation(tmp_path, ids, jobs.PATIENT_ENGINE)
    federation[jobs.GUEST].settings["node"]["coordinator"] = SCHEDULER
    with Recorder({node.id: node.peer_port for node in federation.nodes.values()}) as recorder:
        for node in federation.nodes.values():
            node.route(**{other: recorder.port for other in ids if other != node.id})
        with federation:
            guest = federation[jobs.GUEST]
            for node in (guest, federation[jobs.HOST]):
                node.register(A_PROVIDER)
            body = jobs.job_of(register, {"a": 0.2, "b": 0}, {"b": "a"})
            own = {role: {"0": {"a": {"own": f"of the {role}"}}} for role in ("guest", "host")}
            body["config"]["task_params"] |= own
            job_id = guest.submit(body)
            job = guest.wait_job(job_id)
            assert job["scheduler"] == SCHEDULER
            stops = [s for s in recorder.seen if s.path == f"{CONTROL}/job/stop"]
            assert {s.to for s in stops} == {jobs.GUEST, jobs.HOST}

    control = [
        s for s in recorder.seen if s.path.startswith(CONTROL) and s.body != PROFILE_QUESTION
    ]
    count = Counter((s.path.removeprefix(CONTROL), s.to) for s in control)
    assert count["/job/create_all", SCHEDULER] == 1
    for node in (jobs.GUEST, jobs.HOST):
        assert count["/job/create", node] == 1
        assert count["/job/start", node] == 1
        started = [
            s.body["task_name"] for s in control if s.path.endswith("/task/start") and s.to == node
        ]
        assert started == ["a", "b"]
    order = [
        s.path.removeprefix(CONTROL) for s in control if s.to == jobs.HOST and "poll" not in s.path
    ]
    assert order == ["/job/create", "/job/start", "/task/start", "/task/start", "/job/stop"]

    assert {
        s.path for s in control if s.to == SCHEDULER
    } <= {  # it has no role, so no task is started there
        f"{CONTROL}/job/create_all",
        f"{CONTROL}/job/status_all",
        f"{CONTROL}/job/status_all?job_id={job_id}",
        f"{CONTROL}/task/callback",
    }

    for one in control:
        assert all(one.headers.get(h) for h in HEADERS), one
        assert one.headers["x-target-node-id"] == one.to
        assert one.answer["code"] == 0
        assert set(one.answer) >= {"code", "msg", "data"}
    assert len({s.headers["x-nonce"] for s in control}) == len(control)
    assert len({s.headers["x-trace-id"] for s in control}) == 1
    trace = control[0].headers["x-trace-id"]
    assert job["trace_id"] == trace

    created = {s.to: s.body for s in control if s.path.endswith("/job/create")}
    assert created[jobs.HOST]["config"]["task_params"]["guest"] == {"0": {}}
    assert created[jobs.GUEST]["config"]["task_params"]["host"] == {"0": {}}
    assert "of the guest" not in json.dumps(created[jobs.HOST])
    assert "of the host" not in json.dumps(created[jobs.GUEST])
