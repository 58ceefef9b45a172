"""The report of a dry run: what each node of a job says before anything is created. Values only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId


class Standing(StrEnum):
    """What was found of one thing that a job needs."""

    OK = "ok"
    WARNING = "warning"  # unusual, and perhaps not meant; the job runs all the same
    WAITS = "waits"  # nothing is wrong, but it has to wait first, such as for an approval
    PROBLEM = "problem"
    UNKNOWN = "unknown"  # the node does not report it, or cannot


CHECKS = (
    "job",
    "route",
    "profile",
    "way back",
    "takes jobs",
    "contract",
    "components",
    "datasets",
    "model",
    "image",
    "data",
    "resources",
    "approval",
    "engine",
    "storage",
    "transport",
    "routes",
    "reported",
)
"""What is checked, in the order of a report; ``reported`` stands for all of a node that reports nothing."""

REPORTED_WARNINGS = 50
"""of each check"""


@dataclass(frozen=True)
class Item:
    """One thing that was checked."""

    check: str  # one of `CHECKS`
    standing: Standing
    found: str = ""
    cause: str = ""  # why it is not ok
    remedy: str = ""
    about: str = ""  # the task, party or dataset, where there are several


@dataclass(frozen=True)
class NodePlan:
    """What would happen at one node."""

    node: NodeId
    parties: tuple[str, ...]
    items: tuple[Item, ...]


@dataclass(frozen=True)
class JobPlan:
    """What would happen at all nodes."""

    nodes: tuple[NodePlan, ...]

    @property
    def good(self) -> bool:
        """Whether nothing is known to stand in the way."""
        return not self.count(Standing.PROBLEM)

    def count(self, standing: Standing) -> int:
        """Return how many things stand so, at all nodes together."""
        return sum(item.standing is standing for node in self.nodes for item in node.items)


def fine(
    check: str,
    found: str,
    about: str = "",
) -> Item:
    """Return that something is as it has to be."""
    return Item(check, Standing.OK, found, about=about)


def problem(
    check: str,
    cause: str,
    remedy: str,
    about: str = "",
) -> Item:
    """Return that something stands in the way, why, and what to do about it."""
    return Item(
        check,
        Standing.PROBLEM,
        cause=cause,
        remedy=remedy,
        about=about,
    )


def as_problems(
    check: str,
    problems: Iterable[Problem],
    remedy: str,
) -> tuple[Item, ...]:
    """Return an item for each problem, with its path in the job."""
    return tuple(problem(check, one.text, remedy, one.path) for one in problems)


def as_warnings(check: str, warnings: Sequence[Problem]) -> tuple[Item, ...]:
    """Return an item for each of the first warnings, with its path in the job."""
    return tuple(warning(check, one.text, one.path) for one in warnings[:REPORTED_WARNINGS])


def warning(
    check: str,
    cause: str,
    about: str = "",
) -> Item:
    """Return that something may not be meant."""
    remedy = "correct it unless it is meant so; it is passed on as it is"
    return Item(
        check,
        Standing.WARNING,
        cause=cause,
        remedy=remedy,
        about=about,
    )


def in_order(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return items in the order of a report; an unknown check comes last."""
    place = {name: number for number, name in enumerate(CHECKS)}
    return tuple(sorted(items, key=lambda item: place.get(item.check, len(CHECKS))))
