"""The header of a part of a long message: its position, and its checksum unless it is sealed."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from adapter.bfia.channel.pieces import measure, total_length
from gateway.domain.problems import Problem
from gateway.errors import Invalid

_PART = "x-ptp-part"
_PART_VALUE = re.compile(r"([0-9]{1,15})/([0-9]{1,15})(?:/([0-9a-f]{8}))?", re.ASCII)


class Part(NamedTuple):
    """The position of a part in its message, and the checksum of the part."""

    offset: int  # bytes
    size: int  # bytes of the whole message
    checksum: int | None = None  # CRC-32; None for a sealed part, whose seal protects it

    @property
    def value(self) -> str:
        """The value of the header that describes the part."""
        position = f"{self.offset}/{self.size}"
        if self.checksum is None:
            return position
        return f"{position}/{self.checksum:08x}"

    @property
    def header(self) -> dict[str, str]:
        """The name and value of the header that describes the part in a request."""
        return {_PART: self.value}


def read_part(
    headers: Mapping[str, str],
    pieces: Iterable[bytes],
    part_bytes: int,
) -> Part:
    """Read the header of a part, and check the part's bytes (``pieces``) against it.

    All parts except the last one have ``part_bytes``. Raises Invalid.
    """
    length, checksum = measure(pieces)
    part = _parse_part(headers.get(_PART, ""))
    if part is None or part.checksum is None or not _is_complete(part, length, part_bytes):
        rule = f"must be offset/size/crc32 of a part of {part_bytes} bytes, or the last one"
        raise Invalid([Problem(_PART, rule)])
    if checksum != part.checksum:
        raise Invalid([Problem("body", f"must have the checksum that {_PART} says")])
    return part


def read_sealed_part(
    headers: Mapping[str, str],
    pieces: Iterable[bytes],
    part_bytes: int,
    seal_bytes: int,
) -> Part:
    """Read the header of a sealed part, whose seal adds ``seal_bytes``, and check its length.

    All parts except the last one have ``part_bytes`` besides. Raises Invalid.
    """
    part = _parse_part(headers.get(_PART, ""))
    length = total_length(pieces) - seal_bytes
    if part is None or part.checksum is not None or not _is_complete(part, length, part_bytes):
        rule = f"must be offset/size of a sealed part of {part_bytes} bytes, or the last one"
        raise Invalid([Problem(_PART, rule)])
    return part


def _is_complete(part: Part, length: int, part_bytes: int) -> bool:
    """True if a part begins at a multiple of ``part_bytes`` and has all its bytes."""
    expected = min(part_bytes, part.size - part.offset)
    return length > 0 and part.offset % part_bytes == 0 and length == expected


def _parse_part(value: str) -> Part | None:
    """Read the header of a part; None for any other value."""
    match = _PART_VALUE.fullmatch(value)
    if match is None:
        return None
    offset, size, checksum = match.groups()
    if checksum is None:
        return Part(int(offset), int(size))
    return Part(int(offset), int(size), int(checksum, 16))
