"""Whether this machine's clock agrees with the storage's and the database's, by which records are kept."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.data.folders import nearest
from gateway.runtime.checks import Result, Step
from gateway.store.clock import database_time
from gateway.store.store import Store

_SKEW_SECONDS = 30.0
"""as much as a route bears between two nodes"""
_REMEDY = "let both machines follow a time server"


def clock_of(folder: Path, store: Store | None, now: Callable[[], float] = time.time) -> Step:
    """Compare clocks; ``now`` in seconds since 1970.

    ``store`` None: the database does not answer, or is a file of this machine.
    """
    skews = {}
    if (there := _file_time(folder)) is not None:
        skews["storage"] = there - now()
    if store is not None:
        skews["database"] = database_time(store) - now()
    found = ", ".join(f"{name} {skew:+.1f} s" for name, skew in skews.items()) or "nothing to compare with"
    wrong = [f"the clock of the {n} is {abs(s):.0f} s off this machine's" for n, s in skews.items() if _far(s)]
    if wrong:
        return Step("clock", Result.FAILED, found, "; ".join(wrong), _REMEDY)
    return Step("clock", Result.OK, found)


def _far(skew: float) -> bool:
    return abs(skew) > _SKEW_SECONDS


def _file_time(folder: Path) -> float | None:
    """Return when whoever keeps the folder says that it is now; None where nothing can be written there."""
    try:
        with tempfile.NamedTemporaryFile(dir=nearest(folder)) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # that is the step storage's
        return None
