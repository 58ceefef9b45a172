"""A workshop in which the execution rules are played: one node, its containers, an engine that loses answers.

A `Shift` says what will happen; `Workshop(shift).run()` plays it and raises `Broken` at the first thing that
must never happen. The process that executes may die at every pause; the next one begins with `Restarted`.
Containers and the scheduling node live on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gateway.domain.execution import machine, messages
from gateway.domain.run import Exit, FileSum, LocalJob, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JOB, RUN, Outcome, RunStatus, TaskStatus, ended, may
from gateway.domain.timeouts import RunTiming
from tests.builders import T0
from tests.domain.clockwork import Broken, Life, Process, Shell

Change = Callable[[LocalJob], LocalJob]
Outcomes = Callable[[datetime], list[messages.Event]]

CALL_LASTS = 10.0
"""No call of the engine or of another node lasts longer, whether it is answered or not."""


@dataclass(frozen=True)
class Program:
    """What a container does, in seconds after its launch; it says RUNNING first."""

    says: tuple[tuple[float, TaskStatus], ...] = (
        (0.0, TaskStatus.RUNNING),
        (1.0, TaskStatus.SUCCESS),
    )
    exits: float | None = 1.1
    """None: only a stop ends it"""
    code: int = 0
    oom: bool = False
    missing: tuple[str, ...] = ()
    vanishes: float | None = None
    """somebody else removes the container"""
    refused: str = ""
    """the engine never launches it, for this reason"""


@dataclass(frozen=True)
class Shift:
    """What will happen. The ``seed`` draws times and the trouble of the engine."""

    local: LocalJob
    programs: Mapping[str, Program] = field(default_factory=dict)
    """by container name"""
    stop_task_at: tuple[tuple[float, str], ...] = ()
    stop_at: float | None = None
    """None: the scheduling node ends the job when every run is over"""
    trouble: float = 0.0
    crash: float = 0.0
    """chance of the process to die at each pause"""
    dies_at: int | None = None
    """the pause at which the first process dies for certain"""
    trouble_until: float = 0.0
    seed: int = 0

    def program(self, name: str) -> Program:
        return self.programs.get(name, Program())


@dataclass
class Box:
    """A container as the engine knows it."""

    program: Program
    exit: Exit | None = None
    heard: list[TaskStatus] = field(default_factory=list)
    """what the executing process has taken in of its reports"""


class Workshop(Shell[LocalJob]):
    """Plays a shift."""

    def __init__(self, shift: Shift, timing: RunTiming = RunTiming()) -> None:
        super().__init__(machine, shift.local, timing, shift.seed)
        self.shift = shift
        self.boxes: dict[str, Box] = {}
        self.past: dict[str, Box] = {}
        """every container there ever was"""
        self.created: Counter[str] = Counter()
        self.told: dict[str, list[TaskStatus]] = {}
        self.actions: Counter[messages.Action] = Counter()
        self.closed = 0
        self.engine_failed: set[str] = set()
        self.lives = 0
        self._asked_to_end = False

    @property
    def local(self) -> LocalJob:
        return self.store.value

    @property
    def trouble(self) -> bool:
        return self.works.now < self.shift.trouble_until and self.works.chance(self.shift.trouble)

    def run(self, seconds: float = 3000.0) -> LocalJob:
        """Play the shift to its end and return the job. Raises `Broken`."""
        try:
            self._begin_life()
            for when, task in self.shift.stop_task_at:
                self._ask(messages.StopRequested(T0, frozenset({task}), None, "n1"), when)
            if self.shift.stop_at is not None:
                self._end_job(self.shift.stop_at)
            self.works.run(seconds)
            self._check_end()
        except Exception as error:
            error.add_note("\n".join(self.works.story))
            raise
        return self.local

    # ------------------------------------------------------------ the process that executes

    def _begin_life(self) -> None:
        self.lives += 1
        dies_at = self.shift.dies_at if self.lives == 1 else None
        life = Life(f"process {self.lives}", self.shift.crash, self.shift.trouble_until, dies_at)
        life.on_death = self._bury
        self.alive = [life]
        if self.lives > 1:  # before it does or hears anything else
            local = machine.apply(self.local, messages.Restarted(self.works.clock()), self.timing)
            self.store.save(replace(local, notes=()), self.store.version)
        self.wake()

    def _bury(self) -> None:
        self.alive.clear()
        self.works.call(self._begin_life, self.works.random.uniform(1.0, 20.0))

    def _take_in(self, life: Life, events: Iterable[messages.Event]) -> Process:
        yield from self._record(life, [self._applying(event) for event in events])
        self._note_heard(events)

    def _applying(self, event: messages.Event) -> Change:
        return lambda local: machine.apply(local, event, self.timing)

    def _record(self, life: Life, changes: Iterable[Change]) -> Process:
        """Do as the shell does, then act."""
        _, _, actions = yield from self.stored(changes)
        self.wake()
        self._end_when_over()
        for action in actions:
            self.works.spawn(self._act(life, action), life, self.works.pause(0.2))

    def _note_heard(self, events: Iterable[messages.Event]) -> None:
        for event in events:
            if isinstance(event, messages.Reported):
                run = _run(self.local, event.run)
                if run.name in self.past:
                    self.past[run.name].heard.append(event.status)

    def _act(self, life: Life, action: messages.Action) -> Process:
        self.works.say(f"{action}")
        self.actions[action] += 1
        if self.trouble:
            kind = self.works.random.choice(("refused", "answer lost", "never returns", "slow"))
            self.works.say(f"  … {kind}")
        else:
            kind = "well"
        if kind == "refused":
            yield 0.01
            yield from self._take_in(life, self._failed(action))
            return
        yield self.works.random.uniform(0.0, CALL_LASTS if kind != "well" else 0.1)
        outcomes = self._effect(action)
        if kind == "never returns":
            return
        yield self.works.pause(0.1)
        yield from self._take_in(
            life, self._failed(action) if kind == "answer lost" else outcomes(self.works.clock())
        )

    def _failed(self, action: messages.Action) -> list[messages.Event]:
        """Return what the shell makes of an engine or a node that did not answer properly."""
        now = self.works.clock()
        match action:
            case messages.Launch():
                self.engine_failed.add(action.run)
                return [messages.LaunchFailed(action.run, Failure("ENGINE_DOWN", "no answer"), now)]
            case messages.Probe():
                return [messages.Inspected(action.run, now)]
            case messages.Seal():
                return [messages.Sealed(action.run, None, now, "no answer")]
            case messages.StopRun() | messages.Collect() | messages.Tell() | messages.Close():
                return [messages.Done(action, now, final=False, message="no answer")]

    # ------------------------------------------------------------ what actions do

    def _effect(self, action: messages.Action) -> Outcomes:
        if isinstance(action, messages.Close):
            self.closed += 1
            if self.boxes:
                raise Broken(f"closed while the engine still holds {sorted(self.boxes)}")
            return lambda at: [messages.Done(action, at)]
        run = _run(self.local, action.run)
        match action:
            case messages.Launch():
                return self._launch(run)
            case messages.Probe():
                return self._probe(run)
            case messages.StopRun():
                self._kill(run.name)
                # now and then the look after the stop cannot be taken
                look = (
                    (lambda at: [messages.Inspected(run.run_id, at)])
                    if self.trouble
                    else self._probe(run)
                )
                return lambda at: [*look(at), messages.Done(action, at)]
            case messages.Collect():
                if not run.over:
                    raise Broken(f"{run.run_id} is collected while it is {run.status}")
                self.boxes.pop(run.name, None)
                return lambda at: [messages.Done(action, at)]
            case messages.Seal():
                if run.status is not RunStatus.SUCCESS:
                    raise Broken(f"{run.run_id} is sealed while it is {run.status}")
                files = tuple(FileSum("data_0", 1, f"sum of {run.run_id}", o) for o in run.to_seal)
                return lambda at: [messages.Sealed(action.run, files, at)]
            case messages.Tell():
                self.told.setdefault(run.run_id, []).append(action.status)
                return lambda at: [messages.Done(action, at)]

    def _launch(self, run: Run) -> Outcomes:
        program = self.shift.program(run.name)
        if program.refused:
            failure = Failure(program.refused, "said the engine")
            return lambda at: [messages.LaunchFailed(run.run_id, failure, at)]
        if run.name not in self.boxes:
            self.created[run.name] += 1
            if self.created[run.name] > 1 and program.vanishes is None:
                raise Broken(f"{run.name} is launched again")
            self.boxes[run.name] = self.past[run.name] = Box(program)
            self._live(run, program)
        return lambda at: [messages.Launched(run.run_id, at, "sha256:0")]

    def _live(self, run: Run, program: Program) -> None:
        for when, status in program.says:
            for _ in range(self.works.random.choice((1, 1, 2))):
                self.works.call(lambda status=status: self._say(run, status), when)
        if program.exits is not None:
            self.works.call(lambda: self._exit(run, program.code, program.oom), program.exits)
        if program.vanishes is not None:
            self.works.call(lambda: self.boxes.pop(run.name, None), program.vanishes)

    def _say(self, run: Run, status: TaskStatus) -> None:
        box = self.boxes.get(run.name)
        if box is None or (box.exit is not None and box.exit.code in (137, 143)):
            return  # it was killed before it came to that
        for life in self.alive if not self.trouble else ():
            self.works.spawn(
                self._take_in(life, [messages.Reported(run.run_id, status, self.works.clock())]),
                life,
            )

    def _exit(
        self,
        run: Run,
        code: int,
        oom: bool = False,
    ) -> None:
        box = self.boxes.get(run.name)
        if box is None or box.exit is not None:
            return
        box.exit = Exit(
            code, 9 if code == 137 else None, oom, None, self.works.clock(), box.program.missing
        )
        self.works.say(f"{run.name} exits with {code}")
        for life in self.alive if not self.trouble else ():
            self.works.spawn(self._look(life, run), life)

    def _look(self, life: Life, run: Run) -> Process:
        """The engine tells of an exit: the shell looks and records what it sees."""
        yield self.works.pause(0.1)
        yield from self._take_in(life, self._probe(run)(self.works.clock()))

    def _kill(self, name: str) -> None:
        run = next(r for r in self.local.runs if r.name == name)
        self._exit(run, self.works.random.choice((0, 137, 143)))

    def _probe(self, run: Run) -> Outcomes:
        box = self.boxes.get(run.name)
        if box is None:
            return lambda at: [messages.Gone(run.run_id, at)]
        exit_ = box.exit
        if exit_ is None:
            return lambda at: [messages.Inspected(run.run_id, at)]
        return lambda at: [messages.Exited(run.run_id, exit_, at)]

    # ------------------------------------------------------------ the scheduling node

    def _end_when_over(self) -> None:
        local = self.local
        if (
            self._asked_to_end
            or self.shift.stop_at is not None
            or not all(run.over and not run.unsealed for run in local.runs)
        ):
            return
        self._asked_to_end = True
        self._end_job(self.works.now + self.works.random.uniform(0.0, 2.0))

    def _end_job(self, when: float) -> None:
        good = all(run.status is RunStatus.SUCCESS for run in self.local.runs)
        ending = Ending(Outcome.SUCCEEDED if good else Outcome.FAILED, T0)
        self._ask(messages.StopRequested(T0, None, ending, "n1"), when)

    def _ask(self, stop: messages.StopRequested, when: float) -> None:
        """The scheduling node asks until a process lives to answer."""

        def ask() -> None:
            if not self.alive:
                self.works.call(ask, 1.0)
                return
            self.works.say(f"{stop}")
            self.works.spawn(self._take_in(self.alive[0], [replace(stop, at=self.works.clock())]))

        self.works.call(ask, max(when - self.works.now, 0.0))

    # ------------------------------------------------------------ what must always hold

    @staticmethod
    def _check_move(old: LocalJob, new: LocalJob) -> None:
        if old.status is not new.status and not may(JOB, old.status, new.status):
            raise Broken(f"the job goes from {old.status} to {new.status}")
        for before, run in zip(old.runs, new.runs, strict=True):
            if run.status not in soon(before.status):
                raise Broken(f"{run.run_id} goes from {before.status} to {run.status}")
            if before.over and (run.failure, run.ended_at) != (before.failure, before.ended_at):
                raise Broken(f"{run.run_id} changes after its end")
            if run.over is not (run.ended_at is not None):
                raise Broken(f"{run.run_id} is {run.status} with end {run.ended_at}")
            if (run.failure is not None) is not (run.status is RunStatus.FAILED):
                raise Broken(f"{run.run_id} is {run.status} with failure {run.failure}")
        if old.closed and not new.closed:
            raise Broken("a closed job opens again")

    def _check_end(self) -> None:
        local = self.local
        if not local.closed or not ended(JOB, local.status):
            raise Broken(f"nothing is left to do; the job is {local.status} and not closed")
        if self.boxes:
            raise Broken(f"the engine still holds {sorted(self.boxes)}")
        for run in local.runs:
            if not run.over:
                raise Broken(f"{run.run_id} is {run.status} for ever")
            self._check_run(run)
            told = self.told.get(run.run_id, [])
            if (TaskStatus.SUCCESS if run.failure is None else TaskStatus.FAILED) not in told:
                raise Broken(
                    f"{run.run_id} is {run.status}, and the scheduling node was told {told}"
                )
        if not self.shift.trouble and not self.shift.crash and self.shift.dies_at is None:
            often = [
                a for a, n in self.actions.items() if n > 1 and not isinstance(a, messages.Probe)
            ]
            if often:
                raise Broken(f"done more than once although nothing went wrong: {often}")

    def _check_run(self, run: Run) -> None:
        """Compare how the run ended with what its container did."""
        box = self.past.get(run.name)
        if run.failure is None:
            right = box is not None and self._rightly_succeeded(run, box)
        else:
            right = self._rightly_failed(run, run.failure, box)
        if not right:
            raise Broken(f"{run.run_id} is {run.status}, {run.failure}; its container: {box}")

    def _rightly_succeeded(self, run: Run, box: Box) -> bool:
        if TaskStatus.FAILED in box.heard and box.heard.index(TaskStatus.FAILED) == 0:
            return False
        if run.exit is not None and run.exit.code == 0:
            said = run.reported is TaskStatus.SUCCESS
            return said is not run.no_callback and (said or not run.exit.missing_outputs)
        waited = (
            (run.ended_at - run.reported_at).total_seconds()
            if run.ended_at and run.reported_at
            else 0.0
        )
        return run.reported is TaskStatus.SUCCESS and waited >= self.timing.linger

    def _rightly_failed(
        self,
        run: Run,
        failure: Failure,
        box: Box | None,
    ) -> bool:
        if (failure.node, failure.role, failure.task) != (
            run.party.node,
            run.party.role,
            run.task_name,
        ):
            return False
        match failure.reason:
            case "STOPPED":
                return run.stop_at is not None
            case "ENGINE_DOWN":
                return run.run_id in self.engine_failed
            case "GONE":
                return box is not None and box.program.vanishes is not None
            case "REPORTED_FAILED":
                return run.reported is TaskStatus.FAILED and failure.exit_code in (None, 0)
            case "NO_CALLBACK":
                return (
                    box is not None
                    and box.exit is not None
                    and box.exit.code == 0
                    and bool(box.program.missing)
                )
            case "OOM_KILLED":
                return box is not None and box.exit is not None and box.exit.oom_killed
            case reason if reason.startswith("EXIT_"):
                return (
                    box is not None
                    and box.exit is not None
                    and reason == f"EXIT_{box.exit.code}" != "EXIT_0"
                )
            case reason:
                return reason == self.shift.program(run.name).refused != ""


def soon(status: RunStatus) -> set[RunStatus]:
    """Return where one write may lead: nowhere, one move of the table or two."""
    once = {status} | RUN[status]
    return once.union(*(RUN[s] for s in once))


def _run(local: LocalJob, run_id: str) -> Run:
    return next(run for run in local.runs if run.run_id == run_id)
