"""Senders that nobody knows take neither the places of large messages nor the event loop."""

import asyncio
import base64
import contextlib
import json
import threading

import anyio
import pytest

from adapter.bfia.channel import bodies
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, Container, Node, until
from tests.adapter.bfia.channel.test_refusals import INVOKE_HEADERS, PUSH_HEADERS, ask

pytestmark = pytest.mark.anyio

CHUNKED = f"POST {CHAN}invoke HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_bodies_that_never_end_keep_no_large_message_out(make_node, client):
    alpha = await make_node("alpha", stall_for=3600.0)
    async with contextlib.AsyncExitStack() as open_:
        for _ in range(bodies.AT_ONCE["large"] + bodies.AT_ONCE["of anybody"]):
            _, writer = await asyncio.open_connection(*alpha.socket.getsockname()[:2])
            open_.push_async_callback(writer.wait_closed)
            open_.callback(writer.close)
            writer.write(CHUNKED.encode() + b"1\r\n{\r\n")
            await writer.drain()
        large = b"x" * (2 * bodies.LARGE)
        push = {"topic": "t", "payload": base64.b64encode(large).decode()}
        with anyio.fail_after(60):
            url, kind = alpha.url + CHAN + "invoke", {"content-type": "application/json"}
            answer = await client.post(url, content=json.dumps(push), headers=INVOKE_HEADERS | kind)
        assert answer.json()["code"] == OK
        assert await Container(client, alpha).pop() == large


async def test_messages_to_a_node_that_is_silent_keep_no_other_large_message_out(make_node, client):
    alpha, let_go, reached = await make_node("alpha"), asyncio.Event(), []

    async def silent(reader, writer):
        reached.append(writer)
        await let_go.wait()
        writer.close()

    large = b"x" * (2 * bodies.LARGE)
    async with (
        await asyncio.start_server(silent, "127.0.0.1", 0) as server,
        anyio.create_task_group() as tasks,
    ):
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        alpha.routes["beta"] = Route("beta", address, deadline=600.0)
        container = Container(client, alpha)
        for _ in range(bodies.AT_ONCE["large"]):
            tasks.start_soon(container.push, "beta", large)
        await until(lambda: len(reached) >= bodies.AT_ONCE["to one node"])
        with anyio.fail_after(60):
            assert await container.push("alpha", large) == OK
        assert len(reached) == bodies.AT_ONCE["to one node"]
        tasks.cancel_scope.cancel()
        let_go.set()
    for writer in reached:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("verb", "headers", "kind"),
    [
        ("invoke", {"content-type": "application/json"}, "of anybody"),
        ("push", PUSH_HEADERS | {"content-length": "5000", "x-ptp-topic": "t"}, "large"),
    ],
)
async def test_a_trickling_body_is_refused_while_another_waits(
    desk,
    caller,
    monkeypatch,
    verb,
    headers,
    kind,
):
    now = iter(range(1_000_000))
    monkeypatch.setattr(anyio, "current_time", lambda: float(next(now)))
    monkeypatch.setattr(bodies, "LARGE", 0 if verb == "invoke" else 1000)

    async def drops():
        for _ in range(500):
            yield b" "
            await anyio.lowlevel.checkpoint()

    said = []

    async def send():
        answer = await caller.post("http://x" + CHAN + verb, content=drops(), headers=headers)
        said.append(answer.content)

    async with anyio.create_task_group() as group:
        for _ in range(bodies.AT_ONCE[kind] + 1):
            group.start_soon(send)
    slow = [text for text in said if b"upload too slow (minimum 32 KiB/s)" in text]
    assert 0 < len(slow) < len(said), said  # who waited has its time, with nobody behind it
    assert desk.broker.backlog(SESSION) == []


async def test_two_gateways_of_a_node_forward_to_each_other_while_both_are_full(
    make_node,
    client,
    monkeypatch,
):
    monkeypatch.setattr(bodies, "LARGE", 1 << 15)
    monkeypatch.setitem(bodies.AT_ONCE, "large", 1)
    both, homes = threading.Barrier(2, timeout=60), {}

    def elsewhere(session):
        both.wait()  # each has taken its only place
        return Route("alpha", homes[session])

    first = await make_node("alpha", elsewhere=elsewhere)
    second = Node("alpha", first.root.with_name("second"), elsewhere=elsewhere)
    await second.start()
    homes.update({"session_job-1": first.url, "session_job-2": second.url})
    push = {"topic": "t", "payload": base64.b64encode(b"x" * (1 << 16)).decode()}
    codes = []

    async def send(node, session):
        _, answer = await ask(
            client, node, "invoke", push, INVOKE_HEADERS | {"x-ptp-session-id": session}
        )
        codes.append(answer["code"])

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(send, first, "session_job-2")
            group.start_soon(send, second, "session_job-1")
        assert codes == [OK, OK]
    finally:
        await second.stop()
        second.socket.close()


async def test_a_body_that_stands_still_is_refused(make_node):
    """Attack: a sender begins a body and never ends it."""
    node = await make_node("alpha", stall_for=0.05)
    reader, writer = await asyncio.open_connection(*node.socket.getsockname()[:2])
    headers = "".join(f"{name}: {value}\r\n" for name, value in INVOKE_HEADERS.items())
    writer.write(CHUNKED.replace("\r\n\r\n", f"\r\n{headers}\r\n").encode() + b"1\r\n{\r\n")
    assert b"pauses of more than 0.05 s" in await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()
