"""Where a table is written before it is put in place, and what happens to it when its process dies.

Every write has a folder of its own below ``<root>/.staging`` and holds a lock beside it for as long as it lives. A
folder whose lock nobody holds was left by a dead process: it is cleared when the next storage is opened.
"""

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from engines.files import try_to_remove

FOLDER = ".staging"
_LOCK = ".lock"
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


class Taken(Exception):
    """Something lies at the place already."""


class Staging:
    """The folder of one write. ``table`` is what gets published, the rest of ``folder`` is scratch."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder, self._lock = _own_folder(_base(root))
        self.table = self.folder / "new"
        self.table.mkdir()

    @contextmanager
    def published(self, namespace: str, name: str, *, overwrite: bool) -> Iterator[None]:
        """Put the table at its place in one step; if the block raises, everything is as it was before.

        Raises `Taken` where something lies there and ``overwrite`` is False.
        """
        target = self._root / namespace / name
        old = self.folder / "old"
        _readable(self.table)
        with alone(self._root):
            (self.folder / "target").write_text(json.dumps([namespace, name]), encoding="utf-8")
            if not target.parent.exists():
                target.parent.mkdir(mode=0o700)  # a container gets what lies in it by its mount
            if overwrite:
                with suppress(FileNotFoundError):
                    target.rename(old)
            try:
                self.table.rename(target)
            except OSError as error:
                if error.errno in _TAKEN:
                    raise Taken from error
                raise
            try:
                yield
            except BaseException:
                target.rename(self.table)
                if os.path.lexists(old):
                    old.rename(target)
                drop_if_empty(target.parent)
                raise

    def take(self, target: Path) -> None:
        """Move what lies at a place in here, to be deleted with the rest. Raises `FileNotFoundError`."""
        target.rename(self.folder / "taken")

    def close(self) -> None:
        """Delete the folder with all that is left in it."""
        _discard(self.folder, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock under which tables of this storage change places; among processes and threads."""
    lock = os.open(_base(root) / "places", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def clear_leftovers(root: Path) -> None:
    """Delete what dead processes left. A replacement that one of them had half done is completed."""
    base = root / FOLDER
    if not base.is_dir():
        return
    for path in list(base.glob(f"*{_LOCK}")):
        clear_leftover(root, path.stem)


def leftovers(root: Path) -> list[str]:
    """Return the names of folders that dead processes left."""
    found = []
    for path in sorted((root / FOLDER).glob(f"*{_LOCK}")):
        if (lock := _locked(path)) is not None:
            os.close(lock)
            found.append(path.stem)
    return found


def clear_leftover(root: Path, name: str) -> None:
    """Delete what a dead process left; nothing happens to the folder of a living one."""
    path = root / FOLDER / f"{name}{_LOCK}"
    if (lock := _locked(path)) is None:
        return
    folder = path.with_suffix("")
    with alone(root):
        _complete(root, folder)
    _discard(folder, lock)


def drop_if_empty(folder: Path) -> None:
    """Remove a folder unless something lies in it."""
    with suppress(OSError):
        folder.rmdir()


def _base(root: Path) -> Path:
    base = root / FOLDER
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return base


def _own_folder(base: Path) -> tuple[Path, int]:
    while True:
        folder = base / secrets.token_hex(8)
        path = Path(f"{folder}{_LOCK}")
        path.touch(mode=0o600, exist_ok=False)
        lock = _locked(path)
        if lock is not None:
            folder.mkdir()
            return folder, lock


def _locked(path: Path) -> int | None:
    """Lock a file that is there; None where another holds it, or deleted it in the meantime."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _complete(root: Path, folder: Path) -> None:
    """Finish a replacement that stopped after the old table was taken away and before the new one was there."""
    if not (os.path.lexists(folder / "old") and (folder / "new").is_dir()):
        return
    namespace, name = json.loads((folder / "target").read_text(encoding="utf-8"))
    target = root / namespace / name
    if not os.path.lexists(target):
        (folder / "new").rename(target)


def _readable(table: Path) -> None:
    """Let any user read: containers run as users of their own. The folder above is closed to others."""
    table.chmod(0o755)
    for file in table.iterdir():
        file.chmod(0o644)


def _discard(folder: Path, lock: int) -> None:
    """Delete a folder, then its lock; the lock stays while anything is left, so that a later start tries again."""
    try_to_remove(folder)
    if not os.path.lexists(folder):
        Path(f"{folder}{_LOCK}").unlink(missing_ok=True)
    os.close(lock)
