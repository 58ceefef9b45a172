"""What is made of a peer's answer: peers answer in every way seen in the wild, and in others.

Which deviation belongs to whom: profiles ``fate`` (FATE-Flow) and ``kuscia``. Bodies marked "invented" were not
recorded from a peer.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia import connections, interconn, translate
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.connections import Client, NotConnected, Request
from adapter.bfia.peer import PROFILE_QUESTION
from adapter.bfia.profiles import PROFILES
from gateway.data.outputs import OutputQuery
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, Invalid, PeerUnreachable, Refused
from gateway.ports import JobView, TaskNews
from gateway.runtime.context import traced
from route_table.live import LiveRoutes
from route_table.model import NO_IDENTITY, Identity
from tests.adapter.bfia.conftest import As
from tests.adapter.bfia.scripted import (
    Clients,
    ScriptedPeer,
    clients,
    raw,
    says,
    silence,
    text,
    trickle,
)
from tests.builders import a_spec
from tests.certificates import Authority
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, STRANGER

REFUSED = ("Refused", "REFUSED")
NO_ENVELOPE = ("Refused", "NO_ENVELOPE")
STATUS_UNKNOWN = ("Invalid", "STATUS_UNKNOWN")
TASK_UNKNOWN = ("NotFound", "TASK_UNKNOWN")


def error_of(call: Callable[[], Any]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call()
    return caught.value


def meaning(call: Callable[[], Any]) -> Any:
    """Return what a call gives: a task's state, a job's with its tasks', or kind and reason of an error."""
    try:
        found = call()
    except GatewayError as error:
        return type(error).__name__, error.reason
    if isinstance(found, JobView):
        return str(found.status), {t.task_id: str(t.status) for t in found.tasks}
    return str(found.status) if isinstance(found, TaskNews) else found


# ---------------------------------------------------------------- success and refusal


@pytest.mark.parametrize("data", [{}, None, [], "", 5, "absent"], ids=str)
def test_a_success_in_every_form(
    peer: ScriptedPeer,
    spec_peer: Clients,
    data: Any,
):
    for code in (0, 200, "0", "200", 0.0):
        peer.will(says({"code": code} | ({} if data == "absent" else {"data": data}), 201))
        assert spec_peer.peer.post("/job/start", {}) == {}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        *(
            (says({"code": code, "msg": "no"}), REFUSED)
            for code in (1, -1, 6000, "1", "--5", "0x0", "²", "", None, True, 0.5, [], "9" * 5000)
        ),
        (says({"msg": "success"}), REFUSED),
        *((says(status=status), REFUSED) for status in (300, 404, 409, 500, 501)),
        *(
            (text(body, status), NO_ENVELOPE)
            for body in (b"", b"[1]", b'"success"', b"0", b"\xff\xfe", b"[" * 100_000)
            for status in (200, 404, 500)
        ),
        *(
            (answer, ("PeerUnreachable", "PEER_UNREACHABLE"))
            for answer in (
                text(b"<html>", 502),
                says(status=503),
                says({"data": {"reason": "ODD"}}, 429),
            )
        ),
        (says({"data": {"reason": "PARTNER_QUOTA"}}, 429), ("PeerUnreachable", "PARTNER_QUOTA")),
        (
            says(
                {
                    "code": 403,
                    "msg": "R: why",
                    "data": {"reason": "R"},
                }
            ),
            ("NotAllowed", "R"),
        ),
        (
            says(
                {
                    "code": 404,
                    "msg": "R: why",
                    "data": {"reason": "R"},
                }
            ),
            ("NotFound", "R"),
        ),
        (
            says(
                {
                    "code": 409,
                    "msg": "R: why",
                    "data": {"reason": "R"},
                }
            ),
            ("Refused", "R"),
        ),
        *((says({"code": 404, "data": {"reason": odd}}), REFUSED) for odd in (None, 5, {}, "")),
        (
            says({"code": 400, "data": {"reason": "INVALID", "problems": [None]}}),
            ("Refused", "INVALID"),
        ),
    ],
)
def test_what_is_no_success(
    peer: ScriptedPeer,
    spec_peer: Clients,
    answer: Any,
    error: tuple[str, str],
):
    peer.will(answer)
    assert meaning(lambda: spec_peer.participant.start_job("job-1", ME)) == error


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"code": 6000, "message": "/v1/x not found"}, "code 6000: /v1/x not found"),
        (
            {
                "code": 1,
                "msg": "原因",
                "message": "other",
            },
            "code 1: 原因",
        ),
        ({"code": 1, "msg": "success"}, "code 1: success"),
        ({"code": 1, "msg": None}, "code 1"),
        ({"code": 1, "msg": {"a": 1}}, "code 1: {'a': 1}"),
    ],
)
def test_a_peers_refusal_is_passed_on_with_path_and_code(
    peer: ScriptedPeer,
    spec_peer: Clients,
    body: Any,
    shown: str,
):
    peer.will(says(body))
    assert (
        error_of(lambda: spec_peer.participant.start_job("job-1", ME)).message
        == f"{PEER} refuses /job/start with {shown}"
    )


@pytest.mark.parametrize("name", ["msg", "message", "path", "rule", "got", "reason", "problems"])
def test_a_refusal_of_megabytes_is_read_to_a_bound(
    peer: ScriptedPeer,
    spec_peer: Clients,
    name: str,
):
    endless = "w" * 2_000_000
    problem = {
        "path": "p",
        "rule": "r",
        "got": 1,
    } | ({name: endless} if name in ("path", "rule", "got") else {})
    found = [problem] * (10_000 if name == "problems" else 1)
    data = {"reason": endless if name == "reason" else "NO", "problems": found}
    for code, kind in ((Invalid.code, Invalid), (1, Refused)):
        peer.will(
            says(
                {
                    "code": code,
                    name: endless,
                    "data": data,
                }
            )
        )
        error = error_of(lambda: spec_peer.participant.start_job("job-1", ME))
        assert type(error) is kind and len(f"{error.message}{error.reason}") < 10_000


def test_problems_are_passed_on_one_by_one(peer: ScriptedPeer, spec_peer: Clients):
    problems = [
        {
            "path": "dag",
            "rule": "must be",
            "got": 5,
        },
        {"path": "x"},
        "no problem",
        None,
    ]
    peer.will(
        says(
            {
                "code": 400,
                "msg": "INVALID: …",
                "data": {"reason": "INVALID", "problems": problems},
            }
        )
    )
    error = error_of(lambda: spec_peer.participant.create_job(a_spec(), ME))
    assert isinstance(error, Invalid)
    assert [(p.path, p.rule, p.got) for p in error.problems] == [
        ("dag", "must be", 5),
        ("x", "", None),
    ]


def test_a_peer_that_can_only_query_learns_that_the_job_has_ended(peer: ScriptedPeer, calling: As):
    """Such a peer agreed to the job, which was never created there."""
    no = says(
        {
            "code": 404,
            "msg": "no such job",
            "data": {"reason": "JOB_UNKNOWN"},
        }
    )
    why = Failure("NO_ROOM", "there is no room", "JG3")
    ending = Ending(Outcome.REJECTED, datetime.now(UTC), why)
    with calling("audited") as one:
        peer.will(no, says())
        one.participant.stop_job("job-1", "", ending, ME)
        stop, terminate = (asked.body for asked in peer.asked)
        assert terminate == {
            "audit_id": "audit_job-1",
            "outcome": "REJECTED",
            "failed_by": why.as_dict(),
        }
        assert stop == {
            "job_id": "job-1",
            "outcome": "REJECTED",
            "failed_by": why.as_dict(),
        }
        peer.will(no, says({"code": 404, "data": {"reason": "AUDIT_UNKNOWN"}}))
        assert (
            error_of(lambda: one.participant.stop_job("job-1", "", ending, ME)).reason
            == "JOB_UNKNOWN"
        )
        peer.will(no, raw(b""))
        with pytest.raises(PeerUnreachable):  # it is to be told again
            one.participant.stop_job("job-1", "", ending, ME)


# ---------------------------------------------------------------- no answer


def unreachable(found: Clients) -> PeerUnreachable:
    error = error_of(lambda: found.participant.start_job("job-1", ME))
    assert isinstance(error, PeerUnreachable) and PEER in error.message
    return error


def test_a_port_without_a_listener(tmp_path: Path):
    with clients(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}") as found:
        assert unreachable(found).delivered is False
        error = error_of(lambda: found.peer.invoke("/v1/interconn/chan/invoke", b"", {}))
    assert isinstance(error, PeerUnreachable) and "no answer from http://" in error.message


@pytest.mark.parametrize("answer", [silence, trickle])
def test_the_deadline_is_for_the_whole_call(
    peer: ScriptedPeer,
    calling: As,
    answer: Any,
):
    peer.will(answer)
    with calling(deadline=0.5) as found:
        assert unreachable(found).delivered is True


@pytest.mark.parametrize(
    "answer",
    [
        raw(b""),
        raw(b"", reset=True),
        raw(b"HTTP/1.1 200 OK\r\ncontent-le"),
        raw(b'HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{"code": 0}', reset=True),
        raw(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\n{"code": 0}\r\n'),
        raw(b"this is not HTTP\r\n\r\n"),
        raw(b"HTTP/1.0 200 OK\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"),
    ],
    ids=[
        "closed",
        "reset",
        "half head",
        "reset in body",
        "half chunks",
        "no HTTP",
        "no body",
        "broken gzip",
    ],
)
def test_an_answer_that_breaks_off_may_have_had_its_effect(
    peer: ScriptedPeer,
    spec_peer: Clients,
    answer: Any,
):
    peer.will(answer)
    assert unreachable(spec_peer).delivered is True
    assert len(peer.asked) == 1  # and is not sent again from here
    peer.will(says())
    spec_peer.participant.start_job("job-1", ME)


def test_a_node_without_a_route_is_refused_by_name(tmp_path: Path):
    with clients(tmp_path, "http://127.0.0.1:1") as found:
        found.peer.node = STRANGER  # a client lives as long as one call; its route may go before
        error = error_of(lambda: found.participant.start_job("job-1", ME))
    assert error.reason == "NODE_UNKNOWN" and STRANGER in error.message


def test_more_requests_than_a_peer_has_connections_are_not_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_REQUESTS", 0)
    with pytest.raises(NotConnected, match="0 requests are under way"):
        Client("http://127.0.0.1:9", None).send(Request("GET", "/", {}, b""), 0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize(("target", "name"), [("/ok", "x\r\ny"), ("/a\r\nx: y", "x")])
def test_no_text_becomes_a_header_of_its_own(
    peer: ScriptedPeer,
    spec_peer: Clients,
    target: str,
    name: str,
):
    """Attack: what a node is given goes into its own requests."""
    client = spec_peer.peer._connections.to(spec_peer.peer._route.url)
    with pytest.raises(ValueError, match="control characters"):
        client.send(Request("GET", target, {name: "v"}, b""), 5.0)
    assert peer.asked == []


def test_a_certificate_of_ones_own_goes_with_the_usual_authorities(tmp_path: Path):
    own = Authority(tmp_path).sign("own")
    made = connections.context(Identity(certificate=own.certificate, key=own.key))
    assert len(made.get_ca_certs()) == len(connections.context(NO_IDENTITY).get_ca_certs()) > 10


def test_what_is_gone_at_a_peer_is_deleted(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(
        says(
            {
                "code": 404,
                "msg": "no",
                "data": {"reason": "JOB_UNKNOWN"},
            }
        )
    )
    spec_peer.participant.delete_job("job-1", False, ME)
    peer.will(
        says(
            {
                "code": 404,
                "msg": "no",
                "data": {"reason": "NODE_UNKNOWN"},
            }
        )
    )
    assert (
        error_of(lambda: spec_peer.participant.delete_job("job-1", False, ME)).reason
        == "NODE_UNKNOWN"
    )


def test_a_description_of_outputs_that_is_none_is_named(peer: ScriptedPeer, spec_peer: Clients):
    peer.will(says(data={"outputs": [{"rows": "many"}]}))
    error = error_of(
        lambda: interconn.ask_output_metadata(
            spec_peer.peer, OutputQuery("job-1", "a", "guest", "out")
        )
    )
    assert (
        error.reason == "NO_ENVELOPE"
        and "description of its outputs is invalid: 0." in error.message
    )


# ---------------------------------------------------------------- a task


def unknown_task(code: int, **more: Any) -> Any:
    return says({"code": code, "msg": "no such task"} | more)


@pytest.mark.parametrize(
    ("profile", "answer", "means"),
    [
        *(("spec", says(data={"status": word}), word.upper()) for word in (*TaskStatus, "running")),
        (
            "fate",
            says(
                {
                    "code": 0,
                    "status": "RUNNING",
                    "data": None,
                }
            ),
            "RUNNING",
        ),  # beside data
        (
            "spec",
            says(
                {
                    "code": 0,
                    "status": "RUNNING",
                    "data": {"status": "SUCCESS"},
                }
            ),
            "SUCCESS",
        ),
        (
            "kuscia",
            says(
                {
                    "code": 200,
                    "msg": "",
                    "data": {"status": ""},
                }
            ),
            "PENDING",
        ),  # a phase without a word
        *(
            ("spec", says(data={"status": word}), STATUS_UNKNOWN)
            for word in ("DONE", "canceled", None, 5, [], {})
        ),
        *(("spec", says(body), STATUS_UNKNOWN) for body in ({"code": 0}, {"code": 0, "data": {}})),
        ("fate", unknown_task(6000), TASK_UNKNOWN),  # invented
        ("kuscia", unknown_task(400), TASK_UNKNOWN),
        *(
            (name, unknown_task(404, data={"reason": "TASK_UNKNOWN"}), TASK_UNKNOWN)
            for name in PROFILES
        ),
        ("spec", unknown_task(400), REFUSED),
        # starting a task a second time would harm one that runs
        *(
            (name, text(b"<html>Internal server error</html>", 500), NO_ENVELOPE)
            for name in PROFILES
        ),
    ],
)
def test_what_a_poll_says(
    peer: ScriptedPeer,
    calling: As,
    profile: str,
    answer: Any,
    means: Any,
):
    peer.will(answer)
    with calling(profile) as found:
        assert meaning(lambda: found.participant.poll_task("t", "guest", ME)) == means


@pytest.mark.parametrize(
    ("failed_by", "failure"),
    [
        (
            {
                "reason": "EXIT_1",
                "message": "m",
                "exit_code": 1,
            },
            Failure("EXIT_1", "m", exit_code=1),
        ),
        (
            {
                "reason": "X",
                "message": None,
                "node": None,
            },
            Failure("X"),
        ),
        (
            dict.fromkeys(("reason", "message", "node", "role", "task"), "x" * 3000),
            Failure("x" * 255, "x" * 2000, *["x" * 255] * 3),
        ),
        *((odd, None) for odd in ({"reason": ""}, {}, None, "out of memory", {"reason": 5})),
        ({"reason": "X", "exit_code": "many"}, None),
    ],
)
def test_why_a_task_failed(
    peer: ScriptedPeer,
    spec_peer: Clients,
    failed_by: Any,
    failure: Any,
):
    peer.will(says(data={"status": "FAILED", "failed_by": failed_by}))
    assert spec_peer.participant.poll_task("t", "guest", ME) == TaskNews(TaskStatus.FAILED, failure)


# ---------------------------------------------------------------- a job


def of_job(status: str | None = None, **tasks: str) -> Any:
    return says(data={"status": tasks} | ({"job_status": status} if status is not None else {}))


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        *(
            (of_job(word, t="SUCCESS"), (word.upper(), {"t": "SUCCESS"}))
            for word in (*JobStatus, "finished")
        ),
        *(
            (of_job(word, t="SUCCESS"), ("FINISHED", {"t": "SUCCESS"}))
            for word in ("SUCCESS", "FAILED")
        ),
        # where it does not say, the job's state follows from the tasks'
        *(
            (of_job(odd, a="PENDING"), ("PENDING", {"a": "PENDING"}))
            for odd in (None, "", "Sleeping")
        ),
        (of_job(None, a="PENDING", b="READY"), ("RUNNING", {"a": "PENDING", "b": "READY"})),
        (of_job(None, a="SUCCESS", b=""), ("RUNNING", {"a": "SUCCESS", "b": "PENDING"})),
        (of_job(None, a="SUCCESS", b="SUCCESS"), ("FINISHED", {"a": "SUCCESS", "b": "SUCCESS"})),
        (of_job(None, a="SUCCESS", b="FAILED"), ("FINISHED", {"a": "SUCCESS", "b": "FAILED"})),
        (says({"code": 0, "status": {"t": "RUNNING"}}), ("RUNNING", {"t": "RUNNING"})),
        *((says({"code": 200, "data": {"status": none}}), ("PENDING", {})) for none in ({}, None)),
        (says({"code": 0, "data": {}}), ("NotFound", "JOB_UNKNOWN")),
        # containers of a job that is unknown there would be stopped here
        *(
            (says({"code": 0} | more), NO_ENVELOPE)
            for more in (
                {},
                {"data": None},
                {"data": {"hello": "there"}},
                {"data": {"status": "RUNNING"}},
            )
        ),
    ],
)
def test_what_a_job_is_said_to_be(
    peer: ScriptedPeer,
    spec_peer: Clients,
    answer: Any,
    means: Any,
):
    peer.will(answer)
    assert meaning(lambda: spec_peer.scheduler.job_status("job-1", ME)) == means


@pytest.mark.parametrize(
    ("answers", "means", "asked"),
    [
        ([says({"code": 6000, "message": "405"}), of_job("RUNNING")], ("RUNNING", {}), 2),
        ([text(b"<html>405</html>", 405), of_job("RUNNING")], ("RUNNING", {}), 2),
        (
            [says({"code": 1, "msg": "own trouble"}), text(b"")],
            REFUSED,
            2,
        ),  # its first refusal counts
        ([says({"code": 404, "data": {"reason": "JOB_UNKNOWN"}})], ("NotFound", "JOB_UNKNOWN"), 1),
        (
            [says({"code": 403, "data": {"reason": "NOT_AUTHORISED"}})],
            ("NotAllowed", "NOT_AUTHORISED"),
            1,
        ),
        ([raw(b"")], ("PeerUnreachable", "PEER_UNREACHABLE"), 1),
    ],
)
@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_the_other_method_is_tried_once_after_a_refusal_without_a_reason(
    peer: ScriptedPeer,
    calling: As,
    profile: str,
    answers: list[Any],
    means: Any,
    asked: int,
):
    peer.will(*answers)
    with calling(profile) as found:
        assert meaning(lambda: found.scheduler.job_status("job-1", ME)) == means
    first, second = ("GET", "POST") if profile == "fate" else ("POST", "GET")
    assert [a.method for a in peer.asked] == [first, second][:asked]


@pytest.mark.parametrize(
    "odd",
    [
        *({"progress": value} for value in ("half", [1], 1e400, True)),
        *({"outcome": value} for value in ({}, ["SUCCEEDED"], "WON")),
        *({"tasks": value} for value in (5, {"a": 1}, [1, None, {}])),
        {
            "failed_by": 5,
            "scheduler": None,
            "waiting": 5,
            "parties": {},
            "rerun_of": [],
        },
    ],
    ids=str,
)
def test_odd_extras_do_no_harm(
    peer: ScriptedPeer,
    spec_peer: Clients,
    odd: dict[str, Any],
):
    peer.will(says(data={"job_status": "RUNNING", "status": {"t": "RUNNING"}} | odd))
    view = spec_peer.scheduler.job_status("job-1", ME)
    assert (view.status, view.outcome, view.failure, view.progress) == (
        JobStatus.RUNNING,
        None,
        None,
        0,
    )
    assert [(t.task_id, t.status) for t in view.tasks] == [("t", TaskStatus.RUNNING)]


def test_the_trace_follows_the_job(peer: ScriptedPeer, spec_peer: Clients):
    spec_peer.scheduler.submit_job(a_spec(trace_id="trace-of-job"), ME)
    with traced("trace-of-call"):
        spec_peer.participant.start_job("job-1", ME)
    assert [a.headers["x-trace-id"] for a in peer.asked if a.body != PROFILE_QUESTION] == [
        "trace-of-job",
        "trace-of-call",
    ]


def test_a_node_is_reachable_where_its_route_has_a_listener(
    served: tuple[ScriptedPeer, str], tmp_path: Path
):
    file = tmp_path / "routes.yml"
    file.write_text(
        f"A: {{url: '{served[1]}'}}\nB: {{url: 'http://127.0.0.1:{free_ports(1)[0]}'}}\n"
    )
    protocol = BfiaProtocol(ME, LiveRoutes(file))
    assert [protocol.reaches(node) for node in ("A", "B", STRANGER)] == [True, False, False]
    protocol.close()


@pytest.mark.parametrize("profile", PROFILES)
def test_indices_are_sent_one_by_one(profile: str):
    """``"0|1"`` is read, but not every peer reads it."""
    roles = {"guest": ("n1",), "host": ("n2", "n3", "n4")}
    common = {"common": {"sync_type": "poll"}}
    spec = a_spec(
        "a; b",
        roles,
        job_params=common
        | {"host": {"0|1": {"resources": {"cpu": 1}}, "1": {"resources": {"memory": 2}}}},
        task_params={
            "host": {
                "0|1|2": {"a": {"x": 1, "y": 1}},
                "1": {"a": {"y": 2}},
                "2": {"b": {"z": 3}},
            }
        },
    )
    sent = translate.create_body(spec, PROFILES[profile])["config"]
    assert sent["job_params"] == common | {
        "host": {"0": {"resources": {"cpu": 1}}, "1": {"resources": {"cpu": 1, "memory": 2}}}
    }
    task_params = {
        k: {t: v for t, v in e.items() if v} for k, e in sent["task_params"]["host"].items()
    }
    assert task_params == {
        "0": {"a": {"x": 1, "y": 1}},
        "1": {"a": {"x": 1, "y": 2}},
        "2": {"a": {"x": 1, "y": 1}, "b": {"z": 3}},
    }
