"""Shared by the training components: their rows, their common parameters and the form of their
reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.arrays import Floats
from refvendor.components.parameters import Reader
from refvendor.components.tables import (
    column_of,
    parse_classes,
    parse_numbers,
    raise_problems,
    shape_problems,
    unique_ids,
)
from refvendor.contract import BadParameters, Io, Log, StorageFailed, Table
from refvendor.crypto.paillier import LARGEST_KEY, SMALLEST_KEY
from refvendor.metrics import auc, ks, ks_curve

METRICS = {"auc": auc, "ks": ks}
# Columns, in lower case, that other components of a platform add and that are no features.
NO_FEATURES = {"sid", "extend_sid"}
SECONDS_BETWEEN_LOSS_REPORTS = 1.0


@dataclass(frozen=True)
class CommonParameters:
    """Parameters that both training components read in the same way."""

    id_column: str
    label_column: str
    key_length: int  # bits of the Paillier key
    threshold: float  # lowest score of the positive class
    metrics: tuple[str, ...]  # names out of `METRICS`
    local_baseline: bool  # whether to report a model of the guest's features alone


@dataclass(frozen=True)
class Rows:
    """A party's part of the training set."""

    ids: list[str]
    names: list[str]  # of the features
    values: Floats  # rows x features, NaN for missing cells
    labels: Floats | None  # 1.0 for the positive class, else 0.0; None at a party without labels

    @property
    def label_values(self) -> Floats:
        """The labels of a party that has them. Raises `ValueError` at any other."""
        if self.labels is None:
            raise ValueError("this party has no labels")
        return self.labels


def read_common(reader: Reader) -> CommonParameters:
    """Read the shared parameters; problems are recorded in the reader."""
    encryption = reader.nested(
        "encrypt_param",
        shorthand="method",
    )
    encryption.choice("method", "Paillier", ("Paillier",))
    key_length = encryption.integer("key_length", 2048, SMALLEST_KEY, LARGEST_KEY)
    if key_length % 2:
        encryption.refuse("key_length", "must be even")
    _refuse_cross_validation(reader)
    return CommonParameters(
        id_column=reader.text("id", "id"),
        label_column=reader.text("label", "y"),
        key_length=key_length,
        threshold=reader.nested("predict_param").number("threshold", 0.5, 0.0, 1.0),
        metrics=reader.words(
            "metrics",
            tuple(METRICS),
            tuple(METRICS),
        ),
        local_baseline=reader.flag("report_local_baseline", False),
    )


def _refuse_cross_validation(reader: Reader) -> None:
    """Refuse cross-validation, but accept its details as long as it is off."""
    validation = reader.nested("cv_param")
    if validation.flag("need_cv", False):
        validation.refuse("need_cv", "must be false: this component does no cross-validation")
    for name in ("n_splits", "shuffle", "random_seed"):
        validation.raw(name)


def read_rows(
    table: Table,
    common: CommonParameters,
    with_labels: bool,
    log: Log,
) -> Rows:
    """Take ids, numeric features and, with ``with_labels``, labels out of a table.

    A column without a single number is left out with a warning; one with some invalid cells is
    refused. Raises `BadParameters`, whose messages name columns and counts, never a value.
    """
    raise_problems(_header_problems(table, common, with_labels, log) + shape_problems(table))
    ids = unique_ids(table, common.id_column)
    labels = None
    if with_labels:
        labels = _read_labels(
            column_of(table, common.label_column),
            common.label_column,
        )
    features = _read_features(
        table,
        (common.id_column, common.label_column),
        log,
    )
    values = np.empty((len(ids), 0))
    if features:
        values = np.column_stack(list(features.values()))
    return Rows(ids, list(features), values, labels)


def _header_problems(
    table: Table,
    common: CommonParameters,
    with_labels: bool,
    log: Log,
) -> list[str]:
    """Return the problems with the columns' names; the names themselves go to this party's log
    only.
    """
    header = table.header
    problems = []
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        problems.append(f"train_data: column names occur twice: {', '.join(repeated)}")
    required = {"id": common.id_column}
    if with_labels:
        required["label"] = common.label_column
    for parameter, name in required.items():
        if name not in header:
            problems.append(_missing_column(parameter, name, table))
            log("info", "columns of train_data", columns=header)
    if with_labels and common.id_column == common.label_column:
        problems.append(f"label: names the same column as id, {common.id_column!r}")
    return problems


def _missing_column(
    parameter: str,
    name: str,
    table: Table,
) -> str:
    """Return the problem of a column that a parameter names and the table does not have.

    A table of ids alone is probably the output of an Intersection with its default parameters.
    """
    if len(table.header) == 1:
        return (
            f"{parameter}: the table has no column {name!r}, only {table.header[0]}. "
            "Did Intersection write ids alone (only_output_key: true)?"
        )
    return f"{parameter}: train_data has no column {name!r} among its {len(table.header)}"


def _read_labels(
    cells: Sequence[str],
    name: str,
) -> Floats:
    column = parse_numbers(cells)
    labels = parse_classes(column)
    if labels is None:
        finite = column.numbers[np.isfinite(column.numbers)]
        raise BadParameters(
            f"label: column {name!r} must hold two classes, 0 and 1 or -1 and 1, in every row; "
            f"{column.invalid + column.missing} cells are no numbers, "
            f"{len(set(finite.tolist()))} different numbers"
        )
    return labels


def _read_features(
    table: Table,
    no_features: Sequence[str],
    log: Log,
) -> dict[str, Floats]:
    """Return the numeric columns by name, in the order of the table. Raises `BadParameters`."""
    features: dict[str, Floats] = {}
    problems = []
    for name in table.header:
        if name in no_features or name.lower() in NO_FEATURES:
            continue
        column = parse_numbers(column_of(table, name))
        has_numbers = column.missing < len(column.numbers)
        if not column.invalid:
            features[name] = column.numbers
        elif has_numbers:
            problems.append(
                f"train_data: {column.invalid} cells of column {name!r} are not finite numbers"
            )
        else:
            log("warning", "column without numbers left out", column=name)
    raise_problems(problems)
    return features


def sigmoid(scores: Floats) -> Floats:
    """Return the probabilities of scores: ``1 / (1 + exp(-score))``, without overflow at either
    end.
    """
    small = np.exp(-np.abs(scores))
    probabilities: Floats = np.where(scores >= 0, 1.0, small) / (1.0 + small)
    return probabilities


def prediction_table(
    rows: Rows,
    common: CommonParameters,
    probabilities: Floats,
) -> Table:
    """Return the guest's output: id, label, score in [0, 1] and the class at the threshold."""
    classes = probabilities >= common.threshold
    columns = zip(
        rows.ids,
        rows.label_values,
        probabilities,
        classes,
        strict=True,
    )
    cells = [
        [
            row_id,
            str(int(label)),
            repr(float(probability)),
            str(int(predicted)),
        ]
        for row_id, label, probability, predicted in columns
    ]
    header = [common.id_column, common.label_column, "score", "prediction"]
    return Table(
        header=header,
        rows=cells,
        id_column=common.id_column,
    )


def id_table(
    column: str,
    ids: Sequence[str],
) -> Table:
    """Return the output of a party that gets no scores: its ids."""
    return Table(
        header=[column],
        rows=[[value] for value in ids],
        id_column=column,
    )


def reference_to(*parties: str) -> dict[str, Any]:
    """Return the report of a party that does not have the figures: who has them."""
    return {"held_by": list(parties)}


def loss_entries(
    losses: Sequence[float],
    step: str,
) -> list[dict[str, float]]:
    """Return losses as a report holds them; ``step`` names the count: ``{"tree": 1, "loss":
    0.5}``.
    """
    return [{step: number, "loss": loss} for number, loss in enumerate(losses, start=1)]


class LossReport:
    """The report of the losses during training, written at most once per
    `SECONDS_BETWEEN_LOSS_REPORTS`.

    A storage that fails costs a warning only: the complete report is written at the end of the
    training.
    """

    def __init__(
        self,
        io: Io,
        report: str,
        step: str,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._io = io
        self._report = report
        self._step = step
        self._log = log
        self._clock = clock
        self._losses: list[float] = []
        self._next_write = 0.0

    def add(self, loss: float) -> None:
        """Add the loss of the next step."""
        self._losses.append(loss)
        if self._clock() < self._next_write:
            return
        try:
            self._io.write_json(
                self._report,
                {"loss": loss_entries(self._losses, self._step)},
            )
        except StorageFailed as error:
            self._log(
                "warning",
                "losses not written yet",
                cause=str(error),
            )
        self._next_write = self._clock() + SECONDS_BETWEEN_LOSS_REPORTS


def compute_metrics(
    labels: Floats,
    probabilities: Floats,
    names: Sequence[str],
) -> dict[str, float]:
    """Return the metrics of these names, out of `METRICS`."""
    return {name: float(METRICS[name](labels, probabilities)) for name in names}


def ks_report(
    labels: Floats,
    probabilities: Floats,
    metrics: Sequence[str],
) -> Any:
    """Return the KS curve; a note that it was left out if the job does not want the metric."""
    if "ks" not in metrics:
        return {"left_out": "metrics"}
    return ks_curve(labels, probabilities)
