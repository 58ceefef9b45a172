"""Posts to peers over kept connections of HTTP/1.1, at a twentieth of what a general client costs (ADR 33)."""

import asyncio
import ssl
import time
from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from adapter.bfia.connections import ResponseReader, request_head
from gateway.domain.problems import Problem
from gateway.errors import Invalid

_MOST = 256
_KEPT = 64
_KEPT_SECONDS = 4.0
_CONNECT_SECONDS = 5.0
_SLICE = 1 << 18
_LARGEST_ANSWER = 1 << 20


class BadAddress(ValueError):
    """An address that cannot be used."""


class Answered(NamedTuple):
    """What a peer responded: the status, the Content-Type, and the begin of the body."""

    status: int
    kind: str
    content: bytes


class Origin(NamedTuple):
    """Where connections lead to."""

    host: str
    port: int
    secure: bool
    name: str | None


class Wires:
    """The connections by one TLS context. Belongs to one event loop; close them there."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        self._verify = verify
        self._places: defaultdict[Origin, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_MOST)
        )
        self._idle: defaultdict[Origin, list[_Wire]] = defaultdict(list)
        self._closed = False

    async def post(
        self,
        url: str,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        seconds: float,
        name: str | None = None,
    ) -> Answered:
        """Send a body, which is in pieces, and return the response. ``seconds``: how long the peer may pause.

        ``name`` is what the peer's certificate bears, where that is not the host.

        Raises BadAddress, Invalid for a header that would break the line, and OSError where there was no response.
        """
        host, port, secure, netloc, path = _parsed(url)
        origin = Origin(host, port, secure, name)
        head = _head(netloc, path, headers, sum(map(len, body)))
        async with self._places[origin]:
            wire = self._kept(origin) or await self._opened(origin, min(_CONNECT_SECONDS, seconds))
            try:
                answer = await wire.post(head, body, seconds)
            except BaseException:
                wire.close()
                raise
            idle = self._idle[origin]
            if wire.reusable and not self._closed and len(idle) < _KEPT:
                idle.append(wire)
            else:
                wire.close()
            return answer

    def _kept(self, origin: Origin) -> "_Wire | None":
        idle = self._idle[origin]
        while idle:
            wire = idle.pop()
            if wire.usable():
                return wire
            wire.close()
        return None

    async def _opened(self, origin: Origin, seconds: float) -> "_Wire":
        name = (origin.name or origin.host) if origin.secure else None
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(
                origin.host,
                origin.port,
                limit=_SLICE,
                ssl=self._verify if origin.secure else None,
                server_hostname=name,
            )
        return _Wire(reader, writer)

    def close(self) -> None:
        """Close what is kept, and keep nothing more: a request may still be under way."""
        self._closed = True
        for idle in self._idle.values():
            for wire in idle:
                wire.close()
        self._idle.clear()


class _Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._used = time.monotonic()
        self.reusable = False

    def usable(self) -> bool:
        return time.monotonic() - self._used < _KEPT_SECONDS and not self._reader.at_eof()

    def close(self) -> None:
        self._writer.transport.abort()

    async def post(
        self,
        head: bytes,
        pieces: list[bytes],
        seconds: float,
    ) -> Answered:
        self.reusable = False
        async with asyncio.timeout(seconds) as deadline:
            sent = await self._send(head, pieces, seconds, deadline)
            response = ResponseReader(_LARGEST_ANSWER)
            while not response.complete:
                data = await self._reader.read(_SLICE)
                deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                response.feed(data)
        self._used = time.monotonic()
        self.reusable = sent and response.keep
        return Answered(
            response.status, response.headers.get("content-type", ""), bytes(response.content)
        )

    async def _send(
        self,
        head: bytes,
        pieces: list[bytes],
        seconds: float,
        deadline: asyncio.Timeout,
    ) -> bool:
        """Send a request; False where the peer closed before the end, as it may after a refusal."""
        if sum(map(len, pieces)) <= _SLICE:
            self._writer.write(b"".join([head, *pieces]))
            return True
        try:
            self._writer.write(head)
            for piece in pieces:
                view = memoryview(piece)
                for at in range(0, len(piece), _SLICE):
                    self._writer.write(view[at : at + _SLICE])
                    await self._writer.drain()
                    deadline.reschedule(asyncio.get_running_loop().time() + seconds)
        except ConnectionError:
            return False
        return True


@lru_cache(1024)
def _parsed(url: str) -> tuple[str, int, bool, bytes, bytes]:
    try:
        parts = urlsplit(url)
        secure = {"http": False, "https": True}[parts.scheme]
        port = parts.port or (443 if secure else 80)
        host = parts.hostname or ""
        netloc, path = parts.netloc.rpartition("@")[2].encode("ascii"), parts.path.encode("ascii")
    except (KeyError, ValueError) as error:
        raise BadAddress(str(error)) from error
    if not host:
        raise BadAddress("it names no host")
    return host, port, secure, netloc, path


def _head(
    netloc: bytes,
    path: bytes,
    headers: list[tuple[bytes, bytes]],
    size: int,
) -> bytes:
    try:
        return request_head(b"POST " + path, netloc, [(b"accept", b"*/*"), *headers], size)
    except ValueError as error:
        rule = "must not have control characters; a topic becomes one"
        raise Invalid([Problem("headers", rule)]) from error
