"""A file that is being sent: stored while it comes, or kept on the disk until it is known what to do with it."""

import contextvars
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO, RawIOBase
from typing import Any

from gateway.data.staging import Staging
from gateway.data.storage import CHUNK
from gateway.domain.datasets import Dataset
from gateway.errors import GatewayError, TooLarge


class Source(RawIOBase):
    """The bytes of an upload, which are counted while they are read."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.size = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer unless the end comes first."""
        view, filled = memoryview(buffer), 0
        while filled < len(view) and (count := self._file.readinto(view[filled:])):
            filled += count
        self.size += filled
        return filled

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()


class _Sent(FileIO):
    """The end of a pipe where a sender's bytes come out. Raises `GatewayError` where they end too soon."""

    whole = False

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        if not count and not self.whole:
            raise GatewayError("the upload was broken off", reason="BROKEN_OFF")
        return count


class Reception:
    """A file being received. Closing it deletes what was received and not stored."""

    def __init__(self, staging: Staging, max_bytes: int | None = None) -> None:
        self.staging = staging
        self._path = staging.folder / "upload"
        self._file = FileIO(self._path, "wb")
        self._max = max_bytes
        self._size = 0
        self._sent: _Sent | None = None
        self._storing = threading.Thread()
        self._stored: Dataset | BaseException | None = None

    def begin(self, store: Callable[[Source], Dataset]) -> None:
        """Store what is written from now on while it comes, in a thread of its own."""
        out, into = os.pipe()
        with suppress(OSError):  # where a user's pipes have no more room
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, CHUNK)
        self._file.close()
        self._sent, self._file = _Sent(out), FileIO(into, "wb")

        def work(source: Source) -> None:
            try:
                with source:  # once it is closed, the rest of what is sent goes nowhere
                    self._stored = store(source)
            except BaseException as error:  # whoever waits for the end gets it
                self._stored = error

        context = contextvars.copy_context()
        self._storing = threading.Thread(target=context.run, args=(work, Source(self._sent)), daemon=True)
        self._storing.start()

    def write(self, data: bytes) -> None:
        """Take more bytes. Raises `TooLarge`, and `GatewayError` (STORAGE_FAILED) when the disk is full."""
        self._size += len(data)
        if self._max is not None and self._size > self._max:
            raise TooLarge(f"the file is larger than {self._max} bytes, the setting data.max_upload_bytes")
        view = memoryview(data)
        with storage_errors(), suppress(BrokenPipeError):
            while view:
                view = view[self._file.write(view) :]

    def finish(self) -> Dataset:
        """Return what was stored of a file that has come to its end. Raises what storing it raised."""
        assert self._sent is not None, "begin comes first"
        self._sent.whole = True
        self._file.close()
        self._storing.join()
        if isinstance(self._stored, Dataset):
            return self._stored
        assert self._stored is not None
        raise self._stored

    def opened(self) -> Source:
        """Return what was received, for reading. Raises `GatewayError` (STORAGE_FAILED)."""
        with storage_errors():
            self._file.close()
            return Source(FileIO(self._path))

    def close(self) -> None:
        """Delete what was received; after it was stored there is nothing left to delete."""
        with suppress(OSError):
            self._file.close()
        if self._sent is not None:
            self._storing.join()
        self.staging.close()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Name what the disk refuses. Raises `GatewayError` (STORAGE_FAILED)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        text = f"the storage cannot be used: {error.strerror or error}"
        raise GatewayError(text, reason="STORAGE_FAILED") from error
