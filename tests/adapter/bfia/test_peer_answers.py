"""What counts as success, refusal, no answer: peers answer in every way seen in the wild, and in others.

Which deviation belongs to whom: profiles ``fate`` (FATE-Flow) and ``kuscia``. Bodies marked "invented" were not
recorded from a peer.
"""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.spec import Ending, Failure
from gateway.domain.states import Outcome
from gateway.errors import Invalid, NotAllowed, NotFound, PeerUnreachable, Refused
from gateway.ports import TaskNews
from tests.adapter.bfia.calling import RUNNING, SUCCESS, As, refused
from tests.adapter.bfia.scripted import Clients, ScriptedPeer, clients, raw, says, silence, text, trickle
from tests.builders import a_spec
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, STRANGER

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


@pytest.mark.parametrize("name", ["msg", "message", "path", "rule", "got", "reason", "problems"])
def test_a_refusal_of_megabytes_is_read_to_a_bound(peer: ScriptedPeer, spec_peer: Clients, name: str):
    endless = "w" * 2_000_000
    problem = {"path": "p", "rule": "r", "got": 1} | ({name: endless} if name in ("path", "rule", "got") else {})
    found = [problem] * (100_000 if name == "problems" else 1)
    data = {"reason": endless if name == "reason" else "NO", "problems": found}
    peer.will(says({"code": Invalid.code, name: endless, "data": data}))
    invalid = refused(spec_peer.participant.start_job, "job-1", ME)
    peer.will(says({"code": 1, name: endless, "data": data | {"problems": []}}))
    plain = refused(spec_peer.participant.start_job, "job-1", ME)
    assert isinstance(invalid, Invalid) and type(plain) is Refused
    assert max(len(f"{e.message}{e.reason}") for e in (invalid, plain)) < 10_000


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


@pytest.mark.parametrize("status", [300, 400, 401, 403, 404, 405, 409, 413, 422, 500, 501])
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
