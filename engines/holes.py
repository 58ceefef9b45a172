"""Gives the middle of a file that has become too long back to the file system, as a hole.

Unlike copying and truncating, that loses nothing of what is written meanwhile, and suits every writer: offsets and
sizes stay as they are, whether it appends or goes on where it was.
"""

import ctypes
import os
import stat
from collections.abc import Callable

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""of Linux' ``fallocate``"""
_BLOCK = 512
"""bytes that ``st_blocks`` counts in"""

Punch = Callable[[int, int, int], None]


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Make a hole. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(length))
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def give_back(
    file: str | os.PathLike[str], most: int, punch: Punch = punch_hole, *, folder: int | None = None
) -> int:
    """Give back the middle of a file that takes more than twice ``most`` bytes of disk; return how many bytes.

    Both ends stay, ``most`` bytes of each. What is no file of one name is left alone. ``folder``: a descriptor of
    the folder that ``file`` is below. Raises OSError.
    """
    if not _too_long(os.stat(file, dir_fd=folder, follow_symlinks=False), most):
        return 0
    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
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
