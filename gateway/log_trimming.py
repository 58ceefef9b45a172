"""Keeps the log files that a container writes by itself from filling the disk while it runs.

The middle of a file that has become too long is given back to the file system as a hole. Unlike copying and
truncating, that loses nothing of what is written meanwhile, and suits every writer: offsets and sizes stay as they
are, whether it appends or goes on where it was. At the end of the run `engines.logfiles.shorten` closes the hole.
"""

import ctypes
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""of Linux' ``fallocate``"""
_BLOCK = 512
"""bytes that ``st_blocks`` counts in"""
_MOST = 10_000
"""files and folders that are looked at in one go"""
_DEEPEST = 32
"""levels of folders below which nothing is looked at"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Punch = Callable[[int, int, int], None]


def trim(folder: Path, most: int, punch: Punch | None = None) -> int:
    """Give back the middle of every file below ``folder`` that takes more than twice ``most`` bytes of disk.

    Both ends stay, ``most`` bytes of each. The folder is the container's, which may change it meanwhile: no
    symbolic link is followed, a file with several names is left alone, and so is whatever we may not change, or a
    file system without holes; what lies too deep, or comes after too much else, stays whole. Returns how many
    bytes were given back.
    """
    given_back, left = 0, _MOST
    folders: deque[tuple[str, ...]] = deque([()])
    while folders and left > 0:
        names = folders.popleft()
        with suppress(OSError), _opened(folder, names) as here:
            with os.scandir(here) as entries:
                found = list(islice(entries, left))
            left -= len(found)
            for entry in found:
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        given_back += _trimmed(entry.name, here, most, punch or _punch)
                    elif len(names) < _DEEPEST:
                        folders.append((*names, entry.name))
    return given_back


@contextmanager
def _opened(folder: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Open a folder some levels below another, through no link on the way. Raises OSError."""
    here = os.open(folder, _FOLDER)
    try:
        for name in names:
            above, here = here, os.open(name, _FOLDER, dir_fd=here)
            os.close(above)
        yield here
    finally:
        os.close(here)


def _trimmed(name: str, folder: int, most: int, punch: Punch) -> int:
    if not _too_long(os.stat(name, dir_fd=folder, follow_symlinks=False), most):
        return 0
    descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(descriptor)  # of what was opened: the name may stand for something else by now
        if not _too_long(found, most) or found.st_size <= 2 * most:
            return 0
        punch(descriptor, most, found.st_size - 2 * most)
        return max(0, (found.st_blocks - os.fstat(descriptor).st_blocks) * _BLOCK)
    finally:
        os.close(descriptor)


def _too_long(found: os.stat_result, most: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_blocks * _BLOCK > 2 * most


def _punch(descriptor: int, start: int, length: int) -> None:
    """Make a hole. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(length))
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
