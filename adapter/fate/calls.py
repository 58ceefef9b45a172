"""Calls to one node in FATE's protocol; the node's refusals become errors of the gateway."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from adapter.fate.envelope import Code
from adapter.fate.words import Key
from adapter.page import Page
from gateway.domain.entries import as_mapping
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, NotServed, Refused

# Takes the node that gets a request, and the initiator of the request's job. Returns the headers
# that sign the request; none if the node requires no signature.
Sign = Callable[[NodeId, NodeId], Mapping[str, str]]

# Posts JSON: takes the node, the path, the JSON, the headers, and a factor for the route's timeout.
# Returns the HTTP status and the JSON of the response, or a `Page` if the response is not a JSON
# object. Raises `PeerUnreachable`, and `Refused` for a node without a route.
Send = Callable[[NodeId, str, Mapping[str, Any], Mapping[str, str], float], tuple[int, Any]]


class NoChange(Refused):
    """FATE changed nothing: it lacks resources, or they are already reserved (or returned)."""


# Reasons of a gateway for a path that it does not serve
_NOT_SERVED_REASONS = ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE")

_NOT_SERVED_STATUSES = (404, 405, 501)  # HTTP statuses for unknown paths and methods

_TRIES = 3  # of a request that FATE-Flow refuses because of a race between its own threads

_PROBLEMS = TypeAdapter(list[Problem])

_NO_PATH = re.compile(r"\b404\b.*Not Found")  # FATE-Flow's message for an unknown path

# FATE's code -> error and reason, for a response without a reason: only gateways like this one send
# reasons.
_ERRORS_BY_CODE: Mapping[int, tuple[type[GatewayError], str]] = {
    Code.JOB_NOT_FOUND: (NotFound, "JOB_UNKNOWN"),
    Code.TASK_NOT_FOUND: (NotFound, "TASK_UNKNOWN"),
    Code.JOB_RESOURCE_EXCEPTION: (NoChange, "RESOURCES_BUSY"),
    Code.TASK_RESOURCE_EXCEPTION: (NoChange, "RESOURCES_BUSY"),
    Code.JOB_RESOURCE_LIMIT_EXCEEDED: (Refused, "RESOURCES_NEVER"),
    Code.INHERITANCE_FAILED: (Refused, "INHERITANCE_FAILED"),
    Code.EXPIRED: (NotAllowed, "SIGNATURE_EXPIRED"),
    Code.NO_FOUND_APPID: (NotAllowed, "APP_UNKNOWN"),
    Code.VERIFY_FAILED: (NotAllowed, "SIGNATURE_WRONG"),
    Code.AUTHENTICATION_FAILED: (NotAllowed, "NOT_AUTHORISED"),
    Code.NO_PERMISSION: (NotAllowed, "NOT_AUTHORISED"),
    Code.UPDATE_JOB_FAILED: (Refused, "NO_EFFECT"),
    Code.UPDATE_TASK_FAILED: (Refused, "NO_EFFECT"),
}

# The HTTP-like status that a gateway sends with its reason -> error; `Refused` for any other
# status.
_ERRORS_BY_STATUS: Mapping[int, type[GatewayError]] = {
    NotAllowed.code: NotAllowed,
    NotFound.code: NotFound,
}


@dataclass(frozen=True)
class Caller:
    """Calls one node in FATE's protocol."""

    node: NodeId
    send: Send
    sign: Sign

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        initiator: NodeId = "",
        timeout_factor: float = 1.0,
    ) -> Mapping[str, Any]:
        """Send a request and return the complete response, which is a success.

        ``initiator``: the job's, if the request is about a job. Raises `GatewayError`.
        """
        for _ in range(_TRIES):
            status, response = self._send(path, body, initiator, timeout_factor)
            if not _is_race(response):
                break
        if not isinstance(response, Mapping):
            raise self._error_without_envelope(path, status, response)
        is_http_success = 200 <= status < 300
        if is_http_success and _is_success_code(response.get("code")):
            return response
        raise _error(self.node, path, status, response)

    def _send(
        self,
        path: str,
        body: Mapping[str, Any],
        initiator: NodeId,
        timeout_factor: float,
    ) -> tuple[int, Any]:
        """Send a request once; return the HTTP status and the response."""
        headers = {
            "dest-party-id": self.node,
            "service": "fateflow",
            "initiator-party-id": initiator,
            **self.sign(self.node, initiator),
        }
        return self.send(self.node, path, body, headers, timeout_factor)

    def _error_without_envelope(
        self,
        path: str,
        status: int,
        response: Any,
    ) -> GatewayError:
        """Return the error for a response that is not a JSON object."""
        if status in _NOT_SERVED_STATUSES:
            return NotServed(f"{self.node} does not serve {path}")
        if isinstance(response, Page):
            return response.refusal(self.node)
        text = f"{self.node} answers HTTP {status} without a JSON object"
        return Refused(text, reason="NO_ENVELOPE")


def _is_race(response: Any) -> bool:
    """True if FATE-Flow may have refused a request only because of a concurrent one.

    For each signed request, FATE-Flow reloads all permissions in place, while requests in other
    threads look them up.
    """
    fields = as_mapping(response)
    if fields.get("code") == Code.AUTHENTICATION_FAILED:
        return True
    return "dictionary changed size" in str(fields.get("message"))


def _is_success_code(code: Any) -> bool:
    """True for the number 0; False for ``false``, which Python takes for the same."""
    return code == Code.SUCCESS and not isinstance(code, bool)


def _error(
    node: NodeId,
    path: str,
    status: int,
    response: Mapping[str, Any],
) -> GatewayError:
    """Return the error for a refusal.

    The reason decides which error it is, if a gateway like this one sends a reason; otherwise
    FATE's code decides.
    """
    code = response.get("code")
    message = str(response.get("message") or response.get("msg") or "")
    data = as_mapping(response.get("data"))
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        return _error_with_reason(f"{node}: {message or f'code {code}'}", reason, data)
    is_unknown_path = code == Code.EXCEPTION and _NO_PATH.search(message)
    if is_unknown_path or status in _NOT_SERVED_STATUSES:
        return NotServed(f"{node} does not serve {path}")
    text = f"{node} refuses {path} with code {code}"
    if message:
        text += f": {message}"  # FATE writes "success" even with some of its errors
    return _error_with_code(text, code)


def _error_with_code(text: str, code: Any) -> GatewayError:
    """Return the error that FATE's code means; `Refused` for any other code."""
    if not isinstance(code, int) or code not in _ERRORS_BY_CODE:
        return Refused(text)
    kind, reason = _ERRORS_BY_CODE[code]
    return kind(text, reason=reason)


def _error_with_reason(
    text: str,
    reason: str,
    data: Mapping[str, Any],
) -> GatewayError:
    """Return the error for a gateway's refusal, by its reason and its HTTP-like status.

    `Invalid` carries the problems that the gateway reports. If they cannot be read, the error is
    `Refused`.
    """
    status = data.get("status")
    if status == Invalid.code:
        with suppress(ValidationError):
            return Invalid(
                _PROBLEMS.validate_python(data.get("problems")),
                reason=reason,
            )
    if reason in _NOT_SERVED_REASONS:
        return NotServed(text)
    kind: type[GatewayError] = Refused
    if isinstance(status, int):
        kind = _ERRORS_BY_STATUS.get(status, Refused)
    return kind(text, reason=reason)


def task_body(
    key: Key,
    role: str,
    node: NodeId,
) -> dict[str, Any]:
    """Return the fields that identify a version of a task at one party."""
    return {
        "job_id": key.job_id,
        "role": role,
        "party_id": node,
        "task_id": key.task_id,
        "task_version": key.version,
    }
