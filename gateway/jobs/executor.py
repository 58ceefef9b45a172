"""Carries out what `gateway.domain.execution` decides, on the engine; wakes on the engine's exit events."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter

import structlog

from engines.base import EngineDown, EngineError, Exited, Missing, Watch
from gateway.data.combined_storage import Storages
from gateway.data.reports import output_warnings
from gateway.domain.execution import contact, endings, machine, messages
from gateway.domain.execution.runs import merge_runs, result_of
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import UNCERTAIN, Ending, Failure, NodeId
from gateway.domain.states import JOB, Outcome, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming
from gateway.errors import (
    Busy,
    Conflict,
    GatewayError,
    NotFound,
    PeerUnreachable,
    StorageAway,
    StorageFailed,
    TooLarge,
    Unreadable,
)
from gateway.jobs.launcher import ImageIsFetched, Launching
from gateway.ports import Clock, JobView, SchedulerApi, TaskReport
from gateway.runtime.context import NodeContext, Peers, listening, traced
from gateway.runtime.lanes import Lanes
from gateway.runtime.loop import Loop, Shell, while_away, with_calls
from gateway.store.database import outside_transaction

_TOO_LATE = ("ALREADY_DECIDED", "AUDIT_UNKNOWN")
"""with what a scheduling node refuses a decision on a job that has ended there, or is gone"""


_LANES = {
    messages.StopRun: "engine-end",
    messages.Collect: "engine-end",
    messages.Seal: "seal",
    messages.Prepare: "engine-pull",
}
"""of actions on the engine; all others are in the lane ``engine``, or of the node that is called"""


_Call = (
    messages.Tell
    | messages.Confirm
    | messages.QueryScheduler
    | messages.AskStop
    | messages.QueryEnding
)


@dataclass(frozen=True)
class SchedulerCalls:
    """Calls the nodes that schedule the jobs here, whatever the protocol."""

    peers: Peers
    clock: Clock
    reported: Callable[[LocalJob], None]
    """called with a job whose scheduling node has answered"""
    silent: Callable[[NodeId], None]

    def tell(
        self,
        local: LocalJob,
        run: Run,
        action: messages.Tell,
    ) -> messages.Event:
        """Tell how a task is at the role of a run."""
        status = merge_runs(local.runs_of(run.task_id, run.party.role))
        report = TaskReport(
            run.task_id, run.party.role, status, run.failure, local.id, run.reporting.call.tries
        )
        try:
            self._scheduler(local).report_task(report, local.node)
        except GatewayError as error:  # a node that does not want to know will ask
            if isinstance(error, PeerUnreachable):
                self.silent(local.spec.scheduler)
            return self._failed(action, error)
        self.reported(local)
        return messages.Done(action, self.clock())

    def confirm(self, local: LocalJob, action: messages.Confirm) -> list[messages.Event]:
        """Tell what was decided here on a job that waited for somebody, and hear whether that still counts."""
        failure = local.approval.failure if local.approval else None
        try:
            self._scheduler(local).confirm_job(
                local.id, failure, local.node, local.audit.id if local.audit else ""
            )
        except GatewayError as error:
            done = self._failed(action, error, UNCERTAIN)
            if failure is not None or error.reason not in _TOO_LATE:
                return [done]
            # the job has ended there, and the stop that says so may have been lost, or be long on its way
            asked = self.ask(local, messages.QueryScheduler())
            return [done, *(event for event in asked if isinstance(event, messages.StopRequested))]
        return [messages.Done(action, self.clock())]

    def ask(self, local: LocalJob, action: messages.QueryScheduler) -> list[messages.Event]:
        """Ask the scheduling node whether the job still exists there, and do as it says."""
        scheduler = local.spec.scheduler
        try:
            view = self._scheduler(local).job_status(local.id, local.node)
        except NotFound as error:
            text = (
                f"the scheduling node {scheduler} does not know the job any more: {error.message}"
            )
            failure, now = Failure(contact.FORGOT, text, local.node), self.clock()
            ending = Ending(Outcome.STOPPED, now, failure, local.node)
            return [messages.StopRequested(now, None, ending, local.node)]
        except (
            GatewayError
        ) as error:  # no route to it is no way to ask; a refusal of its own is an answer
            return [self._failed(action, error, ("NODE_UNKNOWN", *UNCERTAIN))]
        now = self.clock()
        return [messages.Done(action, now), *_lost_stop(local, view, now)]

    def ask_ending(self, local: LocalJob, action: messages.QueryEnding) -> list[messages.Event]:
        """Ask the scheduling node how the job ended, and take that in."""
        scheduler = local.spec.scheduler
        try:
            view = self._scheduler(local).job_status(local.id, local.node)
        except GatewayError as error:
            return [self._failed(action, error, ("NODE_UNKNOWN", *UNCERTAIN))]
        now = self.clock()
        if not ended(JOB, view.status):
            text = f"{scheduler} says {view.status}"
            return [messages.Done(action, now, final=False, message=text)]
        return [*_lost_stop(local, view, now), messages.Done(action, now)]

    def stop(self, local: LocalJob, action: messages.AskStop) -> messages.Event:
        """Have the scheduling node stop the job; one that does not know it has nothing to stop."""
        try:
            self._scheduler(local).stop_job(local.id, "", local.node)
        except GatewayError as error:
            return self._failed(action, error, ("NODE_UNKNOWN", *UNCERTAIN))
        return messages.Done(action, self.clock())

    def _scheduler(self, local: LocalJob) -> SchedulerApi:
        return self.peers.scheduler(local.spec.scheduler, local.spec.protocol)

    def _failed(
        self,
        action: _Call,
        error: GatewayError,
        open_: Collection[str] = (),
    ) -> messages.Done:
        if isinstance(error, (PeerUnreachable, Busy)):
            return messages.Done(action, self.clock(), final=False, message=error.message)
        return messages.Done(
            action, self.clock(), error.reason not in open_, f"{error.reason} {error.message}"
        )


def _lost_stop(
    local: LocalJob,
    view: JobView,
    now: datetime,
) -> list[messages.StopRequested]:
    """Return the stop that has not come of a job that its scheduling node says to have ended; empty for others.

    A node that reports tasks alone, and each only from its start, has to report all of them as successes.
    """
    early = view.outcome is Outcome.SUCCEEDED and len(view.tasks) < len(local.spec.dag.nodes)
    if early or not ended(JOB, view.status):
        return []
    outcome, failure, by = view.outcome or Outcome.STOPPED, view.failure, local.spec.scheduler
    if outcome is Outcome.FAILED and failure is None:
        failure = local.own_failure or Failure(
            "FAILED", f"{by} says that the job has failed, and not why", by
        )
    if outcome is Outcome.STOPPED and failure is None:
        failure = Failure("STOPPED", f"stopped by {by}, which did not say why", by)
    ending = Ending(outcome, now, failure, by)
    return [messages.StopRequested(now, None, ending, by, is_inferred=view.is_inferred)]


log = structlog.get_logger(__name__)

_MANY = 1000
"""successes from which nothing follows, that may be left to be recorded with the next news"""
_END_TRIES = 10
"""how often a storage that is away is asked to end a run's credentials before the job goes on without"""
_LAST_WORDS = 16 * 1024
"""bytes at the end of standard output in which a result code is looked for"""


@dataclass(frozen=True)
class Hooks:
    """What is called as jobs go on."""

    close_session: Callable[[str], None]
    """with the id of a job that is over"""
    release: Callable[[str], None]
    """with the id of a job that no longer needs its resources"""
    observe: Callable[[str, float], None] = lambda action, seconds: None
    """with the time that an action on the engine took"""
    silent: Callable[[NodeId], None] = lambda node: None
    """with a node that a call did not reach"""
    stuck: Callable[[str], None] = lambda side: None
    """when a job could not be advanced"""
    end_credentials: Callable[[Run], None] = lambda run: None
    """with a run whose container is gone; raises `StorageFailed`"""
    on_channel: Callable[[Run], str] = lambda run: ""
    """says what a run waits for on the channel"""


class Executor(Shell[LocalJob, list[messages.Action]]):
    """The shell around the execution rules."""

    def __init__(
        self,
        context: NodeContext,
        launching: Launching,
        peers: Peers,
        lanes: Lanes,
        storage: Storages,
        hooks: Hooks,
        timing: RunTiming = RunTiming(),
    ) -> None:
        super().__init__("executor", "participant", context, context.store.local_jobs, hooks.stuck)
        self._owner = context.owner
        self._engine = launching.engine
        self._launching = launching
        self._lanes = lanes
        self._workspace = launching.workspace
        self._storage = storage
        self._hooks = hooks
        self._timing = timing
        self._watch: Watch | None = None
        self._scheduler_calls = SchedulerCalls(peers, self._clock, self.note_contact, hooks.silent)
        every = timing.probe_every
        self._rounds = Loop(
            "probes", lambda _: self._round(), lambda _: ["all"], every=every, workers=1
        )

    def start(self) -> None:
        """Take up what an earlier process of this node left, then watch the engine."""
        for job_id in self._store.local_jobs.unfinished():
            try:
                self.record(job_id, messages.Restarted(self._clock(), self._owner))
            except Unreadable as error:
                self._abandon(job_id, error)
        self._watch = self._engine.watch(self._on_exit, self._on_away)
        self.loop.start()
        self._rounds.start()

    def stop(self) -> None:
        """End the watch and the loop; containers go on."""
        if self._watch is not None:
            self._watch.close()
        self._rounds.stop()
        self.loop.stop()

    def _abandoned(self, job_id: str, containers: list[str]) -> None:
        self._lanes.submit("engine-end", partial(self._end_abandoned, job_id, containers), job_id)

    def _end_abandoned(self, job_id: str, names: list[str]) -> None:
        for name in names:
            with suppress(EngineError):  # what stays is found as an orphan
                self._engine.stop(name, self._timing.stop_grace)
                self._engine.remove(name)
        self._hooks.close_session(job_id)
        self._hooks.release(job_id)

    def address_of(self, run: Run) -> str:
        """Return the address from which a run's requests come; empty where the engine does not know."""
        return self._launching.address_of(run)

    def _on_exit(self, name: str) -> None:
        found = self._store.job_of_container(name)
        if found is None:
            return
        job_id, run_id = found
        self._lanes.submit("engine-exit", partial(self._look, job_id, run_id), job_id)

    def _on_away(self, engine: str) -> None:
        """Note it with the engine's containers: what it does to them when it comes back is not their failure."""
        now = self._clock()
        for job_id in self._store.local_jobs.unfinished():
            local = self._store.local_jobs.find(job_id)  # deleted meanwhile, or not to be read
            there = [r for r in local.runs if r.engine == engine] if local else []
            mine = [
                r for r in there if r.status is RunStatus.RUNNING and r.owner in ("", self._owner)
            ]
            if mine:
                self.record(job_id, *(messages.EngineSilent(run.run_id, now) for run in mine))

    def _round(self) -> None:
        """Probe the runs here that are not probed soon anyway; write only what is new."""
        soon = self._clock() + timedelta(seconds=self._timing.probe_every)
        silent: set[str] = set()  # engines; their watchers record it
        for known in self._store.launched(self._owner):
            local = self._store.local_jobs.find(known.job_id)
            run = next((r for r in local.runs if r.name == known.name), None) if local else None
            if (
                local is None
                or run is None
                or run.status is not RunStatus.RUNNING
                or run.exit is not None
            ):
                continue
            if run.probe_at is None or run.probe_at <= soon or run.engine in silent:
                continue
            event = self._probe(run)
            if isinstance(event, messages.EngineSilent):
                silent.add(run.engine)
                continue
            news = self._asked(local, run) if type(event) is messages.Inspected else [event]
            if news:
                self.record(local.id, *news)

    def _look(self, job_id: str, run_id: str) -> None:
        local = self._store.local_jobs.get(job_id)
        run = _run(local, run_id)
        if run.exit is None:
            self.record(job_id, self._probe(run))

    def _apply(self, local: LocalJob, event: messages.Event) -> LocalJob:
        return machine.apply(local, event, self._timing)

    def _next_due(self, local: LocalJob) -> datetime | None:
        mine = all(
            owner in ("", self._owner) for owner in (local.home, *(run.owner for run in local.runs))
        )
        return (
            super()._next_due(local) if mine else machine.next_due(local, self._timing, self._owner)
        )

    def _reached(self, local: LocalJob, node: NodeId) -> LocalJob:
        return contact.retry_reports(local, node)

    def _decide(self, local: LocalJob) -> tuple[LocalJob, list[messages.Action]]:
        return machine.step(local, self._clock(), self._timing, self._owner)

    def _begin(self, local: LocalJob, actions: list[messages.Action]) -> None:
        for action in actions:
            calls = isinstance(action, _Call)
            lane = local.spec.scheduler if calls else _LANES.get(type(action), "engine")
            work = partial(self._perform, local, action)
            self._lanes.submit(lane, work, local.id, 0 if calls else local.spec.settings.priority)

    def waiting_for_turn(self, local: LocalJob) -> frozenset[str]:
        """Return the runs of a job whose launch waits until those of others have had their turn."""
        left = self._lanes.left("engine", local.id)
        launching = [run.run_id for run in local.runs if run.status is RunStatus.LAUNCHING]
        return frozenset(launching[-left:] if left else ())

    def _perform(
        self,
        local: LocalJob,
        action: messages.Action,
        *,
        fetching: bool = False,
    ) -> None:
        with traced(local.spec.trace_id), listening() as calls:
            began = time.monotonic()
            try:
                events = self._do(local, action, fetching)
                if not isinstance(action, (messages.Tell, messages.Close)):
                    self._hooks.observe(type(action).__name__.lower(), time.monotonic() - began)
            except ImageIsFetched:  # which may take long: in a lane of its own
                self._lanes.submit(
                    "engine-pull", partial(self._perform, local, action, fetching=True), local.id
                )
                return
            except Exception:
                log.exception(
                    "unexpected error of an action", job=local.id, action=type(action).__name__
                )
                events = [self._unforeseen(action)]
            answered = any(isinstance(event, messages.Done) and event.final for event in events)
            tries = _tries(local, action)
            changes = with_calls(
                self._applied(*events), calls, self._clock(), tries, answered=answered
            )
            known = self._records.known(local.id)
            self.record_answer(
                local.id, changes, _MANY if answered and known and _alone(action, known) else 0
            )

    def _unforeseen(self, action: messages.Action) -> messages.Event:
        """Return what a bug of ours means for the run: a launch has failed, all else is tried again."""
        text = "an error inside the gateway; its log has the trace"
        match action:
            case messages.Launch():
                return messages.LaunchFailed(action.run, Failure("INTERNAL", text), self._clock())
            case messages.Probe():
                return messages.Inspected(action.run, self._clock())
            case messages.Seal():
                return messages.Sealed(action.run, None, self._clock(), text)
            case _:
                return messages.Done(action, self._clock(), final=False, message=text)

    def _do(
        self,
        local: LocalJob,
        action: messages.Action,
        fetching: bool,
    ) -> list[messages.Event]:
        outside_transaction()
        match action:
            case messages.Close():
                self._hooks.close_session(local.id)
                if local.pool is not None:
                    self._hooks.release(local.id)
                return [messages.Done(action, self._clock())]
            case messages.Tell():
                return [self._scheduler_calls.tell(local, _run(local, action.run), action)]
            case messages.Confirm():
                return self._scheduler_calls.confirm(local, action)
            case messages.QueryScheduler():
                return self._scheduler_calls.ask(local, action)
            case messages.QueryEnding():
                return self._scheduler_calls.ask_ending(local, action)
            case messages.AskStop():
                return [self._scheduler_calls.stop(local, action)]
            case messages.Prepare():
                return [self._launching.prepare(local, action, self.record)]
            case messages.Launch():
                return [self._launching.launch(local, _run(local, action.run), fetching)]
            case messages.Probe():
                run = _run(local, action.run)
                event = self._probe(run)
                return [
                    event,
                    *(self._asked(local, run) if type(event) is messages.Inspected else ()),
                ]
            case messages.StopRun():
                return self._stop(_run(local, action.run), action)
            case messages.Seal():
                return [self._seal(local, _run(local, action.run))]
            case messages.Collect():
                return [self._collect(local, _run(local, action.run), action)]

    def _probe(self, run: Run) -> messages.Event:
        try:
            probe = self._engine.probe(run.name)
        except EngineDown:
            return messages.EngineSilent(run.run_id, self._clock())
        except EngineError:
            return messages.Inspected(run.run_id, self._clock())
        if isinstance(probe, Missing):
            return messages.Gone(run.run_id, self._clock())
        if not isinstance(probe, Exited):
            if probe.cut_off and run.reported is None:  # else it has nothing more to say to anybody
                return messages.Broken(run.run_id, _network_lost(run), self._clock())
            if too_much := self._launching.disk.over(run):
                return messages.Broken(run.run_id, too_much, self._clock())
            return messages.Inspected(run.run_id, self._clock())
        looks = (
            probe.code == 0 and run.reported is None and run.stop_at is None
        )  # else they decide nothing
        outputs = run.outputs.items() if looks else ()
        try:
            missing = tuple(name for name, address in outputs if not self._storage.exists(address))
        except StorageFailed as error:
            if not isinstance(error, StorageAway):
                return messages.Broken(
                    run.run_id, Failure(error.reason, error.message), self._clock()
                )
            # its outputs may be there: it is asked again
            log.warning(
                "a run has ended and its outputs cannot be seen", run=run.name, cause=error.message
            )
            return messages.Inspected(run.run_id, self._clock())
        exit_ = Exit(
            probe.code, probe.signal, probe.oom_killed, probe.started_at, probe.finished_at, missing
        )
        code, message = ("", "") if run.result_code else self._last_words(run)
        cause = self.storage_failure(run, message) if probe.code else None
        alive = run.reported is None and run.stop_at is None
        if cause is None and probe.cut_off and not probe.oom_killed and alive:
            cause = _network_lost(run)
        return messages.Exited(run.run_id, exit_, self._clock(), code, message, cause)

    def storage_failure(self, run: Run, words: str) -> Failure | None:
        """Return why the storage elsewhere of a run that fails with these words may be the cause."""
        if run.over or run.stop_at is not None:
            return None
        error = self._storage.trouble(run, words)
        return Failure(error.reason, error.message) if error is not None else None

    def _asked(self, local: LocalJob, run: Run) -> list[messages.Event]:
        """Return what a silent container says at its control port, where it has one."""
        ended = run.reported in (TaskStatus.SUCCESS, TaskStatus.FAILED)
        if not run.declared.get("control_port") or ended or not (address := self.address_of(run)):
            return []
        status = self._scheduler_calls.peers.adapter(local.spec.protocol).container_status(
            run, address
        )
        if status is None:
            return []
        cause = self.storage_failure(run, "") if status is TaskStatus.FAILED else None
        return [messages.Reported(run.run_id, status, self._clock(), cause=cause)]

    def _last_words(self, run: Run) -> tuple[str, str]:
        """Return result code and message from the last line of standard output, where that is JSON with them."""
        try:
            lines = self._engine.logs(run.name, tail=_LAST_WORDS).stdout.splitlines()
        except EngineError:
            return "", ""
        return result_of(lines)

    def _stop(self, run: Run, action: messages.StopRun) -> list[messages.Event]:
        waits = self._hooks.on_channel(run)
        try:
            self._engine.stop(run.name, action.grace)
        except EngineError as error:
            return [messages.Done(action, self._clock(), final=False, message=str(error))]
        warnings = (f"when it was stopped, {waits}",) if waits else ()
        return [self._probe(run), messages.Done(action, self._clock(), warnings=warnings)]

    def _collect(
        self,
        local: LocalJob,
        run: Run,
        action: messages.Collect,
    ) -> messages.Event:
        try:
            self._engine.stop(run.name, self._timing.stop_grace)
            self._engine.save_logs(run.name, self._workspace.logs(run))
            self._engine.remove(run.name)
            self._end(run)
            warnings: tuple[str, ...] = ()
            if run.status is RunStatus.SUCCESS:
                warnings = output_warnings(self._storage, local.spec, run)
            elif run.failure is not None and not run.failure.reason.startswith("STORAGE_"):
                trouble = self._storage.trouble(run)
                warnings = (f"{trouble.reason}: {trouble.message}",) if trouble is not None else ()
            self._workspace.clear(run)
        except (EngineError, OSError, StorageAway) as error:
            return messages.Done(action, self._clock(), final=False, message=str(error))
        return messages.Done(action, self._clock(), warnings=warnings)

    def _end(self, run: Run) -> None:
        try:
            self._hooks.end_credentials(run)
        except GatewayError as error:
            if isinstance(error, StorageAway) and run.collect.tries < _END_TRIES:
                raise
            log.warning("the credentials of a run outlast it", run=run.name, cause=error.message)

    def _seal(self, local: LocalJob, run: Run) -> messages.Event:
        """Fingerprint the files of a run's model; an output that was never written is left out."""
        left = self._launching.disk.bounds(run).get("disk")

        def look(size: int) -> None:
            """Take a file's size before it is read, and 0 now and then while it is."""
            nonlocal left
            if size == 0:
                now = while_away(partial(self._store.local_jobs.get, local.id))
                if not _run(now, run.run_id).unsealed:
                    raise Conflict("stopped")
            elif left is not None and (left := left - size) < 0:
                raise TooLarge("they have more bytes than the disk that it may take")

        try:
            there = [
                (name, run.outputs[name])
                for name in run.to_seal
                if self._storage.exists(run.outputs[name])
            ]
            files = tuple(
                replace(f, output=name) for name, at in there for f in self._storage.sums(at, look)
            )
        except (GatewayError, OSError) as error:
            return messages.Sealed(
                run.run_id, None, self._clock(), str(error), isinstance(error, TooLarge)
            )
        return messages.Sealed(run.run_id, files, self._clock())

    def stop_here(self, job_id: str, why: str) -> None:
        """End a job here whose scheduling node is silent; that one learns of it once it answers."""
        self.record(job_id, messages.StoppedHere(self._clock(), why))

    def learn_ending(self, local: LocalJob, view: JobView) -> LocalJob:
        """Take in what the scheduling node has just reported of a job: that it has ended, and how."""
        for event in _lost_stop(local, view, self._clock()):
            outcome = event.ending.outcome if event.ending else Outcome.STOPPED
            news = endings.may_explain(local, outcome, is_inferred=event.is_inferred)
            if news or not ended(JOB, local.status):
                return self.record(local.id, event)
        return local

    def record_stop_request(self, job_id: str, by: str) -> None:
        """Record that people here have the scheduling node stop a job; ``by`` empty: it has refused to."""
        self.record(job_id, messages.StopWished(self._clock(), by))

    def note_contact(self, local: LocalJob) -> None:
        """Note that the scheduling node of a job has sent something."""
        now = self._clock()
        if contact.worth_noting(local, now, self._timing.orphan):
            self.record(local.id, messages.SchedulerAlive(now))


def _alone(action: messages.Action, local: LocalJob) -> bool:
    """Say whether nothing follows from the success of an action."""
    collected = isinstance(action, messages.Collect) and not ended(JOB, local.status)
    return collected or isinstance(action, messages.Tell)


def _tries(local: LocalJob, action: messages.Action) -> int:
    if not isinstance(action, _Call):
        return 1
    record = _run(local, action.run) if isinstance(action, messages.Tell) else local
    return int(attrgetter(action.call)(record).tries)


def _network_lost(run: Run) -> Failure:
    who = f"the container of {run.party.label} in task {run.task_name}"
    return Failure("NETWORK_LOST", f"{who} was taken off its network and reaches no other party")


def _run(local: LocalJob, run_id: str) -> Run:
    return next(r for r in local.runs if r.run_id == run_id)
