"""What clients' connections may take: how many there are, how long a request's head takes, and how large it is."""

import asyncio
import resource
import ssl
from collections import Counter
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_SECONDS = 10.0
"""for a TLS handshake, and for a request's head"""
_REST_SECONDS = 30.0
"""for the rest of a body whose request is answered already"""
_MOST_HEAD = 64 * 1024
"""bytes of a request line with its headers"""

_ENOUGH_FILES = 65_536
_MOST_CONNECTIONS = 4096
_OF_ONE_ADDRESS = {"peer": 512, "container": 1024}
"""the container engine may have all containers come from one address"""


class Places:
    """Counts the open connections of one listener."""

    def __init__(self, total: int, of_one_address: int) -> None:
        """Allow ``total`` connections, and only some of them to one address."""
        self._total = total
        self._of_one_address = of_one_address
        self._open: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Count a connection, if there is room for it."""
        if self._open.total() >= self._total or self._open[address] >= self._of_one_address:
            return False
        self._open[address] += 1
        return True

    def free(self, address: str) -> None:
        """Count a connection no longer."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def places(listener: str) -> Places:
    """Return the places of a listener: a quarter of the process's descriptors at most.

    There are up to three listeners; the last quarter is for engines, databases, files and calls to peers.
    """
    total = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    limit = _OF_ONE_ADDRESS.get(listener)
    return Places(total, total if limit is None else min(limit, total // 2))


def allow_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard one, as far as they could ever be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (wanted := min(hard, _ENOUGH_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _HeadTooLarge(Exception):
    pass


class Connection(HttpToolsProtocol):
    """One connection of a listener.

    Requests by TLS carry the client's certificate as the ASGI extension ``tls`` says, as ``client_cert_chain``.
    """

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        """Take what uvicorn's protocol takes."""
        super().__init__(config, server_state, app_state)
        self.lost = asyncio.Event()
        self._extensions: dict[str, Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._read_whole = True
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
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        super().connection_lost(exc)
        self._watch_no_longer()
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits of size and time while no request is being answered."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > _MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("")
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch_no_longer()
        elif self._deadline is None:
            self._watch()

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
        if self._extensions is not None:
            self.scope["extensions"] = self._extensions

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head += size
        if self._head > _MOST_HEAD:
            raise _HeadTooLarge  # the parser turns it into an error of its own, which is answered below

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._read_whole = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
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
        self.transport.write(b"%scontent-length: %d\r\nconnection: close\r\n\r\n%s" % (head, len(text), text))
        self.transport.close()
