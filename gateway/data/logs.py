"""What the runs of this node's tasks have written: by task and level for platforms, by run and stream for admins.

Lines are numbered from 0. A line keeps its number for each choice of task, level, role and stream: while the run
goes on, after its container is gone, after a restart (`gateway.data.log_index` says how). Files below
``config.log.path`` are not part of it: vendors write there what they print as well.

A run's token and its callback's secret never leave: where a line shows them, asterisks stand in their place.
"""

import fcntl
import mmap
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engines import logs
from engines.base import Engine, EngineError
from gateway.data.log_index import (
    LEVELS,
    LONGEST_LINE,
    Level,
    RawLine,
    Segment,
    ends,
    extend,
    found,
    level_of,
    lines,
    read_ledger,
)
from gateway.data.workspace import Workspace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, NodeId
from gateway.errors import Busy, NotFound
from gateway.store.store import Store

# Keeps a readable copy of what a run has written so far.
#
# While a run's container is there its output is the engine's, which hands it out whole; the executor saves it for
# good when it takes the container away. In between, this copies it now and then. A copy lies apart from what the
# executor saves, so that an older one never covers the last words.
#
# Engines may drop the beginning of a long log. What was copied before is then kept, and what is new put behind it.

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


MOST_LINES = 10_000
MOST_BYTES = 1024 * 1024
"""of one answer, whichever is reached first; at least one line is given"""


@dataclass(frozen=True)
class LogLine:
    """A line without its end, and where it is from."""

    text: str
    party: str
    """role.index"""
    stream: str


@dataclass(frozen=True)
class Excerpt:
    """Some consecutive lines of a log."""

    lines: tuple[LogLine, ...]
    start: int
    """number of the first line given"""
    total: int
    """lines that there are by now"""
    left_out: int
    """lines that were asked for but did not fit into one answer"""
    parties: tuple[str, ...]
    """role.index of every run whose lines are in this log"""
    over: bool = False
    """nothing will be added"""
    incomplete: str = ""
    """why the newest lines may be missing"""

    @property
    def next(self) -> int:
        """The number of the line behind these."""
        return self.start + len(self.lines)


@dataclass(frozen=True)
class _Log:
    """The runs asked for, and where their lines are."""

    runs: tuple[Run, ...]
    segments: tuple[Segment, ...] = ()
    over: bool = False
    incomplete: str = ""


class RunLogs:
    """Finds lines in the logs of this node's runs."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        engine: Engine,
        workspace: Workspace,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._store = store
        self._workspace = workspace
        self._copies = LogCopies(engine, workspace, monotonic)
        self.elsewhere: Callable[[str], str] = lambda owner: ""
        """says which other gateway of this node has a run's files, by the run's owner; empty for this one"""

    def check_here(self, run: Run) -> None:
        """Raise `NotFound` with LOG_ELSEWHERE where another gateway of this node has the run's log."""
        if run.launch.state is not CallState.IDLE and (whose := self.elsewhere(run.owner)):
            text = f"the log of {run.task_name} as {run.party.label} is at {whose} of this node, which ran it"
            raise NotFound(text, reason="LOG_ELSEWHERE")

    def number(self, task_id: str, level: Level, role: str = "") -> Excerpt:
        """Tell how many lines of a level, or worse, a task's runs here have written; no line is given.

        ``role`` narrows it to a role or to ``role.index``. Raises `NotFound`.
        """
        return self._excerpt(self._of_task(task_id, role), level, 0, 0)

    def read(self, task_id: str, level: Level, start: int, length: int | None = None, role: str = "") -> Excerpt:
        """Give lines of a level, or worse, from a number on. Raises `NotFound`."""
        return self._excerpt(self._of_task(task_id, role), level, start, length)

    def run(self, job_id: str, role: str, index: int, task: str, attempt: int | None = None) -> Run:
        """Return a party's run of a task, named by its name in the flow or its id. Raises `NotFound`.

        Of several attempts it is the newest, unless one is named.
        """
        local = self._store.local_jobs.get(job_id)
        of_party = [r for r in local.runs if (r.party.role, r.party.index) == (role, index)]
        runs = [r for r in of_party if r.task_name == task] or [r for r in of_party if r.task_id == task]
        if not runs:
            raise NotFound(f"job {job_id} has no run of {task} as {role}.{index} here", reason="RUN_UNKNOWN")
        if attempt is None:
            return max(runs, key=lambda r: r.attempt)
        there = {r.attempt: r for r in runs}
        if attempt not in there:
            known = ", ".join(map(str, sorted(there)))
            text = f"task {task} has no attempt {attempt} as {role}.{index} here, but {known}"
            raise NotFound(text, reason="RUN_UNKNOWN")
        return there[attempt]

    def read_run(
        self,
        job_id: str,
        run: Run,
        streams: Sequence[str],
        start: int,
        length: int | None,
        level: Level = Level.DEBUG,
    ) -> Excerpt:
        """Give lines of one run, of this level or worse. Raises `NotFound`."""
        local = self._store.local_jobs.get(job_id)
        of_task = local.runs_of(run.task_id)
        now = tuple(r for r in of_task if r.run_id == run.run_id)
        return self._excerpt(self._grown(of_task, now, streams), level, start, length)

    def _of_task(self, task_id: str, role: str) -> _Log:
        job_id = self._store.local_job_of_task(task_id)
        if job_id is None:
            self._expect(task_id)
            return _Log(())
        local: LocalJob = self._store.local_jobs.get(job_id)
        of_task = local.runs_of(task_id)
        chosen = tuple(r for r in of_task if role in ("", r.party.role, r.party.label))
        if not chosen:
            known = ", ".join(r.party.label for r in of_task)
            raise NotFound(f"task {task_id} has no role {role} here, but {known}", reason="ROLE_UNKNOWN")
        return self._grown(of_task, chosen, STREAMS)

    def _expect(self, task_id: str) -> None:
        """Return where a task is still to start here. Raises `NotFound`."""
        job_id = self._store.job_of_task(task_id)
        if job_id is None:
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")
        tasks = self._store.jobs.get(job_id).tasks.values()
        nodes = next(tuple(t.nodes) for t in tasks if t.has(task_id))
        if self._node not in nodes:
            where = ", ".join(nodes) or "no node yet"
            raise NotFound(f"task {task_id} has no run here; ask at {where}", reason="TASK_UNKNOWN")

    def _grown(self, of_task: tuple[Run, ...], chosen: tuple[Run, ...], streams: Sequence[str]) -> _Log:
        """Take up what the chosen runs have written since somebody asked last."""
        launched = [run for run in chosen if run.launch.state is not CallState.IDLE]
        if not launched:
            return _Log(chosen, over=all(run.over for run in chosen))
        for run in launched:
            self.check_here(run)
        if all(run.over and not self._workspace.logs(run).exists() for run in launched):
            return _Log(chosen, over=all(run.over for run in chosen))  # cleaned away: nothing is made anew
        try:
            with self._ledger(of_task) as file:
                segments = read_ledger(file)
                known = ends(segments)
                over, troubles = all(run.over for run in chosen), []
                for run in launched:
                    sight = self._copies.look(run)
                    over = over and sight.complete
                    if sight.trouble:
                        troubles.append(f"{run.party.label}: {sight.trouble}")
                    for stream in STREAMS:
                        start = known.get((run.name, stream), 0)
                        paths = self._copies.paths(run, stream)
                        extend(file, segments, found(paths, run.name, stream, start, complete=sight.complete))
        except OSError as error:
            raise Busy(f"the logs cannot be read now: {error.strerror}", reason="LOGS_UNREADABLE") from error
        names = {run.name for run in chosen}
        mine = tuple(s for s in segments if s.run in names and s.stream in streams)
        return _Log(chosen, mine, over, "; ".join(troubles))

    @contextmanager
    def _ledger(self, of_task: tuple[Run, ...]) -> Iterator[BinaryIO]:
        """Open the task's ledger, which lies beside its first run's logs, for this thread alone."""
        folder = self._workspace.logs(of_task[0])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lines.txt").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _excerpt(self, log: _Log, level: Level, start: int, length: int | None) -> Excerpt:
        total = sum(segment.number(level) for segment in log.segments)
        wanted = max(0, total - start) if length is None else max(0, min(length, total - start))
        given = tuple(self._some(log, level, start, min(wanted, MOST_LINES)))
        return Excerpt(
            given,
            start,
            total,
            wanted - len(given),
            tuple(run.party.label for run in log.runs),
            log.over,
            log.incomplete,
        )

    def _some(self, log: _Log, level: Level, start: int, most: int) -> Iterator[LogLine]:
        """Yield the lines from a number on: at most so many, and as many bytes as one answer takes."""
        run_of = {run.name: run for run in log.runs}
        skip, size = start, 0
        for segment in log.segments:
            number = segment.number(level)
            if number <= skip:
                skip -= number
                continue
            run = run_of[segment.run]
            for line in lines(self._copies.paths(run, segment.stream), segment.start, segment.end):
                if level is not Level.DEBUG and not _worth(line, segment.stream, level):
                    continue
                if skip:
                    skip -= 1
                    continue
                if most <= 0:
                    return
                text = _text(line, run)
                size += len(text.encode())
                if size > MOST_BYTES and size > len(text.encode()):
                    return
                yield LogLine(text, run.party.label, segment.stream)
                most -= 1


def _worth(line: RawLine, stream: str, level: Level) -> bool:
    return LEVELS.index(level_of(line.head, stream)) >= LEVELS.index(level)


def _text(line: RawLine, run: Run) -> str:
    """Return what is shown of a line: without its end, without the run's secrets, and not endlessly."""
    shown = line.head
    for id_ in filter(None, (run.run_id, run.token)):
        shown = re.sub(re.escape(id_.encode()) + rb"[0-9a-f]*", lambda found: b"*" * len(found[0]), shown)
    shown = shown.rstrip(b"\r\n")
    left = line.end - line.start - LONGEST_LINE
    if left > 0 and len(shown) > LONGEST_LINE:
        return f"{shown[:LONGEST_LINE].decode(errors='replace')}… [{left} bytes left out]"
    return shown.decode(errors="replace")
