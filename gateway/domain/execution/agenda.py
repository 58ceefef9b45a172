"""What there is to do for a job's runs, and when."""

from collections.abc import Iterator
from datetime import timedelta
from typing import assert_never

from gateway.domain import approval, orphans
from gateway.domain import run as domain_run
from gateway.domain.execution import messages
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState
from gateway.domain.states import JOB, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Due, RunTiming, when_due


def agenda(local: LocalJob, timing: RunTiming) -> Iterator[Due[messages.Command]]:
    """Yield everything there is to do, each with its earliest time."""
    may_launch = domain_run.may_launch(local)
    for run in local.runs:
        if not run.done_with and (run.status is not RunStatus.WAITING or run.run_id in may_launch):
            yield from _of_run(run, timing)
    if local.approval is not None:
        if (until := approval.lapses_at(local)) is not None:
            yield Due(until, messages.Expire())
        if (confirm := approval.to_confirm(local)) is not None:
            yield from when_due(confirm, messages.Confirm(), timing.call_deadline)
    if local.preparation is not None and (fetch := approval.to_fetch(local)) is not None:
        yield from when_due(fetch, messages.Prepare(), timing.prepare_deadline)
    if local.spec.scheduler != local.node:
        yield from _of_scheduler(local, timing)
    if (
        ended(JOB, local.status)
        and not local.closed
        and all(run.over and (not _to_collect(run) or _left_behind(local, run)) for run in local.runs)
    ):
        yield from when_due(local.close, messages.Close(), timing.call_deadline)


def _of_scheduler(local: LocalJob, timing: RunTiming) -> Iterator[Due[messages.Command]]:
    if orphans.watched(local) and orphans.given_up(local):
        yield Due(NOW, messages.Abandon())
    else:
        for when in orphans.due(local, timing.orphan, timing.call_deadline):
            yield Due(when, messages.QueryScheduler())


def _of_run(run: Run, timing: RunTiming) -> Iterator[Due[messages.Command]]:
    match run.status:
        case RunStatus.WAITING:
            yield Due(NOW, messages.Launch(run.run_id))
        case RunStatus.LAUNCHING:
            yield from when_due(run.launch, messages.Launch(run.run_id), timing.launch_deadline)
        case RunStatus.RUNNING:
            if run.exit is not None:
                seen = run.exit.finished_at or run.reported_at or NOW
                yield Due(seen + timedelta(seconds=timing.callback_grace), messages.Conclude(run.run_id))
            else:
                yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
                if run.away_at is not None and run.reported is not TaskStatus.SUCCESS:
                    yield Due(
                        run.away_at + timedelta(seconds=timing.engine_timeout), messages.Conclude(run.run_id)
                    )
                if run.reported is TaskStatus.SUCCESS and run.reported_at is not None:
                    yield Due(run.reported_at + timedelta(seconds=timing.linger), messages.Conclude(run.run_id))
        case RunStatus.STOPPING:
            deadline = timing.stop_grace + timing.call_deadline
            yield from when_due(run.stop, messages.StopRun(run.run_id, timing.stop_grace), deadline)
            if run.stop.state is CallState.OK:  # and nobody could look whether it is gone
                yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
        case RunStatus.SUCCESS | RunStatus.FAILED:
            if _to_collect(run):
                deadline = timing.stop_grace + timing.call_deadline
                yield from when_due(run.collect, messages.Collect(run.run_id), deadline)
            if run.unsealed:
                yield from when_due(run.seal, messages.Seal(run.run_id), timing.seal_deadline)
        case _:
            assert_never(run.status)
    news = run.reported_status
    worth_telling = news in (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)
    if worth_telling and run.reporting.status is not news and run.reporting.call.tries < timing.tell_tries:
        yield from when_due(run.reporting.call, messages.Tell(run.run_id, news), timing.call_deadline)


def _left_behind(local: LocalJob, run: Run) -> bool:
    """Whether the run's container is with a gateway that the job has left: it is removed when that one returns."""
    return bool(local.home and run.owner and run.owner != local.home)


def _to_collect(run: Run) -> bool:
    """Whether the engine may still hold something of the run; one that was never launched left nothing."""
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK
