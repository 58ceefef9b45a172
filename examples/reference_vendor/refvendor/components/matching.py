"""Finds the common ids of two parties by one of three methods, over a `Link`. Knows no tables and
no parameters.

In each method one side learns the common ids; the other side helps. A party's ids travel sorted by
their encrypted or hashed form, never in the order of its file, which would tell something. Tags are
hashes cut to 16 bytes: among 10^6 by 10^6 ids the chance of a false match is below 10^-26.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.components.links import BadMessage, Link
from refvendor.crypto import curve, rsa
from refvendor.crypto.hashing import concatenate_numbers, digest

TAG_SIZE = 16  # bytes
POSITION_SIZE = 4  # bytes
Hidden = TypeVar("Hidden", str, bytes)


@dataclass(frozen=True)
class Tagging:
    """How the raw method turns an id into the tag that it sends."""

    use_hash: bool
    hash_method: str
    salt: str
    base64: bool  # else hexadecimal

    def tag(self, value: str) -> str:
        """Return the tag of an id: the id itself, or its salted hash as text."""
        if not self.use_hash:
            return value
        data = digest(
            self.hash_method,
            self.salt.encode(),
            value.encode(),
        )
        return base64.b64encode(data).decode() if self.base64 else data.hex()


@dataclass(frozen=True)
class RsaSettings:
    """How the RSA method hashes and signs ids."""

    hash_method: str  # of ids before they are signed
    final_hash_method: str  # of signatures, to make tags
    key_length: int  # bits


@dataclass(frozen=True)
class Matches:
    """The ids that one peer has as well, and their positions in the list that it sent."""

    positions: Mapping[str, int]

    def share(
        self,
        link: Link,
        ids: Collection[str],
    ) -> None:
        """Send the peer the positions of the ids that all parties have in common."""
        numbers = sorted(self.positions[value] for value in ids)
        link.send("hits", blobs=[struct.pack(f">{len(numbers)}I", *numbers)])


def receive_common_ids(
    link: Link,
    sent_ids: Sequence[str],
) -> set[str]:
    """Return the common ids that the learning side shares; ``sent_ids`` are this side's in the
    order sent.
    """
    blob = link.expect("hits").blob()
    if len(blob) % POSITION_SIZE:
        raise BadMessage("hits: must be whole 32-bit numbers")
    positions = struct.unpack(f">{len(blob) // POSITION_SIZE}I", blob)
    are_different = len(set(positions)) == len(positions)
    if not are_different or max(positions, default=-1) >= len(sent_ids):
        raise BadMessage("hits: must be different places in the list that was sent")
    return {sent_ids[position] for position in positions}


# ------------------------------------------------------------ raw: tags of all ids go to the
# learning side


def raw_send(
    link: Link,
    ids: Sequence[str],
    tagging: Tagging,
) -> list[str]:
    """Help: send the tags of all ids. Returns the ids in the order sent."""
    tags, sent_ids = _sorted_by_hidden({value: tagging.tag(value) for value in ids})
    link.send(
        "tags",
        blobs=[json.dumps(tags, ensure_ascii=False).encode()],
    )
    return sent_ids


def raw_collect(
    link: Link,
    ids: Sequence[str],
    tagging: Tagging,
    peer_rows: int,
) -> Matches:
    """Learn: find this side's ids among the peer's tags. Raises `BadMessage`."""
    try:
        tags = json.loads(link.expect("tags").blob())
    except (ValueError, RecursionError) as error:
        raise BadMessage("tags: must be a JSON list") from error
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadMessage("tags: must be a list of texts")
    _require_count("tags", len(tags), peer_rows)
    return _match({value: tagging.tag(value) for value in ids}, tags)


# ------------------------------------------------------------ rsa: the helper signs the learner's
# ids blindly


def rsa_sign(
    link: Link,
    ids: Sequence[str],
    settings: RsaSettings,
    peer_rows: int,
) -> list[str]:
    """Help: make a key, sign the peer's blinded ids, send tags of this side's signatures.

    Returns the ids in the order sent. Raises `BadMessage`.
    """
    key = rsa.generate(settings.key_length)
    public = key.public
    link.send(
        "key",
        blobs=[concatenate_numbers([int(public.n)], public.size)],
    )
    signatures = key.sign(_hashed_ids(public, ids, settings))
    tags, sent_ids = _sorted_by_hidden(_signature_tags(ids, signatures, public, settings))
    blinded = _read_numbers(
        link.expect("blinded").blob(),
        public,
        "blinded",
    )
    _require_count("blinded", len(blinded), peer_rows)
    signed = [int(signature) for signature in key.sign(blinded)]
    link.send(
        "signed",
        blobs=[
            concatenate_numbers(signed, public.size),
            b"".join(tags),
        ],
    )
    return sent_ids


def rsa_match(
    link: Link,
    ids: Sequence[str],
    settings: RsaSettings,
    peer_rows: int,
) -> Matches:
    """Learn: have this side's ids signed blindly and compare them with the signer's tags.

    Raises `BadMessage`, and `rsa.BadSignature` if a signature does not verify.
    """
    public = _read_public_key(
        link.expect("key").blob(),
        settings.key_length,
    )
    blinded = rsa.blind(
        public,
        _hashed_ids(public, ids, settings),
    )
    order = sorted(
        range(len(ids)),
        key=blinded.values.__getitem__,
    )
    values = [int(blinded.values[place]) for place in order]
    link.send(
        "blinded",
        blobs=[concatenate_numbers(values, public.size)],
    )
    message = link.expect("signed")
    signed = _read_numbers(message.blob(0), public, "signed")
    _require_count("signed", len(signed), len(ids))
    signed_in_order_of_ids: list[mpz] = [mpz(0)] * len(ids)
    for place, signature in zip(order, signed, strict=True):
        signed_in_order_of_ids[place] = signature
    signatures = rsa.unblind(public, blinded, signed_in_order_of_ids)
    tags = _signature_tags(ids, signatures, public, settings)
    return _match(
        tags,
        _read_tags(message.blob(1), peer_rows),
    )


def _read_public_key(blob: bytes, bits: int) -> rsa.PublicKey:
    public = rsa.PublicKey(
        mpz(int.from_bytes(blob, "big")),
        mpz(rsa.EXPONENT),
    )
    has_length = public.n.bit_length() == bits and len(blob) == public.size
    if not has_length or public.n.is_even():
        raise BadMessage(f"key: must be an odd modulus of {bits} bits")
    return public


def _hashed_ids(
    public: rsa.PublicKey,
    ids: Sequence[str],
    settings: RsaSettings,
) -> list[mpz]:
    return [public.hashed(settings.hash_method, value.encode()) for value in ids]


def _signature_tags(
    ids: Sequence[str],
    signatures: Sequence[mpz],
    public: rsa.PublicKey,
    settings: RsaSettings,
) -> dict[str, bytes]:
    """Return the tag of each id's signature."""
    tags = {}
    for value, signature in zip(ids, signatures, strict=True):
        data = int(signature).to_bytes(public.size, "big")
        tags[value] = digest(settings.final_hash_method, data)[:TAG_SIZE]
    return tags


def _read_numbers(
    blob: bytes,
    public: rsa.PublicKey,
    name: str,
) -> list[mpz]:
    """Return numbers between 0 and the modulus. Raises `BadMessage`."""
    numbers = [mpz(int.from_bytes(part, "big")) for part in _slices(blob, public.size, name)]
    if any(not 0 < number < public.n for number in numbers):
        raise BadMessage(f"{name}: a number is not below the modulus")
    return numbers


# ------------------------------------------------------------ ecdh: both sides encrypt all ids, in
# either order


def curve_send(
    link: Link,
    ids: Sequence[str],
    peer_rows: int,
) -> list[str]:
    """Help: exchange encrypted ids, and return the peer's encrypted twice.

    Returns this side's ids in the order sent. Raises `BadMessage`, `curve.BadPoint`.
    """
    scalar = curve.secret()
    points, sent_ids = _sorted_by_hidden(_encrypted_ids(scalar, ids))
    link.send(
        "points",
        blobs=[b"".join(points)],
    )
    peer_points = _slices(
        link.expect("points").blob(),
        curve.SIZE,
        "points",
    )
    _require_count("points", len(peer_points), peer_rows)
    link.send(
        "twice",
        blobs=[b"".join(_point_tags(scalar, peer_points))],
    )
    return sent_ids


def curve_match(
    link: Link,
    ids: Sequence[str],
    peer_rows: int,
) -> Matches:
    """Learn: exchange encrypted ids and compare all of them encrypted twice.

    Raises `BadMessage`, `curve.BadPoint`.
    """
    scalar = curve.secret()
    points, sent_ids = _sorted_by_hidden(_encrypted_ids(scalar, ids))
    link.send(
        "points",
        blobs=[b"".join(points)],
    )
    peer_points = _slices(
        link.expect("points").blob(),
        curve.SIZE,
        "points",
    )
    peer_tags = _point_tags(scalar, peer_points)
    tags = _slices(
        link.expect("twice").blob(),
        TAG_SIZE,
        "twice",
    )
    _require_count("twice", len(tags), len(ids))
    _require_count("tags", len(peer_tags), peer_rows)
    return _match(
        dict(zip(sent_ids, tags, strict=True)),
        peer_tags,
    )


def _encrypted_ids(
    scalar: bytes,
    ids: Sequence[str],
) -> dict[str, bytes]:
    points = [curve.point(value.encode()) for value in ids]
    return dict(zip(ids, curve.multiply(scalar, points), strict=True))


def _point_tags(
    scalar: bytes,
    points: Iterable[bytes],
) -> list[bytes]:
    return [point[:TAG_SIZE] for point in curve.multiply(scalar, points)]


# ------------------------------------------------------------ shared by the methods


def _sorted_by_hidden(hidden_ids: Mapping[str, Hidden]) -> tuple[list[Hidden], list[str]]:
    """Return hidden forms in their order, and the ids in the same order."""
    pairs = sorted((hidden, value) for value, hidden in hidden_ids.items())
    return [hidden for hidden, _ in pairs], [value for _, value in pairs]


def _match(
    tags: Mapping[str, Hidden],
    peer_tags: Sequence[Hidden],
) -> Matches:
    """Return the ids whose tag the peer has too."""
    peer_positions = {tag: position for position, tag in enumerate(peer_tags)}
    common = {value: tag for value, tag in tags.items() if tag in peer_positions}
    return Matches({value: peer_positions[tag] for value, tag in common.items()})


def _read_tags(
    blob: bytes,
    count: int,
) -> list[bytes]:
    tags = _slices(blob, TAG_SIZE, "tags")
    _require_count("tags", len(tags), count)
    return tags


def _slices(
    blob: bytes,
    size: int,
    name: str,
) -> list[bytes]:
    """Cut a blob into pieces of ``size`` bytes. Raises `BadMessage` if that leaves a rest."""
    if len(blob) % size:
        raise BadMessage(f"{name}: must be a multiple of {size} bytes")
    return [blob[start : start + size] for start in range(0, len(blob), size)]


def _require_count(
    name: str,
    count: int,
    announced: int,
) -> None:
    if count != announced:
        raise BadMessage(f"{name}: {count} came, {announced} were announced")
