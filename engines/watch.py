"""Reports exits to subscribers, each in a thread of its own, so that a slow or failing one affects no other."""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0
"""seconds that closing waits for a call in progress"""


class Subscription:
    """One subscriber, called with one name after the other."""

    def __init__(self, on_exit: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._ended = ended
        self._names: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def report(self, name: str) -> None:
        """Queue a name."""
        self._names.put(name)

    def close(self) -> None:
        """End it; waits a moment for a call in progress."""
        self._closed.set()
        self._names.put(None)
        self._ended()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while True:
            name = self._names.get()
            if name is None or self._closed.is_set():
                return
            try:
                self._on_exit(name)
            except Exception:
                log.exception("the subscriber failed on the exit of %s", name)


class Subscribers:
    """All subscribers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: set[Subscription] = set()

    def add(self, on_exit: Callable[[str], None]) -> Subscription:
        """Begin a subscription."""
        subscription = Subscription(on_exit, ended=lambda: self._drop(subscription))
        with self._lock:
            self._members.add(subscription)
        return subscription

    def report(self, name: str) -> None:
        """Queue a name for every subscriber."""
        with self._lock:
            members = tuple(self._members)
        for subscription in members:
            subscription.report(name)

    def close(self) -> None:
        """End every subscription."""
        with self._lock:
            members = tuple(self._members)
        for subscription in members:
            subscription.close()

    def _drop(self, subscription: Subscription) -> None:
        with self._lock:
            self._members.discard(subscription)
