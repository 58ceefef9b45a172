"""Copies of the output of running containers.

While a run's container exists, its engine has the output and hands it out as a whole; the executor
saves it to a file when it removes the container. Until then, this module copies the output from
time to time. The copy and the executor's file are separate, so that an older copy never replaces
the last lines. Engines may drop the beginning of a long log: the copy then keeps it, and only the
new end is appended.
"""

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engines.base import Engine, EngineError
from engines.logs import CUT, STREAMS
from gateway.data.workspace import Workspace
from gateway.domain.run import Run
from gateway.domain.spec import CallState

_SHORTEST_PAUSE = 0.2  # seconds between two copies
_PAUSE_FACTOR = 10  # a pause is at least this many times as long as the copy before it
_ANCHOR = 4096  # bytes at the end of the old copy that are searched in a new one
_CHUNK = 1024 * 1024  # bytes copied at a time
_LOST = b"[some lines are missing here: the container engine had dropped them already]\n"


@dataclass(frozen=True)
class CopyState:
    """The state of the copy of a run's output."""

    complete: bool  # whether all output is in the copy or the executor's file
    problem: str = ""  # why the newest lines may be missing; "" if they are not
    after_exit: bool = False  # whether the copy was made after the exit of the container
    next_copy_at: float = 0.0  # monotonic time of the earliest next copy


class LogCopies:
    """Copies the output of running containers. Each run is handled by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        workspace: Workspace,
        monotonic: Callable[[], float],
    ) -> None:
        """Copy from an engine to the folders of logs; ``monotonic`` returns the time in seconds."""
        self._engine = engine
        self._workspace = workspace
        self._monotonic = monotonic
        self._states: dict[str, CopyState] = {}  # by the run's name

    def paths(
        self,
        run: Run,
        stream: str,
    ) -> tuple[Path, Path]:
        """Return the paths of a stream's copy and of the executor's file.

        Readers use the first of the two that exists.
        """
        folder = self._workspace.logs(run)
        return folder / f"{stream}.so-far.log", folder / f"{stream}.log"

    def refresh(self, run: Run) -> CopyState:
        """Bring the copy up to date, unless that was done a moment ago.

        A run whose container was never started has no copy; one whose log the executor has saved
        needs none any more. Raises `OSError`.
        """
        if run.launch.state is CallState.IDLE:  # its container was not started, or not yet
            return CopyState(complete=run.over)
        is_saved = run.over and run.collect.state is CallState.OK
        if is_saved:
            self._drop_copies(run)
            return CopyState(complete=True)
        state = self._states.get(run.name)
        if state is None or self._is_due(run, state):
            state = self._copy(run)
            self._states[run.name] = state
        return state

    def _is_due(self, run: Run, state: CopyState) -> bool:
        """Return whether to make another copy: after a pause, or once after the exit.

        False for a copy to which nothing can be added.
        """
        if state.complete:
            return False
        has_exited_since = run.exit is not None and not state.after_exit
        return has_exited_since or self._monotonic() >= state.next_copy_at

    def _drop_copies(self, run: Run) -> None:
        """Delete the copies that the executor's files replace.

        A copy stays if it has lines that the engine had dropped before the executor saved them. The
        end that only the executor's file has is then appended to the copy.
        """
        for stream in STREAMS:
            copy, saved = self.paths(run, stream)
            if not copy.exists() or not saved.exists():
                continue
            if continues(copy, saved):
                copy.unlink()
            else:
                append_end(copy, saved)
        self._states.pop(run.name, None)

    def _copy(self, run: Run) -> CopyState:
        """Copy a run's output now; return the state of the copy.

        A failure is part of the state. The next copy is due after a pause that grows with the
        duration of this one.
        """
        started_at = self._monotonic()
        folder = self._workspace.logs(run) / "copying"
        problem = ""
        has_container = False
        try:
            self._engine.save_logs(run.name, folder)
            # Without a container, the engine writes no folder: the executor has removed the
            # container, or is doing so.
            has_container = folder.exists()
            self._update_copies(run, folder)
        except EngineError as error:
            problem = f"{error.reason}: {error}"
        except OSError as error:
            problem = f"COPY_FAILED: {error.strerror}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        ended_at = self._monotonic()
        pause = max(_SHORTEST_PAUSE, _PAUSE_FACTOR * (ended_at - started_at))
        has_exited = run.exit is not None
        return CopyState(
            complete=has_exited and has_container and not problem,
            problem=problem,
            after_exit=has_exited,
            next_copy_at=ended_at + pause,
        )

    def _update_copies(self, run: Run, folder: Path) -> None:
        """Bring the copies up to date with the files that the engine wrote to a folder.

        A stream without output may have no such file.
        """
        for stream in STREAMS:
            copy, _ = self.paths(run, stream)
            new = folder / f"{stream}.log"
            if not new.exists():
                continue
            if copy.exists() and not continues(copy, new):
                append_end(copy, new)
            else:
                new.replace(copy)


def continues(old: Path, new: Path) -> bool:
    """Return whether a new file is an old one that has grown.

    Only their lengths, their beginnings, and the bytes at the end of the old one are compared.
    """
    with old.open("rb") as old_file, new.open("rb") as new_file:
        size = _size(old_file)
        if _size(new_file) < size:
            return False
        for offset in (0, max(0, size - _ANCHOR)):
            length = min(_ANCHOR, size - offset)
            old_bytes = os.pread(old_file.fileno(), length, offset)
            if old_bytes != os.pread(new_file.fileno(), length, offset):
                return False
        return True


def append_end(old: Path, new: Path) -> None:
    """Append to an old file the lines that only a new one has.

    The new file lacks its beginning, which the engine has dropped.
    """
    with old.open("r+b") as old_file, new.open("rb") as new_file:
        new_size = _size(new_file)
        if new_size == 0:
            return
        old_size = old_file.seek(0, os.SEEK_END)
        anchor = os.pread(
            old_file.fileno(),
            _ANCHOR,
            max(0, old_size - _ANCHOR),
        )
        # Perhaps the engine dropped so much that the new file is only a part of the old file's end.
        is_contained = new_size <= len(anchor) and anchor.endswith(new_file.read(new_size))
        if is_contained:
            return
        start = _end_of_anchor(new_file, anchor)
        if start is None:  # the lines after the old file's end are gone
            if not anchor.endswith(b"\n"):
                old_file.write(b"\n")
            old_file.write(_LOST)
            start = _end_of_cut(new_file)
        new_file.seek(start)
        shutil.copyfileobj(new_file, old_file, _CHUNK)


def _end_of_anchor(file: BinaryIO, anchor: bytes) -> int | None:
    """Return the offset after the last occurrence of ``anchor`` in a file; None without one.

    ``anchor`` is the end of the old file, and ``file`` the new one.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        offset = content.rfind(anchor)
    if offset < 0:
        return None
    return offset + len(anchor)


def _end_of_cut(file: BinaryIO) -> int:
    """Return the offset after the engine's note about left-out bytes; 0 without one.

    The beginning of the log, which comes before the note, is in the old file.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        offset = content.rfind(CUT)
    if offset < 0:
        return 0
    return offset + len(CUT)


def _size(file: BinaryIO) -> int:
    """Return the bytes of an open file."""
    return os.fstat(file.fileno()).st_size
