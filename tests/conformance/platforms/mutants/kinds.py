"""Kinds of faults: functions that change requests and responses on their way."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from adapter.bfia.channel.codec import INVOKE, SUCCESS
from gateway.conformance.platforms.scheduled import FIRST, SECOND
from gateway.conformance.platforms.trial import (
    CREATE,
    CREATE_ALL,
    POLL,
    REPORT,
    START_TASK,
    STATUS_ALL,
    STOP,
)
from tests.conformance.platforms.checked import CHECK
from tests.conformance.platforms.proxy import (
    Forward,
    Mutant,
    Request,
    Response,
    answering,
    refusal,
    success,
)
from tests.inprocess import ME


@dataclass(frozen=True)
class Case:
    """A fault, and the clause that names it."""

    clause: str
    name: str
    mutant: Mutant


def case_id(case: Case) -> str:
    """Return the name of a test."""
    return f"{case.clause} {case.name}"


# ---------------------------------------------------------------- any path


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


# ---------------------------------------------------------------- leaks


def echoing_refusals(path: str) -> Mutant:
    """Return a mutant whose refusals at a path repeat the whole request."""

    def mutant(request: Request, forward: Forward) -> Response:
        response = forward(request)
        if request.path != path or response.body.get("code") == 0:
            return response
        text = f"invalid: {request.content.decode()}"
        return answering({"code": 400, "msg": text, "data": {}})

    return mutant


def with_password(body: dict[str, Any]) -> dict[str, Any]:
    """Add the settings of a storage to the data of a response."""
    return body | {"data": body.get("data", {}) | {"storage": "s3://admin:hunter2@10.0.0.7"}}


# ---------------------------------------------------------------- senders


def for_this_node(request: Request) -> Request:
    """Put the node's own id in place of the one that a request is for."""
    return request.with_headers(x_target_node_id=ME)


def forgets_signatures(request: Request, forward: Forward) -> Response:
    """Answer as if a request had been processed that was refused for its signature."""
    response = forward(request)
    if {response.status, response.body.get("code")} & {401, 403}:
        return refusal(404)
    return response


def has_no_old_sender(request: Request) -> bool:
    """Return whether x-node-id does not name the sender."""
    return not request.headers.get("x-node-id")


# ---------------------------------------------------------------- submissions


def answers_first(request: Request, forward: Forward) -> Response:
    """Answer a submission before it is looked at."""
    if request.path != CREATE_ALL:
        return forward(request)
    threading.Thread(target=forward, args=(request,), daemon=True).start()
    return success()


def lacks_flow(request: Request) -> bool:
    """Return whether a job has no flow id."""
    return "flow_id" not in request.body


def has_no_host(request: Request) -> bool:
    """Return whether a job has no host."""
    return "host" not in request.body.get("config", {}).get("role", {})


def swapped_address(request: Request) -> Request:
    """Swap the namespace and the name of datasets."""
    text = request.content.decode()
    swapped = text.replace('"namespace"', '"?"').replace('"name"', '"namespace"')
    job = json.loads(swapped.replace('"?"', '"name"'))
    body = request.body
    config = body["config"] | {"task_params": job["config"]["task_params"]}
    return request.with_body(body | {"config": config})


# ---------------------------------------------------------------- tasks


def second_task(request: Request, forward: Forward) -> Response:
    """Start a task again under another id after a lost response."""
    if request.path != START_TASK:
        return forward(request)
    try:
        return forward(request)
    except httpx.HTTPError:
        return forward(with_other_id(request))


def with_other_id(request: Request) -> Request:
    """Put an id of another form in place of a task's."""
    return request.with_body(request.body | {"task_id": str(uuid4())})


def starts_too_early(request: Request, forward: Forward) -> Response:
    """Start the second task together with the first."""
    if request.path == START_TASK and request.body.get("task_name") == FIRST:
        forward(with_other_id(request.with_body(request.body | {"task_name": SECOND})))
    return forward(request)


def stops_what_succeeded(request: Request, forward: Forward) -> Response:
    """Stop the first task when the second one starts."""
    if request.path == START_TASK and request.body.get("task_name") == SECOND:
        stop = {"job_id": request.body.get("job_id"), "task_name": FIRST}
        forward(Request("POST", STOP, request.headers, b"").with_body(stop))
    return forward(request)


def never_ends(body: dict[str, Any]) -> dict[str, Any]:
    """Show every job as running."""
    return body | {"data": body.get("data", {}) | {"job_status": "RUNNING"}}


class TakesLateReports:
    """A mutant whose tasks have FAILED after a late report of that."""

    def __init__(self) -> None:
        self.has_failed = False

    def __call__(self, request: Request, forward: Forward) -> Response:
        response = forward(request)
        if request.path == REPORT and request.body.get("status") == "FAILED":
            self.has_failed = True
        if not self.has_failed or request.path != STATUS_ALL:
            return response
        states = response.body.get("data", {}).get("status", {})
        return success(job_status="FINISHED", status=dict.fromkeys(states, "FAILED"))


def has_query_only(request: Request) -> bool:
    """Return whether a request has no body."""
    return not request.content


# ---------------------------------------------------------------- messages


def passes_through_only(request: Request, forward: Forward) -> Response:
    """Refuse messages inside an Inbound."""
    if request.path == INVOKE and request.headers.get("x-ptp-version") != "1":
        return answering({"code": "E0000000616", "message": "codec"})
    return forward(request)


def always_json(request: Request, forward: Forward) -> Response:
    """Call every response JSON."""
    response = forward(request)
    return Response(response.status, response.content, "application/json")
