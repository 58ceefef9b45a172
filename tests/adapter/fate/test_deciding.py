"""A job that FATE's own node schedules waits for a person here, though FATE knows no such wait."""

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

_numbers = count(202411220101030000000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    person = {"mode": "person", "deadline_seconds": 600}
    with fate_world(tmp_path_factory.mktemp("nodes"), approval=person) as world:
        yield world


@pytest.fixture
def flow(world: World) -> Flow:
    return Flow(world)


def begin(
    flow: Flow,
    job: str,
    **conf: Any,
) -> None:
    """Do what FATE does until it wants a task's resources; it goes on only where each answer is a yes."""
    assert flow.code("/partner/job/create", party(job) | dag(**conf)) == 0
    flow.do(job, "job/status/update waiting", "job/resource/apply", "job/resource/return")
    # another party had not enough: FATE begins anew
    flow.do(job, "job/resource/apply", "job/start", "job/status/update running")


def waits(flow: Flow, job: str) -> None:
    for _ in range(2):
        said = flow.post("/partner/task/resource/apply", task(job=job))
        assert said["code"] == 2004
        assert said["data"]["reason"] == "NOT_APPROVED"
    assert flow.post("/partner/task/collect", task(job=job))["data"]["party_status"] == "waiting"


def decide(
    world: World,
    job: str,
    word: str,
) -> None:
    said = ask(world.me, "operator", "POST", f"/api/v1/jobs/{job}/{word}", json={"by": "li"})
    assert said.status_code == 200, said.text


def test_nothing_starts_before_approval_and_fates_next_request_starts_it(world, flow):
    job = str(next(_numbers))
    begin(flow, job, auto_retries=1)
    waits(flow, job)
    assert flow.code("/partner/task/start", task(job=job)) == 2001
    local = world.local(job)
    assert local.status == JobStatus.PENDING
    assert local.runs == ()
    assert job in ask(world.me, "operator", "GET", "/api/v1/approvals").text
    decide(world, job, "approve")
    flow.do(job, "task/resource/apply")
    assert world.local(job).status is JobStatus.RUNNING
    flow.do(job, "task/start")
    world.end(job, "a", "host.0", code=3)
    flow.do(job, "job/status/update failed", "job/status/update waiting")  # its automatic retry
    again = world.local(f"{job}-r1")
    assert again.status == JobStatus.READY
    assert again.approval.by == "li"  # who agreed is not asked again
    flow.do(job, "job/start", "job/status/update failed", "job/status/update waiting")
    assert world.local(f"{job}-r2").status is JobStatus.PENDING, (
        "the job names one retry; more need another yes"
    )
    flow.do(job, "job/stop")


@pytest.mark.parametrize(("retries", "end"), [(0, "failed"), (5, "success"), (5, "canceled")])
def test_what_is_no_retry_of_the_job_needs_another_approval(world, flow, retries, end):
    """Attack: one approved job is begun again under its id, after a success or without end."""
    job = str(next(_numbers))
    begin(flow, job, auto_retries=retries)
    decide(world, job, "approve")
    flow.do(job, "job/start", f"job/status/update {end}", "job/status/update waiting")
    assert world.local(f"{job}-r1").status is JobStatus.PENDING
    flow.do(job, "job/stop")


def called(world: World, job: str) -> set[str]:
    return {e.detail["path"] for e in world.me.store.timeline(job) if e.event == "request sent"}


def test_who_refuses_has_fate_stop_the_job(world, flow):
    job = str(next(_numbers))
    begin(flow, job)
    decide(world, job, "reject")
    said = flow.post(
        "/partner/task/resource/apply", task(job=job)
    )  # a turn before it hears of the no
    assert said["code"] == 2004, "else FATE begins its own part"
    assert said["data"]["reason"] == "JOB_ENDED", "else FATE begins its own part"
    said = flow.post("/partner/job/status/update", party(job, status="waiting"))
    assert said["code"] == 1003
    assert said["data"]["reason"] == "JOB_ENDED"  # no rerun: FATE has not ended it yet
    assert world.me.store.local_jobs.find(f"{job}-r1") is None
    wait_for(lambda: called(world, job), 20, 0.01, "FATE is told")
    assert called(world, job) == {"/v2/scheduler/job/stop"}
    flow.do(job, "job/stop", "job/status/update canceled")
    local = world.local(job)
    assert local.status == JobStatus.REJECTED
    assert local.approval.failure.reason == "APPROVAL_REJECTED"
    assert local.ending is not None
    assert local.ending.outcome is Outcome.REJECTED
    assert flow.code("/partner/task/start", task(job=job)) != 0


def test_a_job_that_fate_cancels_needs_no_approval_any_more(world, flow):
    job = str(next(_numbers))
    begin(flow, job)
    flow.do(job, "job/status/update canceled", "job/stop")
    local = world.local(job)
    assert local.status == JobStatus.REJECTED
    assert local.ending.outcome == Outcome.STOPPED
    with pytest.raises(Conflict):
        world.me.participant.decide(job, True, "li", "")
