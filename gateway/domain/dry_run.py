"""The report of a dry run: the checks of a job at each of its nodes before it is created."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId


class Standing(StrEnum):
    """The result of one check."""

    OK = "ok"
    WARNING = "warning"  # unusual and perhaps not intended; the job runs nevertheless
    WAITS = "waits"  # no problem, but the job has to wait first, such as for an approval
    PROBLEM = "problem"
    UNKNOWN = "unknown"  # the node does not, or cannot, report the result


# Standings that a verdict counts, the worst first, with their nouns: of one, and of several.
_COUNTED = {
    Standing.PROBLEM: ("problem", "problems"),
    Standing.WAITS: ("wait", "waits"),
    Standing.WARNING: ("warning", "warnings"),
    Standing.UNKNOWN: ("unknown", "unknown"),
}

# Names of the checks, in the order of a report. "This node" makes the dry run: it tests the route
# to each other node, and gets the further checks from that node.
CHECKS = (
    "job",  # the job's body is valid
    "route",  # the route from this node to the other node works
    "profile",  # the dialect in the route is that of the other node's product
    "signature",  # both nodes have proof of each other's requests; absent if they have
    "way back",  # the other node reaches this node
    "takes jobs",  # the other node takes new jobs of this node at present
    "contract",  # the contracts that the node requires with nodes of the job exist
    "components",  # the components are registered at the node, and fit the job
    "datasets",  # the node has the job's datasets; they are enabled, and granted to its nodes
    "model",  # the model that the job names can be used at the node
    "image",  # the images are at the node, or can be pulled
    "data",  # the files of the job's datasets can be read
    "resources",  # the node has enough resources, and they are free now
    "approval",  # no person has to approve the job, and no rule rejects it
    "engine",  # the container engines respond
    "storage",  # the storage can be written, and has room
    "transport",  # the channel for the messages of containers works
    "routes",  # the node has enabled routes to the job's other nodes
    "reported",  # why the node does not report its checks; absent if it does
)

REPORTED_WARNINGS = 50  # largest number of warnings reported by one check


@dataclass(frozen=True)
class Item:
    """The result of one check of a job."""

    check: str  # one of `CHECKS`; in the report of another node perhaps another name
    standing: Standing
    found: str = ""  # what the check has found, such as a size
    cause: str = ""  # why the check did not pass
    remedy: str = ""  # what to do if the check did not pass
    about: str = ""  # the task, party, dataset or path that is checked, if there are several


@dataclass(frozen=True)
class NodePlan:
    """The checks at one node."""

    node: NodeId
    parties: tuple[str, ...]
    items: tuple[Item, ...]


@dataclass(frozen=True)
class SharedWarning:
    """A warning, and the nodes that report it."""

    item: Item
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True)
class JobPlan:
    """The checks at all nodes."""

    nodes: tuple[NodePlan, ...]

    @property
    def warnings(self) -> tuple[SharedWarning, ...]:
        """The warnings of all nodes, each once, in the order in which they were reported first.

        Warnings that differ only in the name of the check or in the remedy count as one.
        """
        first_items: dict[tuple[str, str], Item] = {}
        nodes_of: dict[tuple[str, str], list[NodeId]] = {}
        for plan in self.nodes:
            for item in plan.items:
                if item.standing is not Standing.WARNING:
                    continue
                identity = (item.about, item.cause)
                first_items.setdefault(identity, item)
                nodes_of.setdefault(identity, []).append(plan.node)
        warnings = []
        for identity, item in first_items.items():
            nodes = tuple(dict.fromkeys(nodes_of[identity]))
            warnings.append(SharedWarning(item, nodes))
        return tuple(warnings)

    @property
    def good(self) -> bool:
        """Whether no check has found a problem."""
        return not self.count(Standing.PROBLEM)

    @property
    def verdict(self) -> str:
        """The result in one sentence, with the number of checks that did not simply pass."""
        counts = []
        for standing, (thing, things) in _COUNTED.items():
            count = self.count(standing)
            if count == 1:
                counts.append(f"1 {thing}")
            elif count:
                counts.append(f"{count} {things}")
        if not counts:
            return "No obstacle found."
        listed = ", ".join(counts)
        if self.good:
            return f"No obstacle found, {listed}: read them before you submit."
        return f"This job would fail: {listed}."

    def count(self, standing: Standing) -> int:
        """Return the number of checks with this result, at all nodes together.

        A warning that several nodes report counts once.
        """
        if standing is Standing.WARNING:
            return len(self.warnings)
        return sum(item.standing is standing for node in self.nodes for item in node.items)


def fine(
    check: str,
    found: str,
    about: str = "",
) -> Item:
    """Return a passed check."""
    return Item(
        check,
        Standing.OK,
        found,
        about=about,
    )


def problem(
    check: str,
    cause: str,
    remedy: str,
    about: str = "",
) -> Item:
    """Return a failed check with its cause and remedy."""
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
    """Return a failed check for each problem, about the problem's path in the job."""
    return tuple(problem(check, finding.text, remedy, finding.path) for finding in problems)


def as_warnings(
    check: str,
    warnings: Sequence[Problem],
) -> tuple[Item, ...]:
    """Return an item for each of the first `REPORTED_WARNINGS`, about its path in the job."""
    items = []
    for finding in warnings[:REPORTED_WARNINGS]:
        item = Item(
            check,
            Standing.WARNING,
            cause=finding.text,
            remedy=finding.remedy,
            about=finding.path,
        )
        items.append(item)
    return tuple(items)


def in_order(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return items in the order of `CHECKS`; a check with another name comes last."""
    ranks = {name: rank for rank, name in enumerate(CHECKS)}

    def rank_of(item: Item) -> int:
        return ranks.get(item.check, len(CHECKS))

    return tuple(sorted(items, key=rank_of))
