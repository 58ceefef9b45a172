"""Bounded reading of whole files.

Every command of the CLI imports this module, so it must not import anything slow.
"""

import stat
from pathlib import Path

MIB = 1024 * 1024
# Paths of pipes that a shell opens for a command, as for ``<(jq …)``.
_OPENED_BY_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/")


class NotFit(ValueError):
    """A file or text cannot be used; the message says why, and perhaps what to do instead."""


def check_readable(file: Path) -> None:
    """Check that a file can be read as a whole.

    Raises `OSError` for a missing file, and `NotFit` for a folder, a device or a pipe, unless the
    shell has opened the pipe for this command.
    """
    mode = file.stat().st_mode
    is_pipe_of_shell = stat.S_ISFIFO(mode) and str(file).startswith(_OPENED_BY_SHELL)
    if stat.S_ISREG(mode) or is_pipe_of_shell:
        return
    kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise NotFit(f"{file} is {kind}, and no file")


def read_bounded(file: Path, max_bytes: int) -> bytes:
    """Return the content of a file of at most ``max_bytes``.

    Raises `OSError`, and `NotFit` for a larger file or anything that `check_readable` refuses.
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
    """Raise `NotFit` for content of more than ``max_bytes``.

    ``name`` is the name of its file, for the message.
    """
    if len(content) > max_bytes:
        mib = max_bytes // MIB
        raise NotFit(f"{name} is larger than {mib} MiB, which is the most that is read")


def nearest_existing(folder: Path) -> Path:
    """Return a folder if it exists, else the nearest folder above it that does."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
