"""Finds common ids between two parties, by three methods, over a `Link`. Knows no table and no parameter text.

Each method has a side that learns the hits first. A party's own ids travel in an order that tells nothing:
sorted by what is sent, never as they lie in the file. Truncated tags are 16 bytes: among 10^6 by 10^6 ids a
false hit has a chance below 10^-26.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.components.links import BadMessage, Link
from refvendor.crypto import curve, rsa
from refvendor.crypto.hashing import digest, joined_numbers

TAG = 16
T = TypeVar("T", str, bytes)


@dataclass(frozen=True)
class Tagging:
    """How the raw method turns an id into what it sends."""

    use_hash: bool
    hash_method: str
    salt: str
    base64: bool

    def tag(self, value: str) -> str:
        """Return what stands for an id: the id itself, or its salted hash as Base64 or in hex."""
        if not self.use_hash:
            return value
        data = digest(self.hash_method, self.salt.encode(), value.encode())
        return base64.b64encode(data).decode() if self.base64 else data.hex()


@dataclass(frozen=True)
class Matches:
    """What one learning party knows about one peer: common ids, and where each stands in the peer's list."""

    places: dict[str, int]

    def tell(self, link: Link, ids: Collection[str]) -> None:
        """Send the peer the places of the ids that all parties have in common."""
        numbers = sorted(self.places[i] for i in ids)
        link.send("hits", blobs=[struct.pack(f">{len(numbers)}I", *numbers)])


def received_ids(link: Link, ids_in_sent_order: Sequence[str]) -> set[str]:
    """The common ids as the learning party tells them by `Matches.tell`."""
    blob = link.expect("hits").blob()
    if len(blob) % 4:
        raise BadMessage("hits: must be whole 32-bit numbers")
    numbers = struct.unpack(f">{len(blob) // 4}I", blob)
    if len(set(numbers)) != len(numbers) or any(n >= len(ids_in_sent_order) for n in numbers):
        raise BadMessage("hits: must be different places in the list that was sent")
    return {ids_in_sent_order[n] for n in numbers}


def raw_send(
    link: Link,
    ids: Sequence[str],
    tagging: Tagging,
) -> list[str]:
    """Send the tags of all ids; returns the ids in the order sent."""
    tags, ordered = _tagged(ids, tagging.tag)
    link.send("tags", blobs=[json.dumps(tags, ensure_ascii=False).encode()])
    return ordered


def raw_collect(
    link: Link,
    ids: Sequence[str],
    tagging: Tagging,
    rows: int,
) -> Matches:
    """Find own ids among the peer's tags."""
    try:
        tags = json.loads(link.expect("tags").blob())
    except (ValueError, RecursionError) as error:
        raise BadMessage("tags: must be a JSON list") from error
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadMessage("tags: must be a list of texts")
    _same_count("tags", len(tags), rows)
    places = {tag: place for place, tag in enumerate(tags)}
    return Matches({i: places[tag] for i in ids if (tag := tagging.tag(i)) in places})


def rsa_sign(
    link: Link,
    ids: Sequence[str],
    method: str,
    final: str,
    bits: int,
    rows: int,
) -> list[str]:
    """Be the signer: make a key, sign blindly, send tags of the own signatures; returns ids as sent."""
    key = rsa.generate(bits)
    public, size = key.public, key.public.size
    link.send("key", blobs=[joined_numbers([int(public.n)], size)])
    own = key.sign([public.hashed(method, value.encode()) for value in ids])
    tag_of = dict(zip(ids, _signature_tags(own, final, size), strict=True))
    tags, ordered = _tagged(ids, tag_of.__getitem__)
    blinded = _numbers(link.expect("blinded").blob(), public, "blinded")
    _same_count("blinded", len(blinded), rows)
    link.send(
        "signed", blobs=[joined_numbers([int(s) for s in key.sign(blinded)], size), b"".join(tags)]
    )
    return ordered


def rsa_match(
    link: Link,
    ids: Sequence[str],
    method: str,
    final: str,
    bits: int,
    rows: int,
) -> Matches:
    """Be the learner: have the own ids signed blindly and compare with the signer's tags."""
    blob = link.expect("key").blob()
    public = rsa.PublicKey(mpz(int.from_bytes(blob, "big")), mpz(rsa.EXPONENT))
    if public.n.bit_length() != bits or len(blob) != public.size or public.n.is_even():
        raise BadMessage(f"key: must be an odd modulus of {bits} bits")
    blinded = rsa.blind(public, [public.hashed(method, value.encode()) for value in ids])
    order = sorted(range(len(ids)), key=blinded.values.__getitem__)
    link.send(
        "blinded", blobs=[joined_numbers([int(blinded.values[i]) for i in order], public.size)]
    )
    answer = link.expect("signed")
    signed = _numbers(answer.blob(0), public, "signed")
    _same_count("signed", len(signed), len(ids))
    by_place: list[mpz] = [mpz(0)] * len(ids)
    for i, value in zip(order, signed, strict=True):
        by_place[i] = value
    tags = _signature_tags(rsa.unblind(public, blinded, by_place), final, public.size)
    return _matches(dict(zip(ids, tags, strict=True)), answer.blob(1), rows)


def curve_send(
    link: Link,
    ids: Sequence[str],
    rows: int,
) -> list[str]:
    """Be the helper of the curve method; returns ids as sent."""
    scalar = curve.secret()
    own = dict(
        zip(ids, curve.multiply(scalar, (curve.point(i.encode()) for i in ids)), strict=True)
    )
    points, ordered = _tagged(ids, own.__getitem__)
    link.send("points", blobs=[b"".join(points)])
    theirs = _slices(link.expect("points").blob(), curve.SIZE, "points")
    _same_count("points", len(theirs), rows)
    link.send("twice", blobs=[b"".join(p[:TAG] for p in curve.multiply(scalar, theirs))])
    return ordered


def curve_match(
    link: Link,
    ids: Sequence[str],
    rows: int,
) -> Matches:
    """Be the learner of the curve method."""
    scalar = curve.secret()
    own = dict(
        zip(ids, curve.multiply(scalar, (curve.point(i.encode()) for i in ids)), strict=True)
    )
    points, ordered = _tagged(ids, own.__getitem__)
    link.send("points", blobs=[b"".join(points)])
    theirs = _slices(link.expect("points").blob(), curve.SIZE, "points")
    tags = b"".join(p[:TAG] for p in curve.multiply(scalar, theirs))
    back = _slices(link.expect("twice").blob(), TAG, "twice")
    _same_count("twice", len(back), len(ids))
    return _matches(dict(zip(ordered, back, strict=True)), tags, rows)


def _tagged(ids: Sequence[str], tag_of: Callable[[str], T]) -> tuple[list[T], list[str]]:
    pairs = sorted((tag_of(value), value) for value in ids)
    return [tag for tag, _ in pairs], [value for _, value in pairs]


def _signature_tags(
    signatures: Sequence[mpz],
    final: str,
    size: int,
) -> list[bytes]:
    return [digest(final, int(signature).to_bytes(size, "big"))[:TAG] for signature in signatures]


def _matches(
    own: dict[str, bytes],
    peer_tags: bytes,
    rows: int,
) -> Matches:
    tags = _slices(peer_tags, TAG, "tags")
    _same_count("tags", len(tags), rows)
    places = {tag: place for place, tag in enumerate(tags)}
    return Matches({value: places[tag] for value, tag in own.items() if tag in places})


def _numbers(
    blob: bytes,
    public: rsa.PublicKey,
    what: str,
) -> list[mpz]:
    numbers = [mpz(int.from_bytes(part, "big")) for part in _slices(blob, public.size, what)]
    if any(not 0 < number < public.n for number in numbers):
        raise BadMessage(f"{what}: a number is not below the modulus")
    return numbers


def _slices(
    blob: bytes,
    size: int,
    what: str,
) -> list[bytes]:
    if len(blob) % size:
        raise BadMessage(f"{what}: must be a multiple of {size} bytes")
    return [blob[i : i + size] for i in range(0, len(blob), size)]


def _same_count(
    what: str,
    got: int,
    announced: int,
) -> None:
    if got != announced:
        raise BadMessage(f"{what}: {got} came, {announced} were announced")
