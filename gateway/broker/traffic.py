"""A session's incoming messages, counted for operators."""

import time
from collections import Counter, deque

from gateway.broker.messages import Traffic

RECENT_SECONDS = 10  # the period over which the present rate is measured


class TrafficMeter:
    """Counts the messages that a session has received since the start of this process.

    The event loop counts; another thread may read the figures.
    """

    def __init__(self) -> None:
        self._messages = 0
        self._bytes = 0
        # For each of the last seconds with messages: the second, and the bytes received by topic.
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=RECENT_SECONDS)

    def count(self, topic: str, size: int) -> None:
        """Count a message of ``size`` bytes."""
        self._messages += 1
        self._bytes += size
        second = int(time.monotonic())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        sizes = self._seconds[-1][1]
        sizes[topic] += size

    def recent_bytes(self) -> Counter[str]:
        """Return the bytes received in the last `RECENT_SECONDS`, by topic."""
        start = int(time.monotonic()) - RECENT_SECONDS
        total: Counter[str] = Counter()
        # Copies, as the event loop may count a message while another thread reads.
        for second, sizes in list(self._seconds):
            if second > start:
                total.update(sizes.copy())
        return total

    def traffic(self) -> Traffic:
        """Return the totals and the present rate."""
        rate = self.recent_bytes().total() // RECENT_SECONDS
        return Traffic(self._messages, self._bytes, rate)
