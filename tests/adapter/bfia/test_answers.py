"""How a peer's answers are read: peers answer in every way seen in the wild, and in others.

The profile ``fate`` is FATE-Flow's, ``kuscia`` is Kuscia's. Bodies marked "invented" were not
recorded from a peer.
"""

import contextlib
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from adapter.bfia import connections, interconn, translate
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.connections import Client, Connections, NotConnected, Request
from adapter.bfia.peer import PROFILE_QUESTION
from adapter.bfia.profiles import PROFILES
from gateway.data.outputs import OutputQuery
from gateway.domain.problems import Problem
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, Invalid, PeerUnreachable, Refused
from gateway.ports import JobView, TaskNews
from gateway.runtime.context import traced
from route_table.editing import Change
from route_table.live import LiveRoutes
from route_table.model import NO_IDENTITY, Identity
from tests.adapter.bfia.scripted import (
    Answer,
    Clients,
    clients,
    raw,
    refuses,
    says,
    silence,
    text,
    trickle,
)
from tests.builders import a_spec
from tests.certificates import Authority
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, STRANGER

# Kind and reason of the errors that answers can mean.
REFUSED = ("Refused", "REFUSED")
NO_ENVELOPE = ("Refused", "NO_ENVELOPE")
UNREACHABLE = ("PeerUnreachable", "PEER_UNREACHABLE")
STATUS_UNKNOWN = ("Invalid", "STATUS_UNKNOWN")
TASK_UNKNOWN = ("NotFound", "TASK_UNKNOWN")
JOB_UNKNOWN = ("NotFound", "JOB_UNKNOWN")


def error_of(call: Callable[..., Any], *args: Any) -> GatewayError:
    """Return the error that a call raises."""
    with pytest.raises(GatewayError) as caught:
        call(*args)
    return caught.value


def meaning(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call in plain values.

    A task gives its status, a job its status and its tasks' statuses, an error its kind and reason.
    """
    try:
        result = call(*args)
    except GatewayError as error:
        return type(error).__name__, error.reason
    if isinstance(result, JobView):
        tasks = {task.task_id: str(task.status) for task in result.tasks}
        return str(result.status), tasks
    if isinstance(result, TaskNews):
        return str(result.status)
    return result


def start_job(peer: Clients) -> Any:
    """Call a path for which only success or refusal matters."""
    return peer.participant.start_job("job-1", ME)


# ---------------------------------------------------------------- success and refusal


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        [],
        "",
        5,
        "absent",
    ],
    ids=str,
)
def test_a_success_in_every_form(peer, spec_peer, data):
    for code in (0, 200, "0", "200", 0.0):
        body = {"code": code}
        if data != "absent":
            body["data"] = data
        peer.will(says(body, 201))
        assert spec_peer.peer.post("/job/start", {}) == {}


@pytest.mark.parametrize(
    "code",
    [1, -1, 6000, "1", "--5", "0x0", "²", "", None, True, 0.5, [], "9" * 5000],
)
def test_any_code_but_that_of_success_is_a_refusal(peer, spec_peer, code):
    peer.will(says({"code": code, "msg": "no"}))
    assert meaning(start_job, spec_peer) == REFUSED


@pytest.mark.parametrize("status", [300, 404, 409, 500, 501])
def test_a_success_with_another_http_status_is_a_refusal(peer, spec_peer, status):
    peer.will(says(status=status))
    assert meaning(start_job, spec_peer) == REFUSED


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("body", [b"", b"[1]", b'"success"', b"0", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_object_is_no_envelope(peer, spec_peer, body, status):
    peer.will(text(body, status))
    assert meaning(start_job, spec_peer) == NO_ENVELOPE


# Answers, and the error that each of them means.
FURTHER_REFUSALS: dict[str, tuple[Answer, tuple[str, str]]] = {
    "no code": (says({"msg": "success"}), REFUSED),
    "a proxy's page": (text(b"<html>", 502), UNREACHABLE),
    "unavailable": (says(status=503), UNREACHABLE),
    "too many requests": (
        says({"data": {"reason": "ODD"}}, 429),
        UNREACHABLE,
    ),
    "a quota": (
        says({"data": {"reason": "PARTNER_QUOTA"}}, 429),
        ("PeerUnreachable", "PARTNER_QUOTA"),
    ),
    "forbidden": (
        refuses(403, "R", "R: why"),
        ("NotAllowed", "R"),
    ),
    "not found": (
        refuses(404, "R", "R: why"),
        ("NotFound", "R"),
    ),
    "conflict": (refuses(409, "R", "R: why"), ("Refused", "R")),
    "reason null": (
        says({"code": 404, "data": {"reason": None}}),
        REFUSED,
    ),
    "reason number": (
        says({"code": 404, "data": {"reason": 5}}),
        REFUSED,
    ),
    "reason object": (
        says({"code": 404, "data": {"reason": {}}}),
        REFUSED,
    ),
    "reason empty": (
        says({"code": 404, "data": {"reason": ""}}),
        REFUSED,
    ),
    "no problem": (
        says({"code": 400, "data": {"reason": "INVALID", "problems": [None]}}),
        ("Refused", "INVALID"),
    ),
}


@pytest.mark.parametrize(
    ("response", "error"),
    FURTHER_REFUSALS.values(),
    ids=FURTHER_REFUSALS,
)
def test_an_answer_that_is_no_success(peer, spec_peer, response, error):
    peer.will(response)
    assert meaning(start_job, spec_peer) == error


# Refusals of a peer, and how its code and text are passed on.
QUOTED_REFUSALS = [
    (
        {"code": 6000, "message": "/v1/x not found"},
        "code 6000: /v1/x not found",
    ),
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
]


@pytest.mark.parametrize(("body", "quotation"), QUOTED_REFUSALS)
def test_a_peers_refusal_is_passed_on_with_path_and_code(peer, spec_peer, body, quotation):
    peer.will(says(body))
    error = error_of(start_job, spec_peer)
    assert error.message == f"{PEER} refuses /job/start with {quotation}"


@pytest.mark.parametrize(
    "name",
    ["msg", "message", "path", "rule", "got", "reason", "problems"],
)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(Invalid.code, Invalid), (1, Refused)],
)
def test_a_refusal_of_megabytes_is_read_to_a_bound(peer, spec_peer, name, code, kind):
    peer.will(says(huge_refusal(code, name)))

    error = error_of(start_job, spec_peer)

    assert type(error) is kind
    assert len(error.message) + len(error.reason) < 10_000


def huge_refusal(code: int, name: str) -> dict[str, Any]:
    """Return a refusal in which the named field is 2 MB long, or has 10 000 problems."""
    huge = "w" * 2_000_000
    problem: dict[str, Any] = {
        "path": "p",
        "rule": "r",
        "got": 1,
    }
    if name in problem:
        problem[name] = huge
    problems = [problem]
    if name == "problems":
        problems = [problem] * 10_000
    reason = "NO"
    if name == "reason":
        reason = huge
    return {
        "code": code,
        name: huge,
        "data": {"reason": reason, "problems": problems},
    }


def test_problems_are_passed_on_one_by_one(peer, spec_peer):
    problems = [
        {
            "path": "dag",
            "rule": "must be",
            "got": 5,
            "reason": "DATASET_UNKNOWN",
            "node": "JG7",
        },
        {"path": "x", "reason": "INVALID"},
        "no problem",
        None,
    ]
    peer.will(refuses(400, "INVALID", "INVALID: …", problems=problems))

    error = error_of(spec_peer.participant.create_job, a_spec(), ME)

    assert isinstance(error, Invalid)
    assert list(error.problems) == [
        Problem("dag", "must be", 5, reason="DATASET_UNKNOWN", node="JG7"),
        Problem("x", ""),
    ]


# A job that was rejected elsewhere, before the peer created it.
FAILURE = Failure("NO_ROOM", "there is no room", "JG3")
REJECTION = Ending(
    Outcome.REJECTED,
    datetime(2026, 1, 1, tzinfo=UTC),
    FAILURE,
)
NO_JOB = refuses(404, "JOB_UNKNOWN", "no such job")


def test_a_peer_with_an_agreed_but_unknown_job_learns_its_end(peer, calling):
    """The peer agreed to the job in the audit, but never created it."""
    ending = {
        "outcome": "REJECTED",
        "failed_by": FAILURE.as_dict(),
    }
    peer.will(NO_JOB, says())

    with calling("audited") as audited_peer:
        audited_peer.participant.stop_job("job-1", "", REJECTION, ME)

    stop, terminate = peer.requests
    assert stop.body == {"job_id": "job-1"} | ending
    assert terminate.body == {"audit_id": "audit_job-1"} | ending


def test_a_job_without_an_audit_is_unknown_to_an_audited_peer(peer, calling):
    peer.will(
        NO_JOB,
        says({"code": 404, "data": {"reason": "AUDIT_UNKNOWN"}}),
    )
    with calling("audited") as audited_peer:
        error = error_of(
            audited_peer.participant.stop_job,
            "job-1",
            "",
            REJECTION,
            ME,
        )
    assert error.reason == "JOB_UNKNOWN"


def test_a_lost_end_of_an_audit_is_an_error_so_that_it_is_repeated(peer, calling):
    peer.will(NO_JOB, raw(b""))
    with calling("audited") as audited_peer, pytest.raises(PeerUnreachable):
        audited_peer.participant.stop_job("job-1", "", REJECTION, ME)


# ---------------------------------------------------------------- no answer


def unreachable_error(peer: Clients) -> PeerUnreachable:
    """Return the error of a call whose peer cannot be reached; it has to name the peer."""
    error = error_of(start_job, peer)
    assert isinstance(error, PeerUnreachable)
    assert PEER in error.message
    return error


def test_a_port_without_a_listener_counts_as_not_delivered(tmp_path):
    [port] = free_ports(1)
    with clients(tmp_path, f"http://127.0.0.1:{port}") as peer:
        assert unreachable_error(peer).delivered is False

        error = error_of(
            peer.peer.invoke,
            "/v1/interconn/chan/invoke",
            b"",
            {},
        )
        assert isinstance(error, PeerUnreachable)
        assert "no answer from http://" in error.message


@pytest.mark.parametrize("response", [silence, trickle])
def test_the_deadline_is_for_the_complete_call(peer, calling, response):
    peer.will(response)
    with calling(deadline=0.5) as slow_peer:
        assert unreachable_error(slow_peer).delivered is True


BROKEN_ANSWERS = {
    "closed": raw(b""),
    "reset": raw(b"", reset=True),
    "half head": raw(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "reset in body": raw(
        b'HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{"code": 0}',
        reset=True,
    ),
    "half chunks": raw(
        b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\n{"code": 0}\r\n'
    ),
    "no HTTP": raw(b"this is not HTTP\r\n\r\n"),
    "no body": raw(b"HTTP/1.0 200 OK\r\n\r\n"),
    "broken gzip": raw(
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    ),
}


@pytest.mark.parametrize(
    "response",
    BROKEN_ANSWERS.values(),
    ids=BROKEN_ANSWERS,
)
def test_an_answer_that_breaks_off_may_have_had_its_effect(peer, spec_peer, response):
    peer.will(response)
    assert unreachable_error(spec_peer).delivered is True
    # the client itself does not repeat the request
    assert len(peer.requests) == 1

    peer.will(says())
    start_job(spec_peer)


def test_a_node_without_a_route_is_refused_by_name(tmp_path):
    with clients(tmp_path, "http://127.0.0.1:1") as peer:
        # A client is made for one call, before which its route may disappear.
        peer.peer.node = STRANGER
        error = error_of(start_job, peer)
    assert error.reason == "NODE_UNKNOWN"
    assert STRANGER in error.message


def test_requests_above_the_number_of_connections_are_not_sent(monkeypatch):
    monkeypatch.setattr(connections, "MAX_REQUESTS", 0)
    client = Client("http://127.0.0.1:9", None)  # type: ignore[arg-type]
    with pytest.raises(NotConnected, match="0 requests are under way"):
        client.send(Request("GET", "/", {}, b""), 0.01)


@pytest.mark.parametrize(
    ("target", "header"),
    [("/ok", "x\r\ny"), ("/a\r\nx: y", "x")],
    ids=["header", "target"],
)
def test_no_text_becomes_a_header_of_its_own(peer, served, target, header):
    """Attack: texts that a node receives go into the node's own requests."""
    _, url = served
    open_connections = Connections()
    client = open_connections.to(url)

    with pytest.raises(ValueError, match="control characters"):
        client.send(
            Request("GET", target, {header: "v"}, b""),
            5.0,
        )

    assert peer.requests == []
    open_connections.close()


def test_a_certificate_of_ones_own_goes_with_the_usual_authorities(tmp_path):
    certificate = Authority(tmp_path).sign("own")
    identity = Identity(
        certificate=certificate.certificate,
        key=certificate.key,
    )

    authorities = connections.context(identity).get_ca_certs()

    assert len(authorities) == len(connections.context(NO_IDENTITY).get_ca_certs())
    assert len(authorities) > 10


def test_the_deletion_of_a_job_that_the_peer_does_not_have_succeeds(peer, spec_peer):
    peer.will(refuses(404, "JOB_UNKNOWN"))
    spec_peer.participant.delete_job("job-1", False, ME)

    peer.will(refuses(404, "NODE_UNKNOWN"))
    error = error_of(spec_peer.participant.delete_job, "job-1", False, ME)
    assert error.reason == "NODE_UNKNOWN"


def test_an_invalid_description_of_outputs_is_named(peer, spec_peer):
    peer.will(says(data={"outputs": [{"rows": "many"}]}))
    query = OutputQuery("job-1", "a", "guest", "out")

    error = error_of(interconn.ask_output_metadata, spec_peer.peer, query)

    assert error.reason == "NO_ENVELOPE"
    assert "description of its outputs is invalid: 0." in error.message


# ---------------------------------------------------------------- a task


def poll(peer: Clients) -> Any:
    """Poll a task."""
    return peer.participant.poll_task("task-1", "guest", ME)


@pytest.mark.parametrize("word", [*TaskStatus, "running"])
def test_a_poll_gives_the_status(peer, spec_peer, word):
    peer.will(says(data={"status": word}))
    assert meaning(poll, spec_peer) == word.upper()


@pytest.mark.parametrize(
    "word",
    [
        "DONE",
        "canceled",
        None,
        5,
        [],
        {},
    ],
    ids=str,
)
def test_a_poll_with_another_status_is_an_error(peer, spec_peer, word):
    peer.will(says(data={"status": word}))
    assert meaning(poll, spec_peer) == STATUS_UNKNOWN


UNKNOWN_TASK = {"msg": "no such task"}
INTERNAL_ERROR_PAGE = text(b"<html>Internal server error</html>", 500)

# Further answers to polls, by profile.
POLLS: list[tuple[str, Answer, Any]] = [
    # FATE-Flow writes the status outside of data; data wins.
    (
        "fate",
        says({"code": 0, "status": "RUNNING", "data": None}),
        "RUNNING",
    ),
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
    # a phase of Kuscia's without a word
    (
        "kuscia",
        says({"code": 200, "msg": "", "data": {"status": ""}}),
        "PENDING",
    ),
    ("spec", says({"code": 0}), STATUS_UNKNOWN),
    (
        "spec",
        says({"code": 0, "data": {}}),
        STATUS_UNKNOWN,
    ),
    # invented
    ("fate", says({"code": 6000} | UNKNOWN_TASK), TASK_UNKNOWN),
    ("kuscia", says({"code": 400} | UNKNOWN_TASK), TASK_UNKNOWN),
    ("spec", says({"code": 400} | UNKNOWN_TASK), REFUSED),
    *((profile, refuses(404, "TASK_UNKNOWN"), TASK_UNKNOWN) for profile in PROFILES),
    # Not "unknown": the gateway would start the task again, which harms one that runs.
    *((profile, INTERNAL_ERROR_PAGE, NO_ENVELOPE) for profile in PROFILES),
]


@pytest.mark.parametrize(
    ("profile", "response", "means"),
    POLLS,
)
def test_a_response_to_a_poll_is_read_as_the_profile_says(peer, calling, profile, response, means):
    peer.will(response)
    with calling(profile) as polled_peer:
        assert meaning(poll, polled_peer) == means


LONG = "x" * 3000

# A peer's description of a failure, and the failure that is stored; None if there is none.
TASK_FAILURES: list[tuple[Any, Failure | None]] = [
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
        dict.fromkeys(
            ("reason", "message", "node", "role", "task"),
            LONG,
        ),
        Failure(
            LONG[:255],
            LONG[:2000],
            LONG[:255],
            LONG[:255],
            LONG[:255],
        ),
    ),
    ({"reason": ""}, None),
    ({}, None),
    (None, None),
    ("out of memory", None),
    ({"reason": 5}, None),
    ({"reason": "X", "exit_code": "many"}, None),
]


@pytest.mark.parametrize(("failed_by", "failure"), TASK_FAILURES)
def test_the_cause_of_a_failed_task(peer, spec_peer, failed_by, failure):
    peer.will(says(data={"status": "FAILED", "failed_by": failed_by}))
    assert poll(spec_peer) == TaskNews(TaskStatus.FAILED, failure)


# ---------------------------------------------------------------- a job


def job_answer(status: str | None = None, **tasks: str) -> Answer:
    """Return an answer with the statuses of a job and its tasks; None leaves out the job's."""
    data: dict[str, Any] = {"status": tasks}
    if status is not None:
        data["job_status"] = status
    return says(data=data)


def query(peer: Clients) -> Any:
    """Query a job."""
    return peer.scheduler.job_status("job-1", ME)


@pytest.mark.parametrize("word", [*JobStatus, "finished"])
def test_a_query_gives_the_status_of_job_and_tasks(peer, spec_peer, word):
    peer.will(job_answer(word, t="SUCCESS"))
    assert meaning(query, spec_peer) == (
        word.upper(),
        {"t": "SUCCESS"},
    )


def test_a_party_without_a_readable_state_does_not_hide_the_job(peer, spec_peer):
    states = {"guest.0": "RUNNING", "host.0": None, "arbiter.0": "DREAMING"}
    tasks = [{"task_id": "t", "parties": {ME: states}}]
    peer.will(says(data={"status": {"t": "RUNNING"}, "tasks": tasks}))

    [task] = query(spec_peer).tasks

    assert task.nodes == {ME: {"guest.0": TaskStatus.RUNNING}}


@pytest.mark.parametrize("word", ["SUCCESS", "FAILED"])
def test_a_job_with_a_final_status_of_tasks_is_finished(peer, spec_peer, word):
    peer.will(job_answer(word, t="SUCCESS"))
    assert meaning(query, spec_peer) == (
        "FINISHED",
        {"t": "SUCCESS"},
    )


# The statuses of tasks, and the job's status that follows from them.
DERIVED_STATUSES = [
    ({"a": "PENDING"}, "PENDING"),
    ({"a": "PENDING", "b": "READY"}, "RUNNING"),
    ({"a": "SUCCESS", "b": "PENDING"}, "RUNNING"),
    ({"a": "SUCCESS", "b": "SUCCESS"}, "FINISHED"),
    ({"a": "SUCCESS", "b": "FAILED"}, "FINISHED"),
]


@pytest.mark.parametrize(("tasks", "status"), DERIVED_STATUSES)
def test_without_a_status_of_the_job_that_of_its_tasks_counts(peer, spec_peer, tasks, status):
    peer.will(job_answer(None, **tasks))
    assert meaning(query, spec_peer) == (status, tasks)


@pytest.mark.parametrize("word", ["", "Sleeping"])
def test_an_unknown_status_of_the_job_counts_as_none(peer, spec_peer, word):
    peer.will(job_answer(word, a="PENDING"))
    assert meaning(query, spec_peer) == (
        "PENDING",
        {"a": "PENDING"},
    )


# Further answers to queries, and their meaning.
QUERIES: dict[str, tuple[Answer, Any]] = {
    "empty task status": (
        job_answer(None, a="SUCCESS", b=""),
        ("RUNNING", {"a": "SUCCESS", "b": "PENDING"}),
    ),
    "outside of data": (
        says({"code": 0, "status": {"t": "RUNNING"}}),
        ("RUNNING", {"t": "RUNNING"}),
    ),
    "no tasks": (
        says({"code": 200, "data": {"status": {}}}),
        ("PENDING", {}),
    ),
    "null tasks": (
        says({"code": 200, "data": {"status": None}}),
        ("PENDING", {}),
    ),
    "empty data": (says({"code": 0, "data": {}}), JOB_UNKNOWN),
    # Not "unknown", upon which the containers of the job would be stopped here.
    "no data": (says({"code": 0}), NO_ENVELOPE),
    "null data": (says({"code": 0, "data": None}), NO_ENVELOPE),
    "other data": (
        says({"code": 0, "data": {"hello": "there"}}),
        NO_ENVELOPE,
    ),
    "text for tasks": (
        says({"code": 0, "data": {"status": "RUNNING"}}),
        NO_ENVELOPE,
    ),
}


@pytest.mark.parametrize(
    ("response", "means"),
    QUERIES.values(),
    ids=QUERIES,
)
def test_a_response_to_a_query_is_read_or_refused(peer, spec_peer, response, means):
    peer.will(response)
    assert meaning(query, spec_peer) == means


# The answers to the first and the second method, their meaning, and the number of requests.
METHOD_TRIES: dict[str, tuple[list[Answer], Any, int]] = {
    "refused by code": (
        [
            says({"code": 6000, "message": "405"}),
            job_answer("RUNNING"),
        ],
        ("RUNNING", {}),
        2,
    ),
    "refused by status": (
        [text(b"<html>405</html>", 405), job_answer("RUNNING")],
        ("RUNNING", {}),
        2,
    ),
    "refused twice": (
        # The first refusal counts.
        [says({"code": 1, "msg": "own trouble"}), text(b"")],
        REFUSED,
        2,
    ),
    "unknown job": (
        [says({"code": 404, "data": {"reason": "JOB_UNKNOWN"}})],
        JOB_UNKNOWN,
        1,
    ),
    "not allowed": (
        [says({"code": 403, "data": {"reason": "NOT_AUTHORISED"}})],
        ("NotAllowed", "NOT_AUTHORISED"),
        1,
    ),
    "no answer": (
        [raw(b"")],
        UNREACHABLE,
        1,
    ),
}


@pytest.mark.parametrize(
    ("profile", "methods"),
    [("spec", ["POST", "GET"]), ("fate", ["GET", "POST"])],
    ids=["spec", "fate"],
)
@pytest.mark.parametrize(
    ("responses", "means", "request_count"),
    METHOD_TRIES.values(),
    ids=METHOD_TRIES,
)
def test_a_refusal_without_a_reason_makes_it_try_the_second_method(
    peer, calling, profile, methods, responses, means, request_count
):
    peer.will(*responses)
    with calling(profile) as queried_peer:
        assert meaning(query, queried_peer) == means
    assert [request.method for request in peer.requests] == methods[:request_count]


ODD_EXTRAS = [
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
    {
        "failed_by": 5,
        "scheduler": None,
        "waiting": 5,
        "parties": {},
        "rerun_of": [],
    },
]


@pytest.mark.parametrize("extras", ODD_EXTRAS, ids=str)
def test_odd_extras_do_no_harm(peer, spec_peer, extras):
    peer.will(says(data={"job_status": "RUNNING", "status": {"t": "RUNNING"}} | extras))

    view = query(spec_peer)

    assert view.status is JobStatus.RUNNING
    assert view.outcome is None
    assert view.failure is None
    assert view.progress == 0
    assert [(task.task_id, task.status) for task in view.tasks] == [("t", TaskStatus.RUNNING)]


def test_the_trace_follows_the_job(peer, spec_peer):
    spec_peer.scheduler.submit_job(a_spec(trace_id="trace-of-job"), ME)
    with traced("trace-of-call"):
        start_job(spec_peer)

    about_jobs = [request for request in peer.requests if request.body != PROFILE_QUESTION]
    traces = [request.headers["x-trace-id"] for request in about_jobs]
    assert traces == ["trace-of-job", "trace-of-call"]


@pytest.fixture
def protocol_to(tmp_path):
    """A function that makes the protocol of a node with a route to the node A at an address."""
    with contextlib.ExitStack() as stack:

        def make_protocol(url: str) -> BfiaProtocol:
            file = tmp_path / "routes.yml"
            file.write_text(f"A: {{url: '{url}'}}\n")
            protocol = BfiaProtocol(ME, LiveRoutes(file))
            stack.callback(protocol.close)
            return protocol

        yield make_protocol


def test_a_node_is_reachable_if_it_responds(peer, served, protocol_to):
    _, url = served
    protocol = protocol_to(url)

    assert protocol.reaches("A") is True
    assert protocol.reaches(STRANGER) is False


def test_a_node_without_a_listener_is_not_reachable(protocol_to):
    [unused_port] = free_ports(1)

    assert protocol_to(f"http://127.0.0.1:{unused_port}").reaches("A") is False


def test_a_proxy_that_accepts_connections_is_no_reachable_node(protocol_to):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        _, port = proxy.getsockname()

        assert protocol_to(f"http://127.0.0.1:{port}").reaches("A") is False


@pytest.mark.parametrize(
    ("status", "is_reachable"),
    {
        200: True,
        404: True,
        500: True,
        502: False,
        503: False,
        504: False,
    }.items(),
)
def test_any_response_but_a_proxys_own_is_one_of_the_node(
    peer, served, protocol_to, status, is_reachable
):
    _, url = served
    peer.will(text(b"<html>", status))

    assert protocol_to(url).reaches("A") is is_reachable


def test_a_removed_route_is_reachable_while_jobs_use_it(peer, served, tmp_path):
    _, url = served
    nodes_of_jobs = {"A"}
    file = tmp_path / "routes.yml"
    file.write_text(f"A: {{url: '{url}'}}\n")
    routes = LiveRoutes(file, in_use=nodes_of_jobs.__contains__)
    routes.edit(Change("A", None), "ann")
    protocol = BfiaProtocol(ME, routes)

    assert protocol.reaches("A") is True
    nodes_of_jobs.clear()
    assert protocol.reaches("A") is False
    protocol.close()


@pytest.mark.parametrize("profile", PROFILES)
def test_indices_are_sent_one_by_one(profile):
    """The gateway reads indices such as ``"0|1"``; some peers do not."""
    spec = a_spec(
        "a; b",
        {"guest": ("n1",), "host": ("n2", "n3", "n4")},
        job_params={
            "common": {"sync_type": "poll"},
            "host": {
                "0|1": {"resources": {"cpu": 1}},
                "1": {"resources": {"memory": 2}},
            },
        },
        task_params={
            "host": {
                "0|1|2": {"a": {"x": 1, "y": 1}},
                "1": {"a": {"y": 2}},
                "2": {"b": {"z": 3}},
            }
        },
    )

    config = translate.create_body(spec, PROFILES[profile])["config"]

    assert config["job_params"] == {
        "common": {"sync_type": "poll"},
        "host": {
            "0": {"resources": {"cpu": 1}},
            "1": {"resources": {"cpu": 1, "memory": 2}},
        },
    }
    assert without_empty_tasks(config["task_params"]["host"]) == {
        "0": {"a": {"x": 1, "y": 1}},
        "1": {"a": {"x": 1, "y": 2}},
        "2": {"a": {"x": 1, "y": 1}, "b": {"z": 3}},
    }


def without_empty_tasks(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of parties without the tasks that have none."""
    parties = {}
    for index, tasks in parameters.items():
        parties[index] = {task: values for task, values in tasks.items() if values}
    return parties
