"""Connections over real sockets: idle and half-sent ones, client certificates, long responses."""

import asyncio
import gc
import logging
import socket
import ssl
import threading
import warnings
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from starlette.responses import JSONResponse, PlainTextResponse

from adapter import body
from adapter.bfia.channel.grpc_client import GrpcMissing
from gateway.config.tls import Tls
from gateway.errors import NotAllowed, StorageAway
from gateway.http import connection as client_connection
from gateway.http import peers, server, streamed_bodies
from gateway.http.connection_limits import allow_descriptors, connection_count
from gateway.http.server import bound, port_of, serve
from gateway.http.streamed_bodies import Body
from tests.certificates import Authority
from tests.e2e.nodes import Federation, wait_for
from tests.inprocess import ME, listening

ANOTHER_ADDRESS = ("127.0.0.2", 0)  # of a client, on any port
MAX_CONNECTIONS = 512  # of one address, at the peers' listener
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"  # without its end
HELLO = PlainTextResponse("hello")


# ---------------------------------------------------------------- clients


def connect(port):
    """Open a connection to a port of this machine."""
    return socket.create_connection(
        ("127.0.0.1", port),
        timeout=300,
    )


def open_connections(stack, port, number, start_of_request=b""):
    """Open connections, send the start of a request on each, and return them."""
    connections = []
    for _ in range(number):
        connection = stack.enter_context(connect(port))
        with suppress(ConnectionError):  # already closed: there are too many
            connection.sendall(start_of_request)
        connections.append(connection)
    return connections


def is_open(connection):
    """Return whether a connection was not closed by the server."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def count_open(connections):
    return sum(is_open(connection) for connection in connections)


def status_of(port, path, source=None):
    """Return the status of a GET request from a source address."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=300, source_address=source)) as client:
        client.request("GET", path)
        return client.getresponse().status


def http_client(port):
    """Open an HTTP client, for use as a context."""
    return closing(HTTPConnection("127.0.0.1", port, timeout=300))


def get_body(client):
    """Return the body of a GET request."""
    client.request("GET", "/")
    return client.getresponse().read()


def send_bytes(port, request):
    """Send a request; return the whole response until the server closes the connection."""
    with connect(port) as connection, connection.makefile("rb") as response:
        connection.sendall(request)
        return response.read()


# ---------------------------------------------------------------- idle and half-sent requests


def test_a_connection_that_comes_while_a_listener_ends_is_closed():
    """A connection that stays open would be reported when its memory is freed."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        for turns in range(6):
            asyncio.run(connect_while_ending(turns))
        gc.collect()
    assert [str(warning.message) for warning in recorded] == []


async def connect_while_ending(turns):
    """Connect to a server that ends some turns of the event loop later."""
    config = uvicorn.Config(
        HELLO,
        lifespan="off",
        log_config=None,
    )
    ending = server._Server(
        config,
        connection_count("peer"),
        None,
    )
    config.load()
    ending.lifespan = config.lifespan_class(config)
    sock = bound("127.0.0.1:0")
    await ending.startup([sock])
    await asyncio.sleep(0.05)  # until it waits for connections
    with connect(port_of(sock)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        ending.should_exit = True
        await ending.shutdown()
        with suppress(ConnectionError):
            assert client.recv(1) == b""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Give a node process that may open 1024 files, and up to 4096 if it raises its limit."""
    allow_descriptors()  # for the connections of the test itself
    federation = Federation(
        tmp_path_factory.mktemp("nodes"),
        [ME],
        {"kind": "process"},
    )
    set_limits = 'ulimit -Sn 1024; ulimit -Hn 4096; exec "$@"'
    federation[ME].prefix = ["sh", "-c", set_limits, "sh"]
    with federation:
        yield federation[ME]


def port_in(url):
    return int(url.rpartition(":")[2])


def test_idle_connections_keep_neither_operators_nor_peers_out(node):
    peer_port = port_in(node.peer)
    half_a_head = b"POST /v1/interconn/chan/invoke HTTP/1.1\r\nhost: x\r\nx-"
    with ExitStack() as stack:
        idle = open_connections(stack, peer_port, 550)
        half_sent = open_connections(stack, peer_port, 550, half_a_head)

        assert status_of(port_in(node.operator), "/health/live") == 200
        assert status_of(peer_port, "/nowhere", ANOTHER_ADDRESS) == 404
        assert count_open([*idle, *half_sent]) <= MAX_CONNECTIONS

    def is_served():
        with suppress(ConnectionError):  # the node learns one by one that clients have left
            return status_of(peer_port, "/nowhere") == 404
        return False

    wait_for(is_served, about="there is room again")
    assert "connection limit reached" in node.log()


def test_a_node_raises_its_limit_of_descriptors(node):
    limits = Path(f"/proc/{node.addresses['pid']}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == "4096"
    assert hard == "4096"


def test_a_connection_is_closed_though_it_sends_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 1.0)
    with listening(HELLO) as port, ExitStack() as stack:
        [silent] = open_connections(stack, port, 1)
        [half_sent] = open_connections(stack, port, 1, HEAD)
        busy = wait_for(
            lambda: open_used_connection(stack, port),
            about="a request comes before its connection is closed",
        )

        def are_closed():
            with suppress(ConnectionError):
                busy.sendall(b"\r\n")
            return count_open([silent, half_sent, busy]) == 0

        wait_for(are_closed, about="connections without a request are closed")


def open_used_connection(stack, port):
    """Return a connection after its first request; None if it was closed before."""
    [connection] = open_connections(
        stack,
        port,
        1,
        HEAD + b"\r\n",
    )
    with suppress(ConnectionError):
        if connection.recv(4096).startswith(b"HTTP/1.1 200"):
            return connection
    return None


@pytest.mark.parametrize(
    "line",
    [b"x-a: " + b"a" * 1000 + b"\r\n", b"a" * 1000],
    ids=["many headers", "one endless header"],
)
def test_a_head_without_end_is_refused(line, monkeypatch):
    # For its size, not for its duration.
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 3600.0)
    with (
        listening(HELLO) as port,
        connect(port) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(HEAD + b"x-b: ")
        for _ in range(100):
            connection.sendall(100 * line)


@pytest.mark.parametrize(
    ("start", "piece"),
    [(HEAD, b"x-a: " + b"a" * 1000 + b"\r\n"), (b"GET /", b"a" * 1000)],
    ids=["many headers", "a long request line"],
)
def test_the_refusal_of_a_large_head_gives_the_reason(start, piece):
    with listening(HELLO) as port, connect(port) as connection:
        connection.sendall(start)
        for _ in range(67):  # 67 kB: above the limit of 64 KiB
            connection.sendall(piece)
        with connection.makefile("rb") as response:
            status_line = response.readline()
    assert status_line == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("container", "/v1/platform/schedule/task/callback"),
        ("operator", "/v1/platform/schedule/job/create_all"),
    ],
)
def test_a_body_that_never_ends_is_refused(world, monkeypatch, listener, path):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.5)
    gateway = world.node()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
    with connect(port_in(gateway.addresses()[listener])) as connection:
        connection.sendall(head.encode() + b"{")
        received = b""
        while b"must arrive within" not in received:
            part = connection.recv(65536)
            assert part, received
            received += part


# ---------------------------------------------------------------- TLS


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def tls(authority):
    """Give the TLS settings of a listener that requires no client certificate."""
    files = authority.sign("node")
    return Tls(files.certificate, files.key)


@pytest.fixture
def trusting(authority):
    """Give the TLS context of a client that trusts the listener."""
    return ssl.create_default_context(cafile=authority.file)


def test_connections_without_a_handshake_keep_no_others_out(tls, trusting):
    allow_descriptors()
    with listening(HELLO, tls) as port, ExitStack() as stack:
        silent = open_connections(stack, port, 600)
        client = HTTPSConnection(
            "127.0.0.1",
            port,
            timeout=300,
            context=trusting,
            source_address=ANOTHER_ADDRESS,
        )
        with closing(client):
            client.request("GET", "/")
            assert client.getresponse().status == 200
        assert count_open(silent) <= MAX_CONNECTIONS


async def show_extensions(scope, receive, send):
    """Respond with the extensions of the ASGI scope, which hold the client's certificate."""
    await JSONResponse(scope.get("extensions"))(
        scope,
        receive,
        send,
    )


def extensions_of_two_requests(port, context):
    """Return what the listener knows of two requests on one connection."""
    url = f"https://127.0.0.1:{port}/"
    with httpx.Client(verify=context, trust_env=False, timeout=300) as client:
        return [client.get(url).json(), client.get(url).json()]


@pytest.fixture
def strict_tls(authority):
    """Give the TLS settings of a listener that requires a client certificate."""
    files = authority.sign("node")
    return Tls(files.certificate, files.key, authority.file)


def test_each_request_carries_the_certificate_of_its_connection(authority, strict_tls, trusting):
    partner = authority.sign("partner")
    trusting.load_cert_chain(partner.certificate, partner.key)

    with listening(show_extensions, strict_tls) as port:
        extensions = extensions_of_two_requests(port, trusting)

    certificate = Path(partner.certificate).read_text()
    assert extensions == [{"tls": {"client_cert_chain": [certificate]}}] * 2


def test_a_certificate_of_another_authority_is_refused(tmp_path, strict_tls, trusting):
    stranger = Authority(tmp_path / "others").sign("partner")
    trusting.load_cert_chain(stranger.certificate, stranger.key)

    with listening(show_extensions, strict_tls) as port, pytest.raises(httpx.TransportError):
        extensions_of_two_requests(port, trusting)


def test_a_request_without_a_certificate_carries_none(tls, trusting):
    with listening(show_extensions, tls) as port:
        extensions = extensions_of_two_requests(port, trusting)
    assert extensions == [{"tls": {"client_cert_chain": []}}] * 2


def test_an_idle_client_does_not_hold_up_the_stop(tls, trusting, monkeypatch):
    log_error = Mock()
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "error", log_error)
    with listening(HELLO, tls) as port:
        client = HTTPSConnection(
            "127.0.0.1",
            port,
            context=trusting,
        )
        assert get_body(client)
    client.close()
    log_error.assert_not_called()  # uvicorn logs that it gave up waiting for a client


def test_missing_files_of_tls_prevent_the_start(tmp_path):
    missing = Tls(
        str(tmp_path / "no.pem"),
        str(tmp_path / "no.key"),
        None,
    )
    with closing(bound("127.0.0.1:0")) as sock, pytest.raises(OSError):
        asyncio.run(
            serve(
                {"peer": HELLO},
                {"peer": [sock]},
                Mock(),
                asyncio.Event(),
                tls={"peer": missing},
            )
        )


def test_a_client_certificate_that_cannot_be_read_is_refused():
    """Attack: an authority has signed a certificate that only OpenSSL can read."""
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n"
    scope = {"extensions": {"tls": {"client_cert_chain": [pem]}}}

    with pytest.raises(NotAllowed) as refusal:
        peers.client_certificate(scope)

    message = "the client certificate is not a certificate that can be read"
    assert message in str(refusal.value)
    assert refusal.value.reason == "CERTIFICATE_MISMATCH"


# ---------------------------------------------------------------- long responses

MIB = 1024 * 1024
PIECES = 24
SIZE = PIECES * MIB
MORE_THAN_THREADS = 60  # clients; the server writes with 40 threads


class Source:
    """Yields different pieces and records its closing; one that ``fails`` lacks the last piece."""

    def __init__(self, *, fails=False):
        self.fails = fails
        self.closed = threading.Event()

    def pieces(self):
        try:
            for number in range(PIECES):
                if self.fails and number == PIECES - 1:
                    raise StorageAway("storage lake (s3) cannot be reached")
                yield bytes([number]) * MIB
        finally:
            self.closed.set()


CONTENT = b"".join(Source().pieces())


def sending(source):
    """Return an application that sends the pieces of a source."""

    async def app(scope, receive, send):
        response = Body(
            source.pieces(),
            200,
            {"content-length": str(SIZE)},
        )
        await response(scope, receive, send)

    return app


def check_three_bodies_on_one_connection(client):
    with closing(client):
        client.connect()
        sock = client.sock
        for _ in range(3):
            assert get_body(client) == CONTENT
            assert client.sock is sock


def test_complete_bodies_arrive_one_after_the_other_on_a_connection():
    with listening(sending(Source())) as port:
        check_three_bodies_on_one_connection(HTTPConnection("127.0.0.1", port, timeout=300))


def test_complete_bodies_arrive_one_after_the_other_by_tls(tls, trusting):
    with listening(sending(Source()), tls) as port:
        client = HTTPSConnection(
            "127.0.0.1",
            port,
            timeout=300,
            context=trusting,
        )
        check_three_bodies_on_one_connection(client)


def test_clients_that_read_nothing_hold_no_thread():
    with listening(sending(Source())) as port, ExitStack() as stack:
        slow_responses = []
        for _ in range(MORE_THAN_THREADS):
            client = stack.enter_context(http_client(port))
            client.request("GET", "/")
            slow_responses.append(client.getresponse())

        with http_client(port) as client:
            assert get_body(client) == CONTENT
        for response in slow_responses[::20]:
            assert response.read() == CONTENT


@pytest.mark.parametrize(
    "by_reset",
    [False, True],
    ids=["close", "reset"],
)
def test_the_source_is_closed_when_its_client_leaves(by_reset, caplog):
    source = Source()
    with listening(sending(source)) as port:
        with connect(port) as client:
            client.sendall(HEAD + b"\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            if by_reset:
                # struct linger: on, for 0 seconds
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert source.closed.wait(60)
    assert "Exception" not in caplog.text


def test_a_source_that_fails_ends_the_connection_before_the_end(caplog):
    source = Source(fails=True)
    with listening(sending(source)) as port, http_client(port) as client:
        with pytest.raises((HTTPException, ConnectionError)):
            get_body(client)
        assert source.closed.is_set()
    assert "Exception" not in caplog.text


def test_a_head_is_sent_before_the_body_that_a_thread_writes():
    ours, theirs = socket.socketpair()
    # The head leaves the transport's buffer byte by byte.
    buffer_sizes = [3, 2, 1, 0]
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: buffer_sizes.pop(0),
        get_extra_info=Mock(return_value=ours),
    )
    connection = SimpleNamespace(
        cycle=SimpleNamespace(response_started=True),
        transport=transport,
        lost=asyncio.Event(),
    )
    with ours, theirs:
        pieces = (piece for piece in [b"body"])
        asyncio.run(client_connection.Connection._write_rest(connection, pieces))
        assert buffer_sizes == []
        assert theirs.recv(10) == b"body"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_long_response_is_written_in_turns_while_its_client_is_connected(monkeypatch, is_lost):
    # Each reading of the clock is 0.4 s later: a turn of 0.5 s ends after one piece.
    readings = count()
    clock = SimpleNamespace(monotonic=lambda: next(readings) * 0.4)
    monkeypatch.setattr(streamed_bodies, "time", clock)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pieces = (piece for piece in (b"a", b"b", b"c"))
        writing = streamed_bodies.write_pieces(
            ours,
            pieces,
            Mock(return_value=is_lost),
        )
        is_complete = asyncio.run(writing)
    assert is_complete is not is_lost


# ---------------------------------------------------------------- failures while serving

CLOSING_REQUEST = HEAD + b"connection: close\r\n\r\n"


def test_a_connection_that_cannot_be_accepted_ends_no_listener(monkeypatch, caplog):
    accept = asyncio.SelectorEventLoop.sock_accept
    errors = [OSError(24, "Too many open files")]  # EMFILE

    async def fail_once(self, sock):
        if errors:
            raise errors.pop()
        return await accept(self, sock)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", fail_once)
    with listening(HELLO) as port, http_client(port) as client:
        assert get_body(client) == b"hello"
    assert "a connection cannot be accepted" in caplog.text


def test_a_socket_that_arrives_while_serving_is_served():
    arrivals = server.Arrivals()
    second = bound("127.0.0.1:0")
    with listening(HELLO, arrivals=arrivals):
        arrivals.put("peer", second)
        assert send_bytes(port_of(second), CLOSING_REQUEST).endswith(b"hello")


def test_a_socket_that_arrives_after_the_end_is_closed():
    arrivals = server.Arrivals()
    with listening(HELLO, arrivals=arrivals):
        pass
    late = bound("127.0.0.1:0")

    arrivals.put("peer", late)

    assert late.fileno() == -1  # closed


class FailingHttp2:
    """Serves no HTTP/2 connection."""

    def __init__(self, error):
        self.error = error

    def connected(self, connection):
        raise self.error

    async def close(self):
        pass


@pytest.mark.parametrize(
    "error",
    [GrpcMissing(), OSError("no such socket")],
)
def test_http_2_that_cannot_be_served_is_closed_and_http_1_goes_on(error):
    with listening(HELLO, http2={"peer": FailingHttp2(error)}) as port:
        assert send_bytes(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""
        assert send_bytes(port, CLOSING_REQUEST).endswith(b"hello")


def test_the_limit_is_logged_however_many_addresses_fail_at_tls():
    counter = SimpleNamespace(_warned={})

    async def may_warn(*addresses):
        return [server._Server._may_warn(counter, address) for address in addresses]

    async def warn_of_everything():
        addresses = [str(number) for number in range(65)]
        assert await may_warn(*addresses) == [True] * 64 + [False]
        # The limit itself, which has no address.
        assert await may_warn("", "") == [True, False]

    asyncio.run(warn_of_everything())
