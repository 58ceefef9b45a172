"""Requests of a FATE-Flow 2.2 that schedules a job in which this node is a host, and our responses.

FATE-Flow 2.2.0 was seen to send these bodies in this order and to give these codes (see
`tests/e2e/test_fate_flow.py`), except requests on which FATE-Flow itself breaks down.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from adapter.fate import endpoints
from adapter.fate.envelope import FOR_WORKERS, Code, FateRoute, codes_extra
from adapter.fate.requests import Task
from gateway.domain.amounts import Amounts, Pool
from gateway.domain.run import Address
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import Conflict, DatabaseAway, NotFound, Refused, TooLarge
from tests.adapter.fate.flowing import FATE, OK, SIGNS, Flow, dag, party, task
from tests.builders import a_local_job, a_run, a_spec
from tests.contracts.apis import THIRD, World
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, settings

STATUS_PATH = "/v1/platform/schedule/job/status_all"
FROM_PEER = {"initiator-party-id": PEER}
FROM_FATE = {"x-source-node-id": FATE}
_job_numbers = count(202411220101019999700)
# Larger than ``limits.body_bytes`` of the node.
LONG_TEXT = "x" * 300_000


@pytest.fixture
def job() -> str:
    """The id of a job that does not exist."""
    return str(next(_job_numbers))


def standard_view(
    world: World,
    job: str,
) -> dict[str, Any]:
    """Return a job as the operators see it by the standard's interface."""
    response = ask(
        world.me,
        "operator",
        "GET",
        STATUS_PATH,
        params={"job_id": job},
    )
    return dict(response.json()["data"])


def gateway_view(
    world: World,
    job: str,
) -> dict[str, Any]:
    """Return a job as the operators see it by the gateway's own interface."""
    return dict(ask(world.me, "operator", "GET", f"/api/v1/jobs/{job}").json())


def test_the_progress_that_fate_reports_is_shown(world, flow, job):
    """FATE reports it with each task that ends anywhere; a node cannot ask for it."""
    flow.do(job, "job/create", "job/start")

    for reported, shown in (
        (33.3, 33),
        (66.6, 66),
        (50.0, 66),
        (-1e300, 66),
        (None, 66),
        (100.0, 99),
    ):
        assert flow.post("/partner/job/update", party(job, progress=reported)) == OK
        view = standard_view(world, job)
        assert view["progress"] == shown, reported
        assert view["warnings"] == list(world.local(job).warnings), reported
    assert gateway_view(world, job)["progress"] == 99

    flow.do(job, "job/status/update failed")
    assert standard_view(world, job)["progress"] == 99
    flow.do(job, "job/stop")


def a_flow_of_two_tasks() -> dict[str, Any]:
    """Return a job in which task ``b`` reads the output of task ``a``."""
    body = dag()
    artifact = {"producer_task": "a", "output_artifact_key": "out"}
    tasks = body["dag"]["tasks"]
    tasks["a"]["outputs"] = {"data": {"out": {"output_artifact_key_alias": "out"}}}
    tasks["b"] = {
        "component_ref": "Thing",
        "inputs": {"data": {"out": {"task_output_artifact": artifact}}},
        "outputs": {},
    }
    return body


def write_output_of_a(world: World, job: str) -> None:
    """Write the output table of task ``a``."""
    table = world.me.settings.storage.path / f"{job}-host-0" / f"{job}_a_0-out"
    table.mkdir(parents=True)
    (table / "data_0").write_text("id\n1\n")


def collect(
    flow: Flow,
    body: dict[str, Any],
) -> str:
    """Return the state of a task at this node as FATE learns it."""
    return str(flow.post("/partner/task/collect", body)["data"]["party_status"])


def test_fates_automatic_retry_ends_the_job_and_reruns_it(world, flow, job):
    """The rerun keeps the successful task; the next version of the failed one gets its output."""
    body = a_flow_of_two_tasks()
    task_a = task(job=job)
    task_b = task(
        name="b",
        job=job,
    )
    assert flow.post("/partner/job/create", {**body, **party(job)}) == OK
    flow.do(job, "job/start", "task/start")
    write_output_of_a(world, job)
    world.end(job, "a", "host.0")

    # FATE accepts no failure of a task that it does not know to run.
    assert flow.post("/partner/task/start", task_b) == OK
    world.end(
        job,
        "b",
        "host.0",
        code=3,
    )
    assert collect(flow, task_b) == "running"
    assert collect(flow, task_b) == "failed"
    assert flow.post("/partner/task/stop", {**task_b, "status": "failed"}) == OK
    flow.do(job, "job/status/update failed", "job/stop")

    assert flow.post("/partner/task/rerun", {**task_b, "new_version": 1}) == OK
    flow.do(job, "job/status/update waiting", "job/status/update waiting")
    flow.do(job, "job/resource/apply", "job/start")
    next_version = {**task_b, "task_version": 1}
    assert collect(flow, task_a) == "running"
    assert collect(flow, task_a) == "success"
    assert collect(flow, next_version) == "waiting"

    for path in ("/partner/task/resource/apply", "/partner/task/start"):
        assert flow.post(path, next_version) == OK
    rerun = f"{job}-r1"
    run = world.run(rerun, "b", "host.0")
    assert run.data.inputs == {"out": Address(f"{job}-host-0", f"{job}_a_0-out")}
    world.end(rerun, "b", "host.0")
    assert collect(flow, next_version) == "running"
    assert collect(flow, next_version) == "success"

    flow.do(job, "job/status/update success")
    assert world.local(job).ending.outcome == Outcome.FAILED
    assert world.local(rerun).ending.outcome == Outcome.SUCCEEDED
    assert world.local(rerun).spec.old_job_id == job
    assert gateway_view(world, job)["outcome"] == "FAILED"

    # A job that inherits from the job inherits from its latest rerun.
    inheriting_job = f"{job}1"
    body["dag"]["conf"]["inheritance"] = {
        "job_id": job,
        "task_list": ["a", "b"],
    }
    response = flow.post("/partner/job/create", {**body, **party(inheriting_job)})
    assert response["data"] == {"inherited": ["a", "b"]}
    assert world.local(inheriting_job).spec.old_job_id == rerun


WORKER_PATHS = [path.removeprefix("/v2") for path in (*FOR_WORKERS, "/v2/worker/metric/save/one")]


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
        ("/partner/job/create", {**dag(), **party("2"), "dag": {}}, 5001),
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
        # a job for another node to schedule
        ("/scheduler/job/create", dag(), 1002),
        *[(path, {}, 6001) for path in WORKER_PATHS],
        ("/partner/job/begin", party(), 6000),
        ("/scheduler", {}, 6000),
        # served on the operators' listener only
        ("/job/submit", {}, 6000),
        ("/partner/job/start", {**party(), "more": LONG_TEXT}, 5001),
    ],
)
def test_requests_out_of_order_or_about_unknown_jobs_are_refused(flow, path, body, code):
    flow.post("/partner/job/create", {**dag(), **party()})

    response = flow.post(path, body)

    assert response["code"] == code
    assert response["data"]["reason"] != "INTERNAL"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/partner/job/stop", party("1"), 1001),
        ("/partner/task/rerun", task(job="1", new_version=1), 2000),
        ("/partner/task/rerun", task(name="b", new_version=1), 2000),
    ],
)
def test_fate_may_stop_and_prepare_unknown_jobs_and_tasks(flow, path, body, code):
    """FATE tells every party, even after its refusal of the job. A gateway gets the error."""
    flow.post("/partner/job/create", {**dag(), **party()})

    assert flow.post(path, body) == OK
    assert flow.code(path, body, **FROM_FATE) == code


def test_a_stop_that_fate_explains_later_is_a_persons_stop(world, flow, job):
    """FATE stops a job first and reports afterwards how it ended."""
    flow.do(job, "job/create", "job/start", "task/start")
    world.run(job, "a", "host.0")

    flow.do(job, "job/stop")
    assert world.local(job).is_ending_inferred
    flow.do(job, "job/status/update canceled")

    ending = world.local(job).ending
    assert ending
    assert ending.failure
    assert ending.outcome == Outcome.STOPPED
    assert ending.failure.reason == "STOPPED"


def test_a_failure_that_fate_reports_has_the_reason_of_this_node(world, flow, job):
    """FATE reports no reason."""
    flow.do(job, "job/create", "job/start", "task/start")
    world.end(
        job,
        "a",
        "host.0",
        code=3,
    )

    flow.do(job, "job/status/update failed")

    ending = world.local(job).ending
    assert ending
    assert ending.failure
    assert ending.outcome == Outcome.FAILED
    assert ending.failure.reason == "EXIT_3"


@pytest.mark.parametrize(
    ("error", "status", "code", "reason"),
    [
        (Conflict("no"), 200, 1003, "CONFLICT"),
        (Conflict("no", reason="OWN"), 200, 1004, "OWN"),
        (ZeroDivisionError("secret"), 200, 6000, "INTERNAL"),
        (TooLarge("large"), 200, 5001, "TOO_LARGE"),
        # by this status FATE tries again
        (DatabaseAway("gone"), 503, 1003, "DATABASE_AWAY"),
    ],
)
def test_an_error_has_fates_code_and_our_reason(error, status, code, reason):
    codes = {
        "OWN": Code.KILL_JOB_FAILED,
        "": Code.UPDATE_JOB_FAILED,
    }
    app = FastAPI()
    app.router.route_class = FateRoute

    @app.get("/", openapi_extra=codes_extra(codes))
    async def fail() -> Any:
        raise error

    response = TestClient(app, raise_server_exceptions=False).get("/")

    body = response.json()
    assert response.status_code == status
    assert body["code"] == code
    assert body["data"]["reason"] == reason
    assert body["message"].startswith(reason)
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        (THIRD, "NOT_AUTHORISED"),
        (SIGNS, "SIGNATURE_MISSING"),
    ],
)
def test_an_unnamed_sender_needs_a_fate_route_and_any_required_signature(flow, scheduler, reason):
    response = flow.post("/partner/job/create", {**dag(scheduler), **party("3")})

    assert response["data"]["reason"] == reason


def test_a_request_that_a_sites_proxy_sends_to_the_wrong_node_is_refused(flow):
    response = flow.post("/scheduler/job/create", dag(FATE), **{"initiator-party-id": FATE})

    assert response["code"] == 1002
    assert response["data"]["problems"][0]["path"] == "dag.conf.scheduler_party_id"
    assert "have its proxy send them to FATE-Flow" in response["message"]


@pytest.fixture
def submitted_job(flow: Flow) -> str:
    """The id of a job that `PEER` submits in FATE's protocol, for this node to schedule."""
    response = flow.post("/scheduler/job/create", dag(ME, auto_retries=1), **FROM_PEER)
    assert response["code"] == 0
    assert response["message"] == "success"
    assert set(response["data"]) == {"model_id", "model_version", "board_url"}
    assert response["data"]["board_url"] == f"/console/#/jobs/{response['job_id']}"
    return str(response["job_id"])


def test_a_job_submitted_by_fate_gets_an_id_in_fates_format(world, submitted_job):
    assert submitted_job.isdecimal()
    assert len(submitted_job) == 21
    assert world.job(submitted_job).tasks["a"].task_id == f"{submitted_job}_a_0"


def test_each_attempt_reaches_its_party_by_fates_protocol(world, flow, submitted_job):
    peer_jobs = world.peer.store.local_jobs

    world.end(
        submitted_job,
        "a",
        "guest.0",
        code=3,
        node=world.peer,
    )
    wait_for(lambda: world.job(submitted_job).tasks["a"].attempt == 1, 20, 0.01, "the next version")
    assert world.job(submitted_job).tasks["a"].task_id == f"{submitted_job}_a_1"
    wait_for(lambda: len(peer_jobs.get(submitted_job).runs) == 2, 20, 0.01, "it is begun")

    stop = {"job_id": submitted_job, "stop_status": "canceled"}
    assert flow.post("/scheduler/job/stop", stop) == OK
    assert world.wait_status(submitted_job, JobStatus.FINISHED).outcome is Outcome.STOPPED
    wait_for(lambda: peer_jobs.get(submitted_job).status is JobStatus.FINISHED, 20, 0.01)

    timeline = world.me.store.timeline(submitted_job)
    paths = {entry.detail["path"] for entry in timeline if entry.event == "request sent"}
    assert not [path for path in paths if path.startswith("/v1/interconn")]
    assert "/v2/partner/job/create" in paths
    assert "/v2/partner/job/resource/apply" in paths
    assert "/v2/partner/task/start" in paths


def test_reruns_of_a_job_submitted_by_fate_have_short_ids_of_their_own(world, flow, submitted_job):
    """FATE's nodes store at most 25 characters of an id."""
    flow.post("/scheduler/job/stop", {"job_id": submitted_job, "stop_status": "canceled"})
    world.wait_status(submitted_job, JobStatus.FINISHED)

    first = world.me.job_requests.rerun(submitted_job, "", {}).job_id
    second = world.peer.job_requests.rerun(submitted_job, "", {}).job_id

    assert first != second
    for job_id in (first, second):
        assert len(job_id) <= 25
        assert world.peer.store.local_jobs.get(job_id).spec.scheduler == ME
        world.me.coordinator.stop_job(job_id, "", ME)


def test_a_job_that_fate_schedules_is_shown_as_far_as_this_node_knows_it(world, flow, job):
    """FATE has no request for a job's state."""
    flow.do(job, "job/create", "job/start", "task/start")
    world.end(
        job,
        "a",
        "host.0",
        code=1,
    )

    view = standard_view(world, job)

    assert view["scheduler"] == FATE
    assert view["failed_by"]["reason"] == "EXIT_1"
    (only_task,) = view["tasks"]
    assert only_task["parties"] == {ME: {"host": "FAILED"}}
    assert only_task["failed_by"]["reason"] == "EXIT_1"
    flow.do(job, "job/status/update failed", "job/stop")


@pytest.mark.parametrize("word", ["failed", "timeout"])
def test_a_stop_for_a_failed_party_is_no_persons_stop(world, flow, word):
    """FATE's watch over its processes requests a stop in this way if one has died."""
    job = flow.post("/scheduler/job/create", dag(ME), **FROM_PEER)["job_id"]

    stop = {"job_id": job, "stop_status": word}
    assert flow.post("/scheduler/job/stop", stop, **{"x-source-node-id": PEER}) == OK

    ending = world.wait_status(job, JobStatus.FINISHED).ending
    assert ending is not None
    assert ending.failure is not None
    assert ending.outcome == Outcome.FAILED
    assert ending.failure.reason == word.upper()
    assert f"{PEER} says that its part has {word}" in ending.failure.message


@pytest.fixture
def node_without_fate(tmp_path) -> Iterator[Node]:
    """A node with a route to a FATE site whose settings leave FATE's protocol off."""
    route = f"'{FATE}': {{host: 127.0.0.1, port: 9, profile: fate-partner}}\n"
    (tmp_path / "routes.yml").write_text(route)
    node = Node(settings(tmp_path))
    yield node
    node.stop()


def test_the_paths_are_not_there_while_fates_protocol_is_off(node_without_fate):
    client = TestClient(node_without_fate.apps["peer"], "http://127.0.0.1")

    for path in ("/v2/partner/job/start", "/v2/scheduler/job/stop"):
        assert client.post(path, json={}).status_code == 404


def test_fates_protocol_serves_only_old_jobs_while_it_is_off(node_without_fate):
    peers = node_without_fate.peers

    assert peers.adapter("fate").name == "fate"
    with pytest.raises(Refused) as caught:
        peers.participant(FATE, "bfia")
    assert caught.value.reason == "PROTOCOL_OFF"


def test_a_task_beyond_the_reservation_of_its_job_waits():
    running = a_local_job(
        a_run(status=RunStatus.RUNNING),
        status=JobStatus.RUNNING,
    )
    command: Any = SimpleNamespace(
        local=replace(
            running,
            pool=Pool(Amounts(), 1),
        ),
        body=Task.model_validate(task()),
        is_undecided=False,
    )

    with pytest.raises(
        Refused,
        match="holds resources for 1 tasks at the same time here",
    ) as refused:
        endpoints._apply_task(command)

    assert refused.value.reason == "RESOURCES_BUSY"


def test_an_inherited_task_has_succeeded():
    local: Any = SimpleNamespace(
        spec=a_spec("a"),
        inherited=[a_run()],
        can_inherit=("a",),
    )
    body = Task.model_validate(task())

    news = endpoints._news_of_unstarted(local, body, NotFound("no"))

    assert news.status is TaskStatus.SUCCESS
