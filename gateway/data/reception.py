"""Receives an uploaded table and stores it while it arrives."""

import contextvars
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from gateway.data.file_storage import Staging
from gateway.data.storage import CHUNK
from gateway.domain.datasets import Dataset
from gateway.errors import GatewayError, TooLarge


class NextPart(Protocol):
    """The rest of a file in reception, which is read from its sender directly."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Wait for more bytes; return their number, 0 at the end. Raises `GatewayError`."""

    def stop(self) -> None:
        """End a wait in `readinto`, which another thread may have called."""

    def close(self) -> None:
        """Release the source."""


def _no_next_part() -> None:
    """Return None: the file has no further part."""


def _always_complete() -> bool:
    """Return True: the upload is on the disk as a whole."""
    return True


class Source(FileIO):
    """The bytes of an upload as a file.

    Reading raises `GatewayError` if the upload was broken off, and `TooLarge` beyond the limit.
    """

    size = 0  # bytes read so far

    def __init__(
        self,
        file: int | Path,
        max_bytes: int | None = None,
        next_part: Callable[[], NextPart | None] = _no_next_part,
        is_complete: Callable[[], bool] = _always_complete,
    ) -> None:
        """Read a file or an open file descriptor.

        - ``next_part``: waits for the next part of the upload; returns None after the last one
        - ``is_complete``: called after the last part; returns whether the whole upload was received
        """
        super().__init__(file)
        self._max_bytes = max_bytes
        self._next_part = next_part
        self._is_complete = is_complete
        # Reads from the present part; None after the last one
        self._read: Callable[[memoryview], int] | None = super().readinto
        self._reads_first_part = True  # the first part is the file itself

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer unless the end comes first."""
        view = memoryview(buffer)
        filled = 0
        while filled < len(view) and self._read is not None:
            count = self._read(view[filled:])
            filled += count
            if not count:
                self._continue()
        self.size += filled
        if self._max_bytes is not None and self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if filled < len(view) and not self._is_complete():
            raise GatewayError("the upload was broken off", reason="BROKEN_OFF")
        return filled

    def _continue(self) -> None:
        """Go on with the next part of the upload, if any."""
        self._reads_first_part = False
        part = self._next_part()
        if part is None:
            self._read = None
        else:
            self._read = part.readinto

    def skip(self) -> None:
        """Read the rest of the upload and discard it.

        The sender of an upload reads no response before it has sent everything.
        """
        discarded = memoryview(bytearray(CHUNK))
        with suppress(GatewayError):
            # The pipe is closed by now, so what it still had is lost; go on with the next part.
            if self.closed and self._reads_first_part:
                self._continue()
            while self._read is not None:
                if not self._read(discarded):
                    self._continue()


class Reception:
    """A file in reception. Closing it deletes the received bytes, unless they became a dataset.

    The bytes go to a file on the disk, or after `begin` through a pipe to a thread that stores
    them.
    """

    def __init__(
        self,
        staging: Staging,
        max_bytes: int | None = None,
    ) -> None:
        """Begin to receive into a staging folder; ``max_bytes`` of None sets no limit."""
        self.staging = staging
        self._path = staging.folder / "upload"
        self._file = FileIO(self._path, "wb")  # or the pipe's end for writing
        self._max_bytes = max_bytes
        self._size = 0
        self._is_finished = False
        self._next_parts: SimpleQueue[NextPart | None] = SimpleQueue()
        self._next_part: NextPart | None = None
        self._storing: threading.Thread | None = None
        self._stored: Future[Dataset] = Future()

    def begin(
        self,
        store: Callable[[Source], Dataset],
    ) -> None:
        """Begin to store the bytes that are written from now on, in a separate thread.

        ``store`` is called there with these bytes as a file; `finish` returns its result.
        """
        read_end, write_end = os.pipe()
        with suppress(OSError):  # beyond the user's limit of memory for pipes
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, CHUNK)
        self._file.close()
        self._file = FileIO(write_end, "wb")
        source = Source(
            read_end,
            self._max_bytes,
            next_part=self._next_parts.get,
            is_complete=self._was_finished,
        )
        self._storing = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._store_from, source, store),
            daemon=True,
        )
        self._storing.start()

    def _was_finished(self) -> bool:
        """Return whether `finish` was called."""
        return self._is_finished

    def _store_from(
        self,
        source: Source,
        store: Callable[[Source], Dataset],
    ) -> None:
        """Store the upload in the thread of `begin`; the result is for `finish`."""
        try:
            with source:  # closes the pipe, so that `write` discards further bytes
                dataset = store(source)
            self._stored.set_result(dataset)
        except BaseException as error:  # `finish` raises it
            self._stored.set_exception(error)
        source.skip()

    def write(self, data: bytes) -> None:
        """Receive more bytes.

        Raises `TooLarge`, and `GatewayError` (STORAGE_FAILED) if the disk is full. After storing
        has failed, the bytes are discarded.
        """
        self._size += len(data)
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise too_large(self._max_bytes)
        view = memoryview(data)
        with storage_errors(), suppress(BrokenPipeError):
            while view:
                written = self._file.write(view)
                view = view[written:]

    def follow(self, part: NextPart) -> None:
        """Have the rest of the file read from ``part``, after the bytes written so far."""
        self._next_part = part
        self._next_parts.put(part)
        self._file.close()  # the reader of the pipe reaches its end, and takes the next part

    def finish(self) -> Dataset:
        """Return the dataset after the whole file was received.

        Raises the errors of storing it.
        """
        self._is_finished = True
        self._end()
        return self._stored.result()

    def _end(self) -> None:
        """Let the thread of `begin` reach the end of the upload, or close the file on the disk."""
        self._next_parts.put(None)
        with suppress(OSError):
            self._file.close()

    def open_received(self) -> Source:
        """Open the file on the disk for reading; no further bytes are received.

        Only without `begin`. Raises `GatewayError` (STORAGE_FAILED).
        """
        with storage_errors():
            self._file.close()
            return Source(self._path)

    def close(self) -> None:
        """Delete the received bytes; after a completed upload there are none."""
        self._end()
        if self._next_part is not None:
            self._next_part.stop()  # the thread may wait for it
        if self._storing is not None:
            self._storing.join()
        if self._next_part is not None:
            self._next_part.close()
        self.staging.close()


def too_large(max_bytes: int) -> TooLarge:
    """Return the refusal of a file of more than ``max_bytes``."""
    text = f"the file is larger than {max_bytes} bytes, the setting data.max_upload_bytes"
    return TooLarge(text)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors of the disk into `GatewayError` (STORAGE_FAILED)."""
    try:
        yield
    except OSError as error:
        text = f"the storage cannot be used: {error.strerror or error}"
        raise GatewayError(text, reason="STORAGE_FAILED") from error
