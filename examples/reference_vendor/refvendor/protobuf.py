"""Writes and reads messages of protobuf field by field, for messages of a few fields each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

# Wire types.
VARINT = 0
FIXED_64 = 1
LENGTH_DELIMITED = 2
FIXED_32 = 5
FIXED_SIZES = {FIXED_64: 8, FIXED_32: 4}
LONGEST_VARINT = 10  # bytes
NEGATIVE = 2**63  # numbers from here on stand for negative ones
MODULUS = 2**64


def encode_integer(
    number: int,
    value: int,
) -> bytes:
    """Return a field with a whole number; nothing for 0, the default of every reader."""
    if not value:
        return b""
    return _encode_varint(number << 3 | VARINT) + _encode_varint(value % MODULUS)


def encode_bytes(
    number: int,
    value: bytes,
) -> bytes:
    """Return a field with bytes or a nested message; nothing for empty ones."""
    if not value:
        return b""
    return encode_message(number, value)


def encode_message(
    number: int,
    value: bytes,
) -> bytes:
    """Return a field with a nested message, which may be empty."""
    tag = _encode_varint(number << 3 | LENGTH_DELIMITED)
    return tag + _encode_varint(len(value)) + value


def encode_integers(
    number: int,
    values: Sequence[int],
) -> bytes:
    """Return a field with a list of whole numbers in the packed form."""
    packed = b"".join(_encode_varint(value % MODULUS) for value in values)
    return encode_bytes(number, packed)


@dataclass(frozen=True)
class Fields:
    """The fields of a message by number.

    The methods raise `ValueError` for a field of another type than asked for.
    """

    values: dict[int, list[int | bytes]]

    def integer(
        self,
        number: int,
    ) -> int:
        """Return a whole number, 0 for a missing one. Of several, the last counts."""
        numbers = self.integers(number)
        return numbers[-1] if numbers else 0

    def integers(
        self,
        number: int,
    ) -> list[int]:
        """Return a list of whole numbers, packed or not."""
        numbers: list[int] = []
        for value in self.values.get(number, []):
            if isinstance(value, int):
                numbers.append(value)
            else:
                numbers.extend(_unpack(value))
        return [_signed(value) for value in numbers]

    def bytes(
        self,
        number: int,
    ) -> bytes:
        """Return bytes, empty for missing ones."""
        chunks = self.messages(number)
        return chunks[-1] if chunks else b""

    def messages(
        self,
        number: int,
    ) -> list[bytes]:
        """Return a list of bytes or of nested messages."""
        chunks = []
        for value in self.values.get(number, []):
            if isinstance(value, int):
                raise ValueError(f"field {number} is a number in place of bytes")
            chunks.append(value)
        return chunks

    def text(
        self,
        number: int,
    ) -> str:
        """Return text, empty for a missing one."""
        return self.bytes(number).decode()


def decode(data: bytes) -> Fields:
    """Read a message. Raises `ValueError` if it is cut short or malformed."""
    values: dict[int, list[int | bytes]] = defaultdict(list)
    position = 0
    while position < len(data):
        tag, position = _decode_varint(data, position)
        number = tag >> 3
        wire_type = tag & 7
        if wire_type == VARINT:
            value, position = _decode_varint(data, position)
            values[number].append(value)
            continue
        if wire_type == LENGTH_DELIMITED:
            size, position = _decode_varint(data, position)
        elif wire_type in FIXED_SIZES:
            size = FIXED_SIZES[wire_type]
        else:
            raise ValueError(f"field {number} has the unknown wire type {wire_type}")
        end = position + size
        if end > len(data):
            raise ValueError(f"field {number} is cut short")
        values[number].append(data[position:end])
        position = end
    return Fields(dict(values))


def _unpack(data: bytes) -> list[int]:
    numbers = []
    position = 0
    while position < len(data):
        value, position = _decode_varint(data, position)
        numbers.append(value)
    return numbers


def _signed(value: int) -> int:
    return value - MODULUS if value >= NEGATIVE else value


def _encode_varint(value: int) -> bytes:
    """Encode a number in groups of seven bits, the lowest first; the top bit of a byte says that
    another group follows.
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode_varint(
    data: bytes,
    position: int,
) -> tuple[int, int]:
    """Return the number at a position, and the position behind it. Raises `ValueError`."""
    value = 0
    end = min(len(data), position + LONGEST_VARINT)
    for shift, place in enumerate(range(position, end)):
        value |= (data[place] & 0x7F) << 7 * shift
        if data[place] < 0x80:
            return value % MODULUS, place + 1
    raise ValueError("a number is cut short or too long")
