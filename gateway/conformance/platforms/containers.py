"""The check in the place of a container of the node: its session, its token, its requests."""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapter.bfia.channel.codec import CHANNEL, INVOKE, SUCCESS, TRANSPORT
from gateway.conformance.platforms.findings import Evidence, Exchange
from gateway.conformance.platforms.node import REQUEST_SECONDS, CheckedNode
from gateway.conformance.platforms.partner import Partner, Received, Reply
from gateway.conformance.platforms.transport_answers import TransportAnswer, read_transport_answer

# By a message of this topic for the check, a container tells its token.
TOKEN_TOPIC = "conformance.token"
_JSON = "application/json"
_MILLISECONDS = 1000  # of a second
_NO_CHANGES: Mapping[str, str] = {}  # of headers


@dataclass(frozen=True)
class Message:
    """A message of a container of the node that reached the check's transport."""

    topic: str
    payload: bytes
    request: Received


@dataclass(frozen=True)
class Container:
    """The requests of one container to its transport."""

    transport: CheckedNode  # with the address for containers
    session: str
    token: str  # empty if the component tells none

    def push(
        self,
        topic: str,
        payload: bytes,
        target: str,
        changes: Mapping[str, str] = _NO_CHANGES,
    ) -> Exchange:
        """Push a message for a node; ``changes`` replace headers, "" removes one."""
        body = {"topic": topic, "payload": b64encode(payload).decode(), "metadata": {}}
        return self.send("push", body, changes={"x-ptp-target-node-id": target, **changes})

    def pop(self, topic: str, seconds: float) -> TransportAnswer:
        """Wait at most some seconds for the next message of a topic."""
        body = {"topic": topic, "timeout": int(seconds * _MILLISECONDS)}
        return read_transport_answer(self.send("pop", body, extra_seconds=seconds))

    def peek(self, topic: str) -> TransportAnswer:
        """Return the next message of a topic, if there is one."""
        return read_transport_answer(self.send("peek", {"topic": topic}))

    def release(self, topic: str) -> Exchange:
        """Drop the messages of a topic."""
        return self.send("release", {"topic": topic})

    def send(
        self,
        operation: str,
        body: Mapping[str, Any],
        *,
        extra_seconds: float = 0.0,
        changes: Mapping[str, str] = _NO_CHANGES,
    ) -> Exchange:
        """Send an operation in JSON; the node may take ``extra_seconds`` more seconds."""
        content = json.dumps(body).encode()
        return self.send_content(
            operation,
            content,
            _JSON,
            extra_seconds,
            changes,
        )

    def send_content(
        self,
        operation: str,
        content: bytes,
        content_type: str,
        extra_seconds: float = 0.0,
        changes: Mapping[str, str] = _NO_CHANGES,
    ) -> Exchange:
        """Send an operation in any form; ``changes`` replace headers, "" removes one."""
        headers = {
            "content-type": content_type,
            "x-ptp-tech-provider-code": "conformance",
            "x-ptp-trace-id": "conformance",
            "x-ptp-token": self.token,
            "x-ptp-session-id": self.session,
            "x-ptp-target-node-id": self.transport.node_id,
            **changes,
        }
        return self.transport.send(
            "POST",
            f"{CHANNEL}{operation}",
            content,
            changes={name: value for name, value in headers.items() if value},
            seconds=REQUEST_SECONDS + extra_seconds,
        )


def take_messages(partner: Partner) -> None:
    """Have the check's transport accept messages of containers, instead of refusing them."""
    for path in (INVOKE, TRANSPORT):
        partner.answer(path, _accept)


def _accept(_: Received) -> Reply:
    """Answer that a message is stored."""
    return Reply({"code": SUCCESS, "message": "success", "metadata": {}, "payload": ""})


def wait_for_message(
    partner: Partner,
    session: str,
    topic: str,
    seconds: float,
) -> Message | None:
    """Wait for a message of a session and topic at the check's transport; None without one."""
    deadline = time.monotonic() + seconds
    while True:
        for path in (INVOKE, TRANSPORT):
            for request in partner.matching(path):
                message = read_message(request)
                if message.topic == topic and request.headers.get("x-ptp-session-id") == session:
                    return message
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        partner.wait_for_request(remaining)


def read_message(request: Received) -> Message:
    """Read a message in JSON, bare or inside an Inbound; its topic may be in a header."""
    push = request.body
    if "topic" not in push and "payload" in push:
        push = _object_in(_bytes_of(push["payload"]))
    topic = request.headers.get("x-ptp-topic") or str(push.get("topic") or "")
    return Message(topic, _bytes_of(push.get("payload")), request)


def receive_token(
    partner: Partner,
    evidence: Evidence,
    session: str,
    seconds: float,
) -> str:
    """Return the token that a container of a session tells; "" if it tells none in time.

    The token is removed from the evidence.
    """
    message = wait_for_message(partner, session, TOKEN_TOPIC, seconds)
    if message is None:
        return ""
    evidence.hide(message.request.content)
    return message.payload.decode("utf-8", "replace")


def _bytes_of(text: Any) -> bytes:
    """Return the bytes of a Base64 text; b"" for any other value."""
    try:
        return b64decode(text)
    except (TypeError, ValueError):
        return b""


def _object_in(content: bytes) -> dict[str, Any]:
    """Return the JSON object in some bytes; empty for any other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, dict):
        return value
    return {}
