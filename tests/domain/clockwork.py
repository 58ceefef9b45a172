"""Virtual time for the simulated worlds.

A process is a generator that yields how many seconds it pauses. It may belong to a `Life`, which stands for a
process of the operating system: when that dies, everything that belongs to it stops where it pauses.
"""

import heapq
import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from datetime import datetime
from functools import reduce
from random import Random
from typing import Any, Generic, TypeVar

from tests.builders import T0, at

Process = Generator[float, None, None]
R = TypeVar("R")


class Broken(AssertionError):
    """Something happened that must never happen."""


class Life:
    """What dies at once: at pause number ``dies_at``, or at any before ``safe_from`` with the chance ``crash``."""

    def __init__(
        self,
        name: str,
        crash: float = 0.0,
        safe_from: float = 0.0,
        dies_at: int | None = None,
    ) -> None:
        self.name = name
        self.crash = crash
        self.safe_from = safe_from
        self.dies_at = dies_at
        self.pauses = 0
        self.alive = True
        self.on_death: Callable[[], None] = lambda: None


class Clockwork:
    """Runs processes in virtual time and writes down what they say."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.story: list[str] = []
        self._count = itertools.count()
        self._queue: list[tuple[float, int, Process, Life | None]] = []

    def clock(self) -> datetime:
        return at(self.now)

    def say(self, text: str) -> None:
        self.story.append(f"{self.now:9.3f} {text}")

    def pause(self, most: float = 0.1) -> float:
        """Return a short random time, quite often none at all."""
        return self.random.choice((0.0, self.random.uniform(0.0, most)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def spawn(
        self,
        process: Process,
        life: Life | None = None,
        after: float = 0.0,
    ) -> None:
        heapq.heappush(self._queue, (self.now + after, next(self._count), process, life))

    def call(self, function: Callable[[], object], after: float) -> None:
        """Call the function once, later; nobody's death prevents it."""

        def once() -> Process:
            function()
            yield from ()

        self.spawn(once(), after=after)

    def run(self, seconds: float, most: int = 100_000) -> None:
        """Run until nothing is left to happen. Raises `Broken` when that takes longer than allowed."""
        for _ in range(most):
            if not self._queue:
                return
            self.now, _, process, life = heapq.heappop(self._queue)
            if self.now > seconds:
                raise Broken(f"things still happen after {seconds:g} s")
            self._resume(process, life)
        raise Broken(f"more than {most} things happen")

    def _resume(self, process: Process, life: Life | None) -> None:
        if life is not None and not life.alive:
            return
        if life is not None and self._strikes(life):
            self.say(f"{life.name} dies")
            life.alive = False
            life.on_death()
            return
        try:
            pause = next(process)
        except StopIteration:
            return
        self.spawn(process, life, pause)

    def _strikes(self, life: Life) -> bool:
        life.pauses += 1
        return life.pauses == life.dies_at or (
            self.now < life.safe_from and self.chance(life.crash)
        )


class Stored(Generic[R]):
    """One record with a version; a write says which version it was computed from."""

    def __init__(self, value: R, check: Callable[[R, R], None]) -> None:
        self.value = value
        self.version = 0
        self._check = check

    def load(self) -> tuple[R, int]:
        return self.value, self.version

    def save(self, value: R, seen: int) -> bool:
        """Write unless someone else has written meanwhile."""
        if seen != self.version:
            return False
        self._check(self.value, value)
        self.value = value
        self.version += 1
        return True


class Shell(Generic[R]):
    """Processes that do with a record as the gateway's shell does; ``rules`` is the machine that decides."""

    def __init__(
        self,
        rules: Any,
        record: R,
        timing: Any,
        seed: int,
    ) -> None:
        self.rules = rules
        self.timing = timing
        self.works = Clockwork(seed)
        self.store = Stored(record, self._check_move)
        self.alive: list[Life] = []
        self._next_tick: dict[Life, float] = {}

    def wake(self) -> None:
        """Have every process that lives look at the record when something is due."""
        due = self.rules.next_due(self.store.value, self.timing)
        if due is None:
            return
        at = max((due - T0).total_seconds(), self.works.now) if due.year > 1 else self.works.now
        for life in self.alive:
            if self._next_tick.get(life, float("inf")) > at:
                self._next_tick[life] = at
                self.works.spawn(self._tick(life, at), life, at - self.works.now)

    def _tick(self, life: Life, at: float) -> Process:
        if self._next_tick.get(life) == at:
            del self._next_tick[life]
            yield self.works.pause(0.05)
            yield from self._record(life, [])
            self.wake()

    def stored(
        self, changes: Iterable[Callable[[R], R]]
    ) -> Generator[float, None, tuple[R, R, list[Any]]]:
        """Take in news, decide, store both in one write; return the record before and after, and what is to do."""
        now = self.works.clock()
        while True:
            old, version = self.store.load()
            yield self.works.pause(0.02)
            record, commands = self.rules.step(
                reduce(lambda r, change: change(r), changes, old), now, self.timing
            )
            if record is old or self.store.save(replace(record, notes=()), version):
                break
        if again := set(commands) & set(self.rules.plan(record, now, self.timing)):
            raise Broken(f"still planned right after they were claimed: {again}")
        return old, record, commands

    def _record(self, life: Life, changes: Iterable[Callable[[R], R]]) -> Process:
        raise NotImplementedError

    def _check_move(self, old: R, new: R) -> None:
        raise NotImplementedError
