"""Walks, measures and deletes folders that containers filled.

A container may nest folders as deeply as it likes, so nothing here recurses.
"""

import errno
import itertools
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(
    top: Path,
    most: int | None = None,
    on_error: Callable[[OSError], None] = lambda error: None,
) -> Iterator[os.DirEntry[str]]:
    """Yield up to ``most`` entries below a folder, the nearest first, without following links.

    ``on_error`` receives the error of each folder that cannot be read.
    """
    folders, left = deque([str(top)]), most
    while folders and left != 0:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folders.popleft()) as entries:
                found.extend(itertools.islice(entries, left))
        except OSError as error:
            on_error(error)
        left = None if left is None else left - len(found)
        folders.extend(entry.path for entry in found if is_folder(entry))
        yield from found


def size_below(top: Path, most: int) -> tuple[int, int]:
    """Return the bytes below a folder, holes included, and the number of its entries; ``most`` + 1 are counted.

    Raises OSError for folders nested so deeply that no path leads there.
    """
    size = count = 0
    for entry in walk(top, most + 1, _raise_if_too_deep):
        count += 1
        try:
            found = entry.stat(follow_symlinks=False)
            size += max(
                found.st_blocks * 512, found.st_size
            )  # a hole takes no room until it is read or copied
        except OSError as error:
            _raise_if_too_deep(error)
    return size, count


def _raise_if_too_deep(error: OSError) -> None:
    if error.errno == errno.ENAMETOOLONG:
        raise error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, and not a link to one; False if it is gone."""
    return entry.is_dir(follow_symlinks=False)


def remove(top: Path) -> None:
    """Delete a folder with everything below it. Raises OSError."""
    try:
        shutil.rmtree(top)
    except (RecursionError, OSError) as error:
        if not isinstance(error, RecursionError) and error.errno != errno.EMFILE:
            raise
        # nested deeper than `shutil` can follow; rm(1) needs neither a stack nor a descriptor per level
        done = subprocess.run(
            ["rm", "-rf", "--", str(top)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(done.stderr[-500:]) from error


def try_to_remove(top: Path) -> None:
    """Delete a folder with everything below it as far as possible; it may be missing."""
    try:
        remove(top)
    except OSError:
        shutil.rmtree(top, ignore_errors=True)
