"""The changes of one run by events, by stops, and by gateways that restart or are lost.

`conclusions` decides when a run ends, and how; `exit_failures` says why a container failed.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain.execution import messages
from gateway.domain.execution.conclusions import conclude, end_run, stop_failure, with_report_due
from gateway.domain.records import replace
from gateway.domain.run import ContainerReport, LocalJob, Reporting, Run
from gateway.domain.spec import Call, CallState, Failure, changed, failure_detail
from gateway.domain.states import RUN, RunStatus, TaskStatus, merge, move
from gateway.domain.timeouts import RunTiming

SEAL_TRIES = 10  # tries to read a model's files; if all fail, the run leaves no model


def with_run(
    local: LocalJob,
    run_id: str,
    change: Callable[[Run], Run],
    at: datetime | None = None,
) -> LocalJob:
    """Return the job with one of its runs changed, and with the run's new status in the timeline.

    ``at`` is the time of the new status, by default the time that the run itself records for it.
    The same job is returned if it has no such run, or ``change`` returns the same run.
    """
    run = local.run(run_id)
    if run is None:
        return local
    return _replace_run(local, run, change(run), at)


def _replace_run(
    local: LocalJob,
    old: Run,
    run: Run,
    at: datetime | None,
) -> LocalJob:
    """Put a changed run in the place of the old one, and note its status if that is new."""
    if run is old:
        return local
    local = local.with_run(run)
    new_warnings = len(run.warnings) - len(old.warnings)
    if new_warnings:
        local = replace(
            local,
            run_warnings=local.run_warnings + new_warnings,
        )
    if run.status is old.status:
        return local
    return _note_move(local, run, at)


def _note_move(
    local: LocalJob,
    run: Run,
    at: datetime | None,
) -> LocalJob:
    """Write the new status of a run into the timeline, with its failure if it has one.

    ``at`` is the time of the change; None: the time that the run itself records for it.
    """
    moved_at = at or run.ended_at or run.launch.sent_at or run.created_at
    detail = failure_detail(run.failure)
    detail["task"] = run.task_name
    detail["role"] = run.party.label
    detail["attempt"] = run.attempt
    return local.with_note(moved_at, f"run {run.status}", **detail)


def merge_runs(runs: Iterable[Run]) -> TaskStatus:
    """Fold the runs of a task (or of one role in it) into the status reported to other nodes."""
    return merge(run.reported_status for run in runs)


# ---------------------------------------------------------------- events


def apply(
    run: Run,
    event: messages.AnyRunEvent,
    timing: RunTiming,
    job_id: str,
) -> Run:
    """Return the run after an event.

    A late or repeated event returns the same object, so that nothing has to be stored. ``job_id``
    is named in messages.
    """
    match event:
        case messages.Launched():
            return _record_launch(run, event, timing, job_id)
        case messages.LaunchFailed():
            return _record_failed_launch(run, event, timing)
        case messages.Attested():
            return _record_attestation(run, event)
        case messages.Inspected():
            return _record_inspection(run, event, timing)
        case messages.EngineSilent():
            return _record_silence(run, event, timing)
        case messages.Gone():
            return _end_without_container(run, event)
        case messages.Broken():
            return _fail(run, event)
        case messages.Exited():
            return _record_exit(run, event, timing, job_id)
        case messages.Reported():
            return _record_report(run, event, timing, job_id)
        case messages.Sealed():
            return _record_fingerprints(run, event, timing)
        case _:
            assert_never(event)


def _record_launch(
    run: Run,
    event: messages.Launched,
    timing: RunTiming,
    job_id: str,
) -> Run:
    """Record that the container was started; it is stopped immediately if a stop came before.

    If the run has ended and the removal of its container has begun already, a gateway that was
    frozen has started the container again: the container is removed once more.
    """
    if run.over and run.collect.state is not CallState.IDLE:
        return replace(run, collect=Call())  # a new call: the removal is due again
    if run.status is not RunStatus.LAUNCHING:
        return run
    status = RunStatus.RUNNING
    if run.stop_at is not None:
        status = RunStatus.STOPPING
    run = replace(
        run,
        status=move(RUN, run.status, status),
        launch=replace(
            run.launch,
            state=CallState.OK,
        ),
        started_at=event.at,
        probe_at=_next_probe(event.at, timing),
        software=replace(run.software, digest=event.image_digest),
        granted=event.granted,
        attestation=event.attestation,
        away_at=None,
    )
    # A report or an exit may have come before the engine's response to the launch.
    return conclude(
        run,
        event.at,
        timing,
        job_id,
        last=False,
    )


def _record_failed_launch(
    run: Run,
    event: messages.LaunchFailed,
    timing: RunTiming,
) -> Run:
    """End a run that could not be launched.

    If its engine does not respond, the launch is tried again until the engine has been silent for
    ``engine_timeout`` seconds, unless the run has to stop.
    """
    if run.status is not RunStatus.LAUNCHING:
        return run
    away_at = run.away_at or event.at
    gives_up = event.at >= away_at + timedelta(seconds=timing.engine_timeout)
    is_engine_down = event.failure.reason == "ENGINE_DOWN"
    if is_engine_down and run.stop_at is None and not gives_up:
        due = event.at + timing.retry(
            run.launch.tries - 1,
            run.name,
        )
        launch = replace(
            run.launch,
            state=CallState.LOST,  # made again at `due_at`; REFUSED would be final
            due_at=due,
        )
        return replace(run, away_at=away_at, launch=launch)
    launch = replace(
        run.launch,
        state=CallState.REFUSED,
        reason=event.failure.reason,
    )
    return end_run(
        replace(run, launch=launch),
        event.at,
        event.failure,
    )


def _record_attestation(run: Run, event: messages.Attested) -> Run:
    """Record that the run's report was verified; the first verified report counts."""
    if run.status is not RunStatus.RUNNING or not run.lacks_attestation:
        return run
    return replace(run, attestation=event.attestation)


def _record_report(
    run: Run,
    event: messages.Reported,
    timing: RunTiming,
    job_id: str,
) -> Run:
    """Record the state that the container reports; no report counts after SUCCESS or FAILED.

    A reported failure ends the run immediately, a reported success only after the exit.
    """
    last_report = run.container_report
    if run.over or last_report.is_final:
        return run
    report = ContainerReport(
        status=event.status,
        at=event.at,
        result_code=event.result_code or last_report.result_code,
        result_message=event.result_message or last_report.result_message,
    )
    run = replace(run, container_report=report)
    if run.status is not RunStatus.RUNNING:
        return run
    return conclude(
        run,
        event.at,
        timing,
        job_id,
        last=False,
        cause=event.cause,
    )


def _record_exit(
    run: Run,
    event: messages.Exited,
    timing: RunTiming,
    job_id: str,
) -> Run:
    """Record how the container exited, which ends the run unless a report may still come.

    Result code and message of a report take precedence over the last line of the log.
    """
    if run.exit is not None or run.status is RunStatus.WAITING:
        return run
    report = run.container_report
    report = replace(
        report,
        result_code=report.result_code or event.result_code,
        result_message=report.result_message or event.result_message,
    )
    run = replace(
        run,
        exit=event.exit,
        container_report=report,
    )
    return conclude(
        run,
        event.at,
        timing,
        job_id,
        last=False,
        cause=event.cause,
    )


def _fail(run: Run, event: messages.Broken) -> Run:
    """Fail a run whose container the gateway has to end because of a failure.

    A run that is not RUNNING stays as it is.
    """
    if run.status is not RunStatus.RUNNING:
        return run
    return end_run(run, event.at, event.failure)


def _record_fingerprints(
    run: Run,
    event: messages.Sealed,
    timing: RunTiming,
) -> Run:
    """Record the fingerprints of a model's files.

    Files that could not be read are read again after a pause, up to `SEAL_TRIES` times in all,
    unless the event says that no further try can help (``final``). If the last try fails too, the
    run gets a warning and leaves no model. The success of the run is reported only once its files
    are read or given up.
    """
    if not run.unsealed:
        return run
    call = run.sealing.call
    if event.files is not None:
        call = replace(
            call,
            state=CallState.OK,
            message="",
        )
        sealing = replace(
            run.sealing,
            call=call,
            files=event.files,
        )
        return with_report_due(replace(run, sealing=sealing))
    if call.tries < SEAL_TRIES and not event.final:
        due = event.at + timing.retry(
            call.tries - 1,
            run.name,
        )
        call = replace(
            call,
            state=CallState.LOST,  # made again at `due_at`; REFUSED would be final
            due_at=due,
            message=event.message,
        )
        return _with_sealing_call(run, call)
    call = replace(
        call,
        state=CallState.REFUSED,
        due_at=None,
        message=event.message,
    )
    text = f"the model's files could not be read, so it is not saved: {event.message}"
    run = replace(run, warnings=(*run.warnings, text))
    return _with_sealing_call(run, call)


def _with_sealing_call(run: Run, call: Call) -> Run:
    """Return the run with ``call`` as its sealing's call, and with a report due now."""
    sealing = replace(run.sealing, call=call)
    return with_report_due(replace(run, sealing=sealing))


# ---------------------------------------------------------------- inspections


def begin_inspection(
    run: Run,
    now: datetime,
    timing: RunTiming,
) -> Run:
    """Return the run at the beginning of an inspection, with the time of the next one.

    The pause until then is as long as the container has run so far, but at least ``probe_every``
    and at most ``probe_rarely`` seconds. If the engine is silent or the run is being stopped, the
    pause is ``probe_every`` seconds.
    """
    seconds = 0.0
    is_undisturbed = run.status is RunStatus.RUNNING and run.away_at is None
    if is_undisturbed and run.started_at is not None:
        seconds = (now - run.started_at).total_seconds()
    pause = max(timing.probe_every, min(seconds, timing.probe_rarely))
    return replace(
        run,
        probe_at=now + timedelta(seconds=pause),
    )


def _record_inspection(
    run: Run,
    event: messages.Inspected,
    timing: RunTiming,
) -> Run:
    """Record that the engine responds and has the container.

    The same run is returned if that changes nothing, so that nothing has to be stored.
    """
    if run.over:
        return run
    is_undisturbed = run.status is RunStatus.RUNNING and run.away_at is None
    if is_undisturbed and run.probe_at is not None and run.probe_at > event.at:
        return run  # its next inspection keeps its time
    return replace(
        run,
        probe_at=_next_probe(event.at, timing),
        away_at=None,
    )


def _record_silence(
    run: Run,
    event: messages.EngineSilent,
    timing: RunTiming,
) -> Run:
    """Record since when the engine has not responded, and plan the next inspection.

    An inspection that is planned already may become earlier, but not later. Otherwise a connection
    that breaks again and again would postpone the inspection for ever.
    """
    if run.over:
        return run
    probe_at = _next_probe(event.at, timing)
    if run.probe_at is not None and run.probe_at > event.at:
        probe_at = min(probe_at, run.probe_at)
    return replace(run, probe_at=probe_at, away_at=run.away_at or event.at)


def _end_without_container(run: Run, event: messages.Gone) -> Run:
    """End a run whose container the engine does not know any more.

    A run that was being stopped is then stopped. A running one has failed, unless its exit is
    recorded already. Any other run stays as it is.
    """
    if run.status is RunStatus.STOPPING:
        return end_run(run, event.at, stop_failure(run))
    if run.status is RunStatus.RUNNING and run.exit is None:
        failure = Failure("GONE", "the engine does not know the container any more")
        return end_run(run, event.at, failure)
    return run


def _next_probe(at: datetime, timing: RunTiming) -> datetime:
    """Return when a container is inspected next after news of it at ``at``.

    That is after the shortest pause, ``probe_every`` seconds.
    """
    return at + timedelta(seconds=timing.probe_every)


# ---------------------------------------------------------------- stops, reports, lost gateways


def stop(run: Run, at: datetime) -> Run:
    """Return the run after a request to stop it; a run that has ended or is ending stays the same.

    A run without a container fails immediately, any other run once its container is gone. A run
    that has succeeded stays a success, but leaves no model if the model's files are not
    fingerprinted yet.
    """
    if run.unsealed:
        call = replace(
            run.sealing.call,
            state=CallState.REFUSED,
            message="stopped",
        )
        return _with_sealing_call(run, call)
    if run.over or run.stop_at is not None:
        return run
    run = replace(run, stop_at=at)
    if not _may_have_container(run):
        return end_run(run, at, stop_failure(run))
    if run.status is RunStatus.RUNNING:
        return replace(
            run,
            status=move(RUN, run.status, RunStatus.STOPPING),
        )
    return run  # its launch is under way: `_record_launch` moves it to STOPPING


def _may_have_container(run: Run) -> bool:
    """Return whether the engine may have a container of the run that has to be stopped.

    A launch under way may still create a container; a failed launch (LOST), which waits for its
    next try, has not created one. A container that has exited needs no stop.
    """
    if run.status is RunStatus.LAUNCHING:
        return run.launch.state is not CallState.LOST
    if run.status is RunStatus.RUNNING:
        return run.exit is None
    return run.status is not RunStatus.WAITING


def record_report_try(
    run: Run,
    status: TaskStatus,
    finish_call: Callable[[Call], Call],
) -> Run:
    """Return the run after a try to report its state to the scheduling node.

    ``status`` is the state in the report; ``finish_call`` returns the report's call after the try.

    The try is ignored if the run's state has changed since, as the new state gets its own call. It
    is also ignored if an earlier try has already delivered the state.
    """
    if status is not run.reported_status or status is run.reporting.status:
        return run
    call = finish_call(run.reporting.call)
    reporting = replace(run.reporting, call=call)
    if call.state is CallState.OK:
        reporting = Reporting(status, Call())
    return replace(run, reporting=reporting)


def with_warnings(
    run: Run,
    warnings: tuple[str, ...],
) -> Run:
    """Return the run with further warnings; a warning that it has already is not repeated."""
    return replace(run, warnings=tuple(dict.fromkeys((*run.warnings, *warnings))))


def leave_gateway(run: Run, event: messages.OwnerLost) -> Run:
    """Return the run of a lost gateway: given to the heir if it is WAITING, otherwise as failed.

    Its container may still run, but its channel to the other parties was lost with the gateway.
    """
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return end_run(run, event.at, stop_failure(run))
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return end_run(run, event.at, Failure("CHANNEL_LOST", text))


def resume(run: Run) -> Run:
    """Return the run for a restarted gateway: every call that was under way is repeated.

    Its container is inspected immediately, unless its exit is known.
    """
    for path in ("launch", "stop", "collect", "sealing.call", "reporting.call"):
        run = changed(run, path, Call.interrupted)
    if run.exit is not None:
        return run
    return replace(run, probe_at=None)  # None: the inspection is due immediately
