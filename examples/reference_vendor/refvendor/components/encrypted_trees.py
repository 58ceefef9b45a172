"""Carries a tree's split search to a host that has features but neither labels nor the key.

The guest encrypts count, g and h of every row packed into one plaintext. The host adds ciphertexts up per
bin, shuffles its candidates, packs many sums into one ciphertext, and re-randomises it, so that the guest
sees sums at positions and nothing of feature, bin or order. What each side learns all the same: the host the
rows of every node that is searched, the guest the split sums and how a host's split parts the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.components.links import BadMessage, Link, Message
from refvendor.components.split_search import (
    FRACTION,
    Bins,
    Ints,
    Sums,
    candidates,
    columns_of_tree,
)
from refvendor.components.trees import Parting
from refvendor.crypto.paillier import PrivateKey, PublicKey

START, TREE, LEVEL, OFFERS = "start", "tree", "level", "offers"
CHOOSE, PARTED, FINISH = "choose", "parted", "finish"
SHIFT = 1 << FRACTION
MOST_ROWS = 1 << 24
MOST_NODES = 1 << 40

Histogram = list[list["mpz | None"]]
"""per column of the tree, per bin: the encrypted sum, None where the node has no row in the bin"""


@dataclass(frozen=True)
class Slot:
    """How count, g and h sit side by side in one non-negative integer, for sums over up to ``rows`` rows."""

    rows: int

    @property
    def h_bits(self) -> int:
        """Bits of a sum of h, each at most a quarter."""
        return (self.rows << (FRACTION - 2)).bit_length()

    @property
    def g_bits(self) -> int:
        """Bits of a sum of g, each at most one and made non-negative."""
        return (self.rows << (FRACTION + 1)).bit_length()

    @property
    def bits(self) -> int:
        """Bits of all three together."""
        return self.rows.bit_length() + self.g_bits + self.h_bits

    def join(self, g: Ints, h: Ints) -> list[int]:
        """One row each; g, in [-1, 1], is shifted to be non-negative."""
        one = 1 << (self.g_bits + self.h_bits)
        return [
            one + ((a + SHIFT) << self.h_bits) + b
            for a, b in zip(g.tolist(), h.tolist(), strict=True)
        ]

    def part(self, values: Sequence[int]) -> Sums:
        """The sums in added-up plaintexts."""
        count = np.array([value >> (self.g_bits + self.h_bits) for value in values], dtype=np.int64)
        g_mask, h_mask = (1 << self.g_bits) - 1, (1 << self.h_bits) - 1
        g = np.array([(value >> self.h_bits) & g_mask for value in values], dtype=np.int64)
        h = np.array([value & h_mask for value in values], dtype=np.int64)
        return Sums(
            count=count,
            g=g - count * SHIFT,
            h=h,
        )


class RemoteSource:
    """A host's features as the guest's grower sees them."""

    def __init__(
        self,
        link: Link,
        key: PrivateKey,
        rows: int,
        cipher_of_tree: CipherOfTree,
    ) -> None:
        self.party = link.peer
        self._link = link
        self._key = key
        self._rows = rows
        self._slot = Slot(rows)
        self._cipher_of_tree = cipher_of_tree
        self._nodes: Mapping[int, Ints] = {}
        self._arrived: dict[int, Sums] = {}
        link.send(START, {"rows": rows}, [key.to_bytes()])

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Send the tree's encrypted gradients."""
        self._link.send(TREE, {"tree": tree}, [self._cipher_of_tree.of(tree, g, h)])

    def search(self, nodes: Mapping[int, Ints]) -> None:
        """Ask for the sums of these nodes; `offers` takes in what comes."""
        self._nodes, self._arrived = nodes, {}
        masks = [_mask(rows, self._rows) for rows in nodes.values()]
        self._link.send(LEVEL, {"nodes": list(nodes)}, masks)

    def offers(self, node: int) -> Sums:
        """Decrypt as messages arrive: the host is busy with the next node meanwhile."""
        while node not in self._arrived:
            message = self._link.expect(OFFERS)
            arrived = message.integer("node", 0, MOST_NODES)
            if arrived not in self._nodes or arrived in self._arrived:
                raise BadMessage(f"{self.party}: offers for a node that was not asked for")
            self._arrived[arrived] = self._decrypted(message, len(self._nodes[arrived]))
        return self._arrived[node]

    def choose(self, picks: Mapping[int, Sequence[int]]) -> Mapping[int, Parting]:
        """Tell the host which of its splits were chosen; return the rows that go left.

        Raises `BadMessage` where they are not as many as it had offered, or not the node's.
        """
        tied = {
            "nodes": list(picks),
            "positions": [list(positions) for positions in picks.values()],
        }
        self._link.send(CHOOSE, tied)
        message = self._link.expect(PARTED)
        numbers = message.integers("splits")
        decided = {}
        for place, (node, positions) in enumerate(picks.items()):
            left = _rows(message.blob(place), self._rows)
            counts = self._arrived[node].count[list(positions)]
            outside = not np.isin(left, self._nodes[node]).all()
            if len(left) not in counts or outside or place >= len(numbers):
                raise BadMessage(f"{self.party}: the rows of a split are not those of its offer")
            decided[node] = Parting(left=left, note={"party": self.party, "split": numbers[place]})
        return decided

    def finish(self) -> None:
        """Tell the host that there is no further tree."""
        self._link.send(FINISH)

    def _decrypted(self, message: Message, rows: int) -> Sums:
        count = message.integer("count", 0, MOST_ROWS)
        packed = -(-count // self._key.slots(self._slot.bits))
        plain = self._key.decrypt(self._key.load(message.blob(), packed))
        sums = self._slot.part(self._key.unpack(plain, self._slot.bits, count))
        if count and (sums.count.min() < 1 or sums.count.max() >= rows):
            raise BadMessage(f"{self.party}: an offer's row count lies outside its node")
        return sums


class CipherOfTree:
    """The encrypted gradients of the current tree, made once for all hosts."""

    def __init__(self, key: PrivateKey, rows: int) -> None:
        self._key = key
        self._slot = Slot(rows)
        self._tree = -1
        self._data = b""

    def of(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> bytes:
        """Return the gradients of a tree, encrypted when first asked for."""
        if tree != self._tree:
            self._tree, self._data = tree, self._key.dump(self._key.encrypt(self._slot.join(g, h)))
        return self._data


class HostOfTrees:
    """The host's side: answers the guest until it finishes, and keeps the host's part of the model."""

    def __init__(
        self,
        link: Link,
        party: str,
        bins: Bins,
        rate: float,
    ) -> None:
        self.splits: list[dict[str, Any]] = []
        self.trees = 0
        self._link = link
        self._party = party
        self._bins = bins
        self._rate = rate
        self._total = bins.codes.shape[0]
        self._slot = Slot(self._total)
        self._gradients: list[mpz] = []
        self._columns: list[int] = []
        self._rows: dict[int, Ints] = {}
        self._histograms: dict[int, Histogram] = {}
        self._places: dict[int, list[tuple[int, int]]] = {}

    def serve(self) -> None:
        """Work for the guest until it says finish. Raises `BadMessage`, `PeerFailed`."""
        start = self._link.expect(START)
        start.integer("rows", self._total, self._total)
        self._key = PublicKey.from_bytes(start.blob())
        self._key.prepare()
        answers = {
            TREE: self._begin_tree,
            LEVEL: self._search,
            CHOOSE: self._decide,
        }
        while (message := self._link.expect(*answers, FINISH)).kind != FINISH:
            answers[message.kind](message)

    def _begin_tree(self, message: Message) -> None:
        self._tree = message.integer("tree", 0, MOST_ROWS)
        self.trees = self._tree + 1
        self._gradients = self._key.load(message.blob(), self._total)
        self._columns = columns_of_tree(self._party, self._tree, len(self._bins.names), self._rate)
        self._rows, self._histograms, self._places = {}, {}, {}

    def _search(self, message: Message) -> None:
        nodes = message.integers("nodes")
        rows = {node: _rows(message.blob(place), self._total) for place, node in enumerate(nodes)}
        histograms: dict[int, Histogram] = {}
        for node in rows:
            if node not in histograms:
                histograms.update(self._histograms_of(node, rows))
            places = candidates(self._bins, self._columns, rows[node])
            secrets.SystemRandom().shuffle(places)
            self._places[node] = places
            packed = self._key.pack(self._left_sums(histograms[node], places), self._slot.bits)
            data = self._key.dump(self._key.rerandomise(packed))
            self._link.send(OFFERS, {"node": node, "count": len(places)}, [data])
        self._rows, self._histograms = rows, histograms

    def _decide(self, message: Message) -> None:
        nodes, positions = message.integers("nodes"), message.fields.get("positions")
        if not isinstance(positions, list) or len(positions) != len(nodes):
            raise BadMessage("choose: positions must be a list per node")
        numbers, masks = [], []
        for node, tied in zip(nodes, positions, strict=True):
            places = self._places.get(node, [])
            if not isinstance(tied, list) or not tied:
                raise BadMessage("choose: a node needs at least one position")
            if node not in self._rows or any(
                type(p) is not int or not 0 <= p < len(places) for p in tied
            ):
                raise BadMessage("choose: a position was never offered")
            column, code = min(places[p] for p in tied)
            rows = self._rows[node]
            masks.append(_mask(rows[self._bins.codes[rows, column] <= code], self._total))
            numbers.append(len(self.splits))
            self.splits.append(
                {
                    "split": len(self.splits),
                    "tree": self._tree,
                    "node": node,
                    "feature": self._bins.names[column],
                    "threshold": float(self._bins.cuts[column][code]),
                }
            )
        self._link.send(PARTED, {"splits": numbers}, masks)

    def _histograms_of(self, node: int, rows: Mapping[int, Ints]) -> dict[int, Histogram]:
        """The node's histogram, and its sibling's if that is searched too.

        Only the smaller of two siblings is added up, the other is what their parent has more.
        """
        parent = (node - 1) // 2
        if node == 0 or parent not in self._histograms:
            return {node: self._added_up(rows[node])}
        sibling = node + 1 if node % 2 else node - 1
        others = rows.get(sibling)
        if others is None:
            others = np.setdiff1d(self._rows[parent], rows[node], assume_unique=True)
        small, large, few = node, sibling, rows[node]
        if len(others) < len(few):
            small, large, few = sibling, node, others
        made = {small: self._added_up(few)}
        if large in rows:
            made[large] = self._difference(self._histograms[parent], made[small], rows[large])
        return made

    def _added_up(self, rows: Ints) -> Histogram:
        square = self._key.square
        gradients = [self._gradients[row] for row in rows.tolist()]
        histogram: Histogram = []
        for column in self._columns:
            sums: list[mpz | None] = [None] * (len(self._bins.cuts[column]) + 1)
            for code, gradient in zip(
                self._bins.codes[rows, column].tolist(), gradients, strict=True
            ):
                held = sums[code]
                sums[code] = gradient if held is None else held * gradient % square
            histogram.append(sums)
        return histogram

    def _difference(
        self,
        whole: Histogram,
        part: Histogram,
        rows: Ints,
    ) -> Histogram:
        """What the rows have: sums of bins they do not touch are left out, all others by one inversion."""
        both = []
        result: Histogram = []
        for place, column in enumerate(self._columns):
            touched = set(self._bins.codes[rows, column].tolist())
            sums = [value if code in touched else None for code, value in enumerate(whole[place])]
            both += [(place, code) for code in touched if part[place][code] is not None]
            result.append(sums)
        negated = self._key.negate([part[place][code] for place, code in both])
        for (place, code), inverse in zip(both, negated, strict=True):
            result[place][code] = result[place][code] * inverse % self._key.square
        return result

    def _left_sums(self, histogram: Histogram, places: Sequence[tuple[int, int]]) -> list[mpz]:
        square = self._key.square
        cumulated: dict[tuple[int, int], mpz] = {}
        for place, column in enumerate(self._columns):
            running = mpz(1)
            for code, value in enumerate(histogram[place]):
                if value is not None:
                    running = running * value % square
                    cumulated[column, code] = running
        return [cumulated[place] for place in places]


def _mask(rows: Ints, total: int) -> bytes:
    bits = np.zeros(total, dtype=np.uint8)
    bits[rows] = 1
    return np.packbits(bits).tobytes()


def _rows(mask: bytes, total: int) -> Ints:
    """The rows in a mask, ascending. Raises `BadMessage`."""
    if len(mask) != -(-total // 8):
        raise BadMessage(f"a mask of {total} rows takes {-(-total // 8)} bytes, got {len(mask)}")
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=total)
    return np.flatnonzero(bits).astype(np.int64)
