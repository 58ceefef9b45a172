"""Reports exits to subscribers."""

import logging
import threading
import time
from collections.abc import Callable

from engines.base import Engine, EngineDown, EngineError, Running

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0
"""seconds that closing waits for a call in progress"""
_LONGEST_WAIT = 5.0
"""seconds between two looks at an engine that is away"""


def wait_for_start(
    engine: Engine,
    name: str,
    begun: Callable[[bool, bool], bool],
    place_seconds: float,
    fetch_seconds: float,
) -> None:
    """Ask until a run of a cluster has begun, ever less often; remove one that will not.

    ``begun`` gets whether the time is over in which a machine is found for it, and that in which it begins there;
    it raises a kind of `EngineError` for a run that will not, which is raised here. Where it cannot ask, raises
    `EngineDown`: nothing is known, and to launch the run again goes on with it.
    """
    since, most = time.monotonic(), place_seconds + fetch_seconds
    try:
        while not begun((passed := time.monotonic() - since) > place_seconds, passed > most):
            time.sleep(min(max(0.1, passed / 10), 1.0))
    except EngineError as error:
        if type(error) is EngineError:  # it is not about the run: only a question failed
            raise EngineDown(str(error)) from error
        if not isinstance(error, EngineDown):
            engine.remove(name)
        raise


KILL_SECONDS = 60.0
"""beyond its grace, for a run of a cluster to end; a process may hang in its machine's kernel"""


def wait_for_end(
    engine: Engine,
    name: str,
    ask: Callable[[], bool],
    grace: float,
) -> None:
    """Ask a cluster, until it has heard, to end a run; return when that has ended. Raises `EngineError`."""
    until, asked = time.monotonic() + grace + KILL_SECONDS, False
    while isinstance(engine.probe(name), Running):
        asked = asked or ask()
        if time.monotonic() >= until:
            raise EngineError("it still runs, although its machine was asked to kill it")
        time.sleep(0.1)


class Subscription:
    """One subscriber, called with one name after the other; one that fails affects no other."""

    def __init__(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> None:
        self._on_exit = on_exit
        self._on_away = on_away
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def report(self, name: str) -> None:
        """Say that a run has exited."""
        self._call(self._on_exit, name)

    def away(self) -> None:
        """Say that the engine does not answer."""
        if self._on_away is not None:
            self._call(self._on_away, "")

    def close(self) -> None:
        """End it, after a call in progress."""
        with self._lock:
            self._closed.set()

    def _call(self, subscriber: Callable[[str], None], name: str) -> None:
        with self._lock:
            try:
                if not self._closed.is_set():
                    subscriber(name)
            except Exception:
                log.exception("the subscriber failed on what became of %s", name or "the engine")


class Follower(Subscription):
    """Looks for exits again and again, in a thread; derive, and say in `_look` how."""

    def __init__(
        self,
        every: float,
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        """``every``: seconds between two looks, more while the engine is away."""
        super().__init__(on_exit, on_away)
        self._every = every
        self._thread = threading.Thread(
            target=self._run,
            name="engine-follower",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End it; waits a moment for a call in progress."""
        self._closed.set()
        self._interrupt()
        super().close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def _look(self) -> None:
        raise NotImplementedError

    def _interrupt(self) -> None:
        """End a look that waits for news."""

    def _run(self) -> None:
        wait, last = self._every, ""
        while not self._closed.is_set():
            try:
                self._look()
                wait, last = self._every, ""
            except Exception as error:
                if self._closed.is_set():
                    return
                cause = str(error) if isinstance(error, EngineError) else repr(error)
                if cause != last:
                    log.warning(
                        "no exits are reported until the container engine answers again: %s", cause
                    )
                last = cause
                self.away()
                wait = min(wait * 2, _LONGEST_WAIT)
            self._closed.wait(wait)
