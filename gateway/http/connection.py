"""A client's connection to a listener: HTTP/1.1 as uvicorn parses it, in a bounded head and without upgrades."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.http.streamed_bodies import READ, WRITE, Rest, written

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""seconds between two looks at a response's head that is not written yet"""
HEAD_SECONDS = 10.0
"""for a TLS handshake, and for a request's head"""
_REST_SECONDS = 30.0
"""for the rest of a body whose request is answered already"""
_MOST_HEAD = 64 * 1024
"""bytes of a request line with its headers"""

_HTTP2 = b"PRI * HTTP/2.0"
"""how a client that speaks HTTP/2 without TLS begins, as gRPC's do"""


class Http2(Protocol):
    """A server of HTTP/2 inside."""

    def connected(
        self, scope: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to it; ``scope`` is what the requests of the connection have in theirs. Raises GatewayError."""
        ...

    async def close(self) -> None:
        """End all connections."""
        ...


class _HeadTooLarge(Exception):
    pass


class _Tunnel(Exception):
    """A client asks for a connection to elsewhere (CONNECT)."""


class Connection(HttpToolsProtocol):
    """One connection of a listener.

    Requests by TLS carry the client's certificate as the ASGI extension ``tls`` says, as ``client_cert_chain``.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        """Take what uvicorn's protocol takes."""
        super().__init__(config, server_state, app_state)
        self.lost = asyncio.Event()
        self.http2: Http2 | None = None
        self._passing: asyncio.Task[None] | None = None
        self._extensions: dict[str, Any] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._read_whole = True
        self._ignoring_upgrade = False
        """the parser is at the end of a head that is parsed again"""
        self._left: int | None = None
        """bytes of the body that were not received yet, where its head says how many it has"""
        self._head = 0
        self._unparsed = 0
        """bytes since the parser last found anything"""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Read the client's certificate once for all requests of the connection."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            shown = tls.getpeercert(binary_form=True)
            chain = [] if shown is None else [ssl.DER_cert_to_PEM_cert(shown)]
            self._extensions = {"tls": {"client_cert_chain": chain}}
        else:
            self._extensions = {WRITE: self._written, READ: self._rest}
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        super().connection_lost(exc)
        self._watch_no_longer()
        self.lost.set()

    def shutdown(self) -> None:
        """Close when idle; by TLS without a farewell, since clients do not read from idle connections."""
        super().shutdown()
        if "tls" in self._extensions and self.transport.is_closing():
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits of size and time while no request is being answered."""
        if self.http2 is not None and not self._unparsed and data.startswith(_HTTP2):
            self._pass_on(self.http2, data)
            return
        self.http2 = None
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        if self._unparsed > _MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("")
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch_no_longer()
        elif self._deadline is None:
            self._watch()

    def _parse(self, data: bytes) -> None:
        """Parse on. Raises `httptools.HttpParserError`.

        No upgrade is offered here (RFC 9110, 7.8), but the parser ends a request that asks for one at its head:
        its body would be the next request. A new parser gets the head without the wish, and whatever follows.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self._ignoring_upgrade = False
            self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _pass_on(self, server: Http2, begun: bytes) -> None:
        """Leave the connection to a server of HTTP/2."""
        self._watch_no_longer()
        reader = asyncio.StreamReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.connections.discard(self)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        self._passing = self.loop.create_task(self._passed(server, begun, reader, writer))

    async def _passed(
        self,
        server: Http2,
        begun: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            scope = {
                "client": self.client,
                "scheme": self.scheme,
                "extensions": self._extensions or {},
            }
            async with server.connected(scope) as (inner, outer):
                outer.write(begun)
                await asyncio.gather(_copy(reader, outer), _copy(inner, writer))
        except GatewayError as error:
            log.warning("a connection by HTTP/2 is refused", extra={"error": error.message})
        except OSError as error:
            log.debug("a connection by HTTP/2 ended", extra={"error": str(error)})
        finally:
            writer.close()
            self.lost.set()

    async def _written(self, pieces: Iterator[bytes]) -> None:
        """Write what is left of a response past the event loop; a connection on which not all was is over."""
        cycle, pause = self.cycle, 0.0
        assert cycle is not None and cycle.response_started
        while self.transport.get_write_buffer_size():  # the head goes first
            await asyncio.sleep(pause)
            pause = _PAUSE
        own = self.transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(own.fileno())) as client:
            if not await written(client, pieces, self.lost.is_set):
                self.transport.abort()
        cycle.expected_content_length = 0

    def _rest(self) -> Rest | None:
        """Leave the rest of a body to the caller, where its length is known; then the connection is over."""
        cycle = self.cycle
        if not self._left or cycle is None or cycle.disconnected:
            return None
        self.flow.pause_reading()
        begun, cycle.body, cycle.keep_alive = bytes(cycle.body), bytearray(), False
        own = self.transport.get_extra_info("socket")
        return Rest(socket.socket(fileno=os.dup(own.fileno())), begun, self._left)

    async def end(self) -> None:
        """End what is passed on; for others the server closes."""
        if self._passing is not None:
            self._passing.cancel()
            await asyncio.wait([self._passing])

    def _watch(self) -> None:
        seconds = HEAD_SECONDS if self._read_whole else _REST_SECONDS
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _watch_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_message_begin(self) -> None:
        """Begin the scope of a request."""
        self._head = self._unparsed = 0
        super().on_message_begin()
        self.scope["extensions"] = self._extensions

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._unparsed = 0
        self._head += len(url)
        if self._head > _MOST_HEAD:
            raise _HeadTooLarge  # the parser turns it into an error of its own, which is answered below
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; of a trailer only the size counts, as it comes after what was checked."""
        self._unparsed = 0
        self._head += len(name) + len(value)
        if self._head > _MOST_HEAD:
            raise _HeadTooLarge
        if self._read_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, or have the head of a request that asks for an upgrade parsed once more."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Tunnel
            self._ignoring_upgrade = True
            return
        self._read_whole = False
        length = dict(self.headers).get(b"content-length", b"")
        self._left = int(length) if length.isdigit() else None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        if self._left is not None:
            self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        if self._ignoring_upgrade:
            return
        self._unparsed = 0
        self._read_whole = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close: with 431 where it is too large a head."""
        if self._head <= _MOST_HEAD and self._unparsed <= _MOST_HEAD:
            super().send_400_response(msg)
            return
        text = b"the request's headers have more than %d bytes" % _MOST_HEAD
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
        self.transport.write(
            b"%scontent-length: %d\r\nconnection: close\r\n\r\n%s" % (head, len(text), text)
        )
        self.transport.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
