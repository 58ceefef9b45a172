"""Sealed messages cannot be read, brought, altered or repeated between two nodes."""

import json
import os
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from adapter.bfia.channel import bodies
from adapter.bfia.channel.codec import SUCCESS
from adapter.bfia.relay import Relay
from gateway.identity.sealing import LONGEST_KEY
from route_table.model import Route, RouteTable
from tests.adapter.bfia.channel.nodes import (
    OK,
    SESSION,
    Container,
    Node,
    served,
)
from tests.adapter.bfia.channel.sealed import Clock, Identity, Recorded, flipped, recorded
from tests.adapter.bfia.scripted import says, scripted

pytestmark = pytest.mark.anyio

MIB = 1 << 20
NOT_ALLOWED = "E0000000403"
INVALID = "E0000000400"
SECRET = b"weights of the model, " * 20
OTHER_SESSION = "session_job-2"
ACCEPTED = says({"code": SUCCESS, "message": "success"})


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def identities(clock):
    """The keys of the nodes alpha, beta and gamma; alpha and beta require seals of each other."""
    identities = {name: Identity(name, clock) for name in ("alpha", "beta", "gamma")}
    identities["beta"].entries["alpha"] = identities["alpha"].route()
    identities["beta"].entries["gamma"] = identities["gamma"].route()
    return identities


@pytest.fixture
async def alpha(make_node, identities):
    return await make_node("alpha", **identities["alpha"].options)


@pytest.fixture
async def beta(make_node, identities):
    node = await make_node("beta", **identities["beta"].options)
    node.senders.add("gamma")
    node.nodes.add("gamma")
    node.sessions.update({SESSION: True, OTHER_SESSION: True})
    return node


@pytest.fixture
def tap(alpha, identities):
    """A peer in beta's place, which records what alpha sends."""
    with scripted() as (peer, url):
        peer.will(ACCEPTED)
        alpha.routes["beta"] = identities["beta"].route(url)
        yield peer


@pytest.fixture
async def message(alpha, client, tap):
    """A sealed message of alpha for beta, recorded on the way."""
    assert await Container(client, alpha).push("beta", SECRET) == OK
    (request,) = recorded(tap)
    return request


def connect(alpha, beta, identities, **options):
    """Give alpha the route to beta."""
    alpha.routes["beta"] = identities["beta"].route(beta.url, **options)


# ------------------------------------------------------------ reading


async def test_a_tap_sees_neither_payload_nor_token(alpha, client, tap):
    container = Container(client, alpha, "token-of-the-run")

    assert await container.push("beta", SECRET) == OK

    (request,) = recorded(tap)
    traffic = json.dumps(request.headers).encode() + request.body
    assert SECRET[:20] not in traffic
    assert len(request.body) == len(SECRET) + 16
    assert request.headers["x-ptp-token"] == ""


async def test_the_id_of_a_message_tells_nothing_of_its_content(alpha, client, clock, tap):
    stranger = Identity("alpha", clock)
    name = "digest of number, size and checksum of the content"

    assert alpha.parts.seals.message_id(name) == alpha.parts.seals.message_id(name)
    assert alpha.parts.seals.message_id(name) != stranger.seals.message_id(name)


async def test_the_target_reads_what_was_pushed(alpha, beta, client, identities):
    connect(alpha, beta, identities)

    assert await Container(client, alpha).push("beta", SECRET, topic="模型 %1") == OK

    assert await Container(client, beta).pop("模型 %1") == SECRET


@pytest.mark.parametrize(
    "topic",
    ["", "plain", "100%", " 模型 ", "😀" * 4096],
    ids=["empty", "plain", "percent", "blanks", "longest"],
)
async def test_a_topic_is_the_same_at_both_ends(alpha, beta, client, identities, topic):
    connect(alpha, beta, identities)

    await Container(client, alpha).push("beta", b"x", topic=topic)

    assert await Container(client, beta).peek(topic) == b"x"


async def test_a_sealed_topic_is_limited_as_an_unsealed_one_is(beta, client, message):
    for topic in ("%E6%A8%A1" * 4097, "x" * 4097):
        code, text = await message.with_headers(x_ptp_topic=topic).send(client, beta)
        assert code == INVALID
        assert "x-ptp-topic: must have at most 4096 characters (got 4097)" in text


async def test_nodes_with_keys_of_sm2_seal_by_national_cryptography(client, clock, make_node):
    sender = Identity("alpha", clock, national=True)
    receiver = Identity("beta", clock, national=True)
    receiver.entries["alpha"] = sender.route()
    alpha = await make_node("alpha", **sender.options)
    beta = await make_node("beta", **receiver.options)
    alpha.routes["beta"] = receiver.route(beta.url)

    assert await Container(client, alpha).push("beta", SECRET) == OK

    assert await Container(client, beta).pop() == SECRET
    seal = sender.seals.begin("beta", receiver.pair.public, SESSION)
    assert seal.key.claims.suite == "sm2-sm4gcm"


async def test_a_node_known_by_a_signed_job_alone_can_seal(beta, client, identities, message):
    """Such a node has no entry: one with the keys in the job stands for it."""
    entry = Route("alpha", "", keys=identities["alpha"].route().keys, signing="required")
    identities["beta"].entries["alpha"] = entry

    assert (await message.send(client, beta))[0] == OK

    assert await Container(client, beta).peek() == SECRET


# ------------------------------------------------------------ altering


def in_another_session(message):
    return message.with_headers(x_ptp_session_id=OTHER_SESSION)


def on_another_topic(message):
    return message.with_headers(x_ptp_topic="other")


def without_target(message):
    return message.with_headers(x_ptp_target_node_id=None)


def with_another_id(message):
    return message.with_headers(x_ptp_message_id="0" * 32)


def with_another_number(message):
    return message.with_headers(x_ptp_seal="7/0")


def from_another_node(message):
    return message.with_headers(x_ptp_source_node_id="gamma")


def with_other_bytes(message):
    return replace(message, body=flipped(message.body))


def cut_off(message):
    return Recorded(message.path, message.headers, message.body[:-1])


def with_another_signature(message):
    key, _, signature = message.headers["x-ptp-seal-key"].rpartition(".")
    return message.with_headers(x_ptp_seal_key=f"{key}.{signature[::-1]}")


def with_another_key(message):
    claims, wrapped, signature = message.headers["x-ptp-seal-key"].split(".")
    return message.with_headers(x_ptp_seal_key=f"{claims}.{wrapped[::-1]}.{signature}")


def with_no_claims(message):
    return message.with_headers(x_ptp_seal_key="W10.AAAA.AAAA")


def with_nothing(message):
    return message.with_headers(x_ptp_seal_key="")


def with_a_number_that_is_none(message):
    return message.with_headers(x_ptp_seal="1")


def with_a_long_key(message):
    return message.with_headers(x_ptp_seal_key="A" * (LONGEST_KEY + 1))


def unsealed(message):
    return message.with_headers(x_ptp_seal_key=None)


def name_of(attack):
    return attack.__name__


ATTACKS = {
    in_another_session: NOT_ALLOWED,
    on_another_topic: NOT_ALLOWED,
    without_target: NOT_ALLOWED,
    with_another_id: NOT_ALLOWED,
    with_another_number: NOT_ALLOWED,
    from_another_node: NOT_ALLOWED,
    with_other_bytes: NOT_ALLOWED,
    cut_off: NOT_ALLOWED,
    with_another_signature: NOT_ALLOWED,
    with_another_key: NOT_ALLOWED,
    with_no_claims: NOT_ALLOWED,
    with_nothing: NOT_ALLOWED,
    with_a_number_that_is_none: INVALID,
    with_a_long_key: INVALID,
    unsealed: NOT_ALLOWED,
}


@pytest.mark.parametrize("attack", ATTACKS, ids=name_of)
async def test_an_altered_message_is_refused(beta, client, message, attack):
    code, text = await attack(message).send(client, beta)

    assert code == ATTACKS[attack]
    assert text
    assert beta.broker.usage().messages == 0
    # The message itself still arrives.
    assert (await message.send(client, beta))[0] == OK
    assert await Container(client, beta).peek() == SECRET


async def test_a_message_at_chan_transport_needs_its_seal_too(beta, client, message):
    at_transport = replace(message, path="/v1/interconn/chan/transport")

    for altered in (unsealed(at_transport), with_other_bytes(at_transport)):
        code, _ = await altered.send(client, beta)
        assert code == NOT_ALLOWED

    assert (await at_transport.send(client, beta))[0] == OK
    assert await Container(client, beta).peek() == SECRET


async def test_a_seal_is_no_proof_with_a_key_that_was_removed(beta, client, identities, message):
    await message.send(client, beta)
    other_key = identities["gamma"].signing.public
    entry = identities["alpha"].route()
    identities["beta"].entries["alpha"] = Route(
        "alpha", "", keys=(other_key,), sealing=entry.sealing
    )

    code, text = await message.send(client, beta)

    assert code == NOT_ALLOWED
    assert "bfia-gateway partner accept" in text


async def test_a_stranger_cannot_seal_in_a_node_s_name(beta, client, clock, identities, message):
    stranger = Identity("alpha", clock)
    seal = stranger.seals.begin("beta", identities["beta"].pair.public, SESSION)

    code, _ = await message.with_headers(x_ptp_seal_key=seal.key.header).send(client, beta)

    assert code == NOT_ALLOWED


async def test_a_message_for_another_node_is_not_opened(client, identities, make_node, message):
    gamma = await make_node("gamma", **identities["gamma"].options)
    identities["gamma"].entries["alpha"] = identities["alpha"].route()

    code, _ = await message.with_headers(x_ptp_target_node_id="gamma").send(client, gamma)

    assert code == NOT_ALLOWED


# ------------------------------------------------------------ repeating


async def test_a_repeated_message_is_delivered_once(beta, client, message):
    reader = Container(client, beta)
    assert (await message.send(client, beta))[0] == OK

    assert (await message.send(client, beta))[0] == OK  # as after an answer that was lost
    assert await reader.peek() == SECRET
    assert (await message.send(client, beta))[0] == OK

    assert await reader.peek() == b""


async def test_a_message_is_not_delivered_again_after_a_restart(beta, client, message):
    await message.send(client, beta)
    assert await Container(client, beta).peek() == SECRET
    await beta.stop()
    await beta.start()

    assert (await message.send(client, beta))[0] == OK

    assert await Container(client, beta).peek() == b""


async def test_keys_are_valid_into_the_hour_after_the_next(beta, client, clock, message):
    clock.advance(minutes=89)  # 11:59
    assert (await message.send(client, beta))[0] == OK
    clock.advance(minutes=1)

    code, text = await message.send(client, beta)

    assert code == NOT_ALLOWED
    assert "clocks" in text


async def test_a_message_from_the_future_is_refused(beta, client, clock, message):
    clock.advance(hours=-2)

    assert (await message.send(client, beta))[0] == NOT_ALLOWED


async def test_each_hour_and_session_has_a_key_of_its_own(alpha, client, clock, tap):
    container = Container(client, alpha)
    of_other_job = Container(client, alpha)
    of_other_job.headers["x-ptp-session-id"] = OTHER_SESSION
    await container.push("beta", b"1")
    await container.push("beta", b"2")
    await of_other_job.push("beta", b"3")
    clock.advance(hours=1)
    await container.push("beta", b"4")

    first, second, third, fourth = (request.headers["x-ptp-seal-key"] for request in recorded(tap))

    assert first == second
    assert len({first, third, fourth}) == 3


# ------------------------------------------------------------ long messages


@pytest.fixture
def short_parts(monkeypatch):
    """Parts have one MiB."""
    monkeypatch.setattr(bodies, "PART", MIB)


LONG = os.urandom(3 * MIB + 5)


async def push_long(client, node):
    """Push a long bare payload, which is sent in parts."""
    headers = {
        "x-ptp-session-id": SESSION,
        "x-ptp-topic": "t",
        "x-ptp-token": "writer",
        "x-ptp-target-node-id": "beta",
    }
    response = await client.post(
        f"{node.url}/v1/interconn/chan/push",
        content=LONG,
        headers=headers,
    )
    assert response.status_code == 200


@pytest.mark.usefixtures("short_parts")
async def test_a_long_message_is_sealed_in_parts(alpha, beta, client, identities):
    connect(alpha, beta, identities)

    await push_long(client, alpha)

    assert await Container(client, beta).pop() == LONG


@pytest.mark.usefixtures("short_parts")
async def test_parts_cannot_be_exchanged_or_repeated(alpha, beta, client, tap):
    await push_long(client, alpha)
    first, second, third, last = recorded(tap)
    swapped = Recorded(second.path, second.headers, third.body)
    moved = second.with_headers(x_ptp_part=third.headers["x-ptp-part"])

    assert (await first.send(client, beta))[0] == OK
    assert (await swapped.send(client, beta))[0] != OK
    assert (await moved.send(client, beta))[0] != OK
    for part in (second, third, last, last, first, second, third, last):
        assert (await part.send(client, beta))[0] == OK

    reader = Container(client, beta)
    assert await reader.peek() == LONG
    assert await reader.peek() == b""


# ------------------------------------------------------------ modes


async def test_nothing_is_sent_unsealed_where_seals_are_required(alpha, client, tap):
    route = alpha.routes["beta"]
    alpha.routes["beta"] = Route("beta", route.url, sealing="required")

    response = await Container(client, alpha).post(
        "push",
        {"topic": "t", "payload": ""},
        x_ptp_target_node_id="beta",
    )

    assert response["code"] == NOT_ALLOWED
    assert "bfia-gateway partner accept" in response["message"]
    assert not tap.requests


async def test_a_refused_unsealed_message_names_the_command(beta, client, message):
    code, text = await unsealed(message).send(client, beta)

    assert code == NOT_ALLOWED
    assert "bfia-gateway route edit alpha --sealing accepted" in text
    assert "SEALING_REQUIRED" in beta.broker.last_refusal(SESSION)


async def test_a_node_without_seals_is_understood(make_node, beta, client, identities):
    identities["beta"].entries["alpha"] = identities["alpha"].route(sealing="accepted")
    older = await make_node("alpha")
    older.routes["beta"] = Route("beta", beta.url)

    assert await Container(client, older).push("beta", SECRET) == OK

    assert await Container(client, beta).pop() == SECRET


async def test_a_route_without_a_key_sends_as_before(alpha, client, tap):
    alpha.routes["beta"] = Route("beta", alpha.routes["beta"].url)

    assert await Container(client, alpha).push("beta", SECRET) == OK

    (request,) = recorded(tap)
    assert "x-ptp-seal-key" not in request.headers
    assert request.headers["x-ptp-token"]


async def test_a_node_without_a_sealing_key_refuses_seals(client, make_node, message):
    older = await make_node("beta")

    code, text = await message.send(client, older)

    assert code == INVALID
    assert "unsealed" in text


# ------------------------------------------------------------ relays and gRPC


def refuse_nothing(*details):
    raise AssertionError(details)


async def test_a_relay_passes_a_sealed_message_on_and_reads_nothing(
    alpha, beta, client, identities, make_node
):
    chunks = []
    table = RouteTable(1, {"alpha": Route("alpha", alpha.url, relay=True)})

    def wrap_in_relay(app):
        relay = Relay(
            app,
            "between",
            institution="between-inst",
            table=lambda: table,
            courier=between.parts.courier,
            control_limit=MIB,
            channel_limit=8 * MIB,
            record_refusal=refuse_nothing,
        )

        async def record(scope, receive, send):
            async def receive_and_record():
                message = await receive()
                chunks.append(message.get("body", b""))
                return message

            await relay(scope, receive_and_record, send)

        return record

    between = Node("between", beta.root.with_name("between"))
    between.wrap_app = wrap_in_relay
    async with served(between):
        table.routes["beta"] = Route("beta", beta.url, relay=True)
        alpha.routes["beta"] = replace(identities["beta"].route(between.url), via="between")

        assert await Container(client, alpha).push("beta", SECRET) == OK

    assert await Container(client, beta).pop() == SECRET
    traffic = b"".join(chunks)
    assert traffic
    assert SECRET[:20] not in traffic


@asynccontextmanager
async def over_grpc(tmp_path, identities):
    """Serve beta by gRPC as well as by HTTP."""
    node = Node("beta", tmp_path / "grpc", **identities["beta"].options)
    async with served(node):
        yield node


@pytest.mark.parametrize("topic", ["模型", "😀" * 4096], ids=["short", "longest"])
async def test_a_sealed_message_passes_over_grpc(alpha, client, identities, tmp_path, topic):
    pytest.importorskip("grpc")
    async with over_grpc(tmp_path, identities) as beta:
        url = beta.url.replace("http://", "grpc://")
        alpha.routes["beta"] = identities["beta"].route(url)

        assert await Container(client, alpha).push("beta", SECRET, topic=topic) == OK

        assert await Container(client, beta).peek(topic) == SECRET
