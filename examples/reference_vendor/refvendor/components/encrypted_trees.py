"""Searches splits at a host that has features but neither labels nor the key (SecureBoost,
arXiv:1901.08755).

The guest encrypts count, g and h of every row, packed into one plaintext. The host adds ciphertexts
up per bin, shuffles its candidates, packs many sums into one ciphertext and re-randomises it. So
the guest sees sums at positions and nothing of feature, bin or order. What each side learns
nevertheless: the host, which rows are in every node that is searched; the guest, the sums of splits
and how a chosen split divides the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refvendor.arrays import Ints
from refvendor.components.encrypted_histograms import Histogram, HistogramBuilder
from refvendor.components.links import BadMessage, Link, Message
from refvendor.components.split_search import (
    FRACTION_BITS,
    Bins,
    Candidate,
    Sums,
    columns_of_tree,
    find_candidates,
)
from refvendor.components.trees import ChosenSplit
from refvendor.crypto.paillier import PrivateKey, PublicKey

# Kinds of messages, in the order of their first use.
START = "start"
TREE = "tree"
LEVEL = "level"
OFFERS = "offers"
CHOOSE = "choose"
PARTED = "parted"
FINISH = "finish"
SHIFT = 1 << FRACTION_BITS  # makes g, from -1 to 1, non-negative
MOST_ROWS = 1 << 24
MOST_NODES = 1 << 40


@dataclass(frozen=True)
class Slot:
    """The layout of count, g and h side by side in one non-negative integer, for sums over up to
    ``rows`` rows.
    """

    rows: int

    @property
    def h_bits(self) -> int:
        """Bits of a sum of h; each h is at most a quarter."""
        return (self.rows << (FRACTION_BITS - 2)).bit_length()

    @property
    def g_bits(self) -> int:
        """Bits of a sum of g; each g is at most one, shifted by one."""
        return (self.rows << (FRACTION_BITS + 1)).bit_length()

    @property
    def bits(self) -> int:
        """Bits of all three together."""
        return self.rows.bit_length() + self.g_bits + self.h_bits

    def join(
        self,
        g: Ints,
        h: Ints,
    ) -> list[int]:
        """Return an integer per row, each with the count 1."""
        count = 1 << (self.g_bits + self.h_bits)
        pairs = zip(
            g.tolist(),
            h.tolist(),
            strict=True,
        )
        return [count + ((g_row + SHIFT) << self.h_bits) + h_row for g_row, h_row in pairs]

    def separate(self, values: Sequence[int]) -> Sums:
        """Return the three sums in each sum of joined integers."""
        g_mask = (1 << self.g_bits) - 1
        h_mask = (1 << self.h_bits) - 1
        counts = [value >> (self.g_bits + self.h_bits) for value in values]
        shifted = [(value >> self.h_bits) & g_mask for value in values]
        count = np.array(
            counts,
            dtype=np.int64,
        )
        return Sums(
            count=count,
            g=np.array(shifted, dtype=np.int64) - count * SHIFT,
            h=np.array([value & h_mask for value in values], dtype=np.int64),
        )


# ------------------------------------------------------------ guest


class EncryptedGradients:
    """The encrypted gradients of the current tree, computed once for all hosts."""

    def __init__(self, key: PrivateKey, rows: int) -> None:
        self._key = key
        self._slot = Slot(rows)
        self._tree = -1
        self._data = b""

    def of_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> bytes:
        """Return a tree's gradients; only the first call for a tree encrypts."""
        if tree != self._tree:
            self._tree = tree
            self._data = self._key.dump(self._key.encrypt(self._slot.join(g, h)))
        return self._data


class RemoteSource:
    """A host's features as the guest's growing code sees them: a `FeatureSource`."""

    def __init__(
        self,
        link: Link,
        key: PrivateKey,
        rows: int,
        gradients: EncryptedGradients,
    ) -> None:
        self.party = link.peer
        self._link = link
        self._key = key
        self._rows = rows
        self._slot = Slot(rows)
        self._gradients = gradients
        self._nodes: Mapping[int, Ints] = {}
        self._sums: dict[int, Sums] = {}
        link.send(
            START,
            {"rows": rows},
            [key.to_bytes()],
        )

    def begin_tree(
        self,
        tree: int,
        g: Ints,
        h: Ints,
    ) -> None:
        """Send the tree's encrypted gradients."""
        self._link.send(
            TREE,
            {"tree": tree},
            [self._gradients.of_tree(tree, g, h)],
        )

    def start_search(
        self,
        nodes: Mapping[int, Ints],
    ) -> None:
        """Request the sums of these nodes. `candidate_sums` waits for them."""
        self._nodes = nodes
        self._sums = {}
        masks = [_rows_to_mask(rows, self._rows) for rows in nodes.values()]
        self._link.send(
            LEVEL,
            {"nodes": list(nodes)},
            masks,
        )

    def candidate_sums(self, node: int) -> Sums:
        """Return a node's sums as soon as they arrive, while the host computes the next node's."""
        while node not in self._sums:
            message = self._link.expect(OFFERS)
            arrived = message.integer("node", 0, MOST_NODES)
            if arrived not in self._nodes or arrived in self._sums:
                raise BadMessage(f"{self.party}: offers for a node that was not asked for")
            self._sums[arrived] = self._decrypt(
                message,
                len(self._nodes[arrived]),
            )
        return self._sums[node]

    def _decrypt(self, message: Message, node_rows: int) -> Sums:
        count = message.integer("count", 0, MOST_ROWS)
        slots = self._key.slots(self._slot.bits)
        ciphers = self._key.load(
            message.blob(),
            -(-count // slots),
        )
        plaintexts = self._key.decrypt(ciphers)
        sums = self._slot.separate(self._key.unpack(plaintexts, self._slot.bits, count))
        if count and (sums.count.min() < 1 or sums.count.max() >= node_rows):
            raise BadMessage(f"{self.party}: an offer's row count lies outside its node")
        return sums

    def choose(
        self,
        picks: Mapping[int, Sequence[int]],
    ) -> Mapping[int, ChosenSplit]:
        """Send the host the positions of the best candidates and return the splits that it chose
        among them.

        Raises `BadMessage` if a split's rows are not in its node or not as many as the host had
        offered.
        """
        positions = [list(node_positions) for node_positions in picks.values()]
        self._link.send(
            CHOOSE,
            {
                "nodes": list(picks),
                "positions": positions,
            },
        )
        message = self._link.expect(PARTED)
        numbers = message.integers("splits")
        splits = {}
        for place, (node, node_positions) in enumerate(picks.items()):
            left_rows = _mask_to_rows(message.blob(place), self._rows)
            offered_counts = self._sums[node].count[list(node_positions)]
            is_inside = np.isin(left_rows, self._nodes[node]).all()
            has_number = place < len(numbers)
            if not is_inside or not has_number or len(left_rows) not in offered_counts:
                raise BadMessage(f"{self.party}: the rows of a split are not those of its offer")
            entry = {
                "party": self.party,
                "split": numbers[place],
            }
            splits[node] = ChosenSplit(
                left_rows=left_rows,
                entry=entry,
            )
        return splits

    def finish(self) -> None:
        """Tell the host that no further tree follows."""
        self._link.send(FINISH)


# ------------------------------------------------------------ host


@dataclass
class TreeState:
    """A host's state during one tree. Level means the nodes that the guest asked for last."""

    number: int
    columns: Sequence[int]
    builder: HistogramBuilder
    rows: Mapping[int, Ints] = field(default_factory=dict)  # of the level's nodes
    histograms: Mapping[int, Histogram] = field(default_factory=dict)  # of the level's nodes
    # by node, in the order in which their sums were sent
    offers: dict[int, list[Candidate]] = field(default_factory=dict)


class TreeHost:
    """The host's side: serves the guest until it finishes, and collects the host's part of the
    model.
    """

    def __init__(
        self,
        link: Link,
        party: str,
        bins: Bins,
        rate: float,
    ) -> None:
        """``rate`` is the share of the features that each tree sees."""
        self.splits: list[dict[str, Any]] = []  # as the model file holds them
        self.trees = 0
        self._link = link
        self._party = party
        self._bins = bins
        self._rate = rate
        self._total = bins.codes.shape[0]
        self._slot = Slot(self._total)
        self._key: PublicKey

    def serve(self) -> None:
        """Serve the guest until it finishes. Raises `BadMessage`, `BadCiphertext`, `PeerFailed`."""
        start = self._link.expect(START)
        start.integer("rows", self._total, self._total)
        self._key = PublicKey.from_bytes(start.blob())
        self._key.prepare()
        self._tree = TreeState(
            -1,
            [],
            HistogramBuilder(
                self._key,
                self._bins,
                [],
                [],
            ),
        )
        handlers: Mapping[str, Callable[[Message], None]] = {
            TREE: self._begin_tree,
            LEVEL: self._search,
            CHOOSE: self._choose,
        }
        while True:
            message = self._link.expect(*handlers, FINISH)
            if message.kind == FINISH:
                return
            handlers[message.kind](message)

    def _begin_tree(self, message: Message) -> None:
        """Take the gradients of a new tree."""
        number = message.integer("tree", 0, MOST_ROWS)
        gradients = self._key.load(
            message.blob(),
            self._total,
        )
        columns = columns_of_tree(
            self._party,
            number,
            len(self._bins.names),
            self._rate,
        )
        builder = HistogramBuilder(self._key, self._bins, columns, gradients)
        self._tree = TreeState(number, columns, builder)
        self.trees = number + 1

    def _search(self, message: Message) -> None:
        """Send the sums of every candidate of the nodes that the guest asks for."""
        tree = self._tree
        nodes = message.integers("nodes")
        rows = {
            node: _mask_to_rows(message.blob(place), self._total)
            for place, node in enumerate(nodes)
        }
        histograms: dict[int, Histogram] = {}
        for node in rows:
            if node not in histograms:
                histograms |= self._build_histograms(node, rows)
            candidates = find_candidates(
                self._bins,
                tree.columns,
                rows[node],
            )
            secrets.SystemRandom().shuffle(candidates)
            tree.offers[node] = candidates
            sums = tree.builder.left_sums(histograms[node], candidates)
            packed = self._key.rerandomise(self._key.pack(sums, self._slot.bits))
            fields = {
                "node": node,
                "count": len(candidates),
            }
            self._link.send(
                OFFERS,
                fields,
                [self._key.dump(packed)],
            )
        tree.rows = rows
        tree.histograms = histograms

    def _build_histograms(
        self,
        node: int,
        rows: Mapping[int, Ints],
    ) -> dict[int, Histogram]:
        """Return the node's histogram, and its sibling's if that had to be computed or is searched
        as well.

        Only the smaller of two siblings is added up; the other is the difference from their parent,
        which was searched in the level before.
        """
        tree = self._tree
        parent = (node - 1) // 2
        if node == 0 or parent not in tree.histograms:
            return {node: tree.builder.add_up(rows[node])}
        sibling = node + 1 if node % 2 else node - 1
        sibling_rows = rows.get(sibling)
        if sibling_rows is None:
            sibling_rows = np.setdiff1d(
                tree.rows[parent],
                rows[node],
                assume_unique=True,
            )
        smaller, smaller_rows, larger = node, rows[node], sibling
        if len(sibling_rows) < len(rows[node]):
            smaller, smaller_rows, larger = sibling, sibling_rows, node
        histograms = {smaller: tree.builder.add_up(smaller_rows)}
        if larger in rows:
            histograms[larger] = tree.builder.subtract(
                tree.histograms[parent], histograms[smaller], rows[larger]
            )
        return histograms

    def _choose(self, message: Message) -> None:
        """Split nodes at one of the positions that the guest names, and send it the rows that go
        left.
        """
        nodes = message.integers("nodes")
        positions = message.fields.get("positions")
        if not isinstance(positions, list) or len(positions) != len(nodes):
            raise BadMessage("choose: positions must be a list per node")
        numbers = []
        masks = []
        for node, node_positions in zip(nodes, positions, strict=True):
            candidate = self._best_candidate(node, node_positions)
            rows = self._tree.rows[node]
            goes_left = self._bins.codes[rows, candidate.column] <= candidate.code
            numbers.append(self._add_split(node, candidate))
            masks.append(_rows_to_mask(rows[goes_left], self._total))
        self._link.send(PARTED, {"splits": numbers}, masks)

    def _best_candidate(self, node: int, positions: Any) -> Candidate:
        """Return the lowest column, then the lowest bin, among candidates at these positions of the
        offer.
        """
        if not isinstance(positions, list) or not positions:
            raise BadMessage("choose: a node needs at least one position")
        offered = self._tree.offers.get(node, [])
        are_positions = all(type(p) is int and 0 <= p < len(offered) for p in positions)
        if node not in self._tree.rows or not are_positions:
            raise BadMessage("choose: a position was never offered")
        return min(offered[position] for position in positions)

    def _add_split(self, node: int, candidate: Candidate) -> int:
        """Add a split to this party's part of the model and return its number."""
        number = len(self.splits)
        self.splits.append(
            {
                "split": number,
                "tree": self._tree.number,
                "node": node,
                "feature": self._bins.names[candidate.column],
                "threshold": float(self._bins.cuts[candidate.column][candidate.code]),
            }
        )
        return number


# ------------------------------------------------------------ sets of rows on the wire


def _rows_to_mask(rows: Ints, total: int) -> bytes:
    """Return a bit per row of the table: 1 for the rows in the set."""
    bits = np.zeros(
        total,
        dtype=np.uint8,
    )
    bits[rows] = 1
    return np.packbits(bits).tobytes()


def _mask_to_rows(mask: bytes, total: int) -> Ints:
    """Return the rows in a mask, ascending. Raises `BadMessage`."""
    size = -(-total // 8)
    if len(mask) != size:
        raise BadMessage(f"a mask of {total} rows takes {size} bytes, got {len(mask)}")
    bits = np.unpackbits(
        np.frombuffer(
            mask,
            dtype=np.uint8,
        ),
        count=total,
    )
    return np.flatnonzero(bits).astype(np.int64)
