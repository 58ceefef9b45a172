"""The arithmetic of logistic regression on Taylor's loss, one party at a time and all of them pooled.

With labels y of -1 and 1 and u the sum of the parties' scores, the loss of a row is
``log 2 - y u / 2 + u**2 / 8`` and its derivative by u is ``u / 4 - y / 2``. Features are standardised and
rounded to 12 fraction bits once, for scores and gradients alike; what is summed over rows are integers, so
an encrypted sum and a sum in the clear are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refvendor.components.split_search import Ints
from refvendor.components.training import Floats, Rows
from refvendor.contract import BadParameters, VendorError

FEATURE_BITS, SCORE_BITS = 12, 24
GRADIENT_UNIT = 2.0 ** -(FEATURE_BITS + SCORE_BITS)
LARGEST_FEATURE = 8.0
LARGEST_SCORE = 1000.0
SEED = 103
_BROKEN = "model: is not what a training of this component writes"
OPTIMIZERS = ("sgd", "rmsprop", "adam", "adagrad", "nesterov_momentum_sgd")
INITS = ("zeros", "ones", "random_normal", "random_uniform")


class Diverged(VendorError):
    """The weights grow without bound."""


@dataclass(frozen=True)
class RegressionPlan:
    """How to fit."""

    max_iter: int = 30
    batch_size: int | None = None
    """rows per step; None takes all"""
    learning_rate: float = 0.15
    optimizer: str = "rmsprop"
    penalty: str = "L2"
    alpha: float = 0.01
    init: str = "zeros"
    fit_intercept: bool = True
    early_stop: str = "weight_diff"
    tol: float = 1e-4


@dataclass(frozen=True)
class Design:
    """A party's features as the model sees them."""

    names: list[str]
    means: Floats
    scales: Floats
    cells: Ints
    """rows x columns in units of 2 ** -FEATURE_BITS; an intercept, if there is one, is the last column"""
    intercept: bool


@dataclass
class Optimizer:
    """Turns a gradient into the step to subtract; the rate falls with the square root of the iteration."""

    name: str
    rate: float
    _steps: int = 0
    _mean: Floats = field(default_factory=lambda: np.zeros(0))
    _square: Floats = field(default_factory=lambda: np.zeros(0))

    def step(self, gradient: Floats, iteration: int) -> Floats:
        """The step of one batch in the ``iteration``-th pass over the rows, counted from 0."""
        if not self._steps:
            self._mean, self._square = np.zeros_like(gradient), np.zeros_like(gradient)
        self._steps += 1
        rate = self.rate / math.sqrt(1 + iteration)
        if self.name == "sgd":
            return rate * gradient
        if self.name == "nesterov_momentum_sgd":
            before = self._mean
            self._mean = 0.9 * before - rate * gradient
            return 0.9 * before - 1.9 * self._mean
        if self.name == "adagrad":
            self._square = self._square + gradient**2
            return rate * gradient / np.sqrt(self._square + 1e-8)
        keep = 0.999 if self.name == "adam" else 0.99
        self._square = keep * self._square + (1 - keep) * gradient**2
        spread = np.sqrt(self._square / (1 - keep**self._steps) + 1e-8)
        if self.name == "rmsprop":
            return rate * gradient / spread
        self._mean = 0.9 * self._mean + 0.1 * gradient
        return rate * self._mean / (1 - 0.9**self._steps) / spread


class Part:
    """One party's weights and how they move."""

    def __init__(
        self,
        party: str,
        design: Design,
        plan: RegressionPlan,
    ) -> None:
        self.design = design
        self.weights = initial_weights(party, design, plan.init)
        self._plan = plan
        self._optimizer = Optimizer(plan.optimizer, plan.learning_rate)
        self._penalised = np.ones(len(self.weights))
        if design.intercept:
            self._penalised[-1] = 0.0

    def scores(self, rows: Ints) -> Floats:
        """This party's share of the rows' scores. Raises `Diverged`."""
        scores: Floats = self.design.cells[rows] @ self.weights * 2.0**-FEATURE_BITS
        if not np.all(np.abs(scores) <= LARGEST_SCORE):
            raise Diverged("the scores grow without bound: lower learning_rate or raise alpha")
        return scores

    def penalty(self) -> float:
        """What the weights add to the loss of every row."""
        weights = self.weights * self._penalised
        if self._plan.penalty == "L1":
            return float(self._plan.alpha * np.abs(weights).sum())
        return float(self._plan.alpha / 2 * (weights**2).sum())

    def move(
        self,
        sums: Sequence[int],
        rows: int,
        iteration: int,
    ) -> None:
        """Take one step from the summed gradients of a batch."""
        slope = np.sign(self.weights) if self._plan.penalty == "L1" else self.weights
        gradient = np.array([float(value) for value in sums]) * GRADIENT_UNIT / rows
        gradient = gradient + self._plan.alpha * slope * self._penalised
        self.weights = self.weights - self._optimizer.step(gradient, iteration)

    def model(self) -> dict[str, Any]:
        """The weights with what a new row has to be standardised by."""
        entries = [
            {
                "feature": name,
                "weight": float(weight),
                "mean": float(mean),
                "scale": float(scale),
            }
            for name, weight, mean, scale in zip(
                self.design.names, self.weights, self.design.means, self.design.scales, strict=False
            )
        ]
        intercept = {"intercept": float(self.weights[-1])} if self.design.intercept else {}
        return {
            "weights": entries,
            "largest_feature": LARGEST_FEATURE,
            **intercept,
        }


def standardise(rows: Rows, intercept: bool) -> Design:
    """Centre and scale every column; a missing cell takes the column's mean, a constant column is zero."""
    values = rows.values
    known = ~np.isnan(values)
    counts = np.maximum(known.sum(axis=0), 1)
    means = np.where(known, values, 0.0).sum(axis=0) / counts
    centred = np.where(known, values - means, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / counts)
    scales = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(means)), spread, 1.0)
    cells = _cells(centred, scales, intercept)
    return Design(
        names=rows.names,
        means=means,
        scales=scales,
        cells=cells,
        intercept=intercept,
    )


def _cells(
    centred: Floats,
    scales: Floats,
    intercept: bool,
) -> Ints:
    """Features in units of 2 ** -FEATURE_BITS, and the intercept's column if there is one."""
    unit = 2.0**FEATURE_BITS
    limit = LARGEST_FEATURE * unit - 1
    cells: Ints = np.rint(np.clip(centred / scales * unit, -limit, limit)).astype(np.int64)
    if intercept:
        cells = np.column_stack([cells, np.full(len(centred), int(unit), dtype=np.int64)])
    return cells


def features_of(model: Mapping[str, Any]) -> list[str]:
    """The columns that a party's part of a model needs, in the order of its weights. Raises `BadParameters`."""
    try:
        names = [entry["feature"] for entry in model["weights"]]
    except (KeyError, TypeError) as error:
        raise BadParameters(_BROKEN) from error
    if not all(isinstance(name, str) for name in names):
        raise BadParameters(_BROKEN)
    return names


def fitted_part(
    party: str,
    model: Mapping[str, Any],
    values: Floats,
    plan: RegressionPlan,
) -> Part:
    """A part with the weights of a model, over new rows standardised as those of the training were.

    ``values`` has a column per weight. Raises `BadParameters`.
    """
    try:
        numbers = np.array(
            [[e["weight"], e["mean"], e["scale"]] for e in model["weights"]], dtype=np.float64
        )
        weights, means, scales = numbers.reshape(-1, 3).T
        intercept = "intercept" in model
        if intercept:
            weights = np.append(weights, float(model["intercept"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadParameters(_BROKEN) from error
    if not np.isfinite(numbers).all() or not np.isfinite(weights).all() or not (scales > 0).all():
        raise BadParameters(_BROKEN)
    centred = np.where(np.isnan(values), 0.0, values - means)
    names = features_of(model)
    part = Part(
        party, Design(names, means, scales, _cells(centred, scales, intercept), intercept), plan
    )
    part.weights = weights
    return part


def initial_weights(
    party: str,
    design: Design,
    init: str,
) -> Floats:
    """Weights to begin with; the random ones are the same in every run. An intercept begins at zero."""
    size = design.cells.shape[1]
    draw = np.random.default_rng([SEED, *party.encode()])
    made: dict[str, Floats] = {
        "zeros": np.zeros(size),
        "ones": np.ones(size),
        "random_normal": 0.1 * draw.standard_normal(size=(size,)),
        "random_uniform": 0.2 * draw.random(size=(size,)) - 0.1,
    }
    weights = made[init]
    if design.intercept:
        weights[-1] = 0.0
    return weights


def batches(rows: int, size: int | None) -> list[Ints]:
    """The rows of every step of one pass, the same at all parties; a short rest joins the last batch."""
    order = np.arange(rows)
    if size is None or size >= rows:
        return [order]
    order = np.random.default_rng(SEED).permutation(rows)
    count = max(1, rows // size)
    return [
        np.sort(order[i * size : None if i == count - 1 else (i + 1) * size]) for i in range(count)
    ]


def quarter(scores: Floats) -> Ints:
    """``scores / 4`` in units of 2 ** -SCORE_BITS."""
    return np.rint(scores / 4 * 2.0**SCORE_BITS).astype(np.int64)


def own_residual(labels: Floats, scores: Floats) -> Ints:
    """The guest's share of the derivative: ``u / 4 - y / 2`` in units of 2 ** -SCORE_BITS."""
    return np.rint((scores / 4 - signs(labels) / 2) * 2.0**SCORE_BITS).astype(np.int64)


def loss_weights(labels: Floats, scores: Floats) -> Ints:
    """What a host's quarter score is multiplied by in the loss, in units of 2 ** -FEATURE_BITS."""
    return np.rint((scores - 2 * signs(labels)) * 2.0**FEATURE_BITS).astype(np.int64)


def host_loss(part: Part, scores: Floats) -> int:
    """What a host adds to the loss by itself, in units of 2 ** -36."""
    return round((float((scores**2).sum()) / 8 + len(scores) * part.penalty()) / GRADIENT_UNIT)


def guest_loss(
    part: Part,
    labels: Floats,
    scores: Floats,
) -> int:
    """What the guest adds to the loss by itself, in units of 2 ** -36."""
    own = float((math.log(2) - signs(labels) * scores / 2 + scores**2 / 8).sum())
    return round((own + len(scores) * part.penalty()) / GRADIENT_UNIT)


def signs(labels: Floats) -> Floats:
    """Return labels of 0 and 1 as -1 and 1."""
    result: Floats = 2 * labels - 1
    return result


@dataclass(frozen=True)
class Fitted:
    """How the training went, and each row's score."""

    losses: list[float]
    scores: Floats
    converged: bool


def converged(
    plan: RegressionPlan,
    losses: Sequence[float],
    moved: float,
) -> bool:
    """Whether the last iteration changed too little: the loss, or the weights (Euclidean norm)."""
    if plan.early_stop == "diff":
        return len(losses) > 1 and abs(losses[-2] - losses[-1]) < plan.tol
    return moved < plan.tol


def pooled(
    guest: Part,
    host: Part | None,
    labels: Floats,
    plan: RegressionPlan,
) -> Fitted:
    """Fit in the clear: the run that the federated one must equal; without a host, the guest alone."""
    parts = [guest] if host is None else [guest, host]
    losses: list[float] = []
    stop = False
    while not stop and len(losses) < plan.max_iter:
        total, before = 0, [part.weights for part in parts]
        for rows in batches(len(labels), plan.batch_size):
            y, own = labels[rows], guest.scores(rows)
            residual = own_residual(y, own)
            total += guest_loss(guest, y, own)
            if host is not None:
                other = host.scores(rows)
                residual = residual + quarter(other)
                pairs = zip(loss_weights(y, own).tolist(), quarter(other).tolist(), strict=True)
                total += host_loss(host, other) + sum(a * b for a, b in pairs)
            for part in parts:
                part.move((part.design.cells[rows].T @ residual).tolist(), len(rows), len(losses))
        losses.append(total * GRADIENT_UNIT / len(labels))
        steps = [((part.weights - old) ** 2).sum() for part, old in zip(parts, before, strict=True)]
        stop = converged(plan, losses, math.sqrt(sum(steps)))
    everyone = np.arange(len(labels))
    scores = sum((part.scores(everyone) for part in parts), start=np.zeros(len(labels)))
    return Fitted(
        losses=losses,
        scores=scores,
        converged=stop,
    )
