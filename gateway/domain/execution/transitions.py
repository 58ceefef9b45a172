"""What becomes of a run: what its container reported, weighed with how it exited.

A reported failure is final, a reported success needs exit code 0, and an exit with code 0 without a report counts
after a short grace if the outputs are there.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import models
from gateway.domain.execution import engine_loss, exit_codes
from gateway.domain.execution.messages import (
    Broken,
    Gone,
    HasExited,
    Launched,
    LaunchFailed,
    OfRun,
    Reported,
    Seen,
    Unseen,
)
from gateway.domain.execution.records import with_news
from gateway.domain.run import Run
from gateway.domain.spec import Call, CallState, Failure
from gateway.domain.states import RUN, RunStatus, TaskStatus, merge, move
from gateway.domain.timing import Timing


def heard(run: Run, event: OfRun, timing: Timing) -> Run:
    """Take in news of one run."""
    match event:
        case Launched():
            return _launched(run, event, timing)
        case LaunchFailed():
            if run.status is not RunStatus.LAUNCHING:
                return run
            launch = replace(run.launch, state=CallState.REFUSED, reason=event.failure.reason)
            return failed(replace(run, launch=launch), event.failure, event.at)
        case Seen():
            if run.over:
                return run
            return replace(run, probe_at=event.at + timedelta(seconds=timing.probe_every), away_at=None)
        case Unseen():
            return engine_loss.unseen(run, event.at, timedelta(seconds=timing.probe_every))
        case Broken():
            return run if run.status is not RunStatus.RUNNING else failed(run, event.failure, event.at)
        case HasExited():
            if run.exit is not None or run.status is RunStatus.WAITING:
                return run
            run = replace(
                run,
                exit=event.exit,
                result_code=run.result_code or event.result_code,
                result_message=run.result_message or event.result_message,
            )
            return weighed(run, event.at, timing, last=False)
        case Gone():
            return _gone(run, event)
        case Reported():
            return _reported(run, event, timing)
        case _:
            assert_never(event)


def _launched(run: Run, event: Launched, timing: Timing) -> Run:
    if run.over and run.collect.state is not CallState.IDLE:  # by a gateway that was frozen meanwhile
        return replace(run, collect=Call())
    if run.status is not RunStatus.LAUNCHING:
        return run
    launch = replace(run.launch, state=CallState.OK)
    probe = event.at + timedelta(seconds=timing.probe_every)
    run = replace(
        run,
        launch=launch,
        started_at=event.at,
        probe_at=probe,
        image_digest=event.image_digest,
        granted=event.granted,
    )
    status = RunStatus.RUNNING if run.stop_at is None else RunStatus.STOPPING
    run = replace(run, status=move(RUN, run.status, status))
    return weighed(run, event.at, timing, last=False)


def _reported(run: Run, event: Reported, timing: Timing) -> Run:
    if run.over or run.reported in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        return run
    run = replace(
        run,
        reported=event.status,
        reported_at=event.at,
        result_code=event.result_code or run.result_code,
        result_message=event.result_message or run.result_message,
    )
    if run.status is RunStatus.RUNNING:
        return weighed(run, event.at, timing, last=False)
    return run


def _gone(run: Run, event: Gone) -> Run:
    if run.status is RunStatus.STOPPING:
        return failed(run, stopped(run), event.at)
    if run.status is RunStatus.RUNNING and run.exit is None:
        return failed(run, Failure("GONE", "the engine does not know the container any more"), event.at)
    return run


def weighed(run: Run, now: datetime, timing: Timing, *, last: bool) -> Run:
    """Decide a running container's fate from what it reported and how it exited; ``last``: nothing more comes."""
    if run.status is RunStatus.STOPPING and run.exit is not None:
        return failed(run, stopped(run), now)
    if run.status is not RunStatus.RUNNING:
        return run
    if run.reported is TaskStatus.FAILED:
        return failed(run, exit_failure(run), now)
    if run.exit is None:
        if last and run.reported is TaskStatus.SUCCESS:
            return succeeded(run, now)
        if last and engine_loss.too_long(run, now, timedelta(seconds=timing.engine_patience)):
            return failed(run, engine_loss.silent(run), now)
        return run
    if run.exit.code != 0:
        if engine_loss.took_it_along(run):
            return failed(run, engine_loss.killed(run), now)
        return failed(run, exit_failure(run), now)
    if run.reported is TaskStatus.SUCCESS:
        return succeeded(run, now)
    if not last:
        return run
    if run.exit.missing_outputs:
        missing = ", ".join(run.exit.missing_outputs)
        text = f"the container ended with code 0, without a report and without its outputs {missing}"
        return failed(run, Failure("NO_CALLBACK", text, exit_code=0), now)
    if timing.silence_fails:
        text = "the container ended with code 0 and without a report, which counts as a failure here"
        return failed(run, Failure("NO_CALLBACK", text, exit_code=0), now)
    return succeeded(replace(run, no_callback=True), now)


def exit_failure(run: Run) -> Failure:
    """Name why the container failed: out of memory, its exit code, or what it reported itself."""
    exit_ = run.exit
    text = run.result_message or run.results.get(run.result_code, "")
    if run.result_code:
        text = f"result code {run.result_code}" + (f": {text}" if text else "")
    if exit_ is None or exit_.code == 0:
        reason = "REPORTED_FAILED"
        text = text or "the container reported FAILED"
        return Failure(reason, text, exit_code=exit_.code if exit_ else None)
    if exit_.oom_killed:
        return Failure("OOM_KILLED", text or "the container used more memory than it may", exit_code=exit_.code)
    signal = f" by signal {exit_.signal}" if exit_.signal else ""
    said = f" after it reported {run.reported}" if run.reported else ""
    usual = "" if said else exit_codes.meaning(exit_.code)
    memory = exit_codes.under_a_limit(exit_.code) if run.limits.get("memory") else ""
    full = f"exit code {exit_.code}{signal}{said}" + "".join(f"; {part}" for part in (usual, memory, text) if part)
    return Failure(f"EXIT_{exit_.code}", full, exit_code=exit_.code)


def stopped(run: Run) -> Failure:
    """Name the failure of a run that ended because it was to."""
    return Failure("STOPPED", "stopped on request", exit_code=run.exit.code if run.exit else None)


def succeeded(run: Run, at: datetime) -> Run:
    """End the run as a success."""
    return with_news(replace(run, status=move(RUN, run.status, RunStatus.SUCCESS), ended_at=at))


def failed(run: Run, failure: Failure, at: datetime) -> Run:
    """End the run with this failure, named by party, task and node."""
    named = replace(failure, role=run.party.role, task=run.task_name, node=run.party.node)
    return with_news(replace(run, status=move(RUN, run.status, RunStatus.FAILED), ended_at=at, failure=named))


def merge_runs(runs: Iterable[Run]) -> TaskStatus:
    """Fold the runs of a task (or of one role in it) into what other nodes are told."""
    return merge(models.told_as(run) for run in runs)
