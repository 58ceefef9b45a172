"""Calls to peers, against peers that answer in every way that was seen in the wild, and in some that were not.

Which deviation belongs to whom: profiles ``fate`` (FATE-Flow) and ``kuscia``. Bodies marked "invented" were not
recorded from a peer.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia import translate, wire
from adapter.bfia.profiles import PROFILES
from gateway.domain.model import Ending, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, PeerUnreachable, Refused
from gateway.ports import TaskNews, TaskReport
from gateway.tracing import traced
from tests.adapter.bfia import goldens
from tests.adapter.bfia.scripted import Clients, ScriptedPeer, clients, raw, says, scripted, silence, text, trickle
from tests.builders import a_spec
from tests.e2e.jobs import user_job
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, STRANGER

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
PENDING = TaskStatus.PENDING

As = Callable[..., AbstractContextManager[Clients]]


@pytest.fixture
def served() -> Iterator[tuple[ScriptedPeer, str]]:
    with scripted() as pair:
        yield pair


@pytest.fixture
def peer(served: tuple[ScriptedPeer, str]) -> ScriptedPeer:
    return served[0]


@pytest.fixture
def calling(served: tuple[ScriptedPeer, str], tmp_path: Path) -> As:
    """Return what makes clients of the scripted peer, by profile and deadline."""
    return partial(clients, tmp_path, served[1])


@pytest.fixture
def spec_peer(calling: As) -> Iterator[Clients]:
    with calling() as found:
        yield found


def refused(call: Any, *args: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call(*args)
    assert not isinstance(caught.value, PeerUnreachable), caught.value
    return caught.value


# ---------------------------------------------------------------- what counts as success


@pytest.mark.parametrize("code", [0, 200, "0", "200"])
@pytest.mark.parametrize("data", [{}, None, [], "", 5, "absent"], ids=str)
def test_a_success_in_every_form(peer: ScriptedPeer, spec_peer: Clients, code: Any, data: Any):
    body = {"code": code, "data": data}
    if data == "absent":
        del body["data"]
    peer.will(says(body))
    spec_peer.participant.start_job("job-1", ME)
    assert spec_peer.peer.post("/job/start", {}) == {}


@pytest.mark.parametrize("status", [200, 201, 202])
def test_any_2xx_carries_a_success(peer: ScriptedPeer, spec_peer: Clients, status: int):
    peer.will(says(status=status))
    spec_peer.participant.start_job("job-1", ME)


def test_fields_beside_data_are_read_and_data_goes_first(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(says({"code": 0, "msg": "success", "status": "RUNNING", "data": None}))
    assert spec_peer.participant.poll_task("t", "guest", ME) == TaskNews(RUNNING)
    peer.will(says({"code": 0, "status": "RUNNING", "data": {"status": "SUCCESS"}}))
    assert spec_peer.participant.poll_task("t", "guest", ME) == TaskNews(SUCCESS)


# ---------------------------------------------------------------- what counts as a refusal


def test_a_peer_that_knows_the_question_only_is_told_by_it_that_the_job_has_ended(peer: ScriptedPeer, calling: As):
    """Such a peer agreed to the job, which was never created there."""
    no = says({"code": 404, "msg": "no such job", "data": {"reason": "JOB_UNKNOWN"}})
    why = Failure("NO_ROOM", "there is no room", "JG3")
    ending = Ending(Outcome.REJECTED, datetime.now(UTC), why)
    with calling("audited") as one:
        peer.will(no, says())
        one.participant.stop_job("job-1", "", ending, ME)
        stop, terminate = (asked.body for asked in peer.asked)
        assert terminate == {"audit_id": "audit_job-1", "outcome": "REJECTED", "failed_by": why.as_dict()}
        assert stop == {"job_id": "job-1", "outcome": "REJECTED", "failed_by": why.as_dict()}
        peer.will(no, says({"code": 404, "data": {"reason": "AUDIT_UNKNOWN"}}))
        assert refused(one.participant.stop_job, "job-1", "", ending, ME).reason == "JOB_UNKNOWN"
        peer.will(no, raw(b""))
        with pytest.raises(PeerUnreachable):  # it is to be told again
            one.participant.stop_job("job-1", "", ending, ME)
    with calling("spec") as other:
        peer.will(no)
        assert refused(other.participant.stop_job, "job-1", "", ending, ME).reason == "JOB_UNKNOWN"


@pytest.mark.parametrize(
    "code",
    [
        1,
        -1,
        100,
        104,
        400,
        404,
        5001,
        6000,
        "1",
        "--5",
        "0x0",
        "²",
        "",
        None,
        True,
        False,
        0.5,
        [],
        {},
        "9" * 5000,
    ],
    ids=lambda c: str(c)[:8],
)
def test_every_other_code_is_a_refusal(peer: ScriptedPeer, spec_peer: Clients, code: Any):
    peer.will(says({"code": code, "msg": "no"}))
    error = refused(spec_peer.participant.start_job, "job-1", ME)
    assert (type(error), error.reason) == (Refused, "REFUSED")
    assert error.message == f"{PEER}: no"


def test_a_missing_code_is_a_refusal(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(says({"msg": "success"}))
    assert refused(spec_peer.participant.start_job, "job-1", ME).reason == "REFUSED"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"code": 6000, "message": "/v1/x not found"}, "/v1/x not found"),
        ({"code": 1, "msg": "", "message": "why"}, "why"),
        ({"code": 1, "msg": "why", "message": "other"}, "why"),
        ({"code": 1, "msg": None}, "code 1"),
        ({"code": 1}, "code 1"),
        ({"code": 1, "msg": {"a": 1}}, "{'a': 1}"),
        ({"code": 400, "msg": "原因"}, "原因"),
    ],
)
def test_the_peers_words_are_passed_on(peer: ScriptedPeer, spec_peer: Clients, body: Any, shown: str):
    peer.will(says(body))
    assert refused(spec_peer.participant.start_job, "job-1", ME).message == f"{PEER}: {shown}"


@pytest.mark.parametrize("status", [300, 400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 501])
def test_a_success_code_in_a_failed_answer_is_a_refusal(peer: ScriptedPeer, spec_peer: Clients, status: int):
    peer.will(says(status=status))
    assert refused(spec_peer.participant.start_job, "job-1", ME).reason == "REFUSED"


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[1]", b'"success"', b"null", b"0", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000],
    ids=lambda b: repr(b[:6]),
)
def test_an_answer_without_an_object_is_a_refusal(
    peer: ScriptedPeer, spec_peer: Clients, body: bytes, status: int
):
    peer.will(text(body, status))
    error = refused(spec_peer.participant.start_job, "job-1", ME)
    assert (error.reason, error.message) == (
        "NO_ENVELOPE",
        f"{PEER} answers HTTP {status} without a JSON object",
    )


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_cannot_reach_the_peer_is_no_refusal(peer: ScriptedPeer, spec_peer: Clients, status: int):
    for answer in (text(b"<html>Bad gateway</html>", status), says(status=status)):
        peer.will(answer)
        with pytest.raises(PeerUnreachable) as caught:
            spec_peer.participant.start_job("job-1", ME)
        assert caught.value.delivered


@pytest.mark.parametrize(
    ("code", "kind"), [(403, NotAllowed), (404, NotFound), (409, Refused), (500, Refused), (400, Refused)]
)
def test_a_named_reason_is_raised_as_what_it_was_there(
    peer: ScriptedPeer, spec_peer: Clients, code: int, kind: type
):
    peer.will(says({"code": code, "msg": "R: why", "data": {"reason": "R"}}))
    error = refused(spec_peer.participant.start_job, "job-1", ME)
    assert (type(error), error.reason) == (kind, "R")


def test_problems_are_passed_on_one_by_one(peer: ScriptedPeer, spec_peer: Clients):
    problems = [{"path": "dag", "rule": "must be", "got": 5}, {"path": "x"}, "no problem", None]
    peer.will(says({"code": 400, "msg": "INVALID: …", "data": {"reason": "INVALID", "problems": problems}}))
    error = refused(spec_peer.participant.create_job, a_spec(), ME)
    assert isinstance(error, Invalid)
    assert [(p.path, p.rule, p.got) for p in error.problems] == [("dag", "must be", 5), ("x", "", None)]


@pytest.mark.parametrize("data", [{"reason": None}, {"reason": 5}, {"reason": {}}, {"reason": ""}, [], "x"])
def test_an_odd_reason_is_none(peer: ScriptedPeer, spec_peer: Clients, data: Any):
    peer.will(says({"code": 404, "msg": "no", "data": data}))
    assert refused(spec_peer.participant.start_job, "job-1", ME).reason == "REFUSED"


@pytest.mark.parametrize("problems", [None, 5, "x", {}, [], [None]])
def test_odd_problems_are_none(peer: ScriptedPeer, spec_peer: Clients, problems: Any):
    peer.will(says({"code": 400, "msg": "no", "data": {"reason": "INVALID", "problems": problems}}))
    assert refused(spec_peer.participant.start_job, "job-1", ME).reason == "INVALID"


# ---------------------------------------------------------------- no answer


def unreachable(call: Any, *args: Any) -> PeerUnreachable:
    with pytest.raises(PeerUnreachable) as caught:
        call(*args)
    assert PEER in caught.value.message
    return caught.value


def test_a_port_on_which_nobody_listens(tmp_path: Path):
    (port,) = free_ports(1)
    with clients(tmp_path, f"http://127.0.0.1:{port}") as found:
        assert unreachable(found.participant.start_job, "job-1", ME).delivered is False


def test_a_name_that_nobody_has(tmp_path: Path):
    with clients(tmp_path, "http://nobody.invalid:1") as found:
        assert unreachable(found.participant.start_job, "job-1", ME).delivered is False


def test_a_peer_that_never_answers(peer: ScriptedPeer, calling: As):
    peer.will(silence)
    with calling(deadline=1.5) as found:
        assert unreachable(found.participant.start_job, "job-1", ME).delivered is True
    wait_for(lambda: len(peer.asked) == 1)


def test_a_peer_whose_answer_never_ends(peer: ScriptedPeer, calling: As):
    """Every read succeeds in time; the deadline is for the whole call."""
    peer.will(trickle)
    with calling(deadline=1.5) as found:
        assert unreachable(found.participant.start_job, "job-1", ME).delivered is True


def test_an_answer_without_measure_is_not_taken_in(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(text(b" " * (33 << 20), kind="application/json"))
    assert refused(spec_peer.participant.start_job, "job-1", ME).reason == "NO_ENVELOPE"


@pytest.mark.parametrize(
    "answer",
    [
        raw(b""),
        raw(b"", reset=True),
        raw(b"HTTP/1.1 200 OK\r\ncontent-le"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{"),
        raw(b'HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{"code": 0}', reset=True),
        raw(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\n{"code": 0}\r\n'),
        raw(b"this is not HTTP\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"),
    ],
    ids=["closed", "reset", "half head", "half body", "reset in body", "half chunks", "no HTTP", "broken gzip"],
)
def test_an_answer_that_breaks_off_may_have_had_its_effect(peer: ScriptedPeer, spec_peer: Clients, answer: Any):
    peer.will(answer)
    assert unreachable(spec_peer.participant.start_job, "job-1", ME).delivered is True
    assert len(peer.asked) == 1  # and is not sent again from here
    peer.will(says())
    spec_peer.participant.start_job("job-1", ME)


def test_what_is_said_not_to_have_been_delivered_never_was(peer: ScriptedPeer, calling: As):
    """More calls at once than there are connections to a peer, and the peer answers none."""
    peer.will(silence)
    errors: list[PeerUnreachable] = []
    with calling(deadline=2.0) as found:

        def call() -> None:
            errors.append(unreachable(found.participant.start_job, "job-1", ME))

        threads = [threading.Thread(target=call) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(errors) == 40
    # on a slow machine one that has been sent may not have been read yet
    assert len(peer.asked) <= sum(error.delivered for error in errors) <= 32


def test_a_node_without_a_route_is_refused_by_name(tmp_path: Path):
    with clients(tmp_path, "http://127.0.0.1:1") as found:
        found.peer._node = STRANGER  # a client lives as long as one call; its route may go before
        error = refused(found.participant.start_job, "job-1", ME)
    assert error.reason == "NODE_UNKNOWN" and STRANGER in error.message


# ---------------------------------------------------------------- headers

HEADERS = {
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-node-id",
    "x-target-node-id",
    "x-nonce",
    "x-trace-id",
    "x-timestamp",
}


def every_call(found: Clients, spec: JobSpec) -> list[tuple[str, Callable[[], Any]]]:
    """Return each call that goes out, with arguments that say something."""
    why = Failure("EXIT_1", "exit code 1", ME, "guest", "a", 1)
    ending = Ending(Outcome.FAILED, datetime(2026, 1, 1, tzinfo=UTC), why, ME)
    job, task = spec.job_id, "task_11111111111111111111111111111111"
    s, p = found.scheduler, found.participant
    return [
        ("create_all", lambda: s.submit_job(spec, ME)),
        ("stop_all", lambda: s.stop_job(job, "", ME)),
        ("stop_all of a task", lambda: s.stop_job(job, "a", ME)),
        ("status_all", lambda: s.job_status(job, ME)),
        ("callback", lambda: s.report_task(TaskReport(task, "guest", RUNNING, None, job), ME)),
        ("callback of a failure", lambda: s.report_task(TaskReport(task, "guest", FAILED, why, job), ME)),
        ("create", lambda: p.create_job(spec, ME)),
        ("start", lambda: p.start_job(job, ME)),
        ("task start", lambda: p.start_task(job, task, "intersect_rsa_1", ME)),
        ("poll", lambda: p.poll_task(task, "guest", ME)),
        ("stop", lambda: p.stop_job(job, "", ending, ME)),
        (
            "stop of a success",
            lambda: p.stop_job(job, "", replace(ending, outcome=Outcome.SUCCEEDED, failure=None), ME),
        ),
        ("stop without a word", lambda: p.stop_job(job, "", None, ME)),
        ("stop of a task", lambda: p.stop_job(job, "a", None, ME)),
        ("task stop", lambda: p.stop_task(job, task, "a", ME)),
        ("task stop by id", lambda: p.stop_task("", task, "", ME)),
    ]


FINE = says(data={"status": "RUNNING", "job_status": "RUNNING"})
"""an answer that suits every call (a map of task states is asked for where a job is)"""


def fine(call: str) -> Any:
    return says(data={"status": {"t": "RUNNING"}}) if call == "status_all" else FINE


def test_every_call_carries_every_header(peer: ScriptedPeer, spec_peer: Clients):
    for name, call in every_call(spec_peer, the_users_job()):
        peer.will(fine(name))
        call()
        headers = peer.asked[-1].headers
        assert all(headers.get(h) for h in HEADERS), (name, headers)
        assert not any("_" in h for h in headers)
        assert headers["x-source-node-id"] == headers["x-node-id"] == ME
        assert headers["x-target-node-id"] == PEER
        assert headers["content-type"] == "application/json"
        now_ms = datetime.now(UTC).timestamp() * 1000
        assert abs(int(headers["x-timestamp"]) - now_ms) < 3_600_000


@pytest.mark.parametrize("name", ["x-nonce", "x-csrf-protection"])
def test_every_try_is_fresh(peer: ScriptedPeer, spec_peer: Clients, name: str):
    for _ in range(5):
        spec_peer.participant.start_job("job-1", ME)
    assert len({a.headers[name] for a in peer.asked}) == 5


def test_the_trace_follows_the_job(peer: ScriptedPeer, spec_peer: Clients):
    spec_peer.scheduler.submit_job(a_spec(trace_id="trace-of-job"), ME)
    with traced("trace-of-call"):
        spec_peer.participant.start_job("job-1", ME)
    assert [a.headers["x-trace-id"] for a in peer.asked] == ["trace-of-job", "trace-of-call"]


# ---------------------------------------------------------------- bodies


def the_users_job() -> JobSpec:
    body = wire.CreateAll.model_validate(user_job(ME, PEER))
    return translate.job_spec(body, "job-00112233445566778899aabbccddeeff", ME, "trace-1")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_request_is_this_one_to_the_byte(peer: ScriptedPeer, calling: As, profile: str):
    said: dict[str, Any] = {}
    with calling(profile) as found:
        for name, call in every_call(found, the_users_job()):
            peer.will(fine(name))
            before = len(peer.asked)
            call()
            assert all(a.raw == json.dumps(a.body, ensure_ascii=False).encode() for a in peer.asked[before:])
            said[name] = [f"{a.method} {a.target}", a.body] if (a := _only(peer.asked[before:])) else None
    goldens.check(f"requests-{profile}", said)


def _only(asked: list[Any]) -> Any:
    assert len(asked) <= 1
    return asked[0] if asked else None


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_what_is_sent_is_read_as_it_was_meant(profile: str):
    spec = the_users_job()
    body = wire.CreateJob.model_validate(translate.create_body(spec, PROFILES[profile]))
    assert translate.job_spec(body, body.job_id, ME, "trace-1") == spec


def test_fate_gets_texts_where_others_bear_nothing(peer: ScriptedPeer, calling: As):
    """It refuses null and a missing ``flow_id`` or ``old_job_id``, and keeps a job that hangs for ever."""
    with calling("fate") as found:
        found.scheduler.submit_job(replace(the_users_job(), flow_id=""), ME)
        found.participant.create_job(replace(the_users_job(), flow_id=""), ME)
    for asked in peer.asked:
        assert asked.body["flow_id"] == "" and asked.body["old_job_id"] == ""


def test_kuscia_gets_an_entry_for_every_party_of_every_task(peer: ScriptedPeer, calling: As):
    """It takes as a task's parties those that have an entry."""
    roles = {"guest": ("n1",), "host": ("n2", "n3"), "arbiter": ("n4",)}
    params = {"common": {"a": {"x": 1}}, "host": {"1": {"b": {"y": 2}}}}
    with calling("kuscia") as found:
        found.participant.create_job(a_spec("a -> b", roles, task_params=params), ME)
    sent = peer.asked[0].body["config"]["task_params"]
    empty = {"a": {}, "b": {}}
    assert sent == {
        "common": {"a": {"x": 1}},
        "guest": {"0": empty},
        "host": {"0": empty, "1": {"a": {}, "b": {"y": 2}}},
        "arbiter": {"0": empty},
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_indices_are_sent_one_by_one(peer: ScriptedPeer, calling: As, profile: str):
    """``"0|1"`` is read, but not every peer reads it."""
    roles = {"guest": ("n1",), "host": ("n2", "n3", "n4")}
    common = {"common": {"sync_type": "poll"}}
    spec = a_spec(
        "a; b",
        roles,
        job_params=common | {"host": {"0|1": {"resources": {"cpu": 1}}, "1": {"resources": {"memory": 2}}}},
        task_params={"host": {"0|1|2": {"a": {"x": 1, "y": 1}}, "1": {"a": {"y": 2}}, "2": {"b": {"z": 3}}}},
    )
    with calling(profile) as found:
        found.participant.create_job(spec, ME)
    sent = peer.asked[0].body["config"]
    assert sent["job_params"] == common | {
        "host": {"0": {"resources": {"cpu": 1}}, "1": {"resources": {"cpu": 1, "memory": 2}}}
    }
    task_params = {k: {t: v for t, v in e.items() if v} for k, e in sent["task_params"]["host"].items()}
    assert task_params == {
        "0": {"a": {"x": 1, "y": 1}},
        "1": {"a": {"x": 1, "y": 2}},
        "2": {"a": {"x": 1, "y": 1}, "b": {"z": 3}},
    }


@pytest.mark.parametrize(
    ("profile", "path"), [("spec", "job/stop"), ("fate", "job/stop"), ("kuscia", "task/stop")]
)
def test_one_task_is_stopped_in_the_way_that_leaves_the_others(
    peer: ScriptedPeer, calling: As, profile: str, path: str
):
    """Kuscia does not read ``task_name``: its job/stop would end the whole job."""
    with calling(profile) as found:
        found.participant.stop_task("job-1", "task_1", "a", ME)
    (asked,) = peer.asked
    assert asked.target == f"/v1/interconn/schedule/{path}"
    assert asked.body == ({"task_id": "task_1"} if path == "task/stop" else {"job_id": "job-1", "task_name": "a"})


# ---------------------------------------------------------------- create


def test_kuscias_refusal_of_a_job_that_it_has_is_an_acceptance(peer: ScriptedPeer, calling: As):
    """Job ids are random: whoever has it has it from an earlier try whose answer got lost."""
    peer.will(says({"code": 400, "msg": "Job already exists"}))
    with calling("kuscia") as found:
        found.participant.create_job(the_users_job(), ME)
    with calling("spec") as found:
        assert refused(found.participant.create_job, the_users_job(), ME).reason == "REFUSED"


def test_kuscias_other_refusals_stay_refusals(peer: ScriptedPeer, calling: As):
    peer.will(says({"code": 400, "msg": "parameter dag can't be empty"}))
    with calling("kuscia") as found:
        assert refused(found.participant.create_job, the_users_job(), ME).reason == "REFUSED"


# ---------------------------------------------------------------- poll


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


# ---------------------------------------------------------------- report


@pytest.mark.parametrize(("profile", "calls"), [("spec", 1), ("fate", 1), ("kuscia", 0)])
def test_only_who_serves_reports_is_sent_one(peer: ScriptedPeer, calling: As, profile: str, calls: int):
    with calling(profile) as found:
        found.scheduler.report_task(TaskReport("t", "guest", SUCCESS), ME)
    assert [a.target for a in peer.asked] == ["/v1/interconn/schedule/task/callback"] * calls


# ---------------------------------------------------------------- status of a job


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


@pytest.mark.parametrize("body", [{"code": 0, "data": {}}, {"code": 0}, {"code": 0, "data": None}])
def test_an_empty_answer_means_that_the_job_is_unknown(peer: ScriptedPeer, calling: As, body: Any):
    peer.will(says(body))
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
