"""Nodes that bring each other messages by gRPC, at the port at which they take HTTP."""

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

import grpc
import httpx
import pytest
from starlette.responses import JSONResponse, Response

from adapter.bfia.channel import bodies, calls, rpc
from adapter.bfia.channel.codec import encode_answer
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound, TransportOutbound
from adapter.bfia.channel.rpc import Grpc
from adapter.bfia.relay import Relay
from gateway.broker import BrokerLimits
from gateway.errors import Invalid, PeerUnreachable
from route_table.model import Identity, Route, RouteTable
from tests.adapter.bfia.channel.nodes import OK, SESSION, Container, Node, served, until
from tests.adapter.bfia.channel.test_forms import Speaker
from tests.certificates import Authority
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio

FROM_ALPHA = {
    "x-ptp-session-id": SESSION,
    "x-ptp-source-node-id": "alpha",
    "x-ptp-target-node-id": "beta",
}


@pytest.fixture
async def beta(tmp_path):
    async with served(
        Node("beta", tmp_path / "beta"), most_bytes=1 << 40
    ) as node:  # more than gRPC has numbers for
        yield node


@pytest.fixture
async def sender(tmp_path, beta):
    async with served(Node("alpha", tmp_path / "alpha")) as node:
        node.routes["beta"] = Route("beta", beta.url.replace("http", "grpc"))
        yield node


@contextlib.asynccontextmanager
async def speaking(node):
    options = [("grpc.use_local_subchannel_pool", 1)]  # else it shares the connection of another
    async with grpc.aio.insecure_channel(node.url.removeprefix("http://"), options) as channel:
        yield channel


def invoke(
    channel,
    message,
    headers,
    method="invoke",
):
    call = channel.unary_unary(f"/{calls.SERVICE}/{method}")
    return call(message.SerializeToString(), metadata=list(headers.items()), timeout=60)


@pytest.mark.parametrize("profile", ["spec", "fate"])
@pytest.mark.parametrize("form", Form)
async def test_a_message_of_each_form_passes_by_grpc_in_both_modes(
    sender,
    beta,
    client,
    form,
    profile,
):
    sender.routes["beta"] = Route("beta", beta.url.replace("http", "grpc"), profile=profile)
    assert await Speaker(client, sender, form).push("beta", "t", b"hello") == OK
    assert await Speaker(client, beta, form).pop("t", source="alpha") == (OK, b"hello")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_small_messages_to_a_peer_keep_order_and_overlap(tmp_path, scheme):
    """Eight containers share the connections, while one more waits for capacity at the peer."""
    kept = BrokerLimits(session_bytes=10_000)
    async with (
        served(Node("beta", tmp_path / "beta", limits=kept)) as beta,
        served(Node("alpha", tmp_path / "alpha", retry_for=600.0)) as alpha,
        httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            verify=NO_TLS,
        ) as client,
    ):
        alpha.routes["beta"] = Route("beta", beta.url.replace("http", scheme))
        full = {"x-ptp-session-id": "session_full"}
        assert await Container(client, alpha, **full).push("beta", bytes(9000)) == OK
        waits = asyncio.create_task(Container(client, alpha, **full).push("beta", bytes(9001)))
        await until(lambda: beta.broker._capacity._queues)

        async def pair(topic):
            async def write():
                for number in range(6):
                    assert await Container(client, alpha).push("beta", b"%d" % number, topic) == OK

            writing = asyncio.create_task(write())
            found = [int(await Container(client, beta).pop(topic, 200_000)) for _ in range(6)]
            await writing
            return found

        assert await asyncio.gather(*(pair(f"{n}") for n in range(8))) == 8 * [list(range(6))]
        assert not waits.done()
        if scheme == "http":
            assert (
                sum(map(len, alpha.parts.courier._wires.get(Identity(), Identity())._idle.values()))
                <= 9
            )
        assert await Container(client, beta, **full).pop() == bytes(9000)
        assert await waits == OK


async def test_what_a_peer_gets_in_each_mode(sender, client):
    """A stand-in for another vendor's transport keeps what it gets."""
    got = []

    async def take(message, context):
        got.append((dict(context.invocation_metadata()), message))
        return TransportOutbound(code=OK).SerializeToString()

    server = grpc.aio.server()
    handlers = {"invoke": grpc.unary_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(calls.SERVICE, handlers)])
    url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        for profile in ("spec", "fate"):
            sender.routes["beta"] = Route("beta", url, profile=profile)
            assert await Speaker(client, sender, Form.JSON).push("beta", "t", b"x") == OK
        assert (
            await Speaker(client, sender, Form.RAW).push("beta", "t", bytes(bodies.LARGE + 1)) == OK
        )
    finally:
        await server.stop(0)
    (passed, plain), (wrapped, outer), (_, long) = got
    assert passed["x-ptp-version"] == "1"
    assert PushInbound.FromString(plain).payload == b"x"
    assert wrapped["x-ptp-from-node-id"] == "alpha"
    assert "x-ptp-version" not in wrapped
    inbound = Inbound.FromString(outer)
    assert inbound.metadata["x-ptp-source-node-id"] == "alpha"
    assert PushInbound.FromString(inbound.payload).topic == "t"
    assert Inbound.FromString(long).payload  # a peer of that profile is not asked for parts


async def test_a_long_message_passes_in_parts_by_grpc(
    sender,
    beta,
    client,
    monkeypatch,
):
    monkeypatch.setattr(bodies, "PART", 1 << 20)
    for node in (sender, beta):
        node.sessions[SESSION] = True
    long = bytes(range(256)) * (3 << 12) + b"end"
    monkeypatch.setattr(beta.broker, "push", None)  # which takes the whole
    gc.disable()
    tracemalloc.start()
    try:
        assert await Speaker(client, sender, Form.RAW).push("beta", "t", long) == OK
        assert (
            tracemalloc.get_traced_memory()[0] < 2 << 20
        )  # no part is left for the garbage collector
    finally:
        tracemalloc.stop()
        gc.enable()
    assert [file.stat().st_size for file in beta.root.glob("*/*.payload")] == [len(long)]
    assert await Speaker(client, beta, Form.PROTOBUF).pop("t") == (OK, long)


async def test_a_message_by_grpc_need_not_be_whole_soon_but_must_not_stand_still(
    tmp_path, monkeypatch
):
    headers = FROM_ALPHA | {"x-ptp-version": "1"}
    async with (
        served(Node("beta", tmp_path / "beta", stall_for=0.0)) as beta,
        speaking(beta) as channel,
    ):
        answer = await invoke(channel, PushInbound(topic="t", payload=b"x"), headers)
        assert TransportOutbound.FromString(answer).code == OK
        monkeypatch.setattr(rpc, "STALL_SECONDS", 0.01)
        begun = channel.stream_unary(f"/{calls.SERVICE}/invoke")(
            metadata=list(headers.items()), timeout=60
        )
        answer = TransportOutbound.FromString(await begun)  # though nothing was sent
    assert answer.code == "E0000000400"
    assert "too slow" in answer.message


@pytest.mark.parametrize("topic", ["名", "a\tb"])
async def test_a_topic_that_no_metadata_can_bear_stands_in_the_message(
    sender,
    beta,
    client,
    topic,
):
    assert await Container(client, sender).push("beta", b"x", topic=topic) == OK
    assert await Container(client, beta).pop(topic=topic) == b"x"


async def test_a_peer_that_is_away_gave_no_answer(sender):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        route = Route("beta", f"grpc://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(PeerUnreachable, match="gRPC UNAVAILABLE"):
            await sender.parts.courier.invoke(route, [], [], 0.0)


@pytest.mark.parametrize(("status", "tries"), [(429, 2), (503, 2), (403, 1)])
async def test_what_a_peer_refuses_for_now_is_tried_again_by_grpc(
    sender,
    tmp_path,
    client,
    status,
    tries,
):
    asked, busy = [], Node("beta", tmp_path / "busy")

    def around(app):
        async def refusing(
            scope,
            receive,
            send,
        ):
            asked.append(scope["path"])
            answer = app if len(asked) > 1 else JSONResponse({"msg": "too many"}, status)
            await answer(scope, receive, send)

        return refusing

    busy.around = around
    async with served(busy):
        sender.routes["beta"] = Route("beta", busy.url.replace("http", "grpc"))
        pushed = {"topic": "t", "payload": "aGVsbG8="}
        answer = await Container(client, sender).post("push", pushed, x_ptp_target_node_id="beta")
    assert len(asked) == tries
    assert answer["code"] == OK or (
        answer["code"] == "E0000000520" and "too many" in answer["message"]
    )


async def test_a_relay_passes_on_by_http_only(
    sender,
    beta,
    client,
):
    """A message that came by gRPC goes on with its body, but not where the route of the target says gRPC."""
    table = RouteTable(
        1, {name: Route(name, "http://127.0.0.1:9", relay=True) for name in ("alpha", "gamma")}
    )
    refused = []
    between = Node("between", beta.root.with_name("between"))
    limits = (1 << 20, 1 << 24)
    between.around = lambda app: Relay(
        app,
        "between",
        lambda: table,
        between.parts.courier,
        limits,
        lambda *what: refused.append(what[2]),
    )
    async with (
        served(between) as relay,
        served(Node("gamma", beta.root.with_name("gamma"))) as gamma,
    ):
        sender.nodes.add("gamma")
        sender.routes["gamma"] = Route("gamma", relay.url.replace("http", "grpc"), via="between")
        for url, code in ((gamma.url, OK), (gamma.url.replace("http", "grpc"), "E0000000618")):
            table.routes["gamma"] = Route("gamma", url, relay=True)
            pushed = {"topic": "t", "payload": "aGVsbG8="}
            answer = await Container(client, sender).post(
                "push", pushed, x_ptp_target_node_id="gamma"
            )
            assert answer["code"] == code, answer
        assert refused == ["RELAY_NO_ROUTE"]
        assert await Container(client, gamma).pop() == b"hello"


async def test_a_stream_keeps_the_order_of_its_messages(beta, client):
    async with speaking(beta) as channel:
        stream = channel.stream_stream(f"/{calls.SERVICE}/transport")(
            metadata=list(FROM_ALPHA.items()), timeout=60
        )
        for number in range(20):
            pushed = PushInbound(topic="t", payload=b"%d" % number).SerializeToString()
            more = {
                "x-ptp-message-id": str(number),
                "x-ptp-session-id": "ignored: the stream's own counts",
            }
            await stream.write(Inbound(payload=pushed, metadata=more).SerializeToString())
            if number % 2:
                for _ in range(2):
                    assert TransportOutbound.FromString(await stream.read()).code == OK
        await stream.write(b"no protobuf")
        assert TransportOutbound.FromString(await stream.read()).code == "E0000000400"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    reader = Container(client, beta)
    assert [await reader.pop() for _ in range(20)] == [b"%d" % number for number in range(20)]


async def test_a_stream_of_a_stranger_is_refused_before_anything_is_read(beta):
    """Attack: who is no node of a route begins streams, with messages or without."""
    for named in (
        {"x-ptp-source-node-id": "nobody"},
        {"x-ptp-source-node-id": ""},
        {"x-ptp-session-id": ""},
    ):
        async with speaking(beta) as channel:
            headers = [(k, v) for k, v in (FROM_ALPHA | named).items() if v]
            stream = channel.stream_stream(f"/{calls.SERVICE}/transport")(
                metadata=headers, timeout=60
            )
            if "x-ptp-session-id" in named:
                pushed = PushInbound(payload=b"x").SerializeToString()
                await stream.write(Inbound(payload=pushed).SerializeToString())
            assert TransportOutbound.FromString(await stream.read()).code in (
                "E0000000618",
                "E0000000400",
            )
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_stream_too_many_is_refused(beta, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_STREAMS", 1)
    async with speaking(beta) as channel:
        begin = channel.stream_stream(f"/{calls.SERVICE}/transport")
        first = begin(metadata=list(FROM_ALPHA.items()), timeout=60)
        pushed = PushInbound(topic="t", payload=b"x").SerializeToString()
        await first.write(Inbound(payload=pushed).SerializeToString())
        assert TransportOutbound.FromString(await first.read()).code == OK
        second = begin(metadata=list(FROM_ALPHA.items()), timeout=60)
        assert TransportOutbound.FromString(await second.read()).code == "E0000000700"
        await first.done_writing()
        assert await first.read() is grpc.aio.EOF


async def test_calls_without_a_message_keep_no_other_address_out(tmp_path, monkeypatch):
    """Attack: who is no node begins calls of the encapsulated mode, and brings no messages."""
    waiting, numbers, connected = [], count(), Grpc.connected

    def from_elsewhere(self, scope):
        return connected(self, {**scope, "client": (f"10.0.0.{next(numbers)}", 1)})

    def around(app):
        async def noting(
            scope,
            receive,
            send,
        ):
            async def noted():
                waiting.append(scope["client"])
                return await receive()

            await app(scope, noted, send)

        return noting

    monkeypatch.setattr(Grpc, "connected", from_elsewhere)
    monkeypatch.setattr(rpc, "STALL_SECONDS", 3600.0)
    beta = Node("beta", tmp_path / "beta")
    beta.around = around
    async with served(beta), speaking(beta) as stranger, speaking(beta) as channel:
        idle = [stranger.stream_unary(f"/{calls.SERVICE}/invoke")(timeout=600) for _ in range(5)]
        await until(lambda: len(waiting) == len(idle))
        message = Inbound(payload=PushInbound(topic="t", payload=b"x").SerializeToString())
        assert TransportOutbound.FromString(await invoke(channel, message, FROM_ALPHA)).code == OK
        assert len(set(waiting)) == 2
        for call in idle:
            call.cancel()


@pytest.mark.parametrize(
    ("version", "named", "code"),
    [
        ("1", {"x-ptp-source-node-id": "nobody"}, "E0000000618"),
        ("", {"x-ptp-target-node-id": "alpha"}, "E0000000503"),
    ],
)
async def test_what_a_peer_may_not_do_by_grpc(
    beta,
    version,
    named,
    code,
):
    pushed = PushInbound(topic="t", payload=b"x")
    message = pushed if version else Inbound(payload=pushed.SerializeToString())
    async with speaking(beta) as channel:
        answer = await invoke(channel, message, FROM_ALPHA | {"x-ptp-version": version} | named)
        assert TransportOutbound.FromString(answer).code == code
    assert beta.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize(
    ("limit", "nodes"), [("_OF_ONE_SENDER", "aaa"), ("_OF_ALL_SENDERS", "abc")]
)
async def test_few_large_messages_are_in_memory_together(
    tmp_path,
    monkeypatch,
    limit,
    nodes,
):
    """Attack: a node, or several, bring large messages, each with a token of its own."""
    asked, inside, together = 0, 0, []

    async def slow(
        scope,
        receive,
        send,
    ):
        nonlocal asked, inside
        asked += 1
        await receive()
        inside += 1
        together.append(inside)
        await until(lambda: asked == len(nodes))
        for _ in range(1000):
            await asyncio.sleep(0)
        inside -= 1
        await Response(encode_answer(OK, "", form=Form.PROTOBUF))(scope, receive, send)

    monkeypatch.setattr(bodies, "LARGE", 0)
    monkeypatch.setattr(rpc, limit, 1)
    beta = Node("beta", tmp_path / "beta")
    beta.around = lambda _: slow
    async with served(beta), speaking(beta) as channel:
        named = [
            {"x-ptp-token": f"{n}", "x-ptp-source-node-id": node} for n, node in enumerate(nodes)
        ]
        await asyncio.gather(
            *(
                invoke(channel, PushInbound(payload=b"x"), {"x-ptp-version": "1"} | one)
                for one in named
            )
        )
    assert together == [1, 1, 1]


async def test_nobody_calls_past_the_listener(beta, tmp_path):
    """Attack: a process on this machine finds the socket file inside, where no certificate is seen."""
    server = Grpc(beta.app, 1 << 20)
    async with server.connected(
        {
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "extensions": {},
        }
    ):
        assert oct(server._folder.stat().st_mode)[-3:] == "700"
        async with grpc.aio.insecure_channel(f"unix:{server._folder}/grpc") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await invoke(
                    channel, PushInbound(payload=b"x"), FROM_ALPHA | {"x-ptp-version": "1"}
                )
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await server.close()
    assert not server._folder.exists()
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_call_of_ours_that_the_peer_never_answers_ends(sender):
    begun, ended = [], []

    async def silent(reader, writer):
        begun.append(writer)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.append(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        address = f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        route = Route("beta", address, deadline=1.0)
        with pytest.raises(PeerUnreachable, match="gRPC"):
            await sender.parts.courier.invoke(route, [], [], 0.0)
        await sender.parts.courier.close()
        await until(lambda: begun == ended)  # a busy machine may not have connected in time


async def test_a_header_that_no_metadata_can_bear_is_named():
    with pytest.raises(Invalid, match="x-ptp-source-inst-id: must be printable ASCII"):
        calls.metadata(
            [(b"x-ptp-source-inst-id", "机构".encode()), (b"x-ptp-topic", "名".encode())]
        )


async def test_without_its_package_grpc_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(calls.GrpcMissing, match=r"bfia-gateway\[grpc\]"):
        calls.Calls("grpc://127.0.0.1:9", Identity(), ssl.create_default_context())
    with pytest.raises(calls.GrpcMissing):
        async with Grpc(lambda *_: None, 1).connected({}):
            pass


async def test_by_tls_both_ends_are_proven(tmp_path):
    """Attack: what listens at a peer's address has another's certificate."""
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    theirs, mine = authority.sign("theirs", "node-of-the-route"), authority.sign("mine")
    key, chain = (Path(file).read_bytes() for file in (theirs.key, theirs.certificate))
    roots = Path(authority.file).read_bytes()

    def take(message, context):
        return TransportOutbound(code=OK).SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"invoke": grpc.unary_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(calls.SERVICE, handlers)])
    secure = grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=True)
    url = f"grpcs://127.0.0.1:{server.add_secure_port('127.0.0.1:0', secure)}"
    server.start()
    own = {
        "certificate": mine.certificate,
        "key": mine.key,
        "server_name": "node-of-the-route",
    }
    courier = Courier()
    try:
        answer = await courier.invoke(Route("beta", url, ca=authority.file, **own), [b""], [], 0.0)
        assert answer.code == OK
        for other in (
            {"ca": stranger.file},
            {"ca": None},
            {"ca": authority.file, "server_name": "other"},
        ):
            with pytest.raises(PeerUnreachable, match="gRPC UNAVAILABLE"):
                await courier.invoke(Route("beta", url, **own | other), [b""], [], 0.0)
    finally:
        await courier.close()
        await asyncio.to_thread(server.stop(0).wait)
