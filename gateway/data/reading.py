"""Reading of files as a whole, with a limit. Imports nothing slow, as every command needs it."""

import stat
from pathlib import Path

MIB = 1024 * 1024
# Paths of pipes that a shell opens for a command, as for ``<(jq …)``.
_OPENED_BY_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/")


class NotFit(ValueError):
    """A file or text is unusable; the message gives the reason and the alternatives."""


def check_readable(file: Path) -> None:
    """Raise `OSError` for a missing file, `NotFit` for a folder, a device, or a pipe outside the shell's."""
    mode = file.stat().st_mode
    is_open_pipe = stat.S_ISFIFO(mode) and str(file).startswith(_OPENED_BY_SHELL)
    if not (stat.S_ISREG(mode) or is_open_pipe):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise NotFit(f"{file} is {kind}, and no file")


def read_bounded(file: Path, max_bytes: int) -> bytes:
    """Return the content of a file.

    Raises `OSError`, and `NotFit` for anything but a file and beyond the limit.
    """
    check_readable(file)
    with file.open("rb") as source:
        content = source.read(max_bytes + 1)
    check_size(content, str(file), max_bytes)
    return content


def check_size(
    content: bytes,
    name: str,
    max_bytes: int,
) -> None:
    """Raise `NotFit` for content beyond the limit; ``name``: of its file."""
    if len(content) > max_bytes:
        mib = max_bytes // MIB
        raise NotFit(f"{name} is larger than {mib} MiB, which is the most that is read")


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
