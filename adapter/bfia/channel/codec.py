"""Bodies and x-ptp-* headers of the transport channel, both ways; in JSON (v1.2.0) bytes are Base64.

Headers are read in every spelling and written in full. Ours are ``x-ptp-message-id``, which names one logical
push and stays the same on its retries, and ``x-ptp-pop-id``: the repeat of such a pop gets the same message.

We send ``content`` and ``payload`` with the same bytes, as deployed readers know one or the other.

A long payload stays where it came: what is around it is parsed with a marker in its place.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
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

from adapter.bfia.channel import forms
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.pieces import Payload, Pieces, decode_base64, encoded, measured
from adapter.bfia.channel.ptp_pb2 import Inbound, PopInbound, PushInbound  # type: ignore[attr-defined]
from adapter.bfia.profiles import Profile
from adapter.body import read_json, without_nulls
from gateway.domain.problems import Problem
from gateway.errors import Invalid, problems_of, shorten

SUCCESS = "E0000000000"

_LONG = 1 << 18
_LONGEST_TOPIC = 4096
_MOST_NUMBERS = 4_000_000
"""how much the parser is given; its time and memory go with the number of values"""

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound="Envelope")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return decode_base64(value)
        if isinstance(value, list) and all(
            type(item) is int and -128 <= item <= 255 for item in value
        ):
            return bytes(item & 0xFF for item in value)
    except ValueError:
        pass
    raise PydanticCustomError("rule", "must be Base64, or a list of integers from -128 to 255")


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def parse_timeout(value: Any) -> float | None:
    """Read a timeout's number, also from text; None and empty text are None. Raises ValueError."""
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not number >= 0:
        raise PydanticCustomError("rule", "must be a number that is not negative")
    return number


Bytes = Annotated[
    bytes,
    BeforeValidator(_bytes),
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
    dict[str, Annotated[str, BeforeValidator(_text)]], BeforeValidator(without_nulls)
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
    def _either(cls, body: dict[str, Any]) -> dict[str, Any]:
        body = without_nulls(body)
        return (
            body
            if "payload" in body or "content" not in body
            else body | {"payload": body["content"]}
        )


class Push(Envelope):
    """A container's message: where it belongs within the session, its bytes, and what the sender says of it."""

    topic: Topic = ""


class Ask(BaseModel):
    """The body of pop, peek and release. ``timeout`` is as it was sent, in no known unit."""

    topic: Topic | None = None
    timeout: Timeout = None


class Answer(BaseModel):
    """What a transport responds, whichever spelling it uses."""

    code: Annotated[str, BeforeValidator(_text)]
    message: str = ""
    content: Bytes = b""

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, body: dict[str, Any]) -> dict[str, Any]:
        message = body.get("message", body.get("msg"))
        return {
            "code": body.get("code"),
            "message": message if isinstance(message, str) else "",
            "content": body.get("payload") or body.get("content") or "",
        }

    @property
    def succeeded(self) -> bool:
        """Whether the code is a success; early peers say ``0``."""
        return self.code in (SUCCESS, "0")


def read_push(pieces: list[bytes], form: Form) -> tuple[Push, Payload]:
    """Read a push; a bare payload has no topic. Raises Invalid with every field that is wrong."""
    if form is Form.RAW:
        return Push(payload=b""), Payload(Pieces(pieces))
    return _apart(Push, PushInbound, pieces, form)


def read_envelope(pieces: list[bytes], form: Form) -> tuple[Envelope, Payload]:
    """Read the outer message of the encapsulated mode. Raises Invalid."""
    return _apart(Envelope, Inbound, pieces, form)


def decode_ask(body: bytes, form: Form = Form.JSON) -> Ask:
    """Read the body of pop, peek or release; an empty body asks for the empty topic. Raises Invalid."""
    if form is Form.RAW or not body.strip():
        return Ask()
    return _read(Ask, body) if form is Form.JSON else _checked(Ask, forms.read(PopInbound, body))


def decode_answer(body: bytes, content_type: str = "") -> Answer:
    """Read another transport's response in any of its spellings. Raises Invalid if it has no code."""
    return (
        _checked(Answer, forms.read_answer(body))
        if "proto" in content_type.lower()
        else _read(Answer, body)
    )


def _apart(
    model: type[E],
    kind: Any,
    pieces: list[bytes],
    form: Form,
) -> tuple[E, Payload]:
    """Read a message without its payload, which is not copied where it is long. Raises Invalid."""
    body, json_ = Pieces(pieces), form is Form.JSON
    if len(body) > _LONG:
        try:
            if (cut := _cut_json(body) if json_ else forms.cut(body, kind)) is not None:
                fields, begin, end = cut
                return _checked(model, fields | {"payload": b""}), Payload(
                    body, begin, end, base64=json_
                )
        except (ValueError, Invalid):
            pass  # what is wrong, if anything is, is said of the whole
    whole = b"".join(pieces)
    found = _read(model, whole) if json_ else _checked(model, forms.read(kind, whole))
    return found, Payload(Pieces([found.payload]))


def _cut_json(body: Pieces) -> tuple[dict[str, Any], int, int] | None:
    """Return the object but for its payload, and where that lies, if it is the longest text in there."""
    begin, end = _longest_text(body)
    marker = uuid4().hex  # so that no body can have it
    value = _object(body.read(0, begin) + marker.encode() + body.read(end, len(body)))
    found = value.get("content") if value.get("payload") is None else value["payload"]
    if found != marker or any(b"\\" in piece for piece in body.between(begin, end)):
        return None
    return value, begin, end


def _longest_text(body: Pieces) -> tuple[int, int]:
    """Return where the longest stretch without a quotation mark lies; short ones count little."""
    longest, begin, at = (0, 0), 0, 0
    for piece in body.between(0, len(body)):
        if (first := piece.find(b'"')) >= 0:
            longest = max(longest, (begin, at + first), key=lambda ends: ends[1] - ends[0])
            begin = at + piece.rfind(b'"') + 1
        at += len(piece)
    return longest


def _read(model: type[M], body: bytes) -> M:
    return _checked(model, _object(body))


def _object(body: bytes) -> dict[str, Any]:
    fields = body.count(b":") + body.count(b"[") + body.count(b"{")
    if fields > forms.MOST_FIELDS or body.count(b",") > _MOST_NUMBERS:
        rule = f"must not hold more than {forms.MOST_FIELDS} fields and lists, and {_MOST_NUMBERS} numbers in a list"
        raise Invalid([Problem("body", rule)])
    value = read_json(body)
    if not isinstance(value, dict):
        raise Invalid([Problem("body", "must be a JSON object", shorten(body[:80], 80))])
    return value


def _checked(model: type[M], value: dict[str, Any]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid(problems_of(error.errors(include_input=False), model)) from None


def encode_answer(
    code: str,
    message: str,
    form: Form = Form.JSON,
) -> bytes:
    """Return a response without content."""
    return b"".join(filter(None, frame(code, message, 0, {}, form)))


def frame(
    code: str,
    message: str,
    size: int,
    metadata: Mapping[str, str],
    form: Form,
) -> list[bytes | None]:
    """Return the pieces of a response in order; None stands for the content, which JSON has in Base64."""
    if form is not Form.JSON:
        return [forms.write_answer(form, code, message, size, metadata), None]
    pieces: list[bytes | None] = [
        json.dumps(
            {
                "code": code,
                "message": message,
                "metadata": dict(metadata),
            }
        ).encode("ascii")[:-1]
    ]
    return [*pieces, b', "content": "', None, b'", "payload": "', None, b'"}']


CHANNEL = "/v1/interconn/chan/"
PUSH, INVOKE, PART = CHANNEL + "push", CHANNEL + "invoke", CHANNEL + "part"
"""part is our own: what a peer makes of transport over HTTP is not known before it has stored it"""
PASS_THROUGH = "1"
GRPC = "2"
"""the version of HTTP of requests that came by gRPC"""

_PREFIX = "x-ptp-"
_BEGINS = (b"x-", b"x_")
_GRPC_PUSH = "/org.ppc.ptp.PrivateTransferTransport/push"
_LONGEST = 512
_PART_VALUE = re.compile(r"([0-9]{1,15})/([0-9]{1,15})/([0-9a-f]{8})", re.ASCII)
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
"""field of `Ptp` -> header, without its prefix"""
_FORMER_NAMES = {
    "from-node-id": "source-node-id",
    "from-inst-id": "source-inst-id",
    "tecn-provider-code": "tech-provider-code",
}


@dataclass(frozen=True, slots=True)
class Ptp:
    """The headers of one request; empty text where they are absent."""

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
        """Whether the request means a push on the receiving node, as it also does when it says nothing."""
        try:
            path = urlsplit(self.uri).path
        except ValueError:
            return False
        return path in ("", PUSH, _GRPC_PUSH)


def read_ptp(
    headers: Iterable[tuple[bytes, bytes]], metadata: Mapping[str, str] | None = None
) -> Ptp:
    """Read raw headers, and ``metadata`` for those that are absent.

    Raises Invalid for a missing session id, values that are too long, and headers with several values.
    """
    inside = (
        _named((name, value.strip()) for name, value in metadata.items())[0] if metadata else {}
    )
    outside, ambiguous = _values(headers)
    found = {**inside, **outside}
    problems = [
        *(Problem(name, "stands several times, with different values", None) for name in ambiguous),
        *(
            Problem(f"{_PREFIX}{name}", f"must have at most {_LONGEST} characters", len(value))
            for name, value in found.items()
            if len(value) > (8 * _LONGEST if name in ("topic", "token") else _LONGEST)
        ),
    ]
    if not found.get("session-id"):
        problems.append(Problem("x-ptp-session-id", "is required", None))
    if problems:
        raise Invalid(problems)
    return Ptp(**{field: found[name] for field, name in _NAMES.items() if name in found})


def read_ends(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str] | None:
    """Return source and target node as `read_ptp` reads them; None where a header has several values."""
    found, ambiguous = _values(headers)
    return None if ambiguous else (found.get("source-node-id", ""), found.get("target-node-id", ""))


def read_topic(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the topic header as `read_ptp` reads it; None where there is none."""
    return _values(headers)[0].get("topic")


_PART = "x-ptp-part"


class Part(NamedTuple):
    """Which part of a message a body is, with its checksum."""

    offset: int
    size: int
    """of the whole message"""
    checksum: int

    @property
    def header(self) -> dict[str, str]:
        """The header that says so."""
        return {_PART: f"{self.offset}/{self.size}/{self.checksum:08x}"}


def read_part(
    headers: Mapping[str, str],
    pieces: Iterable[bytes],
    part_bytes: int,
) -> Part:
    """Read the header of a part; all but the last one have ``part_bytes``. Raises Invalid."""
    found = _PART_VALUE.fullmatch(headers.get(_PART, ""))
    part = Part(int(found[1]), int(found[2]), int(found[3], 16)) if found else Part(0, 0, 0)
    length, checksum = measured(pieces)
    if part.offset % part_bytes or not 0 < length == min(part_bytes, part.size - part.offset):
        raise Invalid(
            [
                Problem(
                    _PART,
                    f"must be offset/size/crc32 of a part of {part_bytes} bytes, or the last one",
                )
            ]
        )
    if checksum != part.checksum:
        raise Invalid([Problem("body", f"must have the checksum that {_PART} says")])
    return part


def invoke_headers(
    ptp: Ptp,
    *,
    node: str,
    institution: str,
    message_id: str,
    token: str,
    encapsulated: bool,
) -> dict[str, str]:
    """Return the headers of an invoke. In an encapsulated one the source is also there under its former names.

    ``token`` stands for the container's own, which opens its session here and is not sent to other nodes.
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


def rewritten(
    pieces: list[bytes],
    ptp: Ptp,
    form: Form,
    profile: Profile,
    grpc: bool,
) -> tuple[list[bytes], Ptp, Form]:
    """Return a push as a peer's transport takes it, by gRPC in protobuf. Raises Invalid."""
    if grpc and form is not Form.PROTOBUF:
        push, payload = read_push(pieces, form)
        topic = push.topic if ptp.topic is None else ptp.topic
        head = forms.begin(PushInbound(topic=topic, metadata=push.metadata), payload.size)
        return [head, *payload.last()], ptp, Form.PROTOBUF
    if grpc:
        return pieces, ptp, form
    if profile.bare_payloads and form is not Form.RAW:
        push, payload = read_push(pieces, form)
        return (
            list(payload.last()),
            replace(ptp, topic=push.topic if ptp.topic is None else ptp.topic),
            Form.RAW,
        )
    if profile.encapsulates and form is Form.RAW:
        return _in_json({"topic": ptp.topic}, pieces), ptp, Form.JSON
    return pieces, ptp, form


def encode_envelope(
    pieces: list[bytes],
    metadata: Mapping[str, str],
    form: Form,
) -> list[bytes]:
    """Return the outer message of the encapsulated mode."""
    if form is not Form.JSON:
        return [forms.begin(Inbound(metadata=dict(metadata)), sum(map(len, pieces))), *pieces]
    return _in_json({"metadata": dict(metadata)}, pieces)


def _in_json(fields: dict[str, Any], payload: list[bytes]) -> list[bytes]:
    head = json.dumps(fields).encode("ascii")[:-1] + b', "payload": "'
    body = Pieces(payload)
    return [head, *encoded(body.between(0, len(body), last=True)), b'"}']


def wait_seconds(
    header: str,
    body: float | None,
    query: str | None,
    default: float,
) -> float:
    """Return how long a pop waits, in seconds; the first that is given and not 0 counts. Raises Invalid.

    Header and body are milliseconds, but a value below 1000 is taken as seconds; the query is in seconds.
    """
    for name, value, milliseconds in (
        ("x-ptp-timeout", header, True),
        ("timeout", body, True),
        ("query.timeout", query, False),
    ):
        try:
            number = parse_timeout(value)
        except ValueError:
            problem = Problem(name, "must be a number that is not negative", str(value)[:80])
            raise Invalid([problem]) from None
        if number:
            return (
                number / 1000 if milliseconds and number >= 1000 and number < math.inf else number
            )
    return default


def _values(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], list[str]]:
    """Return the values of raw headers by their plain names, and the names that stand with different values.

    The spelling with hyphens alone counts before any other.
    """
    return _values_of(tuple(headers))


@lru_cache(16)  # several parts of the listener ask about one request
def _values_of(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[dict[str, str], list[str]]:
    plain: list[tuple[str, str]] = []
    underscored: list[tuple[str, str]] = []
    for raw, value in headers:
        if raw[:2].lower() in _BEGINS:
            name = raw.decode("latin-1").lower()
            (underscored if "_" in name else plain).append((name, value.decode("latin-1").strip()))
    found, ambiguous = _named(plain)
    if not underscored:
        return found, ambiguous
    more, others = _named(underscored)
    return {**more, **found}, [*ambiguous, *others]


def _named(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the values of one spelling, former names counting less, and the names with different values.

    An empty value counts as absent; a topic may be empty.
    """
    found: dict[str, str] = {}
    ambiguous: dict[str, None] = {}
    for name, value in pairs:
        key = name.lower().replace("_", "-")
        if not key.startswith(_PREFIX) or not (value or key == f"{_PREFIX}topic"):
            continue
        if found.setdefault(key, value) != value:
            ambiguous[key] = None
    headers = {key.removeprefix(_PREFIX): value for key, value in found.items()}
    former = {new: headers.pop(old) for old, new in _FORMER_NAMES.items() if old in headers}
    return {**former, **headers}, list(ambiguous)
