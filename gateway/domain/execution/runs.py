"""What an event changes in one run. A run ends by its report and its exit code.

A reported failure is final, a reported success needs exit code 0, and an exit with code 0 without a report counts
after a short grace if the outputs are there.

A container outlives a daemon that dies; a daemon that comes back without live-restore ends it, by SIGTERM or
SIGKILL, or does not know how it ended (255). One that has to end takes no more requests, then ends its
containers, and only then is seen to be gone. Such an end is the engine's failure, not the container's.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain.execution import messages
from gateway.domain.run import Exit, Reporting, Run
from gateway.domain.spec import Call, CallState, Failure, changed, moment
from gateway.domain.states import RUN, RunStatus, TaskStatus, merge, move, replace
from gateway.domain.timeouts import RunTiming

SEAL_TRIES = 10
"""how often files that cannot be read are tried before the model goes without them"""
_BY_THE_DAEMON = (255, 137, 143)
_ENDING = timedelta(seconds=15)
"""so long Docker gives its containers when it ends; a run of which the end was seen before is not in question"""
_LONGEST_CODE, _LONGEST_MESSAGE = 100, 1000
NEVER_BEGAN = (126, 127)
_WANTS_MEMORY = (6, 7, 9, 11)
"""signals of which a program ends that gets no more memory: it gives up, meets what is not there, or is killed"""
_MEANINGS = {
    126: "what it was to run is there and cannot be executed: a file without the right to be, or one that was "
    "built for another kind of machine",
    127: "what it was to run was not found: a program that the image does not have, such as the interpreter in a "
    "script's first line or the program behind env",
}


def result_of(lines: Sequence[bytes]) -> tuple[str, str]:
    """Return result code and message where the last line is a JSON object with them; else empty texts.

    The names are ``result_code`` and ``result_message``, or as in descriptions ``resultCode`` and
    ``resultMessage``.
    """
    try:
        reported = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(reported, dict):
        return "", ""
    code = reported.get("result_code") or reported.get("resultCode")
    message = reported.get("result_message") or reported.get("resultMessage")
    return str(code or "")[:_LONGEST_CODE], str(message or "")[:_LONGEST_MESSAGE]


def meaning(code: int) -> str:
    """Return in words what a code says by convention; empty for one that is the program's own."""
    return _MEANINGS.get(code, "")


def merge_runs(runs: Iterable[Run]) -> TaskStatus:
    """Fold the runs of a task (or of one role in it) into what is reported to other nodes."""
    return merge(run.reported_status for run in runs)


def apply(
    run: Run,
    event: messages.OfRun,
    timing: RunTiming,
    job_id: str,
) -> Run:
    """Return the run after an event; a late or repeated one changes nothing."""
    probe_at = event.at + timedelta(seconds=timing.probe_every)
    match event:
        case messages.Launched():
            return _launched(run, event, timing, probe_at, job_id)
        case messages.LaunchFailed() if run.status is RunStatus.LAUNCHING:
            return _not_launched(run, event, timing)
        case messages.EngineSilent() if not run.over:
            if (
                run.probe_at is not None and run.probe_at > event.at
            ):  # a connection that breaks over and over
                probe_at = min(probe_at, run.probe_at)
            return replace(run, probe_at=probe_at, away_at=run.away_at or event.at)
        case messages.Gone() if run.status is RunStatus.STOPPING:
            return finished(run, event.at, _stopped(run))
        case messages.Gone() if run.status is RunStatus.RUNNING and run.exit is None:
            return finished(
                run, event.at, Failure("GONE", "the engine does not know the container any more")
            )
        case messages.EngineSilent() | messages.Gone() | messages.LaunchFailed():
            return run
        case messages.Inspected():
            claimed = run.probe_at is not None and run.probe_at > event.at
            known = claimed and run.status is RunStatus.RUNNING and run.away_at is None
            return run if run.over or known else replace(run, probe_at=probe_at, away_at=None)
        case messages.Broken():
            return (
                run
                if run.status is not RunStatus.RUNNING
                else finished(run, event.at, event.failure)
            )
        case messages.Exited():
            if run.exit is not None or run.status is RunStatus.WAITING:
                return run
            code, message = (
                run.result_code or event.result_code,
                run.result_message or event.result_message,
            )
            run = replace(
                run,
                exit=event.exit,
                result_code=code,
                result_message=message,
            )
            return conclude(run, event.at, timing, job_id, last=False, cause=event.cause)
        case messages.Reported():
            if run.over or run.reported in (TaskStatus.SUCCESS, TaskStatus.FAILED):
                return run
            code, message = (
                event.result_code or run.result_code,
                event.result_message or run.result_message,
            )
            run = replace(
                run,
                reported=event.status,
                reported_at=event.at,
                result_code=code,
                result_message=message,
            )
            if run.status is not RunStatus.RUNNING:
                return run
            return conclude(run, event.at, timing, job_id, last=False, cause=event.cause)
        case messages.Sealed():
            return _sealed(run, event, timing)
        case _:
            assert_never(event)


def probed(
    run: Run,
    now: datetime,
    timing: RunTiming,
) -> Run:
    """Return the run as it is inspected now: the longer it has run undisturbed, the later again."""
    steady = run.status is RunStatus.RUNNING and run.away_at is None and run.started_at is not None
    ran = (now - run.started_at).total_seconds() if steady and run.started_at else 0.0
    pause = max(timing.probe_every, min(ran, timing.probe_rarely))
    return replace(run, probe_at=now + timedelta(seconds=pause))


def _launched(
    run: Run,
    event: messages.Launched,
    timing: RunTiming,
    probe_at: datetime,
    job_id: str,
) -> Run:
    if (
        run.over and run.collect.state is not CallState.IDLE
    ):  # by a gateway that was frozen meanwhile
        return replace(run, collect=Call())
    if run.status is not RunStatus.LAUNCHING:
        return run
    run = replace(
        run,
        status=move(
            RUN, run.status, RunStatus.RUNNING if run.stop_at is None else RunStatus.STOPPING
        ),
        launch=replace(run.launch, state=CallState.OK),
        started_at=event.at,
        probe_at=probe_at,
        image_digest=event.image_digest,
        granted=event.granted,
        away_at=None,
    )
    return conclude(run, event.at, timing, job_id, last=False)


def _not_launched(
    run: Run,
    event: messages.LaunchFailed,
    timing: RunTiming,
) -> Run:
    """Have a run whose engine is away launched again for as long as one that is up would wait for it."""
    since = run.away_at or event.at
    lasting = event.at >= since + timedelta(seconds=timing.engine_timeout)
    if event.failure.reason == "ENGINE_DOWN" and run.stop_at is None and not lasting:
        due = event.at + timing.retry(run.launch.tries - 1, run.name)
        return replace(
            run, away_at=since, launch=replace(run.launch, state=CallState.LOST, due_at=due)
        )
    launch = replace(run.launch, state=CallState.REFUSED, reason=event.failure.reason)
    return finished(replace(run, launch=launch), event.at, event.failure)


def _sealed(
    run: Run,
    event: messages.Sealed,
    timing: RunTiming,
) -> Run:
    if not run.unsealed:
        return run
    if event.files is not None:
        run = replace(
            run, files=event.files, seal=replace(run.seal, state=CallState.OK, message="")
        )
    elif run.seal.tries < SEAL_TRIES and not event.final:
        due = event.at + timing.retry(run.seal.tries - 1, run.name)
        run = replace(
            run,
            seal=replace(
                run.seal,
                state=CallState.LOST,
                due_at=due,
                message=event.message,
            ),
        )
    else:
        seal = replace(
            run.seal,
            state=CallState.REFUSED,
            due_at=None,
            message=event.message,
        )
        text = f"the model's files could not be read, so it is not saved: {event.message}"
        run = replace(run, seal=seal, warnings=(*run.warnings, text))
    return _with_news(run)


def conclude(
    run: Run,
    now: datetime,
    timing: RunTiming,
    job_id: str,
    *,
    last: bool,
    cause: Failure | None = None,
) -> Run:
    """Decide a running container's fate from what it reported and how it exited; ``last``: nothing more comes.

    ``cause``: what is the matter with its storage; the failure's reason then, beside the container's own words.
    """
    if run.status is RunStatus.STOPPING and run.exit is not None:
        return finished(run, now, _stopped(run))
    if run.status is not RunStatus.RUNNING:
        return run
    if run.reported is TaskStatus.FAILED:
        return finished(run, now, _caused(exit_failure(run, job_id), cause))
    if run.exit is None:
        if last and run.reported is TaskStatus.SUCCESS:
            return finished(run, now)
        if (
            last
            and run.away_at is not None
            and now >= run.away_at + timedelta(seconds=timing.engine_timeout)
        ):
            since = moment(run.away_at)
            return finished(
                run,
                now,
                Failure("ENGINE_DOWN", f"the container engine has not answered since {since}"),
            )
        return run
    if run.exit.code != 0:
        return finished(run, now, _caused(exit_failure(run, job_id), cause))
    if run.reported is TaskStatus.SUCCESS:
        return finished(run, now)
    if not last:
        return run
    text = ""
    if run.exit.missing_outputs:
        missing = ", ".join(run.exit.missing_outputs)
        text = (
            f"the container ended with code 0, without a report and without its outputs {missing}"
        )
    elif timing.silence_fails:
        text = (
            "the container ended with code 0 and without a report, which counts as a failure here"
        )
    if text:
        return finished(run, now, Failure("NO_CALLBACK", text, exit_code=0))
    return finished(replace(run, no_callback=True), now)


def exit_failure(run: Run, job_id: str) -> Failure:
    """Name why the container failed: its engine, out of memory, its exit code, or what it reported itself."""
    exit_ = run.exit
    text = run.result_message or run.results.get(run.result_code, "")
    if run.result_code:
        text = f"result code {run.result_code}" + (f": {text}" if text else "")
    if exit_ is None or exit_.code == 0:
        of = [job_id, "--task", run.task_name, "--party", run.party.label]
        look = shlex.join(["bfia-gateway", "job", "logs", *of])
        text = text or f"the container reported FAILED; its node has the log: {look}"
        return Failure("REPORTED_FAILED", text, exit_code=exit_.code if exit_ else None)
    if exit_.oom_killed:
        return Failure(
            "OOM_KILLED", text or "the container used more memory than it may", exit_code=exit_.code
        )
    if _with_its_engine(run, exit_):
        text = (
            f"the container engine went away and took the container along (exit code {exit_.code})"
        )
        return Failure("ENGINE_DOWN", text, exit_code=exit_.code)
    signal = f" by signal {exit_.signal}" if exit_.signal else ""
    words = [f"exit code {exit_.code}{signal}", "" if run.reported else meaning(exit_.code)]
    if run.reported:
        words[0] += f" after it reported {run.reported}"
    if exit_.code - 128 in _WANTS_MEMORY and run.limits.get("memory"):
        words.append("its memory is limited, and programs that get no more end so")
    return Failure(
        f"EXIT_{exit_.code}", "; ".join(filter(None, (*words, text))), exit_code=exit_.code
    )


def _caused(failure: Failure, cause: Failure | None) -> Failure:
    if cause is None or failure.reason in ("OOM_KILLED", "ENGINE_DOWN"):
        return failure
    return replace(
        failure, reason=cause.reason, message=f"{cause.message}; the container: {failure.message}"
    )


def _with_its_engine(run: Run, exit_: Exit) -> bool:
    if run.away_at is None or exit_.code not in _BY_THE_DAEMON or run.reported is TaskStatus.FAILED:
        return False
    return exit_.finished_at is None or exit_.finished_at >= run.away_at - _ENDING


def finished(
    run: Run,
    at: datetime,
    failure: Failure | None = None,
) -> Run:
    """End the run: as a success, or with a failure that names party, task and node."""
    if failure is not None:
        failure = replace(
            failure,
            role=run.party.role,
            task=run.task_name,
            node=run.party.node,
        )
    status = RunStatus.SUCCESS if failure is None else RunStatus.FAILED
    return _with_news(
        replace(
            run,
            status=move(RUN, run.status, status),
            ended_at=at,
            failure=failure,
        )
    )


def _with_news(run: Run) -> Run:
    """A call that reports an older state need not be waited for."""
    return replace(run, reporting=replace(run.reporting, call=Call()))


def _stopped(run: Run) -> Failure:
    return Failure("STOPPED", "stopped on request", exit_code=run.exit.code if run.exit else None)


def stopped(run: Run, at: datetime) -> Run:
    """Return the run with the end that it is to have; one that has ended, or is ending, is returned unchanged.

    One that has succeeded leaves no model if that is not fingerprinted yet.
    """
    if run.unsealed:
        return _with_news(
            replace(run, seal=replace(run.seal, state=CallState.REFUSED, message="stopped"))
        )
    if run.over or run.stop_at is not None:
        return run
    run = replace(run, stop_at=at)
    not_at_it = run.status is RunStatus.LAUNCHING and run.launch.state is CallState.LOST
    if (
        run.status is RunStatus.WAITING
        or not_at_it
        or (run.status is RunStatus.RUNNING and run.exit is not None)
    ):
        return finished(run, at, _stopped(run))
    if run.status is RunStatus.RUNNING:
        return replace(run, status=move(RUN, run.status, RunStatus.STOPPING))
    return run


def reported(
    run: Run,
    status: TaskStatus,
    done: Callable[[Call], Call],
) -> Run:
    """Return the run after its state was reported, or was not; newer news has its own call."""
    if status is not run.reported_status or status is run.reporting.status:
        return run
    call = done(run.reporting.call)
    news = (
        Reporting(status, Call())
        if call.state is CallState.OK
        else replace(run.reporting, call=call)
    )
    return replace(run, reporting=news)


def without_owner(run: Run, event: messages.OwnerLost) -> Run:
    """Return the run of a lost gateway: what had not started goes to its heir, the rest has failed with it."""
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return finished(run, event.at, _stopped(run))
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return finished(run, event.at, Failure("CHANNEL_LOST", text))


def interrupted(run: Run) -> Run:
    """Return the run with everything that was under way to be done again, as its gateway has restarted."""
    for path in ("launch", "stop", "collect", "seal", "reporting.call"):
        run = changed(run, path, Call.interrupted)
    return run if run.exit is not None else replace(run, probe_at=None)
