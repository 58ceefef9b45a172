"""Writes the requests that a step has made into the job's timeline, in the same write as what came of them.

A question about a task is written where it brought news or went wrong for the first time; how many brought none is
told with the next that does. A request that is repeated for long is written ever more seldom.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import Note
from gateway.runtime.context import Exchange

EVENT = "called"
_ALWAYS = 3
"""tries that are all written; of later ones every second, fourth, eighth and so on"""

R = TypeVar("R", Job, LocalJob)


def with_calls(
    change: Callable[[R], R], calls: Sequence[Exchange], at: datetime, tries: int = 1
) -> Callable[[R], R]:
    """Return the change that also notes these calls, before the notes of what followed from them."""

    def changed(record: R) -> R:
        new = change(record)
        if not calls or not worth_noting(tries):
            return new
        return _before(record, new, calls, at, tries)

    return changed


def with_news(
    change: Callable[[Job], Job], calls: Sequence[Exchange], at: datetime, quiet: Callable[[Job], int]
) -> Callable[[Job], Job]:
    """As `with_calls`, for questions: noted only where the answer has changed something worth a note.

    ``quiet`` tells of the job how many questions before brought no news.
    """

    def changed(job: Job) -> Job:
        new = change(job)
        if not calls or len(new.notes) == len(job.notes):
            return new
        return _before(job, new, calls, at, 1, quiet(job))

    return changed


def worth_noting(tries: int) -> bool:
    """Say whether this try of a request is written down."""
    return tries <= _ALWAYS or tries & (tries - 1) == 0


def notes_of(calls: Sequence[Exchange], at: datetime, **more: int | str) -> list[Note]:
    """Return one line for each call."""
    return [Note(at, EVENT, call.node, {**call.as_dict(), **more}) for call in calls]


def _before(old: R, new: R, calls: Sequence[Exchange], at: datetime, tries: int, quiet: int = 0) -> R:
    more: dict[str, int] = {"tries": tries} if tries > 1 else {}
    if quiet:
        more["quiet_before"] = quiet
    return replace(new, notes=(*old.notes, *notes_of(calls, at, **more), *new.notes[len(old.notes) :]))
