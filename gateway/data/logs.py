"""What the runs of this node's tasks have written: by task and level for platforms, by run and stream for admins.

Lines are numbered from 0. A line keeps its number for each choice of task, level, role and stream: while the run
goes on, after its container is gone, after a restart (`gateway.data.log_index` says how). Files below
``config.log.path`` are not part of it: vendors write there what they print as well.

A run's token and its callback's secret never leave: where a line shows them, asterisks stand in their place.
"""

import fcntl
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from engines.base import Engine
from gateway.data.log_copies import STREAMS, LogCopies
from gateway.data.log_index import RawLine, Segment, ends, extend, found, lines, read_ledger
from gateway.data.log_levels import LEVELS, LONGEST_LINE, Level, level_of
from gateway.data.workspace import Workspace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, NodeId
from gateway.errors import Busy, NotFound
from gateway.store.store import Store

MOST_LINES = 10_000
MOST_BYTES = 1024 * 1024
"""of one response, whichever is reached first; at least one line is given"""


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

    def number(self, task_id: str, level: Level, role: str = "") -> Excerpt:
        """Count the lines of a level, or worse, of a task, role or ``role.index`` here. Raises `NotFound`."""
        return self._excerpt(self._of_task(task_id, role), level, 0, 0)

    def read(self, task_id: str, level: Level, start: int, length: int | None = None, role: str = "") -> Excerpt:
        """Return lines of a level, or worse, from a number on. Raises `NotFound`."""
        return self._excerpt(self._of_task(task_id, role), level, start, length)

    def run(self, job_id: str, role: str, index: int, task: str, attempt: int | None = None) -> Run:
        """Return a party's run of a task, by its name or id: one attempt, else the newest. Raises `NotFound`."""
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
            raise NotFound(f"task {task_id} has no role {role} here, but {known}", reason="ROLE_UNKNOWN")
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

    def _indexed(self, of_task: tuple[Run, ...], chosen: tuple[Run, ...], streams: Sequence[str]) -> _Log:
        """Index what the chosen runs have written since the last request."""
        launched = [run for run in chosen if run.launch.state is not CallState.IDLE]
        if not launched:
            return _Log(chosen, over=all(run.over for run in chosen))
        for run in launched:
            self.check_here(run)
        if all(run.over and not self._workspace.logs(run).exists() for run in launched):
            return _Log(chosen, over=all(run.over for run in chosen))  # deleted: nothing is made anew
        try:
            with self._ledger(of_task) as file:
                segments = read_ledger(file)
                known = ends(segments)
                over, troubles = all(run.over for run in chosen), []
                for run in launched:
                    state = self._copies.refresh(run)
                    over = over and state.complete
                    if state.trouble:
                        troubles.append(f"{run.party.label}: {state.trouble}")
                    for stream in STREAMS:
                        start = known.get((run.name, stream), 0)
                        paths = self._copies.paths(run, stream)
                        extend(file, segments, found(paths, run.name, stream, start, complete=state.complete))
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
        wanted = max(0, total - start if length is None else min(length, total - start))
        given = tuple(self._some(log, level, start, min(wanted, MOST_LINES)))
        parties = tuple(run.party.label for run in log.runs)
        return Excerpt(given, start, total, wanted - len(given), parties, log.over, log.incomplete)

    def _some(self, log: _Log, level: Level, start: int, most: int) -> Iterator[LogLine]:
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
