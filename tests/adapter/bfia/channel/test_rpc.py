"""A container that speaks gRPC, at the address at which the others speak HTTP."""

import asyncio
import base64
from contextlib import asynccontextmanager

import grpc
import pytest

from adapter.bfia.channel.ptp_pb2 import PopInbound, PushInbound, TransportOutbound
from adapter.bfia.channel.rpc import SERVICE
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import OK, SESSION, Container, Node, served, until, waiters

pytestmark = pytest.mark.anyio


@pytest.fixture
async def node(tmp_path):
    """A node that serves its channel as a gateway does."""
    async with served(Node("alpha", tmp_path / "alpha"), 1 << 20) as node:
        yield node


class Caller:
    """The other end of a gRPC connection."""

    def __init__(self, channel):
        self.channel = channel

    def call(
        self,
        method,
        message,
        **named,
    ):
        headers = {
            "x-ptp-session-id": SESSION,
            "x-ptp-token": "reader" if method != "push" else "writer",
        }
        headers |= {name.replace("_", "-"): value for name, value in named.items()}
        return self.channel.unary_unary(f"/{SERVICE}/{method}")(
            message.SerializeToString(),
            metadata=[(k, v) for k, v in headers.items() if v],
            timeout=60,
        )

    async def ask(
        self,
        method,
        message,
        **named,
    ):
        return TransportOutbound.FromString(await self.call(method, message, **named))


@asynccontextmanager
async def speaking(node):
    async with grpc.aio.insecure_channel(node.url.removeprefix("http://")) as channel:
        yield Caller(channel)


async def test_messages_pass_between_grpc_and_http(
    node,
    make_node,
    client,
):
    http, beta = Container(client, node), await make_node("beta")
    node.routes["beta"] = Route("beta", beta.url)
    async with speaking(node) as caller:
        pushed = PushInbound(topic="t", payload=b"hello")
        assert (await caller.ask("push", pushed, x_ptp_target_node_id="beta")).code == OK
        assert await Container(client, beta).pop() == b"hello"
        payload = bytes(range(256)) * 1000
        pushed = PushInbound(topic="t", payload=payload)
        assert (await caller.ask("push", pushed, x_ptp_target_node_id="alpha")).code == OK
        assert await http.pop() == payload
        assert await http.push("alpha", b"back") == OK
        answer = await caller.ask("pop", PopInbound(topic="t", timeout=60000))
        assert answer.code == OK
        assert answer.payload == b"back"
        assert answer.metadata["x-ptp-source-node-id"] == "alpha"
        assert (await caller.ask("peek", PopInbound(topic="t"))).payload == b""
        assert (await caller.ask("release", PopInbound(topic="t"))).code == OK


async def test_a_pop_that_is_cancelled_takes_nothing(node, client):
    async with speaking(node) as caller:
        waiting = caller.call("pop", PopInbound(topic="t", timeout=60000))
        await until(lambda: waiters(node) == 1)
        waiting.cancel()
        await until(lambda: waiters(node) == 0)
    assert await Container(client, node).push("alpha", b"x") == OK
    assert await Container(client, node).pop() == b"x"


async def test_what_no_transport_can_use_by_grpc(node):
    node.sessions["ended"] = False
    async with speaking(node) as caller:
        pushed, other = PushInbound(topic="t", payload=b"x"), PopInbound(timeout=5)
        assert (await caller.ask("push", other, x_ptp_target_node_id="alpha")).code == "E0000000400"
        ended = {"x_ptp_target_node_id": "alpha", "x_ptp_session_id": "ended"}
        assert (await caller.ask("push", pushed, **ended)).code == "E0000000608"
        refused = await caller.ask("push", pushed, x_ptp_target_node_id="alpha", x_ptp_token="")
        assert refused.code == "E0000000403"
        assert (
            await caller.ask("push", pushed, x_ptp_target_node_id="stranger")
        ).code == "E0000000618"
        large = PushInbound(payload=bytes(2 << 20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.ask("push", large, x_ptp_target_node_id="alpha")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await caller.ask("weave", pushed)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert node.broker.usage() == (0, 0, 0)


async def test_a_message_is_not_read_before_its_sender_is_known(node):
    async with speaking(node) as caller:
        headers = [("x-ptp-session-id", SESSION), ("x-ptp-target-node-id", "alpha")]
        sending = caller.channel.stream_unary(f"/{SERVICE}/push")(metadata=headers, timeout=60)
        answer = TransportOutbound.FromString(await sending)  # though nothing was sent
        assert answer.code == "E0000000403"


async def test_no_other_http_2_is_more_than_closed(node, client):
    reader, writer = await asyncio.open_connection(*node.url.removeprefix("http://").split(":"))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5000)
    await writer.drain()
    assert b"code" not in await reader.read()
    writer.close()
    assert await Container(client, node).push("alpha", base64.b64encode(b"x")) == OK
