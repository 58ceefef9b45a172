"""Idle and half-sent connections keep nobody out; what the certificate of a client tells, over real sockets."""

import asyncio
import gc
import http.client
import json
import logging
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter import body
from adapter.bfia.channel.calls import GrpcMissing
from gateway.config.tls import Tls
from gateway.errors import NotAllowed, StorageAway
from gateway.http import connection as client_connection
from gateway.http import peers, server, streamed_bodies
from gateway.http.server import allow_descriptors, bound, serve
from gateway.http.server import port_of as port_of_socket
from gateway.http.streamed_bodies import Body
from tests.certificates import Authority
from tests.e2e.nodes import Federation, Node, wait_for
from tests.inprocess import ME, listening, running

ELSEWHERE = ("127.0.0.2", 0)
CREATE_ALL = "/v1/platform/schedule/job/create_all"
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
HELLO = PlainTextResponse("hello")
FEW_FILES = ["sh", "-c", 'ulimit -Sn 1024; ulimit -Hn 4096; exec "$@"', "sh"]


def test_a_connection_that_comes_while_a_listener_ends_is_closed() -> None:
    """In whichever turn of the event loop: one that stayed open is reported when its memory is freed."""

    async def main(turns: int) -> None:
        config = uvicorn.Config(HELLO, lifespan="off", log_config=None)
        ending = server._Server(config, server.connection_count("peer"), None)
        config.load()
        ending.lifespan = config.lifespan_class(config)
        sock = bound("127.0.0.1:0")
        await ending.startup([sock])
        await asyncio.sleep(0.05)  # it waits for connections
        with socket.create_connection(sock.getsockname(), timeout=30) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            ending.should_exit = True
            await ending.shutdown()
            with suppress(ConnectionError):
                assert client.recv(1) == b""

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for turns in range(6):
            asyncio.run(main(turns))
        gc.collect()
    assert [str(one.message) for one in seen] == []


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    allow_descriptors()  # for what this test opens itself
    federation = Federation(tmp_path_factory.mktemp("nodes"), [ME], {"kind": "process"})
    federation[ME].prefix = FEW_FILES
    with federation:
        yield federation[ME]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def opened(
    stack: ExitStack,
    port: int,
    count: int,
    sent: bytes = b"",
) -> list[socket.socket]:
    """Return so many connections, each with the beginning of a request where one is given."""
    found = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        with suppress(ConnectionError):  # closed already: there are too many
            connection.sendall(sent)
        found.append(connection)
    return found


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def status(
    port: int,
    path: str,
    source: tuple[str, int] | None = None,
) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=source)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_idle_connections_keep_neither_operators_nor_peers_out(node: Node) -> None:
    peer = port_of(node.peer)
    with ExitStack() as stack:
        idle = opened(stack, peer, 550)
        half = opened(stack, peer, 550, b"POST /v1/interconn/chan/invoke HTTP/1.1\r\nhost: x\r\nx-")
        assert status(port_of(node.operator), "/health/live") == 200
        assert status(peer, "/nowhere", ELSEWHERE) == 404
        assert sum(map(is_open, [*idle, *half])) <= 512

    def served() -> bool:
        with suppress(ConnectionError):  # the node learns one by one that they are closed
            return status(peer, "/nowhere") == 404
        return False

    wait_for(served, about="there is room again")
    assert "connection limit reached" in node.log()


def test_a_node_raises_its_limit_of_descriptors(node: Node) -> None:
    limits = Path(f"/proc/{node.addresses['pid']}/limits").read_text()
    soft, hard = next(
        line for line in limits.splitlines() if line.startswith("Max open files")
    ).split()[3:5]
    assert soft == hard == "4096"


def answered(stack: ExitStack, port: int) -> socket.socket | None:
    """Return a connection on which a request was responded to, if there was time for one."""
    (connection,) = opened(stack, port, 1, HEAD + b"\r\n")
    with suppress(ConnectionError):
        if connection.recv(4096).startswith(b"HTTP/1.1 200"):
            return connection
    return None


def test_an_idle_connection_is_closed_though_it_sends_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 1.0)
    with listening(HELLO) as port, ExitStack() as stack:
        silent, half = opened(stack, port, 1) + opened(stack, port, 1, HEAD)
        busy = wait_for(
            lambda: answered(stack, port), about="a request comes before its connection is closed"
        )

        def closed() -> bool:
            with suppress(ConnectionError):
                busy.sendall(b"\r\n")
            return not any(map(is_open, (silent, half, busy)))

        wait_for(closed, about="connections without a request are closed")


def test_connections_without_a_handshake_do_not_keep_others_out(tmp_path: Path) -> None:
    allow_descriptors()
    authority = Authority(tmp_path)
    mine = authority.sign("node")
    trusted = ssl.create_default_context(cafile=authority.file)
    with listening(HELLO, Tls(mine.certificate, mine.key)) as port, ExitStack() as stack:
        silent = opened(stack, port, 600)
        client = http.client.HTTPSConnection(
            "127.0.0.1",
            port,
            timeout=60,
            context=trusted,
            source_address=ELSEWHERE,
        )
        client.request("GET", "/")
        assert client.getresponse().status == 200
        client.close()
        assert sum(map(is_open, silent)) <= 512


@pytest.mark.parametrize(
    "line",
    [b"x-a: " + b"a" * 1000 + b"\r\n", b"a" * 1000],
    ids=["many headers", "one endless header"],
)
def test_a_head_without_end_is_refused(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        client_connection, "HEAD_SECONDS", 3600.0
    )  # for its size, not for the time that it takes
    with (
        listening(HELLO) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(HEAD + b"x-b: ")
        for _ in range(100):
            connection.sendall(100 * line)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(HEAD, b"x-a: " + b"a" * 1000 + b"\r\n"), (b"GET /", b"a" * 1000)],
    ids=["many headers", "a long request line"],
)
def test_the_refusal_of_a_large_head_says_why(begin: bytes, piece: bytes) -> None:
    with (
        listening(HELLO) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        connection.sendall(begin)
        for _ in range(67):
            connection.sendall(piece)
        with connection.makefile("rb") as answer:
            assert answer.readline() == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_a_body_that_never_ends_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.5)
    with running(tmp_path) as gateway:
        for listener, path in (
            ("container", "/v1/platform/schedule/task/callback"),
            ("operator", CREATE_ALL),
        ):
            with socket.create_connection(
                ("127.0.0.1", port_of(gateway.addresses()[listener])), timeout=30
            ) as slow:
                slow.sendall(
                    f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode()
                )
                answer = b""
                while b"must arrive within" not in answer:
                    part = slow.recv(65536)
                    assert part, answer
                    answer += part


# ---------------------------------------------------------------- the certificate that a client shows


async def extensions(
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    await JSONResponse(scope.get("extensions"))(scope, receive, send)


def asked(url: str, trusted: ssl.SSLContext) -> list[Any]:
    """Return the extensions of two requests on one connection."""
    with httpx.Client(
        verify=trusted,
        trust_env=False,
        timeout=60,
    ) as client:
        return [json.loads(client.get(url).content) for _ in range(2)]


def test_each_request_carries_the_certificate_of_its_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, theirs = authority.sign("node"), authority.sign("partner")
    trusted = ssl.create_default_context(cafile=authority.file)
    trusted.load_cert_chain(theirs.certificate, theirs.key)
    with listening(extensions, Tls(mine.certificate, mine.key, authority.file)) as port:
        found = asked(f"https://127.0.0.1:{port}/", trusted)
    shown = Path(theirs.certificate).read_text()
    assert found == [{"tls": {"client_cert_chain": [shown]}}] * 2
    strangers = Authority(tmp_path / "others").sign("partner")
    trusted.load_cert_chain(strangers.certificate, strangers.key)
    with (
        listening(extensions, Tls(mine.certificate, mine.key, authority.file)) as port,
        pytest.raises(httpx.TransportError),
    ):
        asked(f"https://127.0.0.1:{port}/", trusted)
    with listening(extensions, Tls(mine.certificate, mine.key)) as port:
        found = asked(
            f"https://127.0.0.1:{port}/", ssl.create_default_context(cafile=authority.file)
        )
    assert found == [{"tls": {"client_cert_chain": []}}] * 2


def test_an_idle_client_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("uvicorn.error"), "error", lambda text, *_: said.append(text)
    )
    mine = Authority(tmp_path).sign("node")
    with listening(extensions, Tls(mine.certificate, mine.key)) as port:
        client = http.client.HTTPSConnection(
            "127.0.0.1", port, context=ssl._create_unverified_context()
        )
        client.request("GET", "/")
        assert client.getresponse().read()
    client.close()
    assert said == []  # else: that it waited in vain


# ---------------------------------------------------------------- responses of many bytes

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


def sending(source: Callable[[], Source]) -> ASGIApp:
    async def app(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        await Body(source().pieces(), 200, {"content-length": str(SIZE)})(scope, receive, send)

    return app


@pytest.mark.parametrize("by_tls", [False, True])
def test_bodies_arrive_whole_one_after_the_other_on_a_connection(
    tmp_path: Path, by_tls: bool
) -> None:
    authority = Authority(tmp_path)
    mine, trusted = authority.sign("node"), ssl.create_default_context(cafile=authority.file)
    with listening(sending(Source), Tls(mine.certificate, mine.key) if by_tls else None) as port:
        secure = HTTPSConnection("127.0.0.1", port, timeout=60, context=trusted)
        with closing(secure if by_tls else HTTPConnection("127.0.0.1", port, timeout=60)) as client:
            client.connect()
            first = client.sock
            for _ in range(3):
                client.request("GET", "/")
                assert client.getresponse().read() == WHOLE and client.sock is first


def test_clients_that_read_nothing_hold_no_thread() -> None:
    with listening(sending(Source)) as port, ExitStack() as stack:
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
def test_what_is_read_for_a_client_that_leaves_is_closed(
    farewell: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    with listening(sending(lambda: source)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            if farewell == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert source.closed.wait(60)
    assert "Exception" not in caplog.text


def test_a_source_that_fails_ends_the_connection_before_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(fails=True)
    with (
        listening(sending(lambda: source)) as port,
        closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client,
    ):
        client.request("GET", "/")
        with pytest.raises((HTTPException, ConnectionError)):
            client.getresponse().read()
        assert source.closed.is_set()
    assert "Exception" not in caplog.text


# ------------------------------------------------------------ what fails while serving


def test_a_connection_that_cannot_be_accepted_ends_no_listener(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failed = asyncio.SelectorEventLoop.sock_accept, list[int]()

    async def no_descriptor(self: Any, sock: socket.socket) -> Any:
        if not failed:
            failed.append(1)
            raise OSError(24, "Too many open files")
        return await real(self, sock)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", no_descriptor)
    with listening(HELLO) as port, closing(HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        client.request("GET", "/")
        assert client.getresponse().read() == b"hello"
    assert "a connection cannot be accepted" in caplog.text


WHOLE_REQUEST = HEAD + b"connection: close\r\n\r\n"


def said(port: int, request: bytes) -> bytes:
    """Return all that a listener answers before it closes the connection."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
        client.makefile("rb") as answer,
    ):
        client.sendall(request)
        return answer.read()


def test_a_socket_that_comes_while_serving_is_served_and_later_closed() -> None:
    arrivals, second = server.Arrivals(), bound("127.0.0.1:0")
    with listening(HELLO, arrivals=arrivals):
        arrivals.put("peer", second)
        assert said(port_of_socket(second), WHOLE_REQUEST).endswith(b"hello")
    late = bound("127.0.0.1:0")
    arrivals.put("peer", late)
    assert late.fileno() == -1


def test_files_of_tls_that_are_gone_end_the_start(tmp_path: Path) -> None:
    gone = Tls(str(tmp_path / "no.pem"), str(tmp_path / "no.key"), None)
    with closing(bound("127.0.0.1:0")) as sock, pytest.raises(OSError):
        asyncio.run(
            serve(
                {"peer": HELLO}, {"peer": [sock]}, lambda: None, asyncio.Event(), tls={"peer": gone}
            )
        )


@pytest.mark.parametrize("error", [GrpcMissing(), OSError("no such socket")])
def test_http_2_that_cannot_be_served_is_closed_and_http_1_goes_on(error: Exception) -> None:
    class Away:
        def connected(self, _: Any) -> Any:
            raise error

        async def close(self) -> None: ...

    with listening(HELLO, http2={"peer": Away()}) as port:
        assert said(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""
        assert said(port, WHOLE_REQUEST).endswith(b"hello")


def test_the_limit_is_logged_however_many_addresses_fail_at_tls() -> None:
    async def news() -> list[bool]:
        known: Any = SimpleNamespace(_warned={})
        return [
            server._Server._may_warn(known, address) for address in (*map(str, range(65)), "", "")
        ]

    assert asyncio.run(news()) == [True] * 64 + [False, True, False]


def test_a_head_goes_out_before_what_is_written_past_the_event_loop() -> None:
    ours, theirs = socket.socketpair()
    sizes = [3, 2, 1, 0]
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: sizes.pop(0), get_extra_info=lambda _: ours
    )
    connection: Any = SimpleNamespace(
        cycle=SimpleNamespace(response_started=True),
        transport=transport,
        lost=asyncio.Event(),
    )
    asyncio.run(
        client_connection.Connection._write_rest(connection, (piece for piece in [b"body"]))
    )
    assert sizes == [] and theirs.recv(10) == b"body"
    ours.close()
    theirs.close()


@pytest.mark.parametrize("gone", [False, True])
def test_a_long_answer_is_written_in_turns_while_its_client_is_there(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    times = count()  # by them, a turn is over after one piece
    turn = streamed_bodies._TURN * 0.75
    monkeypatch.setattr(
        streamed_bodies, "time", SimpleNamespace(monotonic=lambda: next(times) * turn)
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pieces = (piece for piece in (b"a", b"b", b"c"))
        assert asyncio.run(streamed_bodies.written(ours, pieces, lambda: gone)) is not gone


def test_a_client_certificate_that_cannot_be_read_is_refused() -> None:
    """Attack: an authority has signed what OpenSSL takes and nothing else can read."""
    scope = {"extensions": {"tls": {"client_cert_chain": ["-----BEGIN CERTIFICATE-----\nAAAA\n"]}}}
    with pytest.raises(
        NotAllowed, match="the client certificate is not a certificate that can be read"
    ) as refused:
        peers.client_certificate(scope)
    assert refused.value.reason == "CERTIFICATE_MISMATCH"
