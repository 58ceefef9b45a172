"""Scores rows with trees whose splits are spread over a guest and its hosts.

Each host sends one message: for every split of its part, a bit per row that says whether the row goes left. The
guest walks the trees by itself, so a host learns neither which rows reach which node nor any score. The guest
learns of the hosts' splits which rows go where, also of rows that do not reach the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refvendor.components.links import BadMessage, Link
from refvendor.components.predicting import NewRows, same_training
from refvendor.components.training import Floats
from refvendor.contract import BadParameters

SIDES = "sides"
Sides = npt.NDArray[np.bool_]
"""splits x rows: whether the row goes left"""
_BROKEN = "model: is not what a training of this component writes"


def features_of(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that these nodes of a model look at. Raises `BadParameters`."""
    found = [node["feature"] for node in nodes if "feature" in node]
    if not all(isinstance(name, str) for name in found):
        raise BadParameters(_BROKEN)
    return sorted(set(found))


def goes_left(values: Floats, threshold: Any) -> Sides:
    """Missing values go left, as in training."""
    if not isinstance(threshold, int | float) or isinstance(threshold, bool):
        raise BadParameters(_BROKEN)
    result: Sides = np.isnan(values) | (values <= threshold)
    return result


def tell_sides(
    link: Link,
    model: Mapping[str, Any],
    rows: NewRows,
    features: Sequence[str],
) -> None:
    """Tell the guest the side of every row at every split of this host."""
    splits = model["splits"]
    columns = {name: rows.values[:, place] for place, name in enumerate(features)}
    blobs = [
        np.packbits(goes_left(columns[s["feature"]], s.get("threshold"))).tobytes() for s in splits
    ]
    fields = {
        "training": model.get("training"),
        "splits": len(splits),
        "rows": len(rows.ids),
    }
    link.send(SIDES, fields, [b"".join(blobs)])


def hear_sides(
    link: Link,
    model: Mapping[str, Any],
    rows: int,
) -> Sides:
    """Return what a host tells. Raises `BadMessage`."""
    message = link.expect(SIDES)
    same_training(model, message)
    message.integer("rows", rows, rows)
    splits = message.integer("splits", 0, 1 << 30)
    size = -(-rows // 8)
    data = message.blob()
    if len(data) != splits * size:
        raise BadMessage(
            f"{link.peer}: {splits} splits of {rows} rows are {splits * size} bytes, not {len(data)}"
        )
    packed = np.frombuffer(data, dtype=np.uint8).reshape(splits, size)
    return np.unpackbits(packed, axis=1, count=rows).astype(bool)


def walk(
    model: Mapping[str, Any],
    me: str,
    rows: NewRows,
    features: Sequence[str],
    sides: Mapping[str, Sides],
) -> Floats:
    """The score of every row, added up in the order of the training. Raises `BadParameters`, `BadMessage`."""
    columns = {name: rows.values[:, place] for place, name in enumerate(features)}
    count = len(rows.ids)
    try:
        scores = np.full(count, float(model["base_score"]))
        for tree in model["trees"]:
            nodes = {node["node"]: node for node in tree}
            step = np.zeros(count)
            reached: dict[int, npt.NDArray[np.int64]] = {0: np.arange(count)}
            while reached:
                number, here = reached.popitem()
                node = nodes.pop(
                    number
                )  # each is met once: a tree with a circle ends in a KeyError
                if "leaf" in node:
                    step[here] = float(node["leaf"])
                    continue
                if node["party"] == me:
                    left = goes_left(columns[node["feature"]][here], node["threshold"])
                else:
                    left = _of_host(sides, node)[here]
                reached[node["left"]], reached[node["right"]] = here[left], here[~left]
            scores = scores + step
    except (KeyError, TypeError, ValueError) as error:
        raise BadParameters(_BROKEN) from error
    return scores


def _of_host(sides: Mapping[str, Sides], node: Mapping[str, Any]) -> Sides:
    party, split = node["party"], node["split"]
    if party not in sides:
        raise BadParameters(f"model: needs {party}, which takes no part")
    if not 0 <= split < len(sides[party]):
        raise BadMessage(f"{party}: has no split {split}")
    result: Sides = sides[party][split]
    return result
