"""Long payloads pass in parts while they arrive: cuts, restarts, peers without parts, memory."""

import asyncio
import base64
import json
import os
import threading
import tracemalloc
import zlib
from collections.abc import AsyncGenerator

import anyio
import pytest

from adapter.bfia.channel import bodies, message_forms
from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.ptp_pb2 import LegacyOutbound, PushInbound
from gateway.broker import BrokerLimits
from gateway.errors import NotAllowed
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    CHAN,
    OK,
    SESSION,
    Container,
    Node,
    dashed,
    push_body,
    until,
    until_push_waits,
)
from tests.adapter.bfia.channel.test_message_forms import Speaker
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
# Headers of alpha that brings a part of a message to beta.
PART_HEADERS = HEADERS | {
    "x-ptp-version": "1",
    "x-ptp-source-node-id": "alpha",
    "x-ptp-message-id": "m",
}

# Codes of refusals.
INVALID = "E0000000400"
NOT_ALLOWED = "E0000000403"
NO_SUCH_PATH = "E0000000404"
TOO_LARGE = "E0000000413"
WRONG_NODE = "E0000000503"
ENDED = "E0000000608"
NO_PARTS = "E0000000614"
UNKNOWN_NODE = "E0000000618"
TRY_AGAIN = "E0000000700"


@pytest.fixture
def known_job(monkeypatch):
    """Each node knows the job of the session, as it does while a container of the job runs.

    Parts have one MiB.
    """
    open_node = Node.open

    def open_with_job(node):
        node.sessions = node.sessions or {SESSION: True}
        open_node(node)

    monkeypatch.setattr(Node, "open", open_with_job)
    monkeypatch.setattr(bodies, "PART", MIB)


class PausedBody:
    """A request body that sends its next piece when the test releases it."""

    def __init__(self, payload, size=MIB):
        self.pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        self.released = asyncio.Semaphore(0)

    async def __aiter__(self):
        for piece in self.pieces:
            await self.released.acquire()
            yield piece

    def release(self, pieces):
        """Let ``pieces`` further pieces be sent."""
        for _ in range(pieces):
            self.released.release()


def start_push(
    client,
    node,
    body,
    size=len(LONG),
    **headers,
):
    """Begin a push of a bare payload; return its task."""
    all_headers = HEADERS | {"content-length": str(size)} | dashed(headers)
    push = client.post(
        node.url + CHAN + "push",
        content=body,
        headers=all_headers,
    )
    return asyncio.create_task(push)


async def start_paused_push(client, node, peer, **headers):
    """Begin a long push and pause it when the peer has two parts; return the body and the task."""
    body = PausedBody(LONG)
    push = start_push(client, node, body, **headers)
    body.release(3)
    await until(lambda: bytes_in_parts(peer) >= 2 * MIB)
    return body, push


def bytes_in_parts(node):
    """Return how many bytes of unfinished messages count at a node.

    The last eight bytes of each file are the number of its valid bytes.
    """
    files = node.root.glob("*/*.part")
    return sum(int.from_bytes(file.read_bytes()[-8:], "little") for file in files)


def payload_sizes(node):
    """Return the sizes of the long payloads that a node stores."""
    return [file.stat().st_size for file in node.root.glob("*/*.payload")]


def code_of(response):
    """Return the code of a response to a bare payload."""
    return LegacyOutbound.FromString(response.content).code


async def post_part(
    client,
    node,
    part,
    offset=0,
    size=2 * MIB,
    **headers,
):
    """Bring a part of a message as the peer alpha does."""
    part_header = {"x-ptp-part": f"{offset}/{size}/{zlib.crc32(part):08x}"}
    return await client.post(
        node.url + CHAN + "part",
        content=part,
        headers=PART_HEADERS | part_header | dashed(headers),
    )


async def pop_bare(client, node):
    """Return code and payload of the next message of a node."""
    return await Speaker(client, node, Form.RAW).pop("t")


@pytest.mark.parametrize(
    ("target", "form", "part"),
    [
        ("alpha", Form.JSON, MIB),
        ("beta", Form.PROTOBUF, MIB),
        ("beta", Form.RAW, 8 * MIB),
    ],
)
async def test_a_long_payload_reaches_readers_of_each_form(
    alpha, beta, client, monkeypatch, target, form, part
):
    monkeypatch.setattr(bodies, "PART", part)
    target_node = {"alpha": alpha, "beta": beta}[target]

    assert await Speaker(client, alpha, Form.RAW).push(target, "t", LONG) == OK

    assert payload_sizes(target_node) == [len(LONG)]
    assert await Speaker(client, target_node, form).pop("t") == (OK, LONG)


async def test_a_long_payload_resumes_after_a_restart_of_the_peer(alpha, beta, client):
    body, push = await start_paused_push(client, alpha, beta)

    await beta.stop()
    body.release(3)
    await beta.start()

    assert code_of(await push) == OK
    assert await pop_bare(client, beta) == (OK, LONG)
    assert beta.broker.usage().messages == 0


async def test_a_sender_that_hangs_up_leaves_nothing_to_read(alpha, beta, client):
    _, push = await start_paused_push(client, alpha, beta)

    push.cancel()
    await asyncio.wait([push])

    assert await Container(client, beta).peek() == b""
    assert payload_sizes(beta) == []


@pytest.mark.parametrize(
    "refusal",
    [
        text(b"no such path", 404),
        text(b"no such path", 500),
        says({"code": NO_PARTS, "message": ""}),
    ],
)
async def test_a_peer_that_takes_no_parts_gets_the_whole(alpha, client, refusal):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url)
        peer.will(
            refusal,
            says({"code": OK, "message": "success"}),
        )

        response = await start_push(
            client,
            alpha,
            LONG,
            x_ptp_target_node_id="peer",
        )

        assert code_of(response) == OK, response.content
        part, invoke = peer.requests
    assert part.target == CHAN + "part"
    assert invoke.target == CHAN + "invoke"
    assert invoke.raw == LONG


async def test_a_part_that_the_peer_refuses_ends_the_message(alpha, client):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url, parallel=1)
        ended = says({"code": ENDED, "message": "the session has ended"})
        peer.will(says({"code": OK}), ended)

        response = await start_push(
            client,
            alpha,
            LONG,
            x_ptp_target_node_id="peer",
        )

        assert code_of(response) == ENDED
        # The part after the refused one may be under way already.
        assert 2 <= len(peer.requests) <= 3


class CrowdedProxy:
    """Passes parts on; while another one is under way, a part in the middle waits for it."""

    def __init__(self, node, width):
        self.node = node
        self.width = width
        self.most = 0  # parts under way together
        self._count = 0
        self._full = asyncio.Event()

    async def __call__(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(header_of(head, b"content-length")))
        offset = int(header_of(head, b"x-ptp-part").split(b"/")[0])
        self._count += 1
        self.most = max(self.most, self._count)
        if self.most == self.width:
            self._full.set()
        if offset == MIB:  # the second part arrives after the others that are under way
            await self._full.wait()
        node_reader, node_writer = await asyncio.open_connection(
            *self.node.socket.getsockname()[:2]
        )
        node_writer.write(head + body)
        response = await read_response(node_reader)
        self._count -= 1
        writer.write(response)
        await writer.drain()
        writer.close()
        node_writer.close()


@pytest.mark.parametrize("parallel", [1, 2])
async def test_parts_of_a_message_are_under_way_together(alpha, beta, client, parallel):
    under_way = 2 * parallel  # half of them wait for their replies while the others are sent
    proxy = CrowdedProxy(beta, under_way)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0, limit=2 * MIB) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        alpha.routes["beta"] = Route("beta", address, parallel=parallel)

        assert code_of(await start_push(client, alpha, LONG)) == OK

    assert proxy.most == under_way
    assert await pop_bare(client, beta) == (OK, LONG)


class OrderlyPeer:
    """Answers parts as a gateway did that took them only in their order."""

    def __init__(self):
        self.offsets = []  # of the parts that came
        self.taken = []  # offsets of the parts that were taken
        self._lock = threading.Lock()

    def __call__(self, handler):
        offset = int(handler.headers["x-ptp-part"].split("/")[0])
        with self._lock:
            is_first_of_third = offset == 2 * MIB and offset not in self.offsets
            is_early = is_first_of_third or offset != len(self.taken) * MIB
            self.offsets.append(offset)
            answer = {"code": NO_SUCH_PATH, "message": "earlier bytes are missing"}
            if not is_early:
                self.taken.append(offset)
                answer = {"code": OK}
        says(answer)(handler)


async def test_a_peer_that_wants_parts_in_order_gets_them_so(alpha, client):
    orderly = OrderlyPeer()
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url)
        peer.will(orderly)

        push = start_push(client, alpha, LONG, x_ptp_target_node_id="peer")
        assert code_of(await push) == OK

    assert orderly.taken == [number * MIB for number in range(6)]
    assert orderly.offsets[-1] == 5 * MIB


class CuttingProxy:
    """Passes each part on at the third attempt only.

    The first connection ends within the part's body, the second within its response.
    """

    def __init__(self, node):
        self.node = node
        self.attempts = []  # the header x-ptp-part of each connection

    async def __call__(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        part = header_of(head, b"x-ptp-part")
        size = int(header_of(head, b"content-length"))
        self.attempts.append(part)
        attempt = self.attempts.count(part)
        if attempt == 1:
            size //= 2
        body = await reader.readexactly(size)
        node_reader, node_writer = await asyncio.open_connection(
            *self.node.socket.getsockname()[:2]
        )
        try:
            node_writer.write(head + body)
            await node_writer.drain()
            if attempt > 1:
                response = await read_response(node_reader)
                if attempt == 2:
                    response = response[: len(response) // 2]
                writer.write(response)
                await writer.drain()
        finally:
            writer.close()
            node_writer.close()


def header_of(head, name):
    """Return the value of a header, as bytes."""
    return head.split(name + b": ")[1].split(b"\r\n")[0]


async def read_response(reader):
    """Read a response with a content length; return its bytes."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(int(header_of(head, b"content-length")))


async def test_a_part_that_is_cut_in_the_middle_is_sent_again(alpha, beta, client):
    proxy = CuttingProxy(beta)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0, limit=2 * MIB) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        alpha.routes["beta"] = Route("beta", address)

        assert code_of(await start_push(client, alpha, LONG)) == OK

    assert len(proxy.attempts) == 18
    parts = set(proxy.attempts)
    for part in parts:
        assert proxy.attempts.count(part) == 3
    assert await pop_bare(client, beta) == (OK, LONG)
    assert beta.broker.usage().messages == 0


async def test_a_message_that_lost_a_part_at_the_peer_must_be_pushed_again(alpha, beta, client):
    body, push = await start_paused_push(client, alpha, beta)

    await beta.stop()
    for file in beta.root.glob("*/*.part"):
        file.unlink()
    body.release(3)
    await beta.start()

    refused = LegacyOutbound.FromString((await push).content)
    assert refused.code == TRY_AGAIN
    assert "push again" in refused.message
    assert beta.broker.usage() == (1, 0, 0)


async def test_parts_are_forwarded_to_the_gateway_that_has_the_session(make_node, alpha, client):
    home = await make_node("beta")

    def find_home(session):
        return Route("beta", home.url)

    first = Node(
        "beta",
        home.root.with_name("first"),
        elsewhere=find_home,
    )
    await first.start()
    alpha.routes["beta"] = Route("beta", first.url)
    try:
        assert code_of(await start_push(client, alpha, LONG)) == OK
        assert not first.broker.sessions()
        assert await pop_bare(client, home) == (OK, LONG)
    finally:
        await first.stop()
        first.socket.close()


def only_alpha(node, session):
    """Return whether a node may bring messages of a session: the job's partner is alpha."""
    return node == "alpha"


async def test_the_part_of_a_stranger_is_not_stored(make_node, alpha, client):
    """Attack: a partner of the node brings parts for the session of a job of other nodes."""
    beta = await make_node("beta", may_bring=only_alpha)
    beta.senders.add("stranger")
    alpha.routes["beta"] = Route("beta", beta.url)
    body, push = await start_paused_push(
        client,
        alpha,
        beta,
        x_ptp_message_id="m",
    )

    for message_id in ("m", "other"):
        response = await post_part(
            client,
            beta,
            bytes(MIB),
            size=len(LONG),
            x_ptp_source_node_id="stranger",
            x_ptp_message_id=message_id,
        )
        assert code_of(response) == NO_PARTS, message_id

    body.release(3)
    assert code_of(await push) == OK
    assert await pop_bare(client, beta) == (OK, LONG)


async def test_a_long_push_to_the_session_of_another_run_is_refused(make_node, client):
    """Attack: a container announces a long message for a session that is not its own."""

    def refuse_session(claim):
        raise NotAllowed("x-ptp-session-id is not this run's session")

    beta = await make_node("beta")
    beta.run_of = refuse_session
    await beta.stop()
    await beta.start()

    assert code_of(await start_push(client, beta, LONG)) == NOT_ALLOWED

    assert beta.broker.usage() == (0, 0, 0)


async def test_a_long_payload_waits_for_capacity_before_any_of_it_is_stored(make_node, client):
    beta = await make_node("beta", limits=BrokerLimits(session_bytes=6 * MIB))
    assert code_of(await start_push(client, beta, LONG)) == OK

    second = start_push(
        client,
        beta,
        LONG,
        x_ptp_token="another",
    )
    await until_push_waits(beta)

    assert bytes_in_parts(beta) == 0
    assert await pop_bare(client, beta) == (OK, LONG)
    assert code_of(await second) == OK


WRONG_CHECKSUM = zlib.crc32(b"part") ^ 1
WRONG_PARTS = {
    # arguments of `post_part` that differ from a right part of 4 bytes of 9; the code
    "no header": (
        {"x_ptp_part": ""},
        INVALID,
    ),
    "two fields": (
        {"x_ptp_part": "0/1"},
        INVALID,
    ),
    "negative offset": (
        {"x_ptp_part": "-4/9/00000000"},
        INVALID,
    ),
    "huge size": (
        {"x_ptp_part": f"0/{'9' * 400}/00000000"},
        INVALID,
    ),
    "longer than the message": (
        {"size": 2},
        INVALID,
    ),
    "wrong checksum": (
        {"x_ptp_part": f"0/10/{WRONG_CHECKSUM:08x}"},
        INVALID,
    ),
    "past the end": (
        {"offset": 8, "size": 9},
        INVALID,
    ),
    "between parts": (
        {"offset": 3, "size": 9},
        INVALID,
    ),
    "behind the message": (
        {"offset": 12, "size": 9},
        INVALID,
    ),
    "second without first": (
        {"offset": 4, "size": 9},
        NO_SUCH_PATH,
    ),
    "too short": (
        {"part": b"par", "size": 9},
        INVALID,
    ),
    "too long": (
        {"part": b"parts", "size": 9},
        TOO_LARGE,
    ),
    "message of a TiB": (
        {"size": 1 << 40},
        TOO_LARGE,
    ),
    "no message id": (
        {"x_ptp_message_id": ""},
        INVALID,
    ),
    "unknown source": (
        {"x_ptp_source_node_id": "nobody"},
        UNKNOWN_NODE,
    ),
    "wrong target": (
        {"x_ptp_target_node_id": "alpha"},
        WRONG_NODE,
    ),
    "session of no job": (
        {"x_ptp_session_id": "session_of-no-job"},
        NO_PARTS,
    ),
    "wrong verb": (
        {"x_ptp_uri": "/v1/interconn/chan/pop"},
        NO_SUCH_PATH,
    ),
}


async def test_a_wrong_part_is_refused_and_not_stored(beta, client, monkeypatch):
    monkeypatch.setattr(bodies, "PART", 4)
    right = {"part": b"part", "size": 9}
    for name, (changes, code) in WRONG_PARTS.items():
        response = await post_part(client, beta, **right | changes)

        assert code_of(response) == code, (name, response.content)
        assert beta.broker.usage() == (0, 0, 0)
        assert bytes_in_parts(beta) == 0


# ------------------------------------------------------------ memory


PIECE = bytes(3 * MIB // 4)
PIECES = 64
PUSH_WITHOUT_PAYLOAD = PushInbound(topic="t")
# The beginning, one of the 64 pieces and the end of a long push, by form.
LONG_PUSHES = {
    Form.JSON: (
        b'{"topic": "t", "payload": "',
        base64.b64encode(PIECE),
        b'", "metadata": {"sequence": "1"}}',
    ),
    Form.PROTOBUF: (
        message_forms.message_head(PUSH_WITHOUT_PAYLOAD, PIECES * len(PIECE)),
        PIECE,
        b"",
    ),
    Form.RAW: (b"", PIECE, b""),
}
CONTENT_TYPES = {
    Form.JSON: Form.JSON.value,
    Form.PROTOBUF: Form.PROTOBUF.value,
    Form.RAW: "application/octet-stream",
}


async def push_in_pieces(client, node, target, form):
    """Push 48 MiB; return the response and the size of the request's body."""
    beginning, piece, end = LONG_PUSHES[form]
    size = len(beginning) + PIECES * len(piece) + len(end)

    async def body():
        yield beginning
        for _ in range(PIECES):
            yield piece
        yield end

    headers = HEADERS | {
        "x-ptp-target-node-id": target,
        "content-type": CONTENT_TYPES[form],
        "content-length": str(size),
    }
    response = await client.post(
        node.url + CHAN + "push",
        content=body(),
        headers=headers,
    )
    return response, size


async def pop_size(client, node):
    """Pop the next message without storing it; return the size of the response's body."""
    headers = HEADERS | {
        "x-ptp-token": "reader",
        "x-ptp-target-node-id": "",
    }
    size = 0
    async with client.stream("POST", node.url + CHAN + "pop", headers=headers) as response:
        async for piece in response.aiter_raw():
            size += len(piece)
    return size


@pytest.mark.parametrize(
    ("form", "target"),
    [
        (Form.JSON, "beta"),
        (Form.PROTOBUF, "alpha"),
        (Form.RAW, "alpha"),
        (Form.RAW, "beta"),
    ],
)
async def test_a_long_message_is_never_in_memory_twice(alpha, beta, client, form, target):
    """A bare payload is never in memory as a whole, other forms are once, at the first gateway."""
    target_node = {"alpha": alpha, "beta": beta}[target]
    tracemalloc.start()
    try:
        response, size = await push_in_pieces(client, alpha, target, form)
        decoded = decode_answer(response.content, response.headers["content-type"])
        assert decoded.code == OK
        assert await pop_size(client, target_node) > PIECES * len(PIECE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    in_memory_once = 0 if form is Form.RAW else size
    assert peak < 24 * MIB + in_memory_once


@pytest.mark.parametrize(
    "form",
    [Form.JSON, Form.PROTOBUF],
)
async def test_long_messages_of_all_forms_resume_and_are_stored_once(
    alpha, beta, client, form, monkeypatch
):
    """The repeated push is recognised, though the first came before beta knew the job."""
    verbs = []
    invoke = alpha.parts.courier.invoke

    async def record_verb(
        route,
        body,
        headers,
        retry_for,
        path,
        *further,
    ):
        verbs.append(path.rpartition("/")[2])
        return await invoke(route, body, headers, retry_for, path, *further)

    monkeypatch.setattr(alpha.parts.courier, "invoke", record_verb)
    metadata = {"sequence": "7"}
    if form is Form.JSON:
        body = json.dumps(push_body(LONG, metadata=metadata)).encode()
    else:
        body = PushInbound(topic="t", payload=LONG, metadata=metadata).SerializeToString()
    headers = HEADERS | {"content-type": form.value}

    for sessions in ({"other": True}, {SESSION: True}):
        await beta.stop()
        beta.sessions = sessions
        await beta.start()
        response = await client.post(
            alpha.url + CHAN + "push",
            content=body,
            headers=headers,
        )
        assert decode_answer(response.content, form.value).code == OK

    # Without the job, beta takes no parts but the whole; with it, all six parts.
    assert verbs == ["part", "invoke"] + 6 * ["part"]
    assert beta.broker.usage().messages == 1
    assert await pop_bare(client, beta) == (OK, LONG)


# ------------------------------------------- prefetch: a part arrives while the last one is sent


async def test_prefetch_reads_one_item_ahead_and_no_more():
    produced = []

    async def items() -> AsyncGenerator[int]:
        for number in range(4):
            produced.append(number)
            yield number

    steps = []  # each item with the number of items produced so far
    async for item in bodies.prefetch(items()):
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        steps.append((item, len(produced)))

    assert steps == [
        (0, 1),
        (1, 3),
        (2, 4),
        (3, 4),
    ]


@pytest.mark.parametrize("items_read", [1, 2])
async def test_prefetch_closes_its_source_when_it_is_closed(items_read):
    closed = []

    async def items() -> AsyncGenerator[int]:
        try:
            yield 0
            yield 1
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    prefetched = bodies.prefetch(items())
    for number in range(items_read):
        assert await anext(prefetched) == number
    await anyio.lowlevel.checkpoint()
    await prefetched.aclose()

    assert closed == [True]


async def test_prefetch_raises_an_error_of_its_source_after_the_items_before_it():
    async def items() -> AsyncGenerator[int]:
        yield 0
        yield 1
        raise ValueError("cut")

    prefetched = bodies.prefetch(items())

    assert await anext(prefetched) == 0
    assert await anext(prefetched) == 1
    with pytest.raises(ValueError, match="cut"):
        await anext(prefetched)
