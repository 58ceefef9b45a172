"""The open protocol ECDH-PSI: right with any implementation, and no id on the channel."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import open_messages as messages
from refvendor.components import open_psi
from refvendor.components.intersection import guest, host
from refvendor.components.links import BadMessage
from refvendor.components.open_messages import CipherBatch, EcSuit, Proposal, PushRequest
from refvendor.components.open_psi import HandshakeRefused, OpenLink
from refvendor.contract import BadParameters, Table, Task
from refvendor.crypto import sm2
from refvendor.crypto.curve import BadPoint
from refvendor.env import Session
from refvendor.memory import MemoryChannel, MemoryIo, MemoryNet, run_parties
from refvendor.party_messages import ChannelNet
from refvendor.transport_calls import Deadline
from testing_log import Lines

COUNTERPART = Path(__file__).with_name("open_party.mjs")
NODE = shutil.which("node")
VECTORS = Path(__file__).parents[3] / "docs" / "ecdh-psi-vectors.json"
ROLES = {"guest": guest, "host": host}
PARTIES = {"guest": ("node-1",), "host": ("node-2",)}
GUEST_IDS = ["u3", "u1", "u2", "u9", "用户 7"]
HOST_IDS = ["u2", "u4", "用户 7", "u3"]
COMMON = ["u2", "u3", "用户 7"]
OPEN = {"intersect_method": "ecdh", "protocol": "open"}

# Long enough that chance does not bring them onto the channel.
IDS = st.lists(st.text("abcdé用户", min_size=8, max_size=12), unique=True, max_size=8)
PARAMETERS = st.fixed_dictionaries(
    {
        "curves": st.sampled_from(["curve25519", "sm2"]),
        "batch_size": st.integers(1, 20),
        "bit_length_after_truncated": st.sampled_from([-1, 80, 96, 248, 256]),
    }
)


def table(ids):
    return Table(["id"], [[value] for value in ids])


def parameters(**ecdh_params):
    return OPEN | {"ecdh_params": ecdh_params}


def intersect(
    values,
    guest_ids=GUEST_IDS,
    host_ids=HOST_IDS,
):
    inputs = {
        "guest.0": {"train_data": table(guest_ids)},
        "host.0": {"train_data": table(host_ids)},
    }
    return run_parties("Intersection", ROLES, inputs, values, seconds=20)


def ids_of(io):
    return [row[0] for row in io.tables["train_data"].rows]


@settings(max_examples=30)
@given(IDS, IDS, IDS, PARAMETERS)
def test_the_result_is_the_intersection_and_no_id_is_sent(
    common,
    mine,
    theirs,
    params,
):
    guest_ids = list({*common, *mine})
    host_ids = list({*common, *theirs})

    run = intersect(parameters(**params), guest_ids, host_ids).require_success()

    expected = sorted(set(guest_ids) & set(host_ids))
    assert ids_of(run["guest.0"].io) == expected
    assert ids_of(run["host.0"].io) == expected
    channel = run.channel.all_bytes()
    for value in {*guest_ids, *host_ids}:
        assert value.encode() not in channel


def batches_of(
    run,
    source,
):
    """Return the batches of points that a party sent."""
    sent = [message for message in run.channel.sent if message.source == source]
    pushes = [messages.decode_push(message.payload) for message in sent]
    return [messages.decode_batch(push.value) for push in pushes[1:]]


def test_batches_and_truncation_are_as_the_parameters_say():
    values = parameters(batch_size=2, bit_length_after_truncated=96)
    run = intersect(values).require_success()

    sizes = [
        (
            batch.type,
            batch.index,
            batch.is_last,
            batch.count,
            len(batch.ciphertext),
        )
        for batch in batches_of(run, "host.0")
    ]
    assert sorted(sizes) == [
        ("dual.enc", 0, False, 2, 24),
        ("dual.enc", 1, False, 2, 24),
        ("dual.enc", 2, True, 1, 12),
        ("enc", 0, False, 2, 64),
        ("enc", 1, True, 2, 64),
    ]


def test_without_sharing_the_guest_alone_gets_points_back():
    run = intersect(OPEN | {"sync_intersect_ids": False}).require_success()

    assert ids_of(run["guest.0"].io) == COMMON
    assert ids_of(run["host.0"].io) == []
    assert {batch.type for batch in batches_of(run, "guest.0")} == {"enc"}
    assert {batch.type for batch in batches_of(run, "host.0")} == {"enc", "dual.enc"}


def test_points_travel_in_an_order_that_says_nothing():
    ids = [f"id {number}" for number in range(60)]
    run = intersect(OPEN, ids, HOST_IDS).require_success()

    (batch,) = [batch for batch in batches_of(run, "guest.0") if batch.type == "enc"]
    points = [batch.ciphertext[start : start + 32] for start in range(0, len(batch.ciphertext), 32)]
    assert len(points) == 60
    assert points == sorted(points)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"intersect_method": "rsa", "protocol": "open"},
            "protocol: may be open with the intersect_method ecdh only",
        ),
        (parameters(curves="p256"), "ecdh_params.curves: may list only curve25519, sm2"),
        (
            parameters(bit_length_after_truncated=97),
            "bit_length_after_truncated: must be -1 or a multiple of 8 from 80 to 256, got 97",
        ),
        (parameters(bit_length_after_truncated=72), "multiple of 8 from 80 to 256, got 72"),
        (parameters(batch_size=0), "batch_size: must be a whole number from 1"),
    ],
)
def test_invalid_parameters_are_refused_before_any_message(
    values,
    message,
):
    run = intersect(values)
    assert message in str(run["guest.0"].error)
    assert run.channel.sent == []


def test_the_open_protocol_is_for_two_parties():
    inputs = {party: {"train_data": table(["a"])} for party in ("guest.0", "host.0", "host.1")}
    run = run_parties("Intersection", ROLES, inputs, OPEN, seconds=20)
    assert "protocol: must be own when there are 2 hosts" in str(run["guest.0"].error)


def test_parties_without_a_common_suite_name_it():
    def values(party):
        return parameters(curves="sm2" if party == "host.0" else "curve25519")

    run = intersect(values)
    assert isinstance(run["guest.0"].error, HandshakeRefused)
    assert "31100203 no suite of curve25519" in str(run["host.0"].error)


def test_a_responder_that_cannot_take_part_tells_the_requester():
    run = intersect(OPEN, ["twice", "twice"], HOST_IDS)
    assert isinstance(run["guest.0"].error, BadParameters)
    assert "31100101 the responder cannot take part" in str(run["host.0"].error)


# ------------------------------------------------------------ against the other implementation


def config_of(
    server,
    me,
    ids,
    **changes,
):
    peer = "guest.0" if me == "host.0" else "host.0"
    nodes = {"guest.0": "node-1", "host.0": "node-2"}
    headers = {
        "x-ptp-session-id": "session_1",
        "x-ptp-source-node-id": nodes[me],
        "x-ptp-target-node-id": nodes[peer],
    }
    config = {
        "address": server.address,
        "headers": headers,
        "me": me,
        "peer": peer,
        "ids": ids,
        "curves": ["curve25519"],
        "canTruncate": True,
        "truncatedBits": -1,
        "batchSize": 2,
        "resultToRank": -1,
    }
    return config | changes


def run_with_counterpart(
    server,
    me,
    ids,
    peer_ids,
    values,
    **changes,
):
    """Run one party against the counterpart; return its output and the counterpart's outcome."""
    peer = "host.0" if me == "guest.0" else "guest.0"
    role = me.partition(".")[0]
    log = Lines()
    task = Task("Intersection", "task_1", role, 0, PARTIES, values)
    io = MemoryIo({"train_data": table(ids)})
    net = ChannelNet(
        task,
        server.address,
        Session("session_1", "token", "trace", {}),
        Deadline(30),
        log,
    )
    config = config_of(server, peer, peer_ids, **changes)
    counterpart = subprocess.Popen(
        [NODE, str(COUNTERPART)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    outcomes = []
    reader = threading.Thread(
        target=lambda: outcomes.append(counterpart.communicate(json.dumps(config))[0])
    )
    reader.start()
    error = None
    try:
        ROLES[role](task, io, net, log)
    except HandshakeRefused as refusal:
        error = refusal
    finally:
        reader.join(30)
        counterpart.kill()
        counterpart.wait()
        net.close()
    return io, json.loads(outcomes[0]), error


# With CI set, a test without Node.js fails.
needs_node = pytest.mark.skipif(
    NODE is None and not os.environ.get("CI"),
    reason="needs Node.js",
)


@needs_node
@pytest.mark.parametrize("me", ["guest.0", "host.0"])
@pytest.mark.parametrize("curve", ["curve25519", "sm2"])
@pytest.mark.parametrize("bits", [-1, 96])
def test_the_other_implementation_finds_the_same(
    loopback,
    me,
    curve,
    bits,
):
    values = parameters(batch_size=3, bit_length_after_truncated=bits)
    io, outcome, _ = run_with_counterpart(
        loopback,
        me,
        GUEST_IDS,
        HOST_IDS,
        values,
        curves=[curve],
        truncatedBits=bits,
    )
    assert ids_of(io) == COMMON
    assert outcome == {
        "common": COMMON,
        "peerCount": 5,
        "bits": bits,
    }


@needs_node
def test_chunks_are_joined_and_a_peer_that_cannot_truncate_need_not(loopback):
    values = parameters(bit_length_after_truncated=96)
    io, outcome, _ = run_with_counterpart(
        loopback,
        "guest.0",
        GUEST_IDS,
        HOST_IDS,
        values,
        chunkSize=50,
        canTruncate=False,
    )
    assert ids_of(io) == COMMON
    assert outcome["bits"] == -1


@needs_node
@pytest.mark.parametrize(
    ("values", "changes", "code"),
    [
        (parameters(curves="sm2"), {}, 31100203),
        (OPEN, {"resultToRank": 0}, 31100203),
        (OPEN, {"version": 1}, 31100201),
    ],
)
def test_both_implementations_name_the_refusal(
    loopback,
    values,
    changes,
    code,
):
    io, outcome, error = run_with_counterpart(
        loopback,
        "guest.0",
        GUEST_IDS,
        HOST_IDS,
        values,
        **changes,
    )
    assert outcome == {"refused": code}
    assert error is not None
    assert io.tables == {}


@needs_node
def test_the_other_implementation_refuses_us_too(loopback):
    _, outcome, error = run_with_counterpart(
        loopback,
        "host.0",
        GUEST_IDS,
        HOST_IDS,
        parameters(curves="sm2"),
    )
    assert outcome == {"refused": 31100203}
    assert "31100203 suite" in str(error)


# ------------------------------------------------------------ peers that break the rules

SUIT = EcSuit(messages.CURVE25519, messages.SHA_256, messages.DIRECT_HASH_AS_POINT_X)
PROPOSAL = messages.encode_proposal(
    Proposal(
        2,
        1,
        [messages.ECDH_PSI],
        [messages.ECC],
        [SUIT],
        [1],
        True,
        1,
        -1,
    )
)
POINT = bytes([9]) + bytes(31)


def batch(
    type="enc",
    index=0,
    is_last=True,
    count=1,
    ciphertext=POINT,
):
    return messages.encode_batch(CipherBatch(type, index, is_last, count, ciphertext))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"\x0a", BadMessage, "a cipher batch cannot be read"),
        (batch(type="other"), BadMessage, "a batch of type 'other' is not expected"),
        (batch(index=1), BadMessage, "batch 1 of enc is out of order"),
        (batch(is_last=False, count=0, ciphertext=b""), BadMessage, "empty and not the last"),
        (batch(count=2), BadMessage, "32 bytes are not 2 items of 32"),
        (batch(count=0, ciphertext=b""), BadMessage, "0 items came back, 1 were sent"),
        (batch(ciphertext=bytes(32)), BadPoint, "a point cannot be used"),
    ],
)
def test_a_wrong_batch_ends_the_run(
    value,
    error,
    message,
):
    channel = MemoryChannel(0.05)
    sender = MemoryNet(channel, "host.0")
    for sent in (PROPOSAL, value, batch(type="dual.enc", count=0, ciphertext=b"")):
        sender.push("guest.0", messages.encode_push(PushRequest(1, "key", sent)))
    task = Task(
        "Intersection",
        "task_1",
        "guest",
        0,
        PARTIES,
        OPEN,
    )
    io = MemoryIo({"train_data": table(["a"])})

    with pytest.raises(error, match=message):
        guest(task, io, MemoryNet(channel, "guest.0"), Lines())
    assert io.tables == {}


@pytest.mark.parametrize(
    ("pushes", "message"),
    [
        ([PushRequest(0, "k", b"v")], "sends as rank 0, not 1"),
        ([PushRequest(1, "k", b"v", messages.CHUNKED, 2**31, 0)], "is too long"),
        (
            [
                PushRequest(
                    1,
                    "k",
                    b"v",
                    messages.CHUNKED,
                    2,
                    0,
                ),
                PushRequest(1, "other", b"w", messages.CHUNKED, 2, 1),
            ],
            "is not complete",
        ),
        (
            [
                PushRequest(
                    1,
                    "k",
                    b"v",
                    messages.CHUNKED,
                    2,
                    0,
                ),
                PushRequest(1, "k", b"w", messages.CHUNKED, 2, 5),
            ],
            "do not fit together",
        ),
    ],
)
def test_a_wrong_envelope_is_refused(
    pushes,
    message,
):
    channel = MemoryChannel(0.05)
    for push in pushes:
        MemoryNet(channel, "host.0").push("guest.0", messages.encode_push(push))
    task = Task("Intersection", "task_1", "guest", 0, PARTIES)
    link = OpenLink(MemoryNet(channel, "guest.0"), task, "host.0")
    with pytest.raises(BadMessage, match=message):
        link.receive()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(33),
        b"\x04" + bytes(32),
        b"\x02" + bytes(31) + b"\x02",  # no y for this x
        b"\x02" + b"\xff" * 32,
    ],
)
def test_bytes_that_are_no_point_of_sm2_are_refused(data):
    with pytest.raises(BadPoint):
        sm2.multiply(sm2.secret(), [data])


# ------------------------------------------------------------ published vectors


def vectors():
    return json.loads(VECTORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(open_psi.SUITES))
def test_points_are_those_of_the_published_vectors(name):
    suite = open_psi.SUITES[name]
    vector = vectors()["suites"][name]
    guest_secret = bytes.fromhex(vector["guest_secret"])
    host_secret = bytes.fromhex(vector["host_secret"])
    assert vector["items"]
    for item in vector["items"]:
        point = suite.point(item["id"].encode())
        by_guest = suite.multiply(guest_secret, [point])
        by_host = suite.multiply(host_secret, [point])
        assert point.hex() == item["point"]
        assert by_guest[0].hex() == item["encrypted_by_guest"]
        assert by_host[0].hex() == item["encrypted_by_host"]
        twice = item["encrypted_twice"]
        assert suite.multiply(host_secret, by_guest)[0].hex() == twice
        assert suite.multiply(guest_secret, by_host)[0].hex() == twice
        assert twice.endswith(item["truncated_to_96_bits"])


def test_messages_are_those_of_the_published_vectors():
    expected = vectors()["messages"]
    both = list(open_psi.SUITES.values())
    proposal = Proposal(
        2,
        1,
        [messages.ECDH_PSI],
        [messages.ECC],
        [suite.suit for suite in both],
        [suite.point_format for suite in both],
        True,
        3,
        -1,
    )
    agreement = open_psi.answer(
        proposal,
        open_psi.OpenSettings(["sm2"], 96, 4096, messages.EVERY_RANK),
    )
    refusal = messages.Agreement(messages.UNSUPPORTED_PARAMETERS, "no common suite")
    points = CipherBatch("enc", 0, False, 1, POINT)
    chunk = PushRequest(1, "P2P-1:1->0", b"\x01\x02", messages.CHUNKED, 5, 3)
    actual = {
        "handshake_request": messages.encode_proposal(proposal),
        "handshake_response": messages.encode_agreement(agreement),
        "handshake_refusal": messages.encode_agreement(refusal),
        "cipher_batch": messages.encode_batch(points),
        "push_request": messages.encode_push(PushRequest(0, "P2P-1:0->1", b"\x01\x02")),
        "push_request_chunk": messages.encode_push(chunk),
    }
    assert {name: data.hex() for name, data in actual.items()} == expected
    assert messages.decode_proposal(actual["handshake_request"]) == proposal
    assert messages.decode_agreement(actual["handshake_response"]) == agreement
    assert messages.decode_agreement(actual["handshake_refusal"]).code == refusal.code
    assert messages.decode_batch(actual["cipher_batch"]) == points
    assert messages.decode_push(actual["push_request_chunk"]) == chunk


def test_sm2_multiplies_as_its_standard_says():
    # Key pair of the examples in GB/T 32918.5.
    base = "0232c4ae2c1f1981195f9904466a39c9948fe30bbff2660be1715a4589334c74c7"
    secret = "3945208f7b2144b13f36e38ac6d39f95889393692860b51a42fb81ef4df7c5b8"
    public = "0309f9df311e5421a150dd7d161e4bc5c672179fad1833fc076bb08ff356f35020"
    (product,) = sm2.multiply(bytes.fromhex(secret), [bytes.fromhex(base)])
    assert product.hex() == public
