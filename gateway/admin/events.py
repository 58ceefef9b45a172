"""``/api/v1/events``: what becomes of jobs, as server-sent events or page by page."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query
from fastapi.responses import Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from gateway.admin.deps import answering, refusal
from gateway.domain.events import NAMES
from gateway.domain.problems import Problem, index_of
from gateway.errors import GatewayError, Invalid
from gateway.events.feed import Feed, Page
from gateway.events.webhooks import Webhooks
from gateway.ports import Limiters

LOOK_EVERY = 0.5
PING_EVERY = 15.0
MOST = 1000


@dataclass(frozen=True)
class EventParts:
    """What the paths are built of."""

    node: str
    feed: Feed
    webhooks: Webhooks
    limiters: Limiters


@dataclass(frozen=True)
class _Wanted:
    after: int
    names: tuple[str, ...]
    job_id: str
    follow: bool


def router(parts: EventParts) -> APIRouter:
    """Return the paths of events."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)

    @router.get(
        "/api/v1/events",
        summary="What becomes of jobs here, as it happens",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}, "application/json": {}}}},
    )
    async def events(
        after: Annotated[str, Query(description="go on behind this number; 0: from the first event kept")] = "",
        names: Annotated[str, Query(alias="events", description=f"only some of {', '.join(NAMES)}")] = "",
        job_id: Annotated[str, Query(description="only of one job")] = "",
        follow: Annotated[str, Query(description="0: what there is by now, as JSON with `next`")] = "1",
        last_event_id: Annotated[str, Header(description="sent by a client that was cut off")] = "",
    ) -> Any:
        """``id`` is the event's number, ``event`` its name, ``data`` its JSON. Each comes at least once, in order.

        A client goes on where it was with ``after`` or ``Last-Event-ID``, also after a restart of the node.
        Without them a stream begins with what happens from now on, and says so in a first event ``connected``.
        """
        try:
            wanted = await anyio.to_thread.run_sync(
                lambda: _wanted(parts, after, names, job_id, follow, last_event_id), limiter=parts.limiters.rest
            )
            if not wanted.follow:
                page = await _page(parts, wanted, wanted.after)
                body = {"events": [e.as_dict(parts.node) for e in page.events], "next": page.next}
                return Response(json.dumps(body, ensure_ascii=False), media_type="application/json")
        except GatewayError as error:
            return refusal(error)
        return EventSourceResponse(_stream(parts, wanted), headers={"cache-control": "no-cache"})

    @router.get("/api/v1/events/webhooks", summary="How far each receiver of events has got", response_model=None)
    async def webhooks() -> Any:
        return await run(lambda: {"webhooks": parts.webhooks.state()})

    return router


def _wanted(parts: EventParts, after: str, names: str, job_id: str, follow: str, last: str) -> _Wanted:
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    problems = []
    if after and index_of(after) is None:
        problems.append(Problem("after", "must be the number of an event", after))
    if follow not in ("0", "1"):
        problems.append(Problem("follow", "must be 1 or 0", follow))
    problems += [Problem("events", f"must be among {', '.join(NAMES)}", n) for n in chosen if n not in NAMES]
    if problems:
        raise Invalid(problems)
    start = index_of(last) if last else index_of(after)  # the browser's own header is newer than the address
    if start is None:
        start = parts.feed.newest() if follow == "1" else 0
    return _Wanted(start, chosen, job_id, follow == "1")


async def _page(parts: EventParts, wanted: _Wanted, number: int) -> Page:
    return await anyio.to_thread.run_sync(
        lambda: parts.feed.after(number, wanted.names, wanted.job_id, MOST), limiter=parts.limiters.rest
    )


async def _stream(parts: EventParts, wanted: _Wanted) -> AsyncIterator[bytes]:
    number, idle = wanted.after, 0.0
    yield format_sse_event(data_str="{}", event="connected", id=str(number))
    while True:
        page = await _page(parts, wanted, number)
        for event in page.events:
            data = json.dumps(event.as_dict(parts.node), ensure_ascii=False)
            yield format_sse_event(data_str=data, event=event.name, id=str(event.id))
        number = page.next
        if len(page.events) == MOST:
            continue
        idle = 0.0 if page.events else idle + LOOK_EVERY
        if idle >= PING_EVERY:
            idle = 0.0
            yield KEEPALIVE_COMMENT
        await anyio.sleep(LOOK_EVERY)
