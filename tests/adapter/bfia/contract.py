"""The contract of an endpoint as a value, and the checks that every endpoint has to pass.

A *stage* is the object that a test module has prepared for its endpoints, such as a running job.
"""

import copy
import functools
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from adapter.bfia import translate
from adapter.bfia.profiles import PROFILES
from gateway.bootstrap.node import Gateway
from gateway.domain.spec import JobSpec
from tests.inprocess import ask

# The body of a success without data.
DONE = {
    "code": 0,
    "msg": "success",
    "data": {},
}
ENVELOPE = {"code", "msg", "data"}

# Stands for a field that is absent from the body.
ABSENT = object()

# Makes a request body for a stage.
MakeBody = Callable[[Any], dict[str, Any]]
# Makes the expected response for a stage and a request body.
MakeReply = Callable[[Any, dict[str, Any]], Any]

# Bodies that are no JSON object.
WRONG_BODIES = (
    b"",
    b"{",
    b"[1]",
    b'"text"',
    b"null",
    b"5",
    b"\xff\xfe{}",
    b"[" * 50_000,
    b'{"a": NaN}',
)


class AtLeast(dict[str, Any]):
    """Equals every object that has these fields; the gateway may add fields to the standard's."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, value: object) -> bool:
        return isinstance(value, dict) and self.items() <= value.items()

    def __ne__(self, value: object) -> bool:
        return not self == value


def always(body: dict[str, Any]) -> MakeBody:
    """Return a function that makes the same request for every stage."""

    def make_body(_: Any) -> dict[str, Any]:
        return copy.deepcopy(body)

    return make_body


def success(**data: Any) -> MakeReply:
    """Return a function that expects a success with this data for every request."""

    def make_reply(
        _: Any,
        __: dict[str, Any],
    ) -> Any:
        return DONE | {"data": data}

    return make_reply


# The reply of most paths: a success without data.
DEFAULT_REPLY = success()


@dataclass(frozen=True)
class Endpoint:
    """One path: a good request, the exact response, and the fields that can be wrong."""

    path: str
    # makes a request that succeeds
    body: MakeBody
    # makes the complete response
    reply: MakeReply = DEFAULT_REPLY
    # paths of the fields without which a request is refused
    required: tuple[str, ...] = ()
    # text fields that may be absent, null or empty
    optional: tuple[str, ...] = ()
    # field, a value that names nothing at this node, and the reason of the refusal
    unknown: tuple[tuple[str, str, str], ...] = ()
    methods: tuple[str, ...] = ("POST",)
    # whether the fields may also come in the query
    in_query: bool = False
    # fields that hold integers
    integers: tuple[str, ...] = ()
    # whether the request succeeds again after a success
    repeatable: bool = True

    def __str__(self) -> str:
        return self.path

    @property
    def method(self) -> str:
        """The method that most checks use."""
        return self.methods[0]


@dataclass(frozen=True)
class Caller:
    """Sends requests to one listener of a node, below a prefix, with fixed headers."""

    node: Gateway
    listener: str
    prefix: str
    headers: dict[str, str]

    def __call__(
        self,
        path: str,
        body: Any = None,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> httpx.Response:
        """Send a request; ``headers`` replace the fixed ones."""
        if headers is None:
            headers = self.headers
        if body is not None:
            kwargs["json"] = body
        return ask(
            self.node,
            self.listener,
            method,
            self.prefix + path,
            headers=headers,
            **kwargs,
        )


# ---------------------------------------------------------------- requests of several contracts

# The required fields of a new job.
JOB_FIELDS = (
    "job_id",
    "dag",
    "dag.components",
    "dag.components[0].name",
    "dag.components[0].version",
    "config",
    "config.initiator",
    "config.initiator.role",
    "config.initiator.node_id",
    "config.role",
)

# Values that name no job, task id or task name, for `Endpoint.unknown`.
NO_JOB = ("job_id", "job-nowhere", "JOB_UNKNOWN")
NO_TASK = ("task_id", "task_nowhere", "TASK_UNKNOWN")
NO_NAME = ("task_name", "nothing", "TASK_UNKNOWN")


def job_body(spec: JobSpec) -> dict[str, Any]:
    """Return the request that creates a job, as the standard has it."""
    return translate.create_body(spec, PROFILES["spec"])


# ---------------------------------------------------------------- reading responses


def read_envelope(
    response: httpx.Response,
    status: int = 200,
) -> dict[str, Any]:
    """Return the body of a response.

    Fails unless the body is exactly the envelope, in JSON, with this HTTP status.
    """
    assert response.status_code == status, response.text
    assert response.headers["content-type"].partition(";")[0] == "application/json"
    body = response.json()
    assert set(body) == ENVELOPE, body
    # `type`, as True is an int for `isinstance`
    assert type(body["code"]) is int, body
    assert isinstance(body["msg"], str), body
    assert isinstance(body["data"], dict), body
    return dict(body)


def read_refusal(
    response: httpx.Response,
    code: int,
    reason: str,
    status: int = 200,
) -> dict[str, Any]:
    """Return the body of a refusal.

    Fails unless the refusal has this code and reason, and a text that begins with the reason.
    """
    body = read_envelope(response, status)
    assert body["code"] == code, body
    assert body["data"]["reason"] == reason, body
    assert body["msg"].startswith(f"{reason}: ")
    # more than the reason and a word
    assert len(body["msg"]) > len(reason) + 5
    return body


def problem_paths(response: httpx.Response) -> set[str]:
    """Return the paths of the problems in a refusal of an invalid request."""
    body = read_refusal(response, 400, "INVALID")
    problems = body["data"]["problems"]
    for problem in problems:
        assert set(problem) - {"suggestion", "next_step"} == {"reason", "path", "rule", "got"}
        assert problem["reason"] == "INVALID"
        assert problem["rule"]
    return {problem["path"] for problem in problems}


# ---------------------------------------------------------------- changing requests


def without_field(
    body: dict[str, Any],
    path: str,
) -> dict[str, Any]:
    """Return a copy of the body without the field at a path such as ``dag.components[0].name``."""
    changed = copy.deepcopy(body)
    *parents, name = _steps(path)
    del _value_at(changed, parents)[name]
    return changed


def with_field(
    body: dict[str, Any],
    path: str,
    value: Any,
) -> dict[str, Any]:
    """Return a copy of the body with another value at a path."""
    changed = copy.deepcopy(body)
    *parents, name = _steps(path)
    _value_at(changed, parents)[name] = value
    return changed


def with_optional(
    body: dict[str, Any],
    field: str,
    value: Any,
) -> dict[str, Any]:
    """Return a copy of the body with another value of a field, or without it for `ABSENT`."""
    changed = dict(body)
    changed.pop(field, None)
    if value is not ABSENT:
        changed[field] = value
    return changed


def _steps(path: str) -> list[str | int]:
    """Return the keys and indices of a path."""
    steps = re.findall(r"[^.\[\]]+", path)
    return [int(step) if step.isdecimal() else step for step in steps]


def _value_at(
    body: Any,
    steps: list[str | int],
) -> Any:
    return functools.reduce(operator.getitem, steps, body)


# ---------------------------------------------------------------- checks


def _no_state() -> None:
    """Return the state of an endpoint that changes nothing."""


def check(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
    read_state: Callable[[], Any] = _no_state,
) -> None:
    """Make every check of an endpoint; refused requests have to leave the state unchanged."""
    if endpoint.repeatable:
        check_success(call, endpoint, stage)
        check_deviations(call, endpoint, stage)

    before = read_state()
    check_missing_and_wrong(call, endpoint, stage)
    check_no_json(call, endpoint)
    check_unknown(call, endpoint, stage)
    check_methods(call, endpoint)
    check_listeners(call, endpoint)
    assert read_state() == before


def check_success(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    """A good request succeeds by every method."""
    for method in endpoint.methods:
        _expect_reply(
            call,
            endpoint,
            stage,
            method=method,
        )


def check_deviations(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    """Requests that differ from the standard in form only have the same response."""
    _check_optional_fields(call, endpoint, stage)
    _check_unknown_fields(call, endpoint, stage)
    _check_headers(call, endpoint, stage)
    if endpoint.in_query:
        _check_query(call, endpoint, stage)


def _check_optional_fields(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    for field in endpoint.optional:
        for value in (None, "", ABSENT):
            body = with_optional(endpoint.body(stage), field, value)
            _expect_reply(call, endpoint, stage, body)


def _check_unknown_fields(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    body = endpoint.body(stage)
    body["x_unknown"] = {"deep": [None, 1.5]}
    body["中文"] = "值"
    _expect_reply(call, endpoint, stage, body)


def _check_headers(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    for content_type in ("application/json; charset=utf-8", "application/problem+json", ""):
        body = endpoint.body(stage)
        headers = dict(call.headers)
        if content_type:
            headers["content-type"] = content_type
        content = json.dumps(body, ensure_ascii=False).encode()
        response = call(
            endpoint.path,
            None,
            endpoint.method,
            headers=headers,
            content=content,
        )
        assert read_envelope(response) == endpoint.reply(stage, body), content_type

    for timestamp in ("1711017396", "1711017396244", "yesterday", ""):
        headers = call.headers | {
            "x-timestamp": timestamp,
            "x_nonce": "",
            "x_auth_sign": "",
        }
        _expect_reply(
            call,
            endpoint,
            stage,
            headers=headers,
        )


def _check_query(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    body = endpoint.body(stage)
    for method in endpoint.methods:
        response = call(
            endpoint.path,
            None,
            method,
            params=body,
        )
        assert read_envelope(response) == endpoint.reply(stage, body), method


def _expect_reply(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
    body: dict[str, Any] | None = None,
    method: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    """Send a request, by default a good one, and compare its response with the expected one."""
    if body is None:
        body = endpoint.body(stage)
    response = call(endpoint.path, body, method or endpoint.method, headers=headers)
    expected = endpoint.reply(stage, body)
    assert read_envelope(response) == expected, (method, body, headers)


def check_missing_and_wrong(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    """Missing fields and fields of a wrong type are named by their path, all in one refusal."""

    def refused_paths(body: dict[str, Any]) -> set[str]:
        return problem_paths(call(endpoint.path, body, endpoint.method))

    for path in endpoint.required:
        good = endpoint.body(stage)
        assert refused_paths(without_field(good, path)) == {path}, path
        assert refused_paths(with_field(good, path, None)) == {path}, path
        for value in _wrong_values(endpoint, good, path):
            problems = refused_paths(with_field(good, path, value))
            assert _are_at(problems, path), (path, value, problems)

    for path in endpoint.optional:
        assert refused_paths(with_field(endpoint.body(stage), path, 5)) == {path}

    top_level = {path for path in endpoint.required if not re.search(r"[.\[]", path)}
    if top_level:
        assert refused_paths({}) == top_level


def _are_at(
    problems: set[str],
    path: str,
) -> bool:
    """Return whether there are problems, and all concern the field at a path or fields in it."""
    inside = (f"{path}.", f"{path}[")
    outside = {problem for problem in problems - {path} if not problem.startswith(inside)}
    return bool(problems) and not outside


def _wrong_values(
    endpoint: Endpoint,
    good: dict[str, Any],
    path: str,
) -> list[Any]:
    """Return values that are of a wrong type for the field at a path."""
    good_value = _value_at(good, _steps(path))
    wrong: list[Any] = []
    for value in (5, True, [1], {"a": 1}):
        is_integer = path in endpoint.integers and isinstance(value, int)
        is_container = isinstance(good_value, (dict, list)) and isinstance(value, type(good_value))
        if not is_integer and not is_container:
            wrong.append(value)
    return wrong


def check_no_json(call: Caller, endpoint: Endpoint) -> None:
    """A body that is no JSON object is invalid where a field is required."""
    if not endpoint.required:
        return
    for content in WRONG_BODIES:
        body = read_envelope(call(endpoint.path, None, endpoint.method, content=content))
        assert body["code"] == 400, content[:10]
        assert body["data"]["reason"] == "INVALID", content[:10]


def check_unknown(
    call: Caller,
    endpoint: Endpoint,
    stage: Any,
) -> None:
    """A refusal quotes the value that names nothing at this node."""
    for field, value, reason in endpoint.unknown:
        body = with_field(endpoint.body(stage), field, value)
        response = call(endpoint.path, body, endpoint.method)
        refusal = read_refusal(response, 404, reason)
        assert value in refusal["msg"]


def check_methods(call: Caller, endpoint: Endpoint) -> None:
    """Requests by other methods and with longer paths are refused in the envelope too."""
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - set(endpoint.methods):
        response = call(endpoint.path, None, method)
        read_refusal(response, 405, "METHOD_NOT_ALLOWED", 405)
        assert response.headers["allow"]
    for suffix in ("/", "/more"):
        response = call(endpoint.path + suffix, None, endpoint.method)
        read_refusal(response, 404, "PATH_UNKNOWN", 404)


def check_listeners(call: Caller, endpoint: Endpoint) -> None:
    """The node's other listeners do not have the path."""
    for listener in {"peer", "container", "operator"} - {call.listener}:
        response = ask(
            call.node,
            listener,
            "POST",
            call.prefix + endpoint.path,
            json={},
        )
        read_refusal(response, 404, "PATH_UNKNOWN", 404)


def check_size(call: Caller, path: str) -> None:
    """A body above the limit is refused in the envelope too."""
    too_large = b" " * (33 << 20)
    read_refusal(
        call(path, content=too_large),
        413,
        "TOO_LARGE",
        413,
    )
