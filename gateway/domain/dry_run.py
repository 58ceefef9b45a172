"""What would happen to a job: what each node of it says before anything is created. Values only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gateway.domain.spec import NodeId


class Standing(StrEnum):
    """How a job stands to one thing that it needs."""

    OK = "ok"
    WARNING = "warning"
    """odd, and perhaps not meant; the job runs all the same"""
    WAITS = "waits"
    """nothing is wrong, but somebody or something has to be waited for first"""
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """the node does not tell, or cannot"""


CHECKS = (
    "job",
    "route",
    "profile",
    "way back",
    "takes jobs",
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
    "told",
)
"""What is looked at, in the order of a report; ``told`` stands for a node's whole side where it says nothing."""


@dataclass(frozen=True)
class Item:
    """One thing that was looked at."""

    check: str
    """one of `CHECKS`"""
    standing: Standing
    found: str = ""
    cause: str = ""
    """why it is not ok"""
    remedy: str = ""
    about: str = ""
    """the task, party or dataset, where there are several"""


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
        return sum(item.standing is standing for item in self._items())

    def _items(self) -> Iterator[Item]:
        for node in self.nodes:
            yield from node.items


def fine(check: str, found: str, about: str = "") -> Item:
    """Return that something is as it has to be."""
    return Item(check, Standing.OK, found, about=about)


def problem(check: str, cause: str, remedy: str, about: str = "") -> Item:
    """Return that something stands in the way, why, and what to do about it."""
    return Item(check, Standing.PROBLEM, cause=cause, remedy=remedy, about=about)


def in_order(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return items in the order of a report; a check that nobody here knows comes last."""
    place = {name: number for number, name in enumerate(CHECKS)}
    return tuple(sorted(items, key=lambda item: place.get(item.check, len(CHECKS))))
