"""Many files written through one bounded buffer, and the check for repeated ids that is built on them."""

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from gateway.data.table_reader import SHOWN, Findings

_DIGEST = 16
_RECORD = struct.Struct(f">{_DIGEST}sQ")
_BYTES_PER_BUCKET = 2 * 1024 * 1024
_MOST_BUCKETS = 4096


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
            self.flush()

    def flush(self) -> None:
        """Write the whole buffer. Raises `OSError`."""
        for number, data in self._buffer.items():
            with self.path(number).open("ab") as file:
                file.write(data)
        self._buffer.clear()
        self._bytes = 0


class IdCheck:
    """Finds the lines whose id an earlier line has, with a digest per id on disk, bucket by bucket."""

    def __init__(self, folder: Path, file_size: int) -> None:
        folder.mkdir()
        self._buckets = Buckets(folder, "")
        self._count = max(1, min(_MOST_BUCKETS, file_size // _BYTES_PER_BUCKET))

    def see(self, text: str, line: int, findings: Findings) -> int:
        """Take in the id of a line; return its crc32."""
        if not text.strip():
            findings.add("blank ids", f"file:{line}", "must have a match id", text)
        key = text.encode()
        crc = zlib.crc32(key)
        digest = blake2b(key, digest_size=_DIGEST).digest()
        self._buckets.add(crc % self._count, _RECORD.pack(digest, line))
        return crc

    def finish(self, findings: Findings) -> None:
        """Report every line whose id an earlier line has, the first ones in full."""
        self._buckets.flush()
        total, first = 0, list[tuple[int, int]]()
        for number in range(self._count):
            for pair in self._repeats(self._buckets.path(number)):
                total += 1
                if len(first) < SHOWN or pair < first[-1]:
                    first = sorted([*first, pair])[:SHOWN]
        for line, earlier in first:
            rule = f"must have a match id of its own, it repeats that of line {earlier}"
            findings.add("repeated ids", f"file:{line}", rule)
        findings.more("repeated ids", total - len(first))

    @staticmethod
    def _repeats(path: Path) -> Iterator[tuple[int, int]]:
        """Yield (line, the first line with the same id)."""
        if not path.exists():
            return
        seen: dict[bytes, int] = {}  # bounded by the distinct ids of a bucket, whatever repeats
        with path.open("rb") as file:
            while data := file.read(_RECORD.size * 4096):
                for digest, line in _RECORD.iter_unpack(data):
                    earlier = seen.setdefault(digest, line)
                    if earlier != line:
                        yield line, earlier
        path.unlink()
