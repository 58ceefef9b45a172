"""What a job needs at a node, by the engines that its tasks run at, and how much of it the job is to hold.

Each engine has cores and memory of its own. The disk is the storage's, which all engines of a node share: it is
held with the main engine's part, wherever a task runs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from gateway.domain.amounts import Amounts, Defaults, Pool, total
from gateway.domain.dag import Dag, order
from gateway.domain.resources import granted, parallelism
from gateway.domain.spec import JobSpec, NodeId


@dataclass(frozen=True)
class Seat:
    """Where a task of a job runs at the node, and whose."""

    engine: str = ""
    roles: Set[str] | None = None
    """that the component has; None: every one"""


@dataclass(frozen=True)
class Part:
    """What a job's tasks at one engine need."""

    parties: Mapping[str, Amounts]
    """party -> what one of its tasks may use"""
    most: int
    """no more of these tasks can ever run at once"""
    engine: str = ""

    @property
    def one(self) -> Amounts:
        """What one task needs at all parties of the node together."""
        return total(self.parties.values())


@dataclass(frozen=True)
class Demand:
    """What a job needs at one node."""

    parts: tuple[Part, ...]
    width: int
    """tasks of the job that may want to run at once"""

    def __bool__(self) -> bool:
        return any(part.one for part in self.parts)


def asks(spec: JobSpec, node: NodeId, defaults: Defaults) -> bool:
    """Say whether a job needs anything at the node that is counted."""
    return any(granted(spec, party, defaults).amounts for party in spec.parties_at(node))


def demand(spec: JobSpec, node: NodeId, defaults: Defaults, seats: Mapping[str, Seat] | None = None) -> Demand:
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
        here = {p.label: a for p, a in parties.items() if everybody or any(p.role in r for r in roles if r)}
        most = len(names) if len(by_engine) == 1 else breadth(spec.dag, set(names))
        parts.append(Part(here, most, engine))
    return Demand(tuple(parts), min(widest_level(spec.dag), parallelism(spec) or len(spec.dag.nodes) or 1))


def widest_level(dag: Dag) -> int:
    """Return the largest number of tasks that are equally far from the flow's beginning: they may run at once."""
    levels: dict[str, int] = {}
    counts: Counter[int] = Counter()
    for name in order(dag):
        levels[name] = max((levels[up] + 1 for up in dag[name].upstream if up in levels), default=0)
        counts[levels[name]] += 1
    return max(counts.values(), default=1)


def breadth(dag: Dag, names: Set[str]) -> int:
    """Return a number of which no more of these tasks can ever run at once: of chains that they all belong to.

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
class Room:
    """What one further engine has for jobs."""

    total: Amounts | None
    """None: it has not answered yet, so nobody knows"""
    cores: float = 0.0
    """of its machine: no container can have more"""
    away: str = ""
    """why nothing can be held of it now, since when; empty while it answers"""
    cause: str = ""
    """what its silence was told as, for this node's own people"""


@dataclass(frozen=True)
class Means:
    """What a node has for jobs."""

    node: NodeId
    total: Amounts
    """of the main engine, and the disk of all"""
    cores: float
    """of the main engine: no container can have more"""
    share: float = 1.0
    """of the total, what one job may hold"""
    defaults: Defaults = field(default_factory=Defaults)
    further: Mapping[str, Room] = field(default_factory=dict)
    """the further engines by their names"""
    engine: str = "main"
    """what the main engine is called where there are several"""

    def room(self, engine: str) -> Room:
        """Return what an engine has, with the disk that it shares with the others."""
        if not engine:
            return Room(self.total, self.cores)
        found = self.further.get(engine, Room(None))
        return replace(found, total=found.total and replace(found.total, disk=self.total.disk))

    def named(self, engine: str) -> str:
        """Return what a refusal calls an engine of this node."""
        return f"engine {engine} of node {self.node}" if engine else f"node {self.node}"


class Never(Exception):
    """What the job needs can never be had here; the text says it with numbers."""


def pool(needed: Demand, means: Means) -> Pool | None:
    """Return what the job is to hold at the node; None where it needs nothing that is counted.

    A further engine at which tasks run is counted, even if they need nothing of it: the job waits for its answer.
    What is held is enough for all tasks which the flow lets run at once, or for fewer where an engine, or a job's
    share of it, is too small: for as many as are under way, whichever they are. Raises `Never` where one is too
    small for one task; what an engine has that never answered is not judged.
    """
    if not needed:
        further = {part.engine: Amounts() for part in needed.parts if part.engine}
        return Pool(Amounts(), sum(part.most for part in needed.parts), further) if further else None
    if never := [said for part in needed.parts for said in _never(part, means)]:
        raise Never("; ".join(never))
    at_once = min([needed.width, *(bound for part in needed.parts for bound in _bounds(part, means))])
    held = {part.engine: part.one * min(at_once, part.most) for part in needed.parts}
    disk = min(total(held.values()).disk, max(part.one.disk for part in needed.parts) * at_once)
    further = {engine: replace(amounts, disk=0) for engine, amounts in held.items() if engine}
    return Pool(replace(held.get("", Amounts()), disk=disk), at_once, further)


def outgrown(held: Pool, means: Means) -> str:
    """Say of which further engine a job is to hold more than it has: it had more at creation, or was not known.

    One that was taken out of the settings meanwhile has nothing, and never will: no job waits for it.
    """
    for engine, needed in held.further.items():
        if engine not in means.further:
            return f"needs {needed.text()} of engine {engine}, which node {means.node} has no longer"
        room = means.room(engine)
        if room.total is not None and not room.away and (lacks := needed.lacking(room.total)):
            return f"needs {needed.text(lacks)}, {means.named(engine)} has {room.total.text(lacks)}"
    return ""


def _bounds(part: Part, means: Means) -> Iterator[int]:
    """Yield how many tasks may be under way so that those of this part always fit."""
    room = means.room(part.engine).total
    most = (room or means.total).scaled(means.share)
    disk = Amounts(disk=part.one.disk).times_in(most)
    if disk is not None:  # which the tasks of every part need
        yield disk
    times = replace(part.one, disk=0).times_in(most)
    if room is not None and times is not None and times < part.most:
        yield times


def _never(part: Part, means: Means) -> Iterator[str]:
    room = means.room(part.engine)
    where = means.named(part.engine)
    too_wide = {
        label: amounts
        for label, amounts in part.parties.items()
        if room.total is not None and amounts.cpu > Amounts.of(cpu=room.cores).cpu
    }
    engine = where if part.engine else f"the engine of {where}"
    for label, amounts in too_wide.items():
        yield f"{label} asks for {amounts.text(['cpu'])}, {engine} has {room.cores:g}"
    one = part.one if room.total is not None else Amounts(disk=part.one.disk)
    has = room.total if room.total is not None else means.total
    most = has.scaled(means.share)
    lacks = one.lacking(most)
    if not lacks or too_wide:
        return
    each = "; ".join(f"{label} {a.text(lacks)}" for label, a in part.parties.items() if a)
    parties = f" ({each})" if len(part.parties) > 1 else f" ({', '.join(part.parties)})"
    said = f"one task at a time needs {one.text(lacks)}{parties}, {where} has {has.text(lacks)}"
    yield said if one.lacking(has) else f"{said}, of which one job may hold {most.text(lacks)}"
