"""A whole node among peers of each dialect: what it answers them, and what it makes of their answers.

Bodies of peers are written from what is known of them; none was recorded here.
"""

import copy
from http.server import BaseHTTPRequestHandler

import pytest

from adapter.bfia.examples import A_JOB
from adapter.bfia.profiles import PROFILES as PROFILE_OF
from adapter.bfia.translate import create_body, read_acceptance
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from tests.adapter.bfia.scripted import raw, says
from tests.adapter.bfia.site import CONTROL, FATE, KUSCIA, PROFILES, SPEC, Site, a_job_with, by_path
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask
from tests.memory_engine import MemoryEngine

# ---------------------------------------------------------------- what they are answered


@pytest.mark.parametrize(
    ("checks", "shown"),
    [
        ({"image": "vendor:1.0.0: ENGINE_DOWN"}, {"image": "vendor:1.0.0: ENGINE_DOWN"}),
        ({"image": None, "x": {"deep": [1]}}, {"image": "None", "x": "{'deep': [1]}"}),
        ({str(n): "x" for n in range(21)}, {}),
        ({"k" * 300: "v" * 3000}, {"k" * 40: "v" * 300}),
        (["image"], {}),
    ],
)
def test_checks_that_a_peer_reports_never_harm(checks: object, shown: dict[str, str]):
    assert read_acceptance({"checks": checks}).checks == shown


@pytest.mark.parametrize(("other", "characters"), [(SPEC, 36), (FATE, 25), (KUSCIA, 36)])
def test_a_job_id_is_no_longer_than_every_node_can_store(
    site: Site,
    other: str,
    characters: int,
):
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0] |= {"componentName": "Thing", "provider": "vendor"}
    body["config"]["role"]["host"] = [other]
    path = "/v1/platform/schedule/job/create_all"
    ids = [
        ask(site.node, "operator", "POST", path, json=body).json()["data"]["job_id"]
        for _ in range(2)
    ]
    assert [len(i) for i in ids] == [characters] * 2 and len(set(ids)) == 2
    assert all(i.startswith("job-") for i in ids)
    for job_id in ids:
        site.node.coordinator.stop_job(job_id, "", ME)


@pytest.mark.parametrize(("sender", "status"), [(SPEC, 500), (FATE, 200), (KUSCIA, 500)])
def test_an_internal_error_is_answered_without_details(
    site: Site,
    sender: str,
    status: int,
):
    def bug(spec: JobSpec) -> None:
        raise RuntimeError("the secret of /srv/bfia/gateway.db")

    spec = a_job_with(sender, scheduler=sender)
    body = create_body(spec, PROFILE_OF[PROFILES[sender]])
    kept, site.node.sharing.refusal = site.node.sharing.refusal, bug  # type: ignore[method-assign]
    try:
        answer = ask(
            site.node,
            "peer",
            "POST",
            f"{CONTROL}/job/create",
            json=body,
            headers={"x-node-id": sender},
        )
    finally:
        site.node.sharing.refusal = kept  # type: ignore[method-assign]
    said = answer.json()
    assert answer.status_code == status and set(said) == {"code", "msg", "data"}
    assert (said["code"], said["data"]["reason"]) == (500, "INTERNAL")
    assert "secret" not in answer.text and "Error" not in answer.text and "srv" not in answer.text
    assert site.node.store.local_jobs.find(spec.job_id) is None


@pytest.mark.parametrize("other", [FATE, KUSCIA])
def test_the_outcome_of_a_job_whose_scheduling_node_does_not_report_it(site: Site, other: str):
    """The stop of a job whose every task has succeeded here is the only message of a success that there is."""
    spec = site.take_part(other)
    site.succeed(spec.job_id)
    wait_for(lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over, 20, 0.02)
    assert site.asks(other, "/job/stop", {"job_id": spec.job_id, "task_name": "a"})["code"] in (
        0,
        200,
    )
    assert site.node.store.local_jobs.get(spec.job_id).status is JobStatus.RUNNING
    assert site.asks(other, "/job/stop", {"job_id": spec.job_id})["code"] in (0, 200)
    local = site.node.store.local_jobs.get(spec.job_id)
    assert local.ending is not None
    assert (local.status, local.ending.outcome) == (JobStatus.FINISHED, Outcome.SUCCEEDED)
    said = {"status": {"a": "SUCCESS"}, "job_status": "FINISHED"}
    site.peer.will(
        by_path(
            job_status_all=says(
                {
                    "code": 0,
                    "message": "success",
                    "data": said,
                }
            )
        )
    )
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert (data["job_status"], data["outcome"], data["progress"]) == ("FINISHED", "SUCCEEDED", 100)


# ---------------------------------------------------------------- what is made of their answers


@pytest.mark.parametrize("other", PROFILES)
def test_a_job_with_a_peer_of_each_dialect(site: Site, other: str):
    """From create to the end, with success codes, words and poll answers as that peer gives them."""
    code = 200 if other == KUSCIA else 0
    fine = (
        says({"code": code, "msg": "success"})
        if other != FATE
        else says({"code": 0, "message": "success"})
    )
    states = iter(
        ["", "PENDING", "RUNNING"] if other == KUSCIA else ["READY", "RUNNING", "RUNNING"]
    )

    def poll(handler: BaseHTTPRequestHandler) -> None:
        says({"code": code, "data": {"status": next(states, "SUCCESS")}})(handler)

    site.peer.will(by_path(task_poll=poll, other=fine))
    spec = a_job_with(other)
    site.node.coordinator.submit_job(spec, ME)
    site.succeed(spec.job_id)
    wait_for(lambda: site.node.store.jobs.get(spec.job_id).ended_at, 20, 0.02, "the job has ended")
    job = site.node.store.jobs.get(spec.job_id)
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.SUCCEEDED)
    asked = site.asked(spec.job_id)
    paths = [a.target.removeprefix(CONTROL) for a in asked]
    assert [p for p in paths if p != "/task/poll"] == [
        "/job/create",
        "/job/start",
        "/task/start",
        "/job/stop",
    ]
    assert {a.body["role"] for a in asked if a.target.endswith("/task/poll")} == {"host"}
    assert len({a.headers["x-trace-id"] for a in asked}) == 1


@pytest.mark.parametrize("other", PROFILES)
def test_containers_meet_in_the_session_that_the_peers_containers_have(site: Site, other: str):
    """Until the job has ended; a session of a task is of no job whose peers have one for the whole."""
    spec = site.take_part(other)
    run = site.run(spec.job_id, "guest.0")
    per_task, whole = f"session_task-{spec.job_id}", f"session_{spec.job_id}"
    local = site.node.store.local_jobs.get(spec.job_id)
    told = site.node.launching.environment(local, run)["config.session_id"]
    assert told == (per_task if other == KUSCIA else whole)
    sessions = site.node.sessions
    assert (sessions.is_open(per_task), sessions.is_open(whole)) == (
        True if other == KUSCIA else None,
        True,
    )
    ended: list[str] = []
    sessions.on_end(ended.append)
    site.node.participant.stop_job(spec.job_id, "", None, other)
    wait_for(
        lambda: site.node.store.local_jobs.get(spec.job_id).closed,
        20,
        0.02,
        "everything is given back",
    )
    assert sessions.is_open(told) is False
    assert [s for s in ended if s in (per_task, whole)] == [
        whole,
        *([per_task] if other == KUSCIA else []),
    ]


@pytest.mark.parametrize("other", PROFILES)
def test_an_ambiguous_stop_is_not_attributed_to_a_person(site: Site, other: str):
    spec = a_job_with(other)
    site.node.coordinator.submit_job(spec, ME)
    assert site.asks(other, "/job/stop_all", {"job_id": spec.job_id})["code"] in (0, 200)
    ending = site.node.store.jobs.get(spec.job_id).ending
    assert ending is not None and ending.failure is not None and ending.outcome is Outcome.STOPPED
    assert ending.failure.message.startswith(f"stopped by {other}")
    assert ("a container's death" in ending.failure.message) is (other == FATE)


def test_a_lost_response_is_requested_again_with_a_fresh_nonce(site: Site):
    creates = iter([raw(b"", reset=True), raw(b"HTTP/1.1 200 OK\r\n")])
    site.peer.will(by_path(job_create=lambda handler: next(creates, says())(handler)))
    spec = a_job_with(SPEC)
    site.node.coordinator.submit_job(spec, ME)
    tries = [a for a in site.asked(spec.job_id) if a.target.endswith("/job/create")]
    assert len(tries) == 3
    assert len({a.headers["x-nonce"] for a in tries}) == 3
    assert len({a.raw for a in tries}) == 1 and tries[0].body["job_id"] == spec.job_id
    site.node.coordinator.stop_job(spec.job_id, "", ME)


def test_states_are_resolved_by_id_and_by_name(site: Site):
    """One peer answers ``status_all`` by task names; this node's platform is told ids all the same."""
    spec = a_job_with(FATE, "a; b", scheduler=FATE)
    site.node.participant.create_job(spec, FATE)
    ids = {name: f"task-{spec.job_id}-{name}" for name in "ab"}
    for name, task_id in ids.items():
        site.node.participant.start_task(spec.job_id, task_id, name, FATE)
    for key in (ids, {n: n for n in ids}, {"a": ids["a"], "b": "b"}):
        said = {"job_status": "RUNNING", "status": {key["a"]: "SUCCESS", key["b"]: "RUNNING"}}
        site.peer.will(
            by_path(
                job_status_all=says(
                    {
                        "code": 0,
                        "message": "success",
                        "data": said,
                    }
                )
            )
        )
        data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
        assert data["status"] == {ids["a"]: "SUCCESS", ids["b"]: "RUNNING"}
        assert {t["task_name"]: t["task_id"] for t in data["tasks"]} == ids
    site.node.participant.stop_job(spec.job_id, "", None, FATE)


def test_local_details_complement_a_scheduler_that_reports_states_only(site: Site):
    """Scheduler, reason, outcome and the own part; the list of jobs says the same."""
    spec = site.take_part(FATE)
    run = site.run(spec.job_id, "guest.0")
    told = {"job_status": "RUNNING", "status": {"a": "RUNNING"}}
    site.peer.will(
        by_path(
            job_status_all=lambda h: says(
                {
                    "code": 0,
                    "message": "success",
                    "data": told,
                }
            )(h)
        )
    )
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert (data["scheduler"], data["failed_by"], data["outcome"]) == (FATE, None, None)
    assert data["tasks"][0]["parties"] == {ME: {"guest": "RUNNING"}}
    assert isinstance(site.node.engine, MemoryEngine)
    site.node.engine.finish(run.name, 1)
    wait_for(lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over, 20, 0.02)
    told |= {"job_status": "FINISHED", "status": {"a": "FAILED"}}
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert (data["outcome"], data["failed_by"]["reason"]) == ("FAILED", "EXIT_1")
    assert data["tasks"][0]["parties"] == {ME: {"guest": "FAILED"}}
    assert data["tasks"][0]["failed_by"]["reason"] == "EXIT_1"
    listed = ask(site.node, "operator", "GET", "/api/v1/jobs").json()["jobs"]
    assert [one["outcome"] for one in listed if one["job_id"] == spec.job_id] == ["FAILED"]


def test_the_scheduler_decides_an_outcome_if_runs_here_were_only_stopped(
    site: Site,
):
    spec = site.take_part(FATE)
    site.run(spec.job_id, "guest.0")
    # the scheduler may be asked as soon as the runs here have ended
    failed = says(data={"job_status": "FINISHED", "status": {"a": "FAILED"}})
    site.peer.will(by_path(job_status_all=failed))
    task = {"job_id": spec.job_id, "task_name": "a"}
    assert site.asks(FATE, "/job/stop", task)["code"] == 0  # FATE-Flow stops a failed task first
    assert site.asks(FATE, "/job/stop", {"job_id": spec.job_id})["code"] == 0
    wait_for(lambda: site.node.store.local_jobs.get(spec.job_id).closed, 20, 0.02)

    def is_shown_as_failed() -> bool:
        data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
        return bool(data["outcome"] == "FAILED")

    wait_for(is_shown_as_failed, 20, 0.02)
    data = site.platform("/job/status_all", job_id=spec.job_id)["data"]
    assert (data["outcome"], data["failed_by"]["node"]) == ("FAILED", FATE)
    ending = site.node.store.local_jobs.get(spec.job_id).ending
    assert ending is not None and ending.outcome is Outcome.FAILED


# ---------------------------------------------------------------- routes


def test_the_own_node_needs_no_route(site: Site):
    spec = a_spec("a", {"guest": (ME,), "host": (ME,)}, job_id="job-dialects-own")
    assert ME not in site.node.routes.table.routes
    site.node.coordinator.submit(spec)
    site.run(spec.job_id, "guest.0")
    assert site.asked(spec.job_id) == []
    site.node.coordinator.stop_job(spec.job_id, "", ME)
