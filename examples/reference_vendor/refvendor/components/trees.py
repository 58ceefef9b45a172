"""Grows boosted trees over splits that several sources offer.

A source holds one party's features, here or behind a `Link`; the growing code does not know which.
The pooled run that the federated one must equal is this same code over local sources only.

Ties are decided by a fixed rule: the first source in the list, then its lowest column, then the
lowest bin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from refvendor.arrays import Floats, Ints
from refvendor.components.split_search import (
    FRACTION_BITS,
    Bins,
    Candidate,
    SplitRule,
    Sums,
    columns_of_tree,
    find_candidates,
    gains,
    left_sums,
)
from refvendor.components.training import sigmoid

# A node as the model file holds it.
Node = dict[str, Any]


@dataclass(frozen=True)
class BoostingPlan:
    """How many trees to grow, how, and when to stop before the last."""

    num_trees: int = 5
    learning_rate: float = 0.15
    max_depth: int = 3
    min_sample_split: int = 2  # a node with fewer rows becomes a leaf
    rule: SplitRule = field(default_factory=SplitRule)
    stop_early: bool = True
    early_stop: str = "diff"  # of losses, or weight_diff
    tol: float = 1e-4  # a smaller difference ends the training


@dataclass(frozen=True)
class ChosenSplit:
    """The split that a source chose for a node."""

    left_rows: Ints
    entry: Mapping[str, Any]  # what the guest's model stores of it


@dataclass(frozen=True)
class BoostedTrees:
    """The result of a training."""

    base_score: float
    trees: list[list[Node]]
    losses: list[float]  # after each tree
    base_loss: float
    scores: Floats
    stopped_early: bool


class FeatureSource(Protocol):
    """One party's features as the growing code sees them.

    Nodes are numbered: the children of node ``i`` are ``2 i + 1`` and ``2 i + 2``.
    """

    party: str

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Take the gradients of a new tree."""

    def start_search(
        self,
        nodes: Mapping[int, Ints],
    ) -> None:
        """Start to search these nodes, which come with their rows."""

    def candidate_sums(self, node: int) -> Sums:
        """Return the left sums of every candidate of a node."""

    def choose(
        self,
        picks: Mapping[int, Sequence[int]],
    ) -> Mapping[int, ChosenSplit]:
        """Split nodes; each comes with the positions in `candidate_sums` that gain the same."""


@dataclass(frozen=True)
class SearchedNode:
    """A node with its candidates, in the order of its sums."""

    rows: Ints
    candidates: Sequence[Candidate]


class LocalSource:
    """The features of this party; ``rate`` is the share of them that each tree sees."""

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
        self._nodes: dict[int, SearchedNode] = {}

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Choose the tree's columns and take its gradients."""
        self._columns = columns_of_tree(
            self.party,
            tree,
            len(self._bins.names),
            self._rate,
        )
        self._g = g
        self._h = h

    def start_search(
        self,
        nodes: Mapping[int, Ints],
    ) -> None:
        """Find the candidates of these nodes."""
        self._nodes = {
            node: SearchedNode(
                rows,
                find_candidates(self._bins, self._columns, rows),
            )
            for node, rows in nodes.items()
        }

    def candidate_sums(self, node: int) -> Sums:
        """Return the left sums of every candidate of a node."""
        searched = self._nodes[node]
        return left_sums(
            self._bins,
            searched.candidates,
            searched.rows,
            self._g,
            self._h,
        )

    def choose(
        self,
        picks: Mapping[int, Sequence[int]],
    ) -> Mapping[int, ChosenSplit]:
        """Choose the lowest column, then the lowest bin, among equally good candidates."""
        return {node: self._split(node, positions) for node, positions in picks.items()}

    def _split(
        self,
        node: int,
        positions: Sequence[int],
    ) -> ChosenSplit:
        searched = self._nodes[node]
        column, code = min(searched.candidates[position] for position in positions)
        goes_left = self._bins.codes[searched.rows, column] <= code
        entry = {
            "party": self.party,
            "feature": self._bins.names[column],
            "threshold": float(self._bins.cuts[column][code]),
        }
        return ChosenSplit(
            left_rows=searched.rows[goes_left],
            entry=entry,
        )


def boost(
    sources: Sequence[FeatureSource],
    labels: Floats,
    plan: BoostingPlan,
    on_tree: Callable[[int, float], None] | None = None,
) -> BoostedTrees:
    """Grow up to ``plan.num_trees`` trees; ``on_tree`` is called with each tree's number (from 1)
    and loss.
    """
    share = labels.mean()
    base_score = float(np.log(share / (1.0 - share)))
    scores = np.full(len(labels), base_score)
    base_loss = logistic_loss(labels, scores)
    trees: list[list[Node]] = []
    losses: list[float] = []
    for number in range(plan.num_trees):
        tree = _grow_tree(number, sources, labels, scores, plan)
        scores = scores + tree.step
        trees.append(tree.sorted_nodes())
        losses.append(logistic_loss(labels, scores))
        if on_tree is not None:
            on_tree(number + 1, losses[-1])
        previous_loss = losses[-2] if number else base_loss
        if plan.stop_early and _change(plan, previous_loss - losses[-1], tree.step) < plan.tol:
            break
    return BoostedTrees(
        base_score=base_score,
        trees=trees,
        losses=losses,
        base_loss=base_loss,
        scores=scores,
        stopped_early=len(trees) < plan.num_trees,
    )


def _change(
    plan: BoostingPlan,
    decrease: float,
    step: Floats,
) -> float:
    """Return the change by the last tree that early stopping looks at: of the loss, or of the
    scores.
    """
    if plan.early_stop == "diff":
        return decrease
    return float(np.sqrt(np.mean(step**2)))


def logistic_loss(labels: Floats, scores: Floats) -> float:
    """Return the mean cross entropy of scores before the sigmoid."""
    log_terms = np.log1p(np.exp(-np.abs(scores)))
    return float(np.mean(log_terms + np.maximum(scores, 0.0) - scores * labels))


def _grow_tree(
    number: int,
    sources: Sequence[FeatureSource],
    labels: Floats,
    scores: Floats,
    plan: BoostingPlan,
) -> GrowingTree:
    p = sigmoid(scores)
    g = np.rint((p - labels) * 2.0**FRACTION_BITS).astype(np.int64)
    h = np.rint(p * (1.0 - p) * 2.0**FRACTION_BITS).astype(np.int64)
    for source in sources:
        source.begin_tree(number, g, h)
    tree = GrowingTree(sources, g, h, plan)
    tree.grow()
    return tree


class GrowingTree:
    """One tree, grown level by level."""

    def __init__(
        self,
        sources: Sequence[FeatureSource],
        g: Ints,
        h: Ints,
        plan: BoostingPlan,
    ) -> None:
        self.step = np.zeros(len(g))  # the tree's contribution to each row's score
        self._sources = sources
        self._g = g
        self._h = h
        self._plan = plan
        self._nodes: dict[int, Node] = {}

    def sorted_nodes(self) -> list[Node]:
        """Return the nodes by their numbers."""
        return [self._nodes[number] for number in sorted(self._nodes)]

    def grow(self) -> None:
        """Split nodes until the tree is as deep as allowed or no split is worth making."""
        level: Mapping[int, Ints] = {0: np.arange(len(self._g))}
        for _ in range(self._plan.max_depth):
            level = self._add_level(level, self._choose_splits(level))
        self._add_level(level, {})

    def _add_level(
        self,
        level: Mapping[int, Ints],
        splits: Mapping[int, ChosenSplit],
    ) -> dict[int, Ints]:
        """Add a level's nodes: a leaf for each without a split. Returns the children of the
        others.
        """
        children: dict[int, Ints] = {}
        for number, rows in level.items():
            split = splits.get(number)
            if split is None:
                self._add_leaf(number, rows)
                continue
            left = 2 * number + 1
            right = left + 1
            self._nodes[number] = {"node": number, **split.entry, "left": left, "right": right}
            children[left] = split.left_rows
            children[right] = np.setdiff1d(
                rows,
                split.left_rows,
                assume_unique=True,
            )
        return children

    def _add_leaf(self, number: int, rows: Ints) -> None:
        g_sum = int(self._g[rows].sum())
        h_sum = int(self._h[rows].sum())
        weight = self._plan.learning_rate * self._plan.rule.leaf_weight(g_sum, h_sum)
        self.step[rows] = weight
        self._nodes[number] = {
            "node": number,
            "leaf": weight,
        }

    def _choose_splits(
        self,
        level: Mapping[int, Ints],
    ) -> dict[int, ChosenSplit]:
        """Return the best split of every node that has one worth making."""
        least = self._plan.min_sample_split
        nodes = {number: rows for number, rows in level.items() if len(rows) >= least}
        if not nodes:
            return {}
        for source in self._sources:
            source.start_search(nodes)
        picks: list[dict[int, Sequence[int]]] = [{} for _ in self._sources]
        for number, rows in nodes.items():
            self._pick_best(number, rows, picks)
        splits: dict[int, ChosenSplit] = {}
        for source, source_picks in zip(self._sources, picks, strict=True):
            if source_picks:
                splits.update(source.choose(source_picks))
        return splits

    def _pick_best(
        self,
        number: int,
        rows: Ints,
        picks: Sequence[dict[int, Sequence[int]]],
    ) -> None:
        """Add a node's best candidates to the picks of their source, if one gains enough."""
        rule = self._plan.rule
        g_sum = int(self._g[rows].sum())
        h_sum = int(self._h[rows].sum())
        best_gain = rule.min_gain
        best_source = None
        positions: list[int] = []
        for place, source in enumerate(self._sources):
            offered = gains(
                source.candidate_sums(number),
                len(rows),
                g_sum,
                h_sum,
                rule,
            )
            if len(offered) and offered.max() > best_gain:
                best_gain = float(offered.max())
                best_source = place
                positions = np.flatnonzero(offered == best_gain).tolist()
        if best_source is not None:
            picks[best_source][number] = positions
