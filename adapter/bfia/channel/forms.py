"""The forms of channel messages: JSON, protobuf, and the bare payload with its topic in a header.

The form of a request follows from its Content-Type and ``x-ptp-topic``; the response has the same. Containers that
send bare payloads (Kuscia's, SecretFlow's) read only the response layout before v1.2.0.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from google.protobuf.message import DecodeError

from adapter.bfia.channel.ptp_pb2 import (  # type: ignore[attr-defined]
    Inbound,
    LegacyOutbound,
    PopInbound,
    PushInbound,
    TransportOutbound,
)
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid

_JSON = frozenset({"application/json", "text/json"})
_PROTOBUF = frozenset({"application/x-protobuf", "application/protobuf", "application/proto"})
_CODE = re.compile(r"E\d{10}")
MOST_FIELDS = 20_000
"""fields of one message; the parser's memory goes with their number"""


class UnknownForm(GatewayError):
    """The body is in a form that this node does not read; the message names those it does."""

    reason = "CODEC"
    code = 400


class Form(Enum):
    """How a message is written; the value is the Content-Type of responses."""

    JSON = "application/json"
    PROTOBUF = "application/x-protobuf"
    RAW = "application/proto"


def form_of(content_type: str, topic: str | None) -> Form:
    """Return the form of a request with this Content-Type and topic header. Raises UnknownForm.

    Without a Content-Type it is JSON, except where a topic header says that the body is the bare payload.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _PROTOBUF:
        return Form.PROTOBUF
    if kind in _JSON or (not kind and topic is None):
        return Form.JSON
    if topic is not None:
        return Form.RAW
    names = f"{Form.JSON.value}, {Form.PROTOBUF.value}"
    raise UnknownForm(
        f"Content-Type {kind!r} is not read by this node; it reads {names}, and any with x-ptp-topic"
    )


def read_push(body: bytes) -> dict[str, Any]:
    """Return the fields of a PushInbound. Raises Invalid."""
    push = _parse(PushInbound, body)
    return {"topic": push.topic, "payload": push.payload, "metadata": dict(push.metadata)}


def read_ask(body: bytes) -> dict[str, Any]:
    """Return the fields of a PopInbound, PeekInbound or ReleaseInbound. Raises Invalid."""
    ask = _parse(PopInbound, body)
    return {"topic": ask.topic or None, "timeout": ask.timeout or None}


def read_envelope(body: bytes) -> dict[str, Any]:
    """Return the fields of an Inbound. Raises Invalid."""
    inbound = _parse(Inbound, body)
    return {"payload": inbound.payload, "metadata": dict(inbound.metadata)}


def read_answer(body: bytes) -> dict[str, Any]:
    """Return the fields of a TransportOutbound, of v1.2.0 or before. Raises Invalid.

    Both layouts can be parsed as the other; it is of v1.2.0 if its third field is a code.
    """
    try:
        answer = _parse(TransportOutbound, body)
        if _CODE.fullmatch(answer.code):
            return {"code": answer.code, "message": answer.message, "content": answer.payload}
    except Invalid:
        pass
    legacy = _parse(LegacyOutbound, body)
    return {"code": legacy.code, "message": legacy.message, "content": legacy.payload}


def write_answer(form: Form, code: str, message: str, size: int, metadata: Mapping[str, str]) -> bytes:
    """Return what comes before the ``size`` bytes of content in a response in protobuf or with a bare payload."""
    text = message.encode("utf-8", "replace").decode()
    if form is Form.RAW:
        head = LegacyOutbound(code=code, message=text)
    else:
        texts = {name: value.encode("utf-8", "replace").decode() for name, value in metadata.items()}
        head = TransportOutbound(code=code, message=text, metadata=texts)
    raw = bytes(head.SerializeToString())
    if not size:
        return raw
    tag = head.DESCRIPTOR.fields_by_name["payload"].number << 3 | 2
    return raw + _number(tag) + _number(size)


def write_push(topic: str, payload: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return a PushInbound."""
    return bytes(PushInbound(topic=topic, payload=payload, metadata=dict(metadata)).SerializeToString())


def write_envelope(payload: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return an Inbound."""
    return bytes(Inbound(payload=payload, metadata=dict(metadata)).SerializeToString())


def _parse(kind: Any, body: bytes) -> Any:
    if _fields(body) > MOST_FIELDS:
        raise Invalid([Problem("body", f"must not hold more than {MOST_FIELDS} fields")])
    try:
        message = kind.FromString(body)
    except DecodeError:
        message = None
    if message is None or (body and not message.ListFields()):
        raise Invalid([Problem("body", f"must be a {kind.DESCRIPTOR.name} in protobuf")])
    return message


def _fields(body: bytes) -> int:
    """Count the fields of a message, up to one more than are allowed; a broken one ends the count."""
    at = count = 0
    while at < len(body) and count <= MOST_FIELDS:
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                _, at = _varint(body, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(body, at)
                at += length
            case 5:
                at += 4
            case 3 | 4:
                pass
            case _:
                break
        count += 1
    return count


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; past the end of the body where it does not."""
    value = 0
    for shift, byte in enumerate(body[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return value, len(body)


def _number(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
