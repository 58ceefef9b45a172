"""The arithmetic of logistic regression on Taylor's loss, for one party and for all parties pooled.

With labels y of -1 and 1 and u the sum of the parties' scores, the loss of a row is ``log 2 - y u /
2 + u**2 / 8`` and its derivative by u is ``u / 4 - y / 2`` (Hardy et al., arXiv:1711.10677, section
4). Features are standardised and rounded to 12 fraction bits once, for scores and gradients alike.
All sums over rows are sums of integers, so that an encrypted sum equals one in the clear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.arrays import Floats, Ints
from refvendor.components.training import Rows
from refvendor.contract import BadParameters, VendorError

# Fraction bits of features and of scores; a gradient is a product of both.
FEATURE_BITS = 12
SCORE_BITS = 24
GRADIENT_UNIT = 2.0 ** -(FEATURE_BITS + SCORE_BITS)
LARGEST_FEATURE = 8.0  # after standardising; larger ones are cut
LARGEST_SCORE = 1000.0
SMALLEST_SPREAD = 1e-12  # relative to the mean; a column with less counts as constant
SEED = 103  # of batches and of initial weights, which are the same in every run
INITS = ("zeros", "ones", "random_normal", "random_uniform")
BROKEN_MODEL = "model: is not what a training of this component writes"


class Diverged(VendorError):
    """The weights grow without bound."""


@dataclass(frozen=True)
class RegressionPlan:
    """How to fit."""

    max_iter: int = 30
    batch_size: int | None = None  # rows per step; None for all
    learning_rate: float = 0.15
    optimizer: str = "rmsprop"  # out of `OPTIMIZERS`
    penalty: str = "L2"  # or L1
    alpha: float = 0.01  # strength of the penalty
    init: str = "zeros"  # out of `INITS`
    fit_intercept: bool = True
    early_stop: str = "weight_diff"  # or diff, of losses
    tol: float = 1e-4  # a smaller difference ends the training


@dataclass(frozen=True)
class Design:
    """A party's features as the model sees them."""

    names: list[str]
    means: Floats
    scales: Floats
    # Rows x columns in units of 2 ** -FEATURE_BITS. The intercept, if there is one, is the last
    # column.
    cells: Ints
    intercept: bool


@dataclass(frozen=True)
class RegressionFit:
    """The course of a training, and the score of each row at its end."""

    losses: list[float]
    scores: Floats
    converged: bool


# ------------------------------------------------------------ optimizers


@dataclass
class OptimizerState:
    """What an optimizer remembers of earlier steps."""

    steps: int
    mean: Floats  # of gradients; Nesterov's method keeps its velocity here
    square: Floats  # of gradients


def _sgd(
    state: OptimizerState,
    gradient: Floats,
    rate: float,
) -> Floats:
    return rate * gradient


def _nesterov(
    state: OptimizerState,
    gradient: Floats,
    rate: float,
) -> Floats:
    previous = state.mean
    state.mean = 0.9 * previous - rate * gradient
    return 0.9 * previous - 1.9 * state.mean


def _adagrad(
    state: OptimizerState,
    gradient: Floats,
    rate: float,
) -> Floats:
    state.square = state.square + gradient**2
    step: Floats = rate * gradient / np.sqrt(state.square + 1e-8)
    return step


def _rmsprop(
    state: OptimizerState,
    gradient: Floats,
    rate: float,
) -> Floats:
    return rate * gradient / _root_mean_square(state, gradient, 0.99)


def _adam(
    state: OptimizerState,
    gradient: Floats,
    rate: float,
) -> Floats:
    spread = _root_mean_square(state, gradient, 0.999)
    state.mean = 0.9 * state.mean + 0.1 * gradient
    return rate * state.mean / (1 - 0.9**state.steps) / spread


def _root_mean_square(
    state: OptimizerState,
    gradient: Floats,
    decay: float,
) -> Floats:
    """Return the running root mean square of gradients, corrected for its start at zero."""
    state.square = decay * state.square + (1 - decay) * gradient**2
    spread: Floats = np.sqrt(state.square / (1 - decay**state.steps) + 1e-8)
    return spread


OPTIMIZERS: Mapping[str, Callable[[OptimizerState, Floats, float], Floats]] = {
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adam": _adam,
    "adagrad": _adagrad,
    "nesterov_momentum_sgd": _nesterov,
}


class Optimizer:
    """Turns gradients into steps. The rate falls with the square root of the iteration."""

    def __init__(
        self,
        name: str,
        rate: float,
        columns: int,
    ) -> None:
        self._method = OPTIMIZERS[name]
        self._rate = rate
        self._state = OptimizerState(
            0,
            np.zeros(columns),
            np.zeros(columns),
        )

    def step(self, gradient: Floats, iteration: int) -> Floats:
        """Return the step to subtract for one batch; ``iteration`` counts the passes over the rows
        from 0.
        """
        self._state.steps += 1
        rate = self._rate / math.sqrt(1 + iteration)
        return self._method(self._state, gradient, rate)


# ------------------------------------------------------------ one party


class PartialModel:
    """One party's weights, and how they move."""

    def __init__(
        self,
        party: str,
        design: Design,
        plan: RegressionPlan,
    ) -> None:
        self.design = design
        self.weights = initial_weights(party, design, plan.init)
        self._plan = plan
        self._optimizer = Optimizer(
            plan.optimizer,
            plan.learning_rate,
            len(self.weights),
        )
        # 1.0 for weights under the penalty; the intercept is not
        self._penalised = np.ones(len(self.weights))
        if design.intercept:
            self._penalised[-1] = 0.0

    def scores(self, rows: Ints) -> Floats:
        """Return this party's share of the rows' scores. Raises `Diverged`."""
        scores: Floats = self.design.cells[rows] @ self.weights * 2.0**-FEATURE_BITS
        if not np.all(np.abs(scores) <= LARGEST_SCORE):
            raise Diverged("the scores grow without bound: lower learning_rate or raise alpha")
        return scores

    def penalty(self) -> float:
        """Return the weights' contribution to the loss of every row."""
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
        """Take one step; ``sums`` holds the gradient of each weight, summed over the ``rows`` of a
        batch.
        """
        slope = np.sign(self.weights) if self._plan.penalty == "L1" else self.weights
        gradient = np.array([float(value) for value in sums]) * GRADIENT_UNIT / rows
        gradient = gradient + self._plan.alpha * slope * self._penalised
        self.weights = self.weights - self._optimizer.step(
            gradient,
            iteration,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the weights, with the numbers that standardise new rows."""
        design = self.design
        columns = zip(
            design.names,
            self.weights,
            design.means,
            design.scales,
            strict=False,
        )
        entries = [
            {
                "feature": name,
                "weight": float(weight),
                "mean": float(mean),
                "scale": float(scale),
            }
            for name, weight, mean, scale in columns
        ]
        model: dict[str, Any] = {
            "weights": entries,
            "largest_feature": LARGEST_FEATURE,
        }
        if design.intercept:
            model["intercept"] = float(self.weights[-1])
        return model


def initial_weights(
    party: str,
    design: Design,
    init: str,
) -> Floats:
    """Return the weights of the start; random ones are the same in every run. An intercept starts
    at zero.
    """
    columns = design.cells.shape[1]
    generator = np.random.default_rng([SEED, *party.encode()])
    # Always drawn in this order, whichever is used: models stay comparable over versions of this
    # image.
    normal = 0.1 * generator.standard_normal(size=(columns,))
    uniform = 0.2 * generator.random(size=(columns,)) - 0.1
    choices: dict[str, Floats] = {
        "zeros": np.zeros(columns),
        "ones": np.ones(columns),
        "random_normal": normal,
        "random_uniform": uniform,
    }
    weights = choices[init]
    if design.intercept:
        weights[-1] = 0.0
    return weights


def standardise(rows: Rows, intercept: bool) -> Design:
    """Centre and scale every column.

    A missing cell becomes the column's mean, a constant column zero.
    """
    is_present = ~np.isnan(rows.values)
    counts = np.maximum(
        is_present.sum(axis=0),
        1,
    )
    means = np.where(is_present, rows.values, 0.0).sum(axis=0) / counts
    centred = np.where(is_present, rows.values - means, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / counts)
    varies = spread > SMALLEST_SPREAD * np.maximum(1.0, np.abs(means))
    scales = np.where(varies, spread, 1.0)
    return Design(
        names=rows.names,
        means=means,
        scales=scales,
        cells=_fixed_point(centred, scales, intercept),
        intercept=intercept,
    )


def _fixed_point(
    centred: Floats,
    scales: Floats,
    intercept: bool,
) -> Ints:
    """Return features in units of 2 ** -FEATURE_BITS, with the intercept's column if there is
    one.
    """
    unit = 2.0**FEATURE_BITS
    limit = LARGEST_FEATURE * unit - 1
    cells: Ints = np.rint(np.clip(centred / scales * unit, -limit, limit)).astype(np.int64)
    if intercept:
        ones = np.full(
            len(centred),
            int(unit),
            dtype=np.int64,
        )
        cells = np.column_stack([cells, ones])
    return cells


# ------------------------------------------------------------ stored models


def model_features(model: Mapping[str, Any]) -> list[str]:
    """Return the columns that a party's part of a model needs, in the order of its weights.

    Raises `BadParameters` for anything but a model of this component.
    """
    try:
        names = [entry["feature"] for entry in model["weights"]]
    except (KeyError, TypeError) as error:
        raise BadParameters(BROKEN_MODEL) from error
    if not all(isinstance(name, str) for name in names):
        raise BadParameters(BROKEN_MODEL)
    return names


def load_model(
    party: str,
    model: Mapping[str, Any],
    values: Floats,
    plan: RegressionPlan,
) -> PartialModel:
    """Return a stored model over new rows, which are standardised with the means and scales of the
    training.

    ``values`` has a column per weight. Raises `BadParameters` for anything but a model of this
    component.
    """
    weights, means, scales = _read_weights(model)
    intercept = "intercept" in model
    centred = np.where(
        np.isnan(values),
        0.0,
        values - means,
    )
    cells = _fixed_point(centred, scales, intercept)
    design = Design(
        model_features(model),
        means,
        scales,
        cells,
        intercept,
    )
    part = PartialModel(party, design, plan)
    part.weights = weights
    return part


def _read_weights(model: Mapping[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Return weights (an intercept last), means and scales. Raises `BadParameters`."""
    try:
        entries = [[entry["weight"], entry["mean"], entry["scale"]] for entry in model["weights"]]
        numbers = np.array(entries, dtype=np.float64).reshape(-1, 3)
        weights, means, scales = numbers.T
        if "intercept" in model:
            weights = np.append(weights, float(model["intercept"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadParameters(BROKEN_MODEL) from error
    are_finite = np.isfinite(numbers).all() and np.isfinite(weights).all()
    if not are_finite or not (scales > 0).all():
        raise BadParameters(BROKEN_MODEL)
    return weights, means, scales


# ------------------------------------------------------------ steps and losses


def split_batches(
    rows: int,
    size: int | None,
) -> list[Ints]:
    """Return the rows of every step of one pass, the same at all parties; a short rest joins the
    last batch.
    """
    if size is None or size >= rows:
        return [np.arange(rows)]
    order = np.random.default_rng(SEED).permutation(rows)
    count = max(1, rows // size)
    bounds = [number * size for number in range(1, count)]
    return [np.sort(batch) for batch in np.split(order, bounds)]


def quarter_scores(scores: Floats) -> Ints:
    """Return a host's share of the derivative: ``u / 4`` in units of 2 ** -SCORE_BITS."""
    return np.rint(scores / 4 * 2.0**SCORE_BITS).astype(np.int64)


def guest_residual(labels: Floats, scores: Floats) -> Ints:
    """Return the guest's share of the derivative: ``u / 4 - y / 2`` in units of 2 **
    -SCORE_BITS.
    """
    return np.rint((scores / 4 - signs(labels) / 2) * 2.0**SCORE_BITS).astype(np.int64)


def loss_weights(labels: Floats, scores: Floats) -> Ints:
    """Return the factors of a host's quarter scores in the loss, in units of 2 ** -FEATURE_BITS.

    With the guest's score a and the host's b, the loss has the mixed terms ``a b / 4 - y b / 2 = (a
    - 2 y) b / 4``.
    """
    return np.rint((scores - 2 * signs(labels)) * 2.0**FEATURE_BITS).astype(np.int64)


def host_loss(part: PartialModel, scores: Floats) -> int:
    """Return the terms of the loss that depend on the host only, in units of GRADIENT_UNIT."""
    return round((float((scores**2).sum()) / 8 + len(scores) * part.penalty()) / GRADIENT_UNIT)


def guest_loss(
    part: PartialModel,
    labels: Floats,
    scores: Floats,
) -> int:
    """Return the terms of the loss that depend on the guest only, in units of GRADIENT_UNIT."""
    loss = float((math.log(2) - signs(labels) * scores / 2 + scores**2 / 8).sum())
    return round((loss + len(scores) * part.penalty()) / GRADIENT_UNIT)


def signs(labels: Floats) -> Floats:
    """Return labels of 0 and 1 as -1 and 1."""
    result: Floats = 2 * labels - 1
    return result


def has_converged(
    plan: RegressionPlan,
    losses: Sequence[float],
    moved: float,
) -> bool:
    """True if the last iteration changed the loss or the weights by less than ``plan.tol``.

    ``moved`` is the Euclidean norm of the iteration's step.
    """
    if plan.early_stop == "diff":
        return len(losses) > 1 and abs(losses[-2] - losses[-1]) < plan.tol
    return moved < plan.tol


# ------------------------------------------------------------ all parties in the clear


def fit_pooled(
    guest: PartialModel,
    host: PartialModel | None,
    labels: Floats,
    plan: RegressionPlan,
) -> RegressionFit:
    """Fit in the clear.

    The federated training must give the same result; without a host, the guest fits alone.
    """
    parts = [guest] if host is None else [guest, host]
    batches = split_batches(len(labels), plan.batch_size)
    losses: list[float] = []
    converged = False
    while not converged and len(losses) < plan.max_iter:
        previous = [part.weights for part in parts]
        loss = 0
        for rows in batches:
            loss += _step_pooled(
                guest,
                host,
                labels[rows],
                rows,
                len(losses),
            )
        losses.append(loss * GRADIENT_UNIT / len(labels))
        converged = has_converged(plan, losses, _distance(parts, previous))
    everyone = np.arange(len(labels))
    scores = np.zeros(len(labels))
    for part in parts:
        scores = scores + part.scores(everyone)
    return RegressionFit(
        losses=losses,
        scores=scores,
        converged=converged,
    )


def _step_pooled(
    guest: PartialModel,
    host: PartialModel | None,
    labels: Floats,
    rows: Ints,
    iteration: int,
) -> int:
    """Move all parties by one batch and return its loss before the step, in units of
    GRADIENT_UNIT.
    """
    scores = guest.scores(rows)
    residual = guest_residual(labels, scores)
    loss = guest_loss(guest, labels, scores)
    if host is not None:
        host_scores = host.scores(rows)
        quarters = quarter_scores(host_scores)
        residual = residual + quarters
        loss += host_loss(host, host_scores)
        factors = loss_weights(labels, scores)
        # Python's integers, as the products may exceed 64 bits
        loss += sum(a * b for a, b in zip(factors.tolist(), quarters.tolist(), strict=True))
    for part in (guest, host):
        if part is not None:
            sums = part.design.cells[rows].T @ residual
            part.move(
                sums.tolist(),
                len(rows),
                iteration,
            )
    return loss


def _distance(
    parts: Sequence[PartialModel],
    previous: Sequence[Floats],
) -> float:
    """Return the Euclidean norm of the step from the previous weights of all parties."""
    squares = [
        ((part.weights - weights) ** 2).sum() for part, weights in zip(parts, previous, strict=True)
    ]
    return math.sqrt(sum(squares))
