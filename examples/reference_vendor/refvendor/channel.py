"""Speaks HTTP or gRPC with the platform's transport module: one call at a time on a kept connection."""

from __future__ import annotations

import base64
import http.client
import importlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from refvendor.contract import BadParameters, Log, PeerTimeout, VendorError
from refvendor.forms import FORMS, Grpc, Json

PATH = "/v1/interconn/chan/"
SUCCESS = ("E0000000000", "0", 0)
NOT_YET = "E0000000601"
TRY_AGAIN = ("E0000000607", "E0000000700")
"""network unreachable, buffer full: both pass"""
CALL_PAUSES = 0.05, 2.0
"""seconds: the first and the longest pause between two tries of a call"""
_CALL_SECONDS, _ATTEMPT_SECONDS = 60.0, 2.0
_SAY_EVERY = 30.0


class ChannelRefused(VendorError):
    """The transport module answered with a code that no repetition cures."""


class Deadline:
    """The moment until which a run may wait for others."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds that remain; zero when there are none."""
        return max(0.0, self._end - self._clock())


class Caller:
    """Calls the transport module and repeats what may pass until the deadline. For one thread at a time."""

    def __init__(
        self,
        address: str,
        deadline: Deadline,
        log: Log,
        sleep: Callable[[float], None] = time.sleep,
        form: str = Json.name,
    ):
        self._form = FORMS[form]
        self._rpc: Any = None
        self._host, self._port, self._prefix = parse_address(address)
        self._deadline = deadline
        self._log = log
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self,
        verb: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        waits: float = 0.0,
    ) -> dict[str, Any]:
        """The transport's answer to ``push``, ``pop`` or ``release``.

        ``waits`` is the time in seconds that the transport itself may hold the call. Refused and broken
        connections, HTTP 5xx, unreachable peers and full buffers are tried again. Raises `PeerTimeout` at
        the deadline and `ChannelRefused` for any other answer than success.
        """
        pause, logged = CALL_PAUSES[0], -_SAY_EVERY
        started = time.monotonic()
        while True:
            limit = min(_CALL_SECONDS, max(1.0, self._deadline.left()))
            kept = self._connection is not None
            trouble, answer = self._try(verb, headers, body, waits + limit)
            if trouble is None:
                return answer
            if kept and self._connection is None:
                continue  # the other side may only have closed an idle connection
            elapsed = time.monotonic() - started
            if elapsed - logged >= _SAY_EVERY:
                self._log(
                    "warning",
                    "transport does not deliver yet, trying again",
                    call=verb,
                    cause=trouble,
                )
                logged = elapsed
            left = self._deadline.left()
            if left <= 0:
                raise PeerTimeout(
                    f"transport {verb}: no success before the task's deadline, last: {trouble}"
                )
            self._sleep(min(left, pause * random.uniform(0.8, 1.2)))
            pause = min(CALL_PAUSES[1], pause * 2)

    def attempt(
        self,
        verb: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
    ) -> str | None:
        """Call once; the trouble met, or None."""
        try:
            return self._try(verb, headers, body, _ATTEMPT_SECONDS)[0]
        except ChannelRefused as error:
            return str(error)

    def close(self) -> None:
        """Close the connection; the next call makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._rpc is not None:
            self._rpc.close()
            self._rpc = None

    def _try(
        self,
        verb: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any],
        seconds: float,
    ) -> tuple[str | None, dict[str, Any]]:
        """The trouble that may pass, or None and the answer."""
        try:
            query, more, data = self._form.request(body)
            if isinstance(self._form, Grpc):
                status, content = self._call(verb, headers, data, seconds)
            else:
                status, content = self._exchange(verb + query, {**headers, **more}, data, seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return f"{type(error).__name__}: {error}", {}
        if status >= 500:
            return f"HTTP {status}", {}
        answer = self._answer(verb, status, content)
        code = answer.get("code")
        if code in TRY_AGAIN:
            return f"{code} {_words(answer)}".strip(), {}
        if code in SUCCESS or code == NOT_YET:
            return None, answer
        raise ChannelRefused(f"transport {verb}: {code} {_words(answer)}".strip())

    def _exchange(
        self,
        verb: str,
        headers: Mapping[str, str],
        data: bytes,
        seconds: float,
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port)
        self._connection.timeout = seconds
        if self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        self._connection.request("POST", self._prefix + PATH + verb, data, dict(headers))
        response = self._connection.getresponse()
        return response.status, response.read()

    def _call(
        self,
        verb: str,
        headers: Mapping[str, str],
        data: bytes,
        seconds: float,
    ) -> tuple[int, bytes]:
        grpc: Any = importlib.import_module("grpc")  # only this form needs it
        if self._rpc is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
            self._rpc = grpc.insecure_channel(f"{self._host}:{self._port}", options=options)
        metadata = [(name.lower(), value) for name, value in headers.items()]
        try:
            return 200, self._rpc.unary_unary(Grpc.SERVICE + verb)(
                data, metadata=metadata, timeout=seconds
            )
        except grpc.RpcError as error:
            trouble = f"gRPC {error.code().name}: {error.details()}"
            passes = error.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if passes:
                raise OSError(trouble) from error
            raise ChannelRefused(f"transport {verb}: {trouble}") from error

    def _answer(
        self,
        verb: str,
        status: int,
        content: bytes,
    ) -> dict[str, Any]:
        try:
            answer = self._form.answer(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or "code" not in answer:
            raise ChannelRefused(
                f"transport {verb}: HTTP {status} without a code in {self._form.name}"
            )
        return answer


def parse_address(text: str) -> tuple[str, int, str]:
    """Host, port and path prefix of ``system.transport``: ``host:port``, or the same as an http URL."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme != "http" or not host or parts.query or (port is None and "://" not in text):
        raise BadParameters(f"system.transport: must be host:port, got {text!r}")
    return host, port or 80, parts.path.rstrip("/")


def payload_of(answer: Mapping[str, Any]) -> bytes:
    """The bytes that an answer carries; none for an empty one. Raises `ChannelRefused` if they do not decode."""
    content = answer.get("content") or b""
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (ValueError, TypeError) as error:
        raise ChannelRefused("transport pop: content is not Base64") from error


def _words(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or answer.get("msg") or "")[:300]
