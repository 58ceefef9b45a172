"""Nodes and clients for the tests of the transport channel."""

import httpx
import pytest

from route_table.model import Route
from tests.adapter.bfia.channel.nodes import Node
from tests.plain import NO_TLS


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def make_node(tmp_path):
    nodes = []

    async def make(
        name="alpha",
        start=True,
        **parts,
    ):
        node = Node(name, tmp_path / name, **parts)
        nodes.append(node)
        if start:
            await node.start()
        return node

    yield make
    for node in nodes:
        if hasattr(node, "server") and not node.task.done():
            await node.stop()
        node.socket.close()


@pytest.fixture
async def desk(tmp_path):
    """A node without sockets: its routers are called in the process."""
    node = Node("alpha", tmp_path / "alpha")
    node.open()
    yield node
    await node.parts.courier.close()
    node.broker.close()
    node.socket.close()


@pytest.fixture
async def caller(desk):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(desk.app)) as caller:
        yield caller


@pytest.fixture
async def alpha(make_node):
    return await make_node("alpha")


@pytest.fixture
async def beta(make_node, alpha):
    node = await make_node("beta")
    alpha.routes["beta"] = Route("beta", node.url)
    node.routes["alpha"] = Route("beta", alpha.url)
    return node


@pytest.fixture
async def client():
    async with httpx.AsyncClient(
        timeout=60,
        trust_env=False,
        verify=NO_TLS,
    ) as client:
        yield client
