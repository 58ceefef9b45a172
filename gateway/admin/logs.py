"""``/api/v1/jobs/…/log``: what one run writes, as plain text or followed line by line. Real HTTP statuses."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from gateway.data.log_copies import STREAMS
from gateway.data.log_levels import LEVELS, Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.problems import Problem, index_of
from gateway.domain.run import Run
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.ports import Limiters

LOOK_EVERY = 0.5
"""seconds between two looks at a log that is followed"""
PING_EVERY = 15.0
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass(frozen=True)
class LogParts:
    """What the path is built of."""

    logs: RunLogs
    limiters: Limiters


@dataclass(frozen=True)
class _Wanted:
    run: Run
    streams: tuple[str, ...]
    level: Level
    tail: int | None
    follow: bool


def router(parts: LogParts) -> APIRouter:
    """Return the path of a run's log."""
    router = APIRouter(tags=["operators"])

    @router.get(
        "/api/v1/jobs/{job_id}/runs/{role}.{index}/{task}/log",
        summary="What a run here wrote, while it runs and afterwards",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}}},
    )
    async def log(
        job_id: str,
        role: str,
        index: str,
        task: str,
        stream: str = Query(default="", description="stdout or stderr; without it both, in the order found"),
        level: str = Query(default="", description="debug (all lines), info (also warnings) or error, and worse"),
        tail: str = Query(default="", description="only so many lines at the end, of what is there by now"),
        follow: str = Query(default="", description="1: server-sent events until the run is over"),
        attempt: str = Query(default="", description="which attempt, counted from 0; without it the newest"),
        last_event_id: str = Header(default="", description="sent by a client that was cut off"),
    ) -> Response:
        """The log as text, or as events: ``data`` is a line, ``event`` its stream, ``id`` its number.

        The last event is ``end``, with the run's status and exit code. ``task`` is a name in the flow or an id.
        """
        after = index_of(last_event_id)
        try:
            wanted = await anyio.to_thread.run_sync(
                lambda: _wanted(parts, job_id, role, index, task, stream, level, tail, follow, attempt),
                limiter=parts.limiters.rest,
            )
            first = await _read(parts, job_id, wanted, 0, 0)
        except GatewayError as error:
            return _refusal(error)
        start = 0 if wanted.tail is None else max(0, first.total - wanted.tail)
        if not wanted.follow:
            return StreamingResponse(
                _text(parts, job_id, wanted, start, first.total), media_type="text/plain; charset=utf-8"
            )
        start = start if after is None else after + 1
        return EventSourceResponse(_events(parts, job_id, wanted, start), headers={"cache-control": "no-cache"})

    return router


def _wanted(
    parts: LogParts,
    job_id: str,
    role: str,
    index: str,
    task: str,
    stream: str,
    level: str,
    tail: str,
    follow: str,
    attempt: str,
) -> _Wanted:
    number = index_of(index)
    if number is None:
        raise NotFound(f"no party is called {role}.{index}", reason="RUN_UNKNOWN")
    problems = []
    if stream not in ("", *STREAMS):
        problems.append(Problem("stream", f"must be one of {', '.join(STREAMS)}, or absent", stream))
    if level not in ("", *LEVELS):
        problems.append(Problem("level", f"must be one of {', '.join(LEVELS)}, or absent", level))
    last = index_of(tail)
    if tail and last is None:
        problems.append(Problem("tail", "must be a whole number from 0", tail))
    which = index_of(attempt)
    if attempt and which is None:
        problems.append(Problem("attempt", "must be a whole number from 0", attempt))
    if follow.lower() not in _YES + _NO:
        problems.append(Problem("follow", "must be 1 or 0", follow))
    if problems:
        raise Invalid(problems)
    run = parts.logs.run(job_id, role, number, task, which)
    return _Wanted(
        run, (stream,) if stream else STREAMS, Level(level or Level.DEBUG), last, follow.lower() in _YES
    )


async def _read(parts: LogParts, job_id: str, wanted: _Wanted, start: int, length: int | None) -> Excerpt:
    def read() -> Excerpt:
        return parts.logs.read_run(job_id, wanted.run, wanted.streams, start, length, wanted.level)

    return await anyio.to_thread.run_sync(read, limiter=parts.limiters.rest)


async def _text(parts: LogParts, job_id: str, wanted: _Wanted, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the lines between two numbers, some at a time."""
    while start < end:
        try:
            found = await _read(parts, job_id, wanted, start, end - start)
        except GatewayError as error:  # too late for a status
            yield f"[{error.reason}: {error.message}]\n".encode()
            return
        yield "".join(f"{line.text}\n" for line in found.lines).encode()
        if not found.lines:
            return
        start = found.next


async def _events(parts: LogParts, job_id: str, wanted: _Wanted, start: int) -> AsyncIterator[bytes]:
    """Yield the lines from a number on as they come, and at last how the run ended."""
    idle, told = 0.0, ""
    while True:
        try:
            found = await _read(parts, job_id, wanted, start, None)
        except GatewayError as error:  # too late for a status
            yield format_sse_event(data_str=json.dumps({"reason": error.reason}), event="end")
            return
        for number, line in enumerate(found.lines, start):
            yield format_sse_event(data_str=line.text.replace("\r", " "), event=line.stream, id=str(number))
        start = found.next
        if found.left_out:
            continue
        if found.incomplete != told:
            told = found.incomplete
            yield format_sse_event(comment=f"the newest lines may be missing: {told}" if told else "all is well")
        run = await anyio.to_thread.run_sync(
            lambda: _again(parts, job_id, wanted.run), limiter=parts.limiters.rest
        )
        if run.over and (found.over or found.incomplete):
            yield format_sse_event(data_str=json.dumps(_end(run, found)), event="end")
            return
        idle = 0.0 if found.lines else idle + LOOK_EVERY
        if idle >= PING_EVERY:
            idle = 0.0
            yield KEEPALIVE_COMMENT
        await anyio.sleep(LOOK_EVERY)


def _again(parts: LogParts, job_id: str, run: Run) -> Run:
    return parts.logs.run(job_id, run.party.role, run.party.index, run.task_id, run.attempt)


def _end(run: Run, found: Excerpt) -> dict[str, object]:
    return {
        "status": str(run.status),
        "exit_code": run.exit.code if run.exit else None,
        "failure": run.failure.as_dict() if run.failure else None,
        "lines": found.total,
        "incomplete": found.incomplete,
    }


def _refusal(error: GatewayError) -> JSONResponse:
    data: dict[str, object] = {"reason": error.reason}
    if error.problems:
        data["problems"] = [{"path": p.path, "rule": p.rule, "got": str(p.got)} for p in error.problems]
    body = {"code": error.code, "msg": f"{error.reason}: {error.message}", "data": data}
    return JSONResponse(body, status_code=error.code)
