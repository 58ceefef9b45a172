"""Connections for links before their proof: strangers cannot keep partners away."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.links import unproven
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


async def open_as_the_smaller_client():
    """Fill all places, most of them by clients with several connections; open one more."""
    connections = UnprovenConnections()
    partners = ["198.51.100.1", "198.51.100.2"]
    strangers = []
    while len(strangers) < MAX_UNPROVEN - len(partners):
        client = len(strangers) // MAX_UNPROVEN_PER_CLIENT
        strangers.append(f"192.0.2.{client}")
    tasks = await open_connections(connections, partners + strangers)
    async with connections.counted("198.51.100.3"):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    ended = [task.done() for task in tasks]
    await cancel_all(tasks)
    return ended[: len(partners)], ended[len(partners) :]


def test_a_client_with_many_connections_makes_room_not_a_partner_with_one():
    partners, strangers = asyncio.run(open_as_the_smaller_client())
    assert not any(partners)
    assert strangers.count(True) == 1


async def open_beyond_the_limit_of(hosts, other):
    connections = UnprovenConnections()
    tasks = await open_connections(connections, hosts)
    async with connections.counted(other):
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
    async with connections.counted(hosts[0]):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task.done() for task in tasks]
    await cancel_all(tasks)
    async with AsyncExitStack() as stack:  # all places of the client are free again
        for host in hosts:
            await stack.enter_async_context(connections.counted(host))
    return ended


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("192.0.2.7", "192.0.2.8"),
        ("2001:db8:0:1::{}", "2001:db8:0:2::1"),
    ],
)
def test_a_client_has_a_few_places(pattern, other):
    hosts = [pattern.format(number) for number in range(MAX_UNPROVEN_PER_CLIENT)]
    ended = asyncio.run(open_beyond_the_limit_of(hosts, other))
    assert ended == [True] + [False] * (len(hosts) - 1)


async def open_while_others_end(monkeypatch):
    """Open a connection between the end of another one's time and that of its task."""
    monkeypatch.setattr(unproven, "PROOF_SECONDS", 0.0)
    connections = UnprovenConnections()
    tasks = await open_connections(connections, ["192.0.2.7"])
    (deadline,) = connections._deadlines["192.0.2.7"]
    monkeypatch.setattr(unproven, "MAX_UNPROVEN_PER_CLIENT", 1)
    monkeypatch.setattr(unproven, "PROOF_SECONDS", 60.0)
    while not deadline.expired():
        await asyncio.sleep(0)
    async with connections.counted("192.0.2.7"):
        return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_connection_whose_time_is_over_makes_room_by_itself(monkeypatch):
    (result,) = asyncio.run(open_while_others_end(monkeypatch))
    assert isinstance(result, TimeoutError)


def test_an_address_of_ipv4_is_the_same_client_in_ipv6():
    assert client_of("::ffff:192.0.2.7") == client_of("192.0.2.7")
