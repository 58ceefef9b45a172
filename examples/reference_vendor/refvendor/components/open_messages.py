"""The messages of the open protocol ECDH-PSI (section 5 of the standard) in protobuf.

``docs/ecdh-psi.md`` lists their fields and numbers. The functions that read raise `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from refvendor import protobuf
from refvendor.components.links import BadMessage

# Values of the standard's enumerations.
ECDH_PSI = 1
ECC = 1
CURVE25519 = 1
SM2 = 2
SM3 = 1
SHA_256 = 11
TRY_AND_INCREMENT = 1
DIRECT_HASH_AS_POINT_X = 3
UNCOMPRESSED = 1
X962_COMPRESSED = 2
MONO = 0
CHUNKED = 1

OK = 0
INVALID_REQUEST = 31100100
INVALID_RESOURCE = 31100101
UNSUPPORTED_VERSION = 31100201
UNSUPPORTED_ALGORITHM = 31100202
UNSUPPORTED_PARAMETERS = 31100203

HANDSHAKE_VERSION = 2
PARAMETERS_VERSION = 1
EVERY_RANK = -1
NOT_TRUNCATED = -1
# Types of a cipher batch.
ENCRYPTED_ONCE = "enc"
ENCRYPTED_TWICE = "dual.enc"

TYPE_URL = "type.googleapis.com/org.interconnection.v2"
ECC_PROPOSAL = f"{TYPE_URL}.protocol.EccProtocolProposal"
ECC_RESULT = f"{TYPE_URL}.protocol.EccProtocolResult"
IO_PROPOSAL = f"{TYPE_URL}.algos.PsiDataIoProposal"
IO_RESULT = f"{TYPE_URL}.algos.PsiDataIoResult"

Decoded = TypeVar("Decoded")


@dataclass(frozen=True)
class EcSuit:
    """Numbers of a curve, a hash function and the way from hashes to points."""

    curve: int
    hash: int
    strategy: int


@dataclass(frozen=True)
class Proposal:
    """What the requester of a handshake offers."""

    version: int
    rank: int
    algorithms: Sequence[int]
    protocol_families: Sequence[int]
    suits: Sequence[EcSuit]
    point_formats: Sequence[int]
    can_truncate: bool
    item_count: int
    result_to_rank: int


@dataclass(frozen=True)
class Agreement:
    """The responder's choice, or its refusal if the code is not `OK`."""

    code: int = OK
    message: str = ""
    algorithm: int = ECDH_PSI
    suit: EcSuit = EcSuit(0, 0, 0)
    point_format: int = 0
    truncated_bits: int = NOT_TRUNCATED
    result_to_rank: int = EVERY_RANK


@dataclass(frozen=True)
class CipherBatch:
    """Points, encrypted once or twice, joined together."""

    type: str
    index: int
    is_last: bool
    count: int
    ciphertext: bytes


@dataclass(frozen=True)
class PushRequest:
    """The envelope of every message: a whole value, or a chunk of one."""

    rank: int
    key: str
    value: bytes
    kind: int = MONO
    length: int = 0  # of the whole value, for a chunk
    offset: int = 0  # of the chunk in it


# ------------------------------------------------------------ writing


def encode_proposal(proposal: Proposal) -> bytes:
    """Return a HandshakeRequest."""
    ecc = protobuf.encode_integers(1, [PARAMETERS_VERSION])
    for suit in proposal.suits:
        ecc += protobuf.encode_message(2, _encode_suit(suit))
    ecc += protobuf.encode_integers(3, proposal.point_formats)
    ecc += protobuf.encode_integer(4, int(proposal.can_truncate))
    io = protobuf.encode_integers(1, [PARAMETERS_VERSION])
    io += protobuf.encode_integer(2, proposal.item_count)
    io += protobuf.encode_integer(3, proposal.result_to_rank)
    return b"".join(
        [
            protobuf.encode_integer(1, proposal.version),
            protobuf.encode_integer(2, proposal.rank),
            protobuf.encode_integers(3, proposal.algorithms),
            protobuf.encode_integers(7, proposal.protocol_families),
            protobuf.encode_message(8, _encode_any(ECC_PROPOSAL, ecc)),
            protobuf.encode_message(9, _encode_any(IO_PROPOSAL, io)),
        ]
    )


def encode_agreement(agreement: Agreement) -> bytes:
    """Return a HandshakeResponse; a refusal has nothing but its header."""
    header = protobuf.encode_integer(1, agreement.code)
    header += protobuf.encode_bytes(2, agreement.message.encode())
    response = protobuf.encode_message(1, header)
    if agreement.code != OK:
        return response
    ecc = protobuf.encode_integer(1, PARAMETERS_VERSION)
    ecc += protobuf.encode_message(2, _encode_suit(agreement.suit))
    ecc += protobuf.encode_integer(3, agreement.point_format)
    ecc += protobuf.encode_integer(4, agreement.truncated_bits)
    io = protobuf.encode_integer(1, PARAMETERS_VERSION)
    io += protobuf.encode_integer(2, agreement.result_to_rank)
    response += protobuf.encode_integer(2, agreement.algorithm)
    response += protobuf.encode_integers(6, [ECC])
    response += protobuf.encode_message(7, _encode_any(ECC_RESULT, ecc))
    response += protobuf.encode_message(8, _encode_any(IO_RESULT, io))
    return response


def encode_batch(batch: CipherBatch) -> bytes:
    """Return an EcdhPsiCipherBatch."""
    return b"".join(
        [
            protobuf.encode_bytes(1, batch.type.encode()),
            protobuf.encode_integer(3, batch.index),
            protobuf.encode_integer(4, int(batch.is_last)),
            protobuf.encode_integer(6, batch.count),
            protobuf.encode_bytes(7, batch.ciphertext),
        ]
    )


def encode_push(push: PushRequest) -> bytes:
    """Return a PushRequest."""
    encoded = protobuf.encode_integer(1, push.rank)
    encoded += protobuf.encode_bytes(2, push.key.encode())
    encoded += protobuf.encode_bytes(3, push.value)
    encoded += protobuf.encode_integer(4, push.kind)
    if push.kind == CHUNKED:
        chunk = protobuf.encode_integer(1, push.length) + protobuf.encode_integer(2, push.offset)
        encoded += protobuf.encode_message(5, chunk)
    return encoded


def _encode_suit(suit: EcSuit) -> bytes:
    return b"".join(
        [
            protobuf.encode_integer(1, suit.curve),
            protobuf.encode_integer(2, suit.hash),
            protobuf.encode_integer(3, suit.strategy),
        ]
    )


def _encode_any(
    type_url: str,
    value: bytes,
) -> bytes:
    return protobuf.encode_bytes(1, type_url.encode()) + protobuf.encode_bytes(2, value)


# ------------------------------------------------------------ reading


def decode_proposal(data: bytes) -> Proposal:
    """Read a HandshakeRequest."""
    return _read("a handshake request", _parse_proposal, data)


def decode_agreement(data: bytes) -> Agreement:
    """Read a HandshakeResponse."""
    return _read("a handshake response", _parse_agreement, data)


def decode_batch(data: bytes) -> CipherBatch:
    """Read an EcdhPsiCipherBatch."""
    return _read("a cipher batch", _parse_batch, data)


def decode_push(data: bytes) -> PushRequest:
    """Read a PushRequest."""
    return _read("a message of the channel", _parse_push, data)


def _read(
    name: str,
    parse: Callable[[protobuf.Fields], Decoded],
    data: bytes,
) -> Decoded:
    try:
        return parse(protobuf.decode(data))
    except ValueError as error:
        raise BadMessage(f"{name} cannot be read: {error}") from error


def _parse_proposal(fields: protobuf.Fields) -> Proposal:
    ecc = _unpack_any(fields.messages(8), ECC_PROPOSAL)
    io = _unpack_any(fields.messages(9), IO_PROPOSAL)
    return Proposal(
        version=fields.integer(1),
        rank=fields.integer(2),
        algorithms=fields.integers(3),
        protocol_families=fields.integers(7),
        suits=[_parse_suit(suit) for suit in ecc.messages(2)],
        point_formats=ecc.integers(3),
        can_truncate=bool(ecc.integer(4)),
        item_count=io.integer(2),
        result_to_rank=io.integer(3),
    )


def _parse_agreement(fields: protobuf.Fields) -> Agreement:
    header = protobuf.decode(fields.bytes(1))
    code = header.integer(1)
    if code != OK:
        return Agreement(code, header.text(2))
    ecc = _unpack_any(fields.messages(7), ECC_RESULT)
    io = _unpack_any(fields.messages(8), IO_RESULT)
    return Agreement(
        algorithm=fields.integer(2),
        suit=_parse_suit(ecc.bytes(2)),
        point_format=ecc.integer(3),
        truncated_bits=ecc.integer(4),
        result_to_rank=io.integer(2),
    )


def _parse_batch(fields: protobuf.Fields) -> CipherBatch:
    return CipherBatch(
        type=fields.text(1),
        index=fields.integer(3),
        is_last=bool(fields.integer(4)),
        count=fields.integer(6),
        ciphertext=fields.bytes(7),
    )


def _parse_push(fields: protobuf.Fields) -> PushRequest:
    chunk = protobuf.decode(fields.bytes(5))
    return PushRequest(
        rank=fields.integer(1),
        key=fields.text(2),
        value=fields.bytes(3),
        kind=fields.integer(4),
        length=chunk.integer(1),
        offset=chunk.integer(2),
    )


def _parse_suit(data: bytes) -> EcSuit:
    fields = protobuf.decode(data)
    return EcSuit(
        fields.integer(1),
        fields.integer(2),
        fields.integer(3),
    )


def _unpack_any(
    values: Sequence[bytes],
    type_url: str,
) -> protobuf.Fields:
    """Return the message of a type among values of any type.

    The name alone counts, because the package in front of it has changed with versions.
    """
    name = _name_of(type_url)
    for value in values:
        fields = protobuf.decode(value)
        if _name_of(fields.text(1)) == name:
            return protobuf.decode(fields.bytes(2))
    raise ValueError(f"{name} is missing")


def _name_of(type_url: str) -> str:
    return type_url.rpartition(".")[2]
