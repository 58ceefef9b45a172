"""The output of this node's runs: by task and level for platforms, by run and stream for operators.

Lines are numbered from 0. For each choice of task, level, role and stream, a line keeps its number:
while the run continues, after its container is removed, and after a restart of the gateway.
`gateway.data.log_copies` copies the output of running containers, `gateway.data.log_ledger` records
the order of the lines.

Log files that a container writes below the folder ``config.log.path`` are not included, as vendors
repeat their printed output there. A run's token and the secret of its callback are replaced by
asterisks, and colours are removed.
"""

import fcntl
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import BinaryIO

from engines.base import Engine
from engines.logs import STREAMS
from gateway.data.log_copies import CopyState, LogCopies
from gateway.data.log_ledger import (
    Segment,
    begin_ledger,
    extend_ledger,
    new_segments,
    read_ledger,
)
from gateway.data.log_levels import LEVELS, LONGEST_LINE, Level, level_of
from gateway.data.log_lines import RawLine, read_lines
from gateway.data.workspace import Workspace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, NodeId
from gateway.errors import Busy, NotFound
from gateway.store.store import Store

# Limits of one response; a single line may exceed that of bytes.
MOST_LINES = 10_000
MOST_BYTES = 1024 * 1024
# Escape sequences of terminals: colours, positions of the cursor, titles.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")


@dataclass(frozen=True)
class LogLine:
    """A line without its end, and its origin."""

    text: str
    party: str  # role.index
    stream: str


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines of a log."""

    lines: tuple[LogLine, ...]
    start: int  # number of the first line
    total: int  # lines of the log so far
    left_out: int  # number of requested lines beyond the limits of a response
    parties: tuple[str, ...]  # role.index of every run in this log
    over: bool = False  # whether the runs are over and all of their lines are in the log
    incomplete: str = ""  # why the newest lines may be missing; "" if they are not

    @property
    def next(self) -> int:
        """The number of the line after these."""
        return self.start + len(self.lines)


@dataclass(frozen=True)
class _Log:
    """The runs of a request, and the positions of their lines; the rest is as in `Excerpt`."""

    runs: tuple[Run, ...]
    segments: tuple[Segment, ...] = ()
    over: bool = False
    incomplete: str = ""


def _at_this_gateway(owner: str) -> str:
    """Return "": this gateway has the files of all runs, whichever gateway ran them."""
    return ""


class RunLogs:
    """Reads the logs of this node's runs."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        engine: Engine,
        workspace: Workspace,
        monotonic: Callable[[], float] = time.monotonic,
        elsewhere: Callable[[str], str] = _at_this_gateway,
    ) -> None:
        """Read logs of the runs in the store, from an engine and a workspace.

        ``elsewhere`` takes the gateway that ran a container (`Run.owner`). It returns the name, for
        messages, of another gateway that has the run's files; "" if this gateway has them.
        """
        self._node = node
        self._store = store
        self._workspace = workspace
        self._copies = LogCopies(engine, workspace, monotonic)
        self._elsewhere = elsewhere

    def check_here(self, run: Run) -> None:
        """Raise `NotFound` (LOG_ELSEWHERE) if another gateway of this node has the run's log."""
        if run.launch.state is CallState.IDLE:
            return  # its container was never started, so that no gateway has a log
        gateway = self._elsewhere(run.owner)
        if gateway:
            text = (
                f"the log of {run.task_name} as {run.party.label} is at {gateway} of this node, "
                "which ran it"
            )
            raise NotFound(text, reason="LOG_ELSEWHERE")

    # ------------------------------------------------------------ by task

    def read(
        self,
        task_id: str,
        level: Level,
        start: int,
        length: int | None = None,
        role: str = "",
    ) -> Excerpt:
        """Return lines of a task's runs, from the number ``start`` on.

        ``task_id`` is the id of one attempt. A task that has not started here yet has no lines.

        - ``level``: only lines of this level or worse
        - ``length``: largest number of lines; None: as many as a response holds
        - ``role``: only runs of this role or party (``guest``, ``guest.0``); "": all

        Raises `NotFound`, `Busy`.
        """
        job_id = self._store.local_job_of_task(task_id)
        if job_id is None:
            self._check_expected(task_id)
            return self._excerpt(_Log(runs=()), level, start, length)
        local: LocalJob = self._store.local_jobs.get(job_id)
        task_runs = local.runs_of(task_id)
        runs = [run for run in task_runs if role in ("", run.party.role, run.party.label)]
        if not runs:
            labels = ", ".join(run.party.label for run in task_runs)
            text = f"task {task_id} has no role {role} here, but {labels}"
            raise NotFound(text, reason="ROLE_UNKNOWN")
        log = self._index(task_runs, tuple(runs), STREAMS)
        return self._excerpt(log, level, start, length)

    def _check_expected(self, task_id: str) -> None:
        """Raise `NotFound` unless this node is expected to run a task later.

        Only a scheduling node knows the tasks ahead, so the job must be scheduled here.
        """
        job_id = self._store.job_of_task(task_id)
        if job_id is None:
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")
        tasks = self._store.jobs.get(job_id).tasks.values()
        nodes = next(tuple(task.nodes) for task in tasks if task.has(task_id))
        if self._node not in nodes:
            where = ", ".join(nodes) or "no node yet"
            raise NotFound(f"task {task_id} has no run here; ask at {where}", reason="TASK_UNKNOWN")

    # ------------------------------------------------------------ by run

    def run(
        self,
        job_id: str,
        role: str,
        index: int,
        task: str,
        attempt: int | None = None,
    ) -> Run:
        """Return a party's run of a task; ``task`` is the name or the id of the task.

        ``attempt`` is the number of the attempt; None means the newest. Raises `NotFound`.
        """
        local = self._store.local_jobs.get(job_id)
        runs = _runs_of(local, role, index, task)
        if not runs:
            text = f"job {job_id} has no run of {task} as {role}.{index} here"
            label = f"{role}.{index}"
            nodes = [party.node for party in local.spec.parties if party.label == label]
            if nodes and local.node not in nodes:
                text += f"; {role}.{index} plays at node {nodes[0]}"
            raise NotFound(text, reason="RUN_UNKNOWN")
        if attempt is None:
            return max(runs, key=attrgetter("attempt"))
        by_attempt = {run.attempt: run for run in runs}
        if attempt not in by_attempt:
            attempts = ", ".join(map(str, sorted(by_attempt)))
            text = f"task {task} has no attempt {attempt} as {role}.{index} here, but {attempts}"
            raise NotFound(text, reason="RUN_UNKNOWN")
        return by_attempt[attempt]

    def read_run(
        self,
        job_id: str,
        run: Run,
        streams: Sequence[str],
        start: int,
        length: int | None,
        level: Level = Level.DEBUG,
    ) -> Excerpt:
        """Return lines of one run, as `read` does for a task.

        ``streams``: only lines of these streams. Raises `NotFound`, `Busy`.
        """
        local = self._store.local_jobs.get(job_id)
        task_runs = local.runs_of(run.task_id)
        # The run in its present state, as ``run`` may have been read earlier.
        present = tuple(task_run for task_run in task_runs if task_run.run_id == run.run_id)
        log = self._index(task_runs, present, streams)
        return self._excerpt(log, level, start, length)

    # ------------------------------------------------------------ index

    def _index(
        self,
        task_runs: tuple[Run, ...],
        runs: tuple[Run, ...],
        streams: Sequence[str],
    ) -> _Log:
        """Record the new lines of some runs of a task; return the positions of all their lines.

        ``task_runs`` are all runs of the task, which share a ledger. Raises `NotFound`
        (LOG_ELSEWHERE), `Busy`.
        """
        all_over = all(run.over for run in runs)
        launched = [run for run in runs if run.launch.state is not CallState.IDLE]
        for run in launched:
            self.check_here(run)
        # Without this check, reading a deleted log would make its folder again.
        if not any(self._has_log(run) for run in launched):
            return _Log(runs, over=all_over)
        try:
            with self._ledger(task_runs) as file:
                segments = read_ledger(file)
                copies = [self._record_new_lines(file, segments, run) for run in launched]
        except OSError as error:
            text = f"the logs cannot be read now: {error.strerror}"
            raise Busy(text, reason="LOGS_UNREADABLE") from error
        names = {run.name for run in runs}
        chosen = [
            segment for segment in segments if segment.run in names and segment.stream in streams
        ]
        is_complete = all_over and all(copy.complete for copy in copies)
        problems = [
            f"{run.party.label}: {copy.problem}"
            for run, copy in zip(launched, copies, strict=True)
            if copy.problem
        ]
        return _Log(
            runs,
            segments=tuple(chosen),
            over=is_complete,
            incomplete="; ".join(problems),
        )

    def _record_new_lines(
        self,
        file: BinaryIO,
        segments: list[Segment],
        run: Run,
    ) -> CopyState:
        """Copy a run's output, and add its new lines to the ledger. Raises `OSError`."""
        copy = self._copies.refresh(run)
        # The segments of a stream are in order, so the dict keeps the end of the last one.
        ends = {segment.stream: segment.end for segment in segments if segment.run == run.name}
        for stream in STREAMS:
            start = ends.get(stream, 0)
            paths = self._copies.paths(run, stream)
            new = new_segments(
                paths,
                run.name,
                stream,
                start,
                complete=copy.complete,
            )
            extend_ledger(file, segments, new)
        return copy

    def _has_log(self, run: Run) -> bool:
        """Return whether a run has a log or may still get one.

        False for an ended run whose log was deleted.
        """
        return not run.over or self._workspace.logs(run).exists()

    @contextmanager
    def _ledger(
        self,
        task_runs: tuple[Run, ...],
    ) -> Iterator[BinaryIO]:
        """Open the ledger of a task; no other thread or process has it open at the same time.

        The file is in the log folder of the first of the task's runs.
        """
        folder = self._workspace.logs(task_runs[0])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lines.txt").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            begin_ledger(file)
            yield file

    # ------------------------------------------------------------ lines

    def _excerpt(
        self,
        log: _Log,
        level: Level,
        start: int,
        length: int | None,
    ) -> Excerpt:
        """Return the requested lines of a log, as many as a response may have.

        The parameters are those of `read`.
        """
        total = sum(segment.count(level) for segment in log.segments)
        requested = max(0, total - start)
        if length is not None:
            requested = max(0, min(length, requested))
        lines = _within_limits(self._lines_from(log, level, start), requested)
        return Excerpt(
            lines=lines,
            start=start,
            total=total,
            left_out=requested - len(lines),
            parties=tuple(run.party.label for run in log.runs),
            over=log.over,
            incomplete=log.incomplete,
        )

    def _lines_from(
        self,
        log: _Log,
        level: Level,
        start: int,
    ) -> Iterator[LogLine]:
        """Yield the lines of a level or worse, from the number ``start`` among them on."""
        runs = {run.name: run for run in log.runs}
        skip = start  # lines of the level that are still to be left out
        for segment in log.segments:
            count = segment.count(level)
            if count <= skip:
                skip -= count
                continue
            run = runs[segment.run]
            paths = self._copies.paths(run, segment.stream)
            lines = read_lines(paths, segment.start, segment.end)
            chosen = (line for line in lines if _has_level(line, segment.stream, level))
            for line in islice(chosen, skip, None):
                yield LogLine(
                    _shown_text(line, run),
                    run.party.label,
                    segment.stream,
                )
            skip = 0


def _runs_of(
    local: LocalJob,
    role: str,
    index: int,
    task: str,
) -> list[Run]:
    """Return a party's runs of a task, given by its name or else by its id."""
    label = f"{role}.{index}"
    party_runs = [run for run in local.runs if run.party.label == label]
    by_name = [run for run in party_runs if run.task_name == task]
    if by_name:
        return by_name
    return [run for run in party_runs if run.task_id == task]


def _within_limits(
    lines: Iterable[LogLine],
    requested: int,
) -> tuple[LogLine, ...]:
    """Return the first lines: as many as requested, within the limits of a response.

    At least one line is returned, however long it is.
    """
    chosen: list[LogLine] = []
    size = 0
    for line in islice(lines, min(requested, MOST_LINES)):
        size += len(line.text.encode())
        if chosen and size > MOST_BYTES:
            break
        chosen.append(line)
    return tuple(chosen)


def _has_level(line: RawLine, stream: str, level: Level) -> bool:
    """Return whether a line is of a level or worse."""
    if level is Level.DEBUG:  # every line
        return True
    return level_of(line.head, stream) in LEVELS[LEVELS.index(level) :]


def _shown_text(line: RawLine, run: Run) -> str:
    """Return a line's text without its line end, escape sequences and secrets.

    A text longer than `LONGEST_LINE` is cut, and says how much is left out.
    """
    # Escape sequences are removed first, because they may interrupt a secret. The run's id is the
    # secret of its callback.
    text = _ESCAPES.sub(b"", line.head)
    for secret in (run.run_id, run.token):
        if secret:
            # Tokens of the container begin with one of these secrets, and may continue with hex
            # digits.
            text = re.sub(
                re.escape(secret.encode()) + rb"[0-9a-f]*",
                _masked,
                text,
            )
    text = text.rstrip(b"\r\n")
    left_out = line.end - line.start - LONGEST_LINE
    if left_out > 0 and len(text) > LONGEST_LINE:
        beginning = text[:LONGEST_LINE].decode(errors="replace")
        return f"{beginning}… [{left_out} bytes left out]"
    return text.decode(errors="replace")


def _masked(match: re.Match[bytes]) -> bytes:
    """Return as many asterisks as a secret has characters."""
    return b"*" * len(match[0])
