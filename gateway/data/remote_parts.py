"""The partitions of a table while they are written to a storage elsewhere."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from opendal import Operator

from gateway.data.storage import PARTITION

# Bytes of a piece of a file, which is sent in one request; S3 takes no shorter ones, except at the
# end of a file.
PIECE = 5 * 1024 * 1024
_PIECES_IN_FLIGHT = 2  # of one file
_MAX_OPEN_FILES = 4  # written at the same time; the library keeps a piece of each in memory


class RemoteParts:
    """The partitions of a table that is being written.

    `finish` completes them, ``data_0`` last: only then the table exists. Bytes that do not yet fill
    a piece wait in memory or on the disk; so do all bytes of a partition while `_MAX_OPEN_FILES`
    others are open.
    """

    def __init__(
        self,
        operator: Operator,
        folder: str,
        scratch: Path,
        storage_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Begin to write below a folder of the storage.

        - ``scratch``: folder on the disk for waiting bytes
        - ``storage_errors``: context that raises the library's errors as ours
        """
        self._operator = operator
        self._folder = folder
        self._scratch = scratch
        self._storage_errors = storage_errors
        self._buffers: defaultdict[int, list[bytes]] = defaultdict(list)  # by partition
        self._buffered = 0  # bytes in all buffers since the last flush
        self._spilled: dict[int, int] = {}  # bytes on the disk, by partition
        self._files: dict[int, Any] = {}  # open files of the storage, by partition
        # True for HDFS, the only kind of storage that renames files: its files are visible while
        # they are written.
        self._is_visible_early = operator.capability().rename

    def add(self, number: int, data: bytes) -> None:
        """Append to a partition; the bytes may wait until `finish`.

        Raises `OSError`, `StorageFailed`.
        """
        self._buffers[number].append(data)
        self._buffered += len(data)
        if self._buffered >= PIECE:
            self._flush()

    def _flush(self) -> None:
        """Empty all buffers: send a partition's waiting bytes if they fill a piece.

        If they do not, or the partition may not be opened yet, they go to the disk.
        """
        for number in list(self._buffers):
            waiting = self._spilled.get(number, 0) + sum(map(len, self._buffers[number]))
            if waiting >= PIECE and self._may_open(number):
                self._send(number)
            else:
                self._spill(number, waiting)
        self._buffered = 0

    def _may_open(self, number: int) -> bool:
        """Return whether a partition is open in the storage, or may be opened.

        At most `_MAX_OPEN_FILES` partitions are open.
        """
        return number in self._files or len(self._files) < _MAX_OPEN_FILES

    def _spill(self, number: int, waiting: int) -> None:
        """Append a partition's buffer to its file on the disk, which then has ``waiting`` bytes."""
        self._spilled[number] = waiting
        with self._spill_path(number).open("ab") as file:
            file.writelines(self._buffers.pop(number))

    def _send(self, number: int) -> None:
        """Send a partition's waiting bytes, in pieces of at least `PIECE` bytes.

        A call by `finish` may also send a shorter one, the partition's last. Raises `OSError`,
        `StorageFailed`.
        """
        with self._storage_errors():
            if number not in self._files:
                self._files[number] = self._open(number)
            for piece in self._take_pieces(number):
                self._files[number].write(piece)

    def _open(self, number: int) -> Any:
        """Open a partition in the storage for writing.

        HDFS takes only one piece after the other.
        """
        in_flight = 1 if self._is_visible_early else _PIECES_IN_FLIGHT
        return self._operator.open(
            self._target(number),
            "wb",
            concurrent=in_flight,
        )

    def _take_pieces(self, number: int) -> Iterator[bytes]:
        """Remove and yield a partition's waiting bytes, first from the disk, then from memory."""
        # Full pieces are on the disk only if the partition could not be opened before `finish`. The
        # last piece, which joins the rest on the disk and the buffer in memory, may then be short:
        # it is the end of the partition.
        rest = b""
        if self._spilled.pop(number, 0):
            with self._spill_path(number).open("rb") as file:
                rest = file.read(PIECE)
                while len(rest) == PIECE:
                    yield rest
                    rest = file.read(PIECE)
            self._spill_path(number).unlink()
        rest += b"".join(self._buffers.pop(number, []))
        if rest:
            yield rest

    def finish(self) -> None:
        """Send all waiting bytes and close every file, ``data_0`` last.

        Raises `OSError`, `StorageFailed`.
        """
        numbers = {*self._buffers, *self._spilled, *self._files}
        for number in sorted(numbers, reverse=True):
            self._send(number)
            with self._storage_errors():
                self._files.pop(number).close()
                if number == 0 and self._is_visible_early:
                    self._operator.rename(self._target(0), f"{self._folder}{PARTITION}0")

    def drop(self) -> None:
        """Forget the files that are still open, without completing them.

        S3 never shows them; on HDFS the caller deletes them.
        """
        self._files.clear()

    def _target(self, number: int) -> str:
        """Return the path in the storage at which a partition is written.

        On HDFS, `finish` renames the first partition.
        """
        name = f"{PARTITION}{number}"
        if number == 0 and self._is_visible_early:
            name += ".new"
        return self._folder + name

    def _spill_path(self, number: int) -> Path:
        """Return the path of the file on the disk with a partition's waiting bytes."""
        return self._scratch / f"{PARTITION}{number}"
