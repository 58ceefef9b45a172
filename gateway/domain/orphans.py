"""The orphan rule: what a participating node does when the scheduling node is silent.

After ``limit`` seconds without a request or a response it asks whether the job is still known there, and a tenth
of that later again. The job continues where it is known, and ends where the scheduling node does not know it, does
not respond, or reports that it has ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.run import LocalJob
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, ended

UNREACHABLE, FORGOT = "SCHEDULER_UNREACHABLE", "SCHEDULER_FORGOT"
TRIES = 2
"""requests without a response after which the scheduling node counts as gone"""


@dataclass(frozen=True)
class SchedulerAlive:
    """The scheduling node sent a request or a response."""

    at: datetime


def watched(local: LocalJob) -> bool:
    """Whether another node's silence matters to the job here."""
    created = local.audit is None or local.audit.created
    return created and not ended(JOB, local.status) and local.spec.scheduler != local.node


def worth_noting(local: LocalJob, now: datetime, limit: float) -> bool:
    """Whether a sign of life of the scheduling node has to be stored: it is kept to a tenth of the limit."""
    last = local.last_contact or local.created_at
    return watched(local) and (now - last > timedelta(seconds=limit / 10) or local.ask.tries > 0)


def due(local: LocalJob, limit: float, call_deadline: float) -> Iterator[datetime]:
    """Yield when to ask the scheduling node."""
    if not watched(local):
        return
    last = local.last_contact or local.created_at
    match local.ask.state:
        case CallState.SENT if local.ask.sent_at is not None:
            yield local.ask.sent_at + timedelta(seconds=call_deadline)
        case _:
            # the last sign of life may be a tenth later than is stored
            yield local.ask.due_at or last + timedelta(seconds=limit * 1.1)


def alive(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job after a sign of life of the scheduling node: the limit starts again."""
    was_silent = local.ask.message or local.ask.tries > 1
    ask = replace(local.ask, state=CallState.IDLE, due_at=None, tries=0, message="")
    local = replace(local, last_contact=at, ask=ask)
    return local.noted(at, "scheduling node answers", local.spec.scheduler) if was_silent else local


def pause(limit: float) -> timedelta:
    """Return the pause before the last request: a node that is just restarting is not lost."""
    return timedelta(seconds=limit / 10)


def unanswered(local: LocalJob, at: datetime, message: str, after: timedelta) -> LocalJob:
    """Return the job after a request without a response."""
    ask = replace(local.ask, state=CallState.LOST, due_at=at + after, message=message)
    return replace(local, ask=ask).noted(
        at, "scheduling node does not answer", local.spec.scheduler, message=message
    )


def given_up(local: LocalJob) -> bool:
    """Whether the scheduling node has been asked often enough."""
    return local.ask.state is CallState.LOST and local.ask.tries >= TRIES
