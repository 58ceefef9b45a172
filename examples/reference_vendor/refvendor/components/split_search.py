"""Finds where to split a tree's node: bins, sums per candidate, gains. Pure numbers, no party, no message.

Gradients are integers in units of ``2 ** -FRACTION``. Sums of integers have no rounding, so a sum that was
added up under encryption and one that was added up in the clear are equal, and so is every gain made of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refvendor.components.training import Floats

Ints = npt.NDArray[np.int64]
FRACTION = 24
UNIT = 2.0**-FRACTION


@dataclass(frozen=True)
class SplitRule:
    """When a split is worth it."""

    reg_lambda: float = 0.1
    reg_alpha: float = 0.0
    min_gain: float = 1e-3
    """a split must gain more than this"""
    min_leaf_rows: int = 1
    """rows that each side must keep"""

    def shrunk(self, g: Floats) -> Floats:
        """The gradient sum after the L1 penalty."""
        result: Floats = np.sign(g) * np.maximum(np.abs(g) - self.reg_alpha, 0.0)
        return result

    def strength(self, g: Ints, h: Ints) -> Floats:
        """How much a group with these sums lowers the loss by one weight of its own, times two."""
        weight = h.astype(np.float64) * UNIT + self.reg_lambda
        top = self.shrunk(g.astype(np.float64) * UNIT) ** 2
        result: Floats = np.divide(top, weight, out=np.zeros_like(top), where=weight > 0)
        return result

    def leaf(self, g: int, h: int) -> float:
        """The weight of a leaf with these sums."""
        weight = h * UNIT + self.reg_lambda
        return float(-self.shrunk(np.array([g * UNIT]))[0] / weight) if weight > 0 else 0.0


@dataclass(frozen=True)
class Sums:
    """Per candidate the rows on its left: how many, and their sums of g and h."""

    count: Ints
    g: Ints
    h: Ints


@dataclass(frozen=True)
class Bins:
    """One party's features, cut into bins: code ``b`` means a value up to ``cuts[b]``."""

    names: list[str]
    cuts: list[Floats]
    codes: Ints
    """rows x features"""


def bin_features(
    names: list[str],
    values: Floats,
    bin_num: int,
) -> Bins:
    """Cut every column at its quantiles into at most ``bin_num`` bins; missing values join the lowest."""
    codes = np.zeros(values.shape, dtype=np.int64)
    cuts = []
    for column in range(values.shape[1]):
        present = values[~np.isnan(values[:, column]), column]
        edges = np.unique(present)
        if len(edges) > bin_num:
            edges = np.unique(np.quantile(present, np.arange(1, bin_num) / bin_num, method="lower"))
            edges = edges[edges < present.max()]
        else:
            edges = edges[:-1]
        cuts.append(edges)
        known = ~np.isnan(values[:, column])
        codes[known, column] = np.searchsorted(edges, values[known, column], side="left")
    return Bins(
        names=names,
        cuts=cuts,
        codes=codes,
    )


def columns_of_tree(
    party: str,
    tree: int,
    total: int,
    rate: float,
) -> list[int]:
    """The columns a party offers in one tree: always the same for the same party, tree and rate."""
    if rate >= 1 or not total:
        return list(range(total))
    seed = int.from_bytes(hashlib.sha256(f"columns {party} {tree}".encode()).digest()[:8], "big")
    picked = np.random.default_rng(seed).permutation(total)[: max(1, math.ceil(rate * total))]
    return sorted(int(column) for column in picked)


def candidates(
    bins: Bins,
    columns: Sequence[int],
    rows: Ints,
) -> list[tuple[int, int]]:
    """Every (column, bin) whose cut leaves rows on both sides, each way of parting a column's rows once."""
    found = []
    for column in columns:
        filled = np.flatnonzero(np.bincount(bins.codes[rows, column], minlength=1))
        found += [(column, int(code)) for code in filled[:-1]]
    return found


def left_sums(
    bins: Bins,
    places: Sequence[tuple[int, int]],
    rows: Ints,
    g: Ints,
    h: Ints,
) -> Sums:
    """The sums of the rows up to each candidate's bin."""
    size = len(places)
    sums = Sums(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))
    cumulated: dict[int, tuple[Ints, Ints, Ints]] = {}
    for i, (column, code) in enumerate(places):
        if column not in cumulated:
            codes = bins.codes[rows, column]
            width = len(bins.cuts[column]) + 1
            cumulated[column] = (
                np.bincount(codes, minlength=width).cumsum(),
                _sums_by_code(codes, g[rows], width).cumsum(),
                _sums_by_code(codes, h[rows], width).cumsum(),
            )
        sums.count[i], sums.g[i], sums.h[i] = (values[code] for values in cumulated[column])
    return sums


def gains(
    left: Sums,
    count: int,
    g: int,
    h: int,
    rule: SplitRule,
) -> Floats:
    """What each candidate gains in a node with these totals; minus infinity where a side gets too small."""
    right = Sums(count - left.count, g - left.g, h - left.h)
    whole = rule.strength(np.array([g]), np.array([h]))[0]
    gain = rule.strength(left.g, left.h) + rule.strength(right.g, right.h) - whole
    allowed = np.minimum(left.count, right.count) >= max(1, rule.min_leaf_rows)
    result: Floats = np.where(allowed, gain, -np.inf)
    return result


def _sums_by_code(
    codes: Ints,
    values: Ints,
    width: int,
) -> Ints:
    sums = np.zeros(width, np.int64)
    np.add.at(sums, codes, values)
    return sums
