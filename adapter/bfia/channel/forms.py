"""The forms of channel messages: JSON, protobuf, and the bare payload with its topic in a header.

The form of a request follows from its Content-Type and ``x-ptp-topic``; the response has the same. Containers that
send bare payloads (Kuscia's, SecretFlow's) read only the response layout before v1.2.0.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from adapter.bfia.channel.pieces import Pieces
from adapter.bfia.channel.ptp_pb2 import LegacyOutbound, TransportOutbound  # type: ignore[attr-defined]
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid

_JSON = frozenset({"application/json", "text/json"})
_PROTOBUF = frozenset({"application/x-protobuf", "application/protobuf", "application/proto"})
_CODE = re.compile(r"E\d{10}")
MOST_FIELDS = 20_000
"""fields of one message; the parser's memory goes with their number"""
_PAYLOAD = 2 << 3 | 2
"""tag of the payload, in PushInbound and Inbound"""


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


def read(kind: Any, body: bytes) -> dict[str, Any]:
    """Return a message's payload, and which of its other fields are not empty. Raises Invalid."""
    if any(True for _ in islice(_fields(Pieces([body])), MOST_FIELDS, None)):
        raise Invalid([Problem("body", f"must not hold more than {MOST_FIELDS} fields")])
    try:
        found = kind.FromString(body).ListFields()
    except DecodeError:
        found = None
    if found is None or (body and not found):
        raise Invalid([Problem("body", f"must be a message {kind.DESCRIPTOR.name} in protobuf")])
    return {"payload": b""} | {field.name: value for field, value in found}


def cut(body: Pieces, kind: Any) -> tuple[dict[str, Any], int, int] | None:
    """Return the fields of a message but for its payload, and where that lies, if it is there once.

    Raises Invalid.
    """
    found = [
        field
        for field in islice(_fields(body), MOST_FIELDS)
        if field.tag == _PAYLOAD or field.tag & 7 == 3
    ]
    if [field.tag for field in found] != [_PAYLOAD] or found[0].end > len(body):
        return None
    (field,) = found
    return (
        read(kind, body.read(0, field.at) + body.read(field.end, len(body))),
        field.begin,
        field.end,
    )


def read_answer(body: bytes) -> dict[str, Any]:
    """Return the fields of a TransportOutbound, of v1.2.0 or before. Raises Invalid.

    Both layouts can be parsed as the other; it is of v1.2.0 if its third field is a code.
    """
    try:
        answer = read(TransportOutbound, body)
        if _CODE.fullmatch(answer.get("code", "")):
            return answer
    except Invalid:
        pass
    return read(LegacyOutbound, body)


def write_answer(
    form: Form,
    code: str,
    message: str,
    size: int,
    metadata: Mapping[str, str],
) -> bytes:
    """Return what comes before the ``size`` bytes of content in a response in protobuf or with a bare payload."""
    text = message.encode("utf-8", "replace").decode()
    if form is Form.RAW:
        head = LegacyOutbound(code=code, message=text)
    else:
        texts = {
            name: value.encode("utf-8", "replace").decode() for name, value in metadata.items()
        }
        head = TransportOutbound(
            code=code,
            message=text,
            metadata=texts,
        )
    return begin(head, size)


def begin(message: Any, size: int) -> bytes:
    """Return what comes before the ``size`` bytes of payload in a message without it."""
    raw = bytes(message.SerializeToString())
    if not size:
        return raw
    return (
        raw + _number(message.DESCRIPTOR.fields_by_name["payload"].number << 3 | 2) + _number(size)
    )


class _Field(NamedTuple):
    """A field of a message: what it is, where it lies, and where its value does."""

    tag: int
    at: int
    begin: int
    end: int


def _fields(body: Pieces) -> Iterator[_Field]:
    """Give the fields of a message; a broken one ends them."""
    at = 0
    while at < len(body):
        lead = body.read(at, at + 20)
        tag, begin = _varint(lead, 0)
        end = begin
        match tag & 7:
            case 0:
                _, end = _varint(lead, begin)
            case 1:
                end += 8
            case 2:
                length, begin = _varint(lead, begin)
                end = begin + length
            case 5:
                end += 4
            case 3 | 4:
                pass
            case _:
                return
        yield _Field(tag, at, at + begin, at + end)
        at += end


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
