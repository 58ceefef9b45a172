"""The resources that a job needs at a node, and the ledger of reservations there.

There are two pools. The node's pool is shared by jobs: before it starts, a job reserves the amounts
that its tasks here can need at the same time, at each of their engines. These amounts are the job's
own pool, shared by its tasks: a run uses its part from its launch to its end
(`gateway.domain.run`). There are no counters: the rest of a pool is always its total minus the
amounts in use.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from gateway.domain.amounts import (
    GIB,
    MAIN,
    NOTHING,
    Amounts,
    AmountsByEngine,
    Pool,
    not_negative,
    sum_of,
)
from gateway.domain.dag import Dag, order
from gateway.domain.problems import has_json_type
from gateway.domain.spec import JobSpec, NodeId, Party, is_own, overlay

# An amount in a job's settings (cores, GiB, devices) is less than this; no machine has as many.
_AMOUNT_LIMIT = 2.0**32
# Kinds of resources in a job's settings, and their units.
UNITS = {
    "cpu": 1,
    "memory": GIB,
    "disk": GIB,
    "gpu": 1,
}
# Origin of the CPU ceiling of a partner's task, in texts for people. The ceiling applies if neither
# the job nor the node's defaults limit the cores.
PARTNERS_LIMIT = "the node's bound for partners"
_SITE_DEFAULT = "site default"  # beginning of the origin of a limit that is the node's default


# ---------------------------------------------------------------- limits of a run


@dataclass(frozen=True)
class Defaults:
    """The node's limits for tasks of jobs that request none (-1, 0 or absent).

    None for cores, memory or disk: nothing of that kind is reserved, and a run gets only the
    ceiling that follows from its engine's capacity (`EngineCapacities.ceilings`).
    """

    cpu: float | None = None  # cores
    memory: int | None = None  # bytes
    pids: int | None = 512  # processes and threads; None: no limit
    disk: int | None = None  # bytes
    # limits that replace all of these for parties of a role such as ``arbiter``
    roles: "Mapping[str, Defaults] | None" = None

    def for_role(self, role: str) -> "tuple[Defaults, str]":
        """Return the defaults of a role, with their name for people.

        These are the node's general defaults if ``roles`` has none for the role.
        """
        if self.roles and role in self.roles:
            return self.roles[role], f"{_SITE_DEFAULT} for {role}"
        return self, _SITE_DEFAULT


@dataclass(frozen=True)
class RunLimits:
    """The limits of each run of a party.

    None for cores, memory or disk: neither the job nor the node's `Defaults` set a limit, so that a
    run gets only the ceiling that follows from its engine's capacity. None for ``gpu``: a run gets
    no devices.
    """

    cpu: float | None = None  # cores
    memory: float | None = None  # bytes
    disk: float | None = None  # bytes
    gpu: float | None = None  # devices
    # kind -> origin of the limit in words: entry of the job, default of the node, or the ceiling
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def amounts(self) -> Amounts:
        """The limits as amounts; kinds without a limit are 0, as nothing is reserved for them."""
        return Amounts.of(
            self.cpu,
            self.memory,
            self.disk,
            self.gpu,
        )


def run_limits(
    spec: JobSpec,
    party: Party,
    defaults: Defaults,
) -> RunLimits:
    """Return the limits of each run of a party, each with its origin.

    A limit is the job's request for the party if it has a valid one, otherwise the node's default.
    """
    default, name = defaults.for_role(party.role)
    limits: dict[str, float | None] = {
        "cpu": default.cpu,
        "memory": default.memory,
        "disk": default.disk,
        "gpu": None,
    }
    origins = dict.fromkeys(("cpu", "memory", "disk"), name)
    for kind in origins:
        if limits[kind] is None:  # only the ceiling applies
            origins[kind] = "the node's bound"
    if default.cpu is None and not is_own(spec, party.node):
        origins["cpu"] = PARTNERS_LIMIT
    for kind, request in overlay(spec.job_params, party, "resources").items():
        number = amount(request.value)
        # -1 and 0 request the default
        if kind in UNITS and number is not None and number > 0:
            limits[kind] = number * UNITS[kind]
            origins[kind] = request.origin
    return RunLimits(**limits, origins=origins)


def is_site_default(origin: str) -> bool:
    """True if the origin of a limit is the node's default, and not a request of the job."""
    return origin.startswith(_SITE_DEFAULT)


def amount(value: Any) -> float | None:
    """Parse an amount in a job's settings; None unless it is a number below `_AMOUNT_LIMIT`.

    A negative number is returned as well: -1 requests the node's default. A text of digits is a
    number too. A boolean is not, though Python counts it as an integer.
    """
    if not has_json_type(value, int, float, str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if number < _AMOUNT_LIMIT:  # false for NaN
        return number
    return None


# ---------------------------------------------------------------- the ledger


class ClaimState(StrEnum):
    """The state of a job's reservation at the node."""

    WAITING = "WAITING"
    HELD = "HELD"  # granted
    # Released before the job has started, because another node was busy. The claim keeps its age.
    RETURNED = "RETURNED"


@dataclass(frozen=True)
class Claim:
    """A reservation of a job at the node, or its request for one."""

    job_id: str
    amounts: Amounts  # at the main engine, with the disk for all engines
    state: ClaimState
    since: datetime  # when it was first requested
    asked_at: datetime  # when it was last requested
    priority: int = 0  # the higher goes first
    scheduler: NodeId = ""
    held_at: datetime | None = None  # when it was granted; None unless it is held
    reason: str = ""  # why it waits; empty while it is held
    # Amounts at each further engine (any but the main one) where the job has tasks. Such an engine
    # is listed even if its amounts are 0.
    further: Mapping[str, Amounts] = field(default_factory=dict)

    @property
    def by_engine(self) -> AmountsByEngine:
        """The amounts of all engines."""
        return AmountsByEngine.of(self.amounts, self.further)


@dataclass(frozen=True)
class Ledger:
    """The node's pool. Every change makes a new ledger; the free amounts follow from the claims."""

    total: Amounts  # of the main engine, with the disk for all engines
    claims: Mapping[str, Claim] = field(default_factory=dict)  # by the ids of the jobs
    ignored: int = 0  # releases that had nothing to release
    repaired: int = 0  # reservations of ended jobs that the reconciler released
    expired: int = 0  # reservations of jobs that their scheduling node never started
    node: NodeId = ""
    # totals of the further engines, as far as they are known
    further: Mapping[str, Amounts] = field(default_factory=dict)
    # further engines that do not respond -> the error; nothing is reserved there until they do
    away: Mapping[str, str] = field(default_factory=dict)
    # amounts that other programs than this node use, by engine
    others: AmountsByEngine = field(default_factory=AmountsByEngine)

    @property
    def holders(self) -> tuple[Claim, ...]:
        """The claims that hold resources.

        Claims that wait for resources, and returned claims, hold none.
        """
        return tuple(claim for claim in self.claims.values() if claim.state is ClaimState.HELD)

    @property
    def held(self) -> Amounts:
        """The reserved amounts of the main engine, and the reserved disk of all engines."""
        return self.held_by_engine(MAIN)

    @property
    def remaining(self) -> Amounts:
        """The rest of the main engine, and of the disk.

        Negative if more is reserved than the node has, as after the loss of a machine.
        """
        return self.total - self.held - self.others[MAIN]

    @property
    def free(self) -> Amounts:
        """The amounts of the main engine, and of the disk, that can be reserved; never negative."""
        return not_negative(self.remaining)

    def held_by_engine(self, engine: str) -> Amounts:
        """Return the amounts of an engine that jobs have reserved.

        The disk of all engines is in the amounts of the main one.
        """
        return sum_of(claim.by_engine[engine] for claim in self.holders)

    @property
    def available(self) -> AmountsByEngine:
        """The amounts that can be reserved, of each engine that responds; never negative.

        An engine that does not respond is left out, as if it had nothing.
        """
        further = {}
        for engine, capacity in self.further.items():
            if engine in self.away:
                continue
            rest = capacity - self.held_by_engine(engine) - self.others[engine]
            further[engine] = not_negative(rest)
        return AmountsByEngine.of(self.free, further)

    def with_claim(self, claim: Claim) -> "Ledger":
        """Return a ledger with this claim in place of the job's former one."""
        return replace(self, claims={**self.claims, claim.job_id: claim})

    def give_back(self, job_id: str) -> "Ledger":
        """Return the ledger after a job released its reservation.

        The claim stays, so that the job keeps its age. A release without a reservation only counts
        as ignored.
        """
        claim = self.claims.get(job_id)
        if claim is None or claim.state is not ClaimState.HELD:
            return replace(self, ignored=self.ignored + 1)
        claim = replace(
            claim,
            state=ClaimState.RETURNED,
            held_at=None,
            reason="",
        )
        return self.with_claim(claim)

    def without(self, job_id: str) -> "Ledger":
        """Return the ledger without the claim of a job that has ended; unchanged if it has none."""
        if job_id not in self.claims:
            return self
        claims = dict(self.claims)
        del claims[job_id]
        return replace(self, claims=claims)


# ---------------------------------------------------------------- the demand of a job
#
# Each engine has cores, memory and GPUs of its own. The disk is the storage's, which all engines of
# a node share: it is reserved with the main engine's part, wherever a task runs. The name of the
# main engine is empty (`MAIN`): `if part.engine` selects the further engines.


@dataclass(frozen=True)
class TaskPlacement:
    """The engine of a task at the node."""

    engine: str = MAIN
    roles: Set[str] | None = None  # roles of the component; None: all roles


_MAIN_ENGINE = TaskPlacement()


@dataclass(frozen=True)
class EngineDemand:
    """The demand of a job's tasks at one engine."""

    parties: Mapping[str, Amounts]  # label of a party, such as ``guest.0`` -> limits of a task
    max_parallel: int  # upper bound of the number of these tasks that can run in parallel
    engine: str = MAIN

    @property
    def per_task(self) -> Amounts:
        """The amounts of one task, at all parties of the node together."""
        return sum_of(self.parties.values())


@dataclass(frozen=True)
class Demand:
    """The demand of a job at one node."""

    parts: tuple[EngineDemand, ...]
    width: int  # tasks of the job that should be able to run in parallel

    def __bool__(self) -> bool:
        """Whether a task needs any amounts at the node.

        A job without a demand reserves nothing; it waits for its further engines all the same.
        """
        return any(part.per_task for part in self.parts)


def demand(
    spec: JobSpec,
    node: NodeId,
    defaults: Defaults,
    placements: Mapping[str, TaskPlacement] | None = None,
) -> Demand:
    """Return the demand of a job at a node, all its parties there together.

    ``placements`` are by task; a task without a placement runs at the main engine, for all roles.
    `Demand.width` is the number of tasks in the flow's widest level, or the job's own limit if that
    is lower: independent tasks run in parallel by default, and a job reserves enough for that.
    """
    dag = spec.dag
    by_task = placements or {}
    placed = {task.name: by_task.get(task.name, _MAIN_ENGINE) for task in dag.nodes}
    engines = dict.fromkeys(placement.engine for placement in placed.values())
    limits = {party: run_limits(spec, party, defaults).amounts for party in spec.parties_at(node)}
    if len(engines) == 1:
        parts = [_whole_demand(dag, limits, engine) for engine in engines]
    else:
        parts = [_demand_at(dag, limits, placed, engine) for engine in engines]
    width = widest_level(dag)
    limit = spec.settings.task_parallelism
    if limit:
        width = min(width, limit)
    return Demand(tuple(parts), width)


def _whole_demand(
    dag: Dag,
    limits: Mapping[Party, Amounts],
    engine: str,
) -> EngineDemand:
    """Return the demand of a job with all of its tasks at one engine.

    All parties count: their roles could only exclude a party without any task, of which the job's
    submission warns. The number of parallel tasks is bounded by `Demand.width` alone, as the number
    of all tasks is never smaller.
    """
    by_label = {party.label: amounts for party, amounts in limits.items()}
    return EngineDemand(by_label, len(dag.nodes), engine)


def _demand_at(
    dag: Dag,
    limits: Mapping[Party, Amounts],
    placed: Mapping[str, TaskPlacement],
    engine: str,
) -> EngineDemand:
    """Return the demand at one of several engines, by the tasks that are placed there.

    A party counts if it has a role in any of these tasks.
    """
    tasks = {name for name, placement in placed.items() if placement.engine == engine}
    parties = _parties_in(limits, [placed[name] for name in tasks])
    by_label = {party.label: limits[party] for party in parties}
    return EngineDemand(by_label, breadth(dag, tasks), engine)


def _parties_in(
    parties: Iterable[Party],
    placements: Iterable[TaskPlacement],
) -> list[Party]:
    """Return the parties with a role in any of these tasks, in their order.

    A task whose component's roles are not known counts for all parties.
    """
    roles: set[str] = set()
    for placement in placements:
        if placement.roles is None:
            return list(parties)
        roles.update(placement.roles)
    return [party for party in parties if party.role in roles]


def widest_level(dag: Dag) -> int:
    """Return the largest number of tasks at the same distance from the flow's start.

    These may run in parallel. 1 for a flow without tasks.
    """
    levels: dict[str, int] = {}
    for name in order(dag):
        upstream = [levels[task] for task in dag[name].upstream if task in levels]
        levels[name] = max(upstream, default=-1) + 1
    return max(
        Counter(levels.values()).values(),
        default=1,
    )


def breadth(dag: Dag, names: Set[str]) -> int:
    """Return an upper bound of how many of these tasks can run in parallel.

    Tasks that depend on each other form a chain, and only one task of a chain can run at a time.
    The bound is the number of chains in a greedy cover of the tasks; the smallest cover would give
    the lowest bound, but is costly to find.
    """
    # Sets of tasks are integers with a bit per task, numbered in the order of the flow.
    ancestors: dict[str, int] = {}  # task -> set of it and everything upstream
    chain_ends = 0  # set of the last task of each chain
    chains = 0
    for number, name in enumerate(order(dag)):
        upstream = 0
        for task in dag[name].upstream & ancestors.keys():
            upstream |= ancestors[task]
        own_bit = 1 << number
        ancestors[name] = upstream | own_bit
        if name not in names:
            continue
        chains_upstream = upstream & chain_ends
        if chains_upstream:
            # The task continues one of these chains: the one with the lowest bit (x & -x).
            chain_ends ^= chains_upstream & -chains_upstream
        else:
            chains += 1
        chain_ends |= own_bit
    return chains


# ---------------------------------------------------------------- the capacity of a node


@dataclass(frozen=True)
class EngineCapacity:
    """The capacity of one engine of a node."""

    total: Amounts | None  # None: it has not responded yet, so it is not known
    cores: float = 0.0  # of its machine: no container can have more
    away: str = ""  # why it does not respond, and since when; empty while it responds
    cause: str = ""  # technical detail of its silence, not shown to partners
    others: Amounts = NOTHING  # used by other programs than this node


@dataclass(frozen=True)
class NodeCapacity:
    """The capacity of a node."""

    node: NodeId
    total: Amounts  # of the main engine, with the disk for all engines
    cores: float  # of the main engine: no container can have more
    share: float = 1.0  # share of the total that one job may hold
    defaults: Defaults = field(default_factory=Defaults)
    further: Mapping[str, EngineCapacity] = field(default_factory=dict)  # by the engines' names
    engine: str = "main"  # the main engine as people see it: its kind, such as ``docker``
    others: Amounts = NOTHING  # used by other programs at the main engine

    def of(self, engine: str) -> EngineCapacity:
        """Return the capacity of an engine, with the disk that all engines share.

        ``engine``: its name; `MAIN`, which is empty, for the main one. The total of an engine that
        has not responded yet, or is not one of this node, is None.
        """
        if not engine:
            return EngineCapacity(
                self.total,
                self.cores,
                others=self.others,
            )
        capacity = self.further.get(engine, EngineCapacity(None))
        if capacity.total is None:
            return capacity
        return replace(
            capacity,
            total=replace(
                capacity.total,
                disk=self.total.disk,
            ),
        )

    def engine_label(self, engine: str) -> str:
        """Return the name of an engine of this node for refusals.

        The main engine is named after the node there: "node" and the node's id.
        """
        if engine:
            return f"engine {engine} of node {self.node}"
        return f"node {self.node}"


class Never(Exception):
    """The demand of a job can never be reserved at this node; the text has the numbers."""


def pool(needed: Demand, node: NodeCapacity) -> Pool | None:
    """Return the amounts that the job has to reserve at the node; None if it needs none.

    The amounts suffice for all tasks that the flow lets run in parallel. They suffice for fewer
    tasks, but for any choice of these, if an engine is too small, if the job's share of it is, or
    if other programs use much of it. A further engine is listed even if its tasks need no amounts:
    the job waits until that engine responds.

    Raises `Never` if an engine is too small for one task. Of an engine that has never responded,
    only the disk is judged.
    """
    if not needed:
        return _empty_pool(needed)
    obstacles: list[str] = []
    bounds = [needed.width]
    for part in needed.parts:
        obstacles += _obstacles(part, node)
        bounds += _parallel_limits(part, node)
    if obstacles:
        raise Never("; ".join(obstacles))
    return _pool_for(needed, min(bounds))


def _empty_pool(needed: Demand) -> Pool | None:
    """Return a pool without amounts, which lists the further engines; None if there are none.

    A job waits until these engines respond, even if its tasks need no amounts there.
    """
    further = {part.engine: NOTHING for part in needed.parts if part.engine}
    if not further:
        return None
    # Without amounts nothing but the flow bounds the number of parallel tasks.
    tasks_at_once = sum(part.max_parallel for part in needed.parts)
    return Pool(
        NOTHING,
        tasks_at_once,
        further,
    )


def _pool_for(needed: Demand, tasks_at_once: int) -> Pool:
    """Return the amounts that suffice for any ``tasks_at_once`` tasks in parallel."""
    main = NOTHING
    further = {}
    disk = 0
    largest_disk = 0
    for part in needed.parts:
        amounts = part.per_task * min(tasks_at_once, part.max_parallel)
        disk += amounts.disk
        largest_disk = max(largest_disk, part.per_task.disk)
        if part.engine:
            further[part.engine] = replace(
                amounts,
                disk=0,
            )
        else:
            main = amounts
    # No more than `tasks_at_once` tasks run in all, though the parts together may allow more.
    disk = min(disk, largest_disk * tasks_at_once)
    return Pool(replace(main, disk=disk), tasks_at_once, further)


def _parallel_limits(part: EngineDemand, node: NodeCapacity) -> Iterator[int]:
    """Yield upper bounds of the number of parallel tasks, by the capacity of the part's engine.

    Kinds of resources that the tasks do not need give no bound.
    """
    # The disk bounds the tasks of all parts together, as all engines share it.
    disk_for_one_job = node.total.scaled(node.share)
    by_disk = Amounts(disk=part.per_task.disk).times_in(disk_for_one_job)
    if by_disk is not None:
        yield by_disk
    capacity = node.of(part.engine)
    if capacity.total is None:  # the engine has not responded yet
        return
    per_task = replace(part.per_task, disk=0)
    times = per_task.times_in(capacity.total.scaled(node.share))
    if times is None:
        return
    now = per_task.times_in(capacity.total - capacity.others)
    # If other programs leave too little even for a single task, one task waits until they use less.
    times = min(times, now or 1)
    # There is no bound if the engine has enough for all of its tasks that can run in parallel.
    if times < part.max_parallel:
        yield times


# ---------------------------------------------------------------- refusals


def _obstacles(part: EngineDemand, node: NodeCapacity) -> Iterator[str]:
    """Yield the reasons why not even one task of this part fits; nothing if one fits.

    Of an engine that has not responded yet, only the shared disk can be judged.
    """
    capacity = node.of(part.engine)
    if capacity.total is None:
        disk = Amounts(disk=part.per_task.disk)
        yield from _too_large(part, disk, node.total, node)
        return
    too_many_cores = list(_too_many_cores(part, capacity.cores, node.engine_label(part.engine)))
    yield from too_many_cores
    if not too_many_cores:
        yield from _too_large(part, part.per_task, capacity.total, node)


def _too_many_cores(
    part: EngineDemand,
    cores: float,
    place: str,
) -> Iterator[str]:
    """Yield each party whose tasks need more cores than the engine's machine has.

    ``place`` is the name of the engine, or of the node for its main one.
    """
    engine = place
    if not part.engine:
        engine = f"the engine of {place}"
    most = Amounts.of(cpu=cores).cpu  # in thousandths of a core, like the amounts below
    for label, amounts in part.parties.items():
        if amounts.cpu > most:
            yield f"{label} asks for {amounts.text(['cpu'])}, {engine} has {cores:g}"


def _too_large(
    part: EngineDemand,
    per_task: Amounts,
    capacity: Amounts,
    node: NodeCapacity,
) -> Iterator[str]:
    """Yield a refusal if one task needs more than the share of ``capacity`` for one job.

    ``per_task`` are the amounts of a task that are compared, and ``capacity`` those of its engine.
    """
    for_one_job = capacity.scaled(node.share)
    kinds = per_task.lacking(for_one_job)
    if not kinds:
        return
    parties = _parties_text(part, kinds)
    where = node.engine_label(part.engine)
    text = (
        f"one task at a time needs {per_task.text(kinds)} ({parties}), "
        f"{where} has {capacity.text(kinds)}"
    )
    if per_task.lacking(capacity):
        yield text
    else:
        yield f"{text}, of which one job may hold {for_one_job.text(kinds)}"


def _parties_text(
    part: EngineDemand,
    kinds: tuple[str, ...],
) -> str:
    """Return the parties of a part in words; if there are several, each with its amounts.

    Of several parties, those that need no amounts are left out.
    """
    if len(part.parties) <= 1:
        return ", ".join(part.parties)
    texts = [f"{label} {amounts.text(kinds)}" for label, amounts in part.parties.items() if amounts]
    return "; ".join(texts)


def nothing_at(engines: Iterable[str], node: NodeCapacity) -> str:
    """Return a refusal if an engine has no cpu or no memory at all; empty if all have some.

    If ``engines`` is empty, the main engine is checked. An engine that has not responded yet is not
    judged.
    """
    for engine in list(dict.fromkeys(engines)) or [MAIN]:
        capacity = node.of(engine).total
        if capacity is not None and min(capacity.cpu, capacity.memory) <= 0:
            has = capacity.text(["cpu", "memory"])
            why = "the ResourceQuota of its namespace allows no run, or no machine takes one"
            return f"{node.engine_label(engine)} has {has}: {why}"
    return ""


def refusal_if_outgrown(pool: Pool, node: NodeCapacity) -> str:
    """Return a refusal if a further engine is now too small for a job's pool; empty if none is.

    The engine had more when the job was created, or had not responded yet. A job whose engine was
    removed from the settings is refused, too, as it would wait for ever.
    """
    for engine, needed in pool.further.items():
        if engine not in node.further:
            return f"needs {needed.text()} of engine {engine}, which node {node.node} has no longer"
        capacity = node.of(engine)
        if capacity.total is None or capacity.away:
            continue  # an engine that does not respond is not judged
        kinds = needed.lacking(capacity.total)
        if kinds:
            has = capacity.total.text(kinds)
            return f"needs {needed.text(kinds)}, {node.engine_label(engine)} has {has}"
    return ""
