"""Writes the requests that a step has made into the job's timeline, in the same write as what came of them."""

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
    change: Callable[[R], R],
    calls: Sequence[Exchange],
    at: datetime,
    tries: int = 1,
    quiet: Callable[[R], int] | None = None,
) -> Callable[[R], R]:
    """Return the change that also notes these calls, before the notes of what followed from them.

    With ``quiet``, for questions, only where the answer has changed something worth a note; it returns how many
    questions before brought no news.
    """

    def changed(record: R) -> R:
        new = change(record)
        repeated = tries > _ALWAYS and tries & (tries - 1)
        if not calls or (len(new.notes) == len(record.notes) if quiet else repeated):
            return new
        more: dict[str, int] = {"tries": tries} if tries > 1 else {}
        if quiet and (before := quiet(record)):
            more["quiet_before"] = before
        return _before(record, new, notes_of(calls, at, **more))

    return changed


def _before(old: R, new: R, notes: Sequence[Note]) -> R:
    return replace(new, notes=(*old.notes, *notes, *new.notes[len(old.notes) :]))


def notes_of(calls: Sequence[Exchange], at: datetime, **more: int | str) -> list[Note]:
    """Return one line for each call."""
    return [Note(at, EVENT, call.node, {**call.as_dict(), **more}) for call in calls]
