"""Finds blank and repeated match ids of a table in bounded memory."""

import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedRandom
from pathlib import Path

from gateway.data.table_reader import SHOWN, Findings

# A record: an id's hash (Python's), its crc32, and its line. Ids with equal hash and crc32 (96 bits
# together) count as equal. The hash differs between processes, so the records of a check are used
# only by the process that made them.
_RECORD = struct.Struct("=3q")


class IdCheck:
    """Finds the lines that repeat an earlier id, by one record per id in buckets on the disk.

    Equal ids have records in the same bucket, so that one bucket at a time fits into memory.
    """

    def __init__(
        self,
        file: Path,
        remedy: str = "each id may occur once",
        *,
        buckets: int = 1024,
        buffer_bytes: int = 4 * 1024 * 1024,
        records_per_read: int = 4096,
    ) -> None:
        """Begin a check.

        - ``file``: for the records that exceed ``buffer_bytes`` of memory; it need not exist
        - ``remedy``: the end of the message about a repeated id
        - ``buckets``: the number of buckets
        - ``records_per_read``: records of a bucket that are read from the file together
        """
        self._file = file
        self._remedy = remedy
        self._bucket_count = buckets
        self._buffer_bytes = buffer_bytes
        self._read_bytes = records_per_read * _RECORD.size
        self._buffer = self._empty_buffer()
        self._buffered_bytes = 0
        # For each flush, the offset in the file after the records of each bucket.
        self._bucket_ends: list[array[int]] = []

    @staticmethod
    def report_blank(
        ids: Sequence[bytes],
        lines: Sequence[int],
        findings: Findings,
    ) -> None:
        """Report the lines whose id is blank; ``ids`` are the lines' ids in UTF-8."""
        for line, row_id in zip(lines, ids, strict=True):
            if _is_blank(row_id):
                findings.add("blank ids", f"file:{line}", "must have a match id", row_id.decode())

    def see(
        self,
        ids: Sequence[bytes],
        lines: Sequence[int],
    ) -> list[int]:
        """Record the ids of some lines; return the crc32 of each id. Raises `OSError`.

        The checksums also determine the partition of each row, so the caller need not compute them.
        """
        crcs = list(map(zlib.crc32, ids))
        records = map(
            _RECORD.pack,
            map(hash, ids),
            crcs,
            lines,
        )
        for crc, record in zip(crcs, records, strict=True):
            self._buffer[crc % self._bucket_count] += record
        self._buffered_bytes += _RECORD.size * len(ids)
        if self._buffered_bytes > self._buffer_bytes:
            self._flush()
        return crcs

    def finish(self, findings: Findings) -> None:
        """Report the first `SHOWN` lines that repeat an earlier id, and the number of the others.

        Raises `OSError`.
        """
        total = 0
        first: list[tuple[int, int]] = []
        with self._file.open("a+b") as file:
            for number in range(self._bucket_count):
                if _all_differ(self._bucket(file, number)):
                    continue
                for repeat in _repeats(self._bucket(file, number)):
                    total += 1
                    # The order of the buckets is not that of the lines: the lowest lines are kept.
                    if len(first) < SHOWN or repeat < first[-1]:
                        first = sorted([*first, repeat])[:SHOWN]
        for line, earlier in first:
            rule = f"has the same match id as line {earlier}; {self._remedy}"
            findings.add("repeated ids", f"file:{line}", rule)
        findings.count_further("repeated ids", total - len(first))

    def _empty_buffer(self) -> list[bytearray]:
        """Return an empty buffer for each bucket."""
        return [bytearray() for _ in range(self._bucket_count)]

    def _flush(self) -> None:
        """Append all buffers to the file, bucket by bucket, and note the end of each."""
        with self._file.open("ab") as file:
            file.writelines(self._buffer)
            end = file.tell() - self._buffered_bytes  # the size before this flush
        ends = array("q")
        for records in self._buffer:
            end += len(records)
            ends.append(end)
        self._bucket_ends.append(ends)
        self._buffer = self._empty_buffer()
        self._buffered_bytes = 0

    def _bucket(
        self,
        file: BufferedRandom,
        number: int,
    ) -> Iterator[bytes | bytearray]:
        """Yield the records of a bucket, in blocks: from each flush, then from memory."""
        flush_start = 0  # offset of the flush in the file
        for ends in self._bucket_ends:
            offset = flush_start
            if number:
                offset = ends[number - 1]
            while offset < ends[number]:
                size = min(ends[number] - offset, self._read_bytes)
                data = os.pread(file.fileno(), size, offset)
                if not data:
                    break
                offset += len(data)
                yield data
            flush_start = ends[-1]
        yield self._buffer[number]


def _is_blank(row_id: bytes) -> bool:
    """Return whether an id in UTF-8 is empty or has only blanks, also Unicode's."""
    stripped = row_id.strip()  # of ASCII blanks
    if not stripped:
        return True
    # Only an id that then begins with a character beyond ASCII is worth decoding.
    return stripped[0] >= 0x80 and not stripped.decode().strip()


def _all_differ(records: Iterable[bytes | bytearray]) -> bool:
    """Return whether the hashes of all ids of a bucket differ.

    Most buckets pass this fast check, and need not be searched for repeats.
    """
    earlier: set[int] = set()
    for data in records:
        numbers = array("q")
        numbers.frombytes(data)
        hashes = numbers[::3]  # a record has three numbers, the hash first
        distinct = set(hashes)
        if len(distinct) < len(hashes) or not earlier.isdisjoint(distinct):
            return False
        earlier |= distinct
    return True


def _repeats(records: Iterable[bytes | bytearray]) -> Iterator[tuple[int, int]]:
    """Yield each line that repeats an id, together with the line that had this id first."""
    first_lines: dict[tuple[int, int], int] = {}  # bounded by the distinct ids of a bucket
    for data in records:
        for hashed, crc, line in _RECORD.iter_unpack(data):
            earlier = first_lines.setdefault((hashed, crc), line)
            if earlier != line:
                yield line, earlier
