"""The translation of a job description under way: what it reads, and all that is wrong so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adapter.fate.dag import wire
from adapter.fate.dag.components import Catalogue, Found
from gateway.domain.problems import Problem
from gateway.domain.spec import Party

ROOT = "dag_schema.dag"
READER = "reader"
"""component of FATE that stands for a dataset"""


@dataclass
class Work:
    """A translation under way, with all that is wrong so far."""

    dag: wire.DagSpec
    catalogue: Catalogue
    parties: tuple[Party, ...]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    common: dict[str, Any] = field(default_factory=dict)
    """settings of the job for all"""
    task_params: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Found | None] = field(default_factory=dict)

    def wrong(self, at: str, rule: str, got: Any = None) -> None:
        """Note a problem; ``at`` is the path below the description."""
        self.problems.append(Problem(f"{ROOT}.{at}", rule, got))

    def own(self, party: Party, task: str) -> dict[str, Any]:
        """Return the party's own entry of a task, to be filled."""
        entry = self.task_params.setdefault(party.role, {}).setdefault(str(party.index), {})
        found: dict[str, Any] = entry.setdefault(task, {})
        return found


def parties_of(specs: wire.Parties) -> Iterator[Party]:
    """Number the parties of each role, in the order in which they are named."""
    numbers: dict[str, int] = {}
    for spec in specs:
        for node in spec.party_id:
            index = numbers.get(spec.role, 0)
            numbers[spec.role] = index + 1
            yield Party(spec.role, index, node)


def named(work: Work, specs: wire.Parties | None, at: str) -> tuple[Party, ...]:
    """Return the parties that a list names; all where there is no list."""
    if specs is None:
        return work.parties
    found: list[Party] = []
    for i, spec in enumerate(specs):
        for node in spec.party_id:
            same = [p for p in work.parties if (p.role, p.node) == (spec.role, node)]
            if not same:
                work.wrong(f"{at}[{i}]", "must name a party of the job", f"{spec.role} {node}")
            found += same
    return tuple(dict.fromkeys(found))
