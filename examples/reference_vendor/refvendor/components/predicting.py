"""What the predict stages share. A training component predicts when the platform binds its input ``model``.

Nothing is trained then: every party reads its own part of the model and the rows, the hosts tell the guest what
it needs for the scores, and the guest tells them nothing but its hello. Labels are used where the guest's table
has them, and not needed. The guest's outputs are those of a training without ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.components.links import BadMessage, Message
from refvendor.components.training import (
    LABELS,
    Common,
    Floats,
    held_by,
    numbers_of,
    only_ids,
    quality,
    sigmoid,
)
from refvendor.contract import BadParameters, Io, Table, Task
from refvendor.metrics import ks_curve

INPUT, OUTPUT, MODEL = "train_data", "train_data", "model"
LOSS, AUC, KS = "train-loss", "train-auc", "train-ks"


@dataclass(frozen=True)
class NewRows:
    """A party's part of the rows to score; ``values`` has a column per feature asked for, NaN where missing."""

    ids: list[str]
    values: Floats
    labels: list[str] | None
    """the label cells as they came; None where the table has no such column"""

    @property
    def classes(self) -> Floats | None:
        """1.0 and 0.0 per row; None where labels are missing, or are not of two classes."""
        if self.labels is None:
            return None
        numbers, bad = numbers_of(self.labels)
        if bad or np.isnan(numbers).any() or set(numbers.tolist()) not in LABELS:
            return None
        result: Floats = (numbers > 0).astype(np.float64)
        return result


def predicts(task: Task) -> bool:
    """Whether this run scores rows with a model instead of training one."""
    return MODEL in task.inputs


def read_model(
    task: Task,
    io: Io,
    keys: Sequence[str],
) -> Mapping[str, Any]:
    """Read this party's part of the model. Raises `BadParameters` for another party's, or another kind."""
    value = io.read_json(MODEL)
    if not isinstance(value, Mapping):
        raise BadParameters("model: must be a JSON object")
    problems = [f"model: lacks {key}" for key in keys if key not in value]
    for key, mine in (("component", task.component), ("party", task.me)):
        if value.get(key) != mine:
            problems.append(f"model: is of {key} {value.get(key)!r}, this is {mine!r}")
    if problems:
        raise BadParameters("; ".join(problems))
    return value


def read_new_rows(
    table: Table,
    common: Common,
    features: Sequence[str],
) -> NewRows:
    """Take ids, the model's features and the labels, if there are any, out of a table.

    Raises `BadParameters`. Messages name columns and counts, never a value.
    """
    header = table.header
    wanted = [common.id, *features]
    problems = [
        f"train_data: has no column {name!r}, which the model needs"
        for name in features
        if name not in header
    ]
    if common.id not in header:
        problems.append(f"id: train_data has no column {common.id!r} among its {len(header)}")
    problems += [
        f"train_data: column name {n!r} occurs twice" for n in wanted if header.count(n) > 1
    ]
    if not table.rows:
        problems.append("train_data: has no rows")
    if uneven := sum(len(row) != len(header) for row in table.rows):
        problems.append(f"train_data: {uneven} rows do not have {len(header)} cells")
    if problems:
        raise BadParameters("; ".join(problems))
    ids = [row[header.index(common.id)] for row in table.rows]
    if len(set(ids)) != len(ids):
        raise BadParameters(
            f"id: {len(ids) - len(set(ids))} rows repeat another row's id in {common.id!r}"
        )
    values = np.empty((len(ids), len(features)))
    for column, name in enumerate(features):
        place = header.index(name)
        values[:, column], bad = numbers_of([row[place] for row in table.rows])
        if bad:
            problems.append(f"train_data: {bad} cells of column {name!r} are not finite numbers")
    if problems:
        raise BadParameters("; ".join(problems))
    has_labels = common.label in header and common.label != common.id
    labels = [row[header.index(common.label)] for row in table.rows] if has_labels else None
    return NewRows(ids, values, labels)


def same_training(model: Mapping[str, Any], message: Message) -> None:
    """Check that a peer predicts with the part that was trained together with this one. Raises `BadMessage`."""
    theirs = message.fields.get("training")
    if theirs != model.get("training"):
        raise BadMessage(
            f"the parts of the model are of different trainings: {model.get('training')!r}, {theirs!r}"
        )


def threshold_of(
    task: Task,
    common: Common,
    model: Mapping[str, Any],
) -> float:
    """The job's threshold where it names one, else the one of the training."""
    if task.parameters.get("predict_param") not in (None, "", {}):
        return common.threshold
    stored = model.get("threshold")
    return float(stored) if isinstance(stored, int | float) else common.threshold


def write_scores(
    task: Task,
    io: Io,
    common: Common,
    model: Mapping[str, Any],
    rows: NewRows,
    scores: Floats,
    reports: Sequence[str],
) -> None:
    """Write the guest's outputs: a score and a class per row, and the measures if there are labels."""
    probabilities = sigmoid(scores)
    chosen = probabilities >= threshold_of(task, common, model)
    header = [
        common.id,
        *([common.label] if rows.labels is not None else []),
        "score",
        "prediction",
    ]
    labels = [[cell] for cell in rows.labels] if rows.labels is not None else [[] for _ in rows.ids]
    cells = [
        [i, *label, repr(float(p)), str(int(c))]
        for i, label, p, c in zip(rows.ids, labels, probabilities, chosen, strict=True)
    ]
    io.write_table(OUTPUT, Table(header=header, rows=cells))
    known = rows.classes
    measured: dict[str, Any] = {"left_out": "the rows have no labels of two classes"}
    curve: Any = measured
    if known is not None:
        measured = quality(known, probabilities, common.metrics)
        curve = (
            ks_curve(known, probabilities) if "ks" in common.metrics else {"left_out": "metrics"}
        )
    about = {"rows": len(rows.ids), "predicted_with": model.get("training")}
    for name, value in ((LOSS, {**about, **measured}), (AUC, {**about, **measured}), (KS, curve)):
        if name in reports:
            io.write_json(name, value)


def write_rest(
    io: Io,
    common: Common,
    ids: Sequence[str],
    reports: Sequence[str],
) -> None:
    """Write the outputs of a party that gets no scores."""
    io.write_table(OUTPUT, only_ids(common.id, ids))
    for name in reports:
        io.write_json(name, held_by("guest.0"))
