"""Adds up encrypted gradients per bin, so that a host can sum the left side of each split that it
offers.
"""

from __future__ import annotations

from collections.abc import Sequence

from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.arrays import Ints
from refvendor.components.split_search import Bins, Candidate
from refvendor.crypto.paillier import PublicKey

# Column -> bin -> encrypted sum of the rows in it. Bins without a row are left out.
Histogram = dict[int, dict[int, mpz]]


class HistogramBuilder:
    """Builds the histograms of one tree's nodes."""

    def __init__(
        self,
        key: PublicKey,
        bins: Bins,
        columns: Sequence[int],
        gradients: Sequence[mpz],
    ) -> None:
        """``columns`` are the tree's columns; ``gradients`` has a ciphertext per row."""
        self._key = key
        self._bins = bins
        self._columns = columns
        self._gradients = gradients

    def add_up(self, rows: Ints) -> Histogram:
        """Return the histogram of some rows."""
        square = self._key.square
        gradients = [self._gradients[row] for row in rows.tolist()]
        histogram: Histogram = {}
        for column in self._columns:
            codes = self._bins.codes[rows, column].tolist()
            sums: dict[int, mpz] = {}
            for code, gradient in zip(codes, gradients, strict=True):
                if code in sums:
                    sums[code] = sums[code] * gradient % square
                else:
                    sums[code] = gradient
            histogram[column] = sums
        return histogram

    def subtract(
        self,
        parent: Histogram,
        child: Histogram,
        rows: Ints,
    ) -> Histogram:
        """Return the histogram of a child's sibling, whose rows are passed, as the parent's less
        the child's.

        It costs one inversion for all bins, and nothing for bins that the child does not share.
        """
        sibling: Histogram = {}
        for column in self._columns:
            codes = set(self._bins.codes[rows, column].tolist())
            sibling[column] = {code: parent[column][code] for code in codes}
        shared = [
            (column, code)
            for column in self._columns
            for code in sibling[column].keys() & child[column].keys()
        ]
        negated = self._key.negate([child[column][code] for column, code in shared])
        for (column, code), inverse in zip(shared, negated, strict=True):
            sibling[column][code] = sibling[column][code] * inverse % self._key.square
        return sibling

    def left_sums(
        self,
        histogram: Histogram,
        candidates: Sequence[Candidate],
    ) -> list[mpz]:
        """Return the encrypted sum of the rows up to each candidate's bin."""
        square = self._key.square
        cumulated: dict[Candidate, mpz] = {}
        for column, sums in histogram.items():
            running = mpz(1)
            for code in sorted(sums):
                running = running * sums[code] % square
                cumulated[Candidate(column, code)] = running
        return [cumulated[candidate] for candidate in candidates]
