"""The forms of calls to the transport module and of its responses; the variable `CHANNEL_FORM`
chooses one.

A form turns a `Call` into the query, headers and body of a request, and the body of a response into
a `Response`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# Wire types of protobuf.
VARINT = 0
LENGTH_DELIMITED = 2
MOST_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Call:
    """A push, a pop or a release."""

    topic: str
    payload: bytes | None = None  # of a push
    sequence: str = ""  # of a push: identifies a repeated one
    timeout: int | None = None  # milliseconds; of a pop and a release


@dataclass(frozen=True)
class Request:
    """A call as it is sent."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""


@dataclass(frozen=True)
class Response:
    """The transport's response to a call."""

    code: Any
    message: str
    content: Any  # of a pop: bytes or, in JSON, their Base64


class Form(Protocol):
    """A form of calls and responses."""

    name: str

    def request(self, call: Call) -> Request:
        """Return a call as it is sent."""

    def parse_response(self, content: bytes) -> Response:
        """Read the body of a response.

        Raises `ValueError` or `RecursionError` if it is malformed or has no code.
        """


class JsonForm:
    """JSON, with payloads in Base64."""

    name = "json"

    def request(self, call: Call) -> Request:
        """Return a call as JSON object."""
        body: dict[str, Any] = {"topic": call.topic}
        if call.payload is not None:
            body["payload"] = base64.b64encode(call.payload).decode()
            body["metadata"] = {"sequence": call.sequence}
        if call.timeout is not None:
            body["timeout"] = call.timeout
        data = json.dumps(body, separators=(",", ":")).encode()
        return Request(data, {"Content-Type": "application/json"})

    def parse_response(self, content: bytes) -> Response:
        """Read a JSON object. Raises `ValueError`, `RecursionError`."""
        value = json.loads(content)
        if not isinstance(value, dict) or "code" not in value:
            raise ValueError("a response without a code")
        message = str(value.get("message") or value.get("msg") or "")
        return Response(
            code=value["code"],
            message=message[:MOST_MESSAGE_CHARACTERS],
            content=value.get("content"),
        )


class ProtobufForm:
    """The messages of the interconnection standard in protobuf, encoded by hand as they are
    small.
    """

    name = "protobuf"
    # Numbers of a response's fields.
    content_field = 2
    code_field = 3
    message_field = 4

    def request(self, call: Call) -> Request:
        """Return a call as protobuf message."""
        body = _encode_field(1, call.topic.encode())
        if call.payload is not None:
            entry = _encode_field(1, b"sequence") + _encode_field(
                2,
                call.sequence.encode(),
            )
            body += _encode_field(2, call.payload) + _encode_field(
                3,
                entry,
            )
        elif call.timeout is not None:
            body += _encode_varint(2 << 3 | VARINT) + _encode_varint(call.timeout)
        return Request(body, {"Content-Type": "application/x-protobuf"})

    def parse_response(self, content: bytes) -> Response:
        """Read a protobuf message. Raises `ValueError`."""
        fields = _decode_fields(content)
        if self.code_field not in fields:
            raise ValueError("a response without a code")
        message = fields.get(self.message_field, b"").decode()
        return Response(
            code=fields[self.code_field].decode(),
            message=message[:MOST_MESSAGE_CHARACTERS],
            content=fields.get(self.content_field, b""),
        )


class BareForm(ProtobufForm):
    """The bare payload, its topic in a header; responses have the protobuf layout from before
    v1.2.0.
    """

    name = "bare"
    content_field = 1
    code_field = 2
    message_field = 3

    def request(self, call: Call) -> Request:
        """Return a call whose body is the payload alone."""
        headers = {
            "x-ptp-topic": call.topic,
            "Content-Type": "application/octet-stream",
        }
        if call.payload is not None:
            headers["x-ptp-message-id"] = call.sequence
        query = ""
        if call.timeout is not None:
            query = f"?timeout={call.timeout / 1000:g}"
        return Request(call.payload or b"", headers, query)


class GrpcForm(ProtobufForm):
    """The same protobuf messages over gRPC, at the same address; needs the package grpcio."""

    name = "grpc"
    SERVICE = "/org.ppc.ptp.PrivateTransferTransport/"


FORMS: Mapping[str, Form] = {
    form.name: form for form in (JsonForm(), ProtobufForm(), BareForm(), GrpcForm())
}


# ------------------------------------------------------------ protobuf


def _encode_field(number: int, value: bytes) -> bytes:
    return _encode_varint(number << 3 | LENGTH_DELIMITED) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    """Encode a number in groups of seven bits, the lowest first; the top bit says that another
    group follows.
    """
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _decode_fields(body: bytes) -> dict[int, bytes]:
    """Return the fields of a message by number. A transport's responses have fields of bytes and
    text only.

    Raises `ValueError` for anything else.
    """
    fields = {}
    position = 0
    while position < len(body):
        tag, position = _decode_varint(body, position)
        length, position = _decode_varint(body, position)
        end = position + length
        if tag & 7 != LENGTH_DELIMITED or end > len(body):
            raise ValueError("not an answer of the transport in protobuf")
        fields[tag >> 3] = body[position:end]
        position = end
    return fields


def _decode_varint(
    body: bytes,
    position: int,
) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    value = 0
    shift = 0
    for place in range(position, len(body)):
        byte = body[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError("a message of protobuf that ends early")
