"""Divides the rows of a table among its files ``data_0``, ``data_1`` …, its partitions.

Each partition begins with the header. A row goes to partition ``crc32(match id) % partitions``, in
tables without match id to ``crc32(row number) % partitions``. So if two parties have tables with
equally many partitions, an id is in partitions of the same number.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gateway.data.storage import Parts


class Partitions:
    """The files ``data_0`` … of one table, each with the header."""

    def __init__(
        self,
        parts: Parts,
        count: int,
        header: Sequence[str],
    ) -> None:
        """Begin ``count`` files, each with the header; ``header`` is the names of the columns."""
        self._parts = parts
        self._count = count
        self._quoting_some = csv.writer(
            _EchoFile(),
            lineterminator="\n",
        )
        self._quoting_all = csv.writer(
            _EchoFile(),
            lineterminator="\n",
            quoting=csv.QUOTE_ALL,
        )
        self.header = self.stored(header) + b"\n"
        for number in range(count):
            parts.add(number, self.header)

    def add(
        self,
        crcs: Iterable[int],
        stored: Sequence[bytes],
    ) -> bytes:
        """Append each row to the partition that its checksum determines.

        - ``crcs``: the checksum of each row; not used for a single partition
        - ``stored``: the rows in stored form

        Returns the bytes that were written, for the checksum of the stored table. That checksum is
        used only for a table of one partition, so of several partitions the bytes for one suffice.
        """
        by_partition: defaultdict[int, list[bytes]] = defaultdict(list)
        if self._count == 1:
            by_partition[0] = [*stored]
        else:
            for crc, row in zip(crcs, stored, strict=True):
                by_partition[crc % self._count].append(row)
        data = b""
        for number, partition_rows in by_partition.items():
            data = b"\n".join([*partition_rows, b""])
            self._parts.add(number, data)
        return data

    def add_whole(self, data: bytes) -> None:
        """Append stored rows to the only partition."""
        self._parts.add(0, data)

    def stored(self, row: Sequence[str]) -> bytes:
        """Return the stored form of a row, without line end.

        Cells are quoted where needed, and in a row with a carriage return all of them.
        """
        text: str = self._quoting_some.writerow(row)
        if "\r" in text:  # `csv` may have left a cell with it unquoted
            text = self._quoting_all.writerow(row)
        return text[:-1].encode()


class _EchoFile:
    """A file for `csv.writer`: `writerow` returns what `write` does, the text of the row."""

    def write(self, text: str) -> str:
        return text
