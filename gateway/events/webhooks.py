"""Delivers the events of jobs to other programs.

A webhook gets every event at least once, in order. Its position is stored in the database and moves
only after a 2xx response. If a receiver fails, the same event is sent again after growing pauses,
and the receiver's later events wait.
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

from gateway.config.schema.events import WebhookSettings
from gateway.config.values import without_password
from gateway.events.feed import Event, Feed
from gateway.ports import Clock
from gateway.runtime.client_proxies import client_proxy
from gateway.store import events as stored
from gateway.store.database import require_no_transaction
from gateway.store.store import Store
from route_table.proxies import DefaultProxy, ProxyFailed

log = structlog.get_logger(__name__)

# For this long, only one gateway delivers to a receiver; it extends the lease while it delivers.
# After its death, another gateway on the same database continues when the lease is over.
LEASE = timedelta(seconds=60)
_TIMEOUT = httpx.Timeout(10.0, connect=3.0)  # seconds
_STOP_TIMEOUT = 12.0  # seconds to wait for each thread: longer than a request's read may take
_EVENTS_PER_READ = 100
_OTHER_HOLDER_PAUSE = 5.0  # seconds between two looks while another gateway delivers
_MAX_DOUBLINGS = 20  # doublings of the pause, so that the computed number stays small
# Chunks of a response that are read: enough to reach the end of a short response, so that its
# connection can be used again.
_CHUNKS_READ = 2


@dataclass(frozen=True)
class Pace:
    """The pauses of deliveries, in seconds."""

    look: float = 0.5  # between two looks for new events
    first: float = 1.0  # after the first failed try
    longest: float = 60.0  # the limit of the growing pauses after failed tries


@dataclass(frozen=True)
class _Trouble:
    """The failed tries to deliver a receiver's next event."""

    tries: int = 0
    cause: str = ""  # cause of the last failure


def signature(
    secret: str,
    timestamp: str,
    body: bytes,
) -> str:
    """Return the value of the header ``x-bfia-signature``.

    It has the HMAC-SHA256 of the timestamp, a dot, and the body.
    """
    content = timestamp.encode() + b"." + body
    digest = hmac.new(secret.encode(), content, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


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
        *,
        proxy: DefaultProxy = DefaultProxy(),
    ) -> None:
        """``holder``: the name that tells this gateway from the others on the database."""
        self._hooks = hooks
        self._store = store
        self._feed = feed
        self._holder = holder
        self._clock = clock
        self._pace = pace
        self._proxy = proxy
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trouble: dict[str, _Trouble] = {}  # by the key (`_key`) of the receiver

    def start(self) -> None:
        """Start to deliver; a new receiver gets the events from now on."""
        newest = self._feed.newest()
        for hook in self._hooks:
            stored.add_cursor(self._store, _key(hook), newest)
            thread = threading.Thread(
                target=self._work,
                args=(hook,),
                name="webhook",
                daemon=True,
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the deliveries under way."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=_STOP_TIMEOUT)

    def state(self) -> list[dict[str, Any]]:
        """Return the position of each receiver, and the failed tries to deliver its next event."""
        newest = self._feed.newest()
        return [self._state_of(hook, newest) for hook in self._hooks]

    def _state_of(self, hook: WebhookSettings, newest: int) -> dict[str, Any]:
        """Return the position of one receiver, and the failed tries to deliver its next event."""
        trouble = self._trouble_of(hook)
        number = stored.cursor(self._store, _key(hook))
        if number is None:
            number = newest
        return {
            "url": without_password(hook.url),
            "events": hook.events,
            "signed": bool(hook.secret),
            "number": number,  # of the last entry that was delivered or skipped
            # how many entries follow, whether they have events for the receiver or not
            "behind": max(0, newest - number),
            "tries": trouble.tries,
            "cause": trouble.cause,
        }

    def _trouble_of(self, hook: WebhookSettings) -> _Trouble:
        """Return the failed tries of a receiver's next event: zero tries without a failure."""
        return self._trouble.get(_key(hook), _Trouble())

    # ------------------------------------------------------------ deliveries

    def _work(self, hook: WebhookSettings) -> None:
        """Deliver events to one receiver until the gateway stops; the function of its thread."""
        while not self._stopping.is_set():
            try:
                with self._client(hook) as http:
                    self._deliver_until_trouble(hook, http)
            except ProxyFailed as error:
                log.warning("the proxy cannot be used", cause=str(error))
                self._stopping.wait(self._pace.longest)

    def _client(self, hook: WebhookSettings) -> httpx.Client:
        """Return the HTTP client for one receiver.

        Raises `ProxyFailed` if the password for the proxy on the way cannot be read.
        """
        return httpx.Client(
            timeout=_TIMEOUT,
            proxy=client_proxy(self._proxy.on_way_to(hook.url)),
            trust_env=False,
            follow_redirects=False,
        )

    def _deliver_until_trouble(self, hook: WebhookSettings, http: httpx.Client) -> None:
        """Deliver events to one receiver until the gateway stops or a try fails.

        The next client reads the password for the proxy again, which may have been replaced.
        """
        while not self._stopping.is_set():
            try:
                pause = self.deliver_some(hook, http)
            except Exception:
                log.exception("delivering events failed", receiver=without_password(hook.url))
                pause = self._pace.longest
            self._stopping.wait(pause)
            if self._trouble_of(hook).tries:
                return

    def deliver_some(self, hook: WebhookSettings, http: httpx.Client) -> float:
        """Deliver the next events; return the pause before the next call in seconds."""
        if not self._hold(hook):
            return min(self._pace.longest, _OTHER_HOLDER_PAUSE)
        number = stored.cursor(self._store, _key(hook))
        if number is None:  # the row of the position was deleted since `_hold`
            return self._pace.look
        page = self._feed.after(number, hook.events, limit=_EVENTS_PER_READ)
        for event in page.events:
            cause = self._send(hook, event, http)
            if cause:
                return self._failed(hook, event, cause)
            self._trouble.pop(_key(hook), None)
            if not self._move_to(hook, event.id) or not self._may_continue(hook):
                return self._pace.look
            number = event.id
        if page.next > number:  # later entries have no event for this receiver
            self._move_to(hook, page.next)
        if len(page.events) == _EVENTS_PER_READ:  # perhaps there are more events already
            return 0.0
        return self._pace.look

    def _move_to(self, hook: WebhookSettings, number: int) -> bool:
        """Store a receiver's position; return False if another gateway has the lease by now."""
        return stored.move_cursor(self._store, _key(hook), self._holder, number)

    def _may_continue(self, hook: WebhookSettings) -> bool:
        """Return whether this gateway does not stop and still has the receiver's lease."""
        return not self._stopping.is_set() and self._hold(hook)

    def _hold(self, hook: WebhookSettings) -> bool:
        """Take or extend the lease of a receiver; return False if another gateway has it."""
        now = self._clock()
        return stored.hold_cursor(
            self._store,
            _key(hook),
            self._holder,
            now.timestamp(),
            (now + LEASE).timestamp(),
        )

    def _send(
        self,
        hook: WebhookSettings,
        event: Event,
        http: httpx.Client,
    ) -> str:
        """Send one event; return the cause of a failure, empty for a success."""
        require_no_transaction()
        body = json.dumps(vars(event), ensure_ascii=False).encode()
        headers = self._headers(hook, event, body)
        try:
            request = http.stream(
                "POST",
                hook.url,
                content=body,
                headers=headers,
            )
            # The status is known at the start of the block: later errors do not matter.
            with request as response, suppress(httpx.HTTPError):
                for _ in islice(response.iter_raw(), _CHUNKS_READ):
                    pass
        except httpx.HTTPError as error:
            return f"{type(error).__name__} {error}".strip()
        if response.is_success:
            return ""
        return f"HTTP {response.status_code}"

    def _headers(
        self,
        hook: WebhookSettings,
        event: Event,
        body: bytes,
    ) -> dict[str, str]:
        """Return the headers of a request with an event; signed if the receiver has a secret."""
        timestamp = str(int(self._clock().timestamp()))
        headers = {
            "content-type": "application/json",
            "x-bfia-event": event.event,
            "x-bfia-event-id": str(event.id),
            "x-bfia-timestamp": timestamp,
        }
        if hook.secret:
            headers["x-bfia-signature"] = signature(hook.secret, timestamp, body)
        return headers

    def _failed(
        self,
        hook: WebhookSettings,
        event: Event,
        cause: str,
    ) -> float:
        """Note a failed try; return the pause before the next one in seconds."""
        tries = self._trouble_of(hook).tries + 1
        self._trouble[_key(hook)] = _Trouble(tries, cause)
        log.warning(
            "an event was not taken",
            receiver=without_password(hook.url),
            event_id=event.id,
            tries=tries,
            cause=cause,
        )
        doublings = min(tries - 1, _MAX_DOUBLINGS)
        pause = min(self._pace.first * 2.0**doublings, self._pace.longest)
        return pause * random.uniform(0.8, 1.0)  # so that receivers are not all tried together


def _key(hook: WebhookSettings) -> str:
    """Return the key of a receiver's position: a digest of the URL, which may contain a secret."""
    return hashlib.sha256(hook.url.encode()).hexdigest()
