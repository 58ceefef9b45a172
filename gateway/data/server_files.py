"""Opens files of this server for an upload by path, only below the folders of ``data.roots``."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gateway.data.upload import Source
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed

OTHER_WAY = "to send a file from your own machine use POST /v2/component/upload/file"


def open_below(roots: Sequence[Path], requested: str) -> Source:
    """Open a file below one of the roots; a relative path below the first root that has it.

    Raises `NotAllowed`, `Invalid`.
    """
    if not roots:
        raise NotAllowed(
            f"uploading by server path is off on this node: data.roots is empty in its settings; "
            f"{OTHER_WAY}",
            reason="PATH_NOT_ALLOWED",
        )
    path = PurePosixPath(requested)
    if not requested.strip() or "\0" in requested or path == PurePosixPath("."):
        raise Invalid([Problem("file", "must be the path of a file on this server", requested)])
    if ".." in path.parts:
        raise _refuse_path(requested, "must not go up with ..")
    allowed = []
    for root in roots:
        real_root = Path(os.path.realpath(root))
        is_below = path.is_relative_to(root) or path.is_relative_to(real_root)
        if is_below or not path.is_absolute():
            allowed.append((root, real_root))
    if not allowed:
        raise _refuse_path(requested, "must lie below one of the folders in data.roots")
    for root, real_root in allowed:
        with suppress(OSError, ValueError):  # unreadable, name too long or not encodable: absent
            return _open_checked(root / path, real_root, requested)
    rule = f"must be a file on this server, below one of the folders in data.roots; there is none; {OTHER_WAY}"
    raise Invalid([Problem("file", rule, requested)], reason="FILE_NOT_FOUND")


def _open_checked(path: Path, real_root: Path, requested: str) -> Source:
    """Open a file and check the real path of the open file, which no later change can move.

    Raises `OSError`, `NotAllowed`, `Invalid`.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        real_path = Path(os.path.realpath(f"/proc/self/fd/{handle}"))
        if not real_path.is_relative_to(real_root):
            raise _refuse_path(requested, "must not lead out of data.roots by a symbolic link")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Invalid([Problem("file", "must be a regular file", requested)])
        return Source(handle)
    except BaseException:
        os.close(handle)
        raise


def _refuse_path(requested: str, rule: str) -> NotAllowed:
    return NotAllowed(f"file: {rule} (got {requested!r}); {OTHER_WAY}", reason="PATH_NOT_ALLOWED")
