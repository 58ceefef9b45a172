"""Readable copies of what runs have written so far.

While a run's container exists the engine has its output and hands it out whole; the executor saves it for good
when it removes the container. In between, it is copied here now and then. A copy lies apart from what the executor
saves, so that an older one never covers the last lines.

Engines may drop the beginning of a long log. What was copied before is then kept, and what is new is appended.
"""

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines.base import Engine, EngineError
from engines.logs import CUT
from engines.logs import STREAMS as STREAMS
from gateway.data.workspace import Workspace
from gateway.domain.run import Run
from gateway.domain.spec import CallState

_SHORTEST_PAUSE = 0.2
"""seconds between two copies"""
_SHARE = 10
"""A copy may take one part in so many of the time, however large a log is."""
_MOST_REMEMBERED = 4096
_ANCHOR = 4096
"""bytes by which the end of the old copy is found in a new one"""
_LOST = b"[some lines are missing here: the container engine had dropped them already]\n"


@dataclass(frozen=True)
class CopyState:
    """How up to date the copy of a run's output is."""

    complete: bool
    """nothing will be added"""
    trouble: str = ""
    """why the newest lines may be missing"""


@dataclass(frozen=True)
class _Copied:
    at: float
    """of the monotonic clock"""
    took: float
    """seconds"""
    after_exit: bool
    trouble: str


class LogCopies:
    """Copies the output of running containers. Each run is handled by one thread at a time."""

    def __init__(self, engine: Engine, workspace: Workspace, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._workspace = workspace
        self._monotonic = monotonic
        self._copied: dict[str, _Copied] = {}

    def paths(self, run: Run, stream: str) -> tuple[Path, Path]:
        """Return where a stream is while its run goes on, and where it is saved; the first that exists counts."""
        folder = self._workspace.logs(run)
        return folder / f"{stream}.so-far.log", folder / f"{stream}.log"

    def refresh(self, run: Run) -> CopyState:
        """Bring the copy up to date, unless that was done a moment ago. Raises OSError."""
        if run.launch.state is CallState.IDLE:  # it never had a container
            return CopyState(complete=run.over)
        if run.over and run.collect.state is CallState.OK:
            for stream in STREAMS:
                _replace_by_saved(*self.paths(run, stream))
            self._copied.pop(run.name, None)
            return CopyState(complete=True)
        copied = self._copied.get(run.name)
        if copied is None or self._due(run, copied):
            copied = self._copy(run)
        return CopyState(copied.after_exit and not copied.trouble, copied.trouble)

    def _due(self, run: Run, copied: _Copied) -> bool:
        if copied.after_exit and not copied.trouble:
            return False
        if run.exit is not None and not copied.after_exit:
            return True
        return self._monotonic() >= copied.at + max(_SHORTEST_PAUSE, _SHARE * copied.took)

    def _copy(self, run: Run) -> _Copied:
        began = self._monotonic()
        fresh = self._workspace.logs(run) / "copying"
        trouble = ""
        try:
            self._engine.save_logs(run.name, fresh)
            for stream in STREAMS:
                _add_fresh(self.paths(run, stream)[0], fresh / f"{stream}.log")
        except EngineError as error:
            trouble = f"{error.reason}: {error}"
        except OSError as error:
            trouble = f"COPY_FAILED: {error.strerror}"
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        at = self._monotonic()
        copied = _Copied(at, at - began, run.exit is not None, trouble)
        while len(self._copied) >= _MOST_REMEMBERED:
            self._copied.pop(next(iter(self._copied)))
        self._copied[run.name] = copied
        return copied


def _add_fresh(copy: Path, fresh: Path) -> None:
    """Replace the copy by a new one, or append to it where the engine has dropped the beginning."""
    if not fresh.exists():
        return
    if not copy.exists() or _continues(copy, fresh):
        fresh.replace(copy)
    else:
        _append(copy, fresh)


def _replace_by_saved(copy: Path, saved: Path) -> None:
    """Delete the copy where the saved log has all of it, else append to it what it lacks."""
    if not copy.exists() or not saved.exists():
        return
    if _continues(copy, saved):
        copy.unlink(missing_ok=True)
    else:
        _append(copy, saved)


def _continues(old: Path, new: Path) -> bool:
    """Whether the new file is the old one, grown: it begins alike, and has the old one's end at the same place."""
    with old.open("rb") as before, new.open("rb") as after:
        size = os.fstat(before.fileno()).st_size
        if os.fstat(after.fileno()).st_size < size:
            return False
        for at in (0, max(0, size - _ANCHOR)):
            length = min(_ANCHOR, size - at)
            if os.pread(before.fileno(), length, at) != os.pread(after.fileno(), length, at):
                return False
        return True


def _append(old: Path, new: Path) -> None:
    """Append to the old file what the new one, whose beginning was dropped, has more."""
    with old.open("r+b") as before, new.open("rb") as after:
        fresh = os.fstat(after.fileno()).st_size
        if fresh == 0:
            return
        size = before.seek(0, os.SEEK_END)
        anchor = os.pread(before.fileno(), _ANCHOR, max(0, size - _ANCHOR))
        if fresh <= len(anchor) and anchor.endswith(after.read(fresh)):
            return
        with mmap.mmap(after.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = text.rfind(anchor)
            cut = text.rfind(CUT)
        if at < 0:
            before.write((b"" if anchor.endswith(b"\n") else b"\n") + _LOST)
            at = cut + len(CUT) if cut >= 0 else 0  # its beginning is in the old one already
        else:
            at += len(anchor)
        after.seek(at)
        shutil.copyfileobj(after, before, 1024 * 1024)
