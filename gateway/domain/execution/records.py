"""How a copy of a job with another run, and of a call in another state, is made."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState


def sent(call: Call, now: datetime) -> Call:
    """Return the call as made just now."""
    return replace(call, state=CallState.SENT, sent_at=now, due_at=None, tries=call.tries + 1)


def due_again(call: Call) -> Call:
    """Return a call that may be under way as one to be made again, at once."""
    if call.state is CallState.SENT:
        return replace(call, state=CallState.LOST, due_at=None)
    return call


def with_news(run: Run) -> Run:
    """A call that tells an older state need not be waited for."""
    return replace(run, told=replace(run.told, call=Call()))


def with_run(local: LocalJob, run_id: str, change: Callable[[Run], Run], at: datetime | None = None) -> LocalJob:
    """Change one run, and write its moves into the timeline."""
    for i, old in enumerate(local.runs):
        if old.run_id != run_id:
            continue
        new = change(old)
        if new is old:
            return local
        local = replace(local, runs=(*local.runs[:i], new, *local.runs[i + 1 :]))
        if new.status is not old.status:
            when = at or new.ended_at or new.launch.sent_at or new.created_at
            detail = new.failure.as_dict() if new.failure else {}
            detail = {**detail, "task": new.task_name, "role": new.party.label, "attempt": new.attempt}
            local = local.noted(when, f"run {new.status}", **detail)
        return local
    return local
