"""Looks at a job until it is over, through a restart of the node too."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.cli.client import EXIT_NO_ANSWER, CallFailed

PATIENCE = 300.0
"""seconds for which a node that was there may be silent, such as while it is brought up to date"""
PAUSE = 0.3
"""seconds between two looks"""
OVER = ("FINISHED", "REJECTED")
_PASSING = ("DATABASE_AWAY",)


def looks(
    ask: Callable[[], dict[str, Any]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job as it is until it is over; with a word where that is how it was, as the node is silent.

    Raises `CallFailed` where the first look fails, where the node says no, and where it is silent for too long.
    """
    known = ask()
    yield known, ""
    since: float | None = None
    while known["status"] not in OVER:
        sleep(PAUSE)
        try:
            known, since, trouble = ask(), None, ""
        except CallFailed as error:
            since = now() if since is None else since
            passing = error.code == EXIT_NO_ANSWER or error.reason in _PASSING
            if not passing or now() - since >= PATIENCE:
                raise
            trouble = f"the node does not answer now; it is asked again for up to {PATIENCE:g} s"
        yield known, trouble
