"""Clauses about messages between the transports of two nodes (transport layer)."""

import json
import time
from base64 import b64encode

from adapter.bfia.channel.codec import INVOKE, NOT_FOUND, PUSH, SUCCESS, TRANSPORT
from adapter.bfia.channel.ptp_pb2 import (  # type: ignore[attr-defined]
    Inbound,
    PushInbound,
)
from gateway.conformance.platforms.findings import (
    Exchange,
    Finding,
    assume,
    demand,
    holds,
)
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.transport_answers import (
    assume_served,
    code_of,
    judge_delivery,
    judge_refusal,
    summary_of,
)
from gateway.conformance.platforms.trial import STOP, UNKNOWN_NODE, Trial

_JSON = "application/json"
_PROTOBUF = "application/x-protobuf"
_TOPIC = "conformance"
_PAYLOAD = b"\x00conformance\xff"
_CLOSING_SECONDS = 10.0  # after its stop, in which a job may still take messages
_CLOSING_PAUSE = 0.5  # seconds between two messages to it


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
    return f"{trial.standard.session_prefix}{trial.open_job}"


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
        changes=headers,
    )


@tries("T-2.2-json")
def takes_messages_in_json(trial: Trial) -> Finding:
    """Pass-through in JSON."""
    return judge_delivery(_send(trial, _push_json(), **_pass_through()), "pass-through in JSON")


@tries("T-2.2-protobuf")
def takes_messages_in_protobuf(trial: Trial) -> Finding:
    """Pass-through in protobuf."""
    exchange = _send(trial, _push_protobuf(), _PROTOBUF, **_pass_through())
    return judge_delivery(exchange, "pass-through in protobuf")


@tries("T-5.2-json")
def takes_encapsulated_messages_in_json(trial: Trial) -> Finding:
    """A message inside an Inbound, in JSON."""
    return judge_delivery(_send(trial, _inbound_json()), "encapsulated in JSON")


@tries("T-5.2-protobuf")
def takes_encapsulated_messages_in_protobuf(trial: Trial) -> Finding:
    """A message inside an Inbound, in protobuf."""
    exchange = _send(trial, _inbound_protobuf(), _PROTOBUF)
    return judge_delivery(exchange, "encapsulated in protobuf")


@tries("T-2.2.2-transport")
def takes_messages_at_transport(trial: Trial) -> Finding:
    """A message at ``chan/transport``."""
    exchange = _send(
        trial,
        _push_json(),
        path=TRANSPORT,
        **_pass_through(),
    )
    return judge_delivery(exchange, "chan/transport")


@tries("T-3-type")
def answers_in_the_form_of_the_request(trial: Trial) -> Finding:
    """The content type of responses."""
    for content, content_type in ((_push_json(), _JSON), (_push_protobuf(), _PROTOBUF)):
        exchange = _send(trial, content, content_type, **_pass_through())
        assume_served(exchange)
        response_type = exchange.headers.get("content-type", "none").partition(";")[0]
        text = f"the response to a message in {content_type} is in {response_type}"
        demand(response_type == content_type, text)
        text = f"messages in {content_type} are not stored: {summary_of(exchange)}"
        assume(code_of(exchange) == SUCCESS, text)
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
    return judge_refusal(exchange, "a message without a session")


@tries("T-2.1-ended")
def refuses_messages_of_ended_jobs(trial: Trial) -> Finding:
    """A message of a session whose job was stopped."""
    job_id = str(trial.started_job()["job_id"])
    stopped = trial.node.ask(STOP, {"job_id": job_id})
    assume(stopped.succeeded, f"the node does not stop a job: {stopped.summary}")
    deadline = time.monotonic() + min(trial.options.timeout, _CLOSING_SECONDS)
    exchange = _send_to(trial, job_id)
    while code_of(exchange) == SUCCESS and time.monotonic() < deadline:
        time.sleep(_CLOSING_PAUSE)
        exchange = _send_to(trial, job_id)
    return judge_refusal(exchange, "a message of an ended job")


def _send_to(trial: Trial, job_id: str) -> Exchange:
    """Send a message of a job's session."""
    return _send(
        trial,
        _push_json(),
        x_ptp_session_id=f"{trial.standard.session_prefix}{job_id}",
        **_pass_through(),
    )


@tries("T-2.1-source")
def refuses_messages_of_unknown_nodes(trial: Trial) -> Finding:
    """A message in the name of a node that the checked node does not know."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_source_node_id=UNKNOWN_NODE,
        x_source_node_id=UNKNOWN_NODE,
        x_node_id=UNKNOWN_NODE,
        **_pass_through(),
    )
    return judge_refusal(exchange, "a message of an unknown node")


@tries("T-2.1-target")
def refuses_messages_for_unknown_nodes(trial: Trial) -> Finding:
    """A message for a node without a route."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_target_node_id=UNKNOWN_NODE,
        **_pass_through(),
    )
    return judge_refusal(exchange, "a message for an unknown node")


@tries("T-2.1-uri")
def refuses_other_paths(trial: Trial) -> Finding:
    """A message for a path outside the transport."""
    exchange = _send(
        trial,
        _push_json(),
        x_ptp_uri="/v1/platform/schedule/job/stop_all",
        **_pass_through(),
    )
    return judge_refusal(exchange, "a message for another path")


@tries("T-3-garbage")
def refuses_undecodable_messages(trial: Trial) -> Finding:
    """Bodies that are no message."""
    for content, content_type in ((b"{", _JSON), (b"\xff" * 40, _PROTOBUF)):
        exchange = _send(trial, content, content_type, **_pass_through())
        judge_refusal(exchange, f"a body that is no {content_type}")
    return holds(f"undecodable bodies are refused, code {code_of(exchange) or NOT_FOUND}")


def _pass_through() -> dict[str, str]:
    """Return the header of the pass-through mode, in the form of arguments."""
    return {"x_ptp_version": "1"}
