"""The forms of channel messages: JSON, protobuf, and the bare payload with its topic in a header.

`form_of` recognises the form of a request, by its Content-Type and ``x-ptp-topic``; the response
has the same form. The rest of the module reads and writes protobuf; for JSON see `codec`.
Containers that send bare payloads (Kuscia's, SecretFlow's) understand only the response layout that
the standard had before v1.2.0.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from adapter.bfia.channel.pieces import Pieces
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid

MOST_FIELDS = 20_000  # fields of one message; the parser's memory grows with their number

_JSON = frozenset({"application/json", "text/json"})
_PROTOBUF = frozenset({"application/x-protobuf", "application/protobuf", "application/proto"})
_CODE = re.compile(r"E\d{10}")  # a response's code as v1.2.0 writes it

# Wire types of protobuf: the last three bits of a tag.
_LENGTH_DELIMITED = 2
_GROUP_BEGIN = 3

# Tag of the payload, which is field 2 of PushInbound and Inbound
_PAYLOAD_TAG = 2 << 3 | _LENGTH_DELIMITED
_LONGEST_VARINT = 10  # bytes


class UnknownForm(GatewayError):
    """The body is in a form that this node does not read; the error names the forms it reads."""

    reason = "CODEC"
    code = 400


class Form(Enum):
    """How a message is written; the value is the Content-Type of responses."""

    JSON = "application/json"
    PROTOBUF = "application/x-protobuf"
    # The bare payload. The value is only the type of the response, which is a LegacyOutbound; a
    # request with this Content-Type is PROTOBUF, see `form_of`.
    RAW = "application/proto"


def form_of(content_type: str, topic: str | None) -> Form:
    """Return the form of a request with this Content-Type and topic header. Raises UnknownForm.

    Without a Content-Type it is JSON, except where a topic header says that the body is the bare
    payload.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _PROTOBUF:
        return Form.PROTOBUF
    if kind in _JSON:
        return Form.JSON
    if topic is not None:
        return Form.RAW
    if not kind:
        return Form.JSON
    names = f"{Form.JSON.value}, {Form.PROTOBUF.value}"
    raise UnknownForm(
        f"Content-Type {kind!r} is not read by this node; it reads {names}, and any with "
        "x-ptp-topic"
    )


@cache
def message_type(name: str) -> Any:
    """Return the class of ``ptp_pb2`` with this name, such as ``Inbound``.

    The library is imported at the first message in protobuf, which many nodes never get.
    """
    from adapter.bfia.channel import ptp_pb2

    return getattr(ptp_pb2, name)


def read_protobuf(name: str, body: bytes) -> dict[str, Any]:
    """Return the fields of a message in protobuf: its payload, and the others that are not empty.

    ``name`` is that of its class in ``ptp_pb2``. Raises Invalid.
    """
    from google.protobuf.message import DecodeError  # imported late, see `message_type`

    if _has_more_fields(Pieces([body]), MOST_FIELDS):
        raise Invalid([Problem("body", f"must not hold more than {MOST_FIELDS} fields")])
    invalid = Invalid([Problem("body", f"must be a message {name} in protobuf")])
    try:
        fields = message_type(name).FromString(body).ListFields()
    except DecodeError:
        raise invalid from None
    if body and not fields:  # only unknown fields: another message, or not protobuf
        raise invalid
    values = {"payload": b""}
    for descriptor, value in fields:
        values[descriptor.name] = value
    return values


@dataclass(frozen=True, slots=True)
class CutMessage:
    """The fields of a message without its payload, and the range of the payload in the body."""

    fields: dict[str, Any]
    begin: int  # indices of bytes
    end: int


def cut_protobuf(name: str, body: Pieces) -> CutMessage | None:
    """Cut the payload out of a message in protobuf.

    ``name`` is that of the message's class. None if this is not possible: the message has a group,
    has not exactly one payload, or ends before its payload does. The caller then reads the whole
    message. Raises Invalid.
    """
    payloads = []
    # Fields after the limit are not looked at here. `read_protobuf`, called below or by the caller,
    # refuses a message with too many fields.
    for field in islice(_fields(body), MOST_FIELDS):
        if field.wire_type == _GROUP_BEGIN:
            return None  # a tag like the payload's may belong to a field inside the group
        if field.tag == _PAYLOAD_TAG:
            payloads.append(field)
    if len(payloads) != 1:
        return None
    payload = payloads[0]
    if payload.end > len(body):  # incomplete; the caller then reads the whole body, and fails
        return None
    other_fields = body.read(0, payload.begin) + body.read(payload.end, len(body))
    fields = read_protobuf(name, other_fields)
    return CutMessage(fields, payload.value_begin, payload.end)


def read_protobuf_response(body: bytes) -> dict[str, Any]:
    """Return the fields of a TransportOutbound, of v1.2.0 or before. Raises Invalid.

    A body of one layout may also parse in the other layout. Field 3 is the code in v1.2.0, and the
    text in the earlier layout, so the response is of v1.2.0 if its field 3 looks like a code.
    """
    try:
        response = read_protobuf("TransportOutbound", body)
        if _CODE.fullmatch(response.get("code", "")):
            return response
    except Invalid:
        pass
    return read_protobuf("LegacyOutbound", body)


def response_head(
    form: Form,
    code: str,
    message: str,
    size: int,
    metadata: Mapping[str, str],
) -> bytes:
    """Return the head of a response in protobuf: everything before its content.

    The caller sends the ``size`` bytes of the content next. ``form``: that of the request, RAW or
    PROTOBUF.
    """
    text = _encodable(message)
    if form is Form.RAW:
        return message_head(message_type("LegacyOutbound")(code=code, message=text), size)
    texts = {name: _encodable(value) for name, value in metadata.items()}
    response = message_type("TransportOutbound")(
        code=code,
        message=text,
        metadata=texts,
    )
    return message_head(response, size)


def _encodable(text: str) -> str:
    """Return a text with its lone surrogates replaced, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def message_head(message: Any, size: int) -> bytes:
    """Return the head of a message in protobuf: everything before its payload.

    ``message`` has all other fields. The caller sends the ``size`` bytes of the payload next.
    """
    head = bytes(message.SerializeToString())
    if size == 0:  # protobuf leaves out an empty field
        return head
    number = message.DESCRIPTOR.fields_by_name["payload"].number
    return head + _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


class _Field(NamedTuple):
    """A field of a message; the positions are indices of bytes in the body."""

    tag: int  # number and wire type of the field
    begin: int  # of the tag
    value_begin: int  # after the tag, and after the length of a length-delimited value
    end: int

    @property
    def wire_type(self) -> int:
        """How the value is written: the lowest three bits of the tag."""
        return self.tag & 7


def _has_more_fields(body: Pieces, limit: int) -> bool:
    """True if a message has more fields than the limit."""
    return next(islice(_fields(body), limit, None), None) is not None


def _fields(body: Pieces) -> Iterator[_Field]:
    """Yield the fields of a message, up to the first one with an invalid wire type.

    A field that is cut off may end after the body.
    """
    begin = 0
    while begin < len(body):
        lead = body.read(begin, begin + 2 * _LONGEST_VARINT)  # enough for a tag and a length
        # Up to the `yield`, the positions are relative to the begin of the field.
        tag, value_begin = _read_varint(lead, 0)
        end = value_begin
        match tag & 7:
            case 0:  # varint
                _, end = _read_varint(lead, value_begin)
            case 1:  # 64 bits
                end += 8
            case 2:  # length-delimited
                length, value_begin = _read_varint(lead, value_begin)
                end = value_begin + length
            case 5:  # 32 bits
                end += 4
            case 3 | 4:  # begin and end of a group
                pass
            case _:
                return
        yield _Field(tag, begin, begin + value_begin, begin + end)
        begin += end


def _read_varint(data: bytes, begin: int) -> tuple[int, int]:
    """Return the number that begins at an index, and the index after its end.

    The second index is ``len(data)`` if the number is cut off or too long.
    """
    value = 0
    for index, byte in enumerate(data[begin : begin + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, begin + index + 1
    return value, len(data)


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
