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

    def __init__(self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None) -> None:
        self._on_exit = on_exit
        self._on_away = on_away
        self._names: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def report(self, name: str) -> None:
        """Queue a name."""
        self._names.put(name)

    def away(self) -> None:
        """Say that the engine does not answer."""
        if self._on_away is not None:
            try:
                self._on_away("")
            except Exception:
                log.exception("the subscriber failed on the engine's absence")

    def close(self) -> None:
        """End it; waits a moment for a call in progress."""
        self.closed.set()
        self._names.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (name := self._names.get()) is not None and not self.closed.is_set():
            try:
                self._on_exit(name)
            except Exception:
                log.exception("the subscriber failed on the exit of %s", name)


class Subscribers:
    """All subscribers."""

    def __init__(self) -> None:
        self._members: list[Subscription] = []

    def add(self, on_exit: Callable[[str], None]) -> Subscription:
        """Begin a subscription."""
        self._members.append(Subscription(on_exit))
        return self._members[-1]

    def report(self, name: str) -> None:
        """Queue a name for every subscriber."""
        for member in self._members:
            member.report(name)

    def close(self) -> None:
        """End every subscription."""
        for member in self._members:
            member.close()
