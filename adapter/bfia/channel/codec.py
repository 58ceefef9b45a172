"""Bodies of the transport channel, both ways: the one module that knows which forms they come in.

The form so far is JSON (v1.2.0) with bytes as Base64. We send ``content`` and ``payload`` with the same bytes,
whatever their size, because deployed readers know one or the other and a message that only fails when it is large
is the worst of errors. A reader that wants to save the transfer asks for one of them with the request header
``x-ptp-content-field: content`` (or ``payload``).

These functions block and, on large bodies, take a noticeable time. They work in slices, and the JSON parser is
never given a long Base64 text, because a parser busy with one text would stop every other thread until its end.
"""

import base64
import binascii
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid

ACCEPTED = "application/json"
SUCCESS = "E0000000000"

_JSON_TYPES = frozenset({"application/json", "text/json"})
_SLICE = 3 * (1 << 18)
_TEXT_SLICE = 4 * (1 << 18)
_LONGEST_TEXT = 4096
_LONG_TEXT = 1 << 16
_MOST_TEXTS = 1000
_MOST_FIELDS = 20_000
_MOST_NUMBERS = 4_000_000
"""how much the parser is given; its time goes with the number of values"""
_BACKSLASH = 0x5C
_FIELDS = ("content", "payload")


class UnknownForm(GatewayError):
    """The body is in a form that this node does not read; the message names those it does."""

    reason = "CODEC"
    code = 400


@dataclass(frozen=True, slots=True)
class Push:
    """A container's message: where it belongs within the session, its bytes, and what the sender says of it."""

    topic: str
    payload: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """The body of pop, peek and release. ``timeout`` is as it was sent, in no known unit; None if absent."""

    topic: str
    timeout: float | None
    topic_given: bool


@dataclass(frozen=True, slots=True)
class Envelope:
    """The outer message of the encapsulated mode."""

    payload: bytes
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a transport answers, whichever spelling it uses."""

    code: str
    message: str
    content: bytes = b""

    @property
    def succeeded(self) -> bool:
        """Tells success from failure; early peers say ``0``."""
        return self.code in (SUCCESS, "0")


def require_json(content_type: str, topic_header: str | None) -> None:
    """Refuse another form than JSON: raises UnknownForm unless a request with these headers has a JSON body.

    Without a Content-Type it has one, except where a topic header says that the body is the bare payload.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _JSON_TYPES or (not kind and topic_header is None):
        return
    if topic_header is not None and "proto" not in kind:
        raise UnknownForm(
            f"a raw body with x-ptp-topic is not read by this node; send {ACCEPTED} with topic and payload in it"
        )
    raise UnknownForm(f"Content-Type {kind!r} is not read by this node; it reads {ACCEPTED}")


def decode_push(body: bytes) -> Push:
    """Reads a push. Raises Invalid with every field that is wrong."""
    said = _mapping(body)
    problems: list[Problem] = []
    found = Push(
        topic=_text(said, "topic", problems),
        payload=_payload(said, problems),
        metadata=_metadata(said, problems),
    )
    if problems:
        raise Invalid(problems)
    return found


def decode_ask(body: bytes) -> Ask:
    """Reads the body of pop, peek or release; an empty body asks for the empty topic. Raises Invalid."""
    said = _mapping(body) if body.strip() else {}
    problems: list[Problem] = []
    topic = _text(said, "topic", problems)
    timeout = _timeout(said.get("timeout"), problems)
    if problems:
        raise Invalid(problems)
    return Ask(topic=topic, timeout=timeout, topic_given=said.get("topic") is not None)


def decode_envelope(body: bytes) -> Envelope:
    """Reads the outer message of the encapsulated mode. Raises Invalid."""
    said = _mapping(body)
    problems: list[Problem] = []
    found = Envelope(payload=_payload(said, problems), metadata=_metadata(said, problems))
    if problems:
        raise Invalid(problems)
    return found


def decode_answer(body: bytes) -> Answer:
    """Reads another transport's answer in any of its spellings. Raises Invalid if it has no code."""
    said = _mapping(body)
    code = said.get("code")
    if not isinstance(code, str | int) or isinstance(code, bool):
        raise Invalid([Problem("code", "must be there, as text", code)])
    message = said.get("message", said.get("msg"))
    problems: list[Problem] = []
    content = _payload(said, problems) if any(said.get(name) for name in _FIELDS) else b""
    if problems:
        raise Invalid(problems)
    return Answer(code=str(code), message=message if isinstance(message, str) else "", content=content)


def encode_answer(
    code: str,
    message: str,
    content: bytes = b"",
    metadata: Mapping[str, str] | None = None,
    content_field: str | None = None,
) -> list[bytes]:
    """Writes an answer as the pieces of its body, in order. ``content_field`` leaves out the other bytes field."""
    head = {"code": code, "message": message, "metadata": dict(metadata or {})}
    text = encode_base64(content)
    pieces = [json.dumps(head).encode("ascii")[:-1]]
    for name in [content_field] if content_field in _FIELDS else _FIELDS:
        pieces += [b', "%s": "' % str(name).encode("ascii"), text, b'"']
    pieces.append(b"}")
    return pieces


def encode_base64(content: bytes) -> bytes:
    """Writes bytes as standard Base64, in slices."""
    if len(content) <= _SLICE:
        return binascii.b2a_base64(content, newline=False)
    view = memoryview(content)
    starts = range(0, len(content), _SLICE)
    return b"".join(binascii.b2a_base64(view[i : i + _SLICE], newline=False) for i in starts)


def decode_base64(text: bytes | memoryview) -> bytes:
    """Reads standard or URL-safe Base64, padded or not, white space ignored. Raises ValueError."""
    try:
        return _decode_strict(text)
    except binascii.Error:
        plain = b"".join(bytes(text).split()).translate(bytes.maketrans(b"-_", b"+/"))
        plain = plain[:-2] + plain[-2:].rstrip(b"=")
        if b"=" in plain:
            raise
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


def _decode_strict(text: bytes | memoryview) -> bytes:
    if len(text) <= _TEXT_SLICE:
        return binascii.a2b_base64(text, strict_mode=True)
    starts = range(0, len(text), _TEXT_SLICE)
    parts = [binascii.a2b_base64(text[i : i + _TEXT_SLICE], strict_mode=True) for i in starts]
    if any(len(part) != _SLICE for part in parts[:-1]):
        raise binascii.Error("padding before the end")
    return b"".join(parts)


def _mapping(body: bytes) -> dict[str, Any]:
    """Reads a JSON object; a long text in it that has no escapes is left as a view on its bytes."""
    short, views = _without_long_texts(body)
    said = _object(short)
    found = {name: views[value] for name, value in said.items() if isinstance(value, str) and value in views}
    if len(found) < len(views):  # a long text stands deeper than the fields we know, or twice
        return _object(body)
    return {**said, **found}


def _object(text: bytes) -> dict[str, Any]:
    if text.count(b":") + text.count(b"[") + text.count(b"{") > _MOST_FIELDS or text.count(b",") > _MOST_NUMBERS:
        rule = f"must not hold more than {_MOST_FIELDS} fields and lists, and {_MOST_NUMBERS} numbers in a list"
        raise Invalid([Problem("body", rule, _shown(text))])
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid([Problem("body", "must be a JSON object", _shown(text))]) from error
    if not isinstance(said, dict):
        raise Invalid([Problem("body", "must be a JSON object", _shown(text))])
    return said


def _without_long_texts(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """Replaces each long text by a name that nobody can guess; returns the rest and what the names stand for."""
    if len(body) <= _LONG_TEXT:
        return body, {}
    view = memoryview(body)
    views: dict[str, memoryview] = {}
    rest: list[bytes] = []
    secret = secrets.token_hex(16)
    kept = position = 0
    for _ in range(_MOST_TEXTS):
        start = body.find(b'"', position) + 1
        end = body.find(b'"', start) if start else -1
        if end < 0 or body[end - 1] == _BACKSLASH:  # perhaps not the end of the text: leave the rest to the parser
            break
        if end - start > _LONG_TEXT and body.find(b"\\", start, end) < 0:
            name = f"{secret}{len(views)}"
            views[name] = view[start:end]
            rest += [body[kept:start], name.encode("ascii")]
            kept = end
        position = end + 1
    return b"".join([*rest, body[kept:]]), views


def _text(said: Mapping[str, Any], name: str, problems: list[Problem]) -> str:
    value = said.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        rule = f"must be text of at most {_LONGEST_TEXT} characters"
        problems.append(Problem(name, rule, type(value).__name__))
        return ""
    if len(value) > _LONGEST_TEXT:
        problems.append(Problem(name, f"must have at most {_LONGEST_TEXT} characters", len(value)))
    return value


def _payload(said: Mapping[str, Any], problems: list[Problem]) -> bytes:
    name = next((name for name in ("payload", "content") if said.get(name) is not None), None)
    if name is None:
        problems.append(Problem("payload", "is required", None))
        return b""
    value = said[name]
    try:
        if isinstance(value, str):
            return decode_base64(value.encode("ascii"))
        if isinstance(value, memoryview):
            return decode_base64(value)
        if isinstance(value, list):
            return bytes([_byte(item) for item in value])
    except ValueError:
        pass
    shown = _shown(value) if isinstance(value, str | memoryview) else type(value).__name__
    problems.append(Problem(name, "must be Base64, or a list of integers from -128 to 255", shown))
    return b""


def _byte(item: Any) -> int:
    if type(item) is int and -128 <= item <= 255:
        return item & 0xFF
    raise ValueError(item)


def _metadata(said: Mapping[str, Any], problems: list[Problem]) -> dict[str, str]:
    value = said.get("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.append(Problem("metadata", "must be an object of texts", type(value).__name__))
        return {}
    found: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, str):
            found[name] = item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            found[name] = str(item)
        elif item is not None:
            problems.append(Problem(f"metadata.{_shown(name)}", "must be text", type(item).__name__))
    return found


def _timeout(value: Any, problems: list[Problem]) -> float | None:
    try:
        return parse_timeout(value)
    except ValueError:
        problems.append(Problem("timeout", "must be a number that is not negative", _shown(str(value))))
        return None


def parse_timeout(value: Any) -> float | None:
    """Reads a timeout's number, also from text; None and empty text are None. Raises ValueError."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    if not number >= 0:
        raise ValueError(value)
    return number


def _shown(value: str | bytes | memoryview) -> str:
    start = value[:80]
    text = start if isinstance(start, str) else bytes(start).decode("utf-8", "replace")
    return text.encode("utf-8", "replace").decode() + ("…" if len(value) > 80 else "")
