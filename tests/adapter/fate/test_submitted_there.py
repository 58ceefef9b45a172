"""A job that this node's people hand in for a FATE site to schedule: FATE gives it an id of its own."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.domain.states import JobStatus
from tests.adapter.fate.flowing import FATE, Flow, fate_world, party
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.inprocess import ME, ask

THEIRS = "202411220101040000000"


class Site:
    """As much of a FATE site as takes a job in: it has its parties create it before it answers with its id."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.gives = THEIRS
        self.flow: Flow | None = None
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = json.dumps(site.answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        if path == "/v2/scheduler/job/create":
            if self.flow is not None:
                said = self.flow.post("/partner/job/create", {**body, **party(self.gives), "kind": "fate"})
                if said["code"]:
                    return {"code": 1002, "message": json.dumps(said)}
            return {"code": 0, "message": "success", "job_id": self.gives, "data": {"model_id": "m"}}
        return {"code": 0, "message": "success"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[World]:
    with fate_world(tmp_path_factory.mktemp("nodes"), site.server.server_port) as world:
        yield world


def submitted(world: World) -> dict[str, Any]:
    job = {
        "parties": [{"role": "guest", "party_id": [FATE]}, {"role": "host", "party_id": [ME]}],
        "conf": {"scheduler_party_id": FATE, "initiator_party_id": ME, "extra": {"flow_id": "flow-7"}},
        "tasks": {"a": {"component_ref": "Thing", "conf": {"provider": "vendor:1.0.0"}, "outputs": {}}},
    }
    schema = {"dag": job, "schema_version": "2.2.0", "kind": "fate"}
    found = ask(world.me, "operator", "POST", "/v2/job/submit", json={"dag_schema": schema}).json()
    assert isinstance(found, dict)
    return found


def test_the_job_goes_by_the_id_that_fate_gave_it(world: World, site: Site):
    flow = site.flow = Flow(world)
    said = submitted(world)
    assert (said["code"], said["job_id"]) == (0, THEIRS)
    assert THEIRS in said["data"]["log_url"]
    local = world.local(THEIRS)
    assert (local.spec.scheduler, local.spec.protocol, local.spec.flow_id) == (FATE, "fate", "flow-7")
    assert world.me.coordinator.jobs("flow-7") == {THEIRS: JobStatus.READY}  # and no job under another id
    flow.do(THEIRS, "job/start", "task/start")
    world.end(THEIRS, "a", "host.0")
    [row] = ask(world.me, "operator", "GET", "/v2/job/query", params={"job_id": THEIRS}).json()["data"]
    assert (row["status"], row["role"], row["party_id"]) == ("running", "host", ME)
    assert ask(world.me, "operator", "POST", "/v2/job/stop", json={"job_id": THEIRS}).json()["code"] == 0
    assert site.asked[-1] == ("/v2/scheduler/job/stop", {"job_id": THEIRS, "stop_status": "canceled"})
    flow.do(THEIRS, "job/status/update canceled")
    again = world.me.coordinator.rerun(THEIRS, "", {})
    assert again.job_id == THEIRS  # FATE begins it again under the same id
    assert world.me.coordinator.jobs("flow-7") == {THEIRS: JobStatus.FINISHED}


def test_an_id_that_is_another_jobs_is_not_taken_over(world: World, site: Site):
    spec = a_spec("a", {"guest": (ME,), "host": (ME,)}, job_id="own-job")
    world.me.coordinator.submit_job(replace(spec, initiator=ME, scheduler=ME), ME)
    site.flow, site.gives = None, "own-job"
    said = submitted(world)
    assert (said["code"], said["data"]["reason"]) == (1002, "JOB_ID_CONFLICT")
    assert world.me.store.scheduler_of("own-job") is None
    world.me.coordinator.stop_job("own-job", "", ME)
