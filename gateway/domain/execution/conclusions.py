"""How a run ends: by its report and its exit code, and as a success or a failure.

A reported failure is final. A reported success also needs exit code 0. An exit with code 0 and
without a report counts as success after a short grace if the outputs are there, unless the settings
of the node demand the report.
"""

from datetime import datetime, timedelta

from gateway.domain.attestation import report_deadline
from gateway.domain.execution.exit_failures import exit_failure
from gateway.domain.records import replace
from gateway.domain.run import Exit, Run
from gateway.domain.spec import Call, Failure, moment
from gateway.domain.states import RUN, RunStatus, TaskStatus, move
from gateway.domain.timeouts import RunTiming

_REPORT_MISSING = "TEE_REPORT_MISSING"
_REPORT_OVERDUE = "TEE_REPORT_OVERDUE"
_OVERDUE_TEXT = "the run submitted no valid attestation report within max_age of its policy"


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
        return end_run(run, now, stop_failure(run))
    if run.status is not RunStatus.RUNNING:
        return run
    exited_badly = run.exit is not None and run.exit.code != 0
    reported_status = run.container_report.status
    if reported_status is TaskStatus.FAILED or exited_badly:
        failure = _with_cause(exit_failure(run, job_id), cause)
        return end_run(run, now, _with_missing_report(run, failure))
    if run.exit is not None and reported_status is TaskStatus.SUCCESS:
        missing_output = _missing_output(run, run.exit)
        return end_run(run, now, _with_missing_report(run, missing_output))
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
        return end_run(run, now, _with_missing_report(run, None))
    deadline = report_deadline(run.attestation, run.started_at)
    if deadline is not None and now >= deadline:
        return end_run(run, now, Failure(_REPORT_OVERDUE, _OVERDUE_TEXT))
    if run.away_at is None or now < run.away_at + timedelta(seconds=timing.engine_timeout):
        return run
    since = moment(run.away_at)
    text = f"the container engine has not answered since {since}"
    return end_run(run, now, Failure("ENGINE_DOWN", text))


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
        return end_run(run, now, missing_report)
    failure = Failure("NO_CALLBACK", text, exit_code=0)
    return end_run(run, now, _with_missing_report(run, failure))


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


def _with_missing_report(run: Run, failure: Failure | None) -> Failure | None:
    """Return the failure of a run that lacks its attestation report; any other one's stays.

    A failure of the engine or for lack of memory has its own reason.
    """
    if not run.lacks_attestation:
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


def end_run(
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
    return with_report_due(replace(run, status=status, ended_at=at, failure=failure))


def with_report_due(run: Run) -> Run:
    """Return the run with a report to the scheduling node due now, whose tries count from 0."""
    return replace(
        run,
        reporting=replace(
            run.reporting,
            call=Call(),
        ),
    )


def failure_of(run: Run) -> Failure | None:
    """Return the failure of a run; None without one.

    A run that is still being stopped has the failure STOPPED already.
    """
    if run.over or run.stop_at is None:
        return run.failure
    return _at_party(run, stop_failure(run))


def stop_failure(run: Run) -> Failure:
    """Return the failure of a run that was stopped on request.

    It has the exit code of the container; None if no container has exited.
    """
    exit_code = None
    if run.exit is not None:
        exit_code = run.exit.code
    return Failure("STOPPED", "stopped on request", exit_code=exit_code)


def _at_party(run: Run, failure: Failure) -> Failure:
    """Return a failure with the party, task and node of its run."""
    party = run.party
    return replace(
        failure,
        role=party.role,
        task=run.task_name,
        node=party.node,
    )
