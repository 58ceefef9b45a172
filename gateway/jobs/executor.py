"""The executor: carries out the decisions of `gateway.domain.execution`.

These are actions on the engines and requests to scheduling nodes. The executor acts at due times,
after recorded events, and when an engine reports the exit of a container.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter

import structlog

from engines.base import EngineError, Watch
from gateway.data.combined_storage import Storages
from gateway.domain.execution import contact, endings, machine, messages
from gateway.domain.execution.agenda import success_can_wait
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, Outcome, RunStatus, ended
from gateway.domain.timeouts import RunTiming
from gateway.errors import Unreadable
from gateway.jobs.container_probes import ContainerProbes
from gateway.jobs.launcher import ImageMissing, Launching
from gateway.jobs.run_endings import RunEndings
from gateway.jobs.scheduler_calls import SchedulerCall, SchedulerCalls, missed_stop
from gateway.ports import JobView
from gateway.runtime.context import Exchange, NodeContext, Peers, collecting_exchanges, traced
from gateway.runtime.lanes import Lanes
from gateway.runtime.loop import Loop
from gateway.runtime.shell import Shell, with_calls
from gateway.store.database import require_no_transaction

log = structlog.get_logger(__name__)

# The lane (a queue with threads of its own, see `Lanes`) of each kind of action here; kinds not
# listed have the lane ``engine``. Requests to a scheduling node have the lane of that node.
_LANES = {
    messages.StopRun: "engine-end",
    messages.Collect: "engine-end",
    messages.Seal: "seal",
    messages.Prepare: "engine-pull",
}

# Actions whose duration counts as the engine's, see `Hooks.observe`. Every other action calls a
# scheduling node, reads files or releases resources.
_AT_ENGINE = (
    messages.Prepare,
    messages.Launch,
    messages.Probe,
    messages.StopRun,
    messages.Collect,
)

# Largest number of responses without consequences, per job, that may wait to be stored with a later
# event of the job.
_MAX_DEFERRED = 1000


def _observe_nothing(action: str, seconds: float) -> None:
    """Ignore the duration of an action."""


def _ignore_text(text: str) -> None:
    """Ignore the node of `Hooks.silent`, or the side of `Hooks.stuck`."""


def _ignore_run(run: Run) -> None:
    """Ignore the run of `Hooks.end_credentials`."""


def _nothing_awaited(run: Run) -> str:
    """Return that a run waits for nothing on the channel."""
    return ""


@dataclass(frozen=True)
class Hooks:
    """Functions that the executor calls as jobs go on."""

    close_session: Callable[[str], None]  # takes the id of a job that is over
    release: Callable[[str], None]  # takes the id of a job that no longer needs its resources
    # Takes the name of an action at an engine, and its duration in seconds.
    observe: Callable[[str, float], None] = _observe_nothing
    silent: Callable[[NodeId], None] = _ignore_text  # takes a node that a call did not reach
    # Called when a job could not be advanced; takes the side, which is "participant".
    stuck: Callable[[str], None] = _ignore_text
    # Revokes the storage credentials of a run whose container is gone; raises `StorageFailed`.
    end_credentials: Callable[[Run], None] = _ignore_run
    # Returns in words for which message a run waits on the channel; empty for none.
    on_channel: Callable[[Run], str] = _nothing_awaited


class Executor(Shell[LocalJob, list[messages.Action]]):
    """The shell around the execution rules: stores what they decide and carries out the actions.

    A gateway carries out only its own part of the actions; its name is ``context.owner``.
    """

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
        super().__init__(
            name="executor",
            side="participant",
            context=context,
            records=context.store.local_jobs,
            stuck=hooks.stuck,
        )
        self._owner = context.owner
        self._engine = launching.engine
        self._launching = launching
        self._lanes = lanes
        self._hooks = hooks
        self.timing = timing
        self._watch: Watch | None = None
        self._scheduler_calls = SchedulerCalls(
            peers,
            self._clock,
            self.note_contact,
            hooks.silent,
        )
        self.probes = ContainerProbes(launching, storage, peers, self._clock)
        self.endings = RunEndings(
            context=context,
            launching=launching,
            storage=storage,
            probes=self.probes,
            stop_grace=timing.stop_grace,
            end_credentials=hooks.end_credentials,
            on_channel=hooks.on_channel,
        )

        def probe_all(_: str) -> None:
            self.probe_all()

        def one_item(_: object) -> list[str]:
            return ["all"]  # the loop advances keys; its only key here stands for all runs

        self._probe_loop = Loop(
            "probes",
            advance=probe_all,
            overdue=one_item,
            every=timing.probe_every,
            workers=1,
        )

    def start(self) -> None:
        """Resume the jobs of an earlier process, then watch the engine and begin the loops."""
        for job_id in self._store.local_jobs.unfinished():
            try:
                self.record(
                    job_id,
                    messages.Restarted(self._clock(), self._owner),
                )
            except Unreadable as error:
                self._abandon(job_id, error)
        self._watch = self._engine.watch(self._on_exit, self._on_away)
        self.loop.start()
        self._probe_loop.start()

    def stop(self) -> None:
        """End the watch and the loops; containers keep running."""
        if self._watch is not None:
            self._watch.close()
        self._probe_loop.stop()
        self.loop.stop()

    # ---------------------------------------------------------------- news of a job

    def stop_here(self, job_id: str, why: str) -> None:
        """End a job here whose scheduling node is silent; the node is informed later."""
        self.record(
            job_id,
            messages.StoppedHere(self._clock(), why),
        )

    def record_stop_request(self, job_id: str, by: str) -> None:
        """Record that people here, named by ``by``, ask the scheduling node to stop a job.

        An empty ``by`` withdraws the request: the node has refused.
        """
        self.record(
            job_id,
            messages.StopAskedHere(self._clock(), by),
        )

    def learn_ending(self, local: LocalJob, view: JobView) -> LocalJob:
        """Record the end of a job here if its scheduling node has just reported that end.

        ``view`` is the response of that node. An end that is recorded already, or may not replace
        the recorded one, changes nothing. Returns the job's record, changed or not.
        """
        for event in missed_stop(local, view, self._clock()):
            outcome = Outcome.STOPPED
            if event.ending:
                outcome = event.ending.outcome
            replaces_ending = endings.may_replace_ending(
                local, outcome, is_inferred=event.is_inferred
            )
            if replaces_ending or not ended(JOB, local.status):
                return self.record(local.id, event)
        return local

    def note_contact(self, local: LocalJob) -> None:
        """Record a sign of life of a job's scheduling node, unless a recent one is stored."""
        now = self._clock()
        if contact.worth_noting(local, now, self.timing.orphan):
            self.record(local.id, messages.SchedulerAlive(now))

    def address_of(self, run: Run) -> str:
        """Return the address of a run's container; empty if the engine does not know it."""
        return self._launching.address_of(run)

    def waiting_for_turn(self, local: LocalJob) -> frozenset[str]:
        """Return the ids of a job's runs whose launch is queued behind launches of other jobs.

        Launches of a job are carried out in order, so the queued ones are the last launches. The
        lane also has the probes of the job: if some are queued, the result may have too many runs.
        """
        launching = [run.run_id for run in local.runs if run.status is RunStatus.LAUNCHING]
        queued = self._lanes.queued("engine", local.id)
        if not queued:
            return frozenset()
        return frozenset(launching[-queued:])

    # ---------------------------------------------------------------- news of the engine

    def _on_exit(self, name: str) -> None:
        """Queue the recording of the exit of a container with this name.

        The engine's watch calls this from any thread. Containers of unknown runs are ignored.
        """
        ids = self._store.job_of_container(name)
        if ids is None:
            return
        job_id, run_id = ids
        self._lanes.submit(
            "engine-exit",
            partial(self._record_exit, job_id, run_id),
            job_id,
        )

    def _record_exit(self, job_id: str, run_id: str) -> None:
        """Record the exit of a run's container, unless it is recorded already."""
        run = _run(self._store.local_jobs.get(job_id), run_id)
        if run.exit is not None:
            return
        event = self.probes.probe(run)
        with self._lanes.carrying_on():
            self.record(job_id, event)

    def _on_away(self, engine: str) -> None:
        """Record the silence of an engine for all running containers of this gateway there.

        If a container was killed during the silence, its run then fails because of the engine
        (ENGINE_DOWN) and not because of the component.
        """
        now = self._clock()
        for job_id in self._store.local_jobs.unfinished():
            local = self._store.local_jobs.find(job_id)
            if local is None:  # deleted in the meantime, or not readable
                continue
            events = [
                messages.EngineSilent(run.run_id, now)
                for run in local.runs
                if run.engine == engine and self._is_running_here(run)
            ]
            if events:
                self.record(job_id, *events)

    def _is_running_here(self, run: Run) -> bool:
        """Return whether a run's container runs and belongs to this gateway or to none."""
        return run.status is RunStatus.RUNNING and run.owner in ("", self._owner)

    def probe_all(self) -> None:
        """Probe the running containers of this gateway; record only news.

        This finds news between the regular probes (`messages.Probe`), which become rare as a run
        goes on. Containers with a regular probe within the next ``probe_every`` seconds are
        skipped. After the first run whose engine does not respond, further runs at that engine are
        skipped: the engine's watch records the silence.
        """
        soon = self._clock() + timedelta(seconds=self.timing.probe_every)
        silent_engines: set[str] = set()
        for launched in self._store.launched(self._owner):
            local = self._store.local_jobs.find(launched.job_id)
            if local is None:
                continue
            run = _run_named(local, launched.name)
            if run is None or not _next_probe_is_after(run, soon) or run.engine in silent_engines:
                continue
            event = self.probes.probe(run)
            if isinstance(event, messages.EngineSilent):
                silent_engines.add(run.engine)
                continue
            events: list[messages.Event] = [event]
            if isinstance(event, messages.Inspected):  # it runs, which is nothing new
                events = self.probes.ask_container(local, run)
            if events:
                self.record(local.id, *events)

    # ---------------------------------------------------------------- the shell's steps

    def _apply(self, local: LocalJob, event: messages.Event) -> LocalJob:
        """Return the job after an event, by the rules of this node."""
        return machine.apply(local, event, self.timing)

    def _decide(
        self,
        local: LocalJob,
    ) -> tuple[LocalJob, list[messages.Action]]:
        """Return the job after its due decisions, and the due actions of this gateway."""
        return machine.step(
            local,
            self._clock(),
            self.timing,
            self._owner,
        )

    def _mark_reached(self, local: LocalJob, node: NodeId) -> LocalJob:
        """Make the undelivered reports to a node due now, as it is reachable again."""
        return contact.retry_reports(local, node)

    def _next_due(self, local: LocalJob) -> datetime | None:
        """Return when this gateway has to act on the job next; None if it does not.

        Other gateways of the node may own its runs; their actions do not wake this one.
        """
        owners = [local.home, *(run.owner for run in local.open_runs)]
        if all(owner in ("", self._owner) for owner in owners):
            # This is the due time of the whole job, which its last write has computed already.
            return super()._next_due(local)
        return machine.next_due(local, self.timing, self._owner)

    def _begin(
        self,
        local: LocalJob,
        actions: list[messages.Action],
    ) -> None:
        """Queue the actions in lanes: calls in the scheduling node's, others by kind of work."""
        for action in actions:
            work = partial(self._perform, local, action)
            if isinstance(action, SchedulerCall):
                self._lanes.submit(
                    local.spec.scheduler,
                    work,
                    local.id,
                    priority=0,
                )
            else:
                lane = _LANES.get(type(action), "engine")
                self._lanes.submit(
                    lane,
                    work,
                    local.id,
                    local.spec.settings.priority,
                )

    def _end_containers(
        self,
        job_id: str,
        containers: list[str],
    ) -> None:
        """Queue the end of the containers of a job whose record is unreadable."""
        self._lanes.submit(
            "engine-end",
            partial(self._end_abandoned, job_id, containers),
            job_id,
        )

    def _end_abandoned(
        self,
        job_id: str,
        names: list[str],
    ) -> None:
        """End the containers of a job whose record is unreadable, its session and its reservation.

        A container that the engine fails to end stays, and is not tried again.
        """
        for name in names:
            with suppress(EngineError):
                self._engine.stop(name, self.timing.stop_grace)
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
        """Carry out an action and record its events.

        ``fetching``: a missing image may be fetched, which may take long. If it is False and an
        image is missing, the action is queued once more in the lane for fetching.
        """
        with traced(local.spec.trace_id), collecting_exchanges() as calls:
            start = time.monotonic()
            try:
                events = self._do(local, action, fetching)
            except ImageMissing:
                fetch = partial(
                    self._perform,
                    local,
                    action,
                    fetching=True,
                )
                self._lanes.submit("engine-pull", fetch, local.id)
                return
            except Exception:
                log.exception(
                    "unexpected error of an action", job=local.id, action=type(action).__name__
                )
                events = [self._unexpected_error(action)]
            else:
                if isinstance(action, _AT_ENGINE):
                    seconds = time.monotonic() - start
                    self._hooks.observe(type(action).__name__.lower(), seconds)
            with self._lanes.carrying_on():
                self._record_events(local, action, events, calls)

    def _record_events(
        self,
        local: LocalJob,
        action: messages.Action,
        events: list[messages.Event],
        calls: list[Exchange],
    ) -> None:
        """Record the events of an action, and the requests to other nodes that it made.

        The write may wait for a later event of the job if nothing follows from the end of the
        action.
        """
        is_final = any(isinstance(event, messages.Done) and event.final for event in events)
        changes = with_calls(
            self._change_by(*events), calls, self._clock(), _tries(local, action), is_final=is_final
        )
        if not is_final or not self._can_wait(local.id, action):
            self.record_response(local.id, changes, max_deferred=0)
            return
        self.record_response(local.id, changes, _MAX_DEFERRED)
        if not self._can_wait(local.id, action):  # a write of this moment has changed the run
            self.record_deferred_of(local.id)

    def _can_wait(self, job_id: str, action: messages.Action) -> bool:
        """Return whether the success of an action may be stored with a later event of the job."""
        current = self._records.cached(job_id)
        return current is not None and success_can_wait(current, action)

    def _unexpected_error(self, action: messages.Action) -> messages.Event:
        """Return the event for a bug of this gateway in an action.

        A launch has failed, and a container that could not be probed counts as running. The files
        of a model (`Seal`) could not be read; they are read again, up to a number of tries. Any
        other action is tried again.
        """
        text = "an error inside the gateway; its log has the trace"
        match action:
            case messages.Launch():
                return messages.LaunchFailed(
                    action.run,
                    Failure("INTERNAL", text),
                    self._clock(),
                )
            case messages.Probe():
                return messages.Inspected(action.run, self._clock())
            case messages.Seal():
                return messages.Sealed(
                    action.run,
                    None,
                    self._clock(),
                    text,
                )
            case _:
                return messages.Done(
                    action,
                    self._clock(),
                    final=False,
                    message=text,
                )

    def _do(
        self,
        local: LocalJob,
        action: messages.Action,
        fetching: bool,
    ) -> list[messages.Event]:
        """Carry out an action and return its events.

        Raises `ImageMissing` for a launch without its image, unless ``fetching``.
        """
        require_no_transaction()  # raises if this thread holds one: an action may take long
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
                return self._probe(local, _run(local, action.run))
            case messages.StopRun():
                return self.endings.stop(_run(local, action.run), action)
            case messages.Seal():
                return [self.endings.seal(local, _run(local, action.run))]
            case messages.Collect():
                return [self.endings.collect(local, _run(local, action.run), action)]

    def _probe(
        self,
        local: LocalJob,
        run: Run,
    ) -> list[messages.Event]:
        """Probe a run's container through its engine; ask a running one itself, too."""
        event = self.probes.probe(run)
        if isinstance(event, messages.Inspected):
            return [event, *self.probes.ask_container(local, run)]
        return [event]

    def _close(
        self,
        local: LocalJob,
        action: messages.Close,
    ) -> messages.Event:
        """End the job's session of the channel and release its reservation."""
        self._hooks.close_session(local.id)
        if local.pool is not None:
            self._hooks.release(local.id)
        return messages.Done(action, self._clock())


def _run_named(local: LocalJob, name: str) -> Run | None:
    """Return the job's run whose container has this name; None if it has none."""
    for run in local.runs:
        if run.name == name:
            return run
    return None


def _next_probe_is_after(run: Run, moment: datetime) -> bool:
    """Return whether a container runs and its next regular probe is later than a moment."""
    if run.status is not RunStatus.RUNNING or run.exit is not None:
        return False
    return run.probe_at is not None and run.probe_at > moment


def _tries(local: LocalJob, action: messages.Action) -> int:
    """Return how often a call was made according to its record; 1 for actions on the engine."""
    if not isinstance(action, SchedulerCall):
        return 1
    record: LocalJob | Run = local
    if isinstance(action, messages.Tell):
        record = _run(local, action.run)
    # `action.call` is the path to a `Call` in the record, such as "reporting.call".
    return int(attrgetter(action.call)(record).tries)


def _run(local: LocalJob, run_id: str) -> Run:
    """Return the job's run with this id, which must exist."""
    run = local.run(run_id)
    assert run is not None
    return run
