"""Numbers of the messages that a session has received, read or not.

Sealed messages are numbered by their sender, so a repeated message is recognised as long as its
number is remembered. Numbers are kept as ranges, as a sender leaves few gaps.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

_MOST_SERIES = 256  # per session; the oldest one is forgotten
# Ranges of a series; beyond that, the lowest gap counts as received: a message that was overtaken
# by more than these does not arrive any more.
_MOST_RANGES = 100


@dataclass(frozen=True, slots=True)
class Number:
    """A message's number in a series, within which no two messages have the same."""

    series: str
    value: int


@dataclass(slots=True)
class _Range:
    """Consecutive numbers of a series."""

    first: int
    last: int


class _Series:
    """The received numbers of one series: ranges in ascending order, with gaps between them."""

    def __init__(self) -> None:
        self.ranges: list[_Range] = []

    def has(self, value: int) -> bool:
        """Return whether a number was received."""
        index = self._index_before(value)
        if index < 0:
            return False
        return value <= self.ranges[index].last

    def add(self, value: int) -> None:
        """Record a number that was not received before."""
        index = self._index_before(value) + 1
        self.ranges.insert(index, _Range(value, value))
        self._join_adjacent(index)
        self._join_adjacent(index - 1)
        if len(self.ranges) > _MOST_RANGES:
            self._join(0)

    def _index_before(self, value: int) -> int:
        """Return the index of the last range that begins at a value or before; -1 without one."""
        return bisect_right(self.ranges, value, key=_first_of) - 1

    def _join_adjacent(self, index: int) -> None:
        """Join a range with the next one if no number lies between them."""
        if index < 0 or index + 1 >= len(self.ranges):
            return
        is_adjacent = self.ranges[index + 1].first == self.ranges[index].last + 1
        if is_adjacent:
            self._join(index)

    def _join(self, index: int) -> None:
        """Join a range with the next one; the numbers between them count as received."""
        upper = self.ranges.pop(index + 1)
        self.ranges[index].last = upper.last


def _first_of(numbers: _Range) -> int:
    """Return the first number of a range."""
    return numbers.first


class ReceivedNumbers:
    """The numbers that were received, by series."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}  # the oldest first

    def __contains__(self, number: Number) -> bool:
        series = self._series.get(number.series)
        return series is not None and series.has(number.value)

    def add(self, number: Number) -> None:
        """Record that a number was received."""
        if number in self:
            return
        series = self._series.setdefault(number.series, _Series())
        series.add(number.value)
        if len(self._series) > _MOST_SERIES:
            oldest = next(iter(self._series))
            del self._series[oldest]

    def dump(self) -> dict[str, list[list[int]]]:
        """Return the first and last number of each range, by series, as `load` takes them."""
        dumped = {}
        for name, series in self._series.items():
            dumped[name] = [[numbers.first, numbers.last] for numbers in series.ranges]
        return dumped

    def load(self, dumped: Mapping[str, list[list[int]]]) -> None:
        """Restore the numbers of an earlier process."""
        self._series.clear()
        for name, ranges in dumped.items():
            series = _Series()
            for first, last in ranges:
                series.ranges.append(_Range(first, last))
            self._series[name] = series
