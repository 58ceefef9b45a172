"""How much of a node something takes: whole numbers, so that what is taken and returned adds up exactly."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

CORE = 1000
GIB = 1024**3


@dataclass(frozen=True)
class Amounts:
    """CPU, memory and disk together."""

    cpu: int = 0
    """thousandths of a core"""
    memory: int = 0
    """bytes"""
    disk: int = 0
    """bytes"""

    @classmethod
    def of(cls, cpu: float | None = None, memory: float | None = None, disk: float | None = None) -> Self:
        """Count cores and bytes; what is not limited counts as nothing, any other share at least as one unit."""
        return cls(math.ceil((cpu or 0) * CORE), math.ceil(memory or 0), math.ceil(disk or 0))

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.cpu + other.cpu, self.memory + other.memory, self.disk + other.disk)

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.cpu - other.cpu, self.memory - other.memory, self.disk - other.disk)

    def __mul__(self, times: int) -> "Amounts":
        return Amounts(self.cpu * times, self.memory * times, self.disk * times)

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory or self.disk)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        yield from (("cpu", self.cpu), ("memory", self.memory), ("disk", self.disk))

    def scaled(self, share: float) -> "Amounts":
        """Return this share of everything, rounded down."""
        return Amounts(int(self.cpu * share), int(self.memory * share), int(self.disk * share))

    def fits(self, room: "Amounts") -> bool:
        """Say whether the room is large enough; of what is not needed there may be none, or less."""
        return not self.lacking(room)

    def lacking(self, room: "Amounts") -> tuple[str, ...]:
        """Return the kinds of which the room has too little."""
        have = dict(room)
        return tuple(kind for kind, amount in self if amount > max(have[kind], 0))

    def times_in(self, room: "Amounts") -> int | None:
        """Return how often this fits into the room; None for nothing at all, which fits without end."""
        have = dict(room)
        return min((max(have[kind], 0) // amount for kind, amount in self if amount), default=None)

    def as_dict(self) -> dict[str, float]:
        """Return cores and GiB."""
        return {
            "cpu": self.cpu / CORE,
            "memory_gib": round(self.memory / GIB, 3),
            "disk_gib": round(self.disk / GIB, 3),
        }

    def text(self, kinds: Iterable[str] = ()) -> str:
        """Return the amounts of these kinds (none named: those that are not 0) for a sentence."""
        wanted = tuple(kinds) or tuple(kind for kind, amount in self if amount) or ("cpu",)
        return ", ".join(_said(kind, amount) for kind, amount in self if kind in wanted)


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return all amounts together; nothing of nothing."""
    return sum(amounts, Amounts())


def _said(kind: str, amount: int) -> str:
    if kind == "cpu":
        return f"cpu {amount / CORE:g}"
    return f"{kind} {amount / GIB:.4g} GiB"


@dataclass(frozen=True)
class Portions:
    """Amounts by engine. Under the name "" is the node's main one, and what all share: the storage's disk."""

    at: Mapping[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, main: Amounts, further: Mapping[str, Amounts]) -> Self:
        """Return what is of the main engine and of each further one."""
        return cls({"": main, **further} if further else {"": main})

    def __getitem__(self, engine: str) -> Amounts:
        return self.at.get(engine, _NOTHING)

    def __iter__(self) -> Iterator[tuple[str, Amounts]]:
        """Yield each engine of which there is something."""
        yield from ((engine, amounts) for engine, amounts in self.at.items() if amounts)

    def __bool__(self) -> bool:
        return any(self.at.values())

    def __add__(self, other: "Portions") -> "Portions":
        return Portions({**self.at, **{engine: self[engine] + more for engine, more in other.at.items()}})

    def __sub__(self, other: "Portions") -> "Portions":
        return Portions({**self.at, **{engine: self[engine] - less for engine, less in other.at.items()}})

    def fits(self, room: "Portions") -> bool:
        """Say whether there is room at every engine of which something is needed."""
        return all(amounts.fits(room[engine]) for engine, amounts in self)

    def text(self) -> str:
        """Return the amounts for a sentence, each with its engine where it is not the main one."""
        said = [amounts.text() + (f" at engine {engine}" if engine else "") for engine, amounts in self]
        return "; ".join(said) or _NOTHING.text()


def together(portions: Iterable[Portions]) -> Portions:
    """Return the portions of several, added engine by engine."""
    found: dict[str, Amounts] = {}
    for one in portions:
        for engine, amounts in one:
            found[engine] = found[engine] + amounts if engine in found else amounts
    return Portions(found)


_NOTHING = Amounts()


@dataclass(frozen=True)
class Pool:
    """What a job holds at a node for its tasks, and how many of them that is enough for at once."""

    amounts: Amounts
    """of the main engine, and the disk of all"""
    tasks_at_once: int
    """how many of its tasks that is enough for"""
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """of each further engine that its tasks run at; that may be nothing"""

    @property
    def portions(self) -> Portions:
        """The same by engine."""
        return Portions.of(self.amounts, self.further)


@dataclass(frozen=True)
class Defaults:
    """What a task gets where the job leaves it open (-1 or absent); None is no limit, and counts nothing."""

    cpu: float | None = None
    """cores"""
    memory: int | None = None
    """bytes"""
    pids: int | None = 512
    disk: int | None = None
    """bytes"""
    roles: "Mapping[str, Defaults] | None" = None
    """instead of these, for parties of a role such as ``arbiter``"""

    def for_role(self, role: str) -> "tuple[Defaults, str]":
        """Return the defaults of a role, and what they are called."""
        if self.roles and role in self.roles:
            return self.roles[role], f"site default for {role}"
        return self, "site default"
