"""Nodes that send each other messages by gRPC, to the port that also serves HTTP."""

import asyncio
import contextlib
import gc
import socket
import ssl
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import anyio
import grpc
import httpx
import pytest
from starlette.responses import JSONResponse, Response

from adapter.bfia.channel import bodies, grpc_client, grpc_server
from adapter.bfia.channel.codec import encode_answer
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.grpc_server import GrpcServer
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound, TransportOutbound
from adapter.bfia.relay import Relay
from gateway.broker import BrokerLimits
from gateway.errors import Invalid, PeerUnreachable
from route_table.model import Identity, Route, RouteTable
from tests.adapter.bfia.channel.nodes import (
    OK,
    SESSION,
    Container,
    Node,
    push_body,
    served,
    until,
    until_push_waits,
)
from tests.adapter.bfia.channel.test_message_forms import Speaker
from tests.certificates import Authority
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio

HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-source-node-id": "alpha",
    "x-ptp-target-node-id": "beta",
}
# Without the version, the message is encapsulated in an `Inbound`.
PLAIN = {"x-ptp-version": "1"}

# Codes of refusals.
INVALID = "E0000000400"
WRONG_NODE = "E0000000503"
CONTRADICTORY = "E0000000520"  # the peer's response is none that the standard allows
UNKNOWN_NODE = "E0000000618"
FULL = "E0000000700"


@pytest.fixture
async def beta(tmp_path):
    node = Node("beta", tmp_path / "beta")
    # A limit above 2 GiB, the largest number that gRPC has for it.
    async with served(node, most_bytes=1 << 40):
        yield node


@pytest.fixture
async def alpha(tmp_path, beta):
    """A node with a route to beta by gRPC."""
    async with served(Node("alpha", tmp_path / "alpha")) as node:
        node.routes["beta"] = grpc_route(beta)
        yield node


def grpc_route(node, **fields):
    """Return a route to a node by gRPC."""
    return Route(node.name, node.url.replace("http", "grpc"), **fields)


def message(payload=b"x", topic="t"):
    """Return a push."""
    return PushInbound(topic=topic, payload=payload)


def encapsulated(push, **fields):
    """Return the envelope of a push."""
    return Inbound(payload=push.SerializeToString(), **fields)


@contextlib.asynccontextmanager
async def grpc_channel(node):
    # Without a pool of its own, the channel shares the connection of others in this process.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(node.url.removeprefix("http://"), options) as channel:
        yield channel


async def invoke(channel, message, headers):
    """Invoke as a peer; return the response."""
    call = channel.unary_unary(f"/{grpc_client.SERVICE}/invoke")
    metadata = list(headers.items())
    response = await call(
        message.SerializeToString(),
        metadata=metadata,
        timeout=300,
    )
    return TransportOutbound.FromString(response)


def start_invoke(channel, headers=None, timeout=300):
    """Begin an invoke as a peer and send no message; return the call."""
    call = channel.stream_unary(f"/{grpc_client.SERVICE}/invoke")
    return call(metadata=list((headers or {}).items()), timeout=timeout)


class PeerStream:
    """A stream of messages from a peer."""

    def __init__(self, channel, headers):
        call = channel.stream_stream(f"/{grpc_client.SERVICE}/transport")
        self.stream = call(
            metadata=list(headers.items()),
            timeout=300,
        )

    async def write(self, inbound):
        await self.stream.write(inbound.SerializeToString())

    async def read_code(self):
        """Wait for the next response; return its code."""
        response = TransportOutbound.FromString(await self.stream.read())
        return response.code

    async def close(self):
        """Finish writing; the peer then ends the stream."""
        await self.stream.done_writing()
        assert await self.stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("profile", ["spec", "fate"])
@pytest.mark.parametrize("form", Form)
async def test_a_message_of_each_form_passes_by_grpc_in_both_modes(
    alpha, beta, client, form, profile
):
    alpha.routes["beta"] = grpc_route(
        beta,
        profile=profile,
    )

    assert await Speaker(client, alpha, form).push("beta", "t", b"hello") == OK

    assert await Speaker(client, beta, form).pop("t", source="alpha") == (OK, b"hello")


async def exchange_numbers(client, alpha, beta, topic):
    """Push the numbers from 0 to 5 from alpha to beta; return the numbers that beta pops."""

    async def write():
        for number in range(6):
            assert await Container(client, alpha).push("beta", b"%d" % number, topic) == OK

    writing = asyncio.create_task(write())
    numbers = []
    for _ in range(6):
        payload = await Container(client, beta).pop(topic, 200_000)
        numbers.append(int(payload))
    await writing
    return numbers


def idle_connections(node):
    """Return how many connections to peers a node holds in reserve."""
    connections = node.parts.courier._http.get(
        Identity(),
        Identity(),
    )
    return sum(map(len, connections._idle.values()))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_small_messages_to_a_peer_keep_order_and_overlap(tmp_path, scheme):
    """Eight containers share the connections, while one more waits for capacity at the peer."""
    limits = BrokerLimits(session_bytes=10_000)
    async with (
        served(Node("beta", tmp_path / "beta", limits=limits)) as beta,
        served(Node("alpha", tmp_path / "alpha", retry_for=600.0)) as alpha,
        httpx.AsyncClient(timeout=None, trust_env=False, verify=NO_TLS) as client,
    ):
        alpha.routes["beta"] = Route(
            "beta",
            beta.url.replace("http", scheme),
        )
        full_session = {"x-ptp-session-id": "session_full"}
        writer = Container(client, alpha, **full_session)
        assert await writer.push("beta", bytes(9000)) == OK
        waiting = asyncio.create_task(writer.push("beta", bytes(9001)))
        await until_push_waits(beta)

        exchanges = [exchange_numbers(client, alpha, beta, f"{n}") for n in range(8)]
        for numbers in await asyncio.gather(*exchanges):
            assert numbers == list(range(6))

        assert not waiting.done()
        if scheme == "http":
            assert idle_connections(alpha) <= 9
        assert await Container(client, beta, **full_session).pop() == bytes(9000)
        assert await waiting == OK


class RecordingPeer:
    """A stand-in for another vendor's transport, which records messages and their headers."""

    def __init__(self):
        self.messages = []
        self.server = grpc.aio.server()
        handlers = {"invoke": grpc.unary_unary_rpc_method_handler(self.invoke)}
        handler = grpc.method_handlers_generic_handler(grpc_client.SERVICE, handlers)
        self.server.add_generic_rpc_handlers([handler])
        self.url = f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def invoke(self, message, context):
        self.messages.append((dict(context.invocation_metadata()), message))
        return TransportOutbound(code=OK).SerializeToString()


async def test_a_peer_gets_metadata_and_payload_as_its_profile_says(alpha, client):
    peer = RecordingPeer()
    json_container = Speaker(client, alpha, Form.JSON)
    bare_container = Speaker(client, alpha, Form.RAW)
    await peer.server.start()
    try:
        alpha.routes["beta"] = Route(
            "beta",
            peer.url,
            profile="spec",
        )
        assert await json_container.push("beta", "t", b"x") == OK
        alpha.routes["beta"] = Route(
            "beta",
            peer.url,
            profile="fate",
        )
        assert await json_container.push("beta", "t", b"x") == OK
        assert await bare_container.push("beta", "t", bytes(bodies.LARGE + 1)) == OK
    finally:
        await peer.server.stop(0)
    spec, fate, large = peer.messages

    headers, push = spec
    assert headers["x-ptp-version"] == "1"
    assert PushInbound.FromString(push).payload == b"x"

    headers, envelope = fate
    assert headers["x-ptp-from-node-id"] == "alpha"
    assert "x-ptp-version" not in headers
    inbound = Inbound.FromString(envelope)
    assert inbound.metadata["x-ptp-source-node-id"] == "alpha"
    assert PushInbound.FromString(inbound.payload).topic == "t"

    # A peer of that profile gets a large message in one piece.
    _, envelope = large
    assert Inbound.FromString(envelope).payload


async def test_a_long_message_passes_in_parts_by_grpc(alpha, beta, client, monkeypatch):
    monkeypatch.setattr(bodies, "PART", 1 << 20)
    for node in (alpha, beta):
        node.sessions[SESSION] = True
    payload = bytes(range(256)) * (3 << 12) + b"end"
    # The broker's method for messages in one piece must not be called.
    monkeypatch.setattr(beta.broker, "push", None)

    # No part may be left for the garbage collector, so it is off while memory is measured.
    gc.disable()
    tracemalloc.start()
    try:
        assert await Speaker(client, alpha, Form.RAW).push("beta", "t", payload) == OK
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()

    assert memory < 2 << 20
    sizes = [file.stat().st_size for file in beta.root.glob("*/*.payload")]
    assert sizes == [len(payload)]
    assert await Speaker(client, beta, Form.PROTOBUF).pop("t") == (OK, payload)


async def test_a_message_by_grpc_may_be_slow_but_must_not_stall(tmp_path, monkeypatch):
    node = Node(
        "beta",
        tmp_path / "beta",
        stall_for=0.0,
    )
    async with served(node) as beta, grpc_channel(beta) as channel:
        response = await invoke(channel, message(), HEADERS | PLAIN)
        assert response.code == OK

        monkeypatch.setattr(grpc_server, "STALL_SECONDS", 0.01)
        # The response comes although no message is sent.
        response = TransportOutbound.FromString(await start_invoke(channel, HEADERS | PLAIN))
    assert response.code == INVALID
    assert "too slow" in response.message


@pytest.mark.parametrize("topic", ["名", "a\tb"])
async def test_a_topic_that_is_no_valid_metadata_passes_in_the_message(alpha, beta, client, topic):
    assert await Container(client, alpha).push("beta", b"x", topic=topic) == OK
    assert await Container(client, beta).pop(topic=topic) == b"x"


async def test_a_peer_that_is_down_is_unreachable(alpha):
    with socket.socket() as not_listening:
        not_listening.bind(("127.0.0.1", 0))
        route = Route("beta", f"grpc://127.0.0.1:{not_listening.getsockname()[1]}")

        with pytest.raises(PeerUnreachable, match="gRPC UNAVAILABLE"):
            await alpha.parts.courier.invoke(
                route,
                [],
                [],
                0.0,
            )


class RefuseFirst:
    """An application that refuses its first request with a status and passes the others on."""

    def __init__(self, app, status, paths):
        self.app = app
        self.status = status
        self.paths = paths

    async def __call__(self, scope, receive, send):
        self.paths.append(scope["path"])
        app = self.app
        if len(self.paths) == 1:
            app = JSONResponse({"msg": "too many"}, self.status)
        await app(scope, receive, send)


async def push_to_refusing_node(client, alpha, node, status):
    """Push to a node that refuses its first request; return the response and the paths."""
    paths = []
    node.wrap_app = lambda app: RefuseFirst(app, status, paths)
    async with served(node):
        alpha.routes["beta"] = grpc_route(node)
        response = await Container(client, alpha).post(
            "push", push_body(b"hello"), x_ptp_target_node_id="beta"
        )
    return response, paths


@pytest.mark.parametrize("status", [429, 503])
async def test_a_temporary_refusal_is_retried_by_grpc(alpha, tmp_path, client, status):
    busy = Node("beta", tmp_path / "busy")

    response, paths = await push_to_refusing_node(client, alpha, busy, status)

    assert response["code"] == OK
    assert len(paths) == 2


async def test_a_final_refusal_is_not_retried_by_grpc(alpha, tmp_path, client):
    strict = Node("beta", tmp_path / "strict")

    response, paths = await push_to_refusing_node(client, alpha, strict, 403)

    assert response["code"] == CONTRADICTORY
    assert "too many" in response["message"]
    assert len(paths) == 1


async def test_a_relay_passes_on_by_http_only(alpha, beta, client):
    """A message that came by gRPC is relayed, unless the route of its target says gRPC."""
    anywhere = "http://127.0.0.1:9"
    routes = {name: Route(name, anywhere, relay=True) for name in ("alpha", "gamma")}
    table = RouteTable(1, routes)
    reasons = []

    def record_refusal(source, target, reason, *details):
        reasons.append(reason)

    def wrap_in_relay(app):
        return Relay(
            app,
            "between",
            "between-inst",
            lambda: table,
            between.parts.courier,
            1 << 20,
            1 << 24,
            record_refusal,
        )

    between = Node("between", beta.root.with_name("between"))
    between.wrap_app = wrap_in_relay
    async with (
        served(between) as relay,
        served(Node("gamma", beta.root.with_name("gamma"))) as gamma,
    ):
        alpha.nodes.add("gamma")
        relay_url = relay.url.replace("http", "grpc")
        alpha.routes["gamma"] = Route(
            "gamma",
            relay_url,
            via="between",
        )

        for target_url, code in (
            (gamma.url, OK),
            (gamma.url.replace("http", "grpc"), UNKNOWN_NODE),
        ):
            table.routes["gamma"] = Route(
                "gamma",
                target_url,
                relay=True,
            )
            assert await Container(client, alpha).push("gamma", b"hello") == code

        assert reasons == ["RELAY_NO_ROUTE"]
        assert await Container(client, gamma).pop() == b"hello"


# ------------------------------------------------------------ streams


async def test_a_stream_keeps_the_order_of_its_messages(beta, client):
    async with grpc_channel(beta) as channel:
        stream = PeerStream(channel, HEADERS)
        for number in range(0, 20, 2):
            for payload in (number, number + 1):
                metadata = {
                    "x-ptp-message-id": str(payload),
                    "x-ptp-session-id": "ignored: the stream's own counts",
                }
                await stream.write(encapsulated(message(b"%d" % payload), metadata=metadata))
            for _ in range(2):
                assert await stream.read_code() == OK

        await stream.stream.write(b"no protobuf")
        assert await stream.read_code() == INVALID
        await stream.close()

    reader = Container(client, beta)
    for number in range(20):
        assert await reader.pop() == b"%d" % number


WRONG_STREAMS = [
    # changed header, and whether the peer writes a message
    ("x-ptp-source-node-id", "nobody", False),
    ("x-ptp-source-node-id", "", False),
    ("x-ptp-session-id", "", True),
]


@pytest.mark.parametrize(
    ("header", "value", "writes"),
    WRONG_STREAMS,
)
async def test_a_stream_of_a_stranger_is_refused_before_anything_is_read(
    beta, header, value, writes
):
    """Attack: a node that no route names begins streams, with messages or without."""
    headers = HEADERS | {header: value}
    sent_headers = {name: text for name, text in headers.items() if text}
    async with grpc_channel(beta) as channel:
        stream = PeerStream(channel, sent_headers)
        if writes:
            await stream.write(encapsulated(PushInbound(payload=b"x")))

        assert await stream.read_code() in (UNKNOWN_NODE, INVALID)
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_stream_too_many_is_refused(beta, monkeypatch):
    monkeypatch.setattr(grpc_server, "MAX_STREAMS", 1)
    async with grpc_channel(beta) as channel:
        first = PeerStream(channel, HEADERS)
        await first.write(encapsulated(message()))
        assert await first.read_code() == OK

        second = PeerStream(channel, HEADERS)
        assert await second.read_code() == FULL

        await first.close()


# ------------------------------------------------------------ attacks and limits


class ReceivingClients:
    """An application that records from which client each message is requested."""

    def __init__(self, app, clients):
        self.app = app
        self.clients = clients

    async def __call__(self, scope, receive, send):
        async def record_and_receive():
            self.clients.append(scope["client"])
            return await receive()

        await self.app(scope, record_and_receive, send)


async def test_calls_without_a_message_do_not_block_other_addresses(tmp_path, monkeypatch):
    """Attack: a stranger begins calls of the encapsulated mode, and sends no messages."""
    clients = []
    numbers = count()
    connected = GrpcServer.connected

    def connected_from_new_address(self, scope):
        client = (f"10.0.0.{next(numbers)}", 1)
        return connected(self, {**scope, "client": client})

    monkeypatch.setattr(GrpcServer, "connected", connected_from_new_address)
    monkeypatch.setattr(grpc_server, "STALL_SECONDS", 3600.0)
    beta = Node("beta", tmp_path / "beta")
    beta.wrap_app = lambda app: ReceivingClients(app, clients)
    async with served(beta), grpc_channel(beta) as stranger, grpc_channel(beta) as peer:
        idle = [start_invoke(stranger, timeout=600) for _ in range(5)]
        await until(lambda: len(clients) == len(idle))

        response = await invoke(peer, encapsulated(message()), HEADERS)

        assert response.code == OK
        assert len(set(clients)) == 2
        for call in idle:
            call.cancel()


async def test_a_message_from_an_unknown_node_is_refused_by_grpc(beta):
    headers = HEADERS | PLAIN | {"x-ptp-source-node-id": "nobody"}
    async with grpc_channel(beta) as channel:
        response = await invoke(channel, message(), headers)

    assert response.code == UNKNOWN_NODE
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_message_for_another_node_is_refused_by_grpc(beta):
    headers = HEADERS | {
        "x-ptp-version": "",
        "x-ptp-target-node-id": "alpha",
    }
    async with grpc_channel(beta) as channel:
        response = await invoke(channel, encapsulated(message()), headers)

    assert response.code == WRONG_NODE
    assert beta.broker.usage() == (0, 0, 0)


class SlowApp:
    """An application that receives a message and holds it until all expected requests arrived."""

    def __init__(self, expected_requests):
        self.expected_requests = expected_requests
        self.requests = 0
        self.in_memory = 0
        # the messages in memory after each arrival
        self.counts = []

    async def __call__(self, scope, receive, send):
        self.requests += 1
        await receive()
        self.in_memory += 1
        self.counts.append(self.in_memory)
        await until(lambda: self.requests == self.expected_requests)
        for _ in range(1000):
            await asyncio.sleep(0)
        self.in_memory -= 1
        await Response(encode_answer(OK, "", form=Form.PROTOBUF))(
            scope,
            receive,
            send,
        )


@pytest.mark.parametrize(
    ("limit", "sources"),
    [
        ("_OF_ONE_SENDER", "aaa"),
        ("_OF_ALL_SENDERS", "abc"),
    ],
)
async def test_few_large_messages_are_in_memory_together(tmp_path, monkeypatch, limit, sources):
    """Attack: a node, or several, send large messages, each with a token of its own."""
    monkeypatch.setattr(bodies, "LARGE", 0)
    monkeypatch.setattr(grpc_server, limit, 1)
    slow = SlowApp(len(sources))
    beta = Node("beta", tmp_path / "beta")
    beta.wrap_app = lambda app: slow
    async with served(beta), grpc_channel(beta) as channel:
        invokes = []
        for number, source in enumerate(sources):
            headers = PLAIN | {
                "x-ptp-token": f"{number}",
                "x-ptp-source-node-id": source,
            }
            invokes.append(invoke(channel, PushInbound(payload=b"x"), headers))
        await asyncio.gather(*invokes)

    assert slow.counts == [1, 1, 1]


async def test_the_socket_between_listener_and_grpc_is_closed_to_others(beta):
    """Attack: a process on this machine calls the socket file, which sees no certificates."""
    server = GrpcServer(beta.app, 1 << 20)
    scope = {
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "extensions": {},
    }
    async with server.connected(scope):
        mode = server._folder.stat().st_mode
        assert oct(mode)[-3:] == "700"
        async with grpc.aio.insecure_channel(f"unix:{server._folder}/grpc") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await invoke(channel, PushInbound(payload=b"x"), HEADERS | PLAIN)
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await server.close()
    assert not server._folder.exists()
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_call_that_the_peer_never_answers_ends(alpha):
    # The kernel completes connections to a socket that listens; nobody reads from them.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        route = Route(
            "beta",
            address,
            deadline=1.0,
        )

        with pytest.raises(PeerUnreachable, match="gRPC"):
            await alpha.parts.courier.invoke(
                route,
                [],
                [],
                0.0,
            )

        await alpha.parts.courier.close()
        await read_connections_to_their_end(silent)


async def read_connections_to_their_end(listener):
    """Accept every connection to a listening socket, and wait until its client has closed it."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # no further connection
            return
        with connection, anyio.fail_after(60), contextlib.suppress(ConnectionError):
            connection.setblocking(False)
            while await loop.sock_recv(connection, 65_536):
                pass


def test_a_header_that_is_no_valid_metadata_is_named():
    headers = [
        (b"x-ptp-source-inst-id", "机构".encode()),
        (b"x-ptp-topic", "名".encode()),
    ]
    with pytest.raises(Invalid, match="x-ptp-source-inst-id: must be printable ASCII"):
        grpc_client.metadata(headers)


async def test_without_its_package_grpc_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(grpc_client.GrpcMissing, match=r"bfia-gateway\[grpc\]"):
        grpc_client.GrpcConnection("grpc://127.0.0.1:9", Identity(), ssl.create_default_context())
    with pytest.raises(grpc_client.GrpcMissing):
        async with GrpcServer(lambda *_: None, 1).connected({}):
            pass


# ------------------------------------------------------------ TLS


def accept(message, context):
    """Accept a message."""
    return TransportOutbound(code=OK).SerializeToString()


def start_tls_server(certificate, authority):
    """Start a server that asks for a client's certificate; return it and its address."""
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"invoke": grpc.unary_unary_rpc_method_handler(accept)}
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(grpc_client.SERVICE, handlers)]
    )
    credentials = grpc.ssl_server_credentials(
        [(Path(certificate.key).read_bytes(), Path(certificate.certificate).read_bytes())],
        Path(authority.file).read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, f"grpcs://127.0.0.1:{port}"


async def test_by_tls_both_ends_are_proven(tmp_path):
    """Attack: the listener at a peer's address has another node's certificate."""
    authority = Authority(tmp_path / "ours")
    foreign_authority = Authority(tmp_path / "others")
    peer_certificate = authority.sign("theirs", "node-of-the-route")
    certificate = authority.sign("mine")
    server, url = start_tls_server(peer_certificate, authority)
    right = {
        "certificate": certificate.certificate,
        "key": certificate.key,
        "ca": authority.file,
        "server_name": "node-of-the-route",
    }
    courier = Courier()
    try:
        # On a busy machine gRPC may give its first connection up.
        response = await courier.invoke(Route("beta", url, **right), [b""], [], retry_for=60.0)
        assert response.code == OK

        for wrong in (
            {"ca": foreign_authority.file},
            {"ca": None},
            {"server_name": "other"},
        ):
            with pytest.raises(PeerUnreachable, match="gRPC UNAVAILABLE"):
                await courier.invoke(Route("beta", url, **right | wrong), [b""], [], 0.0)
    finally:
        await courier.close()
        await asyncio.to_thread(server.stop(0).wait)
