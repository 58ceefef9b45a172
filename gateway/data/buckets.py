"""Many files written through one bounded buffer, and the check for repeated ids that is built on them."""

import struct
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.data.table_reader import SHOWN, Findings

_RECORD, _READ = struct.Struct("=qIQ"), struct.Struct("=12sQ")
"""hash and crc32 of an id, the line that it is in; an id's 96 bits are as good as the id"""
_BUCKETS = 1024
_BUDGET = 1024 * 1024


class Buckets:
    """Files of a folder, appended to through one bounded buffer, so that few are open at the same time."""

    def __init__(self, folder: Path, prefix: str, budget: int = 8 * 1024 * 1024) -> None:
        self._folder = folder
        self._prefix = prefix
        self._budget = budget
        self._buffer: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._bytes = 0

    def path(self, number: int) -> Path:
        """Return the file of a bucket; it is there once something was flushed to it."""
        return self._folder / f"{self._prefix}{number}"

    def add(self, number: int, data: bytes) -> None:
        """Append to a file, sooner or later. Raises `OSError`."""
        self._buffer[number] += data
        self._bytes += len(data)
        if self._bytes > self._budget:
            self.finish()

    def finish(self) -> None:
        """Write the whole buffer. Raises `OSError`."""
        for number, data in self._buffer.items():
            with self.path(number).open("ab") as file:
                file.write(data)
        self._buffer.clear()
        self._bytes = 0


class IdCheck:
    """Finds the lines whose id an earlier line has, with a hash per id on disk, bucket by bucket."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._buffer = [bytearray() for _ in range(_BUCKETS)]
        self._bytes = 0
        self._written: list[array[int]] = []
        """where each bucket ends in the file, for every time that the buffer was written"""

    @staticmethod
    def refuse_blank(keys: Sequence[bytes], lines: Sequence[int], findings: Findings) -> None:
        """Find rows without an id."""
        for line, key in zip(lines, keys, strict=True):
            if not key.strip() or (key[0] >= 0x80 and not key.decode().strip()):
                findings.add("blank ids", f"file:{line}", "must have a match id", key.decode())

    def see(self, keys: Sequence[bytes], lines: Sequence[int]) -> list[int]:
        """Take in the ids of some lines; return the crc32 of each. Raises `OSError`."""
        crcs, buffer = list(map(zlib.crc32, keys)), self._buffer
        for crc, record in zip(crcs, map(_RECORD.pack, map(hash, keys), crcs, lines), strict=True):
            buffer[crc % _BUCKETS] += record
        self._bytes += _RECORD.size * len(keys)
        if self._bytes > _BUDGET:
            self._write()
        return crcs

    def _write(self) -> None:
        with self._file.open("ab") as file:
            file.writelines(self._buffer)
            end = file.tell() - self._bytes
        self._written.append(array("q", (end := end + len(data) for data in self._buffer)))
        self._buffer = [bytearray() for _ in range(_BUCKETS)]
        self._bytes = 0

    def finish(self, findings: Findings) -> None:
        """Report every line whose id an earlier line has, the first ones in full."""
        total, first = 0, list[tuple[int, int]]()
        for number in range(_BUCKETS):
            for pair in self._repeats(self._bucket(number)):
                total += 1
                if len(first) < SHOWN or pair < first[-1]:
                    first = sorted([*first, pair])[:SHOWN]
        for line, earlier in first:
            rule = f"must have a match id of its own, it repeats that of line {earlier}"
            findings.add("repeated ids", f"file:{line}", rule)
        findings.more("repeated ids", total - len(first))

    def _bucket(self, number: int) -> Iterator[bytes | bytearray]:
        if self._written:
            with self._file.open("rb") as file:
                begin = 0
                for ends in self._written:
                    file.seek(start := ends[number - 1] if number else begin)
                    left = ends[number] - start
                    while data := file.read(min(left, _READ.size * 4096)):
                        left -= len(data)
                        yield data
                    begin = ends[-1]
        yield self._buffer[number]

    @staticmethod
    def _repeats(records: Iterable[bytes | bytearray]) -> Iterator[tuple[int, int]]:
        """Yield (line, the first line with the same id)."""
        seen: dict[bytes, int] = {}  # bounded by the distinct ids of a bucket, whatever repeats
        for data in records:
            found = dict(_READ.iter_unpack(data))
            if len(found) * _READ.size == len(data) and seen.keys().isdisjoint(found):
                seen |= found
                continue
            for digest, line in _READ.iter_unpack(data):
                earlier = seen.setdefault(digest, line)
                if earlier != line:
                    yield line, earlier
