"""Logistic regression by gradient descent, computed in secret shares.

The algorithm is `LogisticRegression` of SecretFlow's package ``sf-sml``. Each party learns the
weights of its own columns; the guest also learns the intercept and the rows' probabilities. With a
model as an input, the component predicts and does not train.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from sml.linear_model.logistic import LogisticRegression

from sfvendor import container, engine

GUEST = 0  # rank of the party with the labels
HOST = 1
TRAINED = ("guest_weights", "host_weights", "intercept", "probabilities")
PREDICTED = ("probabilities",)

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Settings:
    """The parameters."""

    id_column: str
    label_column: str
    protocol: str
    epochs: int
    batch_size: int
    learning_rate: float
    c: float


@dataclass(frozen=True)
class Model:
    """A party's part of a model. Features are standardised by the means and deviations."""

    columns: list[str]
    means: list[float]
    deviations: list[float]
    weights: list[float]
    intercept: float | None = None  # the guest's


@dataclass(frozen=True)
class Rows:
    """A party's table."""

    ids: list[str]
    columns: list[str]
    features: np.ndarray
    labels: np.ndarray | None  # the guest's, if its table has the column


def run() -> None:
    """Train or predict over both parties' columns."""
    settings = read_settings()
    model = read_model()
    rows = read_rows(settings, model)
    if model is None:
        probabilities = train(settings, rows)
    else:
        probabilities = predict(settings, rows, model)
    write_predictions(settings, rows, probabilities)


def is_guest() -> bool:
    """Return whether this party has the labels."""
    return container.role().startswith("guest")


def read_settings() -> Settings:
    """Read the parameters. Raises `BadInput`."""
    return Settings(
        id_column=container.parameter("id", "id"),
        label_column=container.parameter("label", "y"),
        protocol=container.choice("mpc_protocol", list(engine.PROTOCOLS)),
        epochs=int(container.number("epochs", 5, 1)),
        batch_size=int(container.number("batch_size", 128, 1)),
        learning_rate=container.number("learning_rate", 0.1, 1e-6),
        c=container.number("c", 1.0, 1e-6),
    )


def read_model() -> Model | None:
    """Read the model, if the job has one. Raises `BadInput`."""
    value = container.read_json("model")
    if value is None:
        return None
    try:
        model = Model(**value)
        lengths = {len(model.means), len(model.deviations), len(model.weights)}
    except TypeError:
        raise container.BadInput("the input model is not a model of this component") from None
    is_complete = lengths == {len(model.columns)} and is_guest() == (model.intercept is not None)
    if not is_complete:
        raise container.BadInput("the input model is incomplete, or another party's")
    return model


def read_rows(
    settings: Settings,
    model: Model | None,
) -> Rows:
    """Read the table of this party; for a prediction, the columns of the model.

    Raises `BadInput`.
    """
    header, rows = container.read_table("train_data")
    required = [settings.id_column]
    if model is not None:
        required += model.columns
    elif is_guest():
        required.append(settings.label_column)
    missing = [name for name in required if name not in header]
    if missing:
        raise container.BadInput(f"the table has no column {', '.join(missing)}")
    values = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    ids = values.pop(settings.id_column)
    label_texts = values.pop(settings.label_column, None) if is_guest() else None
    columns = list(values) if model is None else model.columns
    return Rows(
        ids=ids,
        columns=columns,
        features=to_numbers([values[name] for name in columns]).T,
        labels=None if label_texts is None else read_labels(settings, label_texts),
    )


def to_numbers(texts: list[Any]) -> np.ndarray:
    """Return cells as numbers. Raises `BadInput`."""
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError as error:
        raise container.BadInput(f"the table has a cell that is not a number: {error}") from None


def read_labels(
    settings: Settings,
    texts: list[str],
) -> np.ndarray:
    """Return the labels. Raises `BadInput`."""
    labels = to_numbers(texts)
    if not set(labels) <= {0.0, 1.0}:
        raise container.BadInput(f"the labels in {settings.label_column} are not 0 and 1")
    return labels


# ------------------------------------------------------------ in secret shares


def train(
    settings: Settings,
    rows: Rows,
) -> np.ndarray | None:
    """Train, write the model and return the rows' probabilities, which the guest learns."""
    means = rows.features.mean(axis=0)
    deviations = rows.features.std(axis=0)
    deviations[deviations == 0] = 1.0
    features = (rows.features - means) / deviations
    context = engine.connect()
    shapes = compare_tables(context, rows)
    if rows.labels is None:
        own_inputs = {"host_features": features}
    else:
        own_inputs = {
            "guest_features": features,
            "labels": rows.labels.reshape(-1, 1),
        }
    shapes["labels"] = (len(rows.ids), 1)
    shares = share_inputs(context, settings, shapes, own_inputs)
    shares.run(training(settings, shapes), shapes, TRAINED)
    guest_weights = shares.reveal("guest_weights", GUEST)
    host_weights = shares.reveal("host_weights", HOST)
    intercept = shares.reveal("intercept", GUEST)
    probabilities = shares.reveal("probabilities", GUEST)
    context.stop_link()
    model = {
        "columns": rows.columns,
        "means": means.tolist(),
        "deviations": deviations.tolist(),
        "weights": np.ravel(guest_weights if is_guest() else host_weights).tolist(),
    }
    if intercept is not None:
        model["intercept"] = float(np.ravel(intercept)[0])
    container.write_json("model", model)
    return probabilities


def predict(
    settings: Settings,
    rows: Rows,
    model: Model,
) -> np.ndarray | None:
    """Return the rows' probabilities, which the guest learns. The weights stay secret."""
    features = (rows.features - np.array(model.means)) / np.array(model.deviations)
    weights = np.array(model.weights).reshape(-1, 1)
    context = engine.connect()
    shapes = compare_tables(context, rows)
    shapes["guest_weights"] = (shapes["guest_features"][1], 1)
    shapes["host_weights"] = (shapes["host_features"][1], 1)
    shapes["intercept"] = (1, 1)
    if model.intercept is None:
        own_inputs = {
            "host_features": features,
            "host_weights": weights,
        }
    else:
        intercept = np.array([[model.intercept]])
        own_inputs = {
            "guest_features": features,
            "guest_weights": weights,
            "intercept": intercept,
        }
    shares = share_inputs(context, settings, shapes, own_inputs)
    shares.run(prediction(), shapes, PREDICTED)
    probabilities = shares.reveal("probabilities", GUEST)
    context.stop_link()
    return probabilities


def compare_tables(
    context: Any,
    rows: Rows,
) -> Shapes:
    """Return the shapes of the features. Raises `BadInput` unless both tables have the same ids."""
    digest = hashlib.sha256("\n".join(rows.ids).encode()).hexdigest()
    guest, host = engine.gather(context, [digest, *rows.features.shape])
    if guest[:2] != host[:2]:
        raise container.BadInput("the tables have different ids: run PSI before this component")
    return {
        "guest_features": (guest[1], guest[2]),
        "host_features": (host[1], host[2]),
    }


def share_inputs(
    context: Any,
    settings: Settings,
    shapes: Shapes,
    own_inputs: Mapping[str, np.ndarray],
) -> engine.SecretShares:
    """Share all inputs of a function: ``own_inputs`` of this party, and the other's."""
    shares = engine.SecretShares(context, engine.PROTOCOLS[settings.protocol])
    for name in shapes:
        if name in own_inputs:
            shares.set_own(name, own_inputs[name])
        else:
            shares.set_peers(name)
    return shares


def training(
    settings: Settings,
    shapes: Shapes,
) -> Callable[..., Any]:
    """Return the function that trains."""
    guest_columns = shapes["guest_features"][1]

    def train(guest_features: Any, host_features: Any, labels: Any) -> Any:
        features = jnp.concatenate((guest_features, host_features), axis=1)
        model = LogisticRegression(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            C=settings.c,
        )
        model.fit(features, labels)
        weights = model.weights[0]
        return (
            weights[:guest_columns],
            weights[guest_columns:-1],
            weights[-1:],
            model.predict_proba(features),
        )

    return train


def prediction() -> Callable[..., Any]:
    """Return the function that predicts."""

    def predict(
        guest_features: Any,
        host_features: Any,
        guest_weights: Any,
        host_weights: Any,
        intercept: Any,
    ) -> Any:
        features = jnp.concatenate((guest_features, host_features), axis=1)
        model = LogisticRegression()
        model.weights = jnp.array([jnp.concatenate((guest_weights, host_weights, intercept))])
        return model.predict_proba(features)

    return predict


# ------------------------------------------------------------ outputs


def write_predictions(
    settings: Settings,
    rows: Rows,
    probabilities: np.ndarray | None,
) -> None:
    """Write the rows' probabilities and the report at the guest, the columns only at the host."""
    header = [settings.id_column, "probability"]
    report: dict[str, Any] = {"rows": len(rows.ids), "columns": len(rows.columns)}
    if probabilities is None:
        container.write_table("train_data", header[:1], [[value] for value in rows.ids], header[0])
        container.write_json("report", report)
        return
    scores = np.ravel(probabilities)
    container.write_table(
        "train_data",
        header,
        zip(rows.ids, scores.tolist(), strict=True),
        header[0],
    )
    if rows.labels is not None:
        report["auc"] = area_under_curve(scores, rows.labels)
        report["accuracy"] = float(((scores > 0.5) == (rows.labels == 1)).mean())
    container.write_json("report", report)
    print("info", report, flush=True)


def area_under_curve(
    scores: np.ndarray,
    labels: np.ndarray,
) -> float | None:
    """Return the share of pairs of rows whose scores are in the order of their labels."""
    positives = scores[labels == 1]
    negatives = scores[labels == 0]
    if not len(positives) or not len(negatives):
        return None
    differences = positives[:, None] - negatives[None, :]
    return float((differences > 0).mean() + (differences == 0).mean() / 2)
