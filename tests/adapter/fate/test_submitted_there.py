"""A job that this node's people hand in for a FATE site to schedule: FATE gives it an id of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.domain.states import JobStatus
from gateway.errors import Refused
from tests.adapter.fate.flowing import FATE, OK, Flow, fate_world, party
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.e2e.recorder import Recorder
from tests.inprocess import ME

THEIRS = "202411220101040000000"


@dataclass
class Site(Recorder):
    """As much of a FATE site as takes a job in: it has its parties create it before it answers with its id."""

    gives: str = THEIRS
    flow: Flow | None = None

    def pass_on(
        self,
        to: str,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, dict[str, str], bytes]:
        answer: dict[str, Any] = OK
        if path == "/v2/scheduler/job/create":
            answer = OK | {"job_id": self.gives, "data": {"model_id": "m"}}
            body = json.loads(raw) | party(self.gives) | {"kind": "fate"}
            if self.flow is not None and self.flow.code("/partner/job/create", body):
                answer = {"code": 1002, "message": "a party refuses"}
        return 200, {}, json.dumps(answer).encode()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[World]:
    with fate_world(tmp_path_factory.mktemp("nodes"), site.port) as world:
        yield world


def submit_to_fate(world: World) -> str:
    """Submit a job of this node's people that the FATE site schedules; return the id it goes by."""
    spec = a_spec("a", {"guest": (FATE,), "host": (ME,)})
    spec = replace(
        spec,
        initiator=ME,
        initiator_role="host",
        scheduler=FATE,
    )
    spec = replace(spec, protocol="fate", flow_id="flow-7")
    return world.me.coordinator.submit(spec)


def test_the_job_goes_by_the_id_that_fate_gave_it(world, site):
    flow = site.flow = Flow(world)
    assert submit_to_fate(world) == THEIRS
    local = world.local(THEIRS)
    assert local.spec.scheduler == FATE
    assert local.spec.protocol == "fate"
    assert local.spec.flow_id == "flow-7"
    assert world.me.coordinator.jobs("flow-7") == {
        THEIRS: JobStatus.READY
    }  # and no job under another id
    flow.do(THEIRS, "job/start", "task/start")
    world.end(THEIRS, "a", "host.0")
    assert world.local(THEIRS).status is JobStatus.RUNNING
    world.me.coordinator.stop(THEIRS)
    (stop,) = (
        one for one in site.seen if one.path == "/v2/scheduler/job/stop"
    )  # beside reports of the task
    assert stop.body == {"job_id": THEIRS, "stop_status": "canceled"}
    flow.do(THEIRS, "job/status/update canceled")
    again = world.me.coordinator.rerun(THEIRS, "", {})
    assert again.job_id == THEIRS  # FATE begins it again under the same id
    assert world.me.coordinator.jobs("flow-7") == {THEIRS: JobStatus.FINISHED}


def test_an_id_that_is_another_jobs_is_not_taken_over(world, site):
    spec = a_spec("a", {"guest": (ME,), "host": (ME,)}, job_id="own-job")
    world.me.coordinator.submit_job(replace(spec, initiator=ME, scheduler=ME), ME)
    site.flow, site.gives = None, "own-job"
    with pytest.raises(Refused) as refused:
        submit_to_fate(world)
    assert refused.value.reason == "JOB_ID_CONFLICT"
    assert world.me.store.scheduler_of("own-job") is None
    world.me.coordinator.stop_job("own-job", "", ME)
