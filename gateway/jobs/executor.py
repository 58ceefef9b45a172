"""Carries out what `gateway.domain.execution` decides, on the engine; wakes on the engine's exit events."""

import time
from collections.abc import Callable
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
from gateway.domain.execution.runs import result_of
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, Outcome, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming
from gateway.errors import (
    Conflict,
    GatewayError,
    StorageAway,
    StorageFailed,
    TooLarge,
    Unreadable,
)
from gateway.jobs.launcher import ImageIsFetched, Launching
from gateway.jobs.scheduler_calls import SchedulerCall, SchedulerCalls, missed_stop
from gateway.ports import JobView
from gateway.runtime.context import Exchange, NodeContext, Peers, listening, traced
from gateway.runtime.lanes import Lanes
from gateway.runtime.loop import Loop, Shell, while_away, with_calls
from gateway.store.database import outside_transaction

log = structlog.get_logger(__name__)

# The lanes of actions on the engine; all others are in the lane ``engine``.
_LANES = {
    messages.StopRun: "engine-end",
    messages.Collect: "engine-end",
    messages.Seal: "seal",
    messages.Prepare: "engine-pull",
}

_MAX_UNRECORDED = 1000  # successes without consequence that may wait for the next news
_MAX_END_TRIES = 10  # attempts to end a run's credentials at a storage that is away
_LAST_OUTPUT = 16 * 1024  # bytes at the end of standard output, searched for a result code


@dataclass(frozen=True)
class Hooks:
    """Functions that the executor calls as jobs go on."""

    close_session: Callable[[str], None]
    """takes the id of a job that is over"""
    release: Callable[[str], None]
    """takes the id of a job that no longer needs its resources"""
    observe: Callable[[str, float], None] = lambda action, seconds: None
    """takes the duration of an action on the engine"""
    silent: Callable[[NodeId], None] = lambda node: None
    """takes a node that a call did not reach"""
    stuck: Callable[[str], None] = lambda side: None
    """called when a job could not be advanced"""
    end_credentials: Callable[[Run], None] = lambda run: None
    """takes a run whose container is gone; raises `StorageFailed`"""
    on_channel: Callable[[Run], str] = lambda run: ""
    """returns what a run waits for on the channel"""


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
        self._probes = Loop(
            "probes",
            lambda _: self._probe_all(),
            lambda _: ["all"],
            every=timing.probe_every,
            workers=1,
        )

    def start(self) -> None:
        """Take up the jobs of an earlier process, then watch the engine."""
        for job_id in self._store.local_jobs.unfinished():
            try:
                self.record(job_id, messages.Restarted(self._clock(), self._owner))
            except Unreadable as error:
                self._abandon(job_id, error)
        self._watch = self._engine.watch(self._on_exit, self._on_away)
        self.loop.start()
        self._probes.start()

    def stop(self) -> None:
        """End the watch and the loops; containers go on."""
        if self._watch is not None:
            self._watch.close()
        self._probes.stop()
        self.loop.stop()

    # ---------------------------------------------------------------- news of a job

    def stop_here(self, job_id: str, why: str) -> None:
        """End a job here whose scheduling node is silent; that node hears of it once it answers."""
        self.record(job_id, messages.StoppedHere(self._clock(), why))

    def record_stop_request(self, job_id: str, by: str) -> None:
        """Record that people here want the scheduling node to stop a job.

        An empty ``by``: the scheduling node has refused.
        """
        self.record(job_id, messages.StopWished(self._clock(), by))

    def learn_ending(self, local: LocalJob, view: JobView) -> LocalJob:
        """Record the end of a job that its scheduling node has just reported, if it is news."""
        for event in missed_stop(local, view, self._clock()):
            outcome = event.ending.outcome if event.ending else Outcome.STOPPED
            explains = endings.may_explain(local, outcome, is_inferred=event.is_inferred)
            if explains or not ended(JOB, local.status):
                return self.record(local.id, event)
        return local

    def note_contact(self, local: LocalJob) -> None:
        """Record a sign of life of a job's scheduling node."""
        now = self._clock()
        if contact.worth_noting(local, now, self._timing.orphan):
            self.record(local.id, messages.SchedulerAlive(now))

    def address_of(self, run: Run) -> str:
        """Return the address from which a run's requests come; empty if the engine does not know."""
        return self._launching.address_of(run)

    def waiting_for_turn(self, local: LocalJob) -> frozenset[str]:
        """Return the runs of a job whose launch waits until the runs of other jobs had their turn."""
        launching = [run.run_id for run in local.runs if run.status is RunStatus.LAUNCHING]
        queued = self._lanes.left("engine", local.id)
        if not queued:
            return frozenset()
        return frozenset(launching[-queued:])

    def storage_failure(self, run: Run, words: str) -> Failure | None:
        """Return the trouble of an external storage that may have made a run fail with these words."""
        if run.over or run.stop_at is not None:
            return None
        error = self._storage.trouble(run, words)
        if error is None:
            return None
        return Failure(error.reason, error.message)

    # ---------------------------------------------------------------- news of the engine

    def _on_exit(self, name: str) -> None:
        ids = self._store.job_of_container(name)
        if ids is None:
            return
        job_id, run_id = ids
        self._lanes.submit("engine-exit", partial(self._record_exit, job_id, run_id), job_id)

    def _record_exit(self, job_id: str, run_id: str) -> None:
        run = _run(self._store.local_jobs.get(job_id), run_id)
        if run.exit is None:
            self.record(job_id, self._probe(run))

    def _on_away(self, engine: str) -> None:
        """Record an engine's silence; what its return does to containers does not count as failure."""
        now = self._clock()
        for job_id in self._store.local_jobs.unfinished():
            local = self._store.local_jobs.find(job_id)
            if local is None:  # deleted meanwhile, or not readable
                continue
            events = [
                messages.EngineSilent(run.run_id, now)
                for run in local.runs
                if run.engine == engine and self._is_running_here(run)
            ]
            if events:
                self.record(job_id, *events)

    def _is_running_here(self, run: Run) -> bool:
        return run.status is RunStatus.RUNNING and run.owner in ("", self._owner)

    def _probe_all(self) -> None:
        """Probe the runs here that are not due for a probe soon; write only what is new."""
        soon = self._clock() + timedelta(seconds=self._timing.probe_every)
        silent_engines: set[str] = set()  # their watchers record it
        for launched in self._store.launched(self._owner):
            local = self._store.local_jobs.find(launched.job_id)
            if local is None:
                continue
            run = next((run for run in local.runs if run.name == launched.name), None)
            if run is None or not _is_probed_late(run, soon) or run.engine in silent_engines:
                continue
            event = self._probe(run)
            if isinstance(event, messages.EngineSilent):
                silent_engines.add(run.engine)
                continue
            events = [event]
            if type(event) is messages.Inspected:
                events = self._ask_container(local, run)
            if events:
                self.record(local.id, *events)

    # ---------------------------------------------------------------- the shell's steps

    def _apply(self, local: LocalJob, event: messages.Event) -> LocalJob:
        return machine.apply(local, event, self._timing)

    def _decide(self, local: LocalJob) -> tuple[LocalJob, list[messages.Action]]:
        return machine.step(local, self._clock(), self._timing, self._owner)

    def _reached(self, local: LocalJob, node: NodeId) -> LocalJob:
        return contact.retry_reports(local, node)

    def _next_due(self, local: LocalJob) -> datetime | None:
        owners = [local.home, *(run.owner for run in local.runs)]
        if all(owner in ("", self._owner) for owner in owners):
            return super()._next_due(local)
        return machine.next_due(local, self._timing, self._owner)

    def _begin(self, local: LocalJob, actions: list[messages.Action]) -> None:
        for action in actions:
            work = partial(self._perform, local, action)
            if isinstance(action, SchedulerCall):
                self._lanes.submit(local.spec.scheduler, work, local.id, 0)
            else:
                lane = _LANES.get(type(action), "engine")
                self._lanes.submit(lane, work, local.id, local.spec.settings.priority)

    def _abandoned(self, job_id: str, containers: list[str]) -> None:
        self._lanes.submit("engine-end", partial(self._end_abandoned, job_id, containers), job_id)

    def _end_abandoned(self, job_id: str, names: list[str]) -> None:
        """End the containers of an unreadable job; what stays is found as an orphan."""
        for name in names:
            with suppress(EngineError):
                self._engine.stop(name, self._timing.stop_grace)
                self._engine.remove(name)
        self._hooks.close_session(job_id)
        self._hooks.release(job_id)

    # ---------------------------------------------------------------- actions

    def _perform(
        self,
        local: LocalJob,
        action: messages.Action,
        *,
        fetching: bool = False,
    ) -> None:
        """Carry out an action and record its events. ``fetching``: this lane may fetch an image."""
        with traced(local.spec.trace_id), listening() as calls:
            began = time.monotonic()
            try:
                events = self._do(local, action, fetching)
                if not isinstance(action, (messages.Tell, messages.Close)):
                    self._hooks.observe(type(action).__name__.lower(), time.monotonic() - began)
            except ImageIsFetched:  # which may take long, so it gets a lane of its own
                fetch = partial(self._perform, local, action, fetching=True)
                self._lanes.submit("engine-pull", fetch, local.id)
                return
            except Exception:
                log.exception(
                    "unexpected error of an action", job=local.id, action=type(action).__name__
                )
                events = [self._unexpected_error(action)]
            self._record_events(local, action, events, calls)

    def _record_events(
        self,
        local: LocalJob,
        action: messages.Action,
        events: list[messages.Event],
        calls: list[Exchange],
    ) -> None:
        """Record what an action brought; a success without consequence may wait for other news."""
        answered = any(isinstance(event, messages.Done) and event.final for event in events)
        changes = with_calls(
            self._applied(*events), calls, self._clock(), _tries(local, action), answered=answered
        )
        max_unrecorded = 0
        current = self._records.known(local.id)
        if answered and current and _has_no_consequence(action, current):
            max_unrecorded = _MAX_UNRECORDED
        self.record_answer(local.id, changes, max_unrecorded)

    def _unexpected_error(self, action: messages.Action) -> messages.Event:
        """Return what a bug of ours means for the run: a failed launch; all else is tried again."""
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
                return [self._close(local, action)]
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
                if type(event) is messages.Inspected:
                    return [event, *self._ask_container(local, run)]
                return [event]
            case messages.StopRun():
                return self._stop(_run(local, action.run), action)
            case messages.Seal():
                return [self._seal(local, _run(local, action.run))]
            case messages.Collect():
                return [self._collect(local, _run(local, action.run), action)]

    def _close(self, local: LocalJob, action: messages.Close) -> messages.Event:
        self._hooks.close_session(local.id)
        if local.pool is not None:
            self._hooks.release(local.id)
        return messages.Done(action, self._clock())

    # ---------------------------------------------------------------- probes

    def _probe(self, run: Run) -> messages.Event:
        """Ask the engine for a run's container."""
        try:
            probe = self._engine.probe(run.name)
        except EngineDown:
            return messages.EngineSilent(run.run_id, self._clock())
        except EngineError:
            return messages.Inspected(run.run_id, self._clock())
        if isinstance(probe, Missing):
            return messages.Gone(run.run_id, self._clock())
        if isinstance(probe, Exited):
            return self._exit_event(run, probe)
        if probe.cut_off and run.reported is None:  # a run that has reported needs no network
            return messages.Broken(run.run_id, _network_lost(run), self._clock())
        disk_failure = self._launching.disk.over(run)
        if disk_failure:
            return messages.Broken(run.run_id, disk_failure, self._clock())
        return messages.Inspected(run.run_id, self._clock())

    def _exit_event(self, run: Run, probe: Exited) -> messages.Event:
        """Return what the exit of a container means."""
        is_undecided = run.reported is None and run.stop_at is None
        missing: tuple[str, ...] = ()
        if probe.code == 0 and is_undecided:  # otherwise the outputs decide nothing
            try:
                missing = self._missing_outputs(run)
            except StorageAway as error:  # the outputs may exist: the run is probed again
                log.warning(
                    "a run has ended and its outputs cannot be seen",
                    run=run.name,
                    cause=error.message,
                )
                return messages.Inspected(run.run_id, self._clock())
            except StorageFailed as error:
                failure = Failure(error.reason, error.message)
                return messages.Broken(run.run_id, failure, self._clock())
        exit_ = Exit(
            probe.code, probe.signal, probe.oom_killed, probe.started_at, probe.finished_at, missing
        )
        code = message = ""
        if not run.result_code:
            code, message = self._last_words(run)
        cause = self.storage_failure(run, message) if probe.code else None
        if cause is None and probe.cut_off and not probe.oom_killed and is_undecided:
            cause = _network_lost(run)
        return messages.Exited(run.run_id, exit_, self._clock(), code, message, cause)

    def _missing_outputs(self, run: Run) -> tuple[str, ...]:
        return tuple(
            name for name, address in run.outputs.items() if not self._storage.exists(address)
        )

    def _ask_container(self, local: LocalJob, run: Run) -> list[messages.Event]:
        """Return what a silent container says at its control port, if it has one."""
        has_reported = run.reported in (TaskStatus.SUCCESS, TaskStatus.FAILED)
        if not run.declared.get("control_port") or has_reported:
            return []
        address = self.address_of(run)
        if not address:
            return []
        adapter = self._scheduler_calls.peers.adapter(local.spec.protocol)
        status = adapter.container_status(run, address)
        if status is None:
            return []
        cause = self.storage_failure(run, "") if status is TaskStatus.FAILED else None
        return [messages.Reported(run.run_id, status, self._clock(), cause=cause)]

    def _last_words(self, run: Run) -> tuple[str, str]:
        """Return result code and message if the last line of standard output is JSON with them."""
        try:
            logs = self._engine.logs(run.name, tail=_LAST_OUTPUT)
        except EngineError:
            return "", ""
        return result_of(logs.stdout.splitlines())

    # ---------------------------------------------------------------- end of a run

    def _stop(self, run: Run, action: messages.StopRun) -> list[messages.Event]:
        channel_wait = self._hooks.on_channel(run)
        try:
            self._engine.stop(run.name, action.grace)
        except EngineError as error:
            return [messages.Done(action, self._clock(), final=False, message=str(error))]
        warnings = (f"when it was stopped, {channel_wait}",) if channel_wait else ()
        return [self._probe(run), messages.Done(action, self._clock(), warnings=warnings)]

    def _collect(
        self,
        local: LocalJob,
        run: Run,
        action: messages.Collect,
    ) -> messages.Event:
        """Save a run's logs and remove its container, credentials and working folder."""
        try:
            self._engine.stop(run.name, self._timing.stop_grace)
            self._engine.save_logs(run.name, self._workspace.logs(run))
            self._engine.remove(run.name)
            self._end_credentials(run)
            warnings = self._collect_warnings(local, run)
            self._workspace.clear(run)
        except (EngineError, OSError, StorageAway) as error:
            return messages.Done(action, self._clock(), final=False, message=str(error))
        return messages.Done(action, self._clock(), warnings=warnings)

    def _collect_warnings(self, local: LocalJob, run: Run) -> tuple[str, ...]:
        if run.status is RunStatus.SUCCESS:
            return output_warnings(self._storage, local.spec, run)
        if run.failure is None or run.failure.reason.startswith("STORAGE_"):
            return ()
        trouble = self._storage.trouble(run)
        if trouble is None:
            return ()
        return (f"{trouble.reason}: {trouble.message}",)

    def _end_credentials(self, run: Run) -> None:
        """End a run's credentials; after `_MAX_END_TRIES` the job goes on without it."""
        try:
            self._hooks.end_credentials(run)
        except GatewayError as error:
            if isinstance(error, StorageAway) and run.collect.tries < _MAX_END_TRIES:
                raise
            log.warning("the credentials of a run outlast it", run=run.name, cause=error.message)

    def _seal(self, local: LocalJob, run: Run) -> messages.Event:
        """Fingerprint the files of a run's model; an output that was never written is left out."""
        bytes_left = self._launching.disk.bounds(run).get("disk")

        def watch(size: int) -> None:
            """Take the size of a file before it is read, and 0 at intervals while it is read.

            Raises `Conflict` if the job has been stopped, `TooLarge` above the run's disk limit.
            """
            nonlocal bytes_left
            if size == 0:
                current = while_away(partial(self._store.local_jobs.get, local.id))
                if not _run(current, run.run_id).unsealed:
                    raise Conflict("stopped")
            elif bytes_left is not None:
                bytes_left -= size
                if bytes_left < 0:
                    raise TooLarge("they have more bytes than the disk that it may take")

        sealed = []
        try:
            written = [name for name in run.to_seal if self._storage.exists(run.outputs[name])]
            for name in written:
                for file in self._storage.sums(run.outputs[name], watch):
                    sealed.append(replace(file, output=name))
        except (GatewayError, OSError) as error:
            return messages.Sealed(
                run.run_id, None, self._clock(), str(error), isinstance(error, TooLarge)
            )
        return messages.Sealed(run.run_id, tuple(sealed), self._clock())


def _is_probed_late(run: Run, soon: datetime) -> bool:
    """Return whether a running container's next regular probe is later than soon."""
    if run.status is not RunStatus.RUNNING or run.exit is not None:
        return False
    return run.probe_at is not None and run.probe_at > soon


def _has_no_consequence(action: messages.Action, local: LocalJob) -> bool:
    """Return whether nothing follows from the success of an action."""
    if isinstance(action, messages.Tell):
        return True
    return isinstance(action, messages.Collect) and not ended(JOB, local.status)


def _tries(local: LocalJob, action: messages.Action) -> int:
    """Return how often a call was made, as its record says; 1 for actions on the engine."""
    if not isinstance(action, SchedulerCall):
        return 1
    record = _run(local, action.run) if isinstance(action, messages.Tell) else local
    return int(attrgetter(action.call)(record).tries)


def _network_lost(run: Run) -> Failure:
    who = f"the container of {run.party.label} in task {run.task_name}"
    return Failure("NETWORK_LOST", f"{who} was taken off its network and reaches no other party")


def _run(local: LocalJob, run_id: str) -> Run:
    return next(run for run in local.runs if run.run_id == run_id)
