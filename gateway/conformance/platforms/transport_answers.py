"""Responses of a transport: their code and content, in JSON or protobuf, and what they mean."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from adapter.bfia.channel.codec import SUCCESS
from adapter.bfia.channel.ptp_pb2 import (  # type: ignore[attr-defined]
    LegacyOutbound,
    TransportOutbound,
)
from gateway.conformance.platforms.answers import FATE_UNKNOWN_PATH, read_answer
from gateway.conformance.platforms.findings import (
    Exchange,
    Finding,
    assume,
    demand,
    demand_except,
    holds,
)

LEGACY_SUCCESS = "0"  # the code of transports before version 1.2
_CODE_START = "E0"  # the beginning of this layer's codes
_LEAST_ERROR_STATUS = 400  # of HTTP
_INTERNAL_ERROR = 500  # the least such status of HTTP


@dataclass(frozen=True)
class TransportAnswer:
    """A response of a transport, as far as it can be read."""

    exchange: Exchange
    code: str = ""  # empty without one
    content: bytes = b""  # of the message that was handed out; empty without one

    @property
    def summary(self) -> str:
        """The response in one line, for people."""
        if self.exchange.failure:
            return self.exchange.failure
        return f"HTTP {self.exchange.status}, code {self.code or 'absent'}"


def read_transport_answer(exchange: Exchange) -> TransportAnswer:
    """Read a response of a transport."""
    if "protobuf" in exchange.headers.get("content-type", ""):
        return _read_protobuf(exchange)
    try:
        value = json.loads(exchange.received)
    except (ValueError, RecursionError):
        return TransportAnswer(exchange)
    if not isinstance(value, Mapping):
        return TransportAnswer(exchange)
    code = str(value.get("code", ""))
    if code == str(FATE_UNKNOWN_PATH):
        code = ""
    content = value.get("content") or value.get("payload") or ""
    return TransportAnswer(exchange, code, _bytes_of(content))


def _bytes_of(text: Any) -> bytes:
    """Return the bytes of a Base64 text; b"" for any other value."""
    try:
        return b64decode(text)
    except (TypeError, ValueError):
        return b""


def _read_protobuf(exchange: Exchange) -> TransportAnswer:
    """Read a response in protobuf: of version 1.2.0, else of earlier ones."""
    for message_type in (TransportOutbound, LegacyOutbound):
        outbound: Any = message_type()
        try:
            outbound.ParseFromString(exchange.received)
        except DecodeError:
            continue
        code = str(outbound.code)
        if code.startswith(_CODE_START) or code == LEGACY_SUCCESS:
            return TransportAnswer(exchange, code, bytes(outbound.payload))
    return TransportAnswer(exchange)


def code_of(exchange: Exchange) -> str:
    """Return the transport's code in a response; empty if there is none."""
    return read_transport_answer(exchange).code


def summary_of(exchange: Exchange) -> str:
    """Return a response in one line, for people."""
    return read_transport_answer(exchange).summary


def assume_served(exchange: Exchange) -> None:
    """Raise `CannotTry` if the node does not serve the path of a message."""
    is_served = bool(code_of(exchange)) or not read_answer(exchange).is_unserved
    assume(is_served, f"the node does not serve {exchange.target}")


def judge_delivery(exchange: Exchange, form: str) -> Finding:
    """Judge the response to a message that has to be stored.

    Raises `CannotTry`, `Deviation` or `Broken` if it was not.
    """
    code = code_of(exchange)
    assume_served(exchange)
    text = f"{form}: the success code is {code}, not {SUCCESS}"
    demand_except("kuscia", code != LEGACY_SUCCESS, text)
    demand(code == SUCCESS, f"{form}: {summary_of(exchange)}")
    return holds(f"{form}: stored")


def judge_refusal(exchange: Exchange, what: str) -> Finding:
    """Judge the response to a message that has to be refused; raises `Broken` if it was not."""
    assume_served(exchange)
    status = exchange.status or 0
    demand(status > 0, f"{what}: {exchange.failure}")
    demand(status < _INTERNAL_ERROR, f"{what}: HTTP {status}")
    demand(code_of(exchange) not in (SUCCESS, LEGACY_SUCCESS), f"{what}: stored")
    has_code = bool(code_of(exchange)) or status >= _LEAST_ERROR_STATUS
    demand(has_code, f"{what}: no code")
    return holds(f"{what}: refused, {summary_of(exchange)}")
