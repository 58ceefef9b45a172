"""``/v2/log`` and ``/v2/job/log``: logs of jobs and their tasks."""

import json
from collections.abc import Callable, Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, NamedTuple

from fastapi import Body, Response

from adapter.fate.envelope import Code, Envelope, ok
from adapter.fate.tools import schemas
from adapter.fate.tools.deps import CHUNK, GZIP, JOB_EXAMPLE, Call, ClientParts, Member, Paths, sent
from adapter.fate.tools.rows import unknown_job
from gateway.data.log_copies import STREAMS
from gateway.data.log_levels import Level
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob, Run
from gateway.errors import Invalid, NotFound
from gateway.store.timeline import TimelineEntry

OF_TASKS: Mapping[str, Level] = {
    "task_debug": Level.DEBUG,
    "task_info": Level.INFO,
    "task_warning": Level.INFO,
    "task_error": Level.ERROR,
}
"""FATE's kinds of logs -> the least serious lines in it. Warnings are not told apart here."""
OF_JOB = ("schedule_info", "schedule_error")
_IN_MEMORY = 1024 * 1024
_JOB = {"JOB_UNKNOWN": Code.JOB_NOT_FOUND}
paths = Paths()


@paths("GET", "/v2/log/count", "How many lines a log has by now")
def _count(call: Call, asked: schemas.LogQuery) -> int:
    return sum(part.length for part in _log(call.parts, asked))


@paths("GET", "/v2/log/query", "Lines of a log")
def _query(call: Call, asked: schemas.LogQuery) -> Envelope[Any]:
    """Numbered from 1. ``next``: where to go on, if not all that were asked for fit into one response."""
    log = _log(call.parts, asked)
    count = sum(part.length for part in log)
    first, last = max(asked.begin, 1), min(asked.end or count, count)
    lines = _lines(log, first, last)
    more: dict[str, Any] = {"next": first + len(lines)} if first + len(lines) <= last else {}
    return ok([{"line_num": n, "content": text} for n, text in enumerate(lines, first)], extra=more)


@paths("POST", "/v2/job/log/download", "All logs of a job that this node has, as tar.gz", codes=_JOB, archive=GZIP)
def _download(call: Call, asked: Annotated[schemas.JobIdRequest, Body(examples=[JOB_EXAMPLE])]) -> Response:
    local = _known(call.parts, asked.job_id)
    return sent(call, _members(call.parts, asked.job_id, local), f"job_{asked.job_id}_log.tar.gz")


@paths("GET", "/v2/job/log/download", "The same, for a browser", codes=_JOB, archive=GZIP)
def _download_by_browser(call: Call, asked: schemas.JobIdRequest) -> Response:
    return _download(call, asked)  # type: ignore[no-any-return]


class _Part(NamedTuple):
    """A part of a log: how many lines it has, and what reads them from a number on, and whether that is all."""

    length: int
    read: Callable[[int, int], tuple[list[str], bool]]


def _log(parts: ClientParts, asked: schemas.LogQuery) -> list[_Part]:
    """Return the parts of a log, one after the other. Raises `Invalid` for another kind of log, `NotFound`."""
    if asked.log_type not in (*OF_TASKS, *OF_JOB):
        kinds = ", ".join((*OF_TASKS, *OF_JOB))
        raise Invalid([Problem("log_type", f"must be one of {kinds}", asked.log_type)])
    local = _known(parts, asked.job_id)
    if asked.log_type in OF_JOB:
        lines = _schedule(parts, asked.job_id, asked.log_type == "schedule_error")
        return [_Part(len(lines), lambda start, number: (lines[start : start + number], True))]
    lacking = [Problem(k, "is required for a task's log") for k in ("role", "party_id") if not getattr(asked, k)]
    if lacking:
        raise Invalid(lacking)
    return [_part(parts, run, OF_TASKS[asked.log_type]) for run in _chosen(local, asked)]


def _part(parts: ClientParts, run: Run, level: Level) -> _Part:
    def read(start: int, number: int) -> tuple[list[str], bool]:
        found = parts.run_logs.read(run.task_id, level, start, number, run.party.label)
        return [line.text for line in found.lines], not found.left_out

    return _Part(parts.run_logs.number(run.task_id, level, run.party.label).total, read)


def _lines(log: list[_Part], first: int, last: int) -> list[str]:
    """Return the lines of these numbers, from 1; fewer where they are too many for one response."""
    lines: list[str] = []
    before = 0
    for part in log:
        start, end = max(first - 1 - before, 0), min(last - before, part.length)
        before += part.length
        if start < end:
            found, complete = part.read(start, end - start)
            lines += found
            if not complete:
                break
    return lines


def _known(parts: ClientParts, job_id: str) -> LocalJob | None:
    local = parts.store.local_jobs.find(job_id)
    if local is None and parts.store.jobs.find(job_id) is None:
        raise unknown_job(job_id)
    return local


def _chosen(local: LocalJob | None, asked: schemas.LogQuery) -> list[Run]:
    """Return the runs of a party, of one task or of all, each task's newest attempt."""
    runs = [
        run
        for run in (local.runs if local else ())
        if (run.party.role, run.party.node) == (asked.role, asked.party_id)
        and asked.task_name in ("", run.task_name, run.task_id)
    ]
    if not runs:
        what = f"task {asked.task_name}" if asked.task_name else "task"
        text = f"{asked.role} {asked.party_id} has no {what} in job {asked.job_id} here"
        raise NotFound(text, reason="TASK_UNKNOWN")
    return list({(run.task_name, run.party.label): run for run in runs}.values())


def _schedule(parts: ClientParts, job_id: str, errors: bool = False) -> list[str]:
    entries = parts.store.timeline(job_id)
    causes = ("failure", "reason", "error")
    return [_line(e) for e in entries if not errors or any(e.detail.get(key) for key in causes)]


def _line(entry: TimelineEntry) -> str:
    text = json.dumps(entry.detail, ensure_ascii=False, default=str) if entry.detail else ""
    return " ".join(filter(None, (entry.at.isoformat(), entry.side, entry.event, entry.by, text)))


def _members(parts: ClientParts, job_id: str, local: LocalJob | None) -> Iterator[Member]:
    """Yield ``schedule.log`` and ``<role>/<party>/<task>/<attempt>/<stream>.log``."""
    text = "".join(f"{line}\n" for line in _schedule(parts, job_id)).encode()
    yield Member("schedule.log", len(text), (text,))
    for run in local.runs if local else ():
        for stream in STREAMS:
            place = (run.party.role, run.party.node, run.task_name, str(run.attempt), f"{stream}.log")
            yield from _member(parts, job_id, run, stream, "/".join(map(_plain, place)))


def _member(parts: ClientParts, job_id: str, run: Run, stream: str, name: str) -> Iterator[Member]:
    """Yield one run's stream; how long it is is known when it was written to a file once."""
    with SpooledTemporaryFile(_IN_MEMORY) as file:
        start, more = 0, True
        while more:
            try:
                found = parts.run_logs.read_run(job_id, run, (stream,), start, None)
            except NotFound as error:  # another gateway has it
                file.write(f"[{error.reason}: {error.message}]\n".encode())
                break
            file.write("".join(f"{line.text}\n" for line in found.lines).encode())
            start, more = found.next, bool(found.lines) and found.left_out > 0
        size = file.tell()
        file.seek(0)
        yield Member(name, size, iter(lambda: file.read(CHUNK), b""))


def _plain(part: str) -> str:
    return part.replace("/", "_") if part not in (".", "..") else "_"
