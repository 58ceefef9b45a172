"""A job that operators of this node submit to a FATE site, which gives it an id of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.domain.states import JobStatus
from gateway.errors import Refused
from gateway.ports import JobSelection
from tests.adapter.fate.flowing import FATE, OK, Flow, fate_world, party
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.e2e.recorder import Recorder
from tests.inprocess import ME

FATES_ID = "202411220101040000000"


@dataclass
class Site(Recorder):
    """A FATE site that accepts jobs.

    It creates a job at the job's party ``flow`` (if it is not None) and then returns the id.
    """

    assigned_id: str = FATES_ID
    flow: Flow | None = None

    def pass_on(
        self,
        to: str,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, dict[str, str], bytes]:
        response: dict[str, Any] = OK
        if path == "/v2/scheduler/job/create":
            response = self._create(json.loads(raw))
        return 200, {}, json.dumps(response).encode()

    def _create(
        self,
        job: dict[str, Any],
    ) -> dict[str, Any]:
        if self.flow is not None:
            body = job | party(self.assigned_id) | {"kind": "fate"}
            if self.flow.code("/partner/job/create", body) != 0:
                return {"code": 1002, "message": "a party refuses"}
        return {**OK, "job_id": self.assigned_id, "data": {"model_id": "m"}}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    site: Site,
) -> Iterator[World]:
    with fate_world(tmp_path_factory.mktemp("nodes"), site.port) as world:
        yield world


def submit_to_fate(world: World) -> str:
    """Submit a job that the FATE site schedules, as this node's operators do; return its id."""
    spec = replace(
        a_spec(
            "a",
            {
                "guest": (FATE,),
                "host": (ME,),
            },
        ),
        initiator=ME,
        initiator_role="host",
        scheduler=FATE,
        protocol="fate",
        flow_id="flow-7",
    )
    return world.me.job_requests.submit(spec)


def test_a_job_that_fate_schedules_has_only_the_id_that_fate_assigned(world, site):
    flow = Flow(world)
    site.flow = flow

    assert submit_to_fate(world) == FATES_ID
    local = world.local(FATES_ID)
    assert local.spec.scheduler == FATE
    assert local.spec.protocol == "fate"
    assert local.spec.flow_id == "flow-7"
    assert world.me.job_statuses.jobs(JobSelection("flow-7")) == {FATES_ID: JobStatus.READY}

    flow.do(FATES_ID, "job/start", "task/start")
    world.end(FATES_ID, "a", "host.0")
    assert world.local(FATES_ID).status is JobStatus.RUNNING

    world.me.job_requests.stop(FATES_ID)
    (stop,) = [request for request in site.exchanges if request.path == "/v2/scheduler/job/stop"]
    assert stop.body == {
        "job_id": FATES_ID,
        "stop_status": "canceled",
    }

    # FATE reruns a job under the same id.
    flow.do(FATES_ID, "job/status/update canceled")
    rerun = world.me.job_requests.rerun(
        FATES_ID,
        "",
        {},
    )
    assert rerun.job_id == FATES_ID
    assert world.me.job_statuses.jobs(JobSelection("flow-7")) == {FATES_ID: JobStatus.FINISHED}


def test_an_assigned_id_that_another_job_has_is_refused(world, site):
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (ME,),
        },
        job_id="own-job",
    )
    world.me.coordinator.submit_job(
        replace(
            spec,
            initiator=ME,
            scheduler=ME,
        ),
        ME,
    )
    site.flow = None
    site.assigned_id = "own-job"

    with pytest.raises(Refused) as refused:
        submit_to_fate(world)

    assert refused.value.reason == "JOB_ID_CONFLICT"
    assert world.me.store.scheduler_of("own-job") is None
    world.me.coordinator.stop_job("own-job", "", ME)
