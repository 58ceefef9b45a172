"""Delivers the events of jobs to other programs.

A webhook gets every event at least once, one after the other: how far it has got is kept in the database, and is
moved only by its 2xx status. One that does not respond is tried again, with growing pauses; events wait for it.
"""

import hashlib
import hmac
import json
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

import httpx
import structlog

from gateway.config.schema import WebhookSettings
from gateway.config.values import without_password
from gateway.events.feed import Event, Feed
from gateway.ports import Clock
from gateway.store import events as stored
from gateway.store.database import outside_transaction
from gateway.store.store import Store

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=60)
"""after a gateway's death another on the same database continues its deliveries"""
_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_AT_ONCE = 100
"""events that a delivery reads together"""


@dataclass(frozen=True)
class Pace:
    """Pauses in seconds."""

    look: float = 0.5
    first: float = 1.0
    longest: float = 60.0


def signature(
    secret: str,
    timestamp: str,
    body: bytes,
) -> str:
    """Return what the header ``x-bfia-signature`` says: HMAC-SHA256 over timestamp, a dot, and the body."""
    return (
        "sha256="
        + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    )


class Webhooks:
    """Delivers events, one thread per receiver."""

    def __init__(
        self,
        hooks: Sequence[WebhookSettings],
        store: Store,
        feed: Feed,
        holder: str,
        clock: Clock,
        pace: Pace = Pace(),
    ) -> None:
        """``holder`` names this gateway among those on one database."""
        self._hooks = hooks
        self._store = store
        self._feed = feed
        self._holder = holder
        self._clock = clock
        self._pace = pace
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trouble: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        """Begin to deliver; a receiver that is new gets what happens from now on."""
        newest = self._feed.newest()
        for hook in self._hooks:
            stored.add_cursor(self._store, _key(hook), newest)
            self._threads.append(
                threading.Thread(
                    target=self._work,
                    args=(hook,),
                    name="webhook",
                    daemon=True,
                )
            )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the delivery in hand."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=12)

    def state(self) -> list[dict[str, Any]]:
        """Return of each receiver how far it has got, and what keeps it."""
        newest = self._feed.newest()
        found = []
        for hook in self._hooks:
            cursor = stored.cursor(self._store, _key(hook))
            tries, cause = self._trouble.get(_key(hook), (0, ""))
            number = newest if cursor is None else cursor
            found.append(
                {
                    "url": without_password(hook.url),
                    "events": hook.events,
                    "signed": bool(hook.secret),
                    "number": number,
                    "behind": max(0, newest - number),
                    "tries": tries,
                    "cause": cause,
                }
            )
        return found

    def _work(self, hook: WebhookSettings) -> None:
        with httpx.Client(
            timeout=_TIMEOUT,
            trust_env=False,
            follow_redirects=False,
        ) as http:
            while not self._stopping.is_set():
                try:
                    pause = self._deliver_some(hook, http)
                except Exception:
                    log.exception("delivering events failed", receiver=without_password(hook.url))
                    pause = self._pace.longest
                self._stopping.wait(pause)

    def _deliver_some(self, hook: WebhookSettings, http: httpx.Client) -> float:
        """Deliver what there is; return how long to wait before the next look."""
        if not self._hold(hook):
            return min(self._pace.longest, 5.0)
        cursor = stored.cursor(self._store, _key(hook))
        if cursor is None:
            return self._pace.look
        page = self._feed.after(cursor, hook.events, limit=_AT_ONCE)
        for event in page.events:
            cause = self._send(hook, event, http)
            if cause:
                return self._failed(hook, event, cause)
            self._trouble.pop(_key(hook), None)
            moved = stored.move_cursor(self._store, _key(hook), self._holder, event.id)
            if not moved or self._stopping.is_set() or not self._hold(hook):
                return self._pace.look
        if page.next > (page.events[-1].id if page.events else cursor):
            stored.move_cursor(self._store, _key(hook), self._holder, page.next)
        return 0.0 if len(page.events) == _AT_ONCE else self._pace.look

    def _hold(self, hook: WebhookSettings) -> bool:
        now = self._clock()
        return stored.hold_cursor(
            self._store, _key(hook), self._holder, now.timestamp(), (now + LEASE).timestamp()
        )

    def _send(
        self,
        hook: WebhookSettings,
        event: Event,
        http: httpx.Client,
    ) -> str:
        """Make one request; return why it counts as not taken, or nothing."""
        outside_transaction()
        body = json.dumps(vars(event), ensure_ascii=False).encode()
        timestamp = str(int(self._clock().timestamp()))
        headers = {
            "content-type": "application/json",
            "x-bfia-event": event.event,
            "x-bfia-event-id": str(event.id),
            "x-bfia-timestamp": timestamp,
        }
        if hook.secret:
            headers["x-bfia-signature"] = signature(hook.secret, timestamp, body)
        try:
            answer = http.stream("POST", hook.url, content=body, headers=headers)
            with answer as response, suppress(httpx.HTTPError):  # once the status is known
                for _ in islice(
                    response.iter_raw(), 2
                ):  # all of a short one: the connection is used again
                    pass
        except httpx.HTTPError as error:
            return f"{type(error).__name__} {error}".strip()
        return "" if response.is_success else f"HTTP {response.status_code}"

    def _failed(
        self,
        hook: WebhookSettings,
        event: Event,
        cause: str,
    ) -> float:
        tries = self._trouble.get(_key(hook), (0, ""))[0] + 1
        self._trouble[_key(hook)] = (tries, cause)
        receiver = without_password(hook.url)
        log.warning(
            "an event was not taken",
            receiver=receiver,
            event_id=event.id,
            tries=tries,
            cause=cause,
        )
        pause = min(self._pace.first * 2.0 ** min(tries - 1, 20), self._pace.longest)
        return pause * random.uniform(0.8, 1.0)


def _key(hook: WebhookSettings) -> str:
    """Return what its place in the sequence is kept under: a digest of the URL, which may hold a secret."""
    return hashlib.sha256(hook.url.encode()).hexdigest()
