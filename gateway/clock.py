"""What time it is here: the time of day, which never goes back by more than a moment while the process lives.

Everything that waits is due at a time. If the machine's clock were followed when somebody, or its time service,
puts it back by an hour, every question, repetition and deadline would stand still for that hour.

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

    def __call__(self) -> datetime:
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
                "caught up, or the process is started again",
                by_seconds=round((steady - wall).total_seconds()),
            )
        return now


def wall_of(clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """Return the machine's clock as it stands, by which others go too; a clock of another kind is that itself."""
    return clock.wall if isinstance(clock, SteadyClock) else clock
