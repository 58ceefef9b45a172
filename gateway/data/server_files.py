"""Opens files of this server for an upload by path: only below the folders in ``data.roots``.

These folders are called the roots.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gateway.data.reception import Source
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed

OTHER_WAY = "to send a file from your own machine use POST /v2/component/upload/file"


def open_below(roots: Sequence[Path], requested: str) -> Source:
    """Open a file below one of the roots.

    A relative path is resolved against the first root that has such a file. Raises `NotAllowed`
    for a path outside the roots, `Invalid` if there is no such file.
    """
    if not roots:
        raise NotAllowed(
            f"uploading by server path is off on this node: data.roots is empty in its settings; "
            f"{OTHER_WAY}",
            reason="PATH_NOT_ALLOWED",
        )
    path = _checked_path(requested)
    allowed = _roots_for(path, roots)
    if not allowed:
        raise _path_refusal(requested, "must lie below one of the folders in data.roots")
    for root, real_root in allowed:
        # An unreadable file, or a name that is too long or not encodable, counts as missing.
        with suppress(OSError, ValueError):
            return _open_checked(root / path, real_root, requested)
    rule = (
        "must be a file on this server, below one of the folders in data.roots; there is none; "
        f"{OTHER_WAY}"
    )
    raise Invalid(
        [Problem("file", rule, requested)],
        reason="FILE_NOT_FOUND",
    )


def _checked_path(requested: str) -> PurePosixPath:
    """Return the path in a request.

    Raises `Invalid` for a text that cannot be a file's path, `NotAllowed` for a path with ``..``.
    """
    path = PurePosixPath(requested)
    is_blank = not requested.strip() or path == PurePosixPath(".")
    if is_blank or "\0" in requested:
        raise Invalid([Problem("file", "must be the path of a file on this server", requested)])
    if ".." in path.parts:
        raise _path_refusal(requested, "must not go up with ..")
    return path


def _roots_for(
    path: PurePosixPath,
    roots: Sequence[Path],
) -> list[tuple[Path, Path]]:
    """Return the roots below which a path may be, each with its real path (no symbolic links).

    An absolute path may begin with a root as the settings name it, or with its real path.
    """
    allowed = []
    for root in roots:
        real_root = Path(os.path.realpath(root))
        is_below = path.is_relative_to(root) or path.is_relative_to(real_root)
        if is_below or not path.is_absolute():
            allowed.append((root, real_root))
    return allowed


def _open_checked(path: Path, real_root: Path, requested: str) -> Source:
    """Open a file below a root, and check it.

    The open file is checked rather than its path, so that no later change can replace the checked
    file. Raises `OSError`, `NotAllowed` if it is outside of the root, `Invalid` if it is not a
    regular file.
    """
    handle = os.open(
        path,
        os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC,
    )
    try:
        real_path = Path(os.path.realpath(f"/proc/self/fd/{handle}"))
        if not real_path.is_relative_to(real_root):
            raise _path_refusal(requested, "must not lead out of data.roots by a symbolic link")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Invalid([Problem("file", "must be a regular file", requested)])
        return Source(handle)
    except BaseException:
        os.close(handle)
        raise


def _path_refusal(requested: str, rule: str) -> NotAllowed:
    """Return the refusal of a path that breaks a rule."""
    return NotAllowed(f"file: {rule} (got {requested!r}); {OTHER_WAY}", reason="PATH_NOT_ALLOWED")
