"""Unknown senders occupy neither the slots of large messages nor the event loop."""

import asyncio
import contextlib
import json
import threading

import anyio
import pytest

from adapter.bfia.channel import bodies
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    CHAN,
    INVOKE_HEADERS,
    OK,
    PUSH_HEADERS,
    SESSION,
    Container,
    Node,
    post_message,
    push_body,
    until,
)

pytestmark = pytest.mark.anyio

LARGE_PAYLOAD = b"x" * (2 * bodies.LARGE)
START_LINE = f"POST {CHAN}invoke HTTP/1.1"
FIRST_CHUNK = b"1\r\n{\r\n"


def chunked_head(headers=None):
    """Return the head of an invoke whose body comes in chunks."""
    lines = [START_LINE, "host: x", "transfer-encoding: chunked"]
    for name, value in (headers or {}).items():
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode()


async def begin_body(stack, node):
    """Send the beginning of a chunked body and keep the connection open."""
    _, writer = await asyncio.open_connection(*node.socket.getsockname()[:2])
    stack.push_async_callback(writer.wait_closed)
    stack.callback(writer.close)
    writer.write(chunked_head() + FIRST_CHUNK)
    await writer.drain()


async def test_bodies_that_never_end_do_not_block_large_messages(make_node, client):
    alpha = await make_node("alpha", stall_for=3600.0)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(bodies.SLOT_COUNTS["large"] + bodies.SLOT_COUNTS["of anybody"]):
            await begin_body(stack, alpha)

        with anyio.fail_after(60):
            response = await client.post(
                alpha.url + CHAN + "invoke",
                content=json.dumps(push_body(LARGE_PAYLOAD)),
                headers=INVOKE_HEADERS | {"content-type": "application/json"},
            )

        assert response.json()["code"] == OK
        assert await Container(client, alpha).pop() == LARGE_PAYLOAD


async def test_a_silent_peer_does_not_block_large_messages_to_others(make_node, client):
    alpha = await make_node("alpha")
    end_of_silence = asyncio.Event()
    connections = []

    async def stay_silent(reader, writer):
        connections.append(writer)
        await end_of_silence.wait()
        writer.close()

    async with (
        await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server,
        anyio.create_task_group() as tasks,
    ):
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        alpha.routes["beta"] = Route(
            "beta",
            address,
            deadline=600.0,
        )
        container = Container(client, alpha)
        for _ in range(bodies.SLOT_COUNTS["large"]):
            tasks.start_soon(container.push, "beta", LARGE_PAYLOAD)
        await until(lambda: len(connections) >= bodies.SLOT_COUNTS["to one node"])

        with anyio.fail_after(60):
            assert await container.push("alpha", LARGE_PAYLOAD) == OK

        assert len(connections) == bodies.SLOT_COUNTS["to one node"]
        tasks.cancel_scope.cancel()
        end_of_silence.set()
    for writer in connections:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


SLOW_BODIES = [
    # the verb, its headers, the kind of slot, the size from which a message is large
    ("invoke", {"content-type": "application/json"}, "of anybody", 0),
    ("push", PUSH_HEADERS | {"content-length": "5000", "x-ptp-topic": "t"}, "large", 1000),
]


@pytest.mark.parametrize(
    ("verb", "headers", "slot", "large"),
    SLOW_BODIES,
)
async def test_a_trickling_body_is_refused_while_another_waits(
    local_node, local_client, monkeypatch, verb, headers, slot, large
):
    clock = iter(range(1_000_000))
    monkeypatch.setattr(anyio, "current_time", lambda: float(next(clock)))
    monkeypatch.setattr(bodies, "LARGE", large)
    responses = []

    async def trickle():
        for _ in range(500):
            yield b" "
            await anyio.lowlevel.checkpoint()

    async def send():
        response = await local_client.post(
            "http://x" + CHAN + verb, content=trickle(), headers=headers
        )
        responses.append(response.content)

    async with anyio.create_task_group() as group:
        for _ in range(bodies.SLOT_COUNTS[slot] + 1):
            group.start_soon(send)

    slow = [text for text in responses if b"upload too slow (minimum 32 KiB/s)" in text]
    assert slow
    # The last one may be slow, as no other body waits for its slot.
    assert len(slow) < len(responses)
    assert local_node.broker.backlog(SESSION) == []


async def test_two_full_gateways_of_a_node_forward_to_each_other(make_node, client, monkeypatch):
    monkeypatch.setattr(bodies, "LARGE", 1 << 15)
    monkeypatch.setitem(bodies.SLOT_COUNTS, "large", 1)
    both_full = threading.Barrier(
        2,
        timeout=300,
    )
    homes = {}

    def find_home(session):
        both_full.wait()  # each gateway has given away its only slot
        return Route("alpha", homes[session])

    first = await make_node("alpha", elsewhere=find_home)
    second = Node(
        "alpha",
        first.root.with_name("second"),
        elsewhere=find_home,
    )
    await second.start()
    homes["session_job-1"] = first.url
    homes["session_job-2"] = second.url
    push = push_body(b"x" * (1 << 16))
    codes = []

    async def send(node, session):
        headers = INVOKE_HEADERS | {"x-ptp-session-id": session}
        _, response = await post_message(
            client,
            node,
            "invoke",
            push,
            headers,
        )
        codes.append(response["code"])

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(send, first, "session_job-2")
            group.start_soon(send, second, "session_job-1")
        assert codes == [OK, OK]
    finally:
        await second.stop()
        second.socket.close()


async def test_a_body_without_progress_is_refused(make_node):
    """Attack: a sender begins a body and never ends it."""
    node = await make_node("alpha", stall_for=0.05)
    reader, writer = await asyncio.open_connection(*node.socket.getsockname()[:2])

    writer.write(chunked_head(INVOKE_HEADERS) + FIRST_CHUNK)

    assert b"pauses of more than 0.05 s" in await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()
