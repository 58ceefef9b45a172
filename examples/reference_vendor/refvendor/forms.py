"""The forms in which the transport module takes messages and answers; `CHANNEL_FORM` chooses one.

Every form turns the fields of a call (``topic``, ``payload``, ``metadata``, ``timeout`` in milliseconds) into
headers and a body, and an answer into ``code``, ``message`` and ``content``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

_VARINT, _BYTES = 0, 2


class Json:
    """JSON, with payloads in Base64."""

    name = "json"

    def request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes]:
        """Query, headers and body of a call."""
        body = dict(fields)
        if "payload" in body:
            body["payload"] = base64.b64encode(body["payload"]).decode()
        return (
            "",
            {"Content-Type": "application/json"},
            json.dumps(body, separators=(",", ":")).encode(),
        )

    def answer(self, content: bytes) -> Any:
        """What an answer says. Raises ValueError or RecursionError if it is none."""
        return json.loads(content)


class Protobuf:
    """The standard's messages in protobuf, written by hand: they are small."""

    name = "protobuf"
    _content, _code, _message = 2, 3, 4

    def request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes]:
        """Query, headers and body of a call."""
        body = _field(1, fields["topic"].encode())
        if "payload" in fields:
            body += _field(2, fields["payload"])
            for key, value in fields["metadata"].items():
                body += _field(3, _field(1, key.encode()) + _field(2, value.encode()))
        elif "timeout" in fields:
            body += _varint(2 << 3 | _VARINT) + _varint(fields["timeout"])
        return "", {"Content-Type": "application/x-protobuf"}, body

    def answer(self, content: bytes) -> Any:
        """What an answer says. Raises ValueError if it is none."""
        found = dict(_fields(content))
        names = {
            "content": self._content,
            "code": self._code,
            "message": self._message,
        }
        texts = {name: found[number] for name, number in names.items() if number in found}
        return {
            name: value if name == "content" else value.decode() for name, value in texts.items()
        }


class Bare(Protobuf):
    """The bare payload, its topic in a header; responses have the protobuf layout from before v1.2.0."""

    name = "bare"
    _content, _code, _message = 1, 2, 3

    def request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes]:
        """Query, headers and body of a call."""
        headers = {"x-ptp-topic": fields["topic"], "Content-Type": "application/octet-stream"}
        if "payload" in fields:
            # identifies a repeated push: a bare payload has no metadata
            headers["x-ptp-message-id"] = fields["metadata"]["sequence"]
        query = f"?timeout={fields['timeout'] / 1000:g}" if "timeout" in fields else ""
        return query, headers, fields.get("payload", b"")


class Grpc(Protobuf):
    """The same messages over gRPC, at the same address; needs the package grpcio."""

    name = "grpc"
    SERVICE = "/org.ppc.ptp.PrivateTransferTransport/"


FORMS = {form.name: form for form in (Json(), Protobuf(), Bare(), Grpc())}


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low = b""
    while value > 0x7F:
        low += bytes([value & 0x7F | 0x80])
        value >>= 7
    return low + bytes([value])


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of bytes and text in a message of protobuf; the answers of a transport have no other."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while at < len(body):
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a message of protobuf that ends early")

    while at < len(body):
        tag = number()
        length = number()
        if tag & 7 != _BYTES or at + length > len(body):
            raise ValueError("not an answer of the transport in protobuf")
        yield tag >> 3, body[at : at + length]
        at += length
