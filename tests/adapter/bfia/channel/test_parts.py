"""Long bare payloads, which pass in parts while they come: cuts, restarts, peers that take no parts, memory."""

import asyncio
import os
import tracemalloc
import zlib

import pytest

from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import LegacyOutbound
from gateway.broker import BrokerLimits
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, Container, until
from tests.adapter.bfia.channel.test_forms import Speaker
from tests.adapter.bfia.scripted import says, scripted, text

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LONG = os.urandom(5 * MIB + 7)
HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-topic": "t",
    "x-ptp-token": "writer",
    "x-ptp-target-node-id": "beta",
}


class Held:
    """A body of which a test lets out one piece after the other."""

    def __init__(self, payload, size=MIB):
        self.pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        self.let_out = asyncio.Semaphore(0)

    async def __aiter__(self):
        for piece in self.pieces:
            await self.let_out.acquire()
            yield piece

    def let(self, pieces):
        for _ in range(pieces):
            self.let_out.release()


def pushing(client, node, body, size=len(LONG), **headers):
    named = HEADERS | {"content-length": str(size)} | {k.replace("_", "-"): v for k, v in headers.items()}
    return asyncio.create_task(client.post(node.url + CHAN + "push", content=body, headers=named))


def code_of(response):
    return LegacyOutbound.FromString(response.content).code


def arrived(node):
    return sum(file.stat().st_size for file in node.root.glob("*/*.part"))


async def bring(client, node, part, **headers):
    named = (
        HEADERS
        | {"x-ptp-version": "1", "x-ptp-source-node-id": "alpha", "x-ptp-message-id": "m"}
        | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    return await client.post(node.url + CHAN + "transport", content=part, headers=named)


@pytest.mark.parametrize("target", ["alpha", "beta"])
@pytest.mark.parametrize("reads", Form)
async def test_a_long_payload_reaches_readers_of_each_form(alpha, beta, client, target, reads):
    assert await Speaker(client, alpha, Form.RAW).push(target, "t", LONG) == OK
    node = {"alpha": alpha, "beta": beta}[target]
    assert await Speaker(client, node, reads).pop("t") == (OK, LONG)


async def test_what_has_come_is_on_its_way_before_the_rest_is_there(alpha, beta, client):
    body = Held(LONG)
    push = pushing(client, alpha, body)
    body.let(3)
    await until(lambda: arrived(beta) >= 2 * MIB)
    body.let(3)
    assert code_of(await push) == OK
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)


async def test_a_long_payload_goes_on_where_the_peer_s_restart_cut_it(alpha, beta, client):
    body = Held(LONG)
    push = pushing(client, alpha, body)
    body.let(3)
    await until(lambda: arrived(beta) >= 2 * MIB)
    await beta.stop()
    body.let(3)
    await beta.start()
    assert code_of(await push) == OK
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)
    assert beta.broker.usage().messages == 0


async def test_a_repeat_of_a_long_push_is_stored_once(alpha, beta, client):
    for _ in range(2):
        assert code_of(await pushing(client, alpha, LONG, x_ptp_message_id="one")) == OK
    assert beta.broker.usage().messages == 1


async def test_a_sender_that_hangs_up_leaves_nothing_to_read(alpha, beta, client):
    body = Held(LONG)
    push = pushing(client, alpha, body)
    body.let(3)
    await until(lambda: arrived(beta) >= 2 * MIB)
    push.cancel()
    await asyncio.wait([push])
    assert (await Container(client, beta).peek()) == b""
    assert list(beta.root.glob("*/*.payload")) == []


async def test_a_peer_that_takes_no_parts_gets_the_whole(alpha, client):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url)
        peer.will(text(b"no such path", 404), says({"code": OK, "message": "success"}))
        answer = await pushing(client, alpha, LONG, x_ptp_target_node_id="peer")
        assert code_of(answer) == OK, answer.content
        first, whole = peer.asked
        assert (first.target, whole.target) == (CHAN + "transport", CHAN + "invoke")
        assert whole.raw == LONG


async def test_a_long_payload_waits_for_capacity_before_any_of_it_is_stored(make_node, client):
    beta = await make_node("beta", limits=BrokerLimits(session_bytes=6 * MIB))
    assert code_of(await pushing(client, beta, LONG)) == OK
    second = pushing(client, beta, LONG, x_ptp_token="another")
    await until(lambda: beta.broker._writers)
    assert arrived(beta) == 0
    assert (await Speaker(client, beta, Form.RAW).pop("t"))[1] == LONG
    assert code_of(await second) == OK


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "E0000000400"),
        ({"x_ptp_part": "0/1"}, "E0000000400"),
        ({"x_ptp_part": "0/2/00000000"}, "E0000000400"),
        ({"x_ptp_part": f"0/10/{zlib.crc32(b'part') ^ 1:08x}"}, "E0000000400"),
        ({"x_ptp_part": f"6/9/{zlib.crc32(b'part'):08x}"}, "E0000000400"),
        ({"x_ptp_part": f"3/9/{zlib.crc32(b'part'):08x}"}, "E0000000400"),
        ({"x_ptp_part": f"0/{1 << 40}/{zlib.crc32(b'part'):08x}"}, "E0000000413"),
        ({"x_ptp_part": f"0/9/{zlib.crc32(b'part'):08x}", "x_ptp_message_id": ""}, "E0000000400"),
        ({"x_ptp_part": f"0/9/{zlib.crc32(b'part'):08x}", "x_ptp_source_node_id": "nobody"}, "E0000000618"),
    ],
)
async def test_a_part_that_cannot_be_right_is_refused_and_not_stored(beta, client, headers, code):
    response = await bring(client, beta, b"part", **headers)
    assert code_of(response) == code
    assert beta.broker.usage() == (0, 0, 0)
    assert arrived(beta) == 0


async def test_memory_does_not_grow_with_a_payload(alpha, beta, client):
    size = 48 * MIB

    async def body():
        piece = bytes(MIB // 4)
        for _ in range(size // len(piece)):
            yield piece

    tracemalloc.start()
    try:
        assert code_of(await pushing(client, alpha, body(), size)) == OK
        headers = HEADERS | {"x-ptp-token": "reader", "x-ptp-target-node-id": ""}
        async with client.stream("POST", beta.url + CHAN + "pop", headers=headers) as response:
            assert sum([len(piece) async for piece in response.aiter_raw()]) > size
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()
