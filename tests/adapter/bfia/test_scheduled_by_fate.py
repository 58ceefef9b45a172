"""A job that FATE-Flow schedules by its adapter of the standard: how it ended, the same wherever it is shown.

FATE-Flow sends a bare ``job/stop`` at every end, leaves tasks FAILED that it stopped, and tells neither outcome
nor cause. Its answers here were recorded, or written after its source.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.domain.states import Outcome, TaskStatus
from gateway.jobs.views import with_local
from gateway.ports import Callback
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import CONTROL, FATE, Site, a_job_with, by_path, serving_site
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask
from tests.memory_engine import MemoryEngine

STOP_ALL = "/v1/platform/schedule/job/stop_all"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    shared.peer.asked.clear()
    yield shared
    shared.peer.will(says())


def fate_says(
    site: Site,
    job_status: str,
    **tasks: str,
) -> None:
    """Have FATE-Flow tell this of every job from now on."""
    site.peer.will(by_path(job_status_all=says(data={"job_status": job_status, "status": tasks})))


def accepted(
    site: Site,
    dag: str = "a -> b",
    **common: Any,
) -> JobSpec:
    """Take a job of FATE-Flow's in and start it; no task has begun."""
    spec = a_job_with(FATE, dag, scheduler=FATE)
    spec = replace(spec, job_params={"common": common} if common else {})
    site.node.participant.create_job(spec, FATE)
    site.node.participant.start_job(spec.job_id, FATE)
    return spec


def begun(
    site: Site,
    dag: str = "a -> b",
    **common: Any,
) -> JobSpec:
    spec = accepted(site, dag, **common)
    site.node.participant.start_task(spec.job_id, f"task-{spec.job_id}", "a", FATE)
    site.run(spec.job_id, "guest.0")
    return spec


def ended(site: Site, spec: JobSpec) -> LocalJob:
    """Wait until a job has ended here, and nothing is left to ask about it."""
    jobs = site.node.store.local_jobs

    def settled() -> bool:
        local = jobs.get(spec.job_id)
        return local.ended_at is not None and not local.is_ending_inferred

    wait_for(settled, 30, 0.05, "FATE-Flow has told how the job ended")
    return jobs.get(spec.job_id)


def stop_here(site: Site, spec: JobSpec) -> None:
    answer = ask(site.node, "operator", "POST", STOP_ALL, json={"job_id": spec.job_id}).json()
    assert answer["code"] == 0, answer


def fate_stops(
    site: Site,
    spec: JobSpec,
    task: str = "",
) -> None:
    body = {"job_id": spec.job_id} | ({"task_name": task} if task else {})
    assert site.asks(FATE, "/job/stop", body)["code"] == 0


def stories(site: Site, spec: JobSpec) -> dict[str, Any]:
    """Return the outcome of a job from every place that shows it."""
    job_id = spec.job_id
    shown = ask(site.node, "operator", "GET", f"/api/v1/jobs/{job_id}").json()
    listed = ask(site.node, "operator", "GET", "/api/v1/jobs", params={"limit": 1000}).json()[
        "jobs"
    ]
    events = ask(site.node, "operator", "GET", f"/api/v1/jobs/{job_id}/timeline").json()["timeline"]
    outcomes = [
        e["detail"]["outcome"]
        for e in events
        if e["event"] in ("job FINISHED here", "job's end explained")
    ]
    return {
        "show": shown["outcome"],
        "status_all": site.platform("/job/status_all", job_id=job_id)["data"]["outcome"],
        "list": next(job["outcome"] for job in listed if job["job_id"] == job_id),
        "timeline": outcomes[-1],
        "peers' status_all": site.asks(FATE, "/job/status_all", {"job_id": job_id})["data"][
            "outcome"
        ],
    }


def told_alike(
    site: Site,
    spec: JobSpec,
    outcome: str,
) -> dict[str, Any]:
    """Check that every place tells the same; return the failure that is shown."""
    assert set(stories(site, spec).values()) == {outcome}, stories(site, spec)
    failure = ask(site.node, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json()["failure"]
    assert failure and failure["reason"]
    advice = ask(site.node, "operator", "GET", f"/api/v1/reasons/{failure['reason']}").json()
    assert advice["next_step"]
    return dict(failure)


@pytest.mark.parametrize("when", ["before its first task", "while it runs"])
@pytest.mark.parametrize("who", ["we", "FATE's people"])
def test_a_stopped_job_is_stopped_and_says_by_whom(
    site: Site,
    when: str,
    who: str,
):
    runs = when == "while it runs"
    spec = begun(site) if runs else accepted(site)
    fate_says(site, "FINISHED", a="FAILED" if runs else "READY", b="READY")
    if who == "we":
        stop_here(site, spec)
    fate_stops(site, spec)
    local = ended(site, spec)
    assert local.ending is not None and local.ending.outcome is Outcome.STOPPED
    assert local.ending.by == (ME if who == "we" else FATE)
    words = f"stopped by {ME}" if who == "we" else f"stopped by {FATE}, which did not say why"
    assert told_alike(site, spec, "STOPPED")["message"] == words
    listed = ask(
        site.node, "operator", "GET", "/api/v1/jobs", params={"outcome": "STOPPED", "limit": 1000}
    ).json()
    assert spec.job_id in [job["job_id"] for job in listed["jobs"]]


def test_a_container_that_fails_at_fate_fails_a_job_that_succeeded_here(site: Site):
    spec = begun(site, "a")
    fate_says(site, "FINISHED", a="FAILED")
    site.succeed(spec.job_id)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over,
        20,
        0.02,
        "our run is over",
    )
    fate_stops(site, spec, "a")
    fate_stops(site, spec)
    ended(site, spec)
    failure = told_alike(site, spec, "FAILED")
    assert failure["message"] == f"{FATE} says that the job has failed, and not why"


def test_a_job_that_succeeds_at_fate_keeps_its_outcome(site: Site):
    spec = begun(site, "a")
    fate_says(site, "FINISHED", a="SUCCESS")
    site.succeed(spec.job_id)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over,
        20,
        0.02,
        "our run is over",
    )
    fate_stops(site, spec)
    ended(site, spec)
    assert set(stories(site, spec).values()) == {"SUCCEEDED"}


def test_a_failure_here_is_the_cause_whatever_fate_says(site: Site):
    spec = begun(site)
    run = site.run(spec.job_id, "guest.0")
    fate_says(site, "FINISHED", a="FAILED", b="READY")
    site.node.participant.callback(Callback(TaskStatus.FAILED, run_id=run.run_id))
    assert isinstance(site.node.engine, MemoryEngine)
    site.node.engine.finish(run.name, 3)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over,
        20,
        0.02,
        "our run is over",
    )
    fate_stops(site, spec, "a")
    fate_stops(site, spec)
    ended(site, spec)
    assert told_alike(site, spec, "FAILED")["task"] == "a"


def test_a_stop_that_fate_refuses_explains_no_later_end(site: Site):
    spec = begun(site)
    refuses = says({"code": 1, "msg": "no"})
    site.peer.will(
        by_path(
            job_stop_all=refuses, job_status_all=says(data={"job_status": "FINISHED", "status": {}})
        )
    )
    assert (
        ask(site.node, "operator", "POST", STOP_ALL, json={"job_id": spec.job_id}).json()["code"]
        != 0
    )
    fate_stops(site, spec)
    assert told_alike(site, spec, "STOPPED")["message"].startswith(f"stopped by {FATE}")


@pytest.mark.parametrize("sync_type", ["poll", "callback"])
def test_a_job_whose_part_here_is_done_names_the_node_it_waits_for(site: Site, sync_type: str):
    spec = begun(site, "a", sync_type=sync_type)
    fate_says(site, "RUNNING", a="RUNNING")
    site.succeed(spec.job_id)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over,
        20,
        0.02,
        "our run is over",
    )
    waiting = ask(site.node, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json()["waiting"]
    fault = "known never to end a job with sync_type: callback"
    assert waiting["message"].startswith(f"waits for {FATE}, asked 0 s ago, says RUNNING")
    assert (fault in waiting["message"]) is (sync_type == "callback")


def test_a_wait_line_tells_how_long_ago_the_node_was_asked(site: Site):
    spec = begun(site, "a")
    fate_says(site, "RUNNING", a="RUNNING")
    site.succeed(spec.job_id)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over,
        20,
        0.02,
        "our run is over",
    )
    found = site.node.peers.scheduler(FATE, "bfia").job_status(spec.job_id, ME)
    view = with_local(found, site.node.store.local_jobs.get(spec.job_id), asked_before=4.2)
    assert view.waiting is not None and "asked 4 s ago" in view.waiting.message


def test_a_stop_is_sent_to_fate_twice(site: Site):
    """The first leaves a job RUNNING there that has a task which had not begun."""
    spec = a_job_with(FATE, "a -> b")
    site.node.coordinator.submit_job(spec, ME)
    site.run(spec.job_id, "guest.0")
    site.node.coordinator.stop_job(spec.job_id, "", ME)
    wait_for(lambda: site.node.store.jobs.get(spec.job_id).ended_at, 20, 0.02, "the job has ended")
    stops = [
        a
        for a in site.asked(spec.job_id)
        if a.target == f"{CONTROL}/job/stop" and "task_name" not in a.body
    ]
    assert len(stops) == 2
