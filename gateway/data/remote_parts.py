"""Tables sent to a storage elsewhere while they are written."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from opendal import Operator

from gateway.data.storage import PARTITION

PIECE = 5 * 1024 * 1024
"""bytes that are sent in one piece, but for the last: the least that S3 takes, and it takes 10,000 of them"""
_AT_ONCE = 2
_MOST_OPEN = 4
"""files that are sent while they are written; of each the library keeps a piece in memory"""


class RemoteParts:
    """The files ``data_0`` … of one table; none is there before `finish`, and ``data_0`` is the last.

    What is short of a piece waits in memory or on the disk, and so do all partitions after the first few.
    """

    def __init__(
        self, operator: Operator, folder: str, scratch: Path, named: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """``named`` says what the storage's own errors mean."""
        self._operator = operator
        self._folder = folder
        self._scratch = scratch
        self._named = named
        self._held: defaultdict[int, list[bytes]] = defaultdict(list)
        self._bytes = 0
        self._spilled: dict[int, int] = {}
        self._files: dict[int, Any] = {}
        self._renames = operator.capability().rename  # then a file is seen while it is written

    def add(self, number: int, data: bytes) -> None:
        """Append to a partition. Raises `OSError`, `StorageFailed`."""
        self._held[number].append(data)
        self._bytes += len(data)
        if self._bytes >= PIECE:
            self._make_room()

    def _make_room(self) -> None:
        for number in list(self._held):
            waiting = self._spilled.get(number, 0) + sum(map(len, self._held[number]))
            if waiting < PIECE or (number not in self._files and len(self._files) == _MOST_OPEN):
                self._spilled[number] = waiting
                with self._path(number).open("ab") as file:
                    file.writelines(self._held.pop(number))
                continue
            self._send(number)
        self._bytes = 0

    def _send(self, number: int) -> None:
        """Send what waits, in pieces of which none but the file's last is too short."""
        with self._named():
            if number not in self._files:
                at_once = 1 if self._renames else _AT_ONCE  # HDFS takes one piece after the other
                self._files[number] = self._operator.open(self._name(number), "wb", concurrent=at_once)
            for piece in self._waiting(number):
                self._files[number].write(piece)

    def _waiting(self, number: int) -> Iterator[bytes]:
        data = b""
        if self._spilled.pop(number, 0):
            with self._path(number).open("rb") as file:
                while len(data := file.read(PIECE)) == PIECE:
                    yield data
            self._path(number).unlink()
        if data := data + b"".join(self._held.pop(number, [])):
            yield data

    def finish(self) -> None:
        """Send what is left, and end every file. Raises `OSError`, `StorageFailed`."""
        for number in sorted({*self._held, *self._spilled, *self._files}, reverse=True):
            self._send(number)
            with self._named():
                self._files.pop(number).close()
                if number == 0 and self._renames:
                    self._operator.rename(self._name(number), f"{self._folder}{PARTITION}0")

    def drop(self) -> None:
        """Leave what is not finished as it is."""
        self._files.clear()

    def _name(self, number: int) -> str:
        return f"{self._folder}{PARTITION}{number}{'.new' if number == 0 and self._renames else ''}"

    def _path(self, number: int) -> Path:
        return self._scratch / f"{PARTITION}{number}"
