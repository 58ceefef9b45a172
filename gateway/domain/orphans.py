"""The orphan rule: what a participating node does when the scheduling node is not heard of any more.

After ``limit`` seconds without a request or an answer it asks whether the job is still known there, and a tenth
of that later once more. It goes on where it is. It ends the job's runs where the scheduling node forgot it or does
not answer, and does what that node decided where it says that the job has ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.run import LocalJob
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, ended

UNREACHABLE, FORGOT = "SCHEDULER_UNREACHABLE", "SCHEDULER_FORGOT"
TRIES = 2
"""questions without an answer after which the scheduling node counts as gone"""


@dataclass(frozen=True)
class Heard:
    """The scheduling node asked for something, or answered."""

    at: datetime


def watched(local: LocalJob) -> bool:
    """Say whether another node's silence matters to the job here."""
    created = local.audit is None or local.audit.created
    return created and not ended(JOB, local.status) and local.spec.scheduler != local.node


def worth_noting(local: LocalJob, now: datetime, limit: float) -> bool:
    """Say whether hearing of the scheduling node has to be stored: it is kept to a tenth of the limit."""
    last = local.heard_at or local.created_at
    return watched(local) and (now - last > timedelta(seconds=limit / 10) or local.ask.tries > 0)


def due(local: LocalJob, limit: float, call_deadline: float) -> Iterator[datetime]:
    """Yield when to ask the scheduling node."""
    if not watched(local):
        return
    last = local.heard_at or local.created_at
    match local.ask.state:
        case CallState.SENT if local.ask.sent_at is not None:
            yield local.ask.sent_at + timedelta(seconds=call_deadline)
        case _:
            # by a tenth it may have been heard of later than is stored
            yield local.ask.due_at or last + timedelta(seconds=limit * 1.1)


def heard(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job after news of the scheduling node: the rule begins anew."""
    was_silent = local.ask.message or local.ask.tries > 1
    ask = replace(local.ask, state=CallState.IDLE, due_at=None, tries=0, message="")
    local = replace(local, heard_at=at, ask=ask)
    return local.noted(at, "scheduling node answers", local.spec.scheduler) if was_silent else local


def pause(limit: float) -> timedelta:
    """Return how long to wait before the last question: a node that is started anew just then is no lost one."""
    return timedelta(seconds=limit / 10)


def unanswered(local: LocalJob, at: datetime, message: str, after: timedelta) -> LocalJob:
    """Return the job after a question that was not answered."""
    ask = replace(local.ask, state=CallState.LOST, due_at=at + after, message=message)
    return replace(local, ask=ask).noted(
        at, "scheduling node does not answer", local.spec.scheduler, message=message
    )


def given_up(local: LocalJob) -> bool:
    """Say whether the scheduling node has been asked often enough."""
    return local.ask.state is CallState.LOST and local.ask.tries >= TRIES
