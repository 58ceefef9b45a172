"""Whether a folder takes what is written to it, and whether its disk has more free than is kept back."""

import errno
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from engines.base import NoSpace
from gateway.data.folders import nearest

_TRIED = b"\0" * 64 * 1024
"""more than a disk that is full has left over in blocks begun; a folder can be made on many a full disk"""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def full(error: OSError) -> bool:
    """Tell whether room was lacking, and not a right."""
    return error.errno in _FULL


def try_to_write(folder: Path) -> None:
    """Write some bytes that are thrown away at once. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_TRIED)
        file.flush()


def storage_look(
    begun: Callable[[], AbstractContextManager[object]], root: Path, reserve: int
) -> Callable[[], None]:
    """Return a look at the storage: whether a task could begin there and write what it makes.

    ``begun`` begins a write that is thrown away, ``reserve`` is limits.storage_reserve_bytes. The look raises
    `OSError` where nothing can be written, and `NoSpace` where no container would be started for want of room.
    """

    def look() -> None:
        with begun():
            try_to_write(root)
        if reserve > 0 and shutil.disk_usage(nearest(root)).free < reserve:
            raise NoSpace("its disk has less free than limits.storage_reserve_bytes")

    return look
