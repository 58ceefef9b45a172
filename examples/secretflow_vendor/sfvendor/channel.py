"""A task's access to the node's channel, as SecretFlow's client needs it.

SecretFlow's client waits two seconds for a message, reads the response too late on a busy machine
and has no means to repeat the request, so that the message is lost. It gives up a push after
seconds, even if the gateway is being restarted. `Channel` repeats failed requests.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SUCCESS = "E0000000000"
# The other node is unreachable, or too many messages are unread: repeated a little later.
PASSING_CODES = ("E0000000607", "E0000000700")
POP_SECONDS = 30  # one request's share of a wait; a gateway that stops ends it
TIMEOUT = 600  # seconds during which a gateway or a partner may be away
PAUSE = 0.2  # seconds before a request is repeated

# Path, body and headers -> the response's body. Raises `OSError` if there is none.
Post = Callable[[str, bytes, Mapping[str, str]], bytes]


class Refused(Exception):
    """The gateway refuses a request for good."""


@dataclass(frozen=True)
class Outbound:
    """A response of the channel, in the form that a client without a content type gets."""

    payload: bytes
    code: str
    message: str

    def encode(self) -> bytes:
        """Return the response as a message of Protocol Buffers."""
        fields = (self.payload, self.code.encode(), self.message.encode())
        parts = []
        for number, value in enumerate(fields, start=1):
            if value:
                parts += [bytes([number << 3 | 2]), _encode_number(len(value)), value]
        return b"".join(parts)


def decode(content: bytes) -> Outbound:
    """Return a response from a message of Protocol Buffers. Raises `ValueError`."""
    fields = {
        1: b"",
        2: b"",
        3: b"",
    }
    place = 0
    try:
        while place < len(content):
            number = content[place] >> 3
            size, start = _decode_number(content, place + 1)
            place = start + size
            if number not in fields or place > len(content):
                raise ValueError("not a response of the channel")
            fields[number] = content[start:place]
    except IndexError:
        raise ValueError("a response of the channel is incomplete") from None
    return Outbound(
        payload=fields[1],
        code=fields[2].decode(),
        message=fields[3].decode(),
    )


def _encode_number(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _decode_number(
    content: bytes,
    place: int,
) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    number = 0
    shift = 0
    while True:
        digit = content[place]
        place += 1
        number |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return number, place


@dataclass(frozen=True)
class Channel:
    """The node's channel, as this task uses it."""

    post: Post
    sleep: Callable[[float], None] = time.sleep

    def push(
        self,
        body: bytes,
        headers: Mapping[str, str],
    ) -> bytes:
        """Send a message; a repeated one is stored once. Raises `Refused`."""
        headers = {
            **headers,
            "x-ptp-message-id": uuid.uuid4().hex,
        }
        return self._call("push", body, headers).encode()

    def pop(
        self,
        headers: Mapping[str, str],
    ) -> bytes:
        """Return the next message of a topic, or nothing after a while. Raises `Refused`."""
        headers = {
            **headers,
            "x-ptp-pop-id": uuid.uuid4().hex,
        }
        return self._call(f"pop?timeout={POP_SECONDS}", b"", headers).payload

    def _call(
        self,
        operation: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Outbound:
        """Return the response to a request, which is repeated while nobody can take it."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                content = self.post(
                    f"/v1/interconn/chan/{operation}",
                    body,
                    headers,
                )
                response = decode(content)
            except (OSError, ValueError) as error:
                is_passing = True
                failure = str(error)
            else:
                if response.code == SUCCESS:
                    return response
                is_passing = response.code in PASSING_CODES
                failure = f"{response.code} {response.message}"
            if not is_passing or time.monotonic() > deadline:
                raise Refused(f"{operation} of {headers.get('x-ptp-topic')}: {failure}")
            self.sleep(PAUSE)
