"""Scores rows with trees whose splits are spread over a guest and its hosts.

Each host sends one message: for every split of its part of the model, a bit per row that is set if
the row goes left. The guest walks the trees by itself, so a host learns neither a score nor which
rows reach which node. The guest learns how each split of a host divides all rows, including rows
that do not reach the split's node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.arrays import Bools, Floats, Ints
from refvendor.components.links import BadMessage, Link
from refvendor.components.predicting import NewRows, check_same_training
from refvendor.contract import BadParameters

SIDES = "sides"  # kind of the message
MOST_SPLITS = 1 << 30
BROKEN_MODEL = "model: is not what a training of this component writes"


def model_features(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that these nodes of a model need, sorted. Raises `BadParameters`."""
    names = [node["feature"] for node in nodes if "feature" in node]
    if not all(isinstance(name, str) for name in names):
        raise BadParameters(BROKEN_MODEL)
    return sorted(set(names))


def goes_left(values: Floats, threshold: Any) -> Bools:
    """Return True for values up to the threshold and, as in training, for missing values.

    Raises `BadParameters` if the model's threshold is not a number.
    """
    if not isinstance(threshold, int | float) or isinstance(threshold, bool):
        raise BadParameters(BROKEN_MODEL)
    result: Bools = np.isnan(values) | (values <= threshold)
    return result


# ------------------------------------------------------------ host


def send_sides(
    link: Link,
    model: Mapping[str, Any],
    rows: NewRows,
    features: Sequence[str],
) -> None:
    """Send the guest the side of every row at every split of this host."""
    splits = model["splits"]
    columns = _columns_by_name(rows, features)
    masks = []
    for split in splits:
        is_left = goes_left(
            columns[split["feature"]],
            split.get("threshold"),
        )
        masks.append(np.packbits(is_left).tobytes())
    fields = {
        "training": model.get("training"),
        "splits": len(splits),
        "rows": len(rows.ids),
    }
    link.send(
        SIDES,
        fields,
        [b"".join(masks)],
    )


# ------------------------------------------------------------ guest


def receive_sides(
    link: Link,
    model: Mapping[str, Any],
    rows: int,
) -> Bools:
    """Return a host's sides as splits x rows, True for left. Raises `BadMessage`."""
    message = link.expect(SIDES)
    check_same_training(model, message)
    message.integer("rows", rows, rows)
    splits = message.integer("splits", 0, MOST_SPLITS)
    size = -(-rows // 8)
    data = message.blob()
    if len(data) != splits * size:
        raise BadMessage(
            f"{link.peer}: {splits} splits of {rows} rows are {splits * size} bytes, not "
            f"{len(data)}"
        )
    masks = np.frombuffer(data, dtype=np.uint8).reshape(splits, size)
    return np.unpackbits(masks, axis=1, count=rows).astype(bool)


def score_rows(
    model: Mapping[str, Any],
    me: str,
    rows: NewRows,
    features: Sequence[str],
    sides: Mapping[str, Bools],
) -> Floats:
    """Return the score of every row, added up in the order of the training.

    ``sides`` holds what `receive_sides` returned, by host. Raises `BadParameters` for a broken
    model and `BadMessage` if a host lacks a split.
    """
    walker = TreeWalker(
        me,
        len(rows.ids),
        _columns_by_name(rows, features),
        sides,
    )
    try:
        scores = np.full(
            len(rows.ids),
            float(model["base_score"]),
        )
        for tree in model["trees"]:
            scores = scores + walker.walk(tree)
    except (KeyError, TypeError, ValueError) as error:
        raise BadParameters(BROKEN_MODEL) from error
    return scores


@dataclass(frozen=True)
class TreeWalker:
    """Sends rows through trees, by this party's columns and the hosts' sides."""

    me: str
    rows: int
    columns: Mapping[str, Floats]
    sides: Mapping[str, Bools]

    def walk(
        self,
        tree: Sequence[Mapping[str, Any]],
    ) -> Floats:
        """Return the tree's contribution to each row's score.

        Raises `KeyError` for a broken tree.
        """
        nodes = {node["node"]: node for node in tree}
        step = np.zeros(self.rows)
        reached: dict[int, Ints] = {0: np.arange(self.rows)}
        while reached:
            number, rows = reached.popitem()
            node = nodes.pop(number)  # each is reached once: in a tree with a circle, this fails
            if "leaf" in node:
                step[rows] = float(node["leaf"])
                continue
            is_left = self._left_side(node, rows)
            reached[node["left"]] = rows[is_left]
            reached[node["right"]] = rows[~is_left]
        return step

    def _left_side(
        self,
        node: Mapping[str, Any],
        rows: Ints,
    ) -> Bools:
        """Return True for each row that goes left at a node."""
        party = node["party"]
        if party == self.me:
            return goes_left(
                self.columns[node["feature"]][rows],
                node["threshold"],
            )
        split = node["split"]
        if party not in self.sides:
            raise BadParameters(f"model: needs {party}, which takes no part")
        if not 0 <= split < len(self.sides[party]):
            raise BadMessage(f"{party}: has no split {split}")
        is_left: Bools = self.sides[party][split][rows]
        return is_left


def _columns_by_name(
    rows: NewRows,
    features: Sequence[str],
) -> dict[str, Floats]:
    return {name: rows.values[:, place] for place, name in enumerate(features)}
