"""What a job asks of a node, and the ledger of who holds what there.

Two pools. The node's is for jobs: a job holds, before it starts, what its tasks here can need at once
(`gateway.domain.needs`), at each engine that they run at. The job's own is for its tasks: a run borrows its part
while it is launched (`gateway.domain.borrowing`). Nothing is counted up and down: what is left is always the
total less what the holders hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from gateway.domain.amounts import GIB, Amounts, Defaults, Portions, total
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId, Party

MOST = 2.0**32
"""cores or GiB that no machine has"""
PRIORITIES = 1_000_000
"""priorities lie between this and its negative"""
_UNITS = {"cpu": 1, "memory": GIB, "disk": GIB}


# ---------------------------------------------------------------- what a job asks for


@dataclass(frozen=True)
class Granted:
    """What each run of a party may use; None is as much as the node lets it (`gateway.jobs.ceilings`)."""

    cpu: float | None = None
    """cores"""
    memory: float | None = None
    """bytes"""
    disk: float | None = None
    """bytes"""
    origins: Mapping[str, str] = field(default_factory=dict)
    """cpu, memory, disk -> where the amount comes from"""

    @property
    def amounts(self) -> Amounts:
        """The same as amounts; what has no limit takes nothing."""
        return Amounts.of(self.cpu, self.memory, self.disk)


def check(spec: JobSpec, path: str = "config.job_params") -> list[Problem]:
    """Find what is wrong with amounts, priority and parallelism, each with its path.

    Amounts are numbers, or texts of numbers: cores, GiB, GiB. Zero and less leave an amount to the node.
    """
    problems = []
    for role, by_index in spec.job_params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            continue
        for key, settings in by_index.items():
            asked = settings.get("resources") if isinstance(settings, Mapping) else None
            at = f"{path}.{role}.{key}.resources"
            if asked is not None and not isinstance(asked, Mapping):
                problems.append(Problem(at, "must be an object of cpu, memory and disk", asked))
            elif asked:
                problems += [
                    Problem(f"{at}.{kind}", rule, asked[kind])
                    for kind in _UNITS
                    if kind in asked and (rule := _amount_rule(asked[kind]))
                ]
    common = spec.job_params.get("common")
    if isinstance(common, Mapping):
        value = common.get("priority")
        if value is not None and not (_whole(value) and abs(value) <= PRIORITIES):
            rule = f"must be a whole number between -{PRIORITIES} and {PRIORITIES}"
            problems.append(Problem(f"{path}.common.priority", rule, value))
        value = common.get("task_parallelism")
        if value is not None and not (_whole(value) and value >= 1):
            problems.append(
                Problem(f"{path}.common.task_parallelism", "must be a whole number of at least 1", value)
            )
    return problems


def priority(spec: JobSpec) -> int:
    """Return the job's priority: higher goes first, 0 where it says nothing."""
    value = _common(spec, "priority")
    return value if _whole(value) else 0


def parallelism(spec: JobSpec) -> int | None:
    """Return how many tasks of the job may be under way at once; None is without a bound."""
    value = _common(spec, "task_parallelism")
    return value if _whole(value) and value >= 1 else None


def granted(spec: JobSpec, party: Party, defaults: Defaults) -> Granted:
    """Return what each run of a party may use: what the job asks for it, else what the node gives."""
    default, name = defaults.for_role(party.role)
    asked: dict[str, tuple[Any, str]] = {}
    by_index = spec.job_params.get(party.role)
    for key, settings in by_index.items() if isinstance(by_index, Mapping) else ():
        if str(party.index) in str(key).split("|") and isinstance(settings, Mapping):
            wanted = settings.get("resources")
            if isinstance(wanted, Mapping):
                asked |= {kind: (wanted[kind], f"{party.role}.{key}") for kind in _UNITS if kind in wanted}
    values: dict[str, float | None] = {"cpu": default.cpu, "memory": default.memory, "disk": default.disk}
    origins = {kind: name if value is not None else "the node's bound" for kind, value in values.items()}
    for kind, (value, origin) in asked.items():
        number = _number(value)
        if number is not None and number > 0:
            values[kind], origins[kind] = number * _UNITS[kind], origin
    return Granted(values["cpu"], values["memory"], values["disk"], origins)


def _common(spec: JobSpec, name: str) -> Any:
    common = spec.job_params.get("common")
    return common.get(name) if isinstance(common, Mapping) else None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    """Read an amount; None for what is none, or more than any machine has."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number < MOST else None


def _amount_rule(value: Any) -> str:
    if value is None or _number(value) is not None:
        return ""
    return "must be a number that a machine can have, or -1 for the node's default"


# ---------------------------------------------------------------- who holds what


class ClaimState(StrEnum):
    """What a job has of the node."""

    WAITING = "WAITING"
    HELD = "HELD"
    RETURNED = "RETURNED"
    """given back before the job has ended, because another node of it had to wait; keeps its age"""


@dataclass(frozen=True)
class Claim:
    """What a job holds of the node, or waits for."""

    job_id: str
    amounts: Amounts
    """of the main engine, and the disk of all"""
    state: ClaimState
    since: datetime
    """when it was first asked for"""
    asked_at: datetime
    """when it was last asked for"""
    priority: int = 0
    """the higher goes first"""
    scheduler: NodeId = ""
    held_at: datetime | None = None
    """since when it holds them; None while it does not"""
    reason: str = ""
    """what it waits for, in words; empty while it holds"""
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """of each further engine that its tasks run at; that may be nothing"""

    @property
    def portions(self) -> Portions:
        """The same by engine."""
        return Portions.of(self.amounts, self.further)


@dataclass(frozen=True)
class Ledger:
    """The node's pool. Every change makes a new one; what is left follows from the claims."""

    total: Amounts
    """of the main engine; likewise what is held, what remains and what is free"""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    ignored: int = 0
    """returns that had nothing to return"""
    repaired: int = 0
    """what ended jobs still held, and the reconciler returned"""
    expired: int = 0
    """what was held for a job that its scheduling node never started"""
    node: NodeId = ""
    further: Mapping[str, Amounts] = field(default_factory=dict)
    """the totals of the further engines, as far as they are known"""
    away: Mapping[str, str] = field(default_factory=dict)
    """further engines that do not answer -> how that is said; nothing more is held of them until they do"""

    @property
    def holders(self) -> tuple[Claim, ...]:
        """The claims that hold something."""
        return tuple(c for c in self.claims.values() if c.state is ClaimState.HELD)

    @property
    def held(self) -> Amounts:
        """What they hold together at the main engine, and of the disk."""
        return total(c.amounts for c in self.holders)

    @property
    def remaining(self) -> Amounts:
        """What is left at the main engine, and of the disk; below nothing where the total has shrunk."""
        return self.total - self.held

    @property
    def free(self) -> Amounts:
        """What others may hold: where the node has become smaller than what is held, nothing of that."""
        return _at_least_none(self.remaining)

    def held_at(self, engine: str) -> Amounts:
        """Return what is held of an engine; "" is the main one."""
        return total(c.portions[engine] for c in self.holders)

    @property
    def room(self) -> Portions:
        """What others may hold of each engine that answers."""
        if not self.further:
            return Portions({"": self.free})
        there = {engine: most for engine, most in self.further.items() if engine not in self.away}
        left = {engine: _at_least_none(most - self.held_at(engine)) for engine, most in there.items()}
        return Portions({"": self.free, **left})

    def with_claim(self, claim: Claim) -> "Ledger":
        """Return a ledger with this claim in the place of the job's former one."""
        return replace(self, claims={**self.claims, claim.job_id: claim})

    def give_back(self, job_id: str) -> "Ledger":
        """Return what a job holds, which may be asked for again. Without anything held: counted, no change."""
        claim = self.claims.get(job_id)
        if claim is None or claim.state is not ClaimState.HELD:
            return replace(self, ignored=self.ignored + 1)
        return self.with_claim(replace(claim, state=ClaimState.RETURNED, held_at=None, reason=""))

    def without(self, job_id: str) -> "Ledger":
        """Forget a job that is over, with all that it holds. Repeated, it changes nothing."""
        if job_id not in self.claims:
            return self
        return replace(self, claims={k: c for k, c in self.claims.items() if k != job_id})


def _at_least_none(amounts: Amounts) -> Amounts:
    return Amounts(**{kind: max(amount, 0) for kind, amount in amounts})
