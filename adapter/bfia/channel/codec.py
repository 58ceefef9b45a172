"""Bodies and x-ptp-* headers of the transport channel, both ways.

In JSON (v1.2.0) bytes are Base64. Headers are read in every spelling: with hyphens or underscores,
under present or former names. Three headers are our own: ``x-ptp-message-id`` names one logical
push and stays the same on its retries; ``x-ptp-pop-id`` names one logical pop, whose repeat gets
the same message; ``x-ptp-part`` gives the offset of a part in its message.

A JSON response has the same bytes twice, as ``content`` and as ``payload``, because a deployed
reader may know only one of these names.

A long payload is not copied. The rest of its message is parsed separately: in JSON with a marker in
place of the payload, in protobuf without the payload.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from adapter.bfia.channel import message_forms
from adapter.bfia.channel.message_forms import CutMessage, Form
from adapter.bfia.channel.pieces import (
    Payload,
    Pieces,
    decode_base64,
    encode_pieces,
    total_length,
)
from adapter.bfia.profiles import Profile
from adapter.body import read_json, without_nulls
from gateway.domain.problems import Problem
from gateway.errors import Invalid, problems_of, shorten
from gateway.identity.sealing import LONGEST_KEY

CHANNEL = "/v1/interconn/chan/"
PUSH = f"{CHANNEL}push"
INVOKE = f"{CHANNEL}invoke"
# Our own path for parts of messages
PART = f"{CHANNEL}part"
SUCCESS = "E0000000000"
NOT_FOUND = "E0000000404"
# The standard's path for a body of the path that ``x-ptp-uri`` names, as it is. It is not used for
# parts: how a peer treats them there shows only after the peer has stored a message.
TRANSPORT = f"{CHANNEL}transport"
PASS_THROUGH = "1"  # value of x-ptp-version: the body is the container's push as it is
# The ASGI field ``http_version`` of requests that came by gRPC, which runs over HTTP/2
GRPC = "2"

LONG_PAYLOAD = 1 << 18  # bytes; the payload of a longer body is not copied
_LONGEST_TOPIC = 4096  # characters
_MILLISECONDS_FROM = 1000  # a smaller timeout is in seconds

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound="Envelope")

# ---------------------------------------------------------------- bodies


def _read_bytes(value: Any) -> bytes:
    """Return the bytes of a Base64 text or of a list of numbers.

    A pydantic validator, which raises PydanticCustomError for any other value.
    """
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return decode_base64(value)
        if isinstance(value, list):
            return _join_numbers(value)
    except ValueError:
        pass
    raise PydanticCustomError("rule", "must be Base64, or a list of integers from -128 to 255")


def _join_numbers(numbers: list[Any]) -> bytes:
    """Return bytes from their numbers, signed or not. Raises ValueError."""
    for number in numbers:
        # Not `isinstance`, by which True and False would be numbers.
        if type(number) is not int or not -128 <= number <= 255:
            raise ValueError(number)
    return bytes(number & 0xFF for number in numbers)


def _read_text(value: Any) -> Any:
    """Return a number as text; any other value unchanged, booleans among them."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return str(value)
    return value


def parse_timeout(value: Any) -> float | None:
    """Return a timeout as a number, in the unit in which it was sent.

    ``value`` is the number or its text. None for None and for empty text. Raises
    PydanticCustomError, which is a ValueError.
    """
    if value is None or value == "":
        return None
    number = math.nan
    if not isinstance(value, bool):
        with suppress(OverflowError, TypeError, ValueError):
            number = float(value)
    if number >= 0:  # False for NaN
        return number
    raise PydanticCustomError("rule", "must be a number that is not negative")


Bytes = Annotated[
    bytes,
    BeforeValidator(_read_bytes),
    WithJsonSchema(
        {
            "type": "string",
            "format": "byte",
            "description": "Base64",
        }
    ),
]
Topic = Annotated[str, Field(max_length=_LONGEST_TOPIC)]
Metadata = Annotated[
    dict[str, Annotated[str, BeforeValidator(_read_text)]], BeforeValidator(without_nulls)
]
Timeout = Annotated[
    float | None,
    BeforeValidator(parse_timeout),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": "^[0-9]{1,9}$"},
            ],
            "description": "milliseconds; below 1000 it is seconds; 0 or absent: the default",
        }
    ),
]


class Envelope(BaseModel):
    """The outer message of the encapsulated mode."""

    payload: Bytes
    metadata: Metadata = Field(
        default={}, description="sequence: a repeat with the same one is stored once"
    )

    @model_validator(mode="before")
    @classmethod
    def _rename_content(
        cls,
        body: dict[str, Any],
    ) -> dict[str, Any]:
        """Accept the payload under the name ``content``, too."""
        body = without_nulls(body)
        if "content" in body and "payload" not in body:
            return body | {"payload": body["content"]}
        return body


class Push(Envelope):
    """A container's message: its topic within the session, its bytes, and the sender's metadata."""

    topic: Topic = ""


class Ask(BaseModel):
    """The body of pop, peek and release. ``timeout`` is as it was sent, in no known unit."""

    topic: Topic | None = None
    timeout: Timeout = None


class TransportReply(BaseModel):
    """The response of another transport, under whichever names it has sent the fields."""

    code: Annotated[str, BeforeValidator(_read_text)]
    message: str = ""
    content: Bytes = b""

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields under their standard names; a message that is not text is dropped."""
        message = body.get("message", body.get("msg"))
        if not isinstance(message, str):
            message = ""
        return {
            "code": body.get("code"),
            "message": message,
            "content": body.get("payload") or body.get("content") or "",
        }

    @property
    def succeeded(self) -> bool:
        """Whether the code means a success; early peers say ``0``."""
        return self.code in (SUCCESS, "0")


def read_push(
    pieces: list[bytes],
    form: Form,
) -> tuple[Push, Payload]:
    """Return a push, and separately its payload. Raises Invalid with every field that is wrong.

    The payload in the push itself may be empty, see `_read_apart`. A bare payload (`Form.RAW`)
    becomes a push with an empty topic.
    """
    if form is Form.RAW:
        return Push(payload=b""), Payload(Pieces(pieces))
    return _read_apart(Push, "PushInbound", pieces, form)


def read_envelope(
    pieces: list[bytes],
    form: Form,
) -> tuple[Envelope, Payload]:
    """Return the outer message of the encapsulated mode, and separately its payload.

    Raises Invalid.
    """
    return _read_apart(Envelope, "Inbound", pieces, form)


def decode_ask(body: bytes, form: Form = Form.JSON) -> Ask:
    """Read the body of pop, peek or release. Raises Invalid.

    A body that is empty, or in the raw form, names neither a topic nor a timeout.
    """
    if form is Form.RAW or not body.strip():
        return Ask()
    if form is Form.JSON:
        return _validate(Ask, _read_object(body))
    return _validate(Ask, message_forms.read_protobuf("PopInbound", body))


def decode_answer(body: bytes, content_type: str = "") -> TransportReply:
    """Read the response of another transport; ``content_type`` tells protobuf from JSON.

    Raises Invalid for a body in another form, or without a code.
    """
    if "proto" in content_type.lower():
        return _validate(TransportReply, message_forms.read_protobuf_response(body))
    return _validate(TransportReply, _read_object(body))


def _read_apart(
    model: type[E],
    name: str,
    pieces: list[bytes],
    form: Form,
) -> tuple[E, Payload]:
    """Return a message, and separately its payload, which is not copied if it is long.

    ``name`` is that of the class of ``ptp_pb2`` that corresponds to ``model``. Only the second
    result is certain to have the payload: the message itself is returned with an empty payload if
    the payload was cut out of it. Raises Invalid.
    """
    body = Pieces(pieces)
    is_json = form is Form.JSON
    if len(body) > LONG_PAYLOAD:
        try:
            if is_json:
                cut = _cut_json(body)
            else:
                cut = message_forms.cut_protobuf(name, body)
            if cut is not None:
                message = _validate(model, cut.fields | {"payload": b""})
                return message, Payload(
                    body,
                    cut.begin,
                    cut.end,
                    base64=is_json,
                )
        except (ValueError, Invalid):
            pass  # an error is reported for the message as it was sent, below
    complete = b"".join(pieces)
    if is_json:
        message = _validate(model, _read_object(complete))
    else:
        message = _validate(model, message_forms.read_protobuf(name, complete))
    return message, Payload(Pieces([message.payload]))


def _cut_json(body: Pieces) -> CutMessage | None:
    """Cut the payload out of a JSON object.

    None if the object's longest text is not the payload, or contains escapes.
    """
    begin, end = _longest_text(body)
    marker = uuid4().hex  # random, so that no body contains it
    fields = _read_object(body.read(0, begin) + marker.encode() + body.read(end, len(body)))
    payload = fields.get("payload")
    if payload is None:
        payload = fields.get("content")
    # Only a JSON parser resolves escapes such as ``\/``; `Payload` decodes Base64 alone.
    has_escapes = any(b"\\" in piece for piece in body.between(begin, end))
    if payload != marker or has_escapes:
        return None
    return CutMessage(fields, begin, end)


def _longest_text(body: Pieces) -> tuple[int, int]:
    """Return the range of the longest stretch without a quotation mark.

    `Pieces.between` yields the body in slices. A stretch that begins and ends within one slice is
    left out, as it is short.
    """
    longest = (0, 0)
    begin = 0
    offset = 0
    for piece in body.between(0, len(body)):
        first_quote = piece.find(b'"')
        if first_quote >= 0:
            end = offset + first_quote
            if end - begin > longest[1] - longest[0]:
                longest = (begin, end)
            begin = offset + piece.rfind(b'"') + 1
        offset += len(piece)
    return longest


def _read_object(body: bytes) -> dict[str, Any]:
    """Return the object in a JSON body. Raises Invalid for any other body."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise Invalid([Problem("body", "must be a JSON object", shorten(body[:80], 80))])
    return value


def _validate(model: type[M], value: dict[str, Any]) -> M:
    """Return an object as a model. Raises Invalid."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid(problems_of(error.errors(include_input=False), model)) from None


def encode_answer(
    code: str,
    message: str,
    form: Form = Form.JSON,
) -> bytes:
    """Return the body of a response without content."""
    pieces = frame(code, message, 0, {}, form)
    return b"".join(piece for piece in pieces if piece is not None)


def frame(
    code: str,
    message: str,
    size: int,
    metadata: Mapping[str, str],
    form: Form,
) -> list[bytes | None]:
    """Return the pieces of a response's body in order.

    The caller has to replace each None by the content, which JSON has twice, in Base64. ``size``:
    bytes of the content.
    """
    if form is not Form.JSON:
        return [
            message_forms.response_head(form, code, message, size, metadata),
            None,
        ]
    head = json.dumps(
        {
            "code": code,
            "message": message,
            "metadata": dict(metadata),
        }
    ).encode("ascii")
    # `head[:-1]`: the object without its closing brace, so that two more fields can follow.
    return [head[:-1], b', "content": "', None, b'", "payload": "', None, b'"}']


def rewrite(
    pieces: list[bytes],
    ptp: "Ptp",
    form: Form,
    profile: Profile,
    grpc: bool,
) -> tuple[list[bytes], "Ptp", Form]:
    """Return a push as a peer's transport accepts it: its pieces, its headers and its form.

    ``grpc``: the peer takes only protobuf. A message for a peer that encapsulates still has to be
    wrapped by `encode_envelope`. Raises Invalid.
    """
    if grpc:
        if form is not Form.PROTOBUF:
            pieces = _in_protobuf(pieces, ptp, form)
        return pieces, ptp, Form.PROTOBUF
    if profile.bare_payloads and form is not Form.RAW:
        push, payload = read_push(pieces, form)
        if ptp.topic is None:
            ptp = replace(ptp, topic=push.topic)
        return list(payload.consume()), ptp, Form.RAW
    if profile.encapsulates and form is Form.RAW:
        return _in_json({"topic": ptp.topic}, pieces), ptp, Form.JSON
    return pieces, ptp, form


def encode_envelope(
    pieces: list[bytes],
    metadata: Mapping[str, str],
    form: Form,
) -> list[bytes]:
    """Return the outer message of the encapsulated mode: in JSON, or else in protobuf."""
    if form is Form.JSON:
        return _in_json({"metadata": dict(metadata)}, pieces)
    envelope = message_forms.message_type("Inbound")(metadata=dict(metadata))
    head = message_forms.message_head(envelope, total_length(pieces))
    return [head, *pieces]


def _in_protobuf(
    pieces: list[bytes],
    ptp: "Ptp",
    form: Form,
) -> list[bytes]:
    """Return a push as a protobuf message, in pieces. Raises Invalid."""
    push, payload = read_push(pieces, form)
    topic = push.topic
    if ptp.topic is not None:
        topic = ptp.topic
    head = message_forms.message_head(
        message_forms.message_type("PushInbound")(topic=topic, metadata=push.metadata),
        payload.size,
    )
    return [head, *payload.consume()]


def _in_json(
    fields: dict[str, Any],
    payload: list[bytes],
) -> list[bytes]:
    """Return a JSON object with these fields and a payload in Base64, in pieces."""
    head = json.dumps(fields).encode("ascii")[:-1] + b', "payload": "'
    body = Pieces(payload)
    return [head, *encode_pieces(body.between(0, len(body), consume=True)), b'"}']


def wait_seconds(
    header: str,
    body: float | None,
    query: str | None,
    default: float,
) -> float:
    """Return how long a pop waits, in seconds: the first timeout that is present and not 0.

    The timeouts of header and body are in milliseconds, or in seconds if the number is below 1000;
    the timeout of the query is in seconds. Raises Invalid.
    """
    for name, value, read in (
        ("x-ptp-timeout", header, _seconds_of),
        ("timeout", body, _seconds_of),
        ("query.timeout", query, parse_timeout),
    ):
        seconds = _read_timeout(name, value, read)
        if seconds:
            return seconds
    return default


def _read_timeout(
    name: str,
    value: Any,
    read: Callable[[Any], float | None],
) -> float | None:
    """Read a timeout with a function that raises ValueError; raises Invalid instead."""
    try:
        return read(value)
    except ValueError:
        problem = Problem(name, "must be a number that is not negative", str(value)[:80])
        raise Invalid([problem]) from None


def _seconds_of(value: Any) -> float | None:
    """Return a timeout in milliseconds (below 1000: in seconds) as seconds; None without one."""
    number = parse_timeout(value)
    if number is None or number < _MILLISECONDS_FROM:
        return number
    return number / 1000


# ---------------------------------------------------------------- headers

_PREFIX = "x-ptp-"
_BEGINS = (b"x-", b"x_")  # the name of each header that is read begins with one of these
# Value of ``x-ptp-uri`` of peers that name the push by its gRPC method
_GRPC_PUSH = "/org.ppc.ptp.PrivateTransferTransport/push"
_LONGEST = 512  # characters of a header's value
# Characters that a topic has unencoded in a sealed message: printable ASCII without "%" and blanks
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
# Header without its prefix -> the most characters of its value, if more than `_LONGEST` are allowed
_LONGEST_OF = {
    "topic": _LONGEST_TOPIC,
    "token": 8 * _LONGEST,
    "seal-key": LONGEST_KEY,
}

# Field of `Ptp` -> header, without its prefix
_NAMES = {
    "session": "session-id",
    "token": "token",
    "trace": "trace-id",
    "provider": "tech-provider-code",
    "target": "target-node-id",
    "target_institution": "target-inst-id",
    "source": "source-node-id",
    "uri": "uri",
    "topic": "topic",
    "timeout": "timeout",
    "message_id": "message-id",
    "pop_id": "pop-id",
}
# Name of a header before v1.2.0 -> its present name
_FORMER_NAMES = {
    "from-node-id": "source-node-id",
    "from-inst-id": "source-inst-id",
    "tecn-provider-code": "tech-provider-code",
}


@dataclass(frozen=True, slots=True)
class Ptp:
    """The ``x-ptp-*`` headers of one request; "" for an absent header, None for an absent topic."""

    session: str = ""
    token: str = ""
    trace: str = ""
    provider: str = ""
    target: str = ""
    target_institution: str = ""
    source: str = ""
    uri: str = ""
    topic: str | None = None
    timeout: str = ""
    message_id: str = ""
    pop_id: str = ""

    @property
    def is_push(self) -> bool:
        """True if ``x-ptp-uri`` names the push of the receiving node, or is absent."""
        try:
            path = urlsplit(self.uri).path
        except ValueError:
            return False
        return path in ("", PUSH, _GRPC_PUSH)


def read_ptp(
    headers: Iterable[tuple[bytes, bytes]], metadata: Mapping[str, str] | None = None
) -> Ptp:
    """Return the headers of a request.

    ``metadata``: the headers inside an encapsulated message. Such a header counts only if the
    request itself lacks the header of that name. Raises Invalid for a missing session id, values
    that are too long, and headers with several different values.
    """
    header_values = _read_values(headers)
    values = header_values.values
    if metadata:
        stripped = [(name, value.strip()) for name, value in metadata.items()]
        # Here names with hyphens have no precedence over names with underscores.
        values = _values_of_spelling(stripped).values | values
    problems = [
        Problem(name, "stands several times, with different values", None)
        for name in header_values.ambiguous
    ]
    problems += _length_problems(values)
    if not values.get("session-id"):
        problems.append(Problem("x-ptp-session-id", "is required", None))
    if problems:
        raise Invalid(problems)
    fields = {field: values[name] for field, name in _NAMES.items() if name in values}
    return Ptp(**fields)


def _length_problems(values: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each header whose value is too long."""
    problems = []
    for name, value in values.items():
        longest = _LONGEST_OF.get(name, _LONGEST)
        length = len(value)
        if name == "topic" and "seal-key" in values:
            length = len(sealed_topic_to_plain(value))
        if length > longest:
            rule = f"must have at most {longest} characters"
            problems.append(Problem(f"{_PREFIX}{name}", rule, length))
    return problems


def plain_topic_to_sealed(topic: str) -> str:
    """Return a topic as a sealed message has it: percent-encoded, as the seal covers headers."""
    return quote(topic, safe=_PLAIN, errors="surrogatepass")


def sealed_topic_to_plain(header: str) -> str:
    """Return the topic in the header of a sealed message."""
    return unquote(header, errors="replace")


def read_ends(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str] | None:
    """Return the source and target nodes as `read_ptp` reads them; "" for an absent one.

    None if any header has several different values.
    """
    header_values = _read_values(headers)
    if header_values.ambiguous:
        return None
    values = header_values.values
    return values.get("source-node-id", ""), values.get("target-node-id", "")


def read_session(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the session as `read_ptp` reads it; "" if it is absent."""
    return _read_values(headers).values.get("session-id", "")


def read_target_institution(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the target institution as `read_ptp` reads it; "" if it is absent or ambiguous."""
    header_values = _read_values(headers)
    if header_values.ambiguous:
        return ""
    return header_values.values.get("target-inst-id", "")


def read_topic(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the topic header as `read_ptp` reads it; None if it is absent."""
    return _read_values(headers).values.get("topic")


def invoke_headers(
    ptp: Ptp,
    *,
    node: str,
    institution: str,
    message_id: str,
    token: str,
    encapsulated: bool,
) -> dict[str, str]:
    """Return the headers of an invoke.

    An encapsulated invoke has no ``x-ptp-version``, and names its source also under the headers'
    former names. ``token`` replaces the container's own token, which gives access to the
    container's session at this node and therefore is not sent to other nodes.
    """
    headers = {
        "version": PASS_THROUGH,
        "tech-provider-code": ptp.provider,
        "trace-id": ptp.trace,
        "token": token,
        "session-id": ptp.session,
        "target-node-id": ptp.target,
        "source-node-id": node,
        "source-inst-id": institution,
        "uri": PUSH,
        "message-id": message_id,
    }
    if ptp.target_institution:
        headers["target-inst-id"] = ptp.target_institution
    if ptp.topic is not None:
        headers["topic"] = ptp.topic
    if encapsulated:
        del headers["version"]
        headers |= {"from-node-id": node, "from-inst-id": institution}
    return {_PREFIX + name: value for name, value in headers.items()}


class _Values(NamedTuple):
    """Values of headers by their names without the prefix ``x-ptp-``.

    ``ambiguous``: full names of the headers that were sent with several different values.
    """

    values: dict[str, str]
    ambiguous: list[str]


def _read_values(headers: Iterable[tuple[bytes, bytes]]) -> _Values:
    """Return the values of raw headers.

    A name that is spelled with hyphens alone takes precedence over one with an underscore.
    """
    return _cached_values(tuple(headers))


@lru_cache(16)  # several parts of the listener read the headers of one request
def _cached_values(headers: tuple[tuple[bytes, bytes], ...]) -> _Values:
    """Return what `_read_values` returns, for headers that can be a key of the cache."""
    hyphenated: list[tuple[str, str]] = []
    underscored: list[tuple[str, str]] = []
    for raw_name, raw_value in headers:
        if raw_name[:2].lower() not in _BEGINS:
            continue
        name = raw_name.decode("latin-1").lower()
        spelling = hyphenated
        if "_" in name:
            spelling = underscored
        spelling.append((name, raw_value.decode("latin-1").strip()))
    preferred = _values_of_spelling(hyphenated)
    if not underscored:
        return preferred
    fallback = _values_of_spelling(underscored)
    values = fallback.values | preferred.values
    return _Values(values, preferred.ambiguous + fallback.ambiguous)


def _values_of_spelling(pairs: Iterable[tuple[str, str]]) -> _Values:
    """Return the values of headers; their present names take precedence over their former names.

    An empty value counts as absent, except for a topic.
    """
    values: dict[str, str] = {}
    ambiguous: dict[str, None] = {}  # a set that keeps the order
    for raw_name, value in pairs:
        name = raw_name.lower().replace("_", "-")
        if not name.startswith(_PREFIX):
            continue
        is_absent = not value and name != f"{_PREFIX}topic"
        if is_absent:
            continue
        if values.setdefault(name, value) != value:  # an earlier, different value is kept
            ambiguous[name] = None
    by_name = {name.removeprefix(_PREFIX): value for name, value in values.items()}
    renamed = {}
    for former_name, name in _FORMER_NAMES.items():
        if former_name in by_name:
            renamed[name] = by_name.pop(former_name)
    return _Values(renamed | by_name, list(ambiguous))
