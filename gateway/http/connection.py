"""A client's connection to a listener: uvicorn's HTTP/1.1 with limits.

The only upgrade is that to a WebSocket for a link, at the listener for peers.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.domain.links.frames import LINK_PATH
from gateway.errors import GatewayError
from gateway.http.streamed_bodies import READ, WRITE, Rest, write_pieces
from gateway.links.accepting import Acceptor, Arrival
from gateway.links.link import LinkOrigin

log = logging.getLogger(__name__)

_PAUSE = 0.1  # seconds between two looks whether a response's head has been written
HEAD_SECONDS = 10.0  # limit of a TLS handshake, and again of the head of each request
_REST_SECONDS = 30.0  # limit of the rest of a request's body after the response to it
_MOST_HEAD = 64 * 1024  # bytes of a request line together with its headers
_COPIED_BYTES = 64 * 1024  # bytes of HTTP/2 that are copied at a time

_HTTP2 = b"PRI * HTTP/2.0"  # first bytes of HTTP/2 without TLS, as gRPC clients send them


# ASGI extension of a request that came over a link: the `LinkOrigin` of the link.
LINK = "link"


class Http2(Protocol):
    """A server of HTTP/2 in this process."""

    def connected(
        self, scope: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Return a connection to it, as a reader and a writer of bytes.

        The entries of ``scope`` become part of the ASGI scope of each request of the connection.
        Raises `GatewayError`.
        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...


class _HeadTooLarge(Exception):
    """Ends the parsing of a head that is too large."""


class _Tunnel(Exception):
    """A client requests a tunnel to another server (CONNECT)."""


class Connection(HttpToolsProtocol):
    """One connection of a listener.

    Requests over TLS have the client's certificate as ``client_cert_chain`` of the ASGI extension
    ``tls``. Those over a link have the link's, and its origin as the extension `LINK`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.lost = asyncio.Event()  # set when the connection has ended
        # Set by the listener if this node serves HTTP/2. Becomes None as soon as the client's first
        # bytes are something else.
        self.http2: Http2 | None = None
        self.acceptor: Acceptor | None = None  # of links; None: the listener takes none
        self.link: LinkOrigin | None = None  # None: the connection is not a stream of a link
        # Copies the bytes of HTTP/2, or carries a link.
        self._passing: asyncio.Task[None] | None = None
        self._extensions: dict[str, Any] = {}  # of ASGI, for every request
        self._deadline: asyncio.TimerHandle | None = None
        self._is_body_complete = True  # False while a request's body is being received
        # True from the end of a head that asks for an upgrade until that head is parsed again.
        self._ignoring_upgrade = False
        # Bytes of the body that have not been received yet; None without a content-length.
        self._missing_bytes: int | None = None
        self._head_size = 0  # bytes of the request line and the headers so far
        self._unparsed = 0  # bytes received since the parser last called back

    # The narrower type of the parameter is uvicorn's.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set the requests' extensions: the certificate or, without TLS, `WRITE` and `READ`."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            self._extensions = {
                WRITE: self._write_rest,
                READ: self._rest_of_body,
            }
        else:
            self._extensions = {"tls": {"client_cert_chain": _client_chain(tls)}}
        if self.link is not None:
            self._note_link(self.link)
        self._start_deadline()

    def _note_link(self, link: LinkOrigin) -> None:
        """Let requests appear as those of the link's other end."""
        host, _, port = link.address.rpartition(":")
        self.client = (host, int(port))
        self._extensions[LINK] = link
        if link.certificates:
            self._extensions["tls"] = {"client_cert_chain": list(link.certificates)}

    def connection_lost(self, exc: Exception | None) -> None:
        """Set ``lost``."""
        super().connection_lost(exc)
        self._cancel_deadline()
        self.lost.set()

    def shutdown(self) -> None:
        """Close an idle connection.

        Over TLS it is aborted: idle clients do not read the close message of TLS, and the server
        would wait for their response to it.
        """
        super().shutdown()
        if "tls" in self._extensions and self.transport.is_closing():
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse data within the limits of size and time, or pass a connection by HTTP/2 on."""
        if self.http2 is not None and data.startswith(_HTTP2):
            self._pass_on(self.http2, data)
            return
        self.http2 = None
        self._unparsed += len(data)
        self._unset_keepalive_if_required()  # ends uvicorn's limit for an idle connection
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        # One header, or one size line of a chunk, is longer than the limit: the parser has not
        # called back since its beginning.
        is_stuck_in_one_part = self._unparsed > _MOST_HEAD
        if is_stuck_in_one_part and not self.transport.is_closing():
            self.send_400_response("")  # becomes 431, which has its own text
        if self._passing is None:  # a link has no deadline
            self._update_deadline()

    def _update_deadline(self) -> None:
        """Limit the time in which a whole head, or the rest of a body, has to arrive.

        Further bytes do not extend the time. There is no limit while the client waits for a
        response.
        """
        waits_for_response = self.cycle is not None and not self.cycle.response_complete
        if waits_for_response:
            self._cancel_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def _parse(self, data: bytes) -> None:
        """Parse data, ignoring requests for an upgrade (RFC 9110, 7.8).

        The parser ends such a request at its head, so that its body would be the next request.
        Therefore a new parser gets the head without the upgrade, and then the rest. Raises
        `httptools.HttpParserError`.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]  # the bytes after the head, for the next turn
            if self.acceptor is not None and self._asks_for_link():
                self._begin_link(self.acceptor, self._head(self.headers) + data)
                return
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self._ignoring_upgrade = False
            self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        """Return the head of the request that was just parsed, without its header ``upgrade``."""
        return self._head([pair for pair in self.headers if pair[0] != b"upgrade"])

    def _head(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the head of the request that was just parsed, with these headers."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in headers]
        return b"\r\n".join([*lines, b"", b""])

    def _asks_for_link(self) -> bool:
        """Return whether the request that was just parsed asks for a link."""
        return self.url.partition(b"?")[0] == LINK_PATH.encode()

    def _begin_link(self, acceptor: Acceptor, head: bytes) -> None:
        """Leave the connection to the acceptor of links; ``head`` has all bytes received."""
        reader, writer = self._leave()
        chain = self._extensions.get("tls", {}).get("client_cert_chain", ())
        arrival = Arrival(
            reader,
            writer,
            head,
            self.scope,
            chain,
        )
        self._passing = self.loop.create_task(acceptor.serve(arrival))
        self._passing.add_done_callback(lambda _: self.lost.set())

    def _leave(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """End HTTP/1.1 on the connection; return it as a reader and a writer of bytes."""
        self._cancel_deadline()
        reader = asyncio.StreamReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(
            reader,
            loop=self.loop,
        )
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.connections.discard(self)  # `end` closes it; uvicorn would wait for it in vain
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, self.loop)

    def _pass_on(self, server: Http2, first_data: bytes) -> None:
        """Leave the connection to a server of HTTP/2."""
        reader, writer = self._leave()
        self._passing = self.loop.create_task(
            self._copy_both_ways(server, first_data, reader, writer)
        )

    async def _copy_both_ways(
        self,
        server: Http2,
        first_data: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Connect the client with the server of HTTP/2 until one of them closes the connection."""
        scope = {
            "client": self.client,
            "scheme": self.scheme,
            "extensions": self._extensions,
        }
        try:
            async with server.connected(scope) as (server_reader, server_writer):
                server_writer.write(first_data)
                await asyncio.gather(
                    _copy(reader, server_writer),
                    _copy(server_reader, writer),
                )
        except GatewayError as error:
            log.warning(
                "a connection by HTTP/2 is refused",
                extra={"error": error.message},
            )
        except OSError as error:
            log.debug(
                "a connection by HTTP/2 ended",
                extra={"error": str(error)},
            )
        finally:
            writer.close()
            self.lost.set()

    async def _write_rest(self, pieces: Iterator[bytes]) -> None:
        """Write the rest of a response from a thread; abort the connection if that fails."""
        cycle = self.cycle
        assert cycle is not None and cycle.response_started
        pause = 0.0  # the second look follows immediately: the buffer is usually empty then
        while self.transport.get_write_buffer_size():  # the head goes first
            await asyncio.sleep(pause)
            pause = _PAUSE
        with _duplicate_socket(self.transport) as client:
            if not await write_pieces(client, pieces, self.lost.is_set):
                self.transport.abort()
        cycle.expected_content_length = 0  # uvicorn counts only the bytes that it writes itself

    def _rest_of_body(self) -> Rest | None:
        """Return the rest of a body for the caller to read from the socket.

        The connection ends after the response. Return None if nothing is missing, or if the length
        of the body is not known.
        """
        cycle = self.cycle
        if not self._missing_bytes or cycle is None or cycle.disconnected:
            return None
        self.flow.pause_reading()
        received = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.keep_alive = False
        return Rest(_duplicate_socket(self.transport), received, self._missing_bytes)

    async def end(self) -> None:
        """End a connection by HTTP/2, or a link; uvicorn closes the others."""
        if self._passing is not None:
            self._passing.cancel()
            await asyncio.wait([self._passing])

    def _start_deadline(self) -> None:
        """Abort the connection when the time for a head or a body is over.

        The abort can be cancelled before. The time is `HEAD_SECONDS`, or `_REST_SECONDS` while a
        body is incomplete.
        """
        seconds = HEAD_SECONDS if self._is_body_complete else _REST_SECONDS
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        """Let the connection wait without a limit, as while a response is prepared."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_message_begin(self) -> None:
        """Begin the scope of a request."""
        self._head_size = 0
        self._unparsed = 0
        super().on_message_begin()
        self.scope["extensions"] = self._extensions

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._unparsed = 0
        self._head_size += len(url)
        if self._head_size > _MOST_HEAD:
            # The parser raises its own error instead, for which `send_400_response` is called.
            raise _HeadTooLarge
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header. A trailer is only counted, as it comes after the checks of headers."""
        self._unparsed = 0
        self._head_size += len(name) + len(value)
        if self._head_size > _MOST_HEAD:
            raise _HeadTooLarge
        is_trailer = not self._is_body_complete  # headers come before the body
        if not is_trailer:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application, or have the head of an upgrade request parsed again."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Tunnel  # the parser raises its own error instead, see `on_url`
            self._ignoring_upgrade = True
            return
        self._is_body_complete = False
        length = dict(self.headers).get(b"content-length", b"")
        self._missing_bytes = int(length) if length.isdigit() else None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        if self._missing_bytes is not None:
            self._missing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        if self._ignoring_upgrade:
            return
        self._unparsed = 0
        self._is_body_complete = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse an unreadable request and close: with 431 if its head is too large."""
        is_too_large = self._head_size > _MOST_HEAD or self._unparsed > _MOST_HEAD
        if not is_too_large:
            super().send_400_response(msg)
            return
        text = b"the request's headers have more than %d bytes" % _MOST_HEAD
        lines = [
            b"HTTP/1.1 431 Request Header Fields Too Large",
            b"content-type: text/plain; charset=utf-8",
            b"content-length: %d" % len(text),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", text]))
        self.transport.close()


def _client_chain(tls: ssl.SSLObject) -> list[str]:
    """Return the client's certificate in PEM form; [] if it has shown none."""
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None:
        return []
    return [ssl.DER_cert_to_PEM_cert(certificate)]


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Copy all bytes until the reader's end; then close the writer."""
    try:
        while data := await reader.read(_COPIED_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _duplicate_socket(transport: asyncio.BaseTransport) -> socket.socket:
    """Return a second socket of a connection, for a thread to use and to close."""
    sock = transport.get_extra_info("socket")
    return socket.socket(fileno=os.dup(sock.fileno()))
