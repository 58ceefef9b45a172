"""Amounts of processor cores, memory, disk and GPUs, and pools of them."""

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
            _rounded_up(cpu, unit=CORE),
            _rounded_up(memory),
            _rounded_up(disk),
            _rounded_up(gpu),
        )

    def __add__(self, amounts: "Amounts") -> "Amounts":
        """Return the sum of each kind."""
        return Amounts(
            self.cpu + amounts.cpu,
            self.memory + amounts.memory,
            self.disk + amounts.disk,
            self.gpu + amounts.gpu,
        )

    def __sub__(self, amounts: "Amounts") -> "Amounts":
        """Return the difference of each kind, which may be negative."""
        return self + amounts * -1

    def __mul__(self, times: int) -> "Amounts":
        """Return ``times`` the amounts, as for a number of equal tasks; -1 negates them."""
        return Amounts(
            self.cpu * times,
            self.memory * times,
            self.disk * times,
            self.gpu * times,
        )

    def __bool__(self) -> bool:
        """Return whether the amount of any kind is not 0; a negative amount counts."""
        return any(amount for _, amount in self)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each kind with its amount."""
        yield "cpu", self.cpu
        yield "memory", self.memory
        yield "disk", self.disk
        yield "gpu", self.gpu

    def scaled(self, share: float) -> "Amounts":
        """Return a share (0 to 1) of the amounts, rounded down.

        If there are any GPUs, the share contains at least one.
        """
        least_gpu = min(self.gpu, 1)
        return Amounts(
            int(self.cpu * share),
            int(self.memory * share),
            int(self.disk * share),
            max(int(self.gpu * share), least_gpu),
        )

    def fits(self, free: "Amounts") -> bool:
        """Return whether the amounts fit into the capacity ``free``.

        A kind with the amount 0 always fits, even if the capacity of the kind is negative.
        """
        return not self.lacking(free)

    def lacking(self, free: "Amounts") -> tuple[str, ...]:
        """Return the kinds with an amount above the capacity ``free``; empty if it suffices."""
        capacity = dict(not_negative(free))
        return tuple(kind for kind, amount in self if amount > capacity[kind])

    def times_in(self, free: "Amounts") -> int | None:
        """Return how often the amounts fit into the capacity ``free``; None if they are all 0."""
        capacity = dict(not_negative(free))
        times = [capacity[kind] // amount for kind, amount in self if amount]
        return min(times, default=None)

    def as_dict(self) -> dict[str, float]:
        """Return the amount of each kind in the units that people use.

        These are cores, GiB with at most three decimals, and devices.
        """
        return {
            "cpu": self.cpu / CORE,
            "memory_gib": round(self.memory / GIB, 3),
            "disk_gib": round(self.disk / GIB, 3),
            "gpu": self.gpu,
        }

    def text(self, kinds: Iterable[str] = ()) -> str:
        """Return the amounts of these kinds for a sentence, such as "cpu 2, memory 4 GiB".

        By default all kinds with an amount are listed, or the cpu if all amounts are 0.
        """
        texts = {
            "cpu": f"cpu {self.cpu / CORE:g}",
            "memory": f"memory {self.memory / GIB:.4g} GiB",
            "disk": f"disk {self.disk / GIB:.4g} GiB",
            "gpu": f"gpu {self.gpu}",
        }
        kinds_with_amount = [kind for kind, amount in self if amount]
        listed = tuple(kinds) or kinds_with_amount or ("cpu",)
        return ", ".join(text for kind, text in texts.items() if kind in listed)


NOTHING = Amounts()


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of amounts."""
    return sum(amounts, NOTHING)


def _rounded_up(amount: float | None, unit: int = 1) -> int:
    """Return an amount in whole units, rounded up; 0 for None.

    ``unit`` is the number of units in an amount of 1, such as the 1000 thousandths of a core.
    """
    if amount is None:
        return 0
    return math.ceil(amount * unit)


def not_negative(amounts: Amounts) -> Amounts:
    """Return the amounts with 0 in place of each negative one."""
    return Amounts(**{kind: max(amount, 0) for kind, amount in amounts})


@dataclass(frozen=True)
class AmountsByEngine:
    """Amounts by engine; the disk of the storage, which all engines share, counts at `MAIN`."""

    at: Mapping[str, Amounts] = field(default_factory=dict)  # by the engine's name, or `MAIN`

    @classmethod
    def of(
        cls,
        main: Amounts,
        further: Mapping[str, Amounts],
    ) -> Self:
        """Return the amounts of the main engine and of further ones.

        ``main`` has the disk of all engines. ``further`` are amounts by the name of the engine.
        """
        return cls({MAIN: main, **further})

    def __getitem__(self, engine: str) -> Amounts:
        """Return the amounts of an engine; `NOTHING` for an engine without any."""
        return self.at.get(engine, NOTHING)

    def __iter__(self) -> Iterator[tuple[str, Amounts]]:
        """Return each engine with an amount other than 0, and its amounts."""
        return ((engine, amounts) for engine, amounts in self.at.items() if amounts)

    def __bool__(self) -> bool:
        """Return whether any engine has an amount other than 0."""
        return any(self.at.values())

    def __add__(self, addend: "AmountsByEngine") -> "AmountsByEngine":
        """Return the sum at each engine of either side.

        An engine that only one side has counts as 0 on the other side.
        """
        sums = {engine: self[engine] + amounts for engine, amounts in addend.at.items()}
        return AmountsByEngine({**self.at, **sums})

    def __sub__(self, subtrahend: "AmountsByEngine") -> "AmountsByEngine":
        """Return the difference at each engine of either side.

        An engine that only one side has counts as 0 on the other side, so that a difference may be
        negative.
        """
        differences = {engine: self[engine] - amounts for engine, amounts in subtrahend.at.items()}
        return AmountsByEngine({**self.at, **differences})

    def fits(self, free: "AmountsByEngine") -> bool:
        """Return whether the capacity ``free`` suffices at every engine."""
        return all(amounts.fits(free[engine]) for engine, amounts in self)

    def text(self) -> str:
        """Return the amounts for a sentence; engines other than the main one are named."""
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

    amounts: Amounts  # at the main engine, with the disk for all engines
    tasks_at_once: int  # number of the job's tasks that can run in parallel on these amounts
    # amounts at each further engine of the job's tasks, even if they are 0
    further: Mapping[str, Amounts] = field(default_factory=dict)

    @property
    def by_engine(self) -> AmountsByEngine:
        """The amounts of all engines."""
        return AmountsByEngine.of(self.amounts, self.further)
