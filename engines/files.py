"""Goes through folders that others filled, and deletes them, however deep they are.

What a container makes is nested as deeply as it likes. Nothing here recurses, and no more than two descriptors are
held at a time.
"""

import ctypes
import errno
import itertools
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(
    top: Path, most: int | None = None, troubled: Callable[[OSError], None] = lambda error: None
) -> Iterator[os.DirEntry[str]]:
    """Yield what lies below a folder, the nearest first; a link is yielded and not followed.

    ``most``: entries that are yielded, folders included. ``troubled`` is told of a folder that cannot be read.
    """
    folders, left = deque([str(top)]), most
    while folders and left != 0:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folders.popleft()) as entries:
                found.extend(itertools.islice(entries, left))
        except OSError as error:
            troubled(error)
        left = None if left is None else left - len(found)
        folders.extend(entry.path for entry in found if is_folder(entry))
        yield from found


def size_below(top: Path, most: int) -> tuple[int, int]:
    """Return the bytes in use below a folder that may change meanwhile, and the files and folders in it.

    Counts ``most`` + 1 of them and no more. Raises OSError for folders nested so deep that no path leads there.
    """
    size = count = 0
    for entry in walk(top, most + 1, _unless_too_long):
        count += 1
        try:
            size += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:  # gone meanwhile, with any luck
            _unless_too_long(error)
    return size, count


def _unless_too_long(error: OSError) -> None:
    if error.errno == errno.ENAMETOOLONG:
        raise error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, and not a link to one; False where it is gone."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def remove(top: Path) -> None:
    """Delete a folder with all that lies below it, as far as that can be done. Raises the first OSError.

    Folders in folders are moved up and emptied there: a path that is too long to be said can be deleted, too.
    """
    root = os.open(top, _FOLDER)
    try:
        left, resists = deque(os.listdir(root)), list[OSError]()
        while left:
            try:
                _take_apart(left.popleft(), root, left)
            except FileNotFoundError:
                continue
            except OSError as error:
                resists.append(error)
    finally:
        os.close(root)
    if resists:
        raise resists[0]
    os.rmdir(top)


def try_to_remove(top: Path) -> None:
    """Delete a folder with all that lies below it; what resists stays, and it is no error if there is none."""
    try:
        remove(top)
    except OSError:
        return


def _take_apart(name: str, root: int, left: deque[str]) -> None:
    """Delete an entry of a folder; the folders in it come to lie beside it, and are left to do. Raises OSError."""
    if _unlinked(name, root):
        return
    folder = os.open(name, _FOLDER, dir_fd=root)
    resists: OSError | None = None
    try:
        for inner in os.listdir(folder):
            try:
                if not _unlinked(inner, folder):
                    left.extend(_moved_up(inner, folder, root))
            except FileNotFoundError:
                continue
            except OSError as error:
                resists = error
    finally:
        os.close(folder)
    if resists is not None:
        raise resists
    os.rmdir(name, dir_fd=root)


def _moved_up(name: str, folder: int, root: int) -> list[str]:
    """Delete a folder that is empty, which may be another user's; return the new name of any other."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        fresh = f".gone-{os.urandom(12).hex()}"
        os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=root)
        return [fresh]
    return []


def _unlinked(name: str, folder: int) -> bool:
    """Delete what is no folder; return False for a folder. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


# Gives the middle of a file that has become too long back to the file system, as a hole.
#
# Unlike copying and truncating, that loses nothing of what is written meanwhile, and suits every writer: offsets
# and sizes stay as they are, whether it appends or goes on where it was.

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
