"""Files that are read whole, and which may be; imports nothing, as every command needs it."""

import stat
from pathlib import Path

MIB = 1024 * 1024
_OPENED = ("/dev/stdin", "/dev/fd/", "/proc/")
"""where what a shell has opened for a command is found, such as ``<(jq …)``"""


class NotFit(ValueError):
    """What was given cannot be used; the text says why, and what can."""


def check_readable(file: Path) -> None:
    """Raise `OSError` where there is no such file, `NotFit` for a folder, a device, a pipe that is not open."""
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and str(file).startswith(_OPENED))):
        raise NotFit(
            f"{file} is {'a folder' if stat.S_ISDIR(mode) else 'a device or a pipe'}, and no file"
        )


def whole(file: Path, most: int) -> bytes:
    """Return what a file holds, at most ``most`` bytes. Raises `OSError`, `NotFit` for no file and too much."""
    check_readable(file)
    with file.open("rb") as source:
        return bounded(source.read(most + 1), str(file), most)


def bounded(
    found: bytes,
    name: str,
    most: int,
) -> bytes:
    """Return what was read. Raises `NotFit` where it is more than ``most`` bytes."""
    if len(found) > most:
        raise NotFit(f"{name} is larger than {most // MIB} MiB, which is the most that is read")
    return found


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
