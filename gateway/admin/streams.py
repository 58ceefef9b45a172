"""``/api/v1/events`` and ``/api/v1/jobs/…/log``: what becomes of jobs, what runs write; also followed.

What is followed comes as server-sent events; a client that was cut off goes on by ``Last-Event-ID``.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from engines.logs import STREAMS
from gateway.admin.deps import AfterNumber, Number, Object, Paths, Reply, among, content, shape
from gateway.auth import Unauthenticated
from gateway.data.log_levels import Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.events import NAMES
from gateway.domain.problems import index_of
from gateway.domain.run import Run
from gateway.domain.spec import CallState
from gateway.errors import GatewayError, NotFound, TooManyStreams
from gateway.events.feed import Feed
from gateway.events.webhooks import Webhooks

POLL_SECONDS = 0.5
PING_SECONDS = 15.0
_MOST = 1000
"""events read at the same time"""
MOST_STREAMS = 20
"""open at the same time by one token"""
_CUT_OFF = Annotated[str, Header(description="sent by a client that was cut off")]
_STREAM = content("text/event-stream")
_Names = Annotated[
    Sequence[str],
    among(NAMES),
    Query(alias="events", description=f"only some of {', '.join(NAMES)}"),
]
_TEXTS: dict[str, Any] = dict.fromkeys(
    ("event", "job_id", "node", "at", "side", "by", "status"), str
)
_EVENT = shape(
    "Event",
    id=int,
    **_TEXTS,
    detail=Object,
)
_EVENTS = shape("Events", events=[_EVENT], next=int)
_WEBHOOK = shape(
    "Webhook",
    url=str,
    events=list[str],
    number=int,
    behind=int,
)
_WEBHOOKS = shape("Webhooks", webhooks=[_WEBHOOK])

Read = Callable[[int, int | None], Excerpt]
"""reads so many lines of a log from a number on"""
Step = tuple[list[bytes], bool]
"""what one poll of a followed source found, and whether the next poll may wait"""
CheckAgain = Callable[[], Awaitable[None]]
"""raises `Unauthenticated` once a request's token is no longer good"""


class Streams:
    """The streams that are open: few of each token, each until the token is revoked or the node stops."""

    def __init__(self, leaving: Event) -> None:
        """``leaving`` is set when the node stops."""
        self._leaving = leaving
        self._open: Counter[str] = Counter()

    def stream(self, steps: Iterator[Step]) -> Response:
        """Return the response that sends what each poll finds until the source ends."""
        return _Stream(self, steps)

    @contextmanager
    def place(self, asker: str) -> Iterator[None]:
        """Count a stream while it is open. Raises `TooManyStreams`. For the event loop only."""
        if self._open[asker] >= MOST_STREAMS:
            raise TooManyStreams(
                f"{asker} has {MOST_STREAMS} streams of events and logs open; no more are served"
            )
        self._open[asker] += 1
        try:
            yield
        finally:
            self._open[asker] -= 1
            if not self._open[asker]:
                del self._open[asker]

    async def polled(self, steps: Iterator[Step], check_again: CheckAgain) -> AsyncIterator[bytes]:
        """Give what each poll finds; a comment now and then meanwhile."""
        idle = 0.0
        while await self._goes_on(check_again):
            step = await run_in_threadpool(next, steps, None)
            if step is None:
                return
            found, has_time = step
            for text in found:
                yield text
            if not has_time:
                continue
            idle = 0.0 if found else idle + POLL_SECONDS
            if idle >= PING_SECONDS:
                idle = 0.0
                yield KEEPALIVE_COMMENT
            await anyio.sleep(POLL_SECONDS)

    async def _goes_on(self, check_again: CheckAgain) -> bool:
        if self._leaving.is_set():
            return False
        try:
            await check_again()
        except Unauthenticated:
            return False
        except GatewayError:  # the database is away: nobody can tell whose token is revoked
            return True
        return True


class _Stream(EventSourceResponse):
    def __init__(self, streams: Streams, steps: Iterator[Step]) -> None:
        super().__init__(iter(()), headers={"cache-control": "no-cache"})
        self._streams = streams
        self._steps = steps

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        state = scope["state"]
        with self._streams.place(state["asker"]):
            self.body_iterator = self._streams.polled(self._steps, state["check_again"])
            await super().__call__(scope, receive, send)


def events_router(
    feed: Feed,
    webhooks: Webhooks,
    streams: Streams,
) -> APIRouter:
    """Return the paths of events."""
    paths = Paths()

    @paths("GET", "/events", "What becomes of jobs here, as it happens", _EVENTS, responses=_STREAM)
    def events(
        after: AfterNumber = None,
        follow: Annotated[
            Literal["1", "0"], Query(description="0: what there is by now, as JSON with `next`")
        ] = "1",
        names: _Names = (),
        job_id: Annotated[str, Query(description="only of one job")] = "",
        last_event_id: _CUT_OFF = "",
    ) -> Response:
        """``id`` is the event's number, ``event`` its name, ``data`` its JSON. Each comes at least once, in order.

        A client goes on where it was with ``after`` or ``Last-Event-ID``, also after a restart of the node.
        Without them a stream begins with what happens from now on, and says so in a first event ``connected``.
        """
        start = (
            index_of(last_event_id) if last_event_id else after
        )  # the header is newer than the address
        if start is None:
            start = feed.newest() if follow == "1" else 0
        page_after = partial(
            feed.after,
            names=names,
            job_id=job_id,
            limit=_MOST,
        )
        if follow == "0":
            page = page_after(start)
            return Reply({"events": [vars(e) for e in page.events], "next": page.next})

        def steps(number: int) -> Iterator[Step]:
            yield (
                [
                    format_sse_event(
                        data_str="{}",
                        event="connected",
                        id=str(number),
                    )
                ],
                False,
            )
            while True:
                page = page_after(number)
                number = page.next
                shown = ((json.dumps(vars(e), ensure_ascii=False), e) for e in page.events)
                found = [
                    format_sse_event(
                        data_str=data,
                        event=e.event,
                        id=str(e.id),
                    )
                    for data, e in shown
                ]
                yield found, len(found) < _MOST

        return streams.stream(steps(start))

    @paths("GET", "/events/webhooks", "How far each receiver of events has got", _WEBHOOKS)
    def receivers() -> Response:
        return Reply({"webhooks": webhooks.state()})

    return paths.router


def logs_router(logs: RunLogs, streams: Streams) -> APIRouter:
    """Return the path of a run's log."""
    paths = Paths()

    @paths(
        "GET",
        "/jobs/{job_id}/runs/{role}.{index}/{task}/log",
        "What a run here wrote, while it runs and afterwards",
        response_class=StreamingResponse,
        responses=content("text/plain", "text/event-stream"),
    )
    def log(
        job_id: str,
        role: str,
        index: str,
        task: str,
        stream: Annotated[
            Literal["", "stdout", "stderr"],
            Query(description="without it both, in the order found"),
        ] = "",
        level: Annotated[
            Level, Query(description="debug (all lines), info (also warnings) or error, and worse")
        ] = Level.DEBUG,
        tail: Annotated[
            Number | None,
            Query(description="only so many lines at the end, of what is there by now"),
        ] = None,
        follow: Annotated[
            bool, Query(description="1: server-sent events until the run is over")
        ] = False,
        attempt: Annotated[
            Number | None, Query(description="counted from 0; without it the newest attempt")
        ] = None,
        last_event_id: _CUT_OFF = "",
    ) -> Response:
        """The log as text, or as events: ``data`` is a line, ``event`` its stream, ``id`` its number.

        The last event is ``end``, with the run's status and exit code. ``task`` is a name in the flow or an id.
        """
        party = index_of(index)
        if party is None:
            raise NotFound(f"no party is called {role}.{index}", reason="RUN_UNKNOWN")
        run = logs.run(job_id, role, party, task, attempt)

        def read(start: int, length: int | None) -> Excerpt:
            return logs.read_run(
                job_id, run, (stream,) if stream else STREAMS, start, length, level
            )

        total = read(0, 0).total
        start = 0 if tail is None else max(0, total - tail)
        if not follow:
            return StreamingResponse(
                _text(read, start, total), media_type="text/plain; charset=utf-8"
            )

        def newest_state() -> Run:
            return logs.run(job_id, role, party, run.task_id, run.attempt)

        after = index_of(last_event_id)
        return streams.stream(_lines(read, newest_state, start if after is None else after + 1))

    return paths.router


def _text(
    read: Read,
    start: int,
    end: int,
) -> Iterator[bytes]:
    """Yield the lines between two numbers, some at a time."""
    while start < end:
        try:
            found = read(start, end - start)
        except GatewayError as error:  # too late for a status
            yield f"[{error.reason}: {error.message}]\n".encode()
            return
        yield "".join(f"{line.text}\n" for line in found.lines).encode()
        if not found.lines:
            return
        start = found.next


def _lines(
    read: Read,
    newest_state: Callable[[], Run],
    start: int,
) -> Iterator[Step]:
    """Yield the lines from a number on as they come, and at last the run's result."""
    incomplete = ""
    while True:
        try:
            found = read(start, None)
        except GatewayError as error:  # too late for a status
            yield (
                [format_sse_event(data_str=json.dumps({"reason": error.reason}), event="end")],
                False,
            )
            return
        shown = [
            format_sse_event(
                data_str=line.text.replace("\r", " "),
                event=line.stream,
                id=str(number),
            )
            for number, line in enumerate(found.lines, start)
        ]
        start = found.next
        if found.left_out:
            yield shown, False
            continue
        if found.incomplete != incomplete:
            incomplete = found.incomplete
            text = (
                f"the newest lines may be missing: {incomplete}"
                if incomplete
                else "all lines are here"
            )
            shown.append(format_sse_event(comment=text))
        run = newest_state()
        saved = run.collect.state in (
            CallState.SENT,
            CallState.OK,
        )  # or is: what is missing is there soon
        if run.over and (found.over or (found.incomplete and not saved)):
            yield (
                [*shown, format_sse_event(data_str=json.dumps(_end(run, found)), event="end")],
                False,
            )
            return
        yield shown, True


def _end(run: Run, found: Excerpt) -> dict[str, object]:
    return {
        "status": str(run.status),
        "exit_code": run.exit.code if run.exit else None,
        "failure": run.failure.as_dict() if run.failure else None,
        "lines": found.total,
        "incomplete": found.incomplete,
    }
