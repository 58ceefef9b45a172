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
    """A function that starts a node; all of them are stopped after the test."""
    nodes = []

    async def make(name="alpha", **options):
        node = Node(name, tmp_path / name, **options)
        nodes.append(node)
        await node.start()
        return node

    yield make
    for node in nodes:
        if not node.task.done():
            await node.stop()
        node.socket.close()


@pytest.fixture
async def local_node(tmp_path):
    """A node that serves no socket: the fixture ``local_client`` calls its routers directly."""
    node = Node("alpha", tmp_path / "alpha")
    node.open()
    yield node
    await node.parts.courier.close()
    node.broker.close()
    node.socket.close()


@pytest.fixture
async def local_client(local_node):
    transport = httpx.ASGITransport(local_node.app)
    async with httpx.AsyncClient(transport=transport) as client:
        yield client


@pytest.fixture
async def alpha(make_node):
    return await make_node("alpha")


@pytest.fixture
async def beta(make_node, alpha):
    """A second node; it and alpha have routes to each other."""
    node = await make_node("beta")
    alpha.routes["beta"] = Route("beta", node.url)
    node.routes["alpha"] = Route("beta", alpha.url)
    return node


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=300, trust_env=False, verify=NO_TLS) as client:
        yield client
