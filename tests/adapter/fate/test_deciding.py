"""A job that FATE's own node schedules waits here for a person, a wait that FATE does not know."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Conflict
from tests.adapter.fate.flowing import Flow, dag, fate_world, party, task
from tests.contracts.apis import World
from tests.e2e.nodes import wait_for
from tests.inprocess import ask

_job_numbers = count(202411220101030000000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    approval = {"mode": "person", "deadline_seconds": 600}
    with fate_world(tmp_path_factory.mktemp("nodes"), approval=approval) as world:
        yield world


@pytest.fixture
def flow(world: World) -> Flow:
    return Flow(world)


@pytest.fixture
def job() -> str:
    """The id of a new job."""
    return str(next(_job_numbers))


def begin(
    flow: Flow,
    job: str,
    **conf: Any,
) -> None:
    """Send FATE's requests up to the first for resources of a task; each must succeed."""
    assert flow.code("/partner/job/create", party(job) | dag(**conf)) == 0
    flow.do(job, "job/status/update waiting", "job/resource/apply", "job/resource/return")
    # FATE starts over, as if another party had lacked resources
    flow.do(job, "job/resource/apply", "job/start", "job/status/update running")


def decide(
    world: World,
    job: str,
    decision: str,
) -> None:
    """Approve or reject a job as an operator."""
    path = f"/api/v1/jobs/{job}/{decision}"
    response = ask(
        world.me,
        "operator",
        "POST",
        path,
        json={"by": "li"},
    )
    assert response.status_code == 200, response.text


def paths_sent(
    world: World,
    job: str,
) -> set[str]:
    """Return the paths of the requests that `ME` has sent about a job."""
    timeline = world.me.store.timeline(job)
    return {entry.detail["path"] for entry in timeline if entry.event == "request sent"}


def test_nothing_starts_before_the_approval(world, flow, job):
    begin(flow, job)

    for _ in range(2):
        response = flow.post("/partner/task/resource/apply", task(job=job))
        assert response["code"] == 2004
        assert response["data"]["reason"] == "NOT_APPROVED"
    collected = flow.post("/partner/task/collect", task(job=job))
    assert collected["data"]["party_status"] == "waiting"
    assert flow.code("/partner/task/start", task(job=job)) == 2001
    local = world.local(job)
    assert local.status == JobStatus.PENDING
    assert local.runs == ()
    assert job in ask(world.me, "operator", "GET", "/api/v1/approvals").text


def test_fates_next_request_after_the_approval_starts_the_job(world, flow, job):
    begin(flow, job)
    decide(world, job, "approve")

    flow.do(job, "task/resource/apply")

    assert world.local(job).status is JobStatus.RUNNING


def test_an_approval_holds_for_the_retries_that_the_job_names(world, flow, job):
    begin(flow, job, auto_retries=1)
    decide(world, job, "approve")
    flow.do(job, "task/resource/apply", "task/start")
    world.end(
        job,
        "a",
        "host.0",
        code=3,
    )

    flow.do(job, "job/status/update failed", "job/status/update waiting")
    first_retry = world.local(f"{job}-r1")
    assert first_retry.status == JobStatus.READY
    assert first_retry.approval.by == "li"

    flow.do(job, "job/start", "job/status/update failed", "job/status/update waiting")
    assert world.local(f"{job}-r2").status is JobStatus.PENDING
    flow.do(job, "job/stop")


@pytest.mark.parametrize(
    ("retries", "end"),
    [
        (0, "failed"),
        (5, "success"),
        (5, "canceled"),
    ],
)
def test_a_rerun_that_is_no_retry_needs_another_approval(world, flow, job, retries, end):
    """Attack: an approved job is begun again under its id, after a success or without limit."""
    begin(flow, job, auto_retries=retries)
    decide(world, job, "approve")

    flow.do(job, "job/start", f"job/status/update {end}", "job/status/update waiting")

    assert world.local(f"{job}-r1").status is JobStatus.PENDING
    flow.do(job, "job/stop")


def test_fate_stops_a_job_that_is_rejected(world, flow, job):
    begin(flow, job)
    decide(world, job, "reject")

    # FATE has not yet learned of the rejection. A success here would start its own part.
    response = flow.post("/partner/task/resource/apply", task(job=job))
    assert response["code"] == 2004
    assert response["data"]["reason"] == "JOB_ENDED"

    # This is no rerun, as FATE has not ended the job.
    response = flow.post(
        "/partner/job/status/update",
        party(job, status="waiting"),
    )
    assert response["code"] == 1003
    assert response["data"]["reason"] == "JOB_ENDED"
    assert world.me.store.local_jobs.find(f"{job}-r1") is None

    wait_for(lambda: paths_sent(world, job), 20, 0.01, "FATE is told")
    assert paths_sent(world, job) == {"/v2/scheduler/job/stop"}

    flow.do(job, "job/stop", "job/status/update canceled")
    local = world.local(job)
    assert local.status == JobStatus.REJECTED
    assert local.approval.failure.reason == "APPROVAL_REJECTED"
    assert local.ending is not None
    assert local.ending.outcome is Outcome.REJECTED
    assert flow.code("/partner/task/start", task(job=job)) != 0


def test_a_job_that_fate_cancels_needs_no_approval_any_more(world, flow, job):
    begin(flow, job)

    flow.do(job, "job/status/update canceled", "job/stop")

    local = world.local(job)
    assert local.status == JobStatus.REJECTED
    assert local.ending.outcome == Outcome.STOPPED
    with pytest.raises(Conflict):
        world.me.approvals.decide(job, True, "li", "")
