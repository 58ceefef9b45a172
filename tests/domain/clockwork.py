"""Virtual time for the simulations.

An activity is a generator that yields the length of each of its pauses in seconds. It may belong
to an `OsProcess`: the death of the process ends its activities at their current pause.
"""

import heapq
import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any, Generic, TypeVar

from tests.builders import T0, at

Activity = Generator[float, None, None]
Record = TypeVar("Record")

# Steps after which a simulation counts as endless.
MAX_STEPS = 100_000


class Broken(AssertionError):
    """A rule that holds in every simulation was broken."""


def require(condition: object, violation: str) -> None:
    """Raise `Broken` with the text unless the condition holds."""
    if not condition:
        raise Broken(violation)


class OsProcess:
    """A process of the operating system that may die at every pause of its activities.

    It dies at pause number ``dies_at`` for certain, and until ``crashes_until`` (seconds) at each
    pause with the probability ``crash_chance``. ``on_death`` is called with the dead process.
    """

    def __init__(
        self,
        name: str,
        on_death: Callable[["OsProcess"], None],
        crash_chance: float = 0.0,
        crashes_until: float = 0.0,
        dies_at: int | None = None,
    ) -> None:
        self.name = name
        self.on_death = on_death
        self.crash_chance = crash_chance
        self.crashes_until = crashes_until
        self.dies_at = dies_at
        self.pauses = 0
        self.alive = True


class Clockwork:
    """Runs activities in virtual time and keeps a log of the simulation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0  # seconds since `T0`
        self.log_lines: list[str] = []
        # Activities due at the same moment run in the order in which they were added.
        self._sequence = itertools.count()
        self._queue: list[tuple[float, int, Activity, OsProcess | None]] = []

    def time(self) -> datetime:
        """Return the current virtual moment."""
        return at(self.now)

    def log(self, text: str) -> None:
        """Write a line with the current second to the log."""
        self.log_lines.append(f"{self.now:9.3f} {text}")

    def log_text(self) -> str:
        """Return the log for the message of a failed check."""
        return "\n".join(self.log_lines)

    def logged_at(self, text: str) -> list[float]:
        """Return the seconds at which lines with the text were logged."""
        return [float(line.split()[0]) for line in self.log_lines if text in line]

    def random_pause(self, longest: float = 0.1) -> float:
        """Return a short random time, which is 0 in half of the cases."""
        return self.random.choice((0.0, self.random.uniform(0.0, longest)))

    def chance(self, probability: float) -> bool:
        """Draw True with a probability."""
        return self.random.random() < probability

    def spawn(
        self,
        activity: Activity,
        process: OsProcess | None = None,
        delay: float = 0.0,
    ) -> None:
        """Run an activity after a delay in seconds, as long as its process lives."""
        entry = (self.now + delay, next(self._sequence), activity, process)
        heapq.heappush(self._queue, entry)

    def call_later(
        self,
        delay: float,
        function: Callable[..., object],
        *arguments: Any,
    ) -> None:
        """Call a function once after a delay in seconds, even if every process dies before."""
        self.spawn(
            _single_call(function, arguments),
            delay=delay,
        )

    def run(self, seconds: float) -> None:
        """Run every activity to its end.

        Raises `Broken` if an activity is still due after these seconds or after `MAX_STEPS` steps.
        """
        for _ in range(MAX_STEPS):
            if not self._queue:
                return
            self.now, _, activity, process = heapq.heappop(self._queue)
            require(self.now <= seconds, f"the simulation still runs after {seconds:g} s")
            self._resume(activity, process)
        raise Broken(f"the simulation takes more than {MAX_STEPS} steps")

    def _resume(self, activity: Activity, process: OsProcess | None) -> None:
        """Run an activity up to its next pause, unless its process is dead or dies now."""
        if process is not None:
            if not process.alive:
                return
            if self._dies_now(process):
                self.log(f"{process.name} dies")
                process.alive = False
                process.on_death(process)
                return
        try:
            pause = next(activity)
        except StopIteration:
            return
        self.spawn(activity, process, pause)

    def _dies_now(self, process: OsProcess) -> bool:
        """Count a pause of a process and draw whether it dies at this one."""
        process.pauses += 1
        if process.pauses == process.dies_at:
            return True
        return self.now < process.crashes_until and self.chance(process.crash_chance)


def _single_call(
    function: Callable[..., object],
    arguments: tuple[Any, ...],
) -> Activity:
    function(*arguments)
    yield from ()


def set_moment(
    events: Iterable[Any],
    moment: datetime,
) -> list[Any]:
    """Return the events as of the moment at which their receiver gets them."""
    return [replace(event, at=moment) for event in events]


class VersionedStore(Generic[Record]):
    """One record with a version; a write names the version from which it was computed.

    ``check`` gets the old and the new record of each write.
    """

    def __init__(
        self,
        record: Record,
        check: Callable[[Record, Record], None],
    ) -> None:
        self.record = record
        self.version = 0
        self._check = check

    def load(self) -> tuple[Record, int]:
        """Return the record and its version."""
        return self.record, self.version

    def save(self, record: Record, version: int) -> bool:
        """Write the record; return False if the store has a newer version than the given one."""
        if version != self.version:
            return False
        self._check(self.record, record)
        self.record = record
        self.version += 1
        return True


class SimulatedShell(Generic[Record]):
    """Processes that treat a record as the gateway's shell does: load, decide, store, act.

    ``rules`` is the state machine that decides: `gateway.domain.scheduling.machine` or
    `gateway.domain.execution.machine`.
    """

    def __init__(
        self,
        rules: Any,
        record: Record,
        timing: Any,
        seed: int,
    ) -> None:
        self.rules = rules
        self.timing = timing
        self.clockwork = Clockwork(seed)
        self.store = VersionedStore(record, self._check_move)
        self.processes: list[OsProcess] = []  # those alive
        self._next_wakeup: dict[OsProcess, float] = {}

    def schedule_wakeups(self) -> None:
        """Have every living process look at the record at the moment when a command is due."""
        due_at = self.rules.next_due(self.store.record, self.timing)
        if due_at is None:
            return
        now = self.clockwork.now
        # The rules say "immediately" with a moment in the year 1.
        is_immediate = due_at.year == 1
        seconds = now if is_immediate else max((due_at - T0).total_seconds(), now)
        for process in self.processes:
            if self._next_wakeup.get(process, float("inf")) > seconds:
                self._next_wakeup[process] = seconds
                self.clockwork.spawn(
                    self._wake_up(process, seconds),
                    process,
                    seconds - now,
                )

    def _wake_up(self, process: OsProcess, seconds: float) -> Activity:
        """Claim the due commands, unless another wake-up has replaced this one."""
        is_superseded = self._next_wakeup.get(process) != seconds
        if is_superseded:
            return
        del self._next_wakeup[process]
        yield self.clockwork.random_pause(0.05)
        yield from self._record(process, [])
        self.schedule_wakeups()

    def decide(
        self, events: Iterable[Any]
    ) -> Generator[float, None, tuple[Record, Record, list[Any]]]:
        """Apply events and claim the due commands, in one write that is repeated after a conflict.

        Return the record before and after the write, and the claimed commands.
        """
        now = self.clockwork.time()
        while True:
            old, version = self.store.load()
            yield self.clockwork.random_pause(0.02)
            updated = old
            for event in events:
                updated = self._apply(updated, event)
            record, commands = self.rules.step(updated, now, self.timing)
            if record is old or self.store.save(replace(record, notes=()), version):
                break
        still_due = set(commands) & set(self.rules.plan(record, now, self.timing))
        require(not still_due, f"still planned right after they were claimed: {still_due}")
        return old, record, commands

    def _apply(self, record: Record, event: Any) -> Record:
        """Return the record after an event."""
        raise NotImplementedError

    def _record(self, process: OsProcess, events: Iterable[Any]) -> Activity:
        """Store events and decisions, then act on the decisions."""
        raise NotImplementedError

    def _check_move(self, old: Record, new: Record) -> None:
        """Check a write to the store; raises `Broken`."""
        raise NotImplementedError
