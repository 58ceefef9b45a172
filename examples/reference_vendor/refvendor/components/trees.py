"""Grows boosted trees over splits that several sources offer.

A source is one party's features, here or behind a `Link`; the growing code does not know which. The pooled
run that the federated one must equal is this same code over local sources only.

Ties are decided by a fixed rule: the first source in the list, then its lowest column, then the lowest bin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from refvendor.components.split_search import (
    FRACTION,
    Bins,
    Ints,
    SplitRule,
    Sums,
    candidates,
    columns_of_tree,
    gains,
    left_sums,
)
from refvendor.components.training import Floats, sigmoid


@dataclass(frozen=True)
class BoostingPlan:
    """How many trees to grow, how, and when to stop before the last."""

    num_trees: int = 5
    learning_rate: float = 0.15
    max_depth: int = 3
    min_sample_split: int = 2
    rule: SplitRule = field(default_factory=SplitRule)
    stop_early: bool = True
    early_stop: str = "diff"
    tol: float = 1e-4


@dataclass(frozen=True)
class Parting:
    """The split a source decided on: its left rows and what the guest's model keeps of it."""

    left: Ints
    note: Mapping[str, Any]


class Source(Protocol):
    """One party's features as the grower sees them."""

    party: str

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Take the gradients of a new tree."""

    def search(self, nodes: Mapping[int, Ints]) -> None:
        """Start looking at these nodes, given with their rows."""

    def offers(self, node: int) -> Sums:
        """The left sums of every candidate of a node under search."""

    def choose(self, picks: Mapping[int, Sequence[int]]) -> Mapping[int, Parting]:
        """Settle nodes; each comes with all positions in `offers` that gain the same."""


class LocalSource:
    """Features that are at hand."""

    def __init__(
        self,
        party: str,
        bins: Bins,
        rate: float,
    ) -> None:
        self.party = party
        self._bins = bins
        self._rate = rate
        self._columns: list[int] = []
        self._nodes: dict[int, tuple[Ints, list[tuple[int, int]]]] = {}

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Choose the tree's columns, and take its gradients."""
        self._columns = columns_of_tree(self.party, tree, len(self._bins.names), self._rate)
        self._g, self._h = g, h

    def search(self, nodes: Mapping[int, Ints]) -> None:
        """Look for splits of these nodes."""
        self._nodes = {
            node: (rows, candidates(self._bins, self._columns, rows))
            for node, rows in nodes.items()
        }

    def offers(self, node: int) -> Sums:
        """Return the sums left of each possible split of a node."""
        rows, places = self._nodes[node]
        return left_sums(self._bins, places, rows, self._g, self._h)

    def choose(self, picks: Mapping[int, Sequence[int]]) -> Mapping[int, Parting]:
        """Settle which of equally good splits is taken: the lowest column, then the lowest bin."""
        decided = {}
        for node, positions in picks.items():
            rows, places = self._nodes[node]
            column, code = min(places[position] for position in positions)
            note = {
                "party": self.party,
                "feature": self._bins.names[column],
                "threshold": float(self._bins.cuts[column][code]),
            }
            decided[node] = Parting(left=rows[self._bins.codes[rows, column] <= code], note=note)
        return decided


@dataclass(frozen=True)
class Boosted:
    """The outcome of a run."""

    base_score: float
    trees: list[list[dict[str, Any]]]
    """per tree its nodes, as the guest's model file holds them"""
    losses: list[float]
    base_loss: float
    scores: Floats
    stopped_early: bool


def boost(
    sources: Sequence[Source],
    labels: Floats,
    plan: BoostingPlan,
    progress: Callable[[int, float], None],
) -> Boosted:
    """Grow up to ``plan.num_trees`` trees; ``progress`` hears each tree's number (from 1) and loss."""
    share = labels.mean()
    base = float(np.log(share / (1.0 - share)))
    scores = np.full(len(labels), base)
    base_loss = previous = logistic_loss(labels, scores)
    trees: list[list[dict[str, Any]]] = []
    losses: list[float] = []
    for tree in range(plan.num_trees):
        p = sigmoid(scores)
        g = np.rint((p - labels) * 2.0**FRACTION).astype(np.int64)
        h = np.rint(p * (1.0 - p) * 2.0**FRACTION).astype(np.int64)
        for source in sources:
            source.begin_tree(tree, g, h)
        nodes, step = _grow(sources, g, h, plan)
        scores = scores + step
        loss = logistic_loss(labels, scores)
        trees.append(nodes)
        losses.append(loss)
        progress(tree + 1, loss)
        moved = previous - loss if plan.early_stop == "diff" else float(np.sqrt(np.mean(step**2)))
        if plan.stop_early and moved < plan.tol:
            break
        previous = loss
    stopped = len(trees) < plan.num_trees
    return Boosted(base, trees, losses, base_loss, scores, stopped)


def logistic_loss(labels: Floats, scores: Floats) -> float:
    """The mean cross entropy of scores before the sigmoid."""
    return float(
        np.mean(np.log1p(np.exp(-np.abs(scores))) + np.maximum(scores, 0.0) - scores * labels)
    )


def _grow(
    sources: Sequence[Source],
    g: Ints,
    h: Ints,
    plan: BoostingPlan,
) -> tuple[list[dict[str, Any]], Floats]:
    """One tree, level by level: its nodes, and what it adds to each row's score.

    The children of node ``i`` are ``2 i + 1`` and ``2 i + 2``.
    """
    nodes: dict[int, dict[str, Any]] = {}
    step = np.zeros(len(g))
    level: dict[int, Ints] = {0: np.arange(len(g))}
    for depth in range(plan.max_depth + 1):
        decided: dict[int, Parting] = {}
        if depth < plan.max_depth:
            wide = {
                node: rows for node, rows in level.items() if len(rows) >= plan.min_sample_split
            }
            decided = _decide(sources, wide, g, h, plan.rule) if wide else {}
        following: dict[int, Ints] = {}
        for node, rows in level.items():
            if node not in decided:
                weight = plan.learning_rate * plan.rule.leaf(int(g[rows].sum()), int(h[rows].sum()))
                step[rows] = weight
                nodes[node] = {"node": node, "leaf": weight}
                continue
            parting = decided[node]
            left, right = 2 * node + 1, 2 * node + 2
            nodes[node] = {
                "node": node,
                **parting.note,
                "left": left,
                "right": right,
            }
            following[left] = parting.left
            following[right] = np.setdiff1d(rows, parting.left, assume_unique=True)
        level = following
        if not level:
            break
    return [nodes[node] for node in sorted(nodes)], step


def _decide(
    sources: Sequence[Source],
    nodes: Mapping[int, Ints],
    g: Ints,
    h: Ints,
    rule: SplitRule,
) -> dict[int, Parting]:
    """The best split of every node that has one worth making."""
    for source in sources:
        source.search(nodes)
    picks: list[dict[int, Sequence[int]]] = [{} for _ in sources]
    for node, rows in nodes.items():
        total = (len(rows), int(g[rows].sum()), int(h[rows].sum()))
        best, winner, tied = rule.min_gain, None, np.empty(0, np.int64)
        for place, source in enumerate(sources):
            offered = gains(source.offers(node), *total, rule)
            if len(offered) and offered.max() > best:
                best, winner = float(offered.max()), place
                tied = np.flatnonzero(offered == best)
        if winner is not None:
            picks[winner][node] = tied.tolist()
    decided: dict[int, Parting] = {}
    for source, wanted in zip(sources, picks, strict=True):
        if wanted:
            decided.update(source.choose(wanted))
    return decided
