"""Long bare payloads, which pass in parts while they come: cuts, restarts, peers that take no parts, memory."""

import asyncio
import base64
import json
import os
import tracemalloc
import zlib
from collections.abc import AsyncGenerator

import anyio
import pytest

from adapter.bfia.channel import bodies, forms
from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import LegacyOutbound, PushInbound
from gateway.broker import BrokerLimits
from gateway.errors import NotAllowed
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, Container, Node, until
from tests.adapter.bfia.channel.test_forms import Speaker
from tests.adapter.bfia.scripted import says, scripted, text

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("known_job")]

MIB = 1 << 20
LONG = os.urandom(5 * MIB + 7)
HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-topic": "t",
    "x-ptp-token": "writer",
    "x-ptp-target-node-id": "beta",
}


@pytest.fixture
def known_job(monkeypatch):
    """Each node knows the job of the session, as it does when a container of it runs."""
    begin = Node.open

    def known(node):
        node.sessions = node.sessions or {SESSION: True}
        begin(node)

    monkeypatch.setattr(Node, "open", known)
    monkeypatch.setattr(bodies, "PART", MIB)


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


def pushing(
    client,
    node,
    body,
    size=len(LONG),
    **headers,
):
    named = (
        HEADERS
        | {"content-length": str(size)}
        | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    return asyncio.create_task(client.post(node.url + CHAN + "push", content=body, headers=named))


async def begun(
    client,
    node,
    peer,
    **headers,
):
    """Begins a long push, of which two parts are with the peer; the rest is held."""
    body = Held(LONG)
    push = pushing(client, node, body, **headers)
    body.let(3)
    await until(lambda: arrived(peer) >= 2 * MIB)
    return body, push


def code_of(response):
    return LegacyOutbound.FromString(response.content).code


def arrived(node):
    """Returns how many bytes of messages in parts count at a node: it is said behind each."""
    return sum(
        int.from_bytes(file.read_bytes()[-8:], "little") for file in node.root.glob("*/*.part")
    )


async def bring(
    client,
    node,
    part,
    offset=0,
    size=2 * MIB,
    **headers,
):
    named = (
        HEADERS
        | {
            "x-ptp-version": "1",
            "x-ptp-source-node-id": "alpha",
            "x-ptp-message-id": "m",
        }
        | {"x-ptp-part": f"{offset}/{size}/{zlib.crc32(part):08x}"}
        | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    return await client.post(node.url + CHAN + "part", content=part, headers=named)


@pytest.mark.parametrize(
    ("target", "reads", "part"),
    [("alpha", Form.JSON, MIB), ("beta", Form.PROTOBUF, MIB), ("beta", Form.RAW, 8 * MIB)],
)
async def test_a_long_payload_reaches_readers_of_each_form(
    alpha,
    beta,
    client,
    monkeypatch,
    target,
    reads,
    part,
):
    monkeypatch.setattr(bodies, "PART", part)
    assert await Speaker(client, alpha, Form.RAW).push(target, "t", LONG) == OK
    node = {"alpha": alpha, "beta": beta}[target]
    assert [file.stat().st_size for file in node.root.glob("*/*.payload")] == [len(LONG)]
    assert await Speaker(client, node, reads).pop("t") == (OK, LONG)


async def test_a_long_payload_resumes_where_the_peer_restarted(
    alpha,
    beta,
    client,
):
    body, push = await begun(client, alpha, beta)
    await beta.stop()
    body.let(3)
    await beta.start()
    assert code_of(await push) == OK
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)
    assert beta.broker.usage().messages == 0


async def test_a_sender_that_hangs_up_leaves_nothing_to_read(
    alpha,
    beta,
    client,
):
    _, push = await begun(client, alpha, beta)
    push.cancel()
    await asyncio.wait([push])
    assert (await Container(client, beta).peek()) == b""
    assert list(beta.root.glob("*/*.payload")) == []


@pytest.mark.parametrize(
    "first",
    [
        text(b"no such path", 404),
        text(b"no such path", 500),
        says({"code": "E0000000614", "message": ""}),
    ],
)
async def test_a_peer_that_takes_no_parts_gets_the_whole(
    alpha,
    client,
    first,
):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url)
        peer.will(first, says({"code": OK, "message": "success"}))
        answer = await pushing(client, alpha, LONG, x_ptp_target_node_id="peer")
        assert code_of(answer) == OK, answer.content
        first, whole = peer.asked
        assert first.target == CHAN + "part"
        assert whole.target == CHAN + "invoke"
        assert whole.raw == LONG


async def test_a_part_that_the_peer_refuses_ends_the_message(alpha, client):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url)
        peer.will(
            says({"code": OK}), says({"code": "E0000000608", "message": "the session has ended"})
        )
        assert (
            code_of(await pushing(client, alpha, LONG, x_ptp_target_node_id="peer"))
            == "E0000000608"
        )
        assert len(peer.asked) == 2


async def test_a_part_that_is_cut_in_the_middle_is_brought_again(
    alpha,
    beta,
    client,
):
    """The first connection of each part ends within its body, the second after it: its answer is lost."""
    cut = []

    async def passed_on(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split(b"x-ptp-part: ")[1].split(b"\r\n")[0]
        cut.append(name)
        size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        times = cut.count(name)
        body = await reader.readexactly(size // 2 if times == 1 else size)
        there_in, there_out = await asyncio.open_connection(*beta.socket.getsockname()[:2])
        try:
            there_out.write(head + body)
            await there_out.drain()
            if times > 1:
                answer = await there_in.readuntil(b"\r\n\r\n")
                answer += await there_in.readexactly(
                    int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
                )
                writer.write(answer[: len(answer) // 2] if times == 2 else answer)
                await writer.drain()
        finally:
            for end in (writer, there_out):
                end.close()

    async with await asyncio.start_server(passed_on, "127.0.0.1", 0, limit=2 * MIB) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        alpha.routes["beta"] = Route("beta", address)
        assert code_of(await pushing(client, alpha, LONG)) == OK
    assert sorted(cut) == sorted(3 * list(dict.fromkeys(cut)))
    assert len(cut) == 18
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)
    assert beta.broker.usage().messages == 0


async def test_a_message_of_which_the_peer_lost_a_part_is_to_be_pushed_again(
    alpha,
    beta,
    client,
):
    body, push = await begun(client, alpha, beta)
    await beta.stop()
    for file in beta.root.glob("*/*.part"):
        file.unlink()
    body.let(3)
    await beta.start()
    answer = LegacyOutbound.FromString((await push).content)
    assert answer.code == "E0000000700"
    assert "push again" in answer.message
    assert beta.broker.usage() == (1, 0, 0)


async def test_parts_are_forwarded_to_the_gateway_that_has_the_session(
    make_node,
    alpha,
    client,
):
    home = await make_node("beta")
    first = Node(
        "beta", home.root.with_name("first"), elsewhere=lambda session: Route("beta", home.url)
    )
    await first.start()
    alpha.routes["beta"] = Route("beta", first.url)
    try:
        assert code_of(await pushing(client, alpha, LONG)) == OK
        assert not first.broker.sessions()
        assert await Speaker(client, home, Form.RAW).pop("t") == (OK, LONG)
    finally:
        await first.stop()
        first.socket.close()


async def test_the_part_of_a_stranger_is_not_stored(
    make_node,
    alpha,
    client,
):
    """Attack: a partner of this node brings parts for the session of a job in which it has no part."""
    beta = await make_node("beta", may_bring=lambda node, session: node == "alpha")
    beta.known.add("stranger")
    alpha.routes["beta"] = Route("beta", beta.url)
    body, push = await begun(client, alpha, beta, x_ptp_message_id="m")
    for named in ({}, {"x_ptp_message_id": "other"}):
        evil = await bring(
            client,
            beta,
            bytes(MIB),
            size=len(LONG),
            x_ptp_source_node_id="stranger",
            **named,
        )
        assert code_of(evil) == "E0000000614"
    body.let(3)
    assert code_of(await push) == OK
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)


async def test_the_session_of_another_run_takes_no_long_push(make_node, client):
    """Attack: a container announces a long message for a session that is not its own."""

    def run_of(claim):
        raise NotAllowed("x-ptp-session-id is not this run's session")

    beta = await make_node("beta")
    beta.run_of = run_of
    await beta.stop()
    await beta.start()
    assert code_of(await pushing(client, beta, LONG)) == "E0000000403"
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_long_payload_waits_for_capacity_before_any_of_it_is_stored(make_node, client):
    beta = await make_node("beta", limits=BrokerLimits(session_bytes=6 * MIB))
    assert code_of(await pushing(client, beta, LONG)) == OK
    second = pushing(client, beta, LONG, x_ptp_token="another")
    await until(lambda: beta.broker._capacity._queues)
    assert arrived(beta) == 0
    assert (await Speaker(client, beta, Form.RAW).pop("t"))[1] == LONG
    assert code_of(await second) == OK


WRONG_PARTS = [
    ({"x_ptp_part": ""}, "E0000000400"),
    ({"x_ptp_part": "0/1"}, "E0000000400"),
    ({"x_ptp_part": "-4/9/00000000"}, "E0000000400"),
    ({"x_ptp_part": f"0/{'9' * 400}/00000000"}, "E0000000400"),
    ({"size": 2}, "E0000000400"),
    ({"x_ptp_part": f"0/10/{zlib.crc32(b'part') ^ 1:08x}"}, "E0000000400"),
    ({"offset": 8, "size": 9}, "E0000000400"),
    ({"offset": 3, "size": 9}, "E0000000400"),
    ({"offset": 12, "size": 9}, "E0000000400"),
    ({"offset": 4, "size": 9}, "E0000000404"),
    ({"part": b"par", "size": 9}, "E0000000400"),
    ({"part": b"parts", "size": 9}, "E0000000413"),
    ({"size": 1 << 40}, "E0000000413"),
    ({"x_ptp_message_id": ""}, "E0000000400"),
    ({"x_ptp_source_node_id": "nobody"}, "E0000000618"),
    ({"x_ptp_target_node_id": "alpha"}, "E0000000503"),
    ({"x_ptp_session_id": "session_of-no-job"}, "E0000000614"),
    ({"x_ptp_uri": "/v1/interconn/chan/pop"}, "E0000000404"),
]


async def test_a_part_that_cannot_be_right_is_refused_and_not_stored(
    beta,
    client,
    monkeypatch,
):
    monkeypatch.setattr(bodies, "PART", 4)
    for wrong, code in WRONG_PARTS:
        response = await bring(client, beta, **{"part": b"part", "size": 9} | wrong)
        assert code_of(response) == code, (wrong, response.content)
        assert beta.broker.usage() == (0, 0, 0)
        assert arrived(beta) == 0


@pytest.mark.parametrize(
    ("form", "target"),
    [(Form.JSON, "beta"), (Form.PROTOBUF, "alpha"), (Form.RAW, "alpha"), (Form.RAW, "beta")],
)
async def test_a_long_message_is_never_in_memory_twice(
    alpha,
    beta,
    client,
    form,
    target,
):
    """A bare payload is not even once; others are once at the first gateway, as they came."""
    piece = bytes(3 * MIB // 4)
    text = base64.b64encode(piece) if form is Form.JSON else piece
    begin, end = {
        Form.JSON: (b'{"topic": "t", "payload": "', b'", "metadata": {"sequence": "1"}}'),
        Form.PROTOBUF: (forms.begin(PushInbound(topic="t"), 64 * len(piece)), b""),
        Form.RAW: (b"", b""),
    }[form]

    async def body():
        yield begin
        for _ in range(64):
            yield text
        yield end

    size = len(begin) + 64 * len(text) + len(end)
    node = {"alpha": alpha, "beta": beta}[target]
    tracemalloc.start()
    try:
        kind = form.value if form is not Form.RAW else "application/octet-stream"
        headers = HEADERS | {
            "x-ptp-target-node-id": target,
            "content-type": kind,
            "content-length": str(size),
        }
        answer = await client.post(alpha.url + CHAN + "push", content=body(), headers=headers)
        assert decode_answer(answer.content, answer.headers["content-type"]).code == OK
        headers = HEADERS | {"x-ptp-token": "reader", "x-ptp-target-node-id": ""}
        async with client.stream("POST", node.url + CHAN + "pop", headers=headers) as response:
            assert sum([len(piece) async for piece in response.aiter_raw()]) > 64 * len(piece)
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB + (0 if form is Form.RAW else size)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", [Form.JSON, Form.PROTOBUF])
async def test_long_messages_of_all_forms_resume_and_are_stored_once(
    alpha,
    beta,
    client,
    form,
    monkeypatch,
):
    """The second push is a repeat, which is recognised although the first came to a node that knew no such job."""
    sent = []
    invoke = alpha.parts.courier.invoke

    async def counted(
        route,
        body,
        headers,
        retry_for,
        path,
        may_be_unknown=False,
    ):
        sent.append(path.rpartition("/")[2])
        return await invoke(route, body, headers, retry_for, path, may_be_unknown)

    monkeypatch.setattr(alpha.parts.courier, "invoke", counted)
    fields = {"metadata": {"sequence": "7"}}
    payload = {"topic": "t", "payload": base64.b64encode(LONG).decode()} | fields
    body = PushInbound(
        topic="t",
        payload=LONG,
        **fields,
    ).SerializeToString()
    body = json.dumps(payload).encode() if form is Form.JSON else body
    headers = HEADERS | {"content-type": form.value}
    for known in (False, True):
        await beta.stop()
        beta.sessions = {SESSION: True} if known else {"other": True}
        await beta.start()
        answer = await client.post(alpha.url + CHAN + "push", content=body, headers=headers)
        assert decode_answer(answer.content, form.value).code == OK
    assert sent == ["part", "invoke"] + 6 * ["part"]
    assert beta.broker.usage().messages == 1
    assert await Speaker(client, beta, Form.RAW).pop("t") == (OK, LONG)


# ------------------------------------------- a part comes while the one before is brought on


async def test_the_next_item_comes_while_one_is_in_hand_and_no_more_than_one():
    came = []

    async def items() -> AsyncGenerator[int]:
        for n in range(4):
            came.append(n)
            yield n

    seen = []
    async for item in bodies.prefetch(items()):
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        seen.append((item, len(came)))
    assert seen == [(0, 1), (1, 3), (2, 4), (3, 4)]


async def test_what_comes_ends_with_who_takes_it():
    ended = []

    async def items() -> AsyncGenerator[int]:
        try:
            yield 0
            yield 1
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    for most in (1, 2):
        taken = bodies.prefetch(items())
        assert [await anext(taken) for _ in range(most)] == [0, 1][:most]
        await anyio.lowlevel.checkpoint()
        await taken.aclose()
        assert ended == [True] * most


async def test_an_error_of_what_comes_is_raised_where_it_would_have_come():
    async def items() -> AsyncGenerator[int]:
        yield 0
        yield 1
        raise ValueError("cut")

    taken = bodies.prefetch(items())
    assert [await anext(taken), await anext(taken)] == [0, 1]
    with pytest.raises(ValueError, match="cut"):
        await anext(taken)
