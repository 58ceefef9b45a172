"""Judges scores against labels of 0 and 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The chance that a positive row scores above a negative one, ties counting half.

    Raises `ValueError` unless both classes occur.
    """
    false_rate, true_rate, _ = roc(labels, scores)
    return float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1]) / 2))


def ks(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The largest distance between the true and the false positive rate over all thresholds."""
    false_rate, true_rate, _ = roc(labels, scores)
    return float(np.max(true_rate - false_rate))


def ks_curve(
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
    points: int = 100,
) -> list[dict[str, float]]:
    """The two rates and their distance over thresholds from high to low, at most ``points`` of them.

    The threshold of the largest distance is always among them.
    """
    false_rate, true_rate, thresholds = (values[1:] for values in roc(labels, scores))
    distance = true_rate - false_rate
    places = np.unique(
        np.linspace(0, len(thresholds) - 1, min(points, len(thresholds))).astype(int)
    )
    best = int(np.argmax(distance))
    if best not in places:
        places[np.argmin(np.abs(places[:-1] - best)) if len(places) > 1 else 0] = best
    return [
        {
            "threshold": float(thresholds[i]),
            "tpr": float(true_rate[i]),
            "fpr": float(false_rate[i]),
            "ks": float(distance[i]),
        }
        for i in sorted(set(places.tolist()))
    ]


def roc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """False positive rate, true positive rate and threshold, from the point (0, 0) on.

    A row counts as positive if its score is at least the threshold; the first threshold is infinite.
    """
    truth, values = _pair(labels, scores)
    order = np.argsort(-values, kind="stable")
    truth, values = truth[order], values[order]
    last_of_tie = np.append(np.nonzero(np.diff(values))[0], len(values) - 1)
    true_count = np.cumsum(truth)[last_of_tie]
    false_count = last_of_tie + 1 - true_count
    zero = np.zeros(1)
    return (
        np.concatenate([zero, false_count / false_count[-1]]),
        np.concatenate([zero, true_count / true_count[-1]]),
        np.concatenate([np.full(1, np.inf), values[last_of_tie]]),
    )


def _pair(labels: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[Floats, Floats]:
    truth = np.asarray(labels, dtype=np.float64).ravel()
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(truth) != len(values) or not len(truth):
        raise ValueError(
            f"labels and scores must be equally many and not none, got {len(truth)} and {len(values)}"
        )
    if not np.isfinite(values).all() or not np.isin(truth, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1 and scores finite")
    if truth.min() == truth.max():
        raise ValueError("both classes must occur")
    return truth, values
