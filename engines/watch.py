"""Waits for starts and ends of runs, and reports exits to subscribers."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from engines.base import Engine, EngineDown, EngineError, Running

log = logging.getLogger(__name__)

# Seconds that a cluster's run may take to end after its grace time: a process may hang in the
# kernel of its machine.
KILL_SECONDS = 60.0

_CLOSE_TIMEOUT = 5.0  # seconds that closing waits for the end of a follower's thread
_LONGEST_WAIT = 5.0  # seconds between two looks at an engine that does not respond, at most
_SHORTEST_PAUSE = 0.1  # seconds between two questions to a cluster
_LONGEST_PAUSE = 1.0  # seconds between two questions about a start that takes long, at most

# Called with two flags, ``place_time_over`` (the time for finding a machine is over) and
# ``start_time_over`` (the time for the start on that machine is over, too). Returns whether the run
# has started.
HasStarted = Callable[[bool, bool], bool]


def wait_for_start(
    engine: Engine,
    name: str,
    has_started: HasStarted,
    place_seconds: float,
    fetch_seconds: float,
) -> None:
    """Wait until a cluster's run has started, asking ever less often.

    ``place_seconds``: the time for finding a machine; ``fetch_seconds``: the time for the start on
    that machine, with the pull of the image.

    The errors that ``has_started`` raises:

    - `EngineDown`: the cluster does not respond. It is raised here as it is.
    - `EngineError` itself: the cluster refused a question about the run. It is raised here as
      `EngineDown`.
    - any other subclass of `EngineError`: the run will not start. The run is removed, and the error
      is raised here.

    After `EngineDown` the state of the run is unknown; another launch of the run resumes the wait.
    """
    try:
        _poll_start(has_started, place_seconds, fetch_seconds)
    except EngineDown:
        raise
    except EngineError as error:
        # The subclasses are about the run; `EngineDown` was passed on above.
        only_question_failed = type(error) is EngineError
        if only_question_failed:
            raise EngineDown(str(error)) from error
        engine.remove(name)
        raise


def _poll_start(has_started: HasStarted, place_seconds: float, fetch_seconds: float) -> None:
    """Call ``has_started`` until it returns True or raises."""
    started_waiting = time.monotonic()
    while True:
        waited = time.monotonic() - started_waiting
        place_time_over = waited > place_seconds
        start_time_over = waited > place_seconds + fetch_seconds
        if has_started(place_time_over, start_time_over):
            return
        pause = max(_SHORTEST_PAUSE, waited / 10)
        time.sleep(min(pause, _LONGEST_PAUSE))


def wait_for_end(
    engine: Engine,
    name: str,
    request_end: Callable[[], bool],
    grace: float,
) -> None:
    """Have a cluster end a run, and wait for its end.

    ``request_end`` is repeated until it returns True. ``grace``: seconds between SIGTERM and
    SIGKILL. Raises `EngineError` if the run still runs `KILL_SECONDS` after the grace time.
    """
    deadline = time.monotonic() + grace + KILL_SECONDS
    is_requested = False
    while isinstance(engine.probe(name), Running):
        if not is_requested:
            is_requested = request_end()
        if time.monotonic() >= deadline:
            raise EngineError("it still runs, although its machine was asked to kill it")
        time.sleep(_SHORTEST_PAUSE)


class Subscription:
    """One subscriber, called with one name at a time; its failures affect no other subscriber."""

    def __init__(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> None:
        """``on_exit`` is called with the name of each run that has exited.

        ``on_away`` is called with an empty name when the engine does not respond; None: it is not
        reported.
        """
        self._on_exit = on_exit
        self._on_away = on_away
        self._lock = threading.RLock()  # reentrant, as a subscriber may call `close`
        self._closed = threading.Event()

    def report(self, name: str) -> None:
        """Report the exit of a run."""
        self._call(self._on_exit, name)

    def report_away(self) -> None:
        """Report that the engine does not respond."""
        if self._on_away is not None:
            self._call(self._on_away, "")

    def close(self) -> None:
        """End the subscription, after a call in progress."""
        with self._lock:
            self._closed.set()

    def _call(
        self,
        subscriber: Callable[[str], None],
        name: str,
    ) -> None:
        """Call the subscriber unless the subscription has ended; log what it raises."""
        with self._lock:
            try:
                if not self._closed.is_set():
                    subscriber(name)
            except Exception:
                # With the name of a run: the run has exited. Without: the engine does not respond.
                log.exception("the subscriber failed on what became of %s", name or "the engine")


class Follower(Subscription, ABC):
    """Looks for exits repeatedly, in a thread of its own. Subclasses implement `_look`."""

    def __init__(
        self,
        every: float,
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        """``every``: seconds between two looks; more while the engine does not respond."""
        super().__init__(on_exit, on_away)
        self._every = every
        self._thread = threading.Thread(
            target=self._run,
            name="engine-follower",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the subscription, after a call in progress; wait a moment for the thread."""
        self._closed.set()  # first, so that the thread ends after the interrupted look
        self._interrupt()
        super().close()  # waits for a call in progress
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    @abstractmethod
    def _look(self) -> None:
        """Report exits; a look may wait for the next exit.

        An exception means that the engine does not respond.
        """

    def _interrupt(self) -> None:
        """End a look that waits for an exit; nothing to do for looks that never wait."""

    def _run(self) -> None:
        """Look until closed; after a failure, wait longer each time."""
        wait = self._every
        last_cause = ""
        while not self._closed.is_set():
            try:
                self._look()
                wait = self._every
                last_cause = ""
            except Exception as error:
                if self._closed.is_set():
                    return  # closing interrupted the look
                last_cause = self._warn_of(error, last_cause)
                self.report_away()
                wait = min(wait * 2, _LONGEST_WAIT)
            self._closed.wait(wait)

    @staticmethod
    def _warn_of(error: Exception, last_cause: str) -> str:
        """Log the cause of a failed look, unless the previous look failed for the same one.

        Returns the cause.
        """
        cause = repr(error)
        if isinstance(error, EngineError):
            cause = str(error)
        if cause != last_cause:
            log.warning("no exits are reported until the container engine answers again: %s", cause)
        return cause
