"""What a peer that does not keep to the protocol gets: a named refusal, never a wrong answer."""

import struct

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refvendor.components import matching
from refvendor.components.links import BadMessage, Message
from refvendor.crypto import curve, rsa
from refvendor.crypto.hashing import available, expand


class Scripted:
    """A link whose peer says what the test wants."""

    peer = "peer.0"

    def __init__(self, *messages):
        self.messages = list(messages)
        self.sent = []

    def send(
        self,
        kind,
        fields=None,
        blobs=(),
    ):
        self.sent.append((kind, blobs))

    def expect(self, *kinds):
        kind, *blobs = self.messages.pop(0)
        assert kind in kinds
        return Message(kind, {}, blobs)


KEY = rsa.generate(1024)
MODULUS = int(KEY.public.n).to_bytes(128, "big")
RSA = matching.RsaSettings("sha256", "sha256", 1024)
TAGGING = matching.Tagging(True, "sha256", "", True)


@pytest.mark.parametrize(
    "bits",
    [1024, 1026, 2048],
)
def test_a_generated_key_has_its_length_and_signs(bits):
    key = rsa.generate(bits)
    assert int(key.public.n).bit_length() == bits
    values = [gmpy2.mpz(v) for v in (2, 3, int(key.public.n) - 1)]
    assert [pow(int(s), rsa.EXPONENT, int(key.public.n)) for s in key.sign(values)] == [
        int(v) for v in values
    ]


@pytest.mark.parametrize(
    "bits",
    [0, 512, 1022, 1025, 8194],
)
def test_a_key_length_that_cannot_work_is_refused(bits):
    with pytest.raises(ValueError, match="key length"):
        rsa.generate(bits)


@given(st.lists(st.binary(max_size=8), max_size=6))
def test_unblinding_gives_the_plain_signatures(values):
    hashes = [KEY.public.hashed("sha256", value) for value in values]
    blinded = rsa.blind(KEY.public, hashes)
    assert rsa.unblind(KEY.public, blinded, KEY.sign(blinded.values)) == KEY.sign(hashes)
    assert not set(blinded.values) & set(hashes)


def test_a_wrong_signature_is_noticed():
    blinded = rsa.blind(
        KEY.public,
        [
            KEY.public.hashed("sha256", b"a"),
            KEY.public.hashed("sha256", b"b"),
        ],
    )
    signed = KEY.sign(blinded.values)
    with pytest.raises(rsa.BadSignature, match="does not verify"):
        rsa.unblind(
            KEY.public,
            blinded,
            [signed[0], signed[1] + 1],
        )
    with pytest.raises(rsa.BadSignature, match="1 signatures came for 2"):
        rsa.unblind(KEY.public, blinded, signed[:1])


def test_hashes_fill_the_modulus():
    sizes = [int(KEY.public.hashed("md5", bytes([n]))).bit_length() for n in range(40)]
    assert max(sizes) >= 1022
    assert min(sizes) > 960


@given(
    st.sampled_from(available()),
    st.binary(max_size=20),
    st.integers(0, 200),
)
def test_expansion_has_its_length_and_extends_itself(
    name,
    seed,
    length,
):
    assert len(expand(name, seed, length)) == length
    assert expand(name, seed, 200).startswith(expand(name, seed, length))


@given(
    st.binary(max_size=40),
    st.binary(
        min_size=32,
        max_size=32,
    ),
    st.binary(
        min_size=32,
        max_size=32,
    ),
)
def test_secrets_commute_on_the_curve(
    value,
    a,
    b,
):
    p = curve.point(value)
    assert curve.multiply(a, curve.multiply(b, [p])) == curve.multiply(
        b,
        curve.multiply(a, [p]),
    )
    assert p == curve.point(value)


@given(st.binary(max_size=40))
def test_points_lie_on_the_curve_not_on_its_twist(value):
    prime = 2**255 - 19
    u = int.from_bytes(curve.point(value), "little")
    assert pow(u**3 + 486662 * u**2 + u, (prime - 1) // 2, prime) == 1


@pytest.mark.parametrize(
    "bad",
    [
        bytes(32),
        (1).to_bytes(32, "little"),
        b"short",
    ],
)
def test_points_of_small_order_are_refused(bad):
    with pytest.raises(curve.BadPoint):
        curve.multiply(curve.secret(), [bad])
    with pytest.raises((curve.BadPoint, BadMessage)):
        matching.curve_match(
            Scripted(("points", bad)),
            ["a"],
            peer_rows=1,
        )
    with pytest.raises((curve.BadPoint, BadMessage)):
        matching.curve_send(
            Scripted(("points", bad)),
            ["a"],
            peer_rows=1,
        )


def places(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


@pytest.mark.parametrize("blob", [b"123", places(3), places(0, 0), places(2**32 - 1)])
def test_hits_must_be_places_in_the_list_sent(blob):
    with pytest.raises(BadMessage, match="hits"):
        matching.receive_common_ids(
            Scripted(("hits", blob)),
            ["a", "b", "c"],
        )


@pytest.mark.parametrize("blob", [b"[1]", b"{}", b"x", b"\xff", b'["a"]', b"[" * 100_000])
def test_tags_must_be_a_list_of_as_many_texts_as_announced(blob):
    with pytest.raises(BadMessage, match="tags"):
        matching.raw_collect(
            Scripted(("tags", blob)),
            ["a"],
            TAGGING,
            peer_rows=2,
        )


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([("key", b"\x00" * 128)], "key: must be an odd modulus of 1024 bits"),
        ([("key", MODULUS[:-1] + b"\x00")], "odd modulus"),
        ([("key", b"\x00" + MODULUS)], "odd modulus"),
        ([("key", MODULUS), ("signed", b"\x01" * 127, b"")], "signed: must be a multiple"),
        (
            [("key", MODULUS), ("signed", b"", b"")],
            "signed: 0 came, 1 were announced",
        ),
        (
            [("key", MODULUS), ("signed", MODULUS, b"")],
            "not below the modulus",
        ),
        (
            [("key", MODULUS), ("signed", bytes(128), b"")],
            "not below the modulus",
        ),
    ],
)
def test_a_signer_that_cheats_is_named(messages, words):
    with pytest.raises(BadMessage, match=words):
        matching.rsa_match(Scripted(*messages), ["a"], RSA, peer_rows=1)


@pytest.mark.parametrize("blob", [b"\x00" * 128, b"\xff" * 128, b"\x01" * 127, b"", b"\x01" * 256])
def test_a_signer_signs_only_what_was_announced(blob):
    link = Scripted(("blinded", blob))
    with pytest.raises(BadMessage, match="blinded"):
        matching.rsa_sign(
            link,
            ["a"],
            RSA,
            peer_rows=1,
        )
    assert [kind for kind, _ in link.sent] == ["key"]
