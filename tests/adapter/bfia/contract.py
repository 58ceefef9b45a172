"""What an endpoint's contract consists of, and the checks that every endpoint has to pass alike."""

import copy
import functools
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.bootstrap.node import Gateway
from tests.inprocess import ask

DONE = {
    "code": 0,
    "msg": "success",
    "data": {},
}
ENVELOPE = {"code", "msg", "data"}

Made = Callable[[Any], dict[str, Any]]
"""makes a value for a stage: what the module of the tests has prepared"""


class AtLeast(dict[str, Any]):
    """Equal to every object that has these fields; what is ours may stand beside the standard's."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(
            k in other and other[k] == v for k, v in self.items()
        )

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True)
class Endpoint:
    """One path: a good request, its exact reply, and what must be wrong when something in it is."""

    path: str
    body: Made
    """a request that succeeds"""
    reply: Callable[[Any, dict[str, Any]], Any] = lambda stage, body: DONE
    """its whole reply; the second argument is the request"""
    required: tuple[str, ...] = ()
    """paths of fields without which it is refused"""
    optional: tuple[str, ...] = ()
    """texts that may be absent, null or empty"""
    unknown: tuple[tuple[str, str, str], ...] = ()
    """field, a value that names nothing here, and the reason of the refusal"""
    methods: tuple[str, ...] = ("POST",)
    in_query: bool = False
    """whether its fields are taken from the query too"""
    whole: tuple[str, ...] = ()
    """fields that hold whole numbers"""
    repeatable: bool = True
    """whether its success changes nothing that the next one needs"""

    def __str__(self) -> str:
        return self.path


def envelope(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    """Return an answer's body. Fails unless it is exactly the envelope, in JSON, with this HTTP status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "application/json"
    body = answer.json()
    assert set(body) == ENVELOPE, body
    assert (
        type(body["code"]) is int
        and isinstance(body["msg"], str)
        and isinstance(body["data"], dict)
    ), body
    return dict(body)


def refused(
    answer: httpx.Response,
    code: int,
    reason: str,
    status: int = 200,
) -> dict[str, Any]:
    """Return the body of a refusal. Fails unless it has this code and reason, and says something after it."""
    body = envelope(answer, status)
    assert (body["code"], body["data"]["reason"]) == (code, reason), body
    assert body["msg"].startswith(f"{reason}: ") and len(body["msg"]) > len(reason) + 5
    return body


def paths(answer: httpx.Response) -> set[str]:
    """Return the paths of the problems in an answer that refuses a request as invalid."""
    body = refused(answer, 400, "INVALID")
    for problem in body["data"]["problems"]:
        assert set(problem) - {"suggestion"} == {"path", "rule", "got"} and problem["rule"]
    return {p["path"] for p in body["data"]["problems"]}


def without(body: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the body without the field of this path."""
    changed, target, last = _reached(body, path)
    del target[last]
    return changed


def with_(
    body: dict[str, Any],
    path: str,
    value: Any,
) -> dict[str, Any]:
    """Return the body with another value at this path."""
    changed, target, last = _reached(body, path)
    target[last] = value
    return changed


def _reached(body: dict[str, Any], path: str) -> tuple[dict[str, Any], Any, str | int]:
    """Return a copy of the body, what holds the field of this path in it, and the field's name there."""
    changed = copy.deepcopy(body)
    *above, last = _steps(path)
    return changed, functools.reduce(operator.getitem, above, changed), last


def _steps(path: str) -> list[str | int]:
    return [int(step) if step.isdecimal() else step for step in re.findall(r"[^.\[\]]+", path)]


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


@dataclass(frozen=True)
class Caller:
    """How a test asks: which listener, below which prefix, with which headers."""

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
        if body is not None:
            kwargs["json"] = body
        used = self.headers if headers is None else headers
        return ask(self.node, self.listener, method, self.prefix + path, headers=used, **kwargs)


# ---------------------------------------------------------------- checks


def check(
    call: Caller,
    one: Endpoint,
    stage: Any,
    state: Callable[[], Any] = lambda: None,
) -> None:
    """Check all of it; what is refused leaves ``state`` as it was."""
    if one.repeatable:
        check_success(call, one, stage)
        check_deviations(call, one, stage)
    before = state()
    check_missing_and_wrong(call, one, stage)
    check_no_json(call, one)
    check_unknown(call, one, stage)
    check_methods(call, one)
    for listener in {"peer", "container", "operator"} - {call.listener}:
        answer = ask(call.node, listener, "POST", call.prefix + one.path, json={})
        refused(answer, 404, "PATH_UNKNOWN", 404)
    assert state() == before


def check_success(
    call: Caller,
    one: Endpoint,
    stage: Any,
) -> None:
    for method in one.methods:
        body = one.body(stage)
        answer = call(one.path, body, method)
        assert envelope(answer) == one.reply(stage, body), method


def check_deviations(
    call: Caller,
    one: Endpoint,
    stage: Any,
) -> None:
    """Unknown fields, absent or null options, other spellings of headers and content types: all mean the same."""
    for field_ in one.optional:
        for value in (None, "", ...):
            body = one.body(stage)
            body = {k: v for k, v in body.items() if k != field_} | (
                {} if value is ... else {field_: value}
            )
            assert envelope(call(one.path, body, one.methods[0])) == one.reply(stage, body), (
                field_,
                value,
            )
    body = one.body(stage) | {"x_unknown": {"deep": [None, 1.5]}, "中文": "值"}
    assert envelope(call(one.path, body, one.methods[0])) == one.reply(stage, body)
    for kind in ("application/json; charset=utf-8", "application/problem+json", ""):
        body = one.body(stage)
        headers = call.headers | ({"content-type": kind} if kind else {})
        raw = json.dumps(body, ensure_ascii=False).encode()
        answer = call(one.path, None, one.methods[0], headers=headers, content=raw)
        assert envelope(answer) == one.reply(stage, body), kind
    for stamp in ("1711017396", "1711017396244", "yesterday", ""):
        body = one.body(stage)
        headers = call.headers | {
            "x-timestamp": stamp,
            "x_nonce": "",
            "x_auth_sign": "",
        }
        assert envelope(call(one.path, body, one.methods[0], headers=headers)) == one.reply(
            stage, body
        ), stamp
    if one.in_query:
        body = one.body(stage)
        for method in one.methods:
            assert envelope(call(one.path, None, method, params=body)) == one.reply(stage, body), (
                method
            )


def check_missing_and_wrong(
    call: Caller,
    one: Endpoint,
    stage: Any,
) -> None:
    """What is missing or of another kind is named by its path, everything at once."""
    method = one.methods[0]
    for path in one.required:
        for body in (without(one.body(stage), path), with_(one.body(stage), path, None)):
            assert paths(call(one.path, body, method)) == {path}, path
        for value in (5, True, [1], {"a": 1}):
            kind = type(_at(one.body(stage), path))
            if (isinstance(value, kind) and kind in (dict, list)) or (
                path in one.whole and isinstance(value, int)
            ):
                continue
            found = paths(call(one.path, with_(one.body(stage), path, value), method))
            assert found and all(
                p == path or p.startswith((f"{path}.", f"{path}[")) for p in found
            ), (path, value)
    top = {path for path in one.required if "." not in path and "[" not in path}
    if top:
        assert paths(call(one.path, {}, method)) == top
    for path in one.optional:
        assert paths(call(one.path, with_(one.body(stage), path, 5), method)) == {path}


def _at(body: Any, path: str) -> Any:
    return functools.reduce(operator.getitem, _steps(path), body)


def check_no_json(call: Caller, one: Endpoint) -> None:
    if not one.required:
        return
    for raw in WRONG_BODIES:
        body = envelope(call(one.path, None, one.methods[0], content=raw))
        assert (body["code"], body["data"]["reason"]) == (400, "INVALID"), raw[:10]


def check_unknown(
    call: Caller,
    one: Endpoint,
    stage: Any,
) -> None:
    for field_, value, reason in one.unknown:
        body = refused(
            call(one.path, with_(one.body(stage), field_, value), one.methods[0]), 404, reason
        )
        assert value in body["msg"]


def check_methods(call: Caller, one: Endpoint) -> None:
    """Other methods and longer paths are answered in the envelope too."""
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - set(one.methods):
        answer = call(one.path, None, method)
        refused(answer, 405, "METHOD_NOT_ALLOWED", 405)
        assert answer.headers["allow"]
    refused(call(one.path + "/", None, one.methods[0]), 404, "PATH_UNKNOWN", 404)
    refused(call(one.path + "/more", None, one.methods[0]), 404, "PATH_UNKNOWN", 404)


def check_size(call: Caller, path: str) -> None:
    """An endless body is answered in the envelope too."""
    refused(call(path, content=b" " * (33 << 20)), 413, "TOO_LARGE", 413)
