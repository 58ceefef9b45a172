"""Exchanges with a FATE-Flow 2.2 that schedules a job in which this node is a host, request by request.

Bodies, orders and codes are as FATE-Flow 2.2.0 was seen to send and answer them (see
`tests/e2e/test_fate_flow.py`), but for what it breaks down over.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from adapter.fate import endpoints
from adapter.fate.envelope import FOR_WORKERS, Code, FateRoute, codes_extra
from gateway.domain.amounts import Amounts, Pool
from gateway.domain.run import Address
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import Conflict, DatabaseAway, NotFound, Refused
from tests.adapter.fate.flowing import FATE, OK, SIGNS, dag, party, task
from tests.builders import a_local_job, a_run
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, settings


def test_how_far_fate_says_that_a_job_is_is_shown(world, flow):
    """A node has no other way to know: FATE tells it with each task that ends, anywhere, and cannot be asked."""
    job = "202411220101019999770"
    flow.do(job, "job/create", "job/start")
    for said, shown in ((33.3, 33), (66.6, 66), (50.0, 66), (-1e300, 66), (None, 66), (100.0, 99)):
        assert flow.post("/partner/job/update", party(job, progress=said)) == OK
        path = "/v1/platform/schedule/job/status_all"
        data = ask(world.me, "operator", "GET", path, params={"job_id": job}).json()["data"]
        assert data["progress"] == shown, said
        assert data["warnings"] == list(world.local(job).warnings), said
    assert ask(world.me, "operator", "GET", f"/api/v1/jobs/{job}").json()["progress"] == 99
    flow.do(job, "job/status/update failed")
    assert (
        ask(world.me, "operator", "GET", path, params={"job_id": job}).json()["data"]["progress"]
        == 99
    )
    flow.do(job, "job/stop")


def test_fates_automatic_retry_ends_the_job_and_reruns_it(world, flow):
    """What had succeeded stays, the next version of the task that failed gets its output."""
    job = "202411220101019999992"
    body = dag()
    body["dag"]["tasks"]["a"]["outputs"] = {"data": {"out": {"output_artifact_key_alias": "out"}}}
    channel = {"producer_task": "a", "output_artifact_key": "out"}
    body["dag"]["tasks"]["b"] = {
        "component_ref": "Thing",
        "inputs": {"data": {"out": {"task_output_artifact": channel}}},
        "outputs": {},
    }
    one, two = task(job=job), task(name="b", job=job)
    assert flow.post("/partner/job/create", {**body, **party(job)}) == OK
    flow.do(job, "job/start", "task/start")
    table = world.me.settings.storage.path / f"{job}-host-0" / f"{job}_a_0-out"
    table.mkdir(parents=True)
    (table / "data_0").write_text("id\n1\n")
    world.end(job, "a", "host.0")
    assert flow.post("/partner/task/start", two) == OK
    world.end(job, "b", "host.0", code=3)
    states = [flow.post("/partner/task/collect", two)["data"]["party_status"] for _ in range(2)]
    assert states == [
        "running",
        "failed",
    ]  # FATE takes no failure of a task that it does not know to run
    assert flow.post("/partner/task/stop", {**two, "status": "failed"}) == OK
    flow.do(job, "job/status/update failed", "job/stop")
    assert flow.post("/partner/task/rerun", {**two, "new_version": 1}) == OK
    flow.do(job, *["job/status/update waiting"] * 2, "job/resource/apply", "job/start")
    again = {**two, "task_version": 1}
    states = [
        flow.post("/partner/task/collect", t)["data"]["party_status"] for t in (one, one, again)
    ]
    assert states == ["running", "success", "waiting"]
    for path in ("/partner/task/resource/apply", "/partner/task/start"):
        assert flow.post(path, again) == OK
    run = world.run(f"{job}-r1", "b", "host.0")
    assert run.inputs == {"out": Address(f"{job}-host-0", f"{job}_a_0-out")}
    world.end(f"{job}-r1", "b", "host.0")
    assert flow.post("/partner/task/collect", again)["data"]["party_status"] == "running"
    assert flow.post("/partner/task/collect", again)["data"]["party_status"] == "success"
    flow.do(job, "job/status/update success")
    ended = [world.local(found).ending.outcome for found in (job, f"{job}-r1")]
    assert ended == [Outcome.FAILED, Outcome.SUCCEEDED]
    assert world.local(f"{job}-r1").spec.old_job_id == job
    assert ask(world.me, "operator", "GET", f"/api/v1/jobs/{job}").json()["outcome"] == "FAILED"
    heir = "202411220101019999980"
    body["dag"]["conf"]["inheritance"] = {"job_id": job, "task_list": ["a", "b"]}
    assert flow.post("/partner/job/create", {**body, **party(heir)})["data"] == {
        "inherited": ["a", "b"]
    }
    assert world.local(heir).spec.old_job_id == f"{job}-r1"  # as it was begun last


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/partner/job/start", party("1"), 6000),
        ("/partner/job/status/update", party("1", status="waiting"), 6000),
        ("/partner/job/update", party("1", progress=1.0), 1001),
        ("/partner/job/resource/apply", party("1"), 1001),
        ("/partner/task/start", task(job="1"), 6000),
        ("/partner/task/collect", task(job="1"), 2000),
        ("/partner/task/stop", task(job="1"), 2000),
        ("/partner/task/collect", task(name="b"), 2000),
        ("/partner/task/collect", task(9), 2000),
        ("/partner/task/start", task(name="b"), 6000),
        ("/partner/job/status/update", party(status="pass"), 1003),
        ("/partner/task/status/update", task(status="ready"), 2002),
        ("/partner/job/create", {}, 5001),
        ("/partner/task/collect", task() | {"task_version": "new"}, 5001),
        (
            "/partner/job/create",
            {
                **dag(),
                **party("2"),
                "dag": {},
            },
            5001,
        ),
        ("/partner/job/create", {**dag("JG404"), **party("2")}, 1002),
        ("/scheduler/job/stop", {"job_id": "1"}, 1001),
        ("/scheduler/job/rerun", {"job_id": "1"}, 6000),
        (
            "/scheduler/task/report",
            task(
                job="1",
                status="success",
                party_id=FATE,
            ),
            6000,
        ),
        ("/scheduler/job/create", {**dag()}, 1002),  # to be scheduled by another node
        *(
            (path.removeprefix("/v2"), {}, 6001)
            for path in (*FOR_WORKERS, "/v2/worker/metric/save/one")
        ),
        ("/partner/job/begin", party(), 6000),
        ("/scheduler", {}, 6000),
        ("/job/submit", {}, 6000),  # on the operators' listener only
        ("/partner/job/start", {**party(), "more": "x" * 300_000}, 5001),
    ],
)
def test_what_is_out_of_order_or_unknown(flow, path, body, code):
    flow.post("/partner/job/create", {**dag(), **party()})
    said = flow.post(path, body)
    assert said["code"] == code
    assert (said["data"]["reason"] != "INTERNAL") is True


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/partner/job/stop", party("1"), 1001),
        ("/partner/task/rerun", task(job="1", new_version=1), 2000),
        ("/partner/task/rerun", task(name="b", new_version=1), 2000),
    ],
)
def test_fate_may_stop_and_prepare_what_is_not_there(flow, path, body, code):
    """As at its own nodes: it tells every party, those too that had refused the job. A gateway is told."""
    flow.post("/partner/job/create", {**dag(), **party()})
    assert flow.post(path, body) == OK
    assert flow.code(path, body, **{"x-source-node-id": FATE}) == code


def test_an_end_that_fate_explains_after_its_stop(world, flow):
    """FATE stops a job first and says afterwards how it ended; why is what failed here, else that it says so."""
    for number, word, code, outcome, reason in (
        (3, "canceled", None, Outcome.STOPPED, "STOPPED"),
        (4, "failed", 3, Outcome.FAILED, "EXIT_3"),
    ):
        job = f"20241122010101999999{number}"
        flow.do(job, "job/create", "job/start", "task/start")
        world.run(job, "a", "host.0")
        if code is not None:
            world.end(job, "a", "host.0", code=code)
        else:
            flow.do(job, "job/stop")
            assert world.local(job).is_ending_inferred
        flow.do(job, f"job/status/update {word}")
        ending = world.local(job).ending
        assert ending
        assert ending.failure
        assert ending.outcome == outcome
        assert ending.failure.reason == reason


@pytest.mark.parametrize(
    ("error", "status", "code", "reason"),
    [
        (Conflict("no"), 200, 1003, "CONFLICT"),
        (Conflict("no", reason="OWN"), 200, 1004, "OWN"),
        (ZeroDivisionError("secret"), 200, 6000, "INTERNAL"),
        (DatabaseAway("gone"), 503, 1003, "DATABASE_AWAY"),  # so that FATE tries again
    ],
)
def test_an_error_has_fates_code_and_our_reason(error, status, code, reason):
    app = FastAPI()
    app.router.route_class = FateRoute

    @app.get(
        "/", openapi_extra=codes_extra({"OWN": Code.KILL_JOB_FAILED, "": Code.UPDATE_JOB_FAILED})
    )
    async def fail() -> Any:
        raise error

    answer = TestClient(app, raise_server_exceptions=False).get("/")
    found = answer.json()
    assert answer.status_code == status
    assert found["code"] == code
    assert found["data"]["reason"] == reason
    assert found["message"].startswith(reason)
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("scheduler", "reason"), [(THIRD, "NOT_AUTHORISED"), (SIGNS, "SIGNATURE_MISSING")]
)
def test_an_unnamed_sender_needs_a_fate_route_and_any_required_signature(flow, scheduler, reason):
    assert (
        flow.post("/partner/job/create", {**dag(scheduler), **party("3")})["data"]["reason"]
        == reason
    )


def test_a_site_whose_proxy_sends_its_own_request_here_is_refused(flow):
    said = flow.post("/scheduler/job/create", {**dag(FATE)}, **{"initiator-party-id": FATE})
    assert said["code"] == 1002
    assert said["data"]["problems"][0]["path"] == "dag.conf.scheduler_party_id"
    assert "have its proxy send them to FATE-Flow" in said["message"]


def test_a_job_submitted_by_fate_gets_an_id_in_fates_format(world, flow):
    """And its party is told of it in FATE's protocol, try after try."""
    body = dag(ME, auto_retries=1)
    said = flow.post("/scheduler/job/create", body, **{"initiator-party-id": PEER})
    assert said["code"] == 0
    assert said["message"] == "success"
    job_id = said["job_id"]
    assert job_id.isdecimal()
    assert set(said["data"]) == {"model_id", "model_version"}
    assert world.job(job_id).tasks["a"].task_id == f"{job_id}_a_0"
    world.end(job_id, "a", "guest.0", code=3, node=world.peer)
    wait_for(lambda: world.job(job_id).tasks["a"].attempt == 1, 20, 0.01, "the next version")
    assert world.job(job_id).tasks["a"].task_id == f"{job_id}_a_1"
    wait_for(
        lambda: len(world.peer.store.local_jobs.get(job_id).runs) == 2, 20, 0.01, "it is begun"
    )
    assert flow.post("/scheduler/job/stop", {"job_id": job_id, "stop_status": "canceled"}) == OK
    ended = world.wait_status(job_id, JobStatus.FINISHED)
    assert ended.outcome is Outcome.STOPPED
    wait_for(lambda: world.peer.store.local_jobs.get(job_id).status is JobStatus.FINISHED, 20, 0.01)
    asked = {e.detail["path"] for e in world.me.store.timeline(job_id) if e.event == "request sent"}
    assert {path for path in asked if path.startswith("/v1/interconn")} == set()
    assert asked >= {
        f"/v2/partner/{what}" for what in ("job/create", "job/resource/apply", "task/start")
    }
    again = [
        world.me.coordinator.rerun(job_id, "", {}).job_id,
        world.peer.coordinator.rerun(job_id, "", {}).job_id,
    ]
    assert max(map(len, again)) <= 25
    assert len(set(again)) == 2  # FATE's nodes store no more of an id
    for made in again:
        assert world.peer.store.local_jobs.get(made).spec.scheduler == ME
        world.me.coordinator.stop_job(made, "", ME)


def test_what_this_node_knows_is_shown_of_a_job_that_fate_schedules(world, flow):
    """FATE has no request for a job's state."""
    job_id = "20241122010104"
    flow.do(job_id, "job/create", "job/start", "task/start")
    world.end(job_id, "a", "host.0", code=1)
    wait_for(lambda: all(run.over for run in world.local(job_id).runs), 20, 0.01)
    path = "/v1/platform/schedule/job/status_all"
    data = ask(world.me, "operator", "GET", path, params={"job_id": job_id}).json()["data"]
    assert data["scheduler"] == FATE
    assert data["failed_by"]["reason"] == "EXIT_1"
    [task] = data["tasks"]
    assert task["parties"] == {ME: {"host": "FAILED"}}
    assert task["failed_by"]["reason"] == "EXIT_1"
    flow.do(job_id, "job/status/update failed", "job/stop")


@pytest.mark.parametrize("word", ["failed", "timeout"])
def test_a_stop_for_a_failed_part_is_no_persons_stop(world, flow, word):
    """FATE's watch over its processes asks for a stop in this way where one has died."""
    job_id = flow.post("/scheduler/job/create", dag(ME), **{"initiator-party-id": PEER})["job_id"]
    assert (
        flow.post(
            "/scheduler/job/stop",
            {"job_id": job_id, "stop_status": word},
            **{"x-source-node-id": PEER},
        )
        == OK
    )
    ending = world.wait_status(job_id, JobStatus.FINISHED).ending
    assert ending is not None
    assert ending.failure is not None
    assert ending.outcome == Outcome.FAILED
    assert ending.failure.reason == word.upper()
    assert f"{PEER} says that its part has {word}" in ending.failure.message


def test_the_paths_are_not_there_while_fates_protocol_is_off(tmp_path):
    (tmp_path / "routes.yml").write_text(
        f"'{FATE}': {{host: 127.0.0.1, port: 9, profile: fate-partner}}\n"
    )
    node = Node(settings(tmp_path))
    try:
        for listener, path in (
            ("peer", "/v2/partner/job/start"),
            ("peer", "/v2/scheduler/job/stop"),
        ):
            assert (
                TestClient(node.apps[listener], "http://127.0.0.1").post(path, json={}).status_code
                == 404
            )
        assert (
            node.peers.adapter("fate").name == "fate"
        )  # jobs of earlier times still have their protocol
        with pytest.raises(Refused) as caught:
            node.peers.participant(FATE, "bfia")
        assert caught.value.reason == "PROTOCOL_OFF"
    finally:
        node.stop()


def test_a_task_beyond_what_the_job_holds_waits(monkeypatch):
    monkeypatch.setattr(endpoints, "_task_name", lambda *_: "b")
    running = a_local_job(a_run(status=RunStatus.RUNNING), status=JobStatus.RUNNING)
    local = replace(running, pool=Pool(Amounts(), 1))
    at: Any = SimpleNamespace(
        local=local,
        body=SimpleNamespace(key=SimpleNamespace(local_id="task-b")),
        is_undecided=False,
    )
    with pytest.raises(
        Refused, match="holds resources for 1 tasks at the same time here"
    ) as refused:
        endpoints._apply_task(at)
    assert refused.value.reason == "RESOURCES_BUSY"


def test_a_task_that_was_inherited_has_succeeded(monkeypatch):
    monkeypatch.setattr(endpoints, "_task_name", lambda *_: "a")
    local: Any = SimpleNamespace(inherited=[a_run()], can_inherit=("a",))
    body: Any = None
    assert endpoints._not_started(local, body, NotFound("no")).status is TaskStatus.SUCCESS
