"""Jobs that FATE-Flow schedules by its adapter of the standard: every place shows the same end.

FATE-Flow sends a bare ``job/stop`` at every end, leaves the tasks that it stopped FAILED, and
reports neither outcome nor cause. Its answers below were recorded, or written after its source.
"""

from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.domain.states import Outcome, TaskStatus
from gateway.jobs.views import with_local
from gateway.ports import Callback
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import CONTROL, FATE, PLATFORM, Site, a_job_with, by_path
from tests.e2e.nodes import wait_for
from tests.inprocess import ME


def set_fate_status(
    site: Site,
    job_status: str,
    **tasks: str,
) -> None:
    """Let FATE-Flow answer every query with these statuses from now on."""
    status = says(data={"job_status": job_status, "status": tasks})
    site.peer.will(by_path(job_status_all=status))


def join(
    site: Site,
    dag: str = "a -> b",
    **common: Any,
) -> JobSpec:
    """Join a job of FATE-Flow's and start it, without a task; ``common`` are its parameters."""
    spec = a_job_with(
        FATE,
        dag,
        scheduler=FATE,
    )
    if common:
        spec = replace(
            spec,
            job_params={"common": common},
        )
    site.node.participant.create_job(spec, FATE)
    site.node.participant.start_job(spec.job_id, FATE)
    return spec


def join_and_run(
    site: Site,
    dag: str = "a -> b",
    **common: Any,
) -> JobSpec:
    """Join a job of FATE-Flow's up to the start of the container of task a."""
    spec = join(site, dag, **common)
    site.node.participant.start_task(
        spec.job_id,
        f"task-{spec.job_id}",
        "a",
        FATE,
    )
    site.run(spec.job_id, "guest.0")
    return spec


def run_to_success(
    site: Site,
    fate_status: str,
    task_status: str,
    **common: Any,
) -> JobSpec:
    """Join a job of one task and let this node's container succeed.

    FATE-Flow answers queries with these statuses of the job and the task.
    """
    spec = join_and_run(site, "a", **common)
    set_fate_status(site, fate_status, a=task_status)
    site.succeed(spec.job_id)
    site.wait_for_run_end(spec.job_id)
    return spec


def stop_as_fate(
    site: Site,
    spec: JobSpec,
    task: str = "",
) -> None:
    """Stop a job, or one of its tasks, as FATE-Flow does."""
    body = {"job_id": spec.job_id}
    if task:
        body["task_name"] = task
    assert site.send_as(FATE, "/job/stop", body)["code"] == 0


def stop_as_platform(site: Site, spec: JobSpec) -> int:
    """Stop a job as this node's platform does; return the code of the response."""
    response = site.node.post(
        f"{PLATFORM}/job/stop_all",
        {"job_id": spec.job_id},
    )
    return int(response.json()["code"])


def wait_for_settled_end(site: Site, spec: JobSpec) -> LocalJob:
    """Wait until the job has ended and this node knows its outcome from FATE-Flow."""

    def is_settled() -> bool:
        local = site.local_job(spec.job_id)
        return local.ended_at is not None and not local.is_ending_inferred

    wait_for(is_settled, 30, 0.05, "FATE-Flow has reported the end of the job")
    return site.local_job(spec.job_id)


def shown_outcomes(
    site: Site,
    spec: JobSpec,
) -> dict[str, Any]:
    """Return the outcome of a job by the place that shows it."""
    job_id = spec.job_id
    job = site.node.get(f"/api/v1/jobs/{job_id}").json()
    jobs = site.node.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]
    outcomes = {entry["job_id"]: entry["outcome"] for entry in jobs}
    entries = site.node.get(f"/api/v1/jobs/{job_id}/timeline").json()["timeline"]
    end_events = ("job FINISHED here", "job's end explained")
    ends = [entry for entry in entries if entry["event"] in end_events]
    for_platform = site.platform(
        "/job/status_all",
        job_id=job_id,
    )
    for_fate = site.send_as(FATE, "/job/status_all", {"job_id": job_id})
    return {
        "show": job["outcome"],
        "list": outcomes[job_id],
        "timeline": ends[-1]["detail"]["outcome"],
        "platform's status_all": for_platform["data"]["outcome"],
        "peers' status_all": for_fate["data"]["outcome"],
    }


def assert_shown(
    site: Site,
    spec: JobSpec,
    outcome: str,
) -> dict[str, Any]:
    """Fail unless every place shows the outcome; return the failure that the job shows."""
    outcomes = shown_outcomes(site, spec)
    assert set(outcomes.values()) == {outcome}, outcomes
    failure = site.node.get(f"/api/v1/jobs/{spec.job_id}").json()["failure"]
    assert failure["reason"]
    advice = site.node.get(f"/api/v1/reasons/{failure['reason']}").json()
    assert advice["next_step"]
    return dict(failure)


@pytest.mark.parametrize(
    "is_running",
    [False, True],
    ids=["before its first task", "running"],
)
@pytest.mark.parametrize(
    ("stopped_by", "message"),
    [
        (ME, f"stopped by {ME}"),
        (FATE, f"stopped by {FATE}, which did not say why"),
    ],
    ids=["this node", "FATE"],
)
def test_a_stopped_job_is_stopped_and_says_by_whom(site, is_running, stopped_by, message):
    if is_running:
        spec = join_and_run(site)
        set_fate_status(
            site,
            "FINISHED",
            a="FAILED",
            b="READY",
        )
    else:
        spec = join(site)
        set_fate_status(
            site,
            "FINISHED",
            a="READY",
            b="READY",
        )

    if stopped_by == ME:
        assert stop_as_platform(site, spec) == 0
    stop_as_fate(site, spec)
    local = wait_for_settled_end(site, spec)

    assert local.ending.outcome is Outcome.STOPPED
    assert local.ending.by == stopped_by
    assert assert_shown(site, spec, "STOPPED")["message"] == message
    query = {
        "outcome": "STOPPED",
        "limit": 1000,
    }
    stopped_jobs = site.node.get("/api/v1/jobs", params=query).json()["jobs"]
    assert spec.job_id in [job["job_id"] for job in stopped_jobs]


def test_a_container_that_fails_at_fate_fails_a_job_that_succeeded_here(site):
    spec = run_to_success(site, "FINISHED", "FAILED")

    stop_as_fate(site, spec, "a")
    stop_as_fate(site, spec)
    wait_for_settled_end(site, spec)

    failure = assert_shown(site, spec, "FAILED")
    assert failure["message"] == f"{FATE} says that the job has failed, and not why"


def test_a_job_that_succeeds_at_fate_keeps_its_outcome(site):
    spec = run_to_success(site, "FINISHED", "SUCCESS")

    stop_as_fate(site, spec)
    wait_for_settled_end(site, spec)

    assert set(shown_outcomes(site, spec).values()) == {"SUCCEEDED"}


def test_a_local_failure_is_the_cause_whatever_fate_says(site):
    spec = join_and_run(site)
    run = site.run(spec.job_id, "guest.0")
    set_fate_status(
        site,
        "FINISHED",
        a="FAILED",
        b="READY",
    )
    # the node stops the container of a failed run by itself
    site.node.container_callbacks.record(Callback(TaskStatus.FAILED, run_id=run.run_id))
    site.wait_for_run_end(spec.job_id)

    stop_as_fate(site, spec, "a")
    stop_as_fate(site, spec)
    wait_for_settled_end(site, spec)

    assert assert_shown(site, spec, "FAILED")["task"] == "a"


def test_a_stop_that_fate_refuses_explains_no_later_end(site):
    spec = join_and_run(site)
    site.peer.will(
        by_path(
            job_stop_all=says({"code": 1, "msg": "no"}),
            job_status_all=says(data={"job_status": "FINISHED", "status": {}}),
        )
    )

    assert stop_as_platform(site, spec) != 0
    stop_as_fate(site, spec)

    failure = assert_shown(site, spec, "STOPPED")
    assert failure["message"].startswith(f"stopped by {FATE}")


@pytest.mark.parametrize(
    ("sync_type", "names_the_fault"),
    [
        ("poll", False),
        ("callback", True),
    ],
    ids=["poll", "callback"],
)
def test_a_job_whose_part_here_is_done_names_the_node_it_waits_for(
    site, sync_type, names_the_fault
):
    spec = run_to_success(
        site,
        "RUNNING",
        "RUNNING",
        sync_type=sync_type,
    )

    waiting = site.node.get(f"/api/v1/jobs/{spec.job_id}").json()["waiting"]

    assert waiting["message"].startswith(f"waits for {FATE}, asked 0 s ago, says RUNNING")
    fault = "known never to end a job with sync_type: callback"
    assert (fault in waiting["message"]) is names_the_fault


def test_a_wait_line_has_the_time_since_the_last_query(site):
    spec = run_to_success(site, "RUNNING", "RUNNING")

    scheduler_view = site.node.peers.scheduler(FATE, "bfia").job_status(spec.job_id, ME)
    view = with_local(
        scheduler_view,
        site.local_job(spec.job_id),
        seconds_since_asked=4.2,
    )

    assert "asked 4 s ago" in view.waiting.message


def test_a_stop_is_sent_to_fate_twice(site):
    """After the first stop FATE-Flow leaves a job RUNNING that has a task without a start."""
    spec = a_job_with(FATE, "a -> b")
    site.submit(spec)
    site.run(spec.job_id, "guest.0")

    site.stop(spec.job_id)
    site.wait_for_end(spec.job_id)

    job_stops = []
    for request in site.requests_about(spec.job_id):
        if request.target == f"{CONTROL}/job/stop" and "task_name" not in request.body:
            job_stops.append(request)
    assert len(job_stops) == 2
