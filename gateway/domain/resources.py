"""The resources that a job needs at a node, and the ledger of reservations there.

Two pools. The node's is for jobs: before it starts, a job reserves what its tasks here can need at the same time,
at each engine that they run at. The job's own is for its tasks: a run uses its part while it is launched
(`gateway.domain.run`). There are no counters: what is left is always the total less the reservations.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from gateway.domain.dag import Dag, order
from gateway.domain.spec import JobSpec, NodeId, Party, is_own, overlay

CORE = 1000
PARTNERS_BOUND = "the node's bound for partners"
"""where the limit of cores comes from for tasks of partners' jobs that request none"""
GIB = 1024**3


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
        """Count cores, bytes and devices; what has no limit counts as nothing, any share at least as one unit."""
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
        return Amounts(self.cpu * times, self.memory * times, self.disk * times, self.gpu * times)

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory or self.disk or self.gpu)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        yield from (
            ("cpu", self.cpu),
            ("memory", self.memory),
            ("disk", self.disk),
            ("gpu", self.gpu),
        )

    def scaled(self, share: float) -> "Amounts":
        """Return this share of everything, rounded down, but a GPU at least where there is any."""
        gpu = max(int(self.gpu * share), min(self.gpu, 1))
        return Amounts(int(self.cpu * share), int(self.memory * share), int(self.disk * share), gpu)

    def fits(self, free: "Amounts") -> bool:
        """Whether the capacity is enough; of what is not needed there may be none, or less."""
        return not self.lacking(free)

    def lacking(self, free: "Amounts") -> tuple[str, ...]:
        """Return the kinds of which the capacity has too little."""
        have = dict(free)
        return tuple(kind for kind, amount in self if amount > max(have[kind], 0))

    def times_in(self, free: "Amounts") -> int | None:
        """Return how often this fits into the capacity; None for nothing at all, which always fits."""
        have = dict(free)
        return min((max(have[kind], 0) // amount for kind, amount in self if amount), default=None)

    def as_dict(self) -> dict[str, float]:
        """Return cores, GiB and devices."""
        return {
            "cpu": self.cpu / CORE,
            "memory_gib": round(self.memory / GIB, 3),
            "disk_gib": round(self.disk / GIB, 3),
            "gpu": self.gpu,
        }

    def text(self, kinds: Iterable[str] = ()) -> str:
        """Return the amounts of these kinds (none named: those that are not 0) for a sentence."""
        wanted = tuple(kinds) or tuple(kind for kind, amount in self if amount) or ("cpu",)
        return ", ".join(_text(kind, amount) for kind, amount in self if kind in wanted)


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return all amounts together; nothing of nothing."""
    return sum(amounts, Amounts())


def _text(kind: str, amount: int) -> str:
    if kind == "cpu":
        return f"cpu {amount / CORE:g}"
    if kind == "gpu":
        return f"gpu {amount}"
    return f"{kind} {amount / GIB:.4g} GiB"


@dataclass(frozen=True)
class Portions:
    """Amounts by engine. Under the name "" is the node's main one, and what all share: the storage's disk."""

    at: Mapping[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, main: Amounts, further: Mapping[str, Amounts]) -> Self:
        """Return what is of the main engine and of each further one."""
        return cls({"": main, **further})

    def __getitem__(self, engine: str) -> Amounts:
        return self.at.get(engine, _NOTHING)

    def __iter__(self) -> Iterator[tuple[str, Amounts]]:
        """Yield each engine of which there is something."""
        yield from ((engine, amounts) for engine, amounts in self.at.items() if amounts)

    def __bool__(self) -> bool:
        return any(self.at.values())

    def __add__(self, other: "Portions") -> "Portions":
        return Portions(
            {**self.at, **{engine: self[engine] + more for engine, more in other.at.items()}}
        )

    def __sub__(self, other: "Portions") -> "Portions":
        return Portions(
            {**self.at, **{engine: self[engine] - less for engine, less in other.at.items()}}
        )

    def fits(self, free: "Portions") -> bool:
        """Whether there is capacity at every engine of which something is needed."""
        return all(amounts.fits(free[engine]) for engine, amounts in self)

    def text(self) -> str:
        """Return the amounts for a sentence, each with its engine where it is not the main one."""
        lines = [
            amounts.text() + (f" at engine {engine}" if engine else "") for engine, amounts in self
        ]
        return "; ".join(lines) or _NOTHING.text()


_NOTHING = Amounts()


@dataclass(frozen=True)
class Pool:
    """What a job has reserved at a node for its tasks."""

    amounts: Amounts  # of the main engine, and the disk of all
    tasks_at_once: int  # for how many of its tasks at the same time that is enough
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """of each further engine that its tasks run at; that may be nothing"""

    @property
    def portions(self) -> Portions:
        """The same by engine."""
        return Portions.of(self.amounts, self.further)


@dataclass(frozen=True)
class Defaults:
    """What a task gets where the job leaves it open (-1 or absent); None: no limit, and nothing counted."""

    cpu: float | None = None  # cores
    memory: int | None = None  # bytes
    pids: int | None = 512
    disk: int | None = None  # bytes
    roles: "Mapping[str, Defaults] | None" = (
        None  # instead of these, for parties of a role such as ``arbiter``
    )

    def for_role(self, role: str) -> "tuple[Defaults, str]":
        """Return the defaults of a role, and what they are called."""
        if self.roles and role in self.roles:
            return self.roles[role], f"site default for {role}"
        return self, "site default"


MOST = 2.0**32
"""cores or GiB that no machine has"""
UNITS = {
    "cpu": 1,
    "memory": GIB,
    "disk": GIB,
    "gpu": 1,
}


# ---------------------------------------------------------------- what a job asks for


@dataclass(frozen=True)
class Granted:
    """What each run of a party may use; None: as much as the node allows (`gateway.jobs.resources`)."""

    cpu: float | None = None  # cores
    memory: float | None = None  # bytes
    disk: float | None = None  # bytes
    gpu: float | None = None  # devices; None: none
    origins: Mapping[str, str] = field(
        default_factory=dict
    )  # cpu, memory, disk, gpu -> where it comes from

    @property
    def amounts(self) -> Amounts:
        """The same as amounts; what has no limit takes nothing."""
        return Amounts.of(self.cpu, self.memory, self.disk, self.gpu)


def granted(
    spec: JobSpec,
    party: Party,
    defaults: Defaults,
) -> Granted:
    """Return what each run of a party may use: what the job requests for it, else the node's default."""
    default, name = defaults.for_role(party.role)
    values: dict[str, float | None] = {
        "cpu": default.cpu,
        "memory": default.memory,
        "disk": default.disk,
    }
    origins = {
        kind: name if value is not None else "the node's bound" for kind, value in values.items()
    }
    if default.cpu is None and not is_own(spec, party.node):
        origins["cpu"] = PARTNERS_BOUND
    for kind, asked in overlay(spec.job_params, party, "resources").items():
        number = amount(asked.value) if kind in UNITS else None
        if number is not None and number > 0:
            values[kind], origins[kind] = number * UNITS[kind], asked.origin
    return Granted(values["cpu"], values["memory"], values["disk"], values.get("gpu"), origins)


def amount(value: Any) -> float | None:
    """Read an amount; None for what is not a valid one, or more than any machine has."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number < MOST else None


# ---------------------------------------------------------------- who holds what


class ClaimState(StrEnum):
    """The state of a job's reservation at the node."""

    WAITING = "WAITING"
    HELD = "HELD"
    RETURNED = "RETURNED"  # released before the job has started, because another node was busy; keeps its age


@dataclass(frozen=True)
class Claim:
    """A reservation of a job at the node, or its request for one."""

    job_id: str
    amounts: Amounts  # of the main engine, and the disk of all
    state: ClaimState
    since: datetime  # when it was first requested
    asked_at: datetime  # when it was last requested
    priority: int = 0  # the higher goes first
    scheduler: NodeId = ""
    held_at: datetime | None = None  # since when it is held; None while it is not
    reason: str = ""  # what it waits for; empty while it is held
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """of each further engine that its tasks run at; that may be nothing"""

    @property
    def portions(self) -> Portions:
        """The same by engine."""
        return Portions.of(self.amounts, self.further)


@dataclass(frozen=True)
class Ledger:
    """The node's pool. Every change makes a new one; what is left follows from the claims."""

    total: Amounts  # of the main engine; likewise what is held, what remains and what is free
    claims: Mapping[str, Claim] = field(default_factory=dict)
    ignored: int = 0  # releases that had nothing to release
    repaired: int = 0  # reservations of ended jobs that the reconciler released
    expired: int = 0  # reservations of jobs that their scheduling node never started
    node: NodeId = ""
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """the totals of the further engines, as far as they are known"""
    away: Mapping[str, str] = field(default_factory=dict)
    """further engines that do not respond -> the message; nothing more is reserved of them until they do"""
    others: Portions = Portions()
    """what others than this node use of its engines"""

    @property
    def holders(self) -> tuple[Claim, ...]:
        """The claims that hold something."""
        return tuple(c for c in self.claims.values() if c.state is ClaimState.HELD)

    @property
    def held(self) -> Amounts:
        """What they hold together at the main engine, and of the disk."""
        return self.held_at("")

    @property
    def remaining(self) -> Amounts:
        """What is left at the main engine, and of the disk; below nothing where there is less than is held."""
        return self.total - self.held - self.others[""]

    @property
    def free(self) -> Amounts:
        """What others may hold: where the node has become smaller than what is held, nothing of that."""
        return _at_least_none(self.remaining)

    def held_at(self, engine: str) -> Amounts:
        """Return what is held of an engine; "" is the main one."""
        return total(c.portions[engine] for c in self.holders)

    @property
    def available(self) -> Portions:
        """What others may hold of each engine that answers."""
        left = {
            engine: most - self.held_at(engine) - self.others[engine]
            for engine, most in self.further.items()
        }
        there = {
            engine: _at_least_none(amounts)
            for engine, amounts in left.items()
            if engine not in self.away
        }
        return Portions.of(self.free, there)

    def with_claim(self, claim: Claim) -> "Ledger":
        """Return a ledger with this claim in the place of the job's former one."""
        return replace(self, claims={**self.claims, claim.job_id: claim})

    def give_back(self, job_id: str) -> "Ledger":
        """Release what a job has reserved. Without a reservation it is counted as ignored."""
        claim = self.claims.get(job_id)
        if claim is None or claim.state is not ClaimState.HELD:
            return replace(self, ignored=self.ignored + 1)
        return self.with_claim(
            replace(
                claim,
                state=ClaimState.RETURNED,
                held_at=None,
                reason="",
            )
        )

    def without(self, job_id: str) -> "Ledger":
        """Remove a job that has ended, with its reservation; idempotent."""
        if job_id not in self.claims:
            return self
        return replace(self, claims={k: c for k, c in self.claims.items() if k != job_id})


def _at_least_none(amounts: Amounts) -> Amounts:
    return Amounts(**{kind: max(amount, 0) for kind, amount in amounts})


# What a job needs at a node, by the engines that its tasks run at, and how much of it the job is to hold.
#
# Each engine has cores, memory and GPUs of its own. The disk is the storage's, which all engines of a node share:
# it is held with the main engine's part, wherever a task runs.


@dataclass(frozen=True)
class Seat:
    """Where a task of a job runs at the node, and whose."""

    engine: str = ""
    roles: Set[str] | None = None  # that the component has; None: every one


@dataclass(frozen=True)
class Part:
    """What a job's tasks at one engine need."""

    parties: Mapping[str, Amounts]  # party -> what one of its tasks may use
    most: int  # no more of these tasks can ever run in parallel
    engine: str = ""

    @property
    def one(self) -> Amounts:
        """What one task needs at all parties of the node together."""
        return total(self.parties.values())


@dataclass(frozen=True)
class Demand:
    """What a job needs at one node."""

    parts: tuple[Part, ...]
    width: int  # tasks of the job that may want to run in parallel

    def __bool__(self) -> bool:
        return any(part.one for part in self.parts)


def demand(
    spec: JobSpec,
    node: NodeId,
    defaults: Defaults,
    seats: Mapping[str, Seat] | None = None,
) -> Demand:
    """Return what a job needs at a node, all roles there counted together. ``seats``: task -> where it runs.

    Where tasks run at several engines, a party counts at those at which it has a role in any task.
    The width is what the flow allows by its levels, or what the job bounds it to: independent tasks overlap by
    default, and a job holds enough for that.
    """
    places = seats or {}
    parties = {p: granted(spec, p, defaults).amounts for p in spec.parties_at(node)}
    by_engine: dict[str, list[str]] = {}
    for name in (task.name for task in spec.dag.nodes):
        by_engine.setdefault(places.get(name, Seat()).engine, []).append(name)
    parts = []
    for engine, names in by_engine.items():
        roles = [places.get(name, Seat()).roles for name in names]
        everybody = len(by_engine) == 1 or None in roles
        here = {
            p.label: a
            for p, a in parties.items()
            if everybody or any(p.role in r for r in roles if r)
        }
        most = len(names) if len(by_engine) == 1 else breadth(spec.dag, set(names))
        parts.append(Part(here, most, engine))
    return Demand(
        tuple(parts),
        min(widest_level(spec.dag), spec.settings.task_parallelism or len(spec.dag.nodes) or 1),
    )


def widest_level(dag: Dag) -> int:
    """The largest number of tasks that are equally far from the flow's beginning and may run in parallel."""
    levels: dict[str, int] = {}
    counts: Counter[int] = Counter()
    for name in order(dag):
        levels[name] = max((levels[up] + 1 for up in dag[name].upstream if up in levels), default=0)
        counts[levels[name]] += 1
    return max(counts.values(), default=1)


def breadth(dag: Dag, names: Set[str]) -> int:
    """Return a number of which no more of these tasks can ever run in parallel: of chains that they all belong to.

    It may be more than the least such number, which is costly to find.
    """
    above: dict[str, int] = {}
    ends, found = 0, 0
    for i, name in enumerate(order(dag)):
        before = 0
        for up in dag[name].upstream & above.keys():
            before |= above[up]
        above[name] = before | 1 << i
        if name in names:
            continued = before & ends
            ends ^= continued & -continued  # the lowest bit of them, none for none
            ends |= 1 << i
            found += not continued
    return found


@dataclass(frozen=True)
class EngineCapacity:
    """The capacity of one further engine."""

    total: Amounts | None  # None: it has not responded yet, so it is not known
    cores: float = 0.0  # of its machine: no container can have more
    away: str = ""  # why nothing can be reserved of it now, since when; empty while it responds
    cause: str = ""  # the cause of its silence, for this node only
    others: Amounts = _NOTHING  # what others than this node use of the total


@dataclass(frozen=True)
class NodeCapacity:
    """The capacity of a node."""

    node: NodeId
    total: Amounts  # of the main engine, and the disk of all
    cores: float  # of the main engine: no container can have more
    share: float = 1.0  # of the total, what one job may hold
    defaults: Defaults = field(default_factory=Defaults)
    further: Mapping[str, EngineCapacity] = field(
        default_factory=dict
    )  # the further engines by their names
    engine: str = "main"  # what the main engine is called where there are several
    others: Amounts = _NOTHING  # what others than this node use of the main engine

    def of(self, engine: str) -> EngineCapacity:
        """Return what an engine has, with the disk that it shares with the others."""
        if not engine:
            return EngineCapacity(self.total, self.cores, others=self.others)
        found = self.further.get(engine, EngineCapacity(None))
        return replace(found, total=found.total and replace(found.total, disk=self.total.disk))

    def named(self, engine: str) -> str:
        """Return what a refusal calls an engine of this node."""
        return f"engine {engine} of node {self.node}" if engine else f"node {self.node}"


class Never(Exception):
    """What the job needs can never be reserved here; the text has the numbers."""


def pool(needed: Demand, means: NodeCapacity) -> Pool | None:
    """Return what the job is to hold at the node; None where it needs nothing that is counted.

    A further engine at which tasks run is counted, even if they need nothing of it: the job waits for its answer.
    What is held is enough for all tasks that the flow lets run in parallel, or for fewer where an engine, or a
    job's share of it, is too small, or others use much of it: for as many as are under way, whichever they are.
    Raises `Never` where one is too small for one task; what an engine has that never answered is not judged.
    """
    if not needed:
        further = {part.engine: Amounts() for part in needed.parts if part.engine}
        return (
            Pool(Amounts(), sum(part.most for part in needed.parts), further) if further else None
        )
    if never := [line for part in needed.parts for line in _never(part, means)]:
        raise Never("; ".join(never))
    at_once = min(
        [needed.width, *(bound for part in needed.parts for bound in _bounds(part, means))]
    )
    held = {part.engine: part.one * min(at_once, part.most) for part in needed.parts}
    disk = min(total(held.values()).disk, max(part.one.disk for part in needed.parts) * at_once)
    further = {engine: replace(amounts, disk=0) for engine, amounts in held.items() if engine}
    return Pool(replace(held.get("", Amounts()), disk=disk), at_once, further)


def nothing_at(engines: Iterable[str], means: NodeCapacity) -> str:
    """Say which of these engines, or else the main one, has no cpu or memory for any container; empty for none."""
    for engine in [*dict.fromkeys(engines)] or [""]:
        total = means.of(engine).total
        if total is not None and min(total.cpu, total.memory) <= 0:
            has = total.text(["cpu", "memory"])
            why = "the ResourceQuota of its namespace allows no run, or no machine takes one"
            return f"{means.named(engine)} has {has}: {why}"
    return ""


def outgrown(held: Pool, means: NodeCapacity) -> str:
    """Say of which further engine a job is to hold more than it has: it had more at creation, or was not known.

    One that was taken out of the settings meanwhile has nothing, and never will: no job waits for it.
    """
    for engine, needed in held.further.items():
        if engine not in means.further:
            return (
                f"needs {needed.text()} of engine {engine}, which node {means.node} has no longer"
            )
        capacity = means.of(engine)
        if (
            capacity.total is not None
            and not capacity.away
            and (lacks := needed.lacking(capacity.total))
        ):
            return f"needs {needed.text(lacks)}, {means.named(engine)} has {capacity.total.text(lacks)}"
    return ""


def _bounds(part: Part, means: NodeCapacity) -> Iterator[int]:
    """Yield how many tasks may be under way so that those of this part always fit."""
    capacity = means.of(part.engine)
    most = (capacity.total or means.total).scaled(means.share)
    disk = Amounts(disk=part.one.disk).times_in(most)
    if disk is not None:  # which the tasks of every part need
        yield disk
    one = replace(part.one, disk=0)
    times = one.times_in(most)
    if capacity.total is None or times is None:
        return
    beside_others = one.times_in(capacity.total - capacity.others)
    times = min(times, beside_others or 1)  # one alone waits until they use less
    if times < part.most:
        yield times


def _never(part: Part, means: NodeCapacity) -> Iterator[str]:
    capacity = means.of(part.engine)
    where = means.named(part.engine)
    too_wide = {
        label: amounts
        for label, amounts in part.parties.items()
        if capacity.total is not None and amounts.cpu > Amounts.of(cpu=capacity.cores).cpu
    }
    engine = where if part.engine else f"the engine of {where}"
    for label, amounts in too_wide.items():
        yield f"{label} asks for {amounts.text(['cpu'])}, {engine} has {capacity.cores:g}"
    one = part.one if capacity.total is not None else Amounts(disk=part.one.disk)
    has = capacity.total if capacity.total is not None else means.total
    most = has.scaled(means.share)
    lacks = one.lacking(most)
    if not lacks or too_wide:
        return
    each = "; ".join(f"{label} {a.text(lacks)}" for label, a in part.parties.items() if a)
    parties = f" ({each})" if len(part.parties) > 1 else f" ({', '.join(part.parties)})"
    text = f"one task at a time needs {one.text(lacks)}{parties}, {where} has {has.text(lacks)}"
    yield text if one.lacking(has) else f"{text}, of which one job may hold {most.text(lacks)}"
