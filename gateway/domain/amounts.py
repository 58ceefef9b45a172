"""Amounts of processor cores, memory and disk, and pools of them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

CORE = 1000  # a core in the unit of `Amounts.cpu`, thousandths of a core
GIB = 1024**3
MAIN = ""  # name of the node's main engine in mappings by engine


@dataclass(frozen=True)
class Amounts:
    """CPU, memory, disk and GPUs together."""

    cpu: int = 0  # thousandths of a core
    memory: int = 0  # bytes
    disk: int = 0  # bytes
    gpu: int = 0  # whole devices

    @classmethod
    def of(
        cls,
        cpu: float | None = None,
        memory: float | None = None,
        disk: float | None = None,
        gpu: float | None = None,
    ) -> Self:
        """Return amounts from cores, bytes and devices, rounded up.

        None, for a kind without a limit, becomes 0: nothing is reserved for it.
        """
        return cls(
            math.ceil((cpu or 0) * CORE),
            math.ceil(memory or 0),
            math.ceil(disk or 0),
            math.ceil(gpu or 0),
        )

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.disk + other.disk,
            self.gpu + other.gpu,
        )

    def __sub__(self, other: "Amounts") -> "Amounts":
        return self + other * -1

    def __mul__(self, times: int) -> "Amounts":
        return Amounts(
            self.cpu * times,
            self.memory * times,
            self.disk * times,
            self.gpu * times,
        )

    def __bool__(self) -> bool:
        return any(amount for _, amount in self)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each kind with its amount."""
        yield "cpu", self.cpu
        yield "memory", self.memory
        yield "disk", self.disk
        yield "gpu", self.gpu

    def scaled(self, share: float) -> "Amounts":
        """Return a share of the amounts, rounded down.

        If there are any GPUs, the share contains at least one.
        """
        gpu = max(int(self.gpu * share), min(self.gpu, 1))
        return Amounts(int(self.cpu * share), int(self.memory * share), int(self.disk * share), gpu)

    def fits(self, free: "Amounts") -> bool:
        """Return whether the amounts fit into the capacity ``free``.

        Kinds that are not needed are ignored, even if the capacity is negative there.
        """
        return not self.lacking(free)

    def lacking(self, free: "Amounts") -> tuple[str, ...]:
        """Return the kinds that the capacity has too little of; empty if it suffices."""
        capacity = dict(free)
        return tuple(kind for kind, amount in self if amount > max(capacity[kind], 0))

    def times_in(self, free: "Amounts") -> int | None:
        """Return how often the amounts fit into the capacity; None if they are all 0."""
        capacity = dict(free)
        times = []
        for kind, amount in self:
            if amount:
                times.append(max(capacity[kind], 0) // amount)
        return min(times, default=None)

    def as_dict(self) -> dict[str, float]:
        """Return cores, GiB and devices."""
        return {
            "cpu": self.cpu / CORE,
            "memory_gib": round(self.memory / GIB, 3),
            "disk_gib": round(self.disk / GIB, 3),
            "gpu": self.gpu,
        }

    def text(self, kinds: Iterable[str] = ()) -> str:
        """Return the amounts of these kinds for a sentence, such as "cpu 2, memory 4 GiB".

        By default these are all kinds with an amount above 0, or the cpu if there is none.
        """
        listed = tuple(kinds)
        if not listed:
            listed = self._kinds_above_zero() or ("cpu",)
        return ", ".join(_text(kind, amount) for kind, amount in self if kind in listed)

    def _kinds_above_zero(self) -> tuple[str, ...]:
        """Return the kinds with an amount above 0."""
        return tuple(kind for kind, amount in self if amount)


NOTHING = Amounts()


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of amounts."""
    return sum(amounts, NOTHING)


def _text(kind: str, amount: int) -> str:
    """Return an amount with its kind and unit for a sentence."""
    if kind == "cpu":
        return f"cpu {amount / CORE:g}"
    if kind == "gpu":
        return f"gpu {amount}"
    return f"{kind} {amount / GIB:.4g} GiB"


def not_negative(amounts: Amounts) -> Amounts:
    """Return the amounts with 0 in place of each negative one."""
    return Amounts(**{kind: max(amount, 0) for kind, amount in amounts})


@dataclass(frozen=True)
class AmountsByEngine:
    """Amounts by engine; those of `MAIN` include the storage's disk, which all engines share."""

    at: Mapping[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        main: Amounts,
        further: Mapping[str, Amounts],
    ) -> Self:
        """Return the amounts of the main engine and of further ones."""
        return cls({MAIN: main, **further})

    def __getitem__(self, engine: str) -> Amounts:
        return self.at.get(engine, NOTHING)

    def __iter__(self) -> Iterator[tuple[str, Amounts]]:
        """Yield each engine with an amount other than 0, and its amounts."""
        for engine, amounts in self.at.items():
            if amounts:
                yield engine, amounts

    def __bool__(self) -> bool:
        return any(self.at.values())

    def __add__(self, other: "AmountsByEngine") -> "AmountsByEngine":
        sums = dict(self.at)
        for engine, amounts in other.at.items():
            sums[engine] = self[engine] + amounts
        return AmountsByEngine(sums)

    def __sub__(self, other: "AmountsByEngine") -> "AmountsByEngine":
        differences = dict(self.at)
        for engine, amounts in other.at.items():
            differences[engine] = self[engine] - amounts
        return AmountsByEngine(differences)

    def fits(self, free: "AmountsByEngine") -> bool:
        """Whether the capacity suffices at every engine."""
        return all(amounts.fits(free[engine]) for engine, amounts in self)

    def text(self) -> str:
        """Return the amounts for a sentence, with the names of engines other than the main one."""
        parts = []
        for engine, amounts in self:
            text = amounts.text()
            if engine:
                text += f" at engine {engine}"
            parts.append(text)
        return "; ".join(parts) or NOTHING.text()


@dataclass(frozen=True)
class Pool:
    """The amounts that a job has reserved at a node for its tasks."""

    amounts: Amounts  # of the main engine, and the disk of all
    tasks_at_once: int  # number of its tasks that can run in parallel on these amounts
    # amounts at each further engine of its tasks, even if they are 0
    further: Mapping[str, Amounts] = field(default_factory=dict)

    @property
    def by_engine(self) -> AmountsByEngine:
        """The amounts of all engines."""
        return AmountsByEngine.of(self.amounts, self.further)
