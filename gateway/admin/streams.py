"""``/api/v1/events`` and ``/api/v1/jobs/…/log``: events of jobs and logs of runs, as one response
or as a stream.

Streams are server-sent events; a client that was cut off continues by ``Last-Event-ID``.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Annotated, Literal, NamedTuple

import anyio
from fastapi import Depends, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from engines.logs import STREAMS
from gateway.admin.deps import (
    AfterNumber,
    Number,
    Reply,
    among,
    api_router,
    content,
    parse_number,
    service,
)
from gateway.admin.responses import node as responses
from gateway.auth import Unauthenticated
from gateway.data.log_levels import Level
from gateway.data.logs import Excerpt, LogLine, RunLogs
from gateway.domain.events import NAMES
from gateway.domain.problems import index_of
from gateway.domain.run import Run
from gateway.domain.spec import CallState
from gateway.errors import GatewayError, NotFound, TooManyStreams
from gateway.events.feed import Feed, Page
from gateway.events.webhooks import Webhooks

POLL_SECONDS = 0.5  # between two looks at a source without news
PING_SECONDS = 15.0  # without news until a comment is sent, which keeps the connection open
PAGE_EVENTS = 1000  # events of one page
MOST_STREAMS = 20  # streams that one token may have open at the same time
_LastEventId = Annotated[str, Header(description="sent by a client that was cut off")]
_STREAM = content("text/event-stream")
_Names = Annotated[
    Sequence[str],
    among(NAMES),
    Query(alias="events", description=f"only some of {', '.join(NAMES)}"),
]

# Reads lines of a log: takes the number of the first and how many, None for all.
Read = Callable[[int, int | None], Excerpt]
# Raises `Unauthenticated` when a request's token is no longer valid.
CheckAgain = Callable[[], Awaitable[None]]


class Poll(NamedTuple):
    """The result of one look at a source that is followed."""

    texts: list[bytes]  # server-sent events
    may_wait: bool  # True: pause before the next look; False: there may be more already


class Streams:
    """The open streams: a limited number per token, each until the token is revoked or the node
    stops.
    """

    def __init__(self, leaving: Event) -> None:
        """``leaving`` is set when the node stops."""
        self._leaving = leaving
        self._open: Counter[str] = Counter()

    def stream(self, polls: Iterator[Poll]) -> Response:
        """Return the response that sends the texts of each poll until the source ends."""
        return _Stream(self, polls)

    @contextmanager
    def counted(self, asker: str) -> Iterator[None]:
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

    async def texts(
        self,
        polls: Iterator[Poll],
        check_again: CheckAgain,
    ) -> AsyncIterator[bytes]:
        """Yield the texts of each poll, and a comment every now and then if there are none."""
        idle = 0.0
        while await self._goes_on(check_again):
            poll = await run_in_threadpool(next, polls, None)
            if poll is None:
                return
            for text in poll.texts:
                yield text
            if not poll.may_wait:
                continue
            idle += POLL_SECONDS
            if poll.texts:
                idle = 0.0
            if idle >= PING_SECONDS:
                idle = 0.0
                yield KEEPALIVE_COMMENT
            await anyio.sleep(POLL_SECONDS)

    async def _goes_on(self, check_again: CheckAgain) -> bool:
        """Return whether the node goes on and the stream's token is still valid."""
        if self._leaving.is_set():
            return False
        try:
            await check_again()
        except Unauthenticated:
            return False
        except GatewayError:  # the database is away; the token may still be valid
            return True
        return True


class _Stream(EventSourceResponse):
    """The response of one stream.

    The stream is counted in `__call__`, which runs on the event loop for as long as the connection
    is open. The handlers run in threads, and return before the stream begins.
    """

    def __init__(self, streams: Streams, polls: Iterator[Poll]) -> None:
        # The body is set in `__call__`, which knows the request.
        super().__init__(iter(()), headers={"cache-control": "no-cache"})
        self._streams = streams
        self._polls = polls

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        state = scope["state"]
        with self._streams.counted(state["asker"]):
            self.body_iterator = self._streams.texts(self._polls, state["check_again"])
            await super().__call__(scope, receive, send)


_Feed = Annotated[Feed, Depends(service(Feed))]
_Webhooks = Annotated[Webhooks, Depends(service(Webhooks))]
_Logs = Annotated[RunLogs, Depends(service(RunLogs))]
_Streams = Annotated[Streams, Depends(service(Streams))]
events_router = api_router()
logs_router = api_router()


@events_router.get(
    "/events",
    summary="What becomes of jobs here, as it happens",
    response_model=responses.Events,
    responses=_STREAM,
)
def events(
    feed: _Feed,
    streams: _Streams,
    after: AfterNumber = None,
    follow: Annotated[
        Literal["1", "0"], Query(description="0: only the events so far, as JSON with `next`")
    ] = "1",
    names: _Names = (),
    job_id: Annotated[str, Query(description="only of one job")] = "",
    last_event_id: _LastEventId = "",
) -> Response:
    """``id`` is the event's number, ``event`` its name, ``data`` its JSON. Events are delivered at
    least once, in order.

    A client resumes with ``after`` or ``Last-Event-ID``, even after a restart of the node. Without
    them the stream contains only events from now on. Every stream begins with ``connected``, which
    is not about a job; its ``id`` is the number after which the events follow.
    """
    start = after
    if last_event_id:
        start = parse_number(last_event_id)  # newer than the parameter, which stays in the URL
    if start is None:
        start = 0
        if follow == "1":
            start = feed.newest()
    page_after = partial(
        feed.after,
        names=names,
        job_id=job_id,
        limit=PAGE_EVENTS,
    )
    if follow == "0":
        page = page_after(start)
        return Reply({"events": [vars(event) for event in page.events], "next": page.next})
    return streams.stream(_follow_events(page_after, start))


@events_router.get(
    "/events/webhooks",
    summary="How far each receiver of events has got",
    response_model=responses.Webhooks,
)
def receivers(webhooks: _Webhooks) -> Response:
    return Reply({"webhooks": webhooks.state()})


@logs_router.get(
    "/jobs/{job_id}/runs/{role}.{index}/{task}/log",
    summary="What a run here wrote, while it runs and afterwards",
    response_class=StreamingResponse,
    responses=content("text/plain", "text/event-stream"),
)
def log(
    logs: _Logs,
    streams: _Streams,
    job_id: str,
    role: str,
    index: str,
    task: str,
    stream: Annotated[
        Literal["", "stdout", "stderr"],
        Query(description="only lines of this stream; without it lines of both"),
    ] = "",
    level: Annotated[
        Level,
        Query(description="lowest level of the lines: debug (all), info (with warnings) or error"),
    ] = Level.DEBUG,
    tail: Annotated[
        Number | None,
        Query(description="number of the last lines; with `follow` also all lines from now on"),
    ] = None,
    follow: Annotated[
        bool, Query(description="1: server-sent events until the run is over")
    ] = False,
    attempt: Annotated[
        Number | None, Query(description="counted from 0; without it the newest attempt")
    ] = None,
    last_event_id: _LastEventId = "",
) -> Response:
    """The log as text, or as events: ``data`` is a line, ``event`` its stream, ``id`` its number.

    The last event is ``end``, with the run's status and exit code. ``task`` is a name in the flow
    or an id.
    """
    party_index = index_of(index)
    if party_index is None:
        raise NotFound(f"no party is called {role}.{index}", reason="RUN_UNKNOWN")
    run = logs.run(job_id, role, party_index, task, attempt)
    wanted_streams: Sequence[str] = STREAMS
    if stream:
        wanted_streams = (stream,)

    def read(start: int, length: int | None) -> Excerpt:
        return logs.read_run(job_id, run, wanted_streams, start, length, level)

    total = read(0, 0).total
    start = 0
    if tail is not None:
        start = max(0, total - tail)
    if not follow:
        return StreamingResponse(
            log_text(read, start, total), media_type="text/plain; charset=utf-8"
        )
    newest_state = partial(logs.run, job_id, role, party_index, run.task_id, run.attempt)
    last_seen = parse_number(last_event_id)
    if last_seen is not None:
        start = last_seen + 1
    return streams.stream(follow_lines(read, newest_state, start))


def _follow_events(
    page_after: Callable[[int], Page],
    number: int,
) -> Iterator[Poll]:
    """Yield ``connected``, then the events after a number as they happen."""
    connected = format_sse_event(
        data_str="{}",
        event="connected",
        id=str(number),
    )
    yield Poll([connected], may_wait=False)
    while True:
        page = page_after(number)
        number = page.next
        texts = [
            format_sse_event(
                data_str=json.dumps(vars(event), ensure_ascii=False),
                event=event.event,
                id=str(event.id),
            )
            for event in page.events
        ]
        yield Poll(texts, may_wait=len(texts) < PAGE_EVENTS)


def log_text(read: Read, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines from number ``start`` to before ``end``, some at a time."""
    while start < end:
        try:
            excerpt = read(start, end - start)
        except GatewayError as error:  # too late for an HTTP status: the response has begun
            yield f"[{error.reason}: {error.message}]\n".encode()
            return
        yield "".join(f"{line.text}\n" for line in excerpt.lines).encode()
        if not excerpt.lines:
            return
        start = excerpt.next


def follow_lines(
    read: Read,
    newest_state: Callable[[], Run],
    start: int,
) -> Iterator[Poll]:
    """Yield the lines from a number on as they come, and in the end the run's result."""
    incomplete = ""  # the last reason why lines may be missing; "": none may be missing
    while True:
        try:
            excerpt = read(start, None)
        except GatewayError as error:  # too late for an HTTP status: the response has begun
            yield Poll(
                [_end_event({"reason": error.reason})],
                may_wait=False,
            )
            return
        texts = [_line_event(number, line) for number, line in enumerate(excerpt.lines, start)]
        start = excerpt.next
        if excerpt.left_out:  # more lines than one response holds: read on
            yield Poll(texts, may_wait=False)
            continue
        if excerpt.incomplete != incomplete:
            incomplete = excerpt.incomplete
            texts.append(_incomplete_comment(incomplete))
        run = newest_state()
        if _is_complete(run, excerpt):
            yield Poll([*texts, _end_event(_result(run, excerpt))], may_wait=False)
            return
        yield Poll(texts, may_wait=True)


def _is_complete(run: Run, excerpt: Excerpt) -> bool:
    """Return whether no further line of a run will come."""
    if not run.over:
        return False
    # The missing lines come when the log is saved (`collect`). The stream waits for them only if
    # the saving has begun; otherwise it ends without them.
    is_saved_or_saving = run.collect.state in (CallState.SENT, CallState.OK)
    return excerpt.over or bool(excerpt.incomplete and not is_saved_or_saving)


def _line_event(number: int, line: LogLine) -> bytes:
    return format_sse_event(
        data_str=line.text.replace("\r", " "),
        event=line.stream,
        id=str(number),
    )


def _incomplete_comment(incomplete: str) -> bytes:
    text = "all lines are here"
    if incomplete:
        text = f"the newest lines may be missing: {incomplete}"
    return format_sse_event(comment=text)


def _end_event(result: Mapping[str, object]) -> bytes:
    return format_sse_event(data_str=json.dumps(result), event="end")


def _result(run: Run, excerpt: Excerpt) -> dict[str, object]:
    """Return the data of the last event of a log: how the run ended, and its number of lines."""
    exit_code = None
    if run.exit is not None:
        exit_code = run.exit.code
    failure = None
    if run.failure is not None:
        failure = run.failure.as_dict()
    return {
        "status": str(run.status),
        "exit_code": exit_code,
        "failure": failure,
        "lines": excerpt.total,
        "incomplete": excerpt.incomplete,
    }
