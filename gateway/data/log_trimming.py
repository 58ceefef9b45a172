"""Keeps the log files that a container writes by itself from filling the disk while it runs.

The middle of a file that has become too long is given back to the file system as a hole (`engines.holes`). At the
end of the run `engines.logs.shorten` closes it.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from engines.holes import Punch, give_back, punch_hole

_MOST = 10_000
"""files and folders that are looked at in one go"""
_DEEPEST = 32
"""levels of folders below which nothing is looked at"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def trim(folder: Path, most: int, punch: Punch = punch_hole) -> int:
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
                        given_back += give_back(entry.name, most, punch, folder=here)
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
