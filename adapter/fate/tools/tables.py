"""Tables of the storage as files of an archive: one CSV with one header, whatever parts it lies in."""

import json
from collections.abc import Iterator, Sequence

from adapter.fate.tools.tarring import CHUNK, Member
from gateway.data.storage import FileStorage
from gateway.domain.run import Address
from gateway.errors import GatewayError

_LONGEST_HEADER = 1024 * 1024


def members(storage: FileStorage, address: Address, folder: str, *, header: bool = True) -> Iterator[Member]:
    """Yield ``<folder>/0.csv`` and ``<folder>/0.meta`` of a table. Raises `NotFound`."""
    skips: list[int] = []
    first, size = b"", 0
    for number in range(len(storage.partitions(address))):
        with storage.open_partition(address, number) as file:
            line = file.readline(_LONGEST_HEADER)
            first = first if number else line
            skips.append(len(line) if (number or not header) and line == first else 0)
            size += file.seek(0, 2) - skips[-1]
    yield Member(f"{folder}/0.csv", size, _chunks(storage, address, skips))
    meta = json.dumps({"header": _columns(storage, address)}).encode()
    yield Member(f"{folder}/0.meta", len(meta), (meta,))


def _chunks(storage: FileStorage, address: Address, skips: Sequence[int]) -> Iterator[bytes]:
    """Yield all parts, each without so many bytes at its beginning."""
    for number, skip in enumerate(skips):
        with storage.open_partition(address, number) as file:
            file.seek(skip)
            while data := file.read(CHUNK):
                yield data


def _columns(storage: FileStorage, address: Address) -> list[str]:
    try:
        return storage.columns(address)
    except GatewayError:
        return []
