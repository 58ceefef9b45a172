"""Faults that platforms have are found by the clauses that name them.

Each mutant is such a fault; a proxy puts it between the check and a node of this gateway.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia.channel.codec import INVOKE, SUCCESS
from gateway.conformance.platforms.check import judge
from gateway.conformance.platforms.clauses import clause_of
from gateway.conformance.platforms.findings import Finding, Verdict
from gateway.conformance.platforms.node import CheckedNode
from gateway.conformance.platforms.trial import (
    CREATE,
    CREATE_ALL,
    POLL,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    Trial,
    TrialOptions,
)
from tests.conformance.platforms.checked import CHECK, PROBE, Site, checked_node
from tests.conformance.platforms.proxy import (
    Forward,
    Mutant,
    Proxy,
    Request,
    Response,
    answering,
    refusal,
    success,
)

# Seconds for a step that a mutant prevents; long enough for the steps of a node on a busy machine.
SHORT_TIMEOUT = TrialOptions(PROBE, timeout=6.0)
# A breach that is counted as caught: a failure, or a deviation that a known platform shows, too.
CAUGHT = (Verdict.FAILS, Verdict.DEVIATES)


# ---------------------------------------------------------------- kinds of mutants


def changed_response(
    path: str,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> Mutant:
    """Return a mutant that changes the JSON of every response of a path."""

    def mutant(request: Request, forward: Forward) -> Response:
        response = forward(request)
        if request.path != path:
            return response
        return answering(change(response.body), response.status)

    return mutant


def changed_refusal(
    path: str,
    response: Response,
) -> Mutant:
    """Return a mutant with a response of its own in place of each refusal of a path."""

    def mutant(request: Request, forward: Forward) -> Response:
        original = forward(request)
        if request.path == path and original.body.get("code") != 0:
            return response
        return original

    return mutant


def changed_request(
    path: str,
    change: Callable[[Request], Request],
) -> Mutant:
    """Return a mutant that changes every request to a path."""

    def mutant(request: Request, forward: Forward) -> Response:
        if request.path == path:
            return forward(change(request))
        return forward(request)

    return mutant


def swallowed(path: str) -> Mutant:
    """Return a mutant that answers requests to a path with a success and passes none on."""

    def mutant(request: Request, forward: Forward) -> Response:
        if request.path == path:
            return success()
        return forward(request)

    return mutant


def refused_if(
    path: str,
    condition: Callable[[Request], bool],
) -> Mutant:
    """Return a mutant that refuses some requests to a path."""

    def mutant(request: Request, forward: Forward) -> Response:
        if request.path == path and condition(request):
            return refusal()
        return forward(request)

    return mutant


class RefusesRepetitions:
    """A mutant that refuses a repeated request to a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bodies: list[bytes] = []

    def __call__(self, request: Request, forward: Forward) -> Response:
        if request.path != self.path:
            return forward(request)
        is_repeated = request.content in self.bodies
        self.bodies.append(request.content)
        if is_repeated:
            return refusal(409)
        return forward(request)


class FailsAfterSuccess:
    """A mutant whose tasks are FAILED at the second poll after their SUCCESS."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def __call__(self, request: Request, forward: Forward) -> Response:
        response = forward(request)
        task_id = str(request.body.get("task_id"))
        if request.path != POLL or response.body.get("data", {}).get("status") != "SUCCESS":
            return response
        if task_id in self.ended:
            return success(status="FAILED")
        self.ended.append(task_id)
        return response


class FailsAfterStop:
    """A mutant whose finished tasks are FAILED after the stop of their job."""

    def __init__(self) -> None:
        self.stopped = False

    def __call__(self, request: Request, forward: Forward) -> Response:
        self.stopped = self.stopped or request.path == STOP
        if self.stopped and request.path == POLL:
            return success(status="FAILED")
        return forward(request)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that drops a field."""

    def drop(body: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in body.items() if key != name}

    return drop


def replaced(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that replaces fields."""

    def replace_fields(body: dict[str, Any]) -> dict[str, Any]:
        return body | fields

    return replace_fields


def without_field(name: str) -> Callable[[Request], Request]:
    """Return a function that drops a field of a request's body."""

    def drop(request: Request) -> Request:
        return request.with_body(without(name)(request.body))

    return drop


def has_null_flow(request: Request) -> bool:
    """Return whether a job's flow id is null."""
    return request.body.get("flow_id", "") is None


def has_extension(request: Request) -> bool:
    """Return whether a job has a field of no version of the standard."""
    return "x_extension" in request.body


def has_no_role(request: Request) -> bool:
    """Return whether a poll has an empty role."""
    return request.body.get("role") == ""


def is_post(request: Request) -> bool:
    """Return whether a request is a POST."""
    return request.method == "POST"


def traced(request: Request, forward: Forward) -> Response:
    """Answer refusals of jobs by a trace."""
    response = forward(request)
    if request.path == CREATE and response.body.get("code") != 0:
        trace = b'Traceback (most recent call last):\n  File "app.py", line 1\nKeyError'
        return Response(500, trace, "text/plain")
    return response


def known_sender(request: Request) -> Request:
    """Put the check's id in place of any sender's."""
    return request.with_headers(x_source_node_id=CHECK, x_node_id=CHECK)


def another_sender_in_the_job(request: Request) -> Request:
    """Put the check's id in place of every other id in a job, and of its sender."""
    text = request.content.replace(b"JG9999999999999999", CHECK.encode())
    return known_sender(request).with_body(json.loads(text))


def named_by_underscores(request: Request) -> Request:
    """Spell the common headers with underscores, as FATE-Flow does."""
    headers = {}
    for name, value in request.headers.items():
        if name.startswith("x-"):
            name = name.replace("-", "_")
        headers[name] = value
    return Request(request.method, request.target, headers, request.content)


def twice(path: str) -> Mutant:
    """Return a mutant that passes requests to a path on twice."""

    def mutant(request: Request, forward: Forward) -> Response:
        if request.path == path:
            forward(request)
        return forward(request)

    return mutant


def stored(request: Request, forward: Forward) -> Response:
    """Answer every message with a success, without looking at it."""
    if request.path == INVOKE:
        return answering({"code": SUCCESS, "message": "success"})
    return forward(request)


def json_only(request: Request, forward: Forward) -> Response:
    """Refuse messages in protobuf."""
    if "protobuf" in request.headers.get("content-type", ""):
        return answering({"code": "E0000000616", "message": "codec"})
    return forward(request)


def of_old_transports(body: dict[str, Any]) -> dict[str, Any]:
    """Put the success code of old transports in place of today's."""
    return body | {"code": "0"}


def renamed_state(body: dict[str, Any]) -> dict[str, Any]:
    """Put a state of no version of the standard in place of RUNNING and READY."""
    state = body.get("data", {}).get("status")
    if state in ("RUNNING", "READY"):
        return body | {"data": {"status": "STARTED"}}
    return body


def without_parameters(request: Request) -> Request:
    """Drop the parameters of a job."""
    body = request.body
    return request.with_body(body | {"config": without("task_params")(body["config"])})


def in_seconds(request: Request) -> Request:
    """Send the time in seconds."""
    return request.with_headers(x_timestamp=request.headers["x-timestamp"][:-3])


# ---------------------------------------------------------------- mutants


@dataclass(frozen=True)
class Case:
    """A fault, and the clause that names it."""

    clause: str
    name: str
    mutant: Mutant


def before_the_node() -> list[Case]:
    """Return faults of the checked node's responses."""
    return [
        Case(
            "C-2-envelope",
            "no msg",
            changed_response(CREATE, without("msg")),
        ),
        Case(
            "C-2-envelope",
            "data a list",
            changed_response(CREATE, replaced(data=[1])),
        ),
        Case(
            "C-2-code",
            "code 200",
            changed_response(CREATE, replaced(code=200)),
        ),
        Case(
            "C-2-refusal",
            "no text",
            changed_refusal(POLL, answering({"code": 1})),
        ),
        Case(
            "C-2-malformed",
            "a trace",
            traced,
        ),
        Case(
            "C-2-missing",
            "accepts anything",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-2-types",
            "any id starts",
            changed_refusal(START, success()),
        ),
        Case(
            "C-2-trace",
            "a trace of a job",
            traced,
        ),
        Case(
            "C-3.2-create",
            "refuses jobs",
            refused_if(CREATE, is_post),
        ),
        Case(
            "C-3.2-optional",
            "no null",
            refused_if(CREATE, has_null_flow),
        ),
        Case(
            "C-3.2-unknown-fields",
            "strict",
            refused_if(CREATE, has_extension),
        ),
        Case(
            "C-3.2-repeat",
            "created twice",
            RefusesRepetitions(CREATE),
        ),
        Case(
            "C-3.2-conflict",
            "the first stays",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.2-component",
            "accepted early",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.2-flow",
            "cycles accepted",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.3-start",
            "started twice",
            RefusesRepetitions(START),
        ),
        Case(
            "C-3.3-unknown",
            "starts nothing",
            changed_refusal(START, success()),
        ),
        Case(
            "C-3.4-repeat",
            "task twice",
            RefusesRepetitions(START_TASK),
        ),
        Case(
            "C-3.4-unknown",
            "any task",
            changed_refusal(START_TASK, success()),
        ),
        Case(
            "C-3.8-states",
            "own states",
            changed_response(POLL, renamed_state),
        ),
        Case(
            "C-3.8-end",
            "fails later",
            FailsAfterSuccess(),
        ),
        Case(
            "C-3.8-role",
            "needs a role",
            refused_if(POLL, has_no_role),
        ),
        Case(
            "C-3.8-unknown",
            "any poll",
            changed_refusal(POLL, success(status="READY")),
        ),
        Case(
            "C-3.6-stop",
            "ignores stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.6-unknown",
            "stops anything",
            changed_refusal(STOP, success()),
        ),
        Case(
            "C-3.6-finish",
            "fails at the end",
            FailsAfterStop(),
        ),
        Case(
            "C-3.7-status",
            "GET only",
            refused_if(STATUS_ALL, is_post),
        ),
        Case(
            "C-3.7-unknown",
            "empty",
            changed_refusal(STATUS_ALL, success()),
        ),
        Case(
            "C-3.1-refused",
            "no refusal",
            changed_refusal(CREATE_ALL, success()),
        ),
        Case(
            "C-3.9-takes-reports",
            "lost reports",
            swallowed(REPORT),
        ),
        Case(
            "T-2.2-json",
            "old code",
            changed_response(INVOKE, of_old_transports),
        ),
        Case(
            "T-2.2-protobuf",
            "JSON only",
            json_only,
        ),
        Case(
            "T-2.1-session",
            "no session",
            stored,
        ),
        Case(
            "T-2.1-uri",
            "any path",
            stored,
        ),
        Case(
            "T-3-garbage",
            "any bytes",
            stored,
        ),
        Case(
            "S-stranger",
            "any sender",
            changed_request(CREATE, another_sender_in_the_job),
        ),
    ]


def before_the_partner() -> list[Case]:
    """Return faults of the checked node's own requests."""
    return [
        Case(
            "C-3.1-create",
            "no parameters",
            changed_request(CREATE, without_parameters),
        ),
        Case(
            "C-3.1-once",
            "per role",
            twice(CREATE),
        ),
        Case(
            "C-3.4-fields",
            "no job id",
            changed_request(START_TASK, without_field("job_id")),
        ),
        Case(
            "C-3.6-failure",
            "no stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.5-stop",
            "no stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.8-polls",
            "no role",
            changed_request(POLL, without_field("role")),
        ),
        Case(
            "C-3.9-reports",
            "silent",
            swallowed(REPORT),
        ),
        Case(
            "C-2.2-headers",
            "underscores",
            changed_request(START_TASK, named_by_underscores),
        ),
        Case(
            "C-2.2-headers",
            "seconds",
            changed_request(START_TASK, in_seconds),
        ),
    ]


def case_id(case: Case) -> str:
    """Return the name of a test."""
    return f"{case.clause} {case.name}"


# ---------------------------------------------------------------- tests


@dataclass(frozen=True)
class Between:
    """A site with proxies in both directions."""

    site: Site
    to_node: Proxy
    to_partner: Proxy

    def judge(self, clause_id: str) -> Finding:
        """Judge a clause through the proxies by a trial that shares no job with another one."""
        trial = self.site.trial
        node = CheckedNode(
            self.to_node.url,
            trial.node.node_id,
            trial.node.identity,
            trial.evidence,
            per_second=1000,
        )
        try:
            fresh_trial = Trial(node, trial.partner, trial.evidence, SHORT_TIMEOUT)
            return judge(fresh_trial, clause_of(clause_id))
        finally:
            node.close()


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    with checked_node(tmp_path_factory.mktemp("mutants"), signing="off") as site:
        to_node = Proxy(site.node.addresses()["peer"])
        to_partner = Proxy(f"http://127.0.0.1:{site.trial.partner.port}")
        entry = {"url": to_partner.url, "signing": "off"}
        file = Path(str(site.node.settings.route_table.file))
        file.write_text(yaml.safe_dump({CHECK: entry}))
        site.node.routes.reload()
        yield Between(site, to_node, to_partner)
        to_node.close()
        to_partner.close()


@pytest.mark.parametrize("case", before_the_node(), ids=case_id)
def test_a_fault_of_the_node_is_caught(between: Between, case: Case):
    with between.to_node.mutated(case.mutant):
        finding = between.judge(case.clause)
    assert finding.verdict in CAUGHT, finding.observation


@pytest.mark.parametrize("case", before_the_partner(), ids=case_id)
def test_a_fault_of_the_nodes_requests_is_caught(between: Between, case: Case):
    with between.to_partner.mutated(case.mutant):
        finding = between.judge(case.clause)
    assert finding.verdict in CAUGHT, finding.observation


def test_a_proxy_without_a_fault_breaks_no_clause(between: Between):
    for clause_id in ("C-2-envelope", "C-3.8-end", "C-3.4-order", "T-2.2-protobuf"):
        finding = between.judge(clause_id)
        assert finding.verdict is Verdict.HOLDS, finding.observation
