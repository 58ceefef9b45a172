"""``/api/v1/jobs/…/log``: what one run writes, as plain text or followed line by line."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from gateway.admin.deps import Number, api_router
from gateway.data.log_copies import STREAMS
from gateway.data.log_levels import Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.problems import index_of
from gateway.domain.run import Run
from gateway.errors import GatewayError, NotFound

POLL_SECONDS = 0.5
"""between two reads of a log that is followed"""
PING_SECONDS = 15.0
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "text/event-stream")}}
}


@dataclass(frozen=True)
class _Log:
    """The log of a run, as far as the request names it."""

    logs: RunLogs
    job_id: str
    run: Run
    streams: tuple[str, ...]
    level: Level

    def read(self, start: int, length: int | None) -> Excerpt:
        return self.logs.read_run(self.job_id, self.run, self.streams, start, length, self.level)

    def newest_state(self) -> Run:
        run = self.run
        return self.logs.run(self.job_id, run.party.role, run.party.index, run.task_id, run.attempt)


def router(logs: RunLogs) -> APIRouter:
    """Return the path of a run's log."""
    router = api_router()

    @router.get(
        "/jobs/{job_id}/runs/{role}.{index}/{task}/log",
        summary="What a run here wrote, while it runs and afterwards",
        response_class=StreamingResponse,
        responses=_TEXT,
    )
    def log(
        job_id: str,
        role: str,
        index: str,
        task: str,
        stream: Annotated[
            Literal["", "stdout", "stderr"], Query(description="without it both, in the order found")
        ] = "",
        level: Annotated[
            Level, Query(description="debug (all lines), info (also warnings) or error, and worse")
        ] = Level.DEBUG,
        tail: Annotated[
            Number | None, Query(description="only so many lines at the end, of what is there by now")
        ] = None,
        follow: Annotated[bool, Query(description="1: server-sent events until the run is over")] = False,
        attempt: Annotated[
            Number | None, Query(description="counted from 0; without it the newest attempt")
        ] = None,
        last_event_id: Annotated[str, Header(description="sent by a client that was cut off")] = "",
    ) -> Any:
        """The log as text, or as events: ``data`` is a line, ``event`` its stream, ``id`` its number.

        The last event is ``end``, with the run's status and exit code. ``task`` is a name in the flow or an id.
        """
        party = index_of(index)
        if party is None:
            raise NotFound(f"no party is called {role}.{index}", reason="RUN_UNKNOWN")
        run = logs.run(job_id, role, party, task, attempt)
        found = _Log(logs, job_id, run, (stream,) if stream else STREAMS, level)
        total = found.read(0, 0).total
        start = 0 if tail is None else max(0, total - tail)
        if not follow:
            return StreamingResponse(_text(found, start, total), media_type="text/plain; charset=utf-8")
        after = index_of(last_event_id)
        start = start if after is None else after + 1
        return EventSourceResponse(_events(found, start), headers={"cache-control": "no-cache"})

    return router


def _text(log: _Log, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines between two numbers, some at a time."""
    while start < end:
        try:
            found = log.read(start, end - start)
        except GatewayError as error:  # too late for a status
            yield f"[{error.reason}: {error.message}]\n".encode()
            return
        yield "".join(f"{line.text}\n" for line in found.lines).encode()
        if not found.lines:
            return
        start = found.next


async def _events(log: _Log, start: int) -> AsyncIterator[bytes]:
    """Yield the lines from a number on as they come, and at last the run's result."""
    idle, incomplete = 0.0, ""
    while True:
        try:
            found = await run_in_threadpool(log.read, start, None)
        except GatewayError as error:  # too late for a status
            yield format_sse_event(data_str=json.dumps({"reason": error.reason}), event="end")
            return
        for number, line in enumerate(found.lines, start):
            yield format_sse_event(data_str=line.text.replace("\r", " "), event=line.stream, id=str(number))
        start = found.next
        if found.left_out:
            continue
        if found.incomplete != incomplete:
            incomplete = found.incomplete
            text = f"the newest lines may be missing: {incomplete}" if incomplete else "all lines are here"
            yield format_sse_event(comment=text)
        run = await run_in_threadpool(log.newest_state)
        if run.over and (found.over or found.incomplete):
            yield format_sse_event(data_str=json.dumps(_end(run, found)), event="end")
            return
        idle = 0.0 if found.lines else idle + POLL_SECONDS
        if idle >= PING_SECONDS:
            idle = 0.0
            yield KEEPALIVE_COMMENT
        await anyio.sleep(POLL_SECONDS)


def _end(run: Run, found: Excerpt) -> dict[str, object]:
    return {
        "status": str(run.status),
        "exit_code": run.exit.code if run.exit else None,
        "failure": run.failure.as_dict() if run.failure else None,
        "lines": found.total,
        "incomplete": found.incomplete,
    }
