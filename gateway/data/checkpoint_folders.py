"""Takes over the checkpoints of an earlier job: a copy, so that the earlier job stays as it is."""

import shutil
from pathlib import Path

from engines import files

_FOLDER, _FILE = 0o777, 0o666
"""the next container may run as another user than the one that wrote them"""


def take_over(source: Path, target: Path) -> None:
    """Copy what lies in one folder into another that is not there yet, or leave that empty.

    Files and folders only: what a container left as a link or a device is not followed. Raises OSError.
    """
    if target.exists():
        return
    part = target.with_name(f".{target.name}.part")
    files.try_to_remove(part)
    part.mkdir(parents=True)
    if source.is_dir() and not source.is_symlink():
        _copy(source, part)
    part.chmod(_FOLDER)
    part.rename(target)


def _copy(source: Path, target: Path) -> None:
    for entry in files.walk(source, troubled=_stop):
        to = target / Path(entry.path).relative_to(source)
        if entry.is_dir(follow_symlinks=False):
            to.mkdir()
            to.chmod(_FOLDER)
        elif entry.is_file(follow_symlinks=False):
            shutil.copyfile(entry.path, to, follow_symlinks=False)
            to.chmod(_FILE)


def _stop(error: OSError) -> None:
    raise error
