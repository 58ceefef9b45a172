"""``/api/v1/events``: what becomes of jobs, as server-sent events or page by page."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from gateway.admin.deps import api_router
from gateway.admin.schemas import Events, Webhooks
from gateway.domain.events import NAMES
from gateway.domain.problems import Problem, index_of
from gateway.errors import Invalid
from gateway.events.feed import Feed
from gateway.events.feed import Page as EventPage
from gateway.events.webhooks import Webhooks as Receivers

POLL_SECONDS = 0.5
PING_SECONDS = 15.0
_MOST = 1000
"""events read at the same time"""


@dataclass(frozen=True)
class _Query:
    after: int
    names: tuple[str, ...]
    job_id: str
    follow: bool


def router(node: str, feed: Feed, webhooks: Receivers) -> APIRouter:
    """Return the paths of events."""
    router = api_router()

    @router.get(
        "/events",
        summary="What becomes of jobs here, as it happens",
        response_model=Events,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    def events(
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
        query = _query(feed, after, names, job_id, follow, last_event_id)
        if query.follow:
            return EventSourceResponse(_stream(node, feed, query), headers={"cache-control": "no-cache"})
        page = _page(feed, query, query.after)
        return JSONResponse({"events": [e.as_dict(node) for e in page.events], "next": page.next})

    @router.get("/events/webhooks", summary="How far each receiver of events has got", response_model=Webhooks)
    def receivers() -> Any:
        return {"webhooks": webhooks.state()}

    return router


def _query(feed: Feed, after: str, names: str, job_id: str, follow: str, last: str) -> _Query:
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
        start = feed.newest() if follow == "1" else 0
    return _Query(start, chosen, job_id, follow == "1")


def _page(feed: Feed, query: _Query, number: int) -> EventPage:
    return feed.after(number, query.names, query.job_id, _MOST)


async def _stream(node: str, feed: Feed, query: _Query) -> AsyncIterator[bytes]:
    number, idle = query.after, 0.0
    yield format_sse_event(data_str="{}", event="connected", id=str(number))
    while True:
        page = await run_in_threadpool(_page, feed, query, number)
        for event in page.events:
            data = json.dumps(event.as_dict(node), ensure_ascii=False)
            yield format_sse_event(data_str=data, event=event.name, id=str(event.id))
        number = page.next
        if len(page.events) == _MOST:
            continue
        idle = 0.0 if page.events else idle + POLL_SECONDS
        if idle >= PING_SECONDS:
            idle = 0.0
            yield KEEPALIVE_COMMENT
        await anyio.sleep(POLL_SECONDS)
