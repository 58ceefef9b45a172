"""Files to and from a node, piece by piece, with a progress bar for whoever watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from gateway.cli.console import harmless

Moved = Callable[[int], None]
"""takes how many bytes more have been moved"""


class Watched:
    """A file for reading that tells how far its reader is."""

    def __init__(self, file: IO[bytes], moved: Moved, whole: Callable[[], None]) -> None:
        self._file = file
        self._moved = moved
        self._whole = whole

    def read(self, size: int = -1) -> bytes:
        """Read on, and tell how much, or (at the end) that it was all."""
        data = self._file.read(size)
        if data:
            self._moved(len(data))
        else:
            self._whole()
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; the reader asks so for the length, and nothing is told."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return where the reader is."""
        return self._file.tell()


class Bar:
    """A progress bar on standard error; nothing at all where that is no terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=quiet or not console.is_terminal
        )
        self._task = self._progress.add_task("", total=None)

    def begin(self, text: str, total: int | None) -> None:
        """Say what is moved, and how many bytes of it there are; None: not known."""
        self._progress.reset(self._task, description=harmless(text), total=total)

    def moved(self, count: int) -> None:
        """Move it on by so many bytes."""
        self._progress.advance(self._task, count)

    def says(self, text: str) -> None:
        """Change what it says."""
        self._progress.update(self._task, description=harmless(text))

    @contextmanager
    def shown(self) -> Iterator["Bar"]:
        """Show it until the block ends."""
        with self._progress:
            yield self


@contextmanager
def bar(text: str, total: int | None, quiet: bool) -> Iterator[Bar]:
    """Show a progress bar until the block ends. ``quiet``: never."""
    with Bar(quiet).shown() as one:
        one.begin(text, total)
        yield one
