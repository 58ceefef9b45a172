"""Keeps a readable copy of what a run has written so far.

While a run's container is there its output is the engine's, which hands it out whole; the executor saves it for
good when it takes the container away. In between, this copies it now and then. A copy lies apart from what the
executor saves, so that an older one never covers the last words.

Engines may drop the beginning of a long log. What was copied before is then kept, and what is new put behind it.
"""

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines import logs
from engines.base import Engine, EngineError
from gateway.data.workspace import Workspace
from gateway.domain.run import Run
from gateway.domain.spec import CallState

STREAMS = ("stdout", "stderr")

_SHORTEST_PAUSE = 0.2
"""seconds between two copies"""
_SHARE = 10
"""A copy may take one part in so many of the time, however large a log is."""
_MOST_REMEMBERED = 4096
_ANCHOR = 4096
"""bytes by which the end of the old copy is found in a new one"""
_LOST = b"[some lines are missing here: the container engine had dropped them already]\n"


@dataclass(frozen=True)
class Sight:
    """What is known of a run's output."""

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
    """Copies the output of running containers. A run is looked at by one thread at a time."""

    def __init__(self, engine: Engine, workspace: Workspace, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._workspace = workspace
        self._monotonic = monotonic
        self._copied: dict[str, _Copied] = {}

    def paths(self, run: Run, stream: str) -> tuple[Path, ...]:
        """Return the files of which the first that is there holds a stream, as far as it is known."""
        return self._live(run, stream), self._saved(run, stream)

    def look(self, run: Run) -> Sight:
        """Bring the copy up to date, unless that was done a moment ago. Raises OSError."""
        if run.launch.state is CallState.IDLE:  # it never had a container
            return Sight(complete=run.over)
        if run.over and run.collect.state is CallState.OK:
            for stream in STREAMS:
                _settle(self._live(run, stream), self._saved(run, stream))
            self._copied.pop(run.name, None)
            return Sight(complete=True)
        copied = self._copied.get(run.name)
        if copied is None or self._due(run, copied):
            copied = self._copy(run)
        return Sight(copied.after_exit and not copied.trouble, copied.trouble)

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
                _take_up(self._live(run, stream), fresh / f"{stream}.log")
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

    def _saved(self, run: Run, stream: str) -> Path:
        return self._workspace.logs(run) / f"{stream}.log"

    def _live(self, run: Run, stream: str) -> Path:
        return self._workspace.logs(run) / f"{stream}.so-far.log"


def _take_up(old: Path, fresh: Path) -> None:
    """Make a new copy the copy."""
    if not fresh.exists():
        return
    if not old.exists() or _continues(old, fresh):
        fresh.replace(old)
    else:
        _append(old, fresh)


def _settle(live: Path, saved: Path) -> None:
    """Let what the executor saved take the place of the copy, unless the copy knows more."""
    if not live.exists() or not saved.exists():
        return
    if _continues(live, saved):
        live.unlink(missing_ok=True)
    else:
        _append(live, saved)


def _continues(old: Path, new: Path) -> bool:
    """Whether the new file is the old one, grown; told by the beginning and the end of the old one."""
    with old.open("rb") as before, new.open("rb") as after:
        size = os.fstat(before.fileno()).st_size
        if os.fstat(after.fileno()).st_size < size:
            return False
        for at in (0, max(0, size - _ANCHOR)):
            before.seek(at)
            after.seek(at)
            length = min(_ANCHOR, size - at)
            if before.read(length) != after.read(length):
                return False
        return True


def _append(old: Path, new: Path) -> None:
    """Put behind the old file what the new one, whose beginning was dropped, has more."""
    with old.open("r+b") as before, new.open("rb") as after:
        fresh = os.fstat(after.fileno()).st_size
        if fresh == 0:
            return
        size = before.seek(0, os.SEEK_END)
        before.seek(max(0, size - _ANCHOR))
        anchor = before.read(_ANCHOR)
        if fresh <= len(anchor) and anchor.endswith(after.read(fresh)):
            return
        with mmap.mmap(after.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = text.rfind(anchor)
            cut = text.rfind(logs.CUT)
        before.seek(size)
        if at < 0:
            before.write((b"" if anchor.endswith(b"\n") else b"\n") + _LOST)
            at = cut + len(logs.CUT) if cut >= 0 else 0  # its beginning is in the old one already
        else:
            at += len(anchor)
        after.seek(at)
        shutil.copyfileobj(after, before, 1024 * 1024)
