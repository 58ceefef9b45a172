"""What an event changes in a job at a participating node; a run ends by its report and its exit code.

A reported failure is final, a reported success needs exit code 0, and an exit with code 0 without a report counts
after a short grace if the outputs are there.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import approval, models, orphans
from gateway.domain.execution import messages
from gateway.domain.run import LocalJob, Reporting, Run
from gateway.domain.spec import Call, CallState, Ending, Failure
from gateway.domain.states import JOB, RUN, JobStatus, Outcome, RunStatus, TaskStatus, ended, merge, move
from gateway.domain.timeouts import RunTiming

# When an engine stops responding:
#
# A container outlives a daemon that dies; a daemon that comes back without live-restore ends it, by SIGTERM or
# SIGKILL, or does not know how it ended (255). One that has to end takes no more requests, then ends its
# containers, and only then is seen to be gone. Such an end is the engine's failure, not the container's.

_BY_THE_DAEMON = frozenset({255, 137, 143})
_ENDING = timedelta(seconds=15)
"""so long Docker gives its containers when it ends; a run of which the end was seen before is not in question"""


def unseen(run: Run, at: datetime, again: timedelta) -> Run:
    """Record that the engine does not respond; the first time counts."""
    if run.over:
        return run
    due = at + again
    if run.probe_at is not None and run.probe_at > at:  # a connection that breaks over and over puts off no look
        due = min(due, run.probe_at)
    return replace(run, probe_at=due, away_at=run.away_at or at)


def too_long(run: Run, now: datetime, timeout: timedelta) -> bool:
    """Whether a run's engine has been silent for too long."""
    return run.away_at is not None and now >= run.away_at + timeout


def took_it_along(run: Run) -> bool:
    """Whether the container ended because the daemon did."""
    exit_ = run.exit
    if exit_ is None or run.away_at is None or exit_.oom_killed or exit_.code not in _BY_THE_DAEMON:
        return False
    return exit_.finished_at is None or exit_.finished_at >= run.away_at - _ENDING


def silent(run: Run) -> Failure:
    """Return the failure of a run whose engine did not answer for too long."""
    since = run.away_at.isoformat(timespec="seconds") if run.away_at else ""
    return Failure("ENGINE_DOWN", f"the container engine has not answered since {since}")


def killed(run: Run) -> Failure:
    """Return the failure of a run that ended because its engine did."""
    code = run.exit.code if run.exit else None
    text = f"the container engine went away and took the container along (exit code {code})"
    return Failure("ENGINE_DOWN", text, exit_code=code)


def with_news(run: Run) -> Run:
    """A call that tells an older state need not be waited for."""
    return replace(run, reporting=replace(run.reporting, call=Call()))


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


def done(local: LocalJob, event: messages.Done, timing: RunTiming) -> LocalJob:
    """Record the end of an action without an event of its own; after a failure it is due again after a pause."""

    def finished(call: Call) -> Call:
        if call.completed:
            return call  # a repeat that failed takes nothing back
        if event.final:
            return replace(call, state=CallState.OK, message=event.message)
        due = event.at + timing.retry(call.tries - 1, local.id, event.action)
        return replace(call, state=CallState.LOST, due_at=due, message=event.message)

    local = _not_finished(local, event)
    match event.action:
        case messages.Close():
            return replace(local, close=finished(local.close), closed=local.closed or event.final)
        case messages.Confirm():
            local = approval.confirming(local, finished)
            return local.noted(event.at, "decision told", message=event.message) if event.final else local
        case messages.Prepare():
            fetch = approval.to_fetch(local)
            return local if fetch is None else approval.fetching(local, finished(fetch))
        case messages.QueryScheduler():
            return _asked(local, event, timing)
        case messages.Collect():
            return with_run(local, event.action.run, lambda r: _collected(r, finished(r.collect), event.warnings))
        case messages.StopRun():
            return with_run(local, event.action.run, lambda r: replace(r, stop=finished(r.stop)))
        case messages.Tell():
            status = event.action.status
            return with_run(local, event.action.run, lambda r: _with_report(r, status, finished))
        case _:
            assert_never(event.action)


def _not_finished(local: LocalJob, event: messages.Done) -> LocalJob:
    """Note in the timeline that a step of the cleanup failed; the same message once in a row."""
    match event.action:
        case messages.Close():
            call, words, run = local.close, "closing failed", None
        case messages.Collect(name) | messages.StopRun(name):
            run = next((run for run in local.runs if run.run_id == name), None)
            if run is None:
                return local
            stopping = isinstance(event.action, messages.StopRun)
            call, words = (run.stop, "stopping failed") if stopping else (run.collect, "removing failed")
        case _:
            return local
    if event.final or call.completed or not event.message or event.message == call.message:
        return local
    if run is None:
        return local.noted(event.at, words, message=event.message)
    return local.noted(event.at, words, message=event.message, task=run.task_name, role=run.party.label)


def _collected(run: Run, collect: Call, warnings: tuple[str, ...]) -> Run:
    return replace(run, collect=collect, warnings=tuple(dict.fromkeys((*run.warnings, *warnings))))


def sealed(run: Run, event: messages.Sealed, timing: RunTiming) -> Run:
    """Record the fingerprints of a run's model, or that its files could not be read."""
    if not run.unsealed:
        return run
    if event.files is None:
        run = models.not_sealed(run, event.at, timing.retry(run.seal.tries - 1, run.name), event.message)
    else:
        run = replace(run, files=event.files, seal=replace(run.seal, state=CallState.OK, message=""))
    return with_news(run)


def _asked(local: LocalJob, event: messages.Done, timing: RunTiming) -> LocalJob:
    """Record the response of the scheduling node; not ``final``: there was none."""
    if not orphans.watched(local):
        return local
    if event.final:
        return orphans.alive(local, event.at)
    again = timing.retry(local.ask.tries - 1, local.id, event.action)
    return orphans.unanswered(local, event.at, event.message, max(again, orphans.pause(timing.orphan)))


def _with_report(run: Run, status: TaskStatus, done: Callable[[Call], Call]) -> Run:
    if status is not run.reported_status or status is run.reporting.status:
        return run  # there is newer news, which has its own call
    call = done(run.reporting.call)
    reported = Reporting(status, Call()) if call.state is CallState.OK else replace(run.reporting, call=call)
    return replace(run, reporting=reported)


LONGEST_CODE = 100
LONGEST_MESSAGE = 1000


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
    return str(code or "")[:LONGEST_CODE], str(message or "")[:LONGEST_MESSAGE]


NEVER_BEGAN = (126, 127)
_WANTS_MEMORY = (6, 7, 9, 11)
"""signals of which a program ends that gets no more memory: it gives up, meets what is not there, or is killed"""
_MEANINGS = {
    126: "what it was to run is there and cannot be executed: a file without the right to be, or one that was "
    "built for another kind of machine",
    127: "what it was to run was not found: a program that the image does not have, such as the interpreter in a "
    "script's first line or the program behind env",
}


def meaning(code: int) -> str:
    """Return in words what a code says by convention; empty for one that is the program's own."""
    return _MEANINGS.get(code, "")


def under_a_limit(code: int) -> str:
    """Return what a code may say of a program whose memory is limited; empty for one that says nothing of it."""
    return "its memory is limited, and programs that get no more end so" if code - 128 in _WANTS_MEMORY else ""


def apply_to_run(run: Run, event: messages.OfRun, timing: RunTiming) -> Run:
    """Apply an event of one run."""
    match event:
        case messages.Launched():
            return _launched(run, event, timing)
        case messages.LaunchFailed():
            if run.status is not RunStatus.LAUNCHING:
                return run
            launch = replace(run.launch, state=CallState.REFUSED, reason=event.failure.reason)
            return failed(replace(run, launch=launch), event.failure, event.at)
        case messages.Inspected():
            if run.over:
                return run
            return replace(run, probe_at=event.at + timedelta(seconds=timing.probe_every), away_at=None)
        case messages.EngineSilent():
            return unseen(run, event.at, timedelta(seconds=timing.probe_every))
        case messages.Broken():
            return run if run.status is not RunStatus.RUNNING else failed(run, event.failure, event.at)
        case messages.Exited():
            if run.exit is not None or run.status is RunStatus.WAITING:
                return run
            run = replace(
                run,
                exit=event.exit,
                result_code=run.result_code or event.result_code,
                result_message=run.result_message or event.result_message,
            )
            return conclude(run, event.at, timing, last=False)
        case messages.Gone():
            return _gone(run, event)
        case messages.Reported():
            return _reported(run, event, timing)
        case _:
            assert_never(event)


def _launched(run: Run, event: messages.Launched, timing: RunTiming) -> Run:
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
    return conclude(run, event.at, timing, last=False)


def _reported(run: Run, event: messages.Reported, timing: RunTiming) -> Run:
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
        return conclude(run, event.at, timing, last=False)
    return run


def _gone(run: Run, event: messages.Gone) -> Run:
    if run.status is RunStatus.STOPPING:
        return failed(run, stopped(run), event.at)
    if run.status is RunStatus.RUNNING and run.exit is None:
        return failed(run, Failure("GONE", "the engine does not know the container any more"), event.at)
    return run


def conclude(run: Run, now: datetime, timing: RunTiming, *, last: bool) -> Run:
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
        if last and too_long(run, now, timedelta(seconds=timing.engine_timeout)):
            return failed(run, silent(run), now)
        return run
    if run.exit.code != 0:
        if took_it_along(run):
            return failed(run, killed(run), now)
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
    words = f" after it reported {run.reported}" if run.reported else ""
    usual = "" if words else meaning(exit_.code)
    memory = under_a_limit(exit_.code) if run.limits.get("memory") else ""
    full = f"exit code {exit_.code}{signal}{words}" + "".join(
        f"; {part}" for part in (usual, memory, text) if part
    )
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
    """Fold the runs of a task (or of one role in it) into what is reported to other nodes."""
    return merge(run.reported_status for run in runs)


def stop_asked(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """End the runs of some tasks, or of all and the job with them."""
    changed = local
    for run in local.runs:
        if event.tasks is None or run.task_name in event.tasks:
            changed = with_run(changed, run.run_id, lambda r: _stop_run(r, event.at), at=event.at)
    if event.tasks is not None:
        same = changed.runs == local.runs
        return changed if same else changed.noted(event.at, "task stop asked", event.by, tasks=sorted(event.tasks))
    if ended(JOB, local.status):
        return _explained(changed, event)
    final = JobStatus.REJECTED if local.status is JobStatus.PENDING else JobStatus.FINISHED
    ending = event.ending or _ending_by_runs(local, event)
    outcome = ending.outcome if ending else ""
    changed = replace(changed, status=move(JOB, local.status, final), ended_at=event.at, ending=ending)
    if models.saves(changed, ending):
        name = models.named(local.spec)
        changed = replace(changed, model_saved=True)
        changed = changed.noted(event.at, "model saved", model_id=name.model_id, version=name.version)
    return changed.noted(event.at, f"job {final} here", event.by, outcome=outcome)


def _explained(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """Take up how the job ended where that arrives only after the stop, as FATE sends it."""
    ending = event.ending
    if local.ending is not None or ending is None or ending.outcome is Outcome.SUCCEEDED:
        return local
    if local.approval is not None and local.approval.failure is not None:  # it ended by the no from here
        ending = replace(ending, outcome=Outcome.REJECTED, failure=local.approval.failure)
    changed = replace(local, ending=ending)
    return changed.noted(event.at, "job's end explained", event.by, outcome=ending.outcome)


def _ending_by_runs(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return how the job ended where the scheduling node does not say: what the runs here tell, or nothing.

    The standard has no message for a success; the stop of a job whose every task has succeeded here is one.
    """
    last = {(run.task_name, run.party): run for run in local.runs}.values()
    failed = next((run.failure for run in last if run.failure is not None), None)
    if failed is not None:
        return Ending(
            Outcome.STOPPED if failed.reason == "STOPPED" else Outcome.FAILED, event.at, failed, event.by
        )
    complete = {run.task_name for run in last} == {node.name for node in local.spec.dag.nodes}
    return Ending(Outcome.SUCCEEDED, event.at, None, event.by) if complete and all(r.over for r in last) else None


def _stop_run(run: Run, at: datetime) -> Run:
    if run.over or run.stop_at is not None:
        return run
    run = replace(run, stop_at=at)
    if run.status is RunStatus.WAITING or (run.status is RunStatus.RUNNING and run.exit is not None):
        return failed(run, stopped(run), at)
    if run.status is RunStatus.RUNNING:
        return replace(run, status=move(RUN, run.status, RunStatus.STOPPING))
    return run


def ended_by(local: LocalJob, ending: Ending) -> LocalJob:
    """End the job here, as somebody here decided."""
    return stop_asked(local, messages.StopRequested(ending.at, None, ending, ending.by))


def abandoned(local: LocalJob, reason: str, words: str, at: datetime) -> LocalJob:
    """End the job here without the scheduling node's word."""
    text = f"the scheduling node {local.spec.scheduler} does not answer: {words}"
    ending = Ending(Outcome.STOPPED, at, Failure(reason, text, local.node), local.node)
    return stop_asked(local, messages.StopRequested(at, None, ending, local.node))


def restarted(local: LocalJob, event: messages.Restarted) -> LocalJob:
    """Repeat what a gateway was doing when it exited."""
    mine = event.owner in ("", local.home) or not local.home
    if mine:
        reported = approval.confirming(local, Call.interrupted).approval
        local = replace(local, close=local.close.interrupted(), ask=local.ask.interrupted(), approval=reported)
        local = _fetched_again(local)
    runs = tuple(_let_go(run) if event.owner in ("", run.owner) else run for run in local.runs)
    return replace(local, runs=runs)


def owner_lost(local: LocalJob, event: messages.OwnerLost) -> LocalJob:
    """Give what a lost gateway had not begun to its heir; what it had begun has failed with it."""
    changed = local
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            changed = with_run(changed, run.run_id, lambda r: _without_owner(r, event), at=event.at)
    if local.home == event.owner:
        changed = _fetched_again(replace(changed, home=event.heir))
    return changed


def _fetched_again(local: LocalJob) -> LocalJob:
    """Have images fetched anew: what fetched them ended with its gateway."""
    fetch = approval.to_fetch(local)
    return local if fetch is None else approval.fetching(local, fetch.interrupted())


def _without_owner(run: Run, event: messages.OwnerLost) -> Run:
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return failed(run, stopped(run), event.at)
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return failed(run, Failure("CHANNEL_LOST", text), event.at)


def _let_go(run: Run) -> Run:
    return replace(
        run,
        launch=run.launch.interrupted(),
        stop=run.stop.interrupted(),
        collect=run.collect.interrupted(),
        seal=run.seal.interrupted(),
        reporting=replace(run.reporting, call=run.reporting.call.interrupted()),
        probe_at=None if run.exit is None else run.probe_at,
    )
