"""What the end of our own actions changes, and what their failure does."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from gateway.domain import approval, models, orphans, preparing
from gateway.domain.execution.commands import AskScheduler, Close, Collect, Confirm, Prepare, StopRun, Tell
from gateway.domain.execution.messages import Done, Sealed
from gateway.domain.execution.records import with_news, with_run
from gateway.domain.run import LocalJob, Run, Told
from gateway.domain.spec import Call, CallState
from gateway.domain.states import TaskStatus
from gateway.domain.timing import Timing


def done(local: LocalJob, event: Done, timing: Timing) -> LocalJob:
    """Take in the end of an action that has no news of its own; what did not work is due again after a pause."""

    def settled(call: Call) -> Call:
        if call.settled:
            return call  # a repeat that failed takes nothing back
        if event.final:
            return replace(call, state=CallState.OK, message=event.message)
        due = event.at + timing.retry(call.tries - 1, local.id, event.action)
        return replace(call, state=CallState.LOST, due_at=due, message=event.message)

    local = _not_finished(local, event)
    match event.action:
        case Close():
            return replace(local, close=settled(local.close), closed=local.closed or event.final)
        case Confirm():
            local = approval.confirming(local, settled)
            return local.noted(event.at, "decision told", message=event.message) if event.final else local
        case Prepare():
            fetch = preparing.to_fetch(local)
            return local if fetch is None else preparing.fetching(local, settled(fetch))
        case AskScheduler():
            return _asked(local, event, timing)
        case Collect():
            return with_run(local, event.action.run, lambda r: _collected(r, settled(r.collect), event.warnings))
        case StopRun():
            return with_run(local, event.action.run, lambda r: replace(r, stop=settled(r.stop)))
        case Tell():
            status = event.action.status
            return with_run(local, event.action.run, lambda r: _told(r, status, settled))
        case _:
            assert_never(event.action)


def _not_finished(local: LocalJob, event: Done) -> LocalJob:
    """Write into the timeline that a step of the tidying up did not work; the same words once in a row."""
    match event.action:
        case Close():
            call, words, run = local.close, "closing failed", None
        case Collect(name) | StopRun(name):
            run = next((run for run in local.runs if run.run_id == name), None)
            if run is None:
                return local
            stopping = isinstance(event.action, StopRun)
            call, words = (run.stop, "stopping failed") if stopping else (run.collect, "removing failed")
        case _:
            return local
    if event.final or call.settled or not event.message or event.message == call.message:
        return local
    if run is None:
        return local.noted(event.at, words, message=event.message)
    return local.noted(event.at, words, message=event.message, task=run.task_name, role=run.party.label)


def _collected(run: Run, collect: Call, warnings: tuple[str, ...]) -> Run:
    return replace(run, collect=collect, warnings=tuple(dict.fromkeys((*run.warnings, *warnings))))


def sealed(run: Run, event: Sealed, timing: Timing) -> Run:
    """Take in the fingerprints of a run's model, or that its files could not be read."""
    if not models.unsealed(run):
        return run
    if event.files is None:
        run = models.not_sealed(run, event.at, timing.retry(run.seal.tries - 1, run.name), event.message)
    else:
        run = replace(run, files=event.files, seal=replace(run.seal, state=CallState.OK, message=""))
    return with_news(run)


def _asked(local: LocalJob, event: Done, timing: Timing) -> LocalJob:
    """Take in the answer of the scheduling node; not ``final``: there was none."""
    if not orphans.watched(local):
        return local
    if event.final:
        return orphans.heard(local, event.at)
    again = timing.retry(local.ask.tries - 1, local.id, event.action)
    return orphans.unanswered(local, event.at, event.message, max(again, orphans.pause(timing.orphan)))


def _told(run: Run, status: TaskStatus, settled: Callable[[Call], Call]) -> Run:
    if status is not models.told_as(run) or status is run.told.status:
        return run  # there is newer news, which has its own call
    call = settled(run.told.call)
    told = Told(status, Call()) if call.state is CallState.OK else replace(run.told, call=call)
    return replace(run, told=told)
