from __future__ import annotations

import math
import threading

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.contract import BadParameters
from refvendor.crypto.paillier import BadCiphertext, FixedBase, PublicKey, generate
from refvendor.crypto.pool import RandomnessPool

KEY = generate(1024)
PUBLIC = PublicKey.from_bytes(KEY.to_bytes())
HALF = int(KEY.n) // 2
BOTH = pytest.mark.parametrize(
    "key",
    [KEY, PUBLIC],
    ids=["owner", "public"],
)
numbers = st.integers(
    min_value=-HALF,
    max_value=HALF,
)
few = settings(
    max_examples=25,
    deadline=None,
)


@BOTH
@few
@given(values=st.lists(numbers, max_size=5))
def test_what_was_encrypted_is_decrypted(key, values):
    assert KEY.decrypt(key.encrypt(values)) == values


@few
@given(value=numbers)
def test_decryption_agrees_with_the_textbook(value):
    (cipher,) = PUBLIC.encrypt([value])
    secret = gmpy2.lcm(
        KEY.p - 1,
        KEY.q - 1,
    )

    def quotient(x: mpz) -> mpz:
        return (x - 1) // KEY.n

    inverse = gmpy2.invert(
        quotient(gmpy2.powmod(KEY.n + 1, secret, KEY.square)),
        KEY.n,
    )
    plain = quotient(gmpy2.powmod(cipher, secret, KEY.square)) * inverse % KEY.n
    assert plain == value % KEY.n
    assert KEY.decrypt([cipher]) == [value]


@few
@given(
    pairs=st.lists(
        st.tuples(
            st.integers(-HALF // 2, HALF // 2),
            st.integers(-HALF // 2, HALF // 2),
        ),
        max_size=4,
    )
)
def test_sums_and_negations_are_those_of_the_plaintexts(pairs):
    first, second = PUBLIC.encrypt([a for a, _ in pairs]), PUBLIC.encrypt([b for _, b in pairs])
    assert KEY.decrypt(PUBLIC.add(first, second)) == [a + b for a, b in pairs]
    assert KEY.decrypt(PUBLIC.add(first, PUBLIC.negate(second))) == [a - b for a, b in pairs]


@few
@given(
    data=st.data(),
    rows=st.integers(1, 8),
    columns=st.integers(0, 3),
)
def test_weighted_sums_are_those_of_the_plaintexts(data, rows, columns):
    big = st.integers(-(2**20), 2**20)
    values = data.draw(st.lists(big, min_size=rows, max_size=rows))
    weights = np.array(
        data.draw(
            st.lists(
                st.lists(big, min_size=columns, max_size=columns), min_size=rows, max_size=rows
            )
        ),
        dtype=np.int64,
    ).reshape(rows, columns)
    sums = KEY.decrypt(PUBLIC.weighted_sums(PUBLIC.encrypt(values), weights))
    assert sums == [
        sum(int(w) * v for w, v in zip(weights[:, c], values, strict=True)) for c in range(columns)
    ]


@few
@given(
    values=st.lists(st.integers(0, 2**78 - 1), max_size=60),
    bits=st.sampled_from([78, 100, 300, 1022]),
)
def test_packed_values_come_out_in_order_and_in_the_fewest_ciphertexts(values, bits):
    packed = PUBLIC.pack(PUBLIC.encrypt(values), bits)
    assert len(packed) == math.ceil(len(values) / (1022 // bits))
    assert KEY.unpack(KEY.decrypt(packed), bits, len(values)) == values


@few
@given(base=st.integers(2, 2**64), exponent=st.integers(0, 2**128 - 1))
def test_the_fixed_base_table_gives_the_power(base, exponent):
    modulus = mpz(2**127 - 1)
    assert FixedBase(mpz(base) % modulus, modulus, 128).power(exponent) == gmpy2.powmod(
        base, exponent, modulus
    )


@BOTH
def test_equal_plaintexts_never_look_equal(key):
    ciphers = key.encrypt([5] * 50)
    again = key.rerandomise(ciphers)
    assert len({*ciphers, *again}) == 100
    assert KEY.decrypt(again) == [5] * 50


def test_the_default_key_has_2048_bits_and_works():
    key = generate()
    assert key.bits == 2048
    values = [0, 1, -1, 2**1000, -(2**1000)]
    assert key.decrypt(PublicKey.from_bytes(key.to_bytes()).encrypt(values)) == values
    assert key.cipher_bytes == 512


@pytest.mark.parametrize(
    "bits",
    [0, 512, 1023, 1025, 8194],
)
def test_a_key_that_is_too_short_odd_or_too_long_is_refused(bits):
    with pytest.raises(BadParameters, match=f"key_length.*got {bits}"):
        generate(bits)


def test_the_public_bytes_and_the_printed_key_hold_no_prime():
    sent = int.from_bytes(KEY.to_bytes(), "big")
    assert KEY.public == PUBLIC
    for prime in (KEY.p, KEY.q):
        width = (prime.bit_length() + 7) // 8
        assert int(prime).to_bytes(width, "big") not in KEY.to_bytes()
        assert sent % prime
        assert str(prime) not in repr(KEY)


@pytest.mark.parametrize(
    "data",
    [b"", b"abc", b"x" * 385, bytes(384), generate(1024).to_bytes()[:-1]],
    ids=["empty", "short", "odd length", "zeros", "cut"],
)
def test_bytes_that_are_no_key_are_refused(data):
    with pytest.raises(BadCiphertext):
        PublicKey.from_bytes(data)


def test_a_weak_or_broken_public_key_is_refused():
    size = KEY.cipher_bytes // 2
    small = (2**600 + 1).to_bytes(size, "big") + int(KEY.h).to_bytes(2 * size, "big")
    even = int(KEY.n - 1).to_bytes(size, "big") + int(KEY.h).to_bytes(2 * size, "big")
    no_unit = int(KEY.n).to_bytes(size, "big") + int(KEY.p).to_bytes(2 * size, "big")
    for data in (small, even, no_unit):
        with pytest.raises(BadCiphertext):
            PublicKey.from_bytes(data)


def test_ciphertexts_survive_the_wire_and_others_are_refused():
    ciphers = PUBLIC.encrypt([1, 2, 3])
    data = PUBLIC.dump(ciphers)
    assert PUBLIC.load(data, 3) == ciphers
    size = PUBLIC.cipher_bytes
    bad = [data[:-1], data + bytes(1), bytes(3 * size), b"\xff" * 3 * size]
    bad.append(data[: 2 * size] + int(KEY.p).to_bytes(size, "big"))
    for wrong in bad:
        with pytest.raises(BadCiphertext):
            PUBLIC.load(wrong, 3)
    with pytest.raises(BadCiphertext):
        KEY.unpack([1, 2], 78, 3)


def test_the_pool_gives_fresh_randomness_whether_or_not_it_has_enough():
    full = threading.Event()

    class Counting(PublicKey):
        def randomness(self, count: int) -> list[mpz]:
            counts.append(count)
            if len(counts) >= 10:
                full.set()
            return super().randomness(count)

    counts: list[int] = []
    key = Counting(
        n=KEY.n,
        h=KEY.h,
    )
    with RandomnessPool(key, limit=10) as pool:
        assert len(pool) == 0
        with pool.filling():
            assert full.wait(timeout=30)
        values = pool.take(25)
        assert sum(counts[10:]) >= 15
    assert len(set(values)) == 25
    assert KEY.decrypt(values) == [0] * 25


def test_the_pool_ends_its_thread_however_full_it_is():
    for limit in range(200):
        with RandomnessPool(PUBLIC, limit=limit % 2) as pool, pool.filling():
            pool.take(1)
    assert "randomness" not in [thread.name for thread in threading.enumerate()]
