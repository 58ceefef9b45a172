"""Measures how well scores separate labels of 0 and 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refvendor.arrays import Floats, Ints


class Roc(NamedTuple):
    """The rates of false and true positives at each threshold, from high thresholds to low."""

    false_rate: Floats
    true_rate: Floats
    thresholds: Floats


def auc(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
) -> float:
    """Return the chance that a positive row scores above a negative one; ties count half.

    Raises `ValueError` unless both classes occur.
    """
    curve = roc(labels, scores)
    widths = np.diff(curve.false_rate)
    heights = (curve.true_rate[1:] + curve.true_rate[:-1]) / 2
    return float(np.sum(widths * heights))


def ks(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
) -> float:
    """Return the largest distance between true and false positive rate over all thresholds.

    Raises `ValueError` unless both classes occur.
    """
    curve = roc(labels, scores)
    return float(np.max(curve.true_rate - curve.false_rate))


def ks_curve(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
    points: int = 100,
) -> list[dict[str, float]]:
    """Return both rates and their distance over thresholds from high to low, at most ``points`` of
    them.

    The threshold of the largest distance is always included. Raises `ValueError` unless both
    classes occur.
    """
    false_rate, true_rate, thresholds = (values[1:] for values in roc(labels, scores))
    distance = true_rate - false_rate
    places = _spread_places(
        len(thresholds),
        points,
        int(np.argmax(distance)),
    )
    return [
        {
            "threshold": float(thresholds[place]),
            "tpr": float(true_rate[place]),
            "fpr": float(false_rate[place]),
            "ks": float(distance[place]),
        }
        for place in places
    ]


def _spread_places(
    total: int,
    count: int,
    required: int,
) -> list[int]:
    """Return up to ``count`` places spread evenly over ``total``, with the required one in place of
    the nearest.
    """
    places: Ints = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))
    if required not in places:
        nearest = 0
        if len(places) > 1:  # the last place stays
            nearest = int(np.argmin(np.abs(places[:-1] - required)))
        places[nearest] = required
    return sorted(set(places.tolist()))


def roc(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
) -> Roc:
    """Return the rates at every different score, starting with (0, 0) at an infinite threshold.

    A row counts as positive if its score is at least the threshold. Raises `ValueError` unless both
    classes occur.
    """
    truth, values = _check_pair(labels, scores)
    order = np.argsort(
        -values,
        kind="stable",
    )
    truth = truth[order]
    values = values[order]
    last_of_tie = np.append(
        np.nonzero(np.diff(values))[0],
        len(values) - 1,
    )
    true_count = np.cumsum(truth)[last_of_tie]
    false_count = last_of_tie + 1 - true_count
    zero = np.zeros(1)
    infinity = np.full(1, np.inf)
    return Roc(
        false_rate=np.concatenate([zero, false_count / false_count[-1]]),
        true_rate=np.concatenate([zero, true_count / true_count[-1]]),
        thresholds=np.concatenate([infinity, values[last_of_tie]]),
    )


def _check_pair(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
) -> tuple[Floats, Floats]:
    """Return labels and scores as arrays. Raises `ValueError` if they cannot be measured."""
    truth = np.asarray(labels, dtype=np.float64).ravel()
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(truth) != len(values) or not len(truth):
        raise ValueError(
            f"labels and scores must be equally many and not none, got {len(truth)} and "
            f"{len(values)}"
        )
    if not np.isfinite(values).all() or not np.isin(truth, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1 and scores finite")
    if truth.min() == truth.max():
        raise ValueError("both classes must occur")
    return truth, values
