"""One request to another node in FATE's way, and its answer as a value or as the error that it was there."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapter.fate.codes import Code
from adapter.fate.ports import Send
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid, NotAllowed, NotFound, NotServed, Refused
from gateway.ports import as_mapping

Sign = Callable[[NodeId, NodeId], Mapping[str, str]]
"""Return the headers that sign a request to a node in an initiator's name; none where it asks for none."""


class NoChange(Refused):
    """FATE gave or took nothing: it has too little free, or what is asked for is held (or returned) already."""


_KINDS: Mapping[int, tuple[type[GatewayError], str]] = {
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
"""What FATE's codes mean; a gateway like this one names its reason beside the code."""
_NO_PATH = re.compile(r"\b404\b.*Not Found")


class Caller:
    """The way to one node."""

    def __init__(self, node: NodeId, send: Send, sign: Sign) -> None:
        self.node = node
        self._send = send
        self._sign = sign

    def post(
        self, path: str, body: Mapping[str, Any], *, initiator: NodeId = "", patience: float = 1.0
    ) -> Mapping[str, Any]:
        """Return the whole answer of a success. Raises `Refused`, `NotFound`, `PeerUnreachable` and their like."""
        headers = {
            "dest-party-id": self.node,
            "service": "fateflow",
            "initiator-party-id": initiator,
            **self._sign(self.node, initiator),
        }
        status, answer = self._send(self.node, path, body, headers, patience)
        if not isinstance(answer, Mapping):
            if status in (404, 405, 501):
                raise NotServed(f"{self.node} does not serve {path}")
            raise Refused(f"{self.node} answers HTTP {status} without a JSON object", reason="NO_ENVELOPE")
        code = answer.get("code")
        if code == Code.SUCCESS and not isinstance(code, bool) and 200 <= status < 300:
            return answer
        raise _error(self.node, path, status, answer)


def _error(node: NodeId, path: str, status: int, answer: Mapping[str, Any]) -> GatewayError:
    code, data = answer.get("code"), as_mapping(answer.get("data"))
    said = f"{node}: {answer.get('message') or answer.get('msg') or f'code {code}'}"
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        problems = _problems(data.get("problems"))
        if data.get("status") == Invalid.code and problems:
            return Invalid(problems, reason=reason)
        if reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE"):
            return NotServed(said)
        kinds: dict[Any, type[GatewayError]] = {NotAllowed.code: NotAllowed, NotFound.code: NotFound}
        return kinds.get(data.get("status"), Refused)(said, reason=reason)
    if status in (404, 405, 501) or (code == Code.EXCEPTION and _NO_PATH.search(said)):
        return NotServed(f"{node} does not serve {path}")
    kind, reason = _KINDS.get(code if isinstance(code, int) else -1, (Refused, Refused.reason))
    return kind(said, reason=reason)


def _problems(found: Any) -> Sequence[Problem]:
    return [
        Problem(str(entry.get("path") or ""), str(entry.get("rule") or ""), entry.get("got"))
        for entry in (found if isinstance(found, list) else [])
        if isinstance(entry, Mapping)
    ]
