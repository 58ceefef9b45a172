"""Walks, measures and deletes folders that containers filled.

A container may nest folders to any depth, so no function here is recursive.
"""

import errno
import itertools
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_BLOCK = 512  # bytes; unit of st_blocks
_LONGEST_OUTPUT = 500  # characters of rm's output in a message


def _ignore(error: OSError) -> None:
    """Ignore a folder that cannot be read."""


def walk(
    top: Path,
    max_entries: int | None = None,
    on_error: Callable[[OSError], None] = _ignore,
) -> Iterator[os.DirEntry[str]]:
    """Yield the entries below a folder without following links, the nearest to the top first.

    ``max_entries``: the most to yield; None: all. ``on_error`` receives the error of each folder
    that cannot be read.
    """
    folders = deque([str(top)])
    remaining = max_entries  # None: no limit, so never 0
    while folders and remaining != 0:
        children = _entries(folders.popleft(), remaining, on_error)
        if remaining is not None:
            remaining -= len(children)
        folders.extend(child.path for child in children if is_folder(child))
        yield from children


def _entries(
    folder: str, max_entries: int | None, on_error: Callable[[OSError], None]
) -> list[os.DirEntry[str]]:
    """Return the entries of one folder, at most ``max_entries``.

    If reading fails halfway, the entries up to the error are returned, and ``on_error`` is called.
    """
    children: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            children.extend(itertools.islice(entries, max_entries))
    except OSError as error:
        on_error(error)
    return children


def size_below(top: Path, max_entries: int) -> tuple[int, int]:
    """Return the bytes below a folder, holes of files included, and the number of its entries.

    At most ``max_entries`` + 1 entries are counted, so that a caller sees that there are too many.
    Raises OSError for folders nested so deeply that their path is too long.
    """
    size = 0
    count = 0
    for entry in walk(top, max_entries + 1, _raise_if_too_deep):
        count += 1
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            _raise_if_too_deep(error)
        else:
            # A hole takes no blocks, but its bytes count: a reader or a copy of the file gets them.
            size += max(status.st_blocks * _BLOCK, status.st_size)
    return size, count


def _raise_if_too_deep(error: OSError) -> None:
    """Raise the error if a path is too long.

    Any other error is ignored, as containers change their files during the measurement.
    """
    if error.errno == errno.ENAMETOOLONG:
        raise error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, and not a link to one; False if it no longer exists."""
    return entry.is_dir(follow_symlinks=False)


def remove(top: Path) -> None:
    """Delete a folder with everything below it. Raises OSError."""
    try:
        shutil.rmtree(top)
    except RecursionError as error:
        _remove_by_command(top, error)
    except OSError as error:
        has_too_many_open_folders = error.errno == errno.EMFILE  # `shutil` opens one per level
        if not has_too_many_open_folders:
            raise
        _remove_by_command(top, error)


def _remove_by_command(top: Path, cause: Exception) -> None:
    """Delete a folder that is nested too deeply for `shutil`.

    ``rm`` needs no stack frame and no open file per level. Raises OSError.
    """
    result = subprocess.run(
        ["rm", "-rf", "--", str(top)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise OSError(result.stderr[-_LONGEST_OUTPUT:]) from cause


def try_to_remove(top: Path) -> None:
    """Delete a folder with everything below it as far as possible; the folder may be missing."""
    try:
        remove(top)
    except OSError:
        _remove_ignoring_errors(top)


def _remove_ignoring_errors(top: Path) -> None:
    """Delete as much of a folder as can be deleted."""
    try:
        shutil.rmtree(top, ignore_errors=True)
    except RecursionError as error:  # is raised in spite of ``ignore_errors``
        with suppress(OSError):
            _remove_by_command(top, error)
