"""A simulated node for the execution rules: its containers, and an engine that loses answers.

An `ExecutionPlot` says what happens. `ExecutionWorld(plot).run()` plays it and raises `Broken` at
the first violation of a rule. The process that executes may die at every pause; the next one begins
with `Restarted`. Containers and the scheduling node live on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.domain.execution import machine, messages
from gateway.domain.run import Exit, FileSum, LocalJob, Run
from gateway.domain.run_index import EMPTY_INDEX
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JOB, RUN, Outcome, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming
from tests.builders import T0
from tests.domain.clockwork import Activity, OsProcess, SimulatedShell, require, set_moment
from tests.domain.world_checks import check_status_move

# Seconds that a call of the engine or of another node takes at most, answered or not.
LONGEST_CALL = 10.0

# Seconds that a call takes at most while the engine is sound.
LONGEST_SOUND_CALL = 0.1

# Seconds after which the scheduling node repeats a stop while no process lives.
STOP_REPEAT = 1.0

ENGINE_TROUBLES = ("refused", "answer lost", "never returns", "slow")

KILLED_BY_SIGKILL = 137
KILLED_BY_SIGTERM = 143
SIGKILL = 9

Events = list[messages.Event]


@dataclass(frozen=True)
class Program:
    """What a container does; times are seconds after its launch. It reports RUNNING first."""

    reports: tuple[tuple[float, TaskStatus], ...] = (
        (0.0, TaskStatus.RUNNING),
        (1.0, TaskStatus.SUCCESS),
    )
    exits_after: float | None = 1.1  # None: only a stop ends it
    exit_code: int = 0
    out_of_memory: bool = False
    missing_outputs: tuple[str, ...] = ()
    vanishes_after: float | None = None  # a third party removes the container
    launch_failure: str = ""  # reason for which the engine never launches it


@dataclass(frozen=True)
class ExecutionPlot:
    """What happens to a job at a node. ``seed`` draws the random times and the engine's trouble.

    Times are seconds since `T0`, chances are probabilities from 0 to 1.
    """

    local: LocalJob
    programs: Mapping[str, Program] = field(default_factory=dict)  # by container name
    stop_tasks: tuple[tuple[float, str], ...] = ()
    stop_at: float | None = None  # None: the scheduling node ends the job after the last run
    trouble_chance: float = 0.0
    crash_chance: float = 0.0  # of the process, at each pause
    dies_at: int | None = None  # number of the pause at which the first process dies for certain
    trouble_until: float = 0.0
    seed: int = 0

    def program(self, container: str) -> Program:
        """Return the program of a container; one without an entry succeeds after 1 s."""
        return self.programs.get(container, Program())


@dataclass
class Container:
    """A container as the engine knows it."""

    program: Program
    exit: Exit | None = None

    def has_exited_with(self, *codes: int) -> bool:
        """True if the container exited with one of these codes."""
        return self.exit is not None and self.exit.code in codes


class ExecutionWorld(SimulatedShell[LocalJob]):
    """Plays an execution plot."""

    def __init__(
        self,
        plot: ExecutionPlot,
        timing: RunTiming = RunTiming(),
    ) -> None:
        super().__init__(machine, plot.local, timing, plot.seed)
        self.plot = plot
        self.containers: dict[str, Container] = {}  # in the engine now
        # Every container by name, also those removed; a second one follows one that has vanished.
        self.all_containers: dict[str, list[Container]] = {}
        self.recorded_reports: dict[str, list[TaskStatus]] = {}  # by run id
        self.launches: Counter[str] = Counter()  # by container name
        self.told_statuses: dict[str, list[TaskStatus]] = {}  # to the scheduling node, by run id
        self.actions: Counter[messages.Action] = Counter()
        self.closes = 0
        self.engine_failed: set[str] = set()  # ids of the runs with an unanswered launch
        self.lives = 0  # number of processes that have begun
        self._end_is_scheduled = False
        # The actions of this simulation: none needs an approval or another node's query.
        self._handlers: Mapping[type[messages.Action], Callable[[Any], Events]] = {
            messages.Launch: self._launch,
            messages.Probe: self._probe,
            messages.StopRun: self._stop_run,
            messages.Collect: self._collect,
            messages.Seal: self._seal,
            messages.Tell: self._tell,
            messages.Close: self._close,
        }

    @property
    def local(self) -> LocalJob:
        return self.store.record

    def run(self, seconds: float = 3000.0) -> LocalJob:
        """Play the plot to its end and return the job. Raises `Broken`."""
        try:
            self._begin_process()
            for when, task in self.plot.stop_tasks:
                stop = messages.StopRequested(T0, frozenset({task}), None, "n1")
                self._request_stop_at(when, stop)
            if self.plot.stop_at is not None:
                self._end_job_at(self.plot.stop_at)
            self.clockwork.run(seconds)
            self._check_end()
        except Exception as error:
            error.add_note(self.clockwork.log_text())
            raise
        return self.local

    def _has_trouble(self) -> bool:
        """Draw whether something goes wrong now."""
        is_troubled_time = self.clockwork.now < self.plot.trouble_until
        return is_troubled_time and self.clockwork.chance(self.plot.trouble_chance)

    def _run_of(self, run_id: str) -> Run:
        return next(run for run in self.local.runs if run.run_id == run_id)

    # ------------------------------------------------------------ the process that executes

    def _begin_process(self) -> None:
        """Begin a process; every one but the first records a restart."""
        self.lives += 1
        process = OsProcess(
            f"process {self.lives}",
            self._replace_process,
            self.plot.crash_chance,
            self.plot.trouble_until,
            dies_at=self.plot.dies_at if self.lives == 1 else None,
        )
        self.processes = [process]
        if self.lives > 1:
            # The restart is recorded before the process does or hears anything else.
            restarted = messages.Restarted(self.clockwork.time())
            local = self._apply(self.local, restarted)
            self.store.save(
                replace(local, notes=()),
                self.store.version,
            )
        self.schedule_wakeups()

    def _replace_process(self, dead: OsProcess) -> None:
        """Begin another process some seconds after a death."""
        self.processes.clear()
        delay = self.clockwork.random.uniform(1.0, 20.0)
        self.clockwork.call_later(delay, self._begin_process)

    def _apply(self, record: LocalJob, event: Any) -> LocalJob:
        """Return the record after an event."""
        return machine.apply(record, event, self.timing)

    def _record(self, process: OsProcess, events: Iterable[Any]) -> Activity:
        """Store events and decisions, then act on the decisions."""
        _, _, actions = yield from self.decide(events)
        self.schedule_wakeups()
        self._schedule_end()
        for action in actions:
            delay = self.clockwork.random_pause(0.2)
            self.clockwork.spawn(self._act(process, action), process, delay)
        for event in events:
            if isinstance(event, messages.Reported):
                self._note_report(event)

    def _note_report(self, report: messages.Reported) -> None:
        """Remember a report that the process has recorded."""
        self.recorded_reports.setdefault(report.run, []).append(report.status)

    def _act(self, process: OsProcess, action: messages.Action) -> Activity:
        """Carry out an action and record its result; each step may suffer from trouble."""
        self.clockwork.log(f"{action}")
        self.actions[action] += 1
        trouble = ""
        longest = LONGEST_SOUND_CALL
        if self._has_trouble():
            trouble = self.clockwork.random.choice(ENGINE_TROUBLES)
            longest = LONGEST_CALL
            self.clockwork.log(f"  … {trouble}")
        if trouble == "refused":
            yield 0.01
            yield from self._record(process, self._failed(action))
            return
        yield self.clockwork.random.uniform(0.0, longest)
        results = self._carry_out(action)
        if trouble == "never returns":
            return
        yield self.clockwork.random_pause(0.1)
        if trouble == "answer lost":
            results = self._failed(action)
        yield from self._record(
            process,
            set_moment(results, self.clockwork.time()),
        )

    def _failed(self, action: messages.Action) -> Events:
        """Return the events for an action without a proper answer of the engine or the node."""
        now = self.clockwork.time()
        match action:
            case messages.Launch():
                self.engine_failed.add(action.run)
                failure = Failure("ENGINE_DOWN", "no answer")
                return [messages.LaunchFailed(action.run, failure, now)]
            case messages.Probe():
                return [messages.Inspected(action.run, now)]
            case messages.Seal():
                return [messages.Sealed(action.run, None, now, "no answer")]
            case _:
                return [messages.Done(action, now, final=False, message="no answer")]

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: messages.Action) -> Events:
        """Carry out an action; return its results, which bear the moment `T0` until they arrive."""
        return self._handlers[type(action)](action)

    def _tell(self, action: messages.Tell) -> Events:
        """Let the scheduling node hear of the state of a run."""
        self.told_statuses.setdefault(action.run, []).append(action.status)
        return [messages.Done(action, T0)]

    def _close(self, action: messages.Close) -> Events:
        """Release everything of the job, which has no container any more."""
        self.closes += 1
        require(
            not self.containers, f"closed while the engine still holds {sorted(self.containers)}"
        )
        return [messages.Done(action, T0)]

    def _launch(self, action: messages.Launch) -> Events:
        """Create the container of a run, unless the engine has it or refuses it."""
        run = self._run_of(action.run)
        program = self.plot.program(run.name)
        if program.launch_failure:
            failure = Failure(program.launch_failure, "said the engine")
            return [messages.LaunchFailed(run.run_id, failure, T0)]
        if run.name not in self.containers:
            self.launches[run.name] += 1
            is_first = self.launches[run.name] == 1
            vanishes = program.vanishes_after is not None
            require(is_first or vanishes, f"{run.name} is launched again")
            container = Container(program)
            self.containers[run.name] = container
            self.all_containers.setdefault(run.name, []).append(container)
            self._schedule_program(run, program)
        return [messages.Launched(run.run_id, T0, "sha256:0")]

    def _schedule_program(self, run: Run, program: Program) -> None:
        """Have the container report, exit and vanish as its program says."""
        for seconds, status in program.reports:
            copies = self.clockwork.random.choice((1, 1, 2))
            for _ in range(copies):
                self.clockwork.call_later(seconds, self._report, run, status)
        if program.exits_after is not None:
            self.clockwork.call_later(
                program.exits_after, self._exit, run, program.exit_code, program.out_of_memory
            )
        if program.vanishes_after is not None:
            self.clockwork.call_later(
                program.vanishes_after,
                self.containers.pop,
                run.name,
                None,
            )

    def _report(self, run: Run, status: TaskStatus) -> None:
        """Have the container report a status, unless it was killed or removed before."""
        container = self.containers.get(run.name)
        if container is None or container.has_exited_with(KILLED_BY_SIGKILL, KILLED_BY_SIGTERM):
            return
        if self._has_trouble():
            return
        for process in self.processes:
            report = messages.Reported(
                run.run_id,
                status,
                self.clockwork.time(),
            )
            self.clockwork.spawn(self._record(process, [report]), process)

    def _exit(
        self,
        run: Run,
        code: int,
        out_of_memory: bool = False,
    ) -> None:
        """End the container and have the engine notify the process of it."""
        container = self.containers.get(run.name)
        if container is None or container.exit is not None:
            return
        container.exit = Exit(
            code,
            SIGKILL if code == KILLED_BY_SIGKILL else None,
            out_of_memory,
            None,
            self.clockwork.time(),
            container.program.missing_outputs,
        )
        self.clockwork.log(f"{run.name} exits with {code}")
        if self._has_trouble():
            return
        for process in self.processes:
            self.clockwork.spawn(self._follow_notice(process, run), process)

    def _follow_notice(self, process: OsProcess, run: Run) -> Activity:
        """Look at the container after the engine's notice and record its state."""
        yield self.clockwork.random_pause(0.1)
        yield from self._record(
            process,
            set_moment(self._inspect(run), self.clockwork.time()),
        )

    def _probe(self, action: messages.Probe) -> Events:
        """Return the state of the container of a run."""
        return self._inspect(self._run_of(action.run))

    def _inspect(self, run: Run) -> Events:
        """Return the state of a container as the engine shows it."""
        container = self.containers.get(run.name)
        if container is None:
            return [messages.Gone(run.run_id, T0)]
        if container.exit is None:
            return [messages.Inspected(run.run_id, T0)]
        return [messages.Exited(run.run_id, container.exit, T0)]

    def _stop_run(self, action: messages.StopRun) -> Events:
        """End the container of a run and return its state."""
        run = self._run_of(action.run)
        exit_code = self.clockwork.random.choice((0, KILLED_BY_SIGKILL, KILLED_BY_SIGTERM))
        self._exit(run, exit_code)
        # In trouble the engine stops the container but does not show its end.
        state: Events = [messages.Inspected(run.run_id, T0)]
        if not self._has_trouble():
            state = self._inspect(run)
        return [*state, messages.Done(action, T0)]

    def _collect(self, action: messages.Collect) -> Events:
        """Remove the container of an ended run."""
        run = self._run_of(action.run)
        require(run.over, f"{run.run_id} is collected while it is {run.status}")
        self.containers.pop(run.name, None)
        return [messages.Done(action, T0)]

    def _seal(self, action: messages.Seal) -> Events:
        """Return the checksums of a successful run."""
        run = self._run_of(action.run)
        has_succeeded = run.status is RunStatus.SUCCESS
        require(has_succeeded, f"{run.run_id} is sealed while it is {run.status}")
        checksum = f"sum of {run.run_id}"
        files = tuple(FileSum("data_0", 1, checksum, output) for output in run.sealing.outputs)
        return [messages.Sealed(run.run_id, files, T0)]

    # ------------------------------------------------------------ the scheduling node

    def _schedule_end(self) -> None:
        """Have the scheduling node end the job shortly after its last run, once."""
        all_over = all(run.over and not run.unsealed for run in self.local.runs)
        if self._end_is_scheduled or self.plot.stop_at is not None or not all_over:
            return
        self._end_is_scheduled = True
        self._end_job_at(self.clockwork.now + self.clockwork.random.uniform(0.0, 2.0))

    def _end_job_at(self, seconds: float) -> None:
        """Have the scheduling node end the job with the outcome of its runs."""
        succeeds = all(run.status is RunStatus.SUCCESS for run in self.local.runs)
        ending = Ending(Outcome.SUCCEEDED if succeeds else Outcome.FAILED, T0)
        self._request_stop_at(seconds, messages.StopRequested(T0, None, ending, "n1"))

    def _request_stop_at(self, seconds: float, stop: messages.StopRequested) -> None:
        """Have the scheduling node request a stop at some second."""
        delay = max(seconds - self.clockwork.now, 0.0)
        self.clockwork.call_later(delay, self._request_stop, stop)

    def _request_stop(self, stop: messages.StopRequested) -> None:
        """Have the process record a stop; repeat it until a process lives."""
        if not self.processes:
            self.clockwork.call_later(STOP_REPEAT, self._request_stop, stop)
            return
        self.clockwork.log(f"{stop}")
        event = replace(
            stop,
            at=self.clockwork.time(),
        )
        # The scheduling node waits for the response, so no crash interrupts this record.
        self.clockwork.spawn(self._record(self.processes[0], [event]))

    # ------------------------------------------------------------ rules that always hold

    def _check_move(self, old: LocalJob, new: LocalJob) -> None:
        """Compare the record before and after a write."""
        check_status_move(JOB, "the job", old.status, new.status)
        require(
            new.run_index == EMPTY_INDEX.extended(new.runs),
            "the index of the runs is not that of the runs",
        )
        for old_run, new_run in zip(old.runs, new.runs, strict=True):
            _check_run_move(old_run, new_run)
        require(new.closed or not old.closed, "a closed job opens again")

    def _check_end(self) -> None:
        """Check a world in which nothing is left to do."""
        local = self.local
        require(ended(JOB, local.status), f"nothing is left to do; the job is {local.status}")
        require(local.closed, "nothing is left to do; the job is not closed")
        require(not self.containers, f"the engine still holds {sorted(self.containers)}")
        for run in local.runs:
            self._check_ended_run(run)
            self._check_told(run)
        if not self._anything_may_fail():
            self._check_repetitions()

    def _check_ended_run(self, run: Run) -> None:
        """Compare the end of a run with that of its containers."""
        require(run.over, f"{run.run_id} is {run.status} for ever")
        containers = self.all_containers.get(run.name, [])
        if run.failure is None:
            is_right = bool(containers) and self._succeeded(run)
        else:
            is_right = self._failed_for(run, run.failure, containers)
        require(is_right, f"{run.run_id} is {run.status}, {run.failure}; containers: {containers}")

    def _check_told(self, run: Run) -> None:
        """Check that the scheduling node was told of the end of a run."""
        statuses = self.told_statuses.get(run.run_id, [])
        final_status = TaskStatus.SUCCESS if run.failure is None else TaskStatus.FAILED
        require(
            final_status in statuses,
            f"{run.run_id} is {run.status}, and the scheduling node was told {statuses}",
        )

    def _anything_may_fail(self) -> bool:
        """True if the plot has any trouble with the engine or the process."""
        plot = self.plot
        return bool(plot.trouble_chance or plot.crash_chance or plot.dies_at is not None)

    def _check_repetitions(self) -> None:
        """Check that no action except a probe was carried out twice."""
        repeated = [
            action
            for action, times in self.actions.items()
            if times > 1 and not isinstance(action, messages.Probe)
        ]
        require(not repeated, f"done more than once although nothing went wrong: {repeated}")

    def _succeeded(self, run: Run) -> bool:
        """True if reports and exit justify the success of the run."""
        reports = self.recorded_reports.get(run.run_id, [])
        if reports[:1] == [TaskStatus.FAILED]:
            return False
        has_reported = run.container_report.status is TaskStatus.SUCCESS
        if run.exit is None or run.exit.code != 0:
            # Without a good exit, the report counts once the run has waited for the exit.
            return has_reported and _seconds_after_report(run) >= self.timing.linger
        if has_reported:
            return not run.no_callback
        return run.no_callback and not run.exit.missing_outputs

    def _failed_for(
        self,
        run: Run,
        failure: Failure,
        containers: list[Container],
    ) -> bool:
        """True if the failure is right and has the run's node, role and task."""
        origin = (failure.node, failure.role, failure.task)
        if origin != (run.party.node, run.party.role, run.task_name):
            return False
        if failure.reason in CAUSES_IN_RUN:
            return CAUSES_IN_RUN[failure.reason](run, failure)
        if failure.reason == "ENGINE_DOWN":
            return run.run_id in self.engine_failed
        if failure.reason.startswith("EXIT_") or failure.reason in CAUSES_IN_CONTAINER:
            return any(_explains(container, failure.reason) for container in containers)
        launch_failure = self.plot.program(run.name).launch_failure
        return launch_failure != "" and failure.reason == launch_failure


def _check_run_move(old: Run, new: Run) -> None:
    """Compare a run before and after a write."""
    is_reachable = new.status in reachable_in_one_write(old.status)
    require(is_reachable, f"{new.run_id} goes from {old.status} to {new.status}")
    is_same_end = (new.failure, new.ended_at) == (old.failure, old.ended_at)
    require(is_same_end or not old.over, f"{new.run_id} changes after its end")
    has_end = new.ended_at is not None
    require(new.over is has_end, f"{new.run_id} is {new.status} with end {new.ended_at}")
    has_failed = new.status is RunStatus.FAILED
    has_failure = new.failure is not None
    require(has_failed is has_failure, f"{new.run_id} is {new.status} with failure {new.failure}")


def _seconds_after_report(run: Run) -> float:
    """Return the time from the run's last report to its end; 0 without either."""
    if run.ended_at is None or run.container_report.at is None:
        return 0.0
    return (run.ended_at - run.container_report.at).total_seconds()


def reachable_in_one_write(status: RunStatus) -> set[RunStatus]:
    """Return the states after no move of the table, one move or two."""
    after_one = {status} | RUN[status]
    after_two = [RUN[next_status] for next_status in after_one]
    return after_one.union(*after_two)


# ---------------------------------------------------------------- causes of failures


def _was_stopped(run: Run, failure: Failure) -> bool:
    """True if the run was stopped."""
    return run.stop_at is not None


def _reported_failure(run: Run, failure: Failure) -> bool:
    """True if the container reported FAILED and did not exit with an error."""
    return run.container_report.status is TaskStatus.FAILED and failure.exit_code in (None, 0)


CAUSES_IN_RUN: Mapping[str, Callable[[Run, Failure], bool]] = {
    "STOPPED": _was_stopped,
    "REPORTED_FAILED": _reported_failure,
}


def _vanished(container: Container) -> bool:
    """True if a third party removes the container."""
    return container.program.vanishes_after is not None


def _ended_without_outputs(container: Container) -> bool:
    """True if the container exited with 0 and has not written an output."""
    return container.has_exited_with(0) and bool(container.program.missing_outputs)


def _ran_out_of_memory(container: Container) -> bool:
    """True if the engine killed the container for its memory."""
    return container.exit is not None and container.exit.oom_killed


CAUSES_IN_CONTAINER: Mapping[str, Callable[[Container], bool]] = {
    "GONE": _vanished,
    "NO_CALLBACK": _ended_without_outputs,
    "OOM_KILLED": _ran_out_of_memory,
}


def _explains(container: Container, reason: str) -> bool:
    """True if the container ended in a way that has this reason."""
    if reason in CAUSES_IN_CONTAINER:
        return CAUSES_IN_CONTAINER[reason](container)
    if container.exit is None or container.exit.code == 0:
        return False
    return reason == f"EXIT_{container.exit.code}"
