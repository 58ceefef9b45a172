"""What a peer's answers say of a job and of its tasks.

Which deviation belongs to whom: profiles ``fate`` (FATE-Flow) and ``kuscia``. Bodies marked "invented" were not
recorded from a peer.
"""

from typing import Any

import pytest

from adapter.bfia.profiles import PROFILES
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import NotFound, Refused
from gateway.ports import TaskNews
from tests.adapter.bfia.calling import FAILED, PENDING, RUNNING, SUCCESS, As, refused
from tests.adapter.bfia.scripted import Clients, ScriptedPeer, says, silence, text
from tests.adapter.bfia.test_peer_answers import unreachable
from tests.e2e.nodes import wait_for
from tests.inprocess import ME


@pytest.mark.parametrize("said", ["PENDING", "READY", "RUNNING", "SUCCESS", "FAILED", "running"])
def test_a_polled_state(peer: ScriptedPeer, spec_peer: Clients, said: str):
    peer.will(says(data={"status": said}))
    assert spec_peer.participant.poll_task("t", "guest", ME).status is TaskStatus(said.upper())


@pytest.mark.parametrize("said", ["DONE", "canceled", None, 5, [], {}])
def test_a_polled_word_that_is_no_state(peer: ScriptedPeer, spec_peer: Clients, said: Any):
    peer.will(says(data={"status": said}))
    assert refused(spec_peer.participant.poll_task, "t", "guest", ME).reason == "STATUS_UNKNOWN"


@pytest.mark.parametrize("body", [{"code": 0}, {"code": 0, "data": {}}])
def test_a_poll_that_says_nothing(peer: ScriptedPeer, spec_peer: Clients, body: Any):
    peer.will(says(body))
    assert refused(spec_peer.participant.poll_task, "t", "guest", ME).reason == "STATUS_UNKNOWN"


def test_kuscias_phase_without_a_word_is_pending(peer: ScriptedPeer, calling: As):
    peer.will(says({"code": 200, "msg": "", "data": {"status": ""}}))
    with calling("kuscia") as found:
        assert found.participant.poll_task("t", "guest", ME) == TaskNews(PENDING)


@pytest.mark.parametrize(
    ("failed_by", "failure"),
    [
        ({"reason": "EXIT_1", "message": "m", "exit_code": 1}, Failure("EXIT_1", "m", exit_code=1)),
        ({"reason": "X", "message": None, "node": None}, Failure("X")),
        ({"reason": ""}, None),
        ({}, None),
        (None, None),
        ("out of memory", None),
        ({"reason": 5}, None),
        ({"reason": "X", "exit_code": "many"}, None),
    ],
)
def test_why_a_task_failed(peer: ScriptedPeer, spec_peer: Clients, failed_by: Any, failure: Any):
    peer.will(says(data={"status": "FAILED", "failed_by": failed_by}))
    assert spec_peer.participant.poll_task("t", "guest", ME) == TaskNews(FAILED, failure)


UNKNOWN_TASK = {
    "fate": {"code": 6000, "message": "invented: no such task"},
    "kuscia": {"code": 400, "msg": "failed to find the task"},
    "spec": {"code": 404, "msg": "TASK_UNKNOWN: no task", "data": {"reason": "TASK_UNKNOWN"}},
    "audited": {"code": 404, "msg": "TASK_UNKNOWN: no task", "data": {"reason": "TASK_UNKNOWN"}},
}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_poll_of_a_task_that_the_peer_does_not_know(peer: ScriptedPeer, calling: As, profile: str):
    peer.will(says(UNKNOWN_TASK[profile]))
    with calling(profile) as found:
        error = refused(found.participant.poll_task, "t", "guest", ME)
    assert (type(error), error.reason) == (NotFound, "TASK_UNKNOWN")


@pytest.mark.parametrize("other", ["fate", "kuscia"])
def test_a_bare_refusal_says_nothing_of_the_task_by_default(peer: ScriptedPeer, spec_peer: Clients, other: str):
    peer.will(says(UNKNOWN_TASK[other]))
    error = refused(spec_peer.participant.poll_task, "t", "guest", ME)
    assert (type(error), error.reason) == (Refused, "REFUSED")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_broken_answer_never_says_that_a_task_is_unknown(peer: ScriptedPeer, calling: As, profile: str):
    """Starting it a second time would harm a task that runs."""
    peer.will(text(b"<html>Internal server error</html>", 500))
    with calling(profile) as found:
        assert refused(found.participant.poll_task, "t", "guest", ME).reason == "NO_ENVELOPE"


@pytest.mark.parametrize(
    "body",
    [
        {"code": 0},
        {"code": 0, "msg": "success", "data": None},
        {"code": 0, "data": {"hello": "there"}},
        {"code": 0, "data": {"status": "RUNNING"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_success_without_a_state_never_says_that_a_job_is_unknown(
    peer: ScriptedPeer, calling: As, profile: str, body: Any
):
    """Its containers here would be stopped."""
    with calling(profile) as found:
        peer.will(says(body), says(body))
        error = refused(found.scheduler.job_status, "job-1", ME)
        assert error.reason == "NO_ENVELOPE" and "without a state of" in error.message
        peer.will(says({"code": 0, "data": {}}))
        assert refused(found.scheduler.job_status, "job-1", ME).reason == "JOB_UNKNOWN"


def view_of(peer: ScriptedPeer, found: Clients, *answers: Any) -> tuple[JobStatus, dict[str, TaskStatus]]:
    peer.will(*answers)
    view = found.scheduler.job_status("job-1", ME)
    return view.status, {t.task_id: t.status for t in view.tasks}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_way_to_ask_suits_the_peer(peer: ScriptedPeer, calling: As, profile: str):
    with calling(profile) as found:
        view_of(peer, found, says(data={"status": {"t": "RUNNING"}}))
    (asked,) = peer.asked
    assert asked.method == ("POST" if profile in ("spec", "audited") else "GET")
    assert asked.target == "/v1/interconn/schedule/job/status_all?job_id=job-1"
    assert asked.body == {"job_id": "job-1"}


@pytest.mark.parametrize(
    "first",
    [
        says({"code": 6000, "message": "405 Method Not Allowed"}),
        says({"code": 5001, "message": "invalid parameter"}),
        text(b"<html>405</html>", 405),
        says({"code": 405, "msg": "METHOD_NOT_ALLOWED: no", "data": {"reason": "METHOD_NOT_ALLOWED"}}, status=405),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_other_way_is_tried_once(peer: ScriptedPeer, calling: As, profile: str, first: Any):
    with calling(profile) as found:
        said = view_of(peer, found, first, says(data={"job_status": "RUNNING", "status": {"t": "RUNNING"}}))
    assert said == (JobStatus.RUNNING, {"t": RUNNING})
    assert sorted(a.method for a in peer.asked) == ["GET", "POST"]


def test_where_neither_way_helps_the_first_refusal_counts(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(says({"code": 1, "msg": "the job's own trouble"}), says({"code": 6000, "message": "405"}))
    error = refused(spec_peer.scheduler.job_status, "job-1", ME)
    assert "the job's own trouble" in error.message and len(peer.asked) == 2


@pytest.mark.parametrize("reason", ["JOB_UNKNOWN", "NOT_AUTHORISED"])
def test_a_refusal_that_is_clear_is_not_asked_for_twice(peer: ScriptedPeer, spec_peer: Clients, reason: str):
    code = {"JOB_UNKNOWN": 404, "NOT_AUTHORISED": 403}[reason]
    peer.will(says({"code": code, "msg": reason, "data": {"reason": reason}}))
    assert refused(spec_peer.scheduler.job_status, "job-1", ME).reason == reason
    assert len(peer.asked) == 1


def test_silence_is_not_asked_for_twice(peer: ScriptedPeer, calling: As):
    peer.will(silence)
    with calling(deadline=1.5) as found:
        unreachable(found.scheduler.job_status, "job-1", ME)
    wait_for(lambda: len(peer.asked) == 1)


def test_an_empty_object_means_that_the_job_is_unknown(peer: ScriptedPeer, calling: As):
    peer.will(says({"code": 0, "data": {}}))
    with calling("fate") as found:
        error = refused(found.scheduler.job_status, "job-1", ME)
    assert (type(error), error.reason) == (NotFound, "JOB_UNKNOWN")


@pytest.mark.parametrize("status", [{}, None])
def test_kuscia_knows_a_job_before_it_has_tasks(peer: ScriptedPeer, calling: As, status: Any):
    with calling("kuscia") as found:
        assert view_of(peer, found, says({"code": 200, "data": {"status": status}})) == (JobStatus.PENDING, {})


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ({"a": "PENDING", "b": "PENDING"}, JobStatus.PENDING),
        ({"a": "PENDING", "b": "READY"}, JobStatus.RUNNING),
        ({"a": "SUCCESS", "b": "PENDING"}, JobStatus.RUNNING),
        ({"a": "RUNNING", "b": ""}, JobStatus.RUNNING),
        ({"a": "SUCCESS", "b": "SUCCESS"}, JobStatus.FINISHED),
        ({"a": "SUCCESS", "b": "FAILED"}, JobStatus.FINISHED),
    ],
)
@pytest.mark.parametrize("job_status", ["absent", None, "", "Sleeping"])
def test_a_job_state_that_is_missing_follows_from_the_tasks(
    peer: ScriptedPeer, calling: As, states: dict[str, str], status: JobStatus, job_status: Any
):
    data = {"status": states} | ({} if job_status == "absent" else {"job_status": job_status})
    with calling("kuscia") as found:
        said = view_of(peer, found, says({"code": 200, "data": data}))
    assert said == (status, {k: TaskStatus(v or "PENDING") for k, v in states.items()})


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("PENDING", JobStatus.PENDING),
        ("READY", JobStatus.READY),
        ("RUNNING", JobStatus.RUNNING),
        ("FINISHED", JobStatus.FINISHED),
        ("REJECTED", JobStatus.REJECTED),
        ("SUCCESS", JobStatus.FINISHED),
        ("FAILED", JobStatus.FINISHED),
        ("finished", JobStatus.FINISHED),
    ],
)
def test_a_job_state_in_every_word(peer: ScriptedPeer, spec_peer: Clients, word: str, status: JobStatus):
    said = view_of(peer, spec_peer, says(data={"job_status": word, "status": {"t": "SUCCESS"}}))
    assert said == (status, {"t": SUCCESS})


def test_states_beside_data_are_read(peer: ScriptedPeer, calling: As):
    with calling("fate") as found:
        said = view_of(peer, found, says({"code": 0, "message": "success", "status": {"t": "RUNNING"}}))
    assert said == (JobStatus.RUNNING, {"t": RUNNING})


@pytest.mark.parametrize(
    "odd",
    [
        {"progress": "half"},
        {"progress": [1]},
        {"progress": 1e400},
        {"progress": True},
        {"outcome": {}},
        {"outcome": ["SUCCEEDED"]},
        {"outcome": "WON"},
        {"tasks": 5},
        {"tasks": {"a": 1}},
        {"tasks": [1, None, {}]},
        {"failed_by": 5},
        {"scheduler": None},
    ],
    ids=str,
)
def test_odd_extras_do_no_harm(peer: ScriptedPeer, spec_peer: Clients, odd: dict[str, Any]):
    peer.will(says(data={"job_status": "RUNNING", "status": {"t": "RUNNING"}} | odd))
    view = spec_peer.scheduler.job_status("job-1", ME)
    assert (view.status, view.outcome, view.failure, view.progress) == (JobStatus.RUNNING, None, None, 0)
    assert [(t.task_id, t.status) for t in view.tasks] == [("t", RUNNING)]
