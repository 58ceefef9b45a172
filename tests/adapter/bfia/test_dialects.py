"""A node among peers of each dialect: how it answers them, and how it reads their answers.

The bodies of peers are written from knowledge of the products; none was recorded.
"""

import copy
import re
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from adapter.bfia.examples import A_JOB
from adapter.bfia.profiles import PROFILES as PROFILES_BY_NAME
from adapter.bfia.translate import create_body, read_acceptance
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from tests.adapter.bfia.scripted import raw, says, states
from tests.adapter.bfia.site import (
    CONTROL,
    FATE,
    KUSCIA,
    PLATFORM,
    PROFILES,
    SPEC,
    Site,
    a_job_with,
    by_path,
)
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

# The codes by which the dialects say success.
SUCCESS_CODES = (0, 200)

# Checks as a peer reports them, and as they are shown: at most 20, cut to 40 and 300 characters.
REPORTED_CHECKS = {
    "a text": (
        {"image": "vendor:1.0.0: ENGINE_DOWN"},
        {"image": "vendor:1.0.0: ENGINE_DOWN"},
    ),
    "other types": (
        {
            "image": None,
            "x": {"deep": [1]},
        },
        {"image": "None", "x": "{'deep': [1]}"},
    ),
    "too many": ({str(n): "x" for n in range(21)}, {}),
    "too long": ({"k" * 300: "v" * 3000}, {"k" * 40: "v" * 300}),
    "a list": (["image"], {}),
}


# ---------------------------------------------------------------- how the node answers


@pytest.mark.parametrize(
    ("checks", "shown_checks"),
    REPORTED_CHECKS.values(),
    ids=REPORTED_CHECKS,
)
def test_checks_that_a_peer_reports_never_harm(checks, shown_checks):
    assert read_acceptance({"checks": checks}).checks == shown_checks


# The form of the ids of a job and of its tasks, by the dialect of a node of the job. With Kuscia,
# both are names of objects of Kubernetes (RFC 1123).
ID_FORMS = {
    SPEC: (r"job-[0-9a-f]{32}", r"task_[0-9a-f]{32}"),
    FATE: (r"20\d{19}", r"task_[0-9a-f]{32}"),
    KUSCIA: (r"job-[0-9a-f]{32}", r"task-[0-9a-f]{32}"),
}


@pytest.mark.parametrize("partner", ID_FORMS, ids=PROFILES.values())
def test_ids_have_a_form_that_every_node_of_the_job_can_use(site, partner):
    job_form, task_form = ID_FORMS[partner]
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0] |= {
        "componentName": "Thing",
        "provider": "vendor",
    }
    body["config"]["role"]["host"] = [partner]

    job_ids = set()
    for _ in range(2):
        response = site.node.post(f"{PLATFORM}/job/create_all", body)
        job_ids.add(response.json()["data"]["job_id"])

    assert len(job_ids) == 2
    for job_id in job_ids:
        assert re.fullmatch(job_form, job_id)
        tasks = site.node.get(f"/api/v1/jobs/{job_id}").json()["tasks"]
        assert tasks
        for task in tasks:
            assert re.fullmatch(task_form, task["task_id"])
        site.stop(job_id)


@pytest.mark.parametrize(
    ("sender", "status"),
    [
        (SPEC, 500),
        (FATE, 200),
        (KUSCIA, 500),
    ],
    ids=PROFILES.values(),
)
def test_an_internal_error_is_answered_without_details(site, sender, status, monkeypatch):
    def fail(spec: JobSpec) -> None:
        raise RuntimeError("the secret of /srv/bfia/gateway.db")

    monkeypatch.setattr(site.node.sharing, "refusal", fail)
    spec = a_job_with(sender, scheduler=sender)

    response = site.node.post(
        f"{CONTROL}/job/create",
        create_body(spec, PROFILES_BY_NAME[PROFILES[sender]]),
        listener="peer",
        headers={"x-node-id": sender},
    )

    assert response.status_code == status
    body = response.json()
    assert set(body) == {"code", "msg", "data"}
    assert body["code"] == 500
    assert body["data"]["reason"] == "INTERNAL"
    for detail in ("secret", "Error", "srv"):
        assert detail not in response.text
    assert site.node.store.local_jobs.find(spec.job_id) is None


@pytest.mark.parametrize("scheduler", [FATE, KUSCIA])
def test_a_job_succeeded_if_its_scheduler_stops_it_after_the_last_task(site, scheduler):
    """Such a stop is the only message by which these schedulers report a success."""
    job_id = site.take_part(scheduler).job_id
    site.succeed(job_id)
    site.wait_for_run_end(job_id)

    task_stop = {
        "job_id": job_id,
        "task_name": "a",
    }
    assert site.send_as(scheduler, "/job/stop", task_stop)["code"] in SUCCESS_CODES
    assert site.local_job(job_id).status is JobStatus.RUNNING

    assert site.send_as(scheduler, "/job/stop", {"job_id": job_id})["code"] in SUCCESS_CODES
    local = site.local_job(job_id)
    assert local.status is JobStatus.FINISHED
    assert local.ending.outcome is Outcome.SUCCEEDED

    answer_status(
        site,
        {
            "status": {"a": "SUCCESS"},
            "job_status": "FINISHED",
        },
    )
    data = site.platform("/job/status_all", job_id=job_id)["data"]
    assert data["job_status"] == "FINISHED"
    assert data["outcome"] == "SUCCEEDED"
    assert data["progress"] == 100


# ---------------------------------------------------------------- how the node reads answers


# The success of a call, its code, and the first task statuses, as each peer words them.
ANSWERS = {
    SPEC: (
        {"code": 0, "msg": "success"},
        0,
        ("READY", "RUNNING", "RUNNING"),
    ),
    FATE: (
        {"code": 0, "message": "success"},
        0,
        ("READY", "RUNNING", "RUNNING"),
    ),
    KUSCIA: (
        {"code": 200, "msg": "success"},
        200,
        ("", "PENDING", "RUNNING"),
    ),
}


def has_received_stop(site, job_id):
    """Return whether the peer has received the last request of a job, which follows its end."""
    return any(request.target.endswith("/job/stop") for request in site.requests_about(job_id))


@pytest.mark.parametrize("partner", PROFILES)
def test_a_job_succeeds_with_a_peer_of_each_dialect(site, partner):
    success, code, task_states = ANSWERS[partner]
    site.peer.will(by_path(task_poll=states(*task_states, code=code), other=says(success)))
    spec = a_job_with(partner)

    site.submit(spec)
    site.succeed(spec.job_id)
    job = site.wait_for_end(spec.job_id)
    wait_for(partial(has_received_stop, site, spec.job_id))

    assert job.status is JobStatus.FINISHED
    assert job.outcome is Outcome.SUCCEEDED
    requests = site.requests_about(spec.job_id)
    polls = [r for r in requests if r.target == f"{CONTROL}/task/poll"]
    commands = [r.target.removeprefix(CONTROL) for r in requests if r not in polls]
    assert commands == ["/job/create", "/job/start", "/task/start", "/job/stop"]
    assert {poll.body["role"] for poll in polls} == {"host"}
    assert len({request.headers["x-trace-id"] for request in requests}) == 1


@pytest.mark.parametrize("scheduler", PROFILES)
def test_containers_meet_in_the_session_of_the_peers_containers(site, scheduler):
    """The session is open until the job has ended; only Kuscia has a session for each task."""
    spec = site.take_part(scheduler)
    run = site.run(spec.job_id, "guest.0")
    task_session = f"session_task-{spec.job_id}"
    job_session = f"session_{spec.job_id}"
    has_task_sessions = scheduler == KUSCIA
    session = job_session
    if has_task_sessions:
        session = task_session
    sessions = site.node.sessions
    ended_sessions: list[str] = []

    environment = site.node.launching.environment(
        site.local_job(spec.job_id),
        run,
    )
    assert environment["config.session_id"] == session
    assert sessions.is_open(job_session) is True
    if has_task_sessions:
        assert sessions.is_open(task_session) is True
    else:
        assert sessions.is_open(task_session) is None, "no job has such a session"

    sessions.on_end(ended_sessions.append)
    site.node.participant.stop_job(
        spec.job_id,
        "",
        None,
        scheduler,
    )
    site.wait_until_closed(spec.job_id)
    assert sessions.is_open(session) is False
    expected_end = [job_session]
    if has_task_sessions:
        expected_end.append(task_session)
    assert [s for s in ended_sessions if s in (task_session, job_session)] == expected_end


@pytest.mark.parametrize("partner", PROFILES)
def test_an_ambiguous_stop_is_not_attributed_to_a_person(site, partner):
    spec = a_job_with(partner)
    site.submit(spec)

    response = site.send_as(
        partner,
        "/job/stop_all",
        {"job_id": spec.job_id},
    )

    assert response["code"] in SUCCESS_CODES
    ending = site.job(spec.job_id).ending
    assert ending.outcome is Outcome.STOPPED
    assert ending.failure.message.startswith(f"stopped by {partner}")
    names_a_container = "a container's death" in ending.failure.message
    assert names_a_container is (partner == FATE)


def test_a_lost_response_is_requested_again_with_a_fresh_nonce(site):
    responses = iter([raw(b"", reset=True), raw(b"HTTP/1.1 200 OK\r\n")])

    def create(handler: BaseHTTPRequestHandler) -> None:
        respond = next(responses, says())
        respond(handler)

    site.peer.will(by_path(job_create=create))
    spec = a_job_with(SPEC)

    site.submit(spec)

    requests = site.requests_about(spec.job_id)
    creates = [request for request in requests if request.target.endswith("/job/create")]
    assert len(creates) == 3
    assert len({request.headers["x-nonce"] for request in creates}) == 3
    assert len({request.raw for request in creates}) == 1
    assert creates[0].body["job_id"] == spec.job_id
    site.stop(spec.job_id)


def test_states_are_resolved_by_id_and_by_name(site):
    """A peer may list task names in ``status_all``; the node's platform gets ids all the same."""
    spec = a_job_with(
        FATE,
        "a; b",
        scheduler=FATE,
    )
    task_ids = {name: f"task-{spec.job_id}-{name}" for name in "ab"}
    site.node.participant.create_job(spec, FATE)
    for name, task_id in task_ids.items():
        site.node.participant.start_task(
            spec.job_id,
            task_id,
            name,
            FATE,
        )

    by_name = {
        "a": "a",
        "b": "b",
    }
    mixed = {
        "a": task_ids["a"],
        "b": "b",
    }
    for key in (task_ids, by_name, mixed):
        task_states = {
            key["a"]: "SUCCESS",
            key["b"]: "RUNNING",
        }
        answer_status(site, {"job_status": "RUNNING", "status": task_states})
        data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
        assert data["status"] == {
            task_ids["a"]: "SUCCESS",
            task_ids["b"]: "RUNNING",
        }
        assert {task["task_name"]: task["task_id"] for task in data["tasks"]} == task_ids

    site.node.participant.stop_job(
        spec.job_id,
        "",
        None,
        FATE,
    )


def test_local_details_complement_a_scheduler_that_reports_states_only(site):
    """The node adds scheduler, reason, outcome and its own part; its list of jobs agrees."""
    spec = site.take_part(FATE)
    run = site.run(spec.job_id, "guest.0")

    answer_status(
        site,
        {
            "job_status": "RUNNING",
            "status": {"a": "RUNNING"},
        },
    )
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert data["scheduler"] == FATE
    assert data["failed_by"] is None
    assert data["outcome"] is None
    assert data["tasks"][0]["parties"] == {ME: {"guest": "RUNNING"}}

    site.engine.finish(run.name, 1)
    site.wait_for_run_end(spec.job_id)
    answer_status(
        site,
        {
            "job_status": "FINISHED",
            "status": {"a": "FAILED"},
        },
    )
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert data["outcome"] == "FAILED"
    assert data["failed_by"]["reason"] == "EXIT_1"
    assert data["tasks"][0]["parties"] == {ME: {"guest": "FAILED"}}
    assert data["tasks"][0]["failed_by"]["reason"] == "EXIT_1"

    jobs = {job["job_id"]: job for job in site.node.get("/api/v1/jobs").json()["jobs"]}
    assert jobs[spec.job_id]["outcome"] == "FAILED"


def test_the_scheduler_decides_an_outcome_if_local_runs_were_only_stopped(site):
    spec = site.take_part(FATE)
    # Set before the stops: the node may query the scheduler as soon as its runs have ended.
    answer_status(
        site,
        {
            "job_status": "FINISHED",
            "status": {"a": "FAILED"},
        },
    )

    # FATE-Flow stops a failed task before it stops the job.
    task_stop = {
        "job_id": spec.job_id,
        "task_name": "a",
    }
    assert site.send_as(FATE, "/job/stop", task_stop)["code"] == 0
    assert site.send_as(FATE, "/job/stop", {"job_id": spec.job_id})["code"] == 0
    site.wait_until_closed(spec.job_id)

    def shown_as_failed() -> dict[str, Any] | None:
        data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
        if data["outcome"] == "FAILED":
            return dict(data)
        return None

    data = wait_for(shown_as_failed, 20, 0.02)
    assert data["failed_by"]["node"] == FATE
    assert site.local_job(spec.job_id).ending.outcome is Outcome.FAILED


# ---------------------------------------------------------------- routes


def test_the_own_node_needs_no_route(site):
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (ME,),
        },
        job_id="job-dialects-own",
    )
    assert ME not in site.node.routes.table.routes

    site.node.job_requests.submit(spec)
    site.run(spec.job_id, "guest.0")

    assert site.requests_about(spec.job_id) == []
    site.stop(spec.job_id)


def answer_status(
    site: Site,
    data: dict[str, Any],
) -> None:
    """Let the scheduler answer queries of a job's status with this data."""
    body = {
        "code": 0,
        "message": "success",
        "data": data,
    }
    site.peer.will(by_path(job_status_all=says(body)))
