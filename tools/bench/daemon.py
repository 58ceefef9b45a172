"""What a container daemon of this machine costs while it works."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_DAEMONS = ("dockerd", "containerd")  # and the shims of containers, by the beginning of their names
_PAUSE_AFTER = 2.0  # after the work, for removals and preparations that follow it


@dataclass(frozen=True)
class DaemonCost:
    """The time of some work, and the processor time of the daemon's processes meanwhile."""

    seconds: float
    processor: float  # seconds


def daemon_cost(work: Callable[[], object]) -> DaemonCost:
    """Do the work, and return its cost; what the daemon does shortly afterwards counts, too."""
    processor_before = _processor_seconds()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    time.sleep(_PAUSE_AFTER)
    return DaemonCost(seconds, _processor_seconds() - processor_before)


def _processor_seconds() -> float:
    """Return the processor time of the daemon's processes so far, ended children included."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            ticks += _ticks(folder)
    return ticks / _TICKS_PER_SECOND


def _ticks(folder: Path) -> int:
    """Return the processor time of a process if it is one of the daemon's, else 0."""
    try:
        _, _, rest = (folder / "stat").read_text().partition("(")
    except OSError:  # the process has ended
        return 0
    name, _, fields = rest.rpartition(")")
    if not name.startswith(_DAEMONS):
        return 0
    # User and system time of the process, then of its children that have ended.
    return sum(map(int, fields.split()[11:15]))
