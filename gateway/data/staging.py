"""Where a write is prepared: a folder of its own, of which nothing is visible until it is whole."""

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from engines.files import try_to_remove
from gateway.data.storage import Parts, taken
from gateway.domain.run import Address

FOLDER = ".staging"
"""where a table is written before it is put in place"""
_TARGET = "target"
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


class Staging:
    """The folder of one write, of which ``table`` gets published; it is locked while its process lives."""

    def __init__(self, root: Path) -> None:
        base = root / FOLDER
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = None
        while lock is None:  # else another process took the new folder for a dead one's
            self.folder = base / secrets.token_hex(8)
            self.folder.mkdir()
            lock = _locked(self.folder)
        self._lock = lock
        self.table = self.folder / "new"
        self.table.mkdir()
        self.parts: Parts | None = None
        """what is written elsewhere while it comes, see `Storage.parts`"""
        self.stays = False
        """whether the note of where the table went outlasts this, for what could not be deleted there"""

    def put(self, target: Path, address: Address, overwrite: bool) -> None:
        """Put the table in its place. Raises `Conflict`."""
        self.table.chmod(0o755)  # containers run as users of their own; the folder above is closed to others
        for file in self.table.iterdir():
            file.chmod(0o644)
        self.note(address)
        while True:  # another write or deletion may come between the steps
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if overwrite:
                with suppress(FileNotFoundError):
                    old = self.folder / "old"
                    try_to_remove(old)
                    target.rename(old)
            try:
                self.table.rename(target)
                return
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if not overwrite:
                    raise taken(address) from None

    def note(self, address: Address) -> None:
        """Write down where the table is going, for those who find this folder after its process died."""
        target = [address.namespace, address.name, address.storage]
        (self.folder / _TARGET).write_text(json.dumps(target), encoding="utf-8")

    def take_back(self, target: Path) -> None:
        """Undo `put`: everything is as it was before."""
        target.rename(self.table)
        with suppress(FileNotFoundError):
            (self.folder / "old").rename(target)
        drop_if_empty(target.parent)

    def close(self) -> None:
        """Delete the folder with all that is left in it."""
        for path in [*self.folder.iterdir()] if self.stays else [self.folder]:
            if path.name != _TARGET:
                try_to_remove(path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def leftovers(root: Path) -> list[str]:
    """Return the names of folders that dead processes left."""
    found = []
    for path in sorted((root / FOLDER).glob("*")):
        if (lock := _locked(path)) is not None:
            os.close(lock)
            found.append(path.name)
    return found


def clear_leftover(root: Path, name: str, elsewhere: Callable[[Address], bool] = lambda target: False) -> None:
    """Delete what a dead process left, or complete its replacement; a living one's folder stays as it is.

    ``elsewhere`` deletes what it sent to another storage, and tells whether it did; until then the folder stays.
    """
    folder = root / FOLDER / name
    if (lock := _locked(folder)) is None:
        return
    try:
        target = Address("", "")
        with suppress(OSError, ValueError):
            target = Address(*json.loads((folder / _TARGET).read_text(encoding="utf-8")))
        if target.storage and not elsewhere(target):
            return
        if os.path.lexists(folder / "old") and (folder / "new").is_dir():  # it died between the two steps
            path = root / target.namespace / target.name
            if not os.path.lexists(path):
                (folder / "new").rename(path)
        try_to_remove(folder)
    finally:
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder; None where another holds it, or deleted it in the meantime."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def drop_if_empty(folder: Path) -> None:
    """Delete a folder in which nothing is."""
    with suppress(OSError):
        folder.rmdir()
