"""What the runs of this node's tasks have written: by task and level for platforms, by run and stream for admins.

Lines are numbered from 0. A line keeps its number for each choice of task, level, role and stream: while the run
goes on, after its container is gone, after a restart. Files below ``config.log.path`` are not part of it: vendors
write there what they print as well. A run's token and its callback's secret never leave: where a line shows them,
asterisks stand in their place.

While a run's container exists the engine has its output and hands it out whole; the executor saves it for good
when it removes the container. In between, it is copied here now and then. A copy lies apart from what the executor
saves, so that an older one never covers the last lines. Engines may drop the beginning of a long log: what was
copied before is then kept, and what is new is appended.

The streams of several runs grow side by side, without times; however they are joined later, lines would move.
Hence what has grown is recorded, as segments of the streams, with every request: the order in which it was found
is the order for good. The ledger is a text file with one segment per line, only ever appended to:

    <run's name> <stream> <first byte> <byte after the last> <debug lines> <info lines> <error lines>

A segment that begins where the one above it begins replaces it, grown.

A line ends with a line feed, or before a carriage return by which a progress bar begins it anew. Colours are left
out.
"""

import fcntl
import mmap
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from engines.base import Engine, EngineError
from engines.logs import CUT, STREAMS
from gateway.data.log_levels import LEVELS, LONGEST_LINE, Level, level_of
from gateway.data.workspace import Workspace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, NodeId
from gateway.errors import Busy, NotFound
from gateway.store.store import Store

MOST_LINES = 10_000
MOST_BYTES = 1024 * 1024
"""of one response, whichever is reached first; at least one line is given"""
_SHORTEST_PAUSE = 0.2
"""seconds between two copies"""
_SHARE = 10
"""A copy may take one part in so many of the time, however large a log is."""
_ANCHOR = 4096
"""bytes by which the end of the old copy is found in a new one"""
_LOST = b"[some lines are missing here: the container engine had dropped them already]\n"
LARGEST_SEGMENT = 256 * 1024
"""bytes after which a new segment begins; a longer line has one of its own"""
HEAD = LONGEST_LINE + 1024
"""bytes of a line that are read: some beyond those shown, so that what is masked is whole"""
_CHUNK = 1024 * 1024
_PART = re.compile(rb"\r*[^\r\n]+(?:\r*\n)?|\r*\n|\r+")
_COLOURS = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
"""what a program tells a terminal: colours, the place of the cursor, a title"""
_FORM = b"lines end at carriage returns, too\n"
"""first in a ledger; one without it counted other lines, and is made anew"""


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
    """lines that were requested but did not fit into one response"""
    parties: tuple[str, ...]
    """role.index of every run whose lines are in this log"""
    over: bool = False
    """nothing will be added"""
    incomplete: str = ""
    """why the newest lines may be missing"""

    @property
    def next(self) -> int:
        """The number of the line after these."""
        return self.start + len(self.lines)


@dataclass(frozen=True)
class Segment:
    """Whole lines of one stream of one run."""

    run: str
    stream: str
    start: int
    """bytes of the stream before it"""
    end: int
    """bytes of the stream with it"""
    counts: tuple[int, ...] = (0, 0, 0)
    """lines of exactly each level, as in `LEVELS`"""

    def number(self, level: Level) -> int:
        """Return how many lines are of that level or worse."""
        return sum(self.counts[LEVELS.index(level) :])


@dataclass(frozen=True)
class RawLine:
    """A line in a file: where it is, and its first `HEAD` bytes."""

    head: bytes
    start: int
    """bytes of the file before it"""
    end: int
    """bytes of the file with it, its line break too"""
    ended: bool
    """whether its line break is there"""


@dataclass(frozen=True)
class _Log:
    """The requested runs, and where their lines are."""

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
        elsewhere: Callable[[str], str] = lambda owner: "",
    ) -> None:
        """``elsewhere``: which other gateway has the files of a run's owner; empty for this one."""
        self._node = node
        self._store = store
        self._workspace = workspace
        self._copies = LogCopies(engine, workspace, monotonic)
        self._elsewhere = elsewhere

    def check_here(self, run: Run) -> None:
        """Raise `NotFound` with LOG_ELSEWHERE where another gateway of this node has the run's log."""
        if run.launch.state is not CallState.IDLE and (whose := self._elsewhere(run.owner)):
            text = f"the log of {run.task_name} as {run.party.label} is at {whose} of this node, which ran it"
            raise NotFound(text, reason="LOG_ELSEWHERE")

    def read(
        self,
        task_id: str,
        level: Level,
        start: int,
        length: int | None = None,
        role: str = "",
    ) -> Excerpt:
        """Return lines of a level, or worse, from a number on. Raises `NotFound`."""
        return self._excerpt(self._of_task(task_id, role), level, start, length)

    def run(
        self,
        job_id: str,
        role: str,
        index: int,
        task: str,
        attempt: int | None = None,
    ) -> Run:
        """Return a party's run of a task, by its name or id: one attempt, else the newest. Raises `NotFound`."""
        local = self._store.local_jobs.get(job_id)
        of_party = [r for r in local.runs if (r.party.role, r.party.index) == (role, index)]
        runs = [r for r in of_party if r.task_name == task] or [
            r for r in of_party if r.task_id == task
        ]
        if not runs:
            text = f"job {job_id} has no run of {task} as {role}.{index} here"
            nodes = [p.node for p in local.spec.parties if (p.role, p.index) == (role, index)]
            if nodes and local.node not in nodes:
                text += f"; {role}.{index} plays at node {nodes[0]}"
            raise NotFound(text, reason="RUN_UNKNOWN")
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
        """Return lines of one run, of this level or worse. Raises `NotFound`."""
        local = self._store.local_jobs.get(job_id)
        of_task = local.runs_of(run.task_id)
        now = tuple(r for r in of_task if r.run_id == run.run_id)
        return self._excerpt(self._indexed(of_task, now, streams), level, start, length)

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
            raise NotFound(
                f"task {task_id} has no role {role} here, but {known}", reason="ROLE_UNKNOWN"
            )
        return self._indexed(of_task, chosen, STREAMS)

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

    def _indexed(
        self,
        of_task: tuple[Run, ...],
        chosen: tuple[Run, ...],
        streams: Sequence[str],
    ) -> _Log:
        """Index what the chosen runs have written since the last request."""
        launched = [run for run in chosen if run.launch.state is not CallState.IDLE]
        if not launched:
            return _Log(chosen, over=all(run.over for run in chosen))
        for run in launched:
            self.check_here(run)
        if all(run.over and not self._workspace.logs(run).exists() for run in launched):
            return _Log(
                chosen, over=all(run.over for run in chosen)
            )  # deleted: nothing is made anew
        try:
            with self._ledger(of_task) as file:
                segments = read_ledger(file)
                known = {(s.run, s.stream): s.end for s in segments}
                over, troubles = all(run.over for run in chosen), []
                for run in launched:
                    state = self._copies.refresh(run)
                    over = over and state.complete
                    if state.trouble:
                        troubles.append(f"{run.party.label}: {state.trouble}")
                    for stream in STREAMS:
                        start = known.get((run.name, stream), 0)
                        paths = self._copies.paths(run, stream)
                        extend(
                            file,
                            segments,
                            found(paths, run.name, stream, start, complete=state.complete),
                        )
        except OSError as error:
            raise Busy(
                f"the logs cannot be read now: {error.strerror}", reason="LOGS_UNREADABLE"
            ) from error
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
            file.seek(0)
            if file.readline() != _FORM:
                file.truncate(0)
                file.write(_FORM)
                file.flush()
            yield file

    def _excerpt(
        self,
        log: _Log,
        level: Level,
        start: int,
        length: int | None,
    ) -> Excerpt:
        total = sum(segment.number(level) for segment in log.segments)
        wanted = max(0, total - start if length is None else min(length, total - start))
        given = tuple(self._some(log, level, start, min(wanted, MOST_LINES)))
        parties = tuple(run.party.label for run in log.runs)
        return Excerpt(given, start, total, wanted - len(given), parties, log.over, log.incomplete)

    def _some(
        self,
        log: _Log,
        level: Level,
        start: int,
        most: int,
    ) -> Iterator[LogLine]:
        """Yield the lines from a number on: at most so many, and as many bytes as one response takes."""
        run_of = {run.name: run for run in log.runs}
        skip, size = start, 0
        for segment in log.segments:
            number = segment.number(level)
            if number <= skip:
                skip -= number
                continue
            run = run_of[segment.run]
            for line in lines(self._copies.paths(run, segment.stream), segment.start, segment.end):
                if (
                    level is not Level.DEBUG
                    and level_of(line.head, segment.stream) not in LEVELS[LEVELS.index(level) :]
                ):
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


def _text(line: RawLine, run: Run) -> str:
    """Return what is shown of a line: without its end, colours and the run's secrets, and not endlessly."""
    shown = _COLOURS.sub(b"", line.head)  # first, as they may stand in the middle of a secret
    for id_ in filter(None, (run.run_id, run.token)):
        shown = re.sub(
            re.escape(id_.encode()) + rb"[0-9a-f]*", lambda found: b"*" * len(found[0]), shown
        )
    shown = shown.rstrip(b"\r\n")
    left = line.end - line.start - LONGEST_LINE
    if left > 0 and len(shown) > LONGEST_LINE:
        return f"{shown[:LONGEST_LINE].decode(errors='replace')}… [{left} bytes left out]"
    return shown.decode(errors="replace")


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

    def __init__(
        self,
        engine: Engine,
        workspace: Workspace,
        monotonic: Callable[[], float],
    ) -> None:
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
        news = run.exit is not None and known is not None and not known.after_exit
        if known is None or (not known.complete and (news or self._monotonic() >= known.again_at)):
            known = self._copied[run.name] = self._copy(run)
        return known

    def _copy(self, run: Run) -> Copied:
        began = self._monotonic()
        fresh = self._workspace.logs(run) / "copying"
        trouble, there = "", False
        try:
            self._engine.save_logs(run.name, fresh)
            there = fresh.exists()  # not so once the container is removed: its log is being saved
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
        return Copied(after_exit and there and not trouble, trouble, after_exit, again_at)


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


def read_ledger(file: BinaryIO) -> list[Segment]:
    """Return the segments; what a crash left of a last line is cut off. Raises OSError."""
    segments: list[Segment] = []
    good = file.seek(0)
    for line in file:
        if line == _FORM:
            good += len(line)
            continue
        segment = _parsed(line)
        if segment is None:
            file.truncate(good)
            break
        good += len(line)
        last = segments[-1] if segments else None
        if last and (last.run, last.stream, last.start) == (
            segment.run,
            segment.stream,
            segment.start,
        ):
            segments[-1] = segment
        else:
            segments.append(segment)
    return segments


def extend(
    file: BinaryIO,
    segments: list[Segment],
    more: Iterable[Segment],
) -> None:
    """Record what was found, and add it to the segments. Raises OSError."""
    file.seek(0, os.SEEK_END)
    for segment in more:
        last = segments[-1] if segments else None
        goes_on = last and (last.run, last.stream, last.end) == (
            segment.run,
            segment.stream,
            segment.start,
        )
        if last is not None and goes_on and segment.end - last.start <= LARGEST_SEGMENT:
            counts = tuple(map(sum, zip(last.counts, segment.counts, strict=True)))
            segment = replace(last, end=segment.end, counts=counts)
            segments[-1] = segment
        else:
            segments.append(segment)
        debug, info, error = segment.counts
        text = (
            f"{segment.run} {segment.stream} {segment.start} {segment.end} {debug} {info} {error}\n"
        )
        file.write(text.encode())
    file.flush()


def found(
    paths: Sequence[Path],
    run: str,
    stream: str,
    start: int,
    *,
    complete: bool,
) -> Iterator[Segment]:
    """Yield the lines from a byte on, in segments; one without its end only where the stream is complete."""
    counts, end = [0, 0, 0], start
    for line in lines(paths, start, None):
        if not line.ended and not complete:
            break
        counts[LEVELS.index(level_of(line.head, stream))] += 1
        end = line.end
        if end - start >= LARGEST_SEGMENT:
            yield Segment(run, stream, start, end, tuple(counts))
            counts, start = [0, 0, 0], end
    if end > start:
        yield Segment(run, stream, start, end, tuple(counts))


def lines(
    paths: Sequence[Path],
    start: int,
    end: int | None,
) -> Iterator[RawLine]:
    """Yield the lines between two bytes of the first of the files that is there, in memory one at a time.

    A line ends with a line feed, or before a carriage return by which a program begins it anew.
    """
    path = next(filter(Path.exists, paths), None)
    if path is None:
        return
    with path.open("rb") as file:
        available = os.fstat(file.fileno()).st_size
        end = available if end is None else min(end, available)
        file.seek(start)
        head, size = b"", 0
        for part in _parts(file, end - start):
            text = part.strip(b"\r\n")
            if head and text and part.startswith(b"\r"):
                yield RawLine(head, start, start + size, True)
                start += size
                head, size = b"", 0
            size += len(part)
            head += part.lstrip(b"\r")[: HEAD - len(head)]
            if part.endswith(b"\n"):
                yield RawLine(head, start, start + size, True)
                start += size
                head, size = b"", 0
        if size:
            yield RawLine(head, start, start + size, False)


def _parts(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield so many bytes in parts, each within one line, with the carriage returns before it."""
    while length > 0:
        piece = file.readline(min(_CHUNK, length))
        if not piece:
            return
        length -= len(piece)
        while piece.endswith(b"\r") and length > 0:  # a line feed may follow
            following = file.read(1)
            if not following:
                break
            length -= 1
            piece += following
        yield from _PART.findall(piece)


def _parsed(line: bytes) -> Segment | None:
    words = line.decode(errors="replace").split()
    if not line.endswith(b"\n") or len(words) != 7 or not all(w.isdecimal() for w in words[2:]):
        return None
    start, end, debug, info, error = map(int, words[2:])
    return Segment(words[0], words[1], start, end, (debug, info, error))
