"""Responses of many bytes over real sockets: slow clients, clients that leave, a source that fails, TLS."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config.tls import Tls
from gateway.errors import StorageAway
from gateway.http.bodies import Body
from tests.certificates import Authority
from tests.trust.test_connections import listening

MIB = 1024 * 1024
PIECES = 24
SIZE = PIECES * MIB
MORE_THAN_THREADS = 60


class Source:
    """Yields pieces of which each differs, and notes when it is closed; ``fails`` before the last."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.closed = threading.Event()

    def pieces(self) -> Iterator[bytes]:
        try:
            for number in range(PIECES):
                if self.fails and number == PIECES - 1:
                    raise StorageAway("storage lake (s3) cannot be reached")
                yield bytes([number]) * MIB
        finally:
            self.closed.set()


WHOLE = b"".join(Source().pieces())


def serving(source: Callable[[], Source]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Body(source().pieces(), 200, {"content-length": str(SIZE)})(scope, receive, send)

    return app


def test_bodies_arrive_whole_one_after_the_other_on_a_connection() -> None:
    with listening(serving(Source)) as port, closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.connect()
        first = client.sock
        for _ in range(3):
            client.request("GET", "/")
            assert client.getresponse().read() == WHOLE and client.sock is first


def test_clients_that_read_nothing_hold_no_thread() -> None:
    with listening(serving(Source)) as port, ExitStack() as stack:
        slow = []
        for _ in range(MORE_THAN_THREADS):
            client = stack.enter_context(closing(HTTPConnection("127.0.0.1", port, timeout=60)))
            client.request("GET", "/")
            slow.append(client.getresponse())
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client:
            client.request("GET", "/")
            assert client.getresponse().read() == WHOLE
        for answer in slow[::20]:
            assert answer.read() == WHOLE


@pytest.mark.parametrize("farewell", ["close", "reset"])
def test_what_is_read_for_a_client_that_leaves_is_closed(farewell: str, caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with listening(serving(lambda: source)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            if farewell == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert source.closed.wait(60)
    assert "Exception" not in caplog.text


def test_a_source_that_fails_ends_the_connection_before_the_end(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(fails=True)
    with (
        listening(serving(lambda: source)) as port,
        closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client,
    ):
        client.request("GET", "/")
        with pytest.raises((HTTPException, ConnectionError)):
            client.getresponse().read()
        assert source.closed.is_set()
    assert "Exception" not in caplog.text


def test_by_tls_a_body_arrives_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.sign("node")
    trusted = ssl.create_default_context(cafile=authority.file)
    with (
        listening(serving(Source), Tls(mine.certificate, mine.key)) as port,
        closing(HTTPSConnection("127.0.0.1", port, timeout=60, context=trusted)) as client,
    ):
        client.request("GET", "/")
        assert client.getresponse().read() == WHOLE
