"""Opens files of this server for upload by path: only below the folders that the settings name."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed

OTHER_WAY = "to send a file from your own machine use POST /v2/component/upload/file"


def open_below(roots: Sequence[Path], asked: str) -> BinaryIO:
    """Open a regular file; a relative path is looked up below each root in order.

    Raises `NotAllowed` (PATH_NOT_ALLOWED) for what lies elsewhere, whether it exists or not, `Invalid`
    (FILE_NOT_FOUND) for what is not there.
    """
    if not roots:
        raise NotAllowed(
            f"uploading by server path is off on this node: data.roots is empty in its settings; {OTHER_WAY}",
            reason="PATH_NOT_ALLOWED",
        )
    path = PurePosixPath(asked)
    if not asked.strip() or "\0" in asked or path == PurePosixPath("."):
        raise Invalid([Problem("file", "must be the path of a file on this server", asked)])
    if ".." in path.parts:
        raise _elsewhere(asked, "must not go up with ..")
    for root in roots:
        try:
            found = _found(root, path, asked)
        except (OSError, ValueError):
            continue  # too long, unreadable, not encodable: not there
        if found is not None:
            return found
    if path.is_absolute() and not any(path.is_relative_to(r) for root in roots for r in (root, _real(root))):
        raise _elsewhere(asked, "must lie below one of the folders in data.roots")
    rule = f"must be a file on this server, below one of the folders in data.roots; there is none; {OTHER_WAY}"
    raise Invalid([Problem("file", rule, asked)], reason="FILE_NOT_FOUND")


def _found(root: Path, path: PurePosixPath, asked: str) -> BinaryIO | None:
    real = _real(root)
    if path.is_absolute() and not (path.is_relative_to(root) or path.is_relative_to(real)):
        return None
    target = Path(os.path.realpath(root / path, strict=True))
    if not target.is_relative_to(real):
        raise _elsewhere(asked, "must not lead out of data.roots by a symbolic link")
    return _opened(real, target.relative_to(real).parts, asked)


def _opened(root: Path, parts: Sequence[str], asked: str) -> BinaryIO:
    """Open step by step without following links: what was checked is what is opened. Raises `OSError`."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Invalid([Problem("file", "must be a regular file", asked)])
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _real(root: Path) -> Path:
    return Path(os.path.realpath(root))


def _elsewhere(asked: str, rule: str) -> NotAllowed:
    return NotAllowed(f"file: {rule} (got {asked!r}); {OTHER_WAY}", reason="PATH_NOT_ALLOWED")
