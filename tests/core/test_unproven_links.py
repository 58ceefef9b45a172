"""Connections for links before their proof: strangers cannot keep partners away."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.links.proof import LinkRefused
from gateway.links.unproven import (
    MAX_UNPROVEN,
    MAX_UNPROVEN_PER_CLIENT,
    UnprovenConnections,
    client_of,
)


async def wait_without_proof(connections, host, is_open):
    async with connections.counted(host):
        is_open.set()
        await asyncio.Event().wait()


async def open_connections(connections, hosts):
    """Return a task for each connection, which waits without a proof."""
    tasks = []
    for host in hosts:
        is_open = asyncio.Event()
        tasks.append(asyncio.create_task(wait_without_proof(connections, host, is_open)))
        await is_open.wait()
    return tasks


async def cancel_all(tasks):
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def fill_all_places():
    connections = UnprovenConnections()
    hosts = [f"192.0.2.{number}" for number in range(MAX_UNPROVEN)]
    tasks = await open_connections(connections, hosts)
    async with connections.counted("198.51.100.1"):
        results = await asyncio.gather(tasks[0], return_exceptions=True)
        assert not any(task.done() for task in tasks[1:])
    await cancel_all(tasks[1:])
    return results


def test_the_oldest_connection_makes_room_for_a_new_one():
    (result,) = asyncio.run(fill_all_places())
    assert isinstance(result, TimeoutError)


async def open_beyond_the_limit_of(hosts, other):
    connections = UnprovenConnections()
    tasks = await open_connections(connections, hosts)
    with pytest.raises(LinkRefused):
        async with connections.counted(hosts[0]):
            pass
    async with connections.counted(other):
        pass
    await cancel_all(tasks)
    async with AsyncExitStack() as stack:  # all places of the client are free again
        for host in hosts:
            await stack.enter_async_context(connections.counted(host))


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("192.0.2.7", "192.0.2.8"),
        ("2001:db8:0:1::{}", "2001:db8:0:2::1"),
    ],
)
def test_a_client_has_a_few_places(pattern, other):
    hosts = [pattern.format(number) for number in range(MAX_UNPROVEN_PER_CLIENT)]
    asyncio.run(open_beyond_the_limit_of(hosts, other))


def test_an_address_of_ipv4_is_the_same_client_in_ipv6():
    assert client_of("::ffff:192.0.2.7") == client_of("192.0.2.7")
