"""Finds the best split of a tree's node: bins, sums per candidate, gains. Pure numbers, no parties,
no messages.

With p the predicted probability of a row and y its label, g = p - y and h = p (1 - p) are the first
two derivatives of its loss; gains and leaf weights follow from their sums (Chen and Guestrin,
"XGBoost", KDD 2016, section 2.2). They are integers in units of ``2 ** -FRACTION_BITS``. Sums of
integers have no rounding, so a sum that was added up under encryption equals one in the clear, and
so does every gain computed from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refvendor.arrays import Floats, Ints

FRACTION_BITS = 24
UNIT = 2.0**-FRACTION_BITS


@dataclass(frozen=True)
class SplitRule:
    """When a split is worth making."""

    reg_lambda: float = 0.1  # L2 penalty on leaf weights
    reg_alpha: float = 0.0  # L1 penalty on leaf weights
    min_gain: float = 1e-3  # a split must gain more
    min_leaf_rows: int = 1  # rows that each side must keep

    def shrink(self, g: Floats) -> Floats:
        """Return gradient sums after the L1 penalty."""
        result: Floats = np.sign(g) * np.maximum(np.abs(g) - self.reg_alpha, 0.0)
        return result

    def strength(self, g: Ints, h: Ints) -> Floats:
        """Return twice the decrease of the loss if the rows with these sums get a weight of their
        own.
        """
        denominator = h.astype(np.float64) * UNIT + self.reg_lambda
        numerator = self.shrink(g.astype(np.float64) * UNIT) ** 2
        result: Floats = np.divide(
            numerator,
            denominator,
            out=np.zeros_like(numerator),
            where=denominator > 0,
        )
        return result

    def leaf_weight(self, g: int, h: int) -> float:
        """Return the weight of a leaf with these sums."""
        denominator = h * UNIT + self.reg_lambda
        if denominator <= 0:
            return 0.0
        return float(-self.shrink(np.array([g * UNIT]))[0] / denominator)


class Candidate(NamedTuple):
    """A possible split: rows go left if their bin in the column is at most ``code``."""

    column: int
    code: int


@dataclass(frozen=True)
class Sums:
    """The rows on the left of each candidate: their number, and their sums of g and h."""

    count: Ints
    g: Ints
    h: Ints


@dataclass(frozen=True)
class Bins:
    """One party's features, cut into bins."""

    names: list[str]
    cuts: list[Floats]  # per feature, ascending: code ``b`` means a value up to ``cuts[b]``
    codes: Ints  # rows x features


def bin_features(
    names: list[str],
    values: Floats,
    bin_num: int,
) -> Bins:
    """Cut every column at its quantiles into at most ``bin_num`` bins; missing values join the
    lowest.
    """
    codes = np.zeros(
        values.shape,
        dtype=np.int64,
    )
    cuts = []
    for column in range(values.shape[1]):
        is_present = ~np.isnan(values[:, column])
        present = values[is_present, column]
        column_cuts = _find_cuts(present, bin_num)
        codes[is_present, column] = np.searchsorted(
            column_cuts,
            present,
            side="left",
        )
        cuts.append(column_cuts)
    return Bins(
        names=names,
        cuts=cuts,
        codes=codes,
    )


def _find_cuts(present: Floats, bin_num: int) -> Floats:
    """Return the upper bounds of all bins but the last."""
    cuts: Floats = np.unique(present)
    if len(cuts) <= bin_num:
        cuts = cuts[:-1]
    else:
        quantiles = np.quantile(
            present,
            np.arange(1, bin_num) / bin_num,
            method="lower",
        )
        cuts = np.unique(quantiles)
        cuts = cuts[cuts < present.max()]
    return cuts


def columns_of_tree(
    party: str,
    tree: int,
    total: int,
    rate: float,
) -> list[int]:
    """Return the columns that a party offers in one tree: the same in every run."""
    if rate >= 1 or not total:
        return list(range(total))
    digest = hashlib.sha256(f"columns {party} {tree}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    count = max(1, math.ceil(rate * total))
    return sorted(generator.permutation(total)[:count].tolist())


def find_candidates(
    bins: Bins,
    columns: Sequence[int],
    rows: Ints,
) -> list[Candidate]:
    """Return the candidates with rows on both sides, each partition of the rows by a column only
    once.
    """
    candidates = []
    for column in columns:
        filled = np.flatnonzero(np.bincount(bins.codes[rows, column], minlength=1))
        candidates += [Candidate(column, code) for code in filled[:-1].tolist()]
    return candidates


def left_sums(
    bins: Bins,
    candidates: Sequence[Candidate],
    rows: Ints,
    g: Ints,
    h: Ints,
) -> Sums:
    """Return the sums of the rows up to each candidate's bin; ``g`` and ``h`` hold all rows of the
    table.
    """
    columns = {candidate.column for candidate in candidates}
    cumulated = {column: _cumulated_sums(bins, column, rows, g, h) for column in columns}
    count = [cumulated[column].count[code] for column, code in candidates]
    g_sums = [cumulated[column].g[code] for column, code in candidates]
    h_sums = [cumulated[column].h[code] for column, code in candidates]
    return Sums(
        count=np.array(
            count,
            dtype=np.int64,
        ),
        g=np.array(
            g_sums,
            dtype=np.int64,
        ),
        h=np.array(
            h_sums,
            dtype=np.int64,
        ),
    )


def _cumulated_sums(
    bins: Bins,
    column: int,
    rows: Ints,
    g: Ints,
    h: Ints,
) -> Sums:
    """Return the sums of the rows up to each bin of a column."""
    codes = bins.codes[rows, column]
    width = len(bins.cuts[column]) + 1
    return Sums(
        count=np.bincount(codes, minlength=width).cumsum(),
        g=_sums_by_code(codes, g[rows], width).cumsum(),
        h=_sums_by_code(codes, h[rows], width).cumsum(),
    )


def _sums_by_code(
    codes: Ints,
    values: Ints,
    width: int,
) -> Ints:
    """Return the sum of the values in each bin, exactly (a weighted `np.bincount` would compute
    floats).
    """
    sums = np.zeros(width, np.int64)
    np.add.at(sums, codes, values)
    return sums


def gains(
    left: Sums,
    count: int,
    g: int,
    h: int,
    rule: SplitRule,
) -> Floats:
    """Return the gain of each candidate in a node with these totals; minus infinity if a side is
    too small.
    """
    right = Sums(
        count - left.count,
        g - left.g,
        h - left.h,
    )
    undivided = rule.strength(np.array([g]), np.array([h]))[0]
    gain = rule.strength(left.g, left.h) + rule.strength(right.g, right.h) - undivided
    is_allowed = np.minimum(left.count, right.count) >= max(
        1,
        rule.min_leaf_rows,
    )
    result: Floats = np.where(
        is_allowed,
        gain,
        -np.inf,
    )
    return result
