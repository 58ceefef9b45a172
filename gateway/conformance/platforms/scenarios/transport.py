"""Clauses about messages between the transports of two nodes (transport layer)."""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from adapter.bfia.channel.codec import INVOKE, NOT_FOUND, PUSH, SUCCESS, TRANSPORT
from adapter.bfia.channel.ptp_pb2 import (  # type: ignore[attr-defined]
    Inbound,
    PushInbound,
    TransportOutbound,
)
from gateway.conformance.platforms.answers import FATE_UNKNOWN_PATH, read_answer
from gateway.conformance.platforms.findings import (
    Exchange,
    Finding,
    assume,
    demand,
    demand_except,
    holds,
)
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import Trial

_JSON = "application/json"
_PROTOBUF = "application/x-protobuf"
_TOPIC = "conformance"
_PAYLOAD = b"\x00conformance\xff"
_LEGACY_SUCCESS = "0"  # the code of transports before version 1.2
_UNKNOWN_NODE = "JG9999999999999999"
_CODE_START = "E0"  # the beginning of this layer's codes
_LEAST_ERROR_STATUS = 400  # of HTTP
_INTERNAL_ERROR = 500  # the least such status of HTTP


def _push_json() -> bytes:
    """Return a container's push in JSON."""
    push = {"topic": _TOPIC, "payload": b64encode(_PAYLOAD).decode(), "metadata": {}}
    return json.dumps(push).encode()


def _push_protobuf() -> bytes:
    """Return a container's push in protobuf."""
    content: bytes = PushInbound(topic=_TOPIC, payload=_PAYLOAD).SerializeToString()
    return content


def _inbound_json() -> bytes:
    """Return a push inside an Inbound, both in JSON."""
    inbound = {"metadata": {}, "payload": b64encode(_push_json()).decode()}
    return json.dumps(inbound).encode()


def _inbound_protobuf() -> bytes:
    """Return a push inside an Inbound, both in protobuf."""
    content: bytes = Inbound(payload=_push_protobuf()).SerializeToString()
    return content


def _session(trial: Trial) -> str:
    """Return the session of a job that runs at the node. Raises `CannotTry`."""
    return f"session_{trial.open_job}"


def _send(
    trial: Trial,
    content: bytes,
    content_type: str = _JSON,
    path: str = INVOKE,
    **changes: str,
) -> Exchange:
    """Send a message to the node's transport; ``changes`` replace headers, "" removes one."""
    headers = {
        "content-type": content_type,
        "x-ptp-tech-provider-code": "conformance",
        "x-ptp-trace-id": "conformance",
        "x-ptp-token": f"token_{trial.open_job}",
        "x-ptp-session-id": _session(trial),
        "x-ptp-source-node-id": trial.me,
        "x-ptp-target-node-id": trial.node.node_id,
        "x-ptp-uri": PUSH,
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    return trial.node.send(
        "POST",
        path,
        content,
        changes={name: value for name, value in headers.items() if value},
    )


def _code(exchange: Exchange) -> str:
    """Return the transport's code in a response; empty if there is none."""
    content = exchange.received
    if "protobuf" in exchange.headers.get("content-type", ""):
        return _code_of_protobuf(content)
    try:
        value = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(value, Mapping):
        return ""
    code = str(value.get("code", ""))
    if code == str(FATE_UNKNOWN_PATH):
        return ""
    return code


def _code_of_protobuf(content: bytes) -> str:
    """Return the code of a response in protobuf: of version 1.2.0, else of earlier ones."""
    outbound: Any = TransportOutbound()
    try:
        outbound.ParseFromString(content)
    except DecodeError:
        return ""
    if str(outbound.code).startswith(_CODE_START):
        return str(outbound.code)
    legacy_code: str = outbound.payload.decode("utf-8", "replace")
    return legacy_code


def _summary(exchange: Exchange) -> str:
    """Return a response in one line, for people."""
    return exchange.failure or f"HTTP {exchange.status}, code {_code(exchange) or 'absent'}"


def _assume_served(exchange: Exchange) -> None:
    """Raise `CannotTry` if the node does not serve the path of a message."""
    is_served = bool(_code(exchange)) or not read_answer(exchange).is_unserved
    assume(is_served, f"the node does not serve {exchange.target}")


def _judge_delivery(exchange: Exchange, form: str) -> Finding:
    """Judge the response to a message that has to be stored.

    Raises `CannotTry`, `Deviation` or `Broken` if it was not.
    """
    code = _code(exchange)
    _assume_served(exchange)
    demand_except("kuscia", code != _LEGACY_SUCCESS, f"{form}: the success code is 0")
    demand(code == SUCCESS, f"{form}: {_summary(exchange)}")
    return holds(f"{form}: stored")


def _judge_refusal(exchange: Exchange, what: str) -> Finding:
    """Judge the response to a message that has to be refused; raises `Broken` if it was not."""
    _assume_served(exchange)
    status = exchange.status or 0
    demand(status > 0, f"{what}: {exchange.failure}")
    demand(status < _INTERNAL_ERROR, f"{what}: HTTP {status}")
    demand(_code(exchange) not in (SUCCESS, _LEGACY_SUCCESS), f"{what}: stored")
    has_code = bool(_code(exchange)) or status >= _LEAST_ERROR_STATUS
    demand(has_code, f"{what}: no code")
    return holds(f"{what}: refused, {_summary(exchange)}")


@tries("T-2.2-json")
def takes_messages_in_json(trial: Trial) -> Finding:
    """Pass-through in JSON."""
    return _judge_delivery(_send(trial, _push_json(), **_pass_through()), "pass-through in JSON")


@tries("T-2.2-protobuf")
def takes_messages_in_protobuf(trial: Trial) -> Finding:
    """Pass-through in protobuf."""
    exchange = _send(trial, _push_protobuf(), _PROTOBUF, **_pass_through())
    return _judge_delivery(exchange, "pass-through in protobuf")


@tries("T-5.2-json")
def takes_encapsulated_messages_in_json(trial: Trial) -> Finding:
    """A message inside an Inbound, in JSON."""
    return _judge_delivery(_send(trial, _inbound_json()), "encapsulated in JSON")


@tries("T-5.2-protobuf")
def takes_encapsulated_messages_in_protobuf(trial: Trial) -> Finding:
    """A message inside an Inbound, in protobuf."""
    exchange = _send(trial, _inbound_protobuf(), _PROTOBUF)
    return _judge_delivery(exchange, "encapsulated in protobuf")


@tries("T-2.2.2-transport")
def takes_messages_at_transport(trial: Trial) -> Finding:
    """A message at ``chan/transport``."""
    exchange = _send(
        trial,
        _push_json(),
        path=TRANSPORT,
        **_pass_through(),
    )
    return _judge_delivery(exchange, "chan/transport")


@tries("T-3-type")
def answers_in_the_form_of_the_request(trial: Trial) -> Finding:
    """The content type of responses."""
    for content, content_type in ((_push_json(), _JSON), (_push_protobuf(), _PROTOBUF)):
        exchange = _send(trial, content, content_type, **_pass_through())
        response_type = exchange.headers.get("content-type", "none").partition(";")[0]
        text = f"messages in {content_type} are not stored: {_summary(exchange)}"
        assume(_code(exchange) == SUCCESS, text)
        text = f"the response to a message in {content_type} is in {response_type}"
        demand(response_type == content_type, text)
    return holds("responses have the content type of their requests")


@tries("T-2.1-session")
def refuses_messages_without_session(trial: Trial) -> Finding:
    """A message without a session."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_session_id="",
        **_pass_through(),
    )
    return _judge_refusal(exchange, "a message without a session")


@tries("T-2.1-target")
def refuses_messages_for_unknown_nodes(trial: Trial) -> Finding:
    """A message for a node without a route."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_target_node_id=_UNKNOWN_NODE,
        **_pass_through(),
    )
    return _judge_refusal(exchange, "a message for an unknown node")


@tries("T-2.1-uri")
def refuses_other_paths(trial: Trial) -> Finding:
    """A message for a path outside the transport."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_uri="/v1/platform/schedule/job/stop_all",
        **_pass_through(),
    )
    return _judge_refusal(exchange, "a message for another path")


@tries("T-3-garbage")
def refuses_undecodable_messages(trial: Trial) -> Finding:
    """Bodies that are no message."""
    for content, content_type in ((b"{", _JSON), (b"\xff" * 40, _PROTOBUF)):
        exchange = _send(trial, content, content_type, **_pass_through())
        _judge_refusal(exchange, f"a body that is no {content_type}")
    return holds(f"undecodable bodies are refused, code {_code(exchange) or NOT_FOUND}")


def _pass_through() -> dict[str, str]:
    """Return the header of the pass-through mode, in the form of arguments."""
    return {"x_ptp_version": "1"}
