"""Looks at a job until it is over, through a restart of the node too."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.cli.client import EXIT_NO_ANSWER, CallFailed

PATIENCE = 300.0
"""seconds for which a node that was there may be silent, such as while it is brought up to date"""
COMING_UP = 30.0
"""seconds for which a node may be silent at the first look: it has just been started, or its address is wrong"""
PAUSE = 0.3
"""seconds between two looks"""
OVER = ("FINISHED", "REJECTED")
_PASSING = ("DATABASE_AWAY",)


def looks(
    ask: Callable[[], dict[str, Any]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job as it is until it is over; with a word where that is how it was, as the node is silent.

    ``tell`` takes what there is to say while nothing was seen yet. Raises `CallFailed` where the node says no, and
    where it is silent for too long.
    """
    known = _first(ask, now, sleep, tell)
    yield known, ""
    since: float | None = None
    while known["status"] not in OVER:
        sleep(PAUSE)
        try:
            known, since, trouble = ask(), None, ""
        except CallFailed as error:
            since = now() if since is None else since
            if not _passes(error) or now() - since >= PATIENCE:
                raise
            trouble = f"the node does not answer now; it is asked again for up to {PATIENCE:g} s"
        yield known, trouble


def _first(
    ask: Callable[[], dict[str, Any]],
    now: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    since: float | None = None
    while True:
        try:
            return ask()
        except CallFailed as error:
            if since is None and _passes(error):
                since = now()
                tell(f"{error}; it is asked again for up to {COMING_UP:g} s")
            elif since is None or not _passes(error) or now() - since >= COMING_UP:
                raise
        sleep(PAUSE)


def _passes(error: CallFailed) -> bool:
    return error.code == EXIT_NO_ANSWER or error.reason in _PASSING
