"""Shared by the predict stages. A training component predicts if the platform connects its input
``model``.

Nothing is trained then: every party reads its own part of the model and the rows, the hosts send
their parts of the scores to the guest, and the guest sends them nothing but its hello. Labels are
optional: they are used for metrics if the guest's table has them. The guest writes the outputs of a
training except ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.arrays import Bools, Floats
from refvendor.components.links import BadMessage, Message
from refvendor.components.tables import (
    column_of,
    parse_classes,
    parse_numbers,
    raise_problems,
    shape_problems,
    unique_ids,
)
from refvendor.components.training import (
    CommonParameters,
    compute_metrics,
    id_table,
    ks_report,
    reference_to,
    sigmoid,
)
from refvendor.contract import BadParameters, Io, Table, Task

OUTPUT = "train_data"
MODEL = "model"
LOSS = "train-loss"
AUC = "train-auc"
KS = "train-ks"


@dataclass(frozen=True)
class NewRows:
    """A party's part of the rows that need a score."""

    ids: list[str]
    values: Floats  # rows x features of the model, NaN for missing cells
    labels: list[str] | None  # cells as they came; None if the table has no such column

    @property
    def classes(self) -> Floats | None:
        """1.0 and 0.0 per row; None if labels are missing or are not of two classes."""
        if self.labels is None:
            return None
        return parse_classes(parse_numbers(self.labels))


def is_prediction(task: Task) -> bool:
    """True if this run scores rows with a model instead of training one."""
    return MODEL in task.inputs


def read_model(
    task: Task,
    io: Io,
    keys: Sequence[str],
) -> Mapping[str, Any]:
    """Read this party's part of the model.

    Raises `BadParameters` if it lacks one of the keys or belongs to another party or component.
    """
    model = io.read_json(MODEL)
    if not isinstance(model, Mapping):
        raise BadParameters("model: must be a JSON object")
    problems = [f"model: lacks {key}" for key in keys if key not in model]
    for key, expected in (("component", task.component), ("party", task.me)):
        if model.get(key) != expected:
            problems.append(f"model: is of {key} {model.get(key)!r}, this is {expected!r}")
    raise_problems(problems)
    return model


def read_new_rows(
    table: Table,
    common: CommonParameters,
    features: Sequence[str],
) -> NewRows:
    """Take ids, the model's features and, if there is such a column, the labels out of a table.

    Raises `BadParameters`, whose messages name columns and counts, never a value.
    """
    raise_problems(_header_problems(table, common, features) + shape_problems(table))
    ids = unique_ids(table, common.id_column)
    values = np.empty((len(ids), len(features)))
    problems = []
    for place, name in enumerate(features):
        column = parse_numbers(column_of(table, name))
        values[:, place] = column.numbers
        if column.invalid:
            problems.append(
                f"train_data: {column.invalid} cells of column {name!r} are not finite numbers"
            )
    raise_problems(problems)
    labels = None
    if common.label_column in table.header and common.label_column != common.id_column:
        labels = column_of(table, common.label_column)
    return NewRows(ids, values, labels)


def _header_problems(
    table: Table,
    common: CommonParameters,
    features: Sequence[str],
) -> list[str]:
    header = table.header
    problems = [
        f"train_data: has no column {name!r}, which the model needs"
        for name in features
        if name not in header
    ]
    if common.id_column not in header:
        problems.append(
            f"id: train_data has no column {common.id_column!r} among its {len(header)}"
        )
    for name in (common.id_column, *features):
        if header.count(name) > 1:
            problems.append(f"train_data: column name {name!r} occurs twice")
    return problems


def check_same_training(
    model: Mapping[str, Any],
    message: Message,
) -> None:
    """Check that a peer's part of the model comes from the same training. Raises `BadMessage`."""
    training = model.get("training")
    peer_training = message.fields.get("training")
    if peer_training != training:
        raise BadMessage(
            f"the parts of the model are of different trainings: {training!r}, {peer_training!r}"
        )


def threshold_of(
    task: Task,
    common: CommonParameters,
    model: Mapping[str, Any],
) -> float:
    """Return the job's threshold if it names one, else the threshold of the training."""
    is_in_job = task.parameters.get("predict_param") not in (None, "", {})
    stored = model.get("threshold")
    if is_in_job or not isinstance(stored, int | float):
        return common.threshold
    return float(stored)


def write_scores(
    task: Task,
    io: Io,
    common: CommonParameters,
    model: Mapping[str, Any],
    rows: NewRows,
    scores: Floats,
    reports: Sequence[str],
) -> None:
    """Write the guest's outputs: a score and a class per row, and metrics if there are labels.

    ``reports`` names the reports that the component has, out of `LOSS`, `AUC` and `KS`.
    """
    probabilities = sigmoid(scores)
    predicted = probabilities >= threshold_of(task, common, model)
    io.write_table(
        OUTPUT,
        _score_table(common, rows, probabilities, predicted),
    )
    contents = _report_contents(common, model, rows, probabilities)
    for name in reports:
        io.write_json(name, contents[name])


def _score_table(
    common: CommonParameters,
    rows: NewRows,
    probabilities: Floats,
    predicted: Bools,
) -> Table:
    """Return the table with the columns id, label (if there are labels), score and prediction."""
    header = [common.id_column]
    columns = [rows.ids]
    if rows.labels is not None:
        header.append(common.label_column)
        columns.append(rows.labels)
    header += ["score", "prediction"]
    columns.append([repr(float(probability)) for probability in probabilities])
    columns.append([str(int(is_positive)) for is_positive in predicted])
    return Table(
        header=header,
        rows=[list(cells) for cells in zip(*columns, strict=True)],
        id_column=common.id_column,
    )


def _report_contents(
    common: CommonParameters,
    model: Mapping[str, Any],
    rows: NewRows,
    probabilities: Floats,
) -> dict[str, Any]:
    """Return the content of every possible report by its name."""
    summary = {
        "rows": len(rows.ids),
        "predicted_with": model.get("training"),
    }
    classes = rows.classes
    if classes is None:
        reason = {"left_out": "the rows have no labels of two classes"}
        return {
            LOSS: summary | reason,
            AUC: summary | reason,
            KS: reason,
        }
    figures = summary | compute_metrics(classes, probabilities, common.metrics)
    return {
        LOSS: figures,
        AUC: figures,
        KS: ks_report(classes, probabilities, common.metrics),
    }


def write_without_scores(
    io: Io,
    common: CommonParameters,
    ids: Sequence[str],
    reports: Sequence[str],
) -> None:
    """Write the outputs of a party that gets no scores: its ids, and reports that refer to the
    guest.
    """
    io.write_table(OUTPUT, id_table(common.id_column, ids))
    for name in reports:
        io.write_json(name, reference_to("guest.0"))
