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
_ANCHOR = 4096
"""bytes by which the end of the old copy is found in a new one"""
_LOST = b"[some lines are missing here: the container engine had dropped them already]\n"


@dataclass(frozen=True)
class Copied:
    """How up to date the copy of a run's output is."""

    complete: bool
    """nothing will be added"""
    trouble: str = ""
    """why the newest lines may be missing"""
    after_exit: bool = False
    again_at: float = 0.0
    """of the monotonic clock: when it may be copied next"""


class LogCopies:
    """Copies the output of running containers. Each run is handled by one thread at a time."""

    def __init__(self, engine: Engine, workspace: Workspace, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._workspace = workspace
        self._monotonic = monotonic
        self._copied: dict[str, Copied] = {}

    def paths(self, run: Run, stream: str) -> tuple[Path, Path]:
        """Return where a stream is while its run goes on, and where it is saved; the first that exists counts."""
        folder = self._workspace.logs(run)
        return folder / f"{stream}.so-far.log", folder / f"{stream}.log"

    def refresh(self, run: Run) -> Copied:
        """Bring the copy up to date, unless that was done a moment ago. Raises OSError."""
        if run.launch.state is CallState.IDLE:  # it never had a container
            return Copied(complete=run.over)
        if run.over and run.collect.state is CallState.OK:
            for stream in STREAMS:
                copy, saved = self.paths(run, stream)
                if copy.exists() and _extended(copy, saved):
                    copy.unlink()
            self._copied.pop(run.name, None)
            return Copied(complete=True)
        known = self._copied.get(run.name)
        if known is None or self._due(run, known):
            known = self._copied[run.name] = self._copy(run)
        return known

    def _due(self, run: Run, known: Copied) -> bool:
        news = run.exit is not None and not known.after_exit
        return not known.complete and (news or self._monotonic() >= known.again_at)

    def _copy(self, run: Run) -> Copied:
        began = self._monotonic()
        fresh = self._workspace.logs(run) / "copying"
        trouble = ""
        try:
            self._engine.save_logs(run.name, fresh)
            for stream in STREAMS:
                copy, new = self.paths(run, stream)[0], fresh / f"{stream}.log"
                if new.exists() and (not copy.exists() or _extended(copy, new)):
                    new.replace(copy)
        except EngineError as error:
            trouble = f"{error.reason}: {error}"
        except OSError as error:
            trouble = f"COPY_FAILED: {error.strerror}"
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        at, after_exit = self._monotonic(), run.exit is not None
        again_at = at + max(_SHORTEST_PAUSE, _SHARE * (at - began))
        return Copied(after_exit and not trouble, trouble, after_exit, again_at)


def _extended(copy: Path, new: Path) -> bool:
    """Whether the new file has all of the copy; where it does not, what it has more is appended to the copy."""
    if not new.exists():
        return False
    if _continues(copy, new):
        return True
    _append(copy, new)
    return False


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
