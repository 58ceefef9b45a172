"""What a participating node does next with the runs of a job, and how news changes them.

The shape is that of `schedule`: `agenda`, `plan`, `step`, `apply`. A run ends by what the container
reported, weighed with how it exited: a reported failure is final, a reported success needs exit code 0,
and an exit with code 0 without a report counts after a short grace if the outputs are there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import assert_never

from gateway.domain import approval, auditing, borrowing, engine_loss, guarding, trained
from gateway.domain.model import (
    Call,
    CallState,
    Ending,
    Exit,
    Failure,
    FileSum,
    LocalJob,
    Run,
    Told,
)
from gateway.domain.states import (
    JOB,
    RUN,
    JobStatus,
    Outcome,
    RunStatus,
    TaskStatus,
    ended,
    merge,
    move,
)

NOW = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Timing:
    """How long to wait for what, in seconds."""

    launch_deadline: float = 120.0
    """a launch without a recorded end is repeated after this; it is idempotent by name"""
    probe_every: float = 5.0
    """safety net; an exit is normally told by the engine"""
    callback_grace: float = 1.0
    """an exit with code 0 waits this long for a report that is still on its way"""
    linger: float = 30.0
    """a container that reported success may take this long to exit"""
    stop_grace: float = 5.0
    """between asking a container to end and killing it"""
    engine_patience: float = 60.0
    """a run fails when the engine has not answered for this long"""
    seal_deadline: float = 600.0
    """reading a model's files is begun again after this; it changes nothing"""
    call_deadline: float = 12.0
    retry_first: float = 0.2
    retry_max: float = 10.0
    tell_tries: int = 40
    orphan: float = 660.0
    """a scheduling node that is not heard of for this long is asked whether it still has the job"""

    def retry(self, tries: int) -> timedelta:
        return timedelta(seconds=min(self.retry_first * 2.0 ** min(tries, 20), self.retry_max))


# ---------------------------------------------------------------- commands


@dataclass(frozen=True)
class Launch:
    run: str


@dataclass(frozen=True)
class Probe:
    run: str


@dataclass(frozen=True)
class StopRun:
    run: str
    grace: float


@dataclass(frozen=True)
class Collect:
    """Save the run's logs and remove its container."""

    run: str


@dataclass(frozen=True)
class Seal:
    """Fingerprint the files of a run's model."""

    run: str


@dataclass(frozen=True)
class Tell:
    """Tell the scheduling node a run's state."""

    run: str
    status: TaskStatus


@dataclass(frozen=True)
class Close:
    """Give back everything the job holds here."""


@dataclass(frozen=True)
class Confirm:
    """Tell the scheduling node what somebody here decided on the job."""


@dataclass(frozen=True)
class AskScheduler:
    """Ask the scheduling node, long not heard of, whether it still has the job."""


@dataclass(frozen=True)
class Expire:
    """Not an action: nobody decided on the job in time."""


@dataclass(frozen=True)
class Abandon:
    """Not an action: the scheduling node does not answer, so the job ends here."""


@dataclass(frozen=True)
class Weigh:
    """Not an action: the decision on a run whose report will not come any more."""

    run: str


Action = Launch | Probe | StopRun | Collect | Seal | Tell | Close | Confirm | AskScheduler
Command = Action | Weigh | Expire | Abandon


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Launched:
    run: str
    at: datetime
    image_digest: str = ""
    granted: tuple[str, ...] = ()
    """what it got beyond the ordinary"""


@dataclass(frozen=True)
class LaunchFailed:
    run: str
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Seen:
    """A look showed the container running."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Unseen:
    """The engine did not answer."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Broken:
    """The container may not go on, for a reason that is ours."""

    run: str
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class HasExited:
    """``result_code`` and ``result_message`` are what the container's last line says, where it says so."""

    run: str
    exit: Exit
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Gone:
    """The engine does not know the container any more."""

    run: str
    at: datetime


@dataclass(frozen=True)
class Reported:
    """The container told its state."""

    run: str
    status: TaskStatus
    at: datetime
    result_code: str = ""
    result_message: str = ""


@dataclass(frozen=True)
class Done:
    """An action without news of its own is through. ``final`` False: try again later."""

    action: Collect | Tell | Close | StopRun | Confirm | AskScheduler
    at: datetime
    final: bool = True
    message: str = ""
    warnings: tuple[str, ...] = ()
    """of a Collect: what is odd about the run's outputs"""


@dataclass(frozen=True)
class Sealed:
    """The files of a run's model were read; ``files`` None: they could not be, because of ``message``."""

    run: str
    files: tuple[FileSum, ...] | None
    at: datetime
    message: str = ""


@dataclass(frozen=True)
class StopAsked:
    """The runs of these tasks (None: all, and the job with them) are to end."""

    at: datetime
    tasks: frozenset[str] | None
    ending: Ending | None
    by: str = ""


@dataclass(frozen=True)
class Restarted:
    """This process began anew: what it had in hand is not in hand any more; ``owner`` empty: of all runs."""

    at: datetime
    owner: str = ""


@dataclass(frozen=True)
class OwnerLost:
    """A gateway was silent for too long; what it had not begun goes to the heir."""

    owner: str
    heir: str
    at: datetime


@dataclass(frozen=True)
class Decided:
    """A person has decided on the job. ``words`` go to every node with a refusal."""

    approve: bool
    by: str
    words: str
    at: datetime


OfRun = Launched | LaunchFailed | Seen | Unseen | Broken | HasExited | Gone | Reported
Event = OfRun | Done | Sealed | StopAsked | Restarted | OwnerLost | Decided | guarding.Heard


# ---------------------------------------------------------------- what is due


@dataclass(frozen=True)
class Due:
    at: datetime
    command: Command


def plan(local: LocalJob, now: datetime, timing: Timing = Timing(), owner: str = "") -> list[Command]:
    """Return everything that should be done by now; with an owner, nothing about runs of another one."""
    return [due.command for due in _mine(local, timing, owner) if due.at <= now]


def next_due(local: LocalJob, timing: Timing = Timing(), owner: str = "") -> datetime | None:
    """Return when there is something to do next, or None when only news can change the job."""
    return min((due.at for due in _mine(local, timing, owner)), default=None)


def _mine(local: LocalJob, timing: Timing, owner: str) -> Iterator[Due]:
    others = {run.run_id for run in local.runs if owner and run.owner and run.owner != owner}
    elsewhere = bool(owner and local.home and local.home != owner)
    for due in agenda(local, timing):
        if isinstance(due.command, Close | Confirm | AskScheduler | Expire | Abandon):
            if not elsewhere:
                yield due
        elif due.command.run not in others:
            yield due


def step(
    local: LocalJob, now: datetime, timing: Timing = Timing(), owner: str = ""
) -> tuple[LocalJob, list[Action]]:
    """Take every decision that is due and mark every action that is due as begun."""
    actions: list[Action] = []
    for command in plan(local, now, timing, owner):
        match command:
            case Weigh():
                local = _with(local, command.run, lambda run: _weigh(run, now, timing, last=True))
            case Launch():
                local = _with(local, command.run, lambda run: _begin_launch(run, now))
                actions.append(command)
            case Probe():
                later = now + timedelta(seconds=timing.probe_every)
                local = _with(local, command.run, lambda run, t=later: replace(run, probe_at=t))  # type: ignore[misc]
                actions.append(command)
            case StopRun():
                local = _with(local, command.run, lambda run: replace(run, stop=_sent(run.stop, now)))
                actions.append(command)
            case Collect():
                local = _with(local, command.run, lambda run: replace(run, collect=_sent(run.collect, now)))
                actions.append(command)
            case Seal():
                local = _with(local, command.run, lambda run: replace(run, seal=_sent(run.seal, now)))
                actions.append(command)
            case Tell():
                local = _with(
                    local,
                    command.run,
                    lambda run: replace(run, told=replace(run.told, call=_sent(run.told.call, now))),
                )
                actions.append(command)
            case Close():
                local = replace(local, close=_sent(local.close, now))
                actions.append(command)
            case Confirm():
                local = approval.confirming(local, lambda call: _sent(call, now))
                actions.append(command)
            case AskScheduler():
                local = replace(local, ask=_sent(local.ask, now))
                actions.append(command)
            case Expire():
                local = auditing.expired(local, now, _ended_by)
            case Abandon():
                local = _abandoned(local, guarding.UNREACHABLE, local.ask.message, now)
            case _:
                assert_never(command)
    return local, actions


def agenda(local: LocalJob, timing: Timing) -> Iterator[Due]:
    """Yield everything there is to do, each with its earliest time."""
    may_launch = borrowing.may_launch(local)
    for run in local.runs:
        if not run.done_with and (run.status is not RunStatus.WAITING or run.run_id in may_launch):
            yield from _of_run(run, timing)
    if (until := auditing.expires_at(local)) is not None:
        yield Due(until, Expire())
    if (confirm := approval.to_confirm(local)) is not None:
        yield from _when_due(confirm, Confirm(), timing.call_deadline)
    if guarding.watched(local) and guarding.given_up(local):
        yield Due(NOW, Abandon())
    else:
        yield from (Due(when, AskScheduler()) for when in guarding.due(local, timing.orphan, timing.call_deadline))
    if (
        ended(JOB, local.status)
        and not local.closed
        and all(run.over and (not _to_collect(run) or _left_behind(local, run)) for run in local.runs)
    ):
        yield from _when_due(local.close, Close(), timing.call_deadline)


def _of_run(run: Run, timing: Timing) -> Iterator[Due]:
    match run.status:
        case RunStatus.WAITING:
            yield Due(NOW, Launch(run.run_id))
        case RunStatus.LAUNCHING:
            yield from _when_due(run.launch, Launch(run.run_id), timing.launch_deadline)
        case RunStatus.RUNNING:
            if run.exit is not None:
                seen = run.exit.finished_at or run.reported_at or NOW
                yield Due(seen + timedelta(seconds=timing.callback_grace), Weigh(run.run_id))
            else:
                yield Due(run.probe_at or NOW, Probe(run.run_id))
                if run.away_at is not None and run.reported is not TaskStatus.SUCCESS:
                    yield Due(run.away_at + timedelta(seconds=timing.engine_patience), Weigh(run.run_id))
                if run.reported is TaskStatus.SUCCESS and run.reported_at is not None:
                    yield Due(run.reported_at + timedelta(seconds=timing.linger), Weigh(run.run_id))
        case RunStatus.STOPPING:
            deadline = timing.stop_grace + timing.call_deadline
            yield from _when_due(run.stop, StopRun(run.run_id, timing.stop_grace), deadline)
            if run.stop.state is CallState.OK:  # and nobody could look whether it is gone
                yield Due(run.probe_at or NOW, Probe(run.run_id))
        case RunStatus.SUCCESS | RunStatus.FAILED:
            if _to_collect(run):
                deadline = timing.stop_grace + timing.call_deadline
                yield from _when_due(run.collect, Collect(run.run_id), deadline)
            if trained.unsealed(run):
                yield from _when_due(run.seal, Seal(run.run_id), timing.seal_deadline)
        case _:
            assert_never(run.status)
    news = trained.told_as(run)
    worth_telling = news in (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)
    if worth_telling and run.told.status is not news and run.told.call.tries < timing.tell_tries:
        yield from _when_due(run.told.call, Tell(run.run_id, news), timing.call_deadline)


def _left_behind(local: LocalJob, run: Run) -> bool:
    """Whether the run's container is with a gateway that the job has left: it is removed when that one returns."""
    return bool(local.home and run.owner and run.owner != local.home)


def _to_collect(run: Run) -> bool:
    """Whether the engine may still hold something of the run; one that was never launched left nothing."""
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK


def _when_due(call: Call, command: Command, deadline: float) -> Iterator[Due]:
    match call.state:
        case CallState.IDLE | CallState.LOST:
            yield Due(call.due_at or NOW, command)
        case CallState.SENT:
            yield Due((call.sent_at or NOW) + timedelta(seconds=deadline), command)
        case CallState.OK | CallState.REFUSED:
            return
        case _:
            assert_never(call.state)


def _sent(call: Call, now: datetime) -> Call:
    return replace(call, state=CallState.SENT, sent_at=now, due_at=None, tries=call.tries + 1)


def _begin_launch(run: Run, now: datetime) -> Run:
    status = RunStatus.LAUNCHING
    if run.status is RunStatus.WAITING:
        status = move(RUN, run.status, RunStatus.LAUNCHING)
    return replace(run, status=status, launch=_sent(run.launch, now))


# ---------------------------------------------------------------- what news changes


def apply(local: LocalJob, event: Event, timing: Timing = Timing()) -> LocalJob:
    """Return the job after the event. Late or repeated news changes nothing but the timeline."""
    match event:
        case StopAsked():
            return _stop_asked(local, event)
        case Restarted():
            mine = event.owner in ("", local.home) or not local.home
            if mine:
                told = approval.confirming(local, _retry_now).approval
                local = replace(local, close=_retry_now(local.close), ask=_retry_now(local.ask), approval=told)
            runs = tuple(_let_go(run) if event.owner in ("", run.owner) else run for run in local.runs)
            return replace(local, runs=runs)
        case OwnerLost():
            return _owner_lost(local, event)
        case Done():
            return _done(local, event, timing)
        case Sealed():
            return _with(local, event.run, lambda run: _sealed(run, event, timing), at=event.at)
        case Decided():
            return approval.decided(local, event.approve, event.by, event.words, event.at)
        case guarding.Heard():
            return guarding.heard(local, event.at)
        case Launched() | LaunchFailed() | Seen() | Unseen() | Broken() | HasExited() | Gone() | Reported():
            return _with(local, event.run, lambda run: _hear(run, event, timing), at=event.at)
        case _:
            assert_never(event)


def _hear(run: Run, event: OfRun, timing: Timing) -> Run:
    match event:
        case Launched():
            return _launched(run, event, timing)
        case LaunchFailed():
            if run.status is not RunStatus.LAUNCHING:
                return run
            launch = replace(run.launch, state=CallState.REFUSED, reason=event.failure.reason)
            return _failed(replace(run, launch=launch), event.failure, event.at)
        case Seen():
            if run.over:
                return run
            return replace(run, probe_at=event.at + timedelta(seconds=timing.probe_every), away_at=None)
        case Unseen():
            return engine_loss.unseen(run, event.at, timedelta(seconds=timing.probe_every))
        case Broken():
            return run if run.status is not RunStatus.RUNNING else _failed(run, event.failure, event.at)
        case HasExited():
            if run.exit is not None or run.status is RunStatus.WAITING:
                return run
            run = replace(
                run,
                exit=event.exit,
                result_code=run.result_code or event.result_code,
                result_message=run.result_message or event.result_message,
            )
            return _weigh(run, event.at, timing, last=False)
        case Gone():
            return _gone(run, event)
        case Reported():
            return _reported(run, event, timing)
        case _:
            assert_never(event)


def _launched(run: Run, event: Launched, timing: Timing) -> Run:
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
    return _weigh(run, event.at, timing, last=False)


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
        return _weigh(run, event.at, timing, last=False)
    return run


def _gone(run: Run, event: Gone) -> Run:
    if run.status is RunStatus.STOPPING:
        return _failed(run, _stopped(run), event.at)
    if run.status is RunStatus.RUNNING and run.exit is None:
        return _failed(run, Failure("GONE", "the engine does not know the container any more"), event.at)
    return run


def _weigh(run: Run, now: datetime, timing: Timing, *, last: bool) -> Run:
    """Decide a running container's fate from what it reported and how it exited; ``last``: nothing more comes."""
    if run.status is RunStatus.STOPPING and run.exit is not None:
        return _failed(run, _stopped(run), now)
    if run.status is not RunStatus.RUNNING:
        return run
    if run.reported is TaskStatus.FAILED:
        return _failed(run, exit_failure(run), now)
    if run.exit is None:
        if last and run.reported is TaskStatus.SUCCESS:
            return _succeeded(run, now)
        if last and engine_loss.too_long(run, now, timedelta(seconds=timing.engine_patience)):
            return _failed(run, engine_loss.silent(run), now)
        return run
    if run.exit.code != 0:
        if engine_loss.took_it_along(run):
            return _failed(run, engine_loss.killed(run), now)
        return _failed(run, exit_failure(run), now)
    if run.reported is TaskStatus.SUCCESS:
        return _succeeded(run, now)
    if not last:
        return run
    if run.exit.missing_outputs:
        missing = ", ".join(run.exit.missing_outputs)
        text = f"the container ended with code 0, without a report and without its outputs {missing}"
        return _failed(run, Failure("NO_CALLBACK", text, exit_code=0), now)
    return _succeeded(replace(run, no_callback=True), now)


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
    full = f"exit code {exit_.code}{signal}{said}" + (f"; {text}" if text else "")
    return Failure(f"EXIT_{exit_.code}", full, exit_code=exit_.code)


def _stopped(run: Run) -> Failure:
    return Failure("STOPPED", "stopped on request", exit_code=run.exit.code if run.exit else None)


def _succeeded(run: Run, at: datetime) -> Run:
    return _news(replace(run, status=move(RUN, run.status, RunStatus.SUCCESS), ended_at=at))


def _failed(run: Run, failure: Failure, at: datetime) -> Run:
    named = replace(failure, role=run.party.role, task=run.task_name, node=run.party.node)
    return _news(replace(run, status=move(RUN, run.status, RunStatus.FAILED), ended_at=at, failure=named))


def _news(run: Run) -> Run:
    """A call that tells an older state need not be waited for."""
    return replace(run, told=replace(run.told, call=Call()))


def _stop_asked(local: LocalJob, event: StopAsked) -> LocalJob:
    changed = local
    for run in local.runs:
        if event.tasks is None or run.task_name in event.tasks:
            changed = _with(changed, run.run_id, lambda r: _stop_run(r, event.at), at=event.at)
    if event.tasks is not None or ended(JOB, local.status):
        return changed
    final = JobStatus.REJECTED if local.status is JobStatus.PENDING else JobStatus.FINISHED
    ending = event.ending or _ending_by_runs(local, event)
    outcome = ending.outcome if ending else ""
    changed = replace(changed, status=move(JOB, local.status, final), ended_at=event.at, ending=ending)
    if trained.saves(changed, ending):
        name = trained.named(local.spec)
        changed = replace(changed, model_saved=True)
        changed = changed.noted(event.at, "model saved", model_id=name.model_id, version=name.version)
    return changed.noted(event.at, f"job {final} here", event.by, outcome=outcome)


def _ending_by_runs(local: LocalJob, event: StopAsked) -> Ending | None:
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
        return _failed(run, _stopped(run), at)
    if run.status is RunStatus.RUNNING:
        return replace(run, status=move(RUN, run.status, RunStatus.STOPPING))
    return run


def _done(local: LocalJob, event: Done, timing: Timing) -> LocalJob:
    def settled(call: Call) -> Call:
        if call.settled:
            return call  # a repeat that failed takes nothing back
        if event.final:
            return replace(call, state=CallState.OK, message=event.message)
        due = event.at + timing.retry(call.tries - 1)
        return replace(call, state=CallState.LOST, due_at=due, message=event.message)

    match event.action:
        case Close():
            return replace(local, close=settled(local.close), closed=local.closed or event.final)
        case Confirm():
            local = approval.confirming(local, settled)
            return local.noted(event.at, "decision told", message=event.message) if event.final else local
        case AskScheduler():
            return _asked(local, event, timing)
        case Collect():
            return _with(local, event.action.run, lambda r: _collected(r, settled(r.collect), event.warnings))
        case StopRun():
            return _with(local, event.action.run, lambda r: replace(r, stop=settled(r.stop)))
        case Tell():
            status = event.action.status
            return _with(local, event.action.run, lambda r: _told(r, status, settled))
        case _:
            assert_never(event.action)


def _collected(run: Run, collect: Call, warnings: tuple[str, ...]) -> Run:
    return replace(run, collect=collect, warnings=tuple(dict.fromkeys((*run.warnings, *warnings))))


def _sealed(run: Run, event: Sealed, timing: Timing) -> Run:
    if not trained.unsealed(run):
        return run
    if event.files is None:
        run = trained.not_sealed(run, event.at, timing.retry(run.seal.tries - 1), event.message)
    else:
        run = replace(run, files=event.files, seal=replace(run.seal, state=CallState.OK, message=""))
    return _news(run)


def _asked(local: LocalJob, event: Done, timing: Timing) -> LocalJob:
    """Take in the answer of the scheduling node; not ``final``: there was none."""
    if not guarding.watched(local):
        return local
    if event.final:
        return guarding.heard(local, event.at)
    return guarding.unanswered(local, event.at, event.message, timing.retry(local.ask.tries - 1))


def _ended_by(local: LocalJob, ending: Ending) -> LocalJob:
    return _stop_asked(local, StopAsked(ending.at, None, ending, ending.by))


def _abandoned(local: LocalJob, reason: str, words: str, at: datetime) -> LocalJob:
    """End the job here without the scheduling node's word."""
    text = f"the scheduling node {local.spec.scheduler} does not answer: {words}"
    ending = Ending(Outcome.STOPPED, at, Failure(reason, text, local.node), local.node)
    return _stop_asked(local, StopAsked(at, None, ending, local.node))


def _told(run: Run, status: TaskStatus, settled: Callable[[Call], Call]) -> Run:
    if status is not trained.told_as(run) or status is run.told.status:
        return run  # there is newer news, which has its own call
    call = settled(run.told.call)
    told = Told(status, Call()) if call.state is CallState.OK else replace(run.told, call=call)
    return replace(run, told=told)


def _owner_lost(local: LocalJob, event: OwnerLost) -> LocalJob:
    changed = local
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            changed = _with(changed, run.run_id, lambda r: _without_owner(r, event), at=event.at)
    if local.home == event.owner:
        changed = replace(changed, home=event.heir)
    return changed


def _without_owner(run: Run, event: OwnerLost) -> Run:
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return _failed(run, _stopped(run), event.at)
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return _failed(run, Failure("CHANNEL_LOST", text), event.at)


def _let_go(run: Run) -> Run:
    return replace(
        run,
        launch=_retry_now(run.launch),
        stop=_retry_now(run.stop),
        collect=_retry_now(run.collect),
        seal=_retry_now(run.seal),
        told=replace(run.told, call=_retry_now(run.told.call)),
        probe_at=None if run.exit is None else run.probe_at,
    )


def _retry_now(call: Call) -> Call:
    if call.state is CallState.SENT:
        return replace(call, state=CallState.LOST, due_at=None)
    return call


def _with(local: LocalJob, run_id: str, change: Callable[[Run], Run], at: datetime | None = None) -> LocalJob:
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


def merge_runs(runs: Iterable[Run]) -> TaskStatus:
    """Fold the runs of a task (or of one role in it) into what other nodes are told."""
    return merge(trained.told_as(run) for run in runs)
