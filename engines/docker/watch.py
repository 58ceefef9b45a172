"""Follows the Docker daemon's events, and resumes after the daemon was away."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from docker import APIClient
from docker.errors import DockerException
from docker.types import CancellableStream
from urllib3.exceptions import HTTPError

from engines.base import EngineError
from engines.watch import Subscription

log = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0
_CLOSE_TIMEOUT = 5.0


class EventWatch:
    """Reports each exit, after every connection first all runs that have exited, so that none is missed."""

    def __init__(
        self,
        client: Callable[[], APIClient],
        filters: Mapping[str, Any],
        over: Callable[[], Iterable[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._filters = {**filters, "type": "container", "event": "die"}
        self._over = over
        self._on_away = on_away
        self._subscription = Subscription(on_exit)  # a slow one must not block the stream: the daemon drops events
        self._lock = threading.Lock()
        self._stream: CancellableStream[Any] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; waits a moment for a call in progress."""
        self._closed.set()
        self._end_stream()
        self._subscription.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._closed.is_set():
            try:
                self._follow()
                wait = _FIRST_WAIT
                if not self._closed.is_set():
                    self._away()
            except (EngineError, DockerException, HTTPError, OSError, ValueError, LookupError, TypeError) as error:
                if self._closed.is_set():
                    return
                log.warning("lost the event stream of the container engine: %r", error)
                self._away()
                wait = min(wait * 2, _LONGEST_WAIT)
            finally:
                self._end_stream()
            self._closed.wait(wait)

    def _away(self) -> None:
        if self._on_away is not None:
            try:
                self._on_away("")
            except Exception:
                log.exception("the subscriber failed on the engine's absence")

    def _follow(self) -> None:
        """Report the runs that have exited, then those that exit, until the stream ends."""
        client = self._client()
        now = datetime.fromisoformat(client.info()["SystemTime"][:19] + "+00:00")
        stream = client.events(decode=True, since=int(now.timestamp()), filters=self._filters)
        with self._lock:
            self._stream = stream
        if self._closed.is_set():  # closed before there was a stream to close
            return
        for name in self._over():
            self._subscription.report(name)
        for event in stream:
            if self._closed.is_set():
                return
            self._subscription.report(event["Actor"]["Attributes"]["name"])

    def _end_stream(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except (DockerException, OSError, AttributeError):  # it has ended already
                log.debug("the stream of events was closed before")
