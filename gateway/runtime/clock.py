"""What time it is here: the time of day, which never goes back by more than a moment while the process lives.

Everything that waits is due at a time. If the machine's clock were followed when somebody, or its time service,
puts it back by an hour, every question, repetition and deadline would stand still for that hour.

A process that is started again goes on from the time of the one before it, no more than a day ahead of the
machine's clock.

What others' clocks have a part in (a signature's time, a file's, an end that people named) goes by `wall_of`.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

log = structlog.get_logger(__name__)

_MOMENT = timedelta(seconds=2)
"""by which the machine's clock may be behind without being a step"""

_MOST = timedelta(days=1)
"""by which the time of an earlier process may be ahead: a clock that was further ahead was wrong"""


class SteadyClock:
    """The machine's clock; where that was put back, the time goes on from where it was until it is caught up."""

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wall = wall
        """the machine's clock as it stands"""
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last = wall()
        self._at = monotonic()
        self._ahead = False

    def go_on_from(self, last: datetime) -> None:
        """Take up the time of an earlier process, where the clock was put back since by no more than a day."""
        with self._lock:
            ahead = last - self.wall()
            if _MOMENT < ahead <= _MOST:
                self._last, self._at = last, self._monotonic()
        if ahead > _MOST:
            log.warning(
                "the machine's clock is more than a day behind the time of the earlier process: what waits since "
                "then waits until that time comes again",
                by_seconds=round(ahead.total_seconds()),
                next="if the clock is right now, stop the jobs of that time and hand them in again",
            )

    def __call__(self) -> datetime:
        """Return the time, in UTC."""
        with self._lock:
            wall, at = self.wall(), self._monotonic()
            steady = self._last + timedelta(seconds=at - self._at)
            ahead = steady - wall > _MOMENT
            self._last, self._at = steady if ahead else wall, at
            told, self._ahead = self._ahead, ahead
            now = self._last
        if ahead and not told:
            log.warning(
                "the machine's clock was put back: this process goes on with its own time until the clock has "
                "caught up",
                by_seconds=round((steady - wall).total_seconds()),
            )
        return now


def resume(clock: Callable[[], datetime], last: datetime | None) -> None:
    """Have a `SteadyClock` go on from the last time that an earlier process of this gateway wrote down.

    What waits was written down by that time. A time of more than a day ahead is not gone on from: that clock was
    wrong; the log says so. None is no earlier process, or one of a version that did not write it down.
    """
    if last is not None and isinstance(clock, SteadyClock):
        clock.go_on_from(last)


def wall_of(clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """Return the machine's clock as it stands, by which others go too; a clock of another kind is that itself."""
    return clock.wall if isinstance(clock, SteadyClock) else clock
