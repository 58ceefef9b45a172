"""Logistic regression by gradient descent, computed in secret shares.

The algorithm is `LogisticRegression` of SecretFlow's package ``sf-sml``. Each party learns the
weights of its own columns; the guest also learns the intercept and the rows' probabilities.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from sml.linear_model.logistic import LogisticRegression

from sfvendor import container, engine

GUEST = 0  # rank of the party with the labels
HOST = 1
OUTPUTS = ("guest_weights", "host_weights", "intercept", "probabilities")


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
class Rows:
    """A party's table: its features standardised, each by its mean and deviation."""

    ids: list[str]
    columns: list[str]
    features: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    labels: np.ndarray | None  # the guest's


def run() -> None:
    """Train over both parties' columns, and write the model, the predictions and the report."""
    settings = read_settings()
    is_guest = container.role().startswith("guest")
    rows = read_rows(settings, with_labels=is_guest)
    context = engine.connect()
    shapes = compare_tables(context, rows)
    shares = engine.SecretShares(context, engine.PROTOCOLS[settings.protocol])
    share_inputs(shares, rows)
    shares.run(training(settings, shapes), shapes, OUTPUTS)
    guest_weights = shares.reveal("guest_weights", GUEST)
    host_weights = shares.reveal("host_weights", HOST)
    intercept = shares.reveal("intercept", GUEST)
    probabilities = shares.reveal("probabilities", GUEST)
    context.stop_link()

    weights = guest_weights if is_guest else host_weights
    model = {
        "columns": rows.columns,
        "means": rows.means.tolist(),
        "deviations": rows.deviations.tolist(),
        "weights": np.ravel(weights).tolist(),
    }
    if intercept is not None:
        model["intercept"] = float(np.ravel(intercept)[0])
    container.write_json("model", model)
    write_predictions(settings, rows, probabilities)


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


def read_rows(
    settings: Settings,
    with_labels: bool,
) -> Rows:
    """Read the table of this party. Raises `BadInput`."""
    header, rows = container.read_table("train_data")
    required = {settings.id_column}
    if with_labels:
        required.add(settings.label_column)
    missing = sorted(required - set(header))
    if missing:
        raise container.BadInput(f"the table has no column {', '.join(missing)}")
    columns = [name for name in header if name not in required]
    values = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    try:
        features = np.array([values[name] for name in columns], dtype=np.float64).T
        labels = None
        if with_labels:
            labels = np.array(values[settings.label_column], dtype=np.float64)
    except ValueError as error:
        raise container.BadInput(f"the table has a cell that is not a number: {error}") from None
    if labels is not None and not set(labels) <= {0.0, 1.0}:
        raise container.BadInput(f"the labels in {settings.label_column} are not 0 and 1")
    means = features.mean(axis=0)
    deviations = features.std(axis=0)
    deviations[deviations == 0] = 1.0
    return Rows(
        ids=values[settings.id_column],
        columns=columns,
        features=(features - means) / deviations,
        means=means,
        deviations=deviations,
        labels=labels,
    )


def compare_tables(
    context: Any,
    rows: Rows,
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs. Raises `BadInput` unless both tables have the same ids."""
    digest = hashlib.sha256("\n".join(rows.ids).encode()).hexdigest()
    guest, host = engine.gather(context, [digest, *rows.features.shape])
    if guest[:2] != host[:2]:
        raise container.BadInput("the tables have different ids: run PSI before this component")
    return {
        "guest_features": (guest[1], guest[2]),
        "host_features": (host[1], host[2]),
        "labels": (guest[1], 1),
    }


def share_inputs(
    shares: engine.SecretShares,
    rows: Rows,
) -> None:
    """Share the features of both parties, and the guest's labels."""
    if rows.labels is not None:
        shares.set_own("guest_features", rows.features)
        shares.set_own("labels", rows.labels.reshape(-1, 1))
        shares.set_peers("host_features")
    else:
        shares.set_peers("guest_features")
        shares.set_peers("labels")
        shares.set_own("host_features", rows.features)


def training(
    settings: Settings,
    shapes: dict[str, tuple[int, ...]],
) -> Any:
    """Return the function that is computed in secret shares."""
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


def write_predictions(
    settings: Settings,
    rows: Rows,
    probabilities: np.ndarray | None,
) -> None:
    """Write the rows' probabilities and the report at the guest, the columns only at the host."""
    header = [settings.id_column, "probability"]
    report: dict[str, Any] = {"rows": len(rows.ids), "columns": len(rows.columns)}
    if probabilities is None or rows.labels is None:
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
    report["auc"] = area_under_curve(scores, rows.labels)
    report["accuracy"] = float(((scores > 0.5) == (rows.labels == 1)).mean())
    container.write_json("report", report)
    print(f"info auc {report['auc']:.4f}, accuracy {report['accuracy']:.4f}", flush=True)


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
