"""Holds on to what must not be lost while the database is away for a moment."""

import time
from collections.abc import Callable
from typing import TypeVar

from gateway.errors import DatabaseAway

X = TypeVar("X")


def while_away(work: Callable[[], X], seconds: float = 20.0, pause: float = 0.2) -> X:
    """Do the work again until the database answers. Raises `DatabaseAway` if it does not in so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DatabaseAway:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
