"""A container that speaks gRPC, at the address at which others speak HTTP."""

import asyncio
import base64
from contextlib import asynccontextmanager

import grpc
import pytest

from adapter.bfia.channel.grpc_server import SERVICE
from adapter.bfia.channel.ptp_pb2 import PopInbound, PushInbound, TransportOutbound
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    OK,
    SESSION,
    Container,
    Node,
    dashed,
    served,
    until_readers,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def node(tmp_path):
    """A node that serves its channel as a gateway does."""
    async with served(Node("alpha", tmp_path / "alpha"), 1 << 20) as node:
        yield node


class GrpcContainer:
    """A container that speaks gRPC with its own node's channel."""

    def __init__(self, channel):
        self.channel = channel

    def call(self, method, message, **headers):
        """Begin a call; header names are written with ``_``, empty headers are left out."""
        all_headers = {
            "x-ptp-session-id": SESSION,
            "x-ptp-token": "writer" if method == "push" else "reader",
        }
        all_headers |= dashed(headers)
        return self.channel.unary_unary(f"/{SERVICE}/{method}")(
            message.SerializeToString(),
            metadata=[(name, value) for name, value in all_headers.items() if value],
            timeout=300,
        )

    async def request(self, method, message, **headers):
        """Call a method; return the response."""
        return TransportOutbound.FromString(await self.call(method, message, **headers))

    async def push(self, message, target="alpha", **headers):
        """Push a message to a node; return the response's code."""
        response = await self.request("push", message, x_ptp_target_node_id=target, **headers)
        return response.code


@asynccontextmanager
async def grpc_container(node):
    async with grpc.aio.insecure_channel(node.url.removeprefix("http://")) as channel:
        yield GrpcContainer(channel)


async def test_messages_pass_between_grpc_and_http(node, make_node, client):
    http_container = Container(client, node)
    beta = await make_node("beta")
    node.routes["beta"] = Route("beta", beta.url)
    long_payload = bytes(range(256)) * 1000
    async with grpc_container(node) as container:
        assert await container.push(PushInbound(topic="t", payload=b"hello"), "beta") == OK
        assert await Container(client, beta).pop() == b"hello"

        assert await container.push(PushInbound(topic="t", payload=long_payload)) == OK
        assert await http_container.pop() == long_payload

        assert await http_container.push("alpha", b"back") == OK
        popped = await container.request(
            "pop",
            PopInbound(topic="t", timeout=60000),
        )
        assert popped.code == OK
        assert popped.payload == b"back"
        assert popped.metadata["x-ptp-source-node-id"] == "alpha"

        peeked = await container.request("peek", PopInbound(topic="t"))
        assert peeked.payload == b""
        released = await container.request("release", PopInbound(topic="t"))
        assert released.code == OK


async def test_a_pop_that_is_cancelled_takes_no_message(node, client):
    async with grpc_container(node) as container:
        pop = container.call(
            "pop",
            PopInbound(topic="t", timeout=60000),
        )
        await until_readers(node, 1)
        pop.cancel()
        await until_readers(node, 0)

    assert await Container(client, node).push("alpha", b"x") == OK
    assert await Container(client, node).pop() == b"x"


PUSH = PushInbound(topic="t", payload=b"x")


async def test_unusable_messages_are_refused_by_grpc(node):
    node.sessions["ended"] = False
    async with grpc_container(node) as container:
        assert await container.push(PopInbound(timeout=5)) == "E0000000400"
        assert await container.push(PUSH, x_ptp_session_id="ended") == "E0000000608"
        assert await container.push(PUSH, x_ptp_token="") == "E0000000403"
        assert await container.push(PUSH, "stranger") == "E0000000618"

        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await container.push(PushInbound(payload=bytes(2 << 20)))
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await container.request("weave", PUSH)
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert node.broker.usage() == (0, 0, 0)


async def test_a_call_without_a_message_pushes_nothing(node):
    async with grpc_container(node) as container:
        push = container.channel.stream_unary(f"/{SERVICE}/push")
        metadata = [
            ("x-ptp-session-id", SESSION),
            ("x-ptp-token", "writer"),
            ("x-ptp-target-node-id", "alpha"),
        ]
        response = TransportOutbound.FromString(
            await push(iter(()), metadata=metadata, timeout=300)
        )
        assert response.code == "E0000000400"
        assert "the call ended without one" in response.message
    assert node.broker.usage() == (0, 0, 0)


async def test_a_message_is_not_read_before_its_sender_is_known(node):
    headers = [
        ("x-ptp-session-id", SESSION),
        ("x-ptp-target-node-id", "alpha"),
    ]
    async with grpc_container(node) as container:
        start_call = container.channel.stream_unary(f"/{SERVICE}/push")

        # The response comes although no message is sent.
        response = await start_call(
            metadata=headers,
            timeout=300,
        )

    assert TransportOutbound.FromString(response).code == "E0000000403"


async def test_http_2_that_is_not_grpc_is_closed(node, client):
    reader, writer = await asyncio.open_connection(*node.url.removeprefix("http://").split(":"))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5000)
    await writer.drain()

    assert b"code" not in await reader.read()

    writer.close()
    payload = base64.b64encode(b"x")
    assert await Container(client, node).push("alpha", payload) == OK
