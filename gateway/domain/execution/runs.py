"""The changes of one run by events. A run ends by its report and its exit code.

A reported failure is final. A reported success also needs exit code 0. An exit with code 0 and
without a report counts as success after a short grace if the outputs are there, unless the settings
of the node demand the report.

The Docker daemon may also have ended a container. A container survives the death of its daemon, but
a daemon that starts again without live-restore ends the container by SIGTERM or SIGKILL, or does
not know how the container ended (exit code 255). A daemon that is shut down first refuses requests,
then ends its containers, and only then closes its connections. In these cases the engine has
failed, not the container.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

from gateway.domain.attestation import report_deadline
from gateway.domain.execution import messages
from gateway.domain.records import replace
from gateway.domain.run import ContainerReport, Exit, LocalJob, Reporting, Run
from gateway.domain.spec import Call, CallState, Failure, changed, failure_detail, moment
from gateway.domain.states import RUN, RunStatus, TaskStatus, merge, move
from gateway.domain.timeouts import RunTiming

SEAL_TRIES = 10  # tries to read a model's files; if all fail, the run leaves no model
NEVER_BEGAN = (126, 127)  # exit codes of a command that could not be executed

# Exit codes of a container whose daemon died: unknown, SIGKILL, SIGTERM.
_DAEMON_EXIT_CODES = (255, 137, 143)
# Time that Docker gives its containers to end when Docker is shut down. A container that exited
# longer than this before its engine became silent was not ended by the engine.
_DAEMON_GRACE = timedelta(seconds=15)
_REPORT_MISSING = "TEE_REPORT_MISSING"
_REPORT_OVERDUE = "TEE_REPORT_OVERDUE"
_OVERDUE_TEXT = "the run submitted no valid attestation report within max_age of its policy"
# Longest result code, and longest message of it, in characters; the rest is cut off.
_MAX_CODE_LENGTH = 100
_MAX_MESSAGE_LENGTH = 1000
# Signals that end programs without enough memory: abort, bus error, kill, segmentation fault.
_OUT_OF_MEMORY_SIGNALS = (6, 7, 9, 11)
# A program that a signal ended has this number plus the signal's number as its exit code.
_BY_SIGNAL = 128
# Exit codes with a meaning by convention.
_MEANINGS = {
    126: (
        "the program to run exists and cannot be executed: a file without the permission, "
        "or one that was built for another kind of machine"
    ),
    127: (
        "the program to run was not found: one that the image does not have, "
        "such as the interpreter in a script's first line or the program behind env"
    ),
}


def result_of(lines: Sequence[bytes]) -> tuple[str, str]:
    """Return result code and message from the last line of a container's log.

    The line is a JSON object with ``result_code`` and ``result_message``, or with the names that
    descriptions of components use, ``resultCode`` and ``resultMessage``. Both texts are empty for
    any other line.
    """
    if not lines:
        return "", ""
    result = _parse_result(lines[-1])
    code = _first_text(result, "result_code", "resultCode")
    message = _first_text(result, "result_message", "resultMessage")
    return code[:_MAX_CODE_LENGTH], message[:_MAX_MESSAGE_LENGTH]


def _first_text(result: dict[str, Any], *names: str) -> str:
    """Return the first value under these names as text; empty if no name has a value.

    Null, false, 0 and an empty text do not count as values.
    """
    for name in names:
        if result.get(name):
            return str(result[name])
    return ""


def _parse_result(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty one for any other line."""
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return {}
    if not isinstance(result, dict):
        return {}
    return result


def meaning(code: int) -> str:
    """Return the meaning that an exit code has by convention; empty for a code without one."""
    return _MEANINGS.get(code, "")


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
    # `EngineSilent` and `Gone` are subclasses of `Inspected`, so they come before it.
    match event:
        case messages.Launched():
            return _launched(run, event, timing, job_id)
        case messages.LaunchFailed():
            return _not_launched(run, event, timing)
        case messages.Attested():
            return _attested(run, event)
        case messages.EngineSilent():
            return _engine_silent(run, event, timing)
        case messages.Gone():
            return _gone(run, event)
        case messages.Inspected():
            return _inspected(run, event, timing)
        case messages.Broken():
            return _broken(run, event)
        case messages.Exited():
            return _exited(run, event, timing, job_id)
        case messages.Reported():
            return _with_report(run, event, timing, job_id)
        case messages.Sealed():
            return _sealed(run, event, timing)
        case _:
            assert_never(event)


def probed(
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


def _next_probe(at: datetime, timing: RunTiming) -> datetime:
    """Return when a container is inspected next after news of it at ``at``.

    That is after the shortest pause, ``probe_every`` seconds.
    """
    return at + timedelta(seconds=timing.probe_every)


def _engine_silent(
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


def _gone(run: Run, event: messages.Gone) -> Run:
    """End a run whose container the engine does not know any more.

    A run that was being stopped is then stopped. A running one has failed, unless its exit is
    recorded already. Any other run stays as it is.
    """
    if run.status is RunStatus.STOPPING:
        return finished(run, event.at, _stop_failure(run))
    if run.status is RunStatus.RUNNING and run.exit is None:
        failure = Failure("GONE", "the engine does not know the container any more")
        return finished(run, event.at, failure)
    return run


def _inspected(
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


def _broken(run: Run, event: messages.Broken) -> Run:
    """Fail a run whose container the gateway has to end because of a failure.

    A run that is not RUNNING stays as it is.
    """
    if run.status is not RunStatus.RUNNING:
        return run
    return finished(run, event.at, event.failure)


def _attested(run: Run, event: messages.Attested) -> Run:
    """Record that the run's report was verified; the first verified report counts."""
    if run.status is not RunStatus.RUNNING or not _lacks_report(run):
        return run
    return replace(run, attestation=event.attestation)


def _lacks_report(run: Run) -> bool:
    """Return whether the node demands an attestation report of the run and has verified none."""
    return run.attestation is not None and run.attestation.verified_at is None


def _with_missing_report(run: Run, failure: Failure | None) -> Failure | None:
    """Return the failure of a run that lacks its attestation report; any other one's stays.

    A failure of the engine or for lack of memory has its own reason.
    """
    if not _lacks_report(run):
        return failure
    text = "the run ended without an attestation report, so it got no inputs"
    if failure is None:
        return Failure(_REPORT_MISSING, text)
    if failure.reason in ("OOM_KILLED", "ENGINE_DOWN"):
        return failure
    return replace(
        failure,
        reason=_REPORT_MISSING,
        message=f"{text}; the container: {failure.message}",
    )


def _exited(
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


def _with_report(
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


def _launched(
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


def _not_launched(
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
    return finished(
        replace(run, launch=launch),
        event.at,
        event.failure,
    )


def _sealed(
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
        return _with_report_due(replace(run, sealing=sealing))
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
    return _with_report_due(replace(run, sealing=sealing))


# ---------------------------------------------------------------- the end of a run


def conclude(
    run: Run,
    now: datetime,
    timing: RunTiming,
    job_id: str,
    *,
    last: bool,
    cause: Failure | None = None,
) -> Run:
    """End a running container's run if its report and its exit decide that.

    A reported failure and an exit code other than 0 are failures; exit code 0 after a reported
    success is a success. Otherwise the run waits for more news. ``last`` is true once the time for
    that is over: the run then ends with the news that it has, if that suffices. A run that is being
    stopped ends with the exit of its container, whatever was reported.

    ``cause`` is the fault of the run's storage: it becomes the reason of a failure, and its message
    precedes the container's own.
    """
    if run.status is RunStatus.STOPPING and run.exit is not None:
        return finished(run, now, _stop_failure(run))
    if run.status is not RunStatus.RUNNING:
        return run
    exited_badly = run.exit is not None and run.exit.code != 0
    reported_status = run.container_report.status
    if reported_status is TaskStatus.FAILED or exited_badly:
        failure = _with_cause(exit_failure(run, job_id), cause)
        return finished(run, now, _with_missing_report(run, failure))
    if run.exit is not None and reported_status is TaskStatus.SUCCESS:
        missing_output = _missing_output(run, run.exit)
        return finished(run, now, _with_missing_report(run, missing_output))
    if not last:
        return run
    if run.exit is None:
        return _conclude_without_exit(run, now, timing)
    return _conclude_without_report(run, run.exit, now, timing)


def _missing_output(run: Run, exit_: Exit) -> Failure | None:
    """Return the failure of a run that reported success without an output that the flow uses.

    None if every such output is in the storage, and for a host or an arbiter that has written some
    other output: published components write some tables at the guest only. Other missing outputs
    are warnings.
    """
    has_written = not set(run.data.outputs) <= set(exit_.missing_outputs)
    if has_written and run.party.role != "guest":
        return None
    unwritten = run.data.keys_of(set(exit_.missing_outputs) & set(run.data.needed_outputs))
    if not unwritten:
        return None
    text = (
        f"the container reported success and did not write {', '.join(unwritten)}, "
        "which a later task reads"
    )
    return Failure("OUTPUT_MISSING", text, exit_code=0)


def _conclude_without_exit(
    run: Run,
    now: datetime,
    timing: RunTiming,
) -> Run:
    """End a run without a known exit if it has waited long enough for one.

    A run that has reported success succeeds, although its container has not exited. A run fails
    whose engine has been silent for ``engine_timeout`` seconds, or whose attestation report is
    overdue. Any other run goes on.
    """
    if run.container_report.status is TaskStatus.SUCCESS:
        return finished(run, now, _with_missing_report(run, None))
    deadline = report_deadline(run.attestation, run.started_at)
    if deadline is not None and now >= deadline:
        return finished(run, now, Failure(_REPORT_OVERDUE, _OVERDUE_TEXT))
    if run.away_at is None or now < run.away_at + timedelta(seconds=timing.engine_timeout):
        return run
    since = moment(run.away_at)
    text = f"the container engine has not answered since {since}"
    return finished(run, now, Failure("ENGINE_DOWN", text))


def _conclude_without_report(
    run: Run,
    exit_: Exit,
    now: datetime,
    timing: RunTiming,
) -> Run:
    """End a run whose container exited with code 0 and never reported its end.

    It is a success if its outputs are in the storage, unless the node's settings
    (``silence_fails``) demand the report.
    """
    if exit_.missing_outputs:
        missing = ", ".join(exit_.missing_outputs)
        text = (
            f"the container ended with code 0, without a report and without its outputs {missing}"
        )
    elif timing.silence_fails:
        text = (
            "the container ended with code 0 and without a report, which counts as a failure here"
        )
    else:
        missing_report = _with_missing_report(run, None)
        run = replace(run, no_callback=missing_report is None)
        return finished(run, now, missing_report)
    failure = Failure("NO_CALLBACK", text, exit_code=0)
    return finished(run, now, _with_missing_report(run, failure))


def finished(
    run: Run,
    at: datetime,
    failure: Failure | None = None,
) -> Run:
    """End the run: as a success, or as failed if there is a failure.

    The failure gets the run's party, task and node.
    """
    status = RunStatus.SUCCESS
    if failure is not None:
        status = RunStatus.FAILED
        failure = _at_party(run, failure)
    status = move(RUN, run.status, status)
    return _with_report_due(replace(run, status=status, ended_at=at, failure=failure))


def _at_party(run: Run, failure: Failure) -> Failure:
    """Return a failure with the party, task and node of its run."""
    party = run.party
    return replace(
        failure,
        role=party.role,
        task=run.task_name,
        node=party.node,
    )


def failure_of(run: Run) -> Failure | None:
    """Return the failure of a run; None without one.

    A run that is still being stopped has the failure STOPPED already.
    """
    if run.over or run.stop_at is None:
        return run.failure
    return _at_party(run, _stop_failure(run))


def exit_failure(run: Run, job_id: str) -> Failure:
    """Return why the container failed, in the words that every party of the job sees.

    The reason is the first that applies:

    - REPORTED_FAILED: the container reported a failure, and its exit code is 0 or not known;
    - OOM_KILLED: the kernel killed the container for lack of memory;
    - ENGINE_DOWN: the container ended because its engine died or restarted;
    - EXIT_<code>, such as EXIT_1: any other exit code.
    """
    result = _result_in_words(run)
    reported_text = result or _pointer_to_log(run, job_id)
    exit_ = run.exit
    if exit_ is None:
        return Failure("REPORTED_FAILED", reported_text)
    code = exit_.code
    if code == 0:
        reason = "REPORTED_FAILED"
        text = reported_text
    elif exit_.oom_killed:
        reason = "OOM_KILLED"
        text = result or "the container used more memory than it may"
    elif _ended_with_engine(run, exit_):
        reason = "ENGINE_DOWN"
        text = f"the container engine went away and took the container along (exit code {code})"
    else:
        reason = f"EXIT_{code}"
        text = _exit_in_words(run, exit_, result)
    return Failure(reason, text, exit_code=code)


def _result_in_words(run: Run) -> str:
    """Return the reported result code and its message for a sentence; empty if neither came.

    If a code came without a message, the message is the one that the vendor registered for it.
    """
    report = run.container_report
    message = report.result_message or run.software.results.get(report.result_code, "")
    if not report.result_code:
        return message
    code = f"result code {report.result_code}"
    if not message:
        return code
    return f"{code}: {message}"


def _exit_in_words(
    run: Run,
    exit_: Exit,
    result: str,
) -> str:
    """Describe an exit code other than 0, its usual meaning, and the reported result."""
    sentences = [_exit_code_in_words(run, exit_)]
    if not run.container_report.status:  # a program that has reported anything did start
        sentences.append(meaning(exit_.code))
    is_memory_signal = exit_.code - _BY_SIGNAL in _OUT_OF_MEMORY_SIGNALS
    if is_memory_signal and run.limits.get("memory"):
        text = "its memory is limited, and programs that get no more memory often end in this way"
        sentences.append(text)
    sentences.append(result)
    return "; ".join(filter(None, sentences))


def _pointer_to_log(run: Run, job_id: str) -> str:
    """Return the message for a failure without one: the command that shows the log."""
    arguments = [job_id, "--task", run.task_name, "--party", run.party.label]
    look = shlex.join(["bfia-gateway", "job", "logs", *arguments])
    return f"the container reported FAILED; its node has the log: {look}"


def _exit_code_in_words(run: Run, exit_: Exit) -> str:
    """Describe an exit code with the signal that caused it and the last report before it."""
    text = f"exit code {exit_.code}"
    if exit_.signal:
        text += f" by signal {exit_.signal}"
    reported_status = run.container_report.status
    if reported_status:
        text += f" after it reported {reported_status}"
    return text


def _with_cause(failure: Failure, cause: Failure | None) -> Failure:
    """Return the failure with the fault of the storage as its reason.

    A failure of the engine or for lack of memory stays as it is: the storage did not cause it.
    """
    if cause is None or failure.reason in ("OOM_KILLED", "ENGINE_DOWN"):
        return failure
    message = f"{cause.message}; the container: {failure.message}"
    return replace(
        failure,
        reason=cause.reason,
        message=message,
    )


def _ended_with_engine(run: Run, exit_: Exit) -> bool:
    """Return whether the container exited because its engine died or restarted.

    The engine was silent, the container has not reported a failure, the exit code is one that a
    daemon causes, and the container did not exit long before the silence.
    """
    if run.away_at is None or run.container_report.status is TaskStatus.FAILED:
        return False
    if exit_.code not in _DAEMON_EXIT_CODES:
        return False
    return exit_.finished_at is None or exit_.finished_at >= run.away_at - _DAEMON_GRACE


def _with_report_due(run: Run) -> Run:
    """Return the run with a report to the scheduling node due now, whose tries count from 0."""
    return replace(
        run,
        reporting=replace(
            run.reporting,
            call=Call(),
        ),
    )


def _stop_failure(run: Run) -> Failure:
    """Return the failure of a run that was stopped on request.

    It has the exit code of the container; None if no container has exited.
    """
    exit_code = None
    if run.exit is not None:
        exit_code = run.exit.code
    return Failure("STOPPED", "stopped on request", exit_code=exit_code)


# ---------------------------------------------------------------- stops, reports, lost gateways


def stopped(run: Run, at: datetime) -> Run:
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
        return finished(run, at, _stop_failure(run))
    if run.status is RunStatus.RUNNING:
        return replace(
            run,
            status=move(RUN, run.status, RunStatus.STOPPING),
        )
    return run  # its launch is under way: `_launched` moves it to STOPPING


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


def after_report_try(
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


def without_owner(run: Run, event: messages.OwnerLost) -> Run:
    """Return the run of a lost gateway: given to the heir if it is WAITING, otherwise as failed.

    Its container may still run, but its channel to the other parties was lost with the gateway.
    """
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return finished(run, event.at, _stop_failure(run))
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return finished(run, event.at, Failure("CHANNEL_LOST", text))


def interrupted(run: Run) -> Run:
    """Return the run for a restarted gateway: every call that was under way is repeated.

    Its container is inspected immediately, unless its exit is known.
    """
    for path in ("launch", "stop", "collect", "sealing.call", "reporting.call"):
        run = changed(run, path, Call.interrupted)
    if run.exit is not None:
        return run
    return replace(run, probe_at=None)  # None: the inspection is due immediately
