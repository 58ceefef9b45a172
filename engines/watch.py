"""Tells a subscriber of exits, from a thread of its own, so that a slow or failing one disturbs nobody else."""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""seconds that closing waits for a call that is under way"""


class Subscription:
    """One subscriber: names put in by `tell` come out as calls, one after the other."""

    def __init__(self, on_exit: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._ended = ended
        self._names: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def tell(self, name: str) -> None:
        """Put in a name; returns at once."""
        self._names.put(name)

    def close(self) -> None:
        """End it; waits a moment for a call that is under way."""
        self._closed.set()
        self._names.put(None)
        self._ended()
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            name = self._names.get()
            if name is None or self._closed.is_set():
                return
            call(self._on_exit, name)


class Subscribers:
    """All who want to be told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: set[Subscription] = set()

    def add(self, on_exit: Callable[[str], None]) -> Subscription:
        """Begin a subscription; it leaves by itself when it is closed."""
        subscription = Subscription(on_exit, ended=lambda: self._drop(subscription))
        with self._lock:
            self._members.add(subscription)
        return subscription

    def tell(self, name: str) -> None:
        """Tell everybody of a name; returns at once."""
        with self._lock:
            members = tuple(self._members)
        for subscription in members:
            subscription.tell(name)

    def close(self) -> None:
        """End every subscription."""
        with self._lock:
            members = tuple(self._members)
        for subscription in members:
            subscription.close()

    def _drop(self, subscription: Subscription) -> None:
        with self._lock:
            self._members.discard(subscription)


def call(on_exit: Callable[[str], None], name: str) -> None:
    """Tell the subscriber; its failure is logged, the watch goes on."""
    try:
        on_exit(name)
    except Exception:
        log.exception("the subscriber failed on the exit of %s", name)
