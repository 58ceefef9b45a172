"""What the training components share: their rows, their common parameters and the form of their reports."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refvendor.components.parameters import Reader
from refvendor.contract import BadParameters, Io, Log, StorageFailed, Table
from refvendor.crypto.paillier import LARGEST_KEY, SMALLEST_KEY
from refvendor.metrics import auc, ks

Floats = npt.NDArray[np.float64]
METRICS = ("auc", "ks")
MISSING = {"", "na", "nan", "null", "none"}
NO_FEATURES = {"sid", "extend_sid"}
LABELS = ({0.0, 1.0}, {-1.0, 1.0})


@dataclass(frozen=True)
class Common:
    """Parameters that both training components read the same way."""

    id: str
    label: str
    key_length: int
    threshold: float
    metrics: tuple[str, ...]
    local_baseline: bool


@dataclass(frozen=True)
class Rows:
    """A party's part of the training set; ``values`` holds NaN where a cell is missing."""

    ids: list[str]
    names: list[str]
    values: Floats
    labels: Floats | None
    """1.0 for the positive class, 0.0 for the other; None at a party without labels"""

    @property
    def label_values(self) -> Floats:
        """The labels of a party that has them."""
        if self.labels is None:
            raise ValueError("this party has no labels")
        return self.labels


def read_common(reader: Reader) -> Common:
    """Read the shared parameters, noting in the reader what cannot work."""
    encryption = reader.part("encrypt_param", word="method")
    encryption.choice("method", "Paillier", ("Paillier",), {})
    key_length = encryption.integer("key_length", 2048, SMALLEST_KEY, LARGEST_KEY)
    if key_length % 2:
        encryption.refuse("key_length", "must be even")
    validation = reader.part("cv_param")
    if validation.flag("need_cv", False):
        validation.refuse("need_cv", "must be false: this component does no cross-validation")
    for name in ("n_splits", "shuffle", "random_seed"):
        validation.raw(name)
    return Common(
        id=reader.text("id", "id"),
        label=reader.text("label", "y"),
        key_length=key_length,
        threshold=reader.part("predict_param").number("threshold", 0.5, 0.0, 1.0),
        metrics=reader.words("metrics", METRICS, METRICS),
        local_baseline=reader.flag("report_local_baseline", False),
    )


def read_rows(
    table: Table,
    common: Common,
    with_labels: bool,
    log: Log,
) -> Rows:
    """Take ids, numeric features and, at the guest, labels out of a table. Raises `BadParameters`.

    A column without a single number is left out with a warning, one with some is refused. Messages name
    columns and counts, never a value.
    """
    header, problems = table.header, []
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        problems.append(f"train_data: column names occur twice: {', '.join(repeated)}")
    for what, name in (("id", common.id), *([("label", common.label)] if with_labels else [])):
        if name not in header:
            problems.append(f"{what}: train_data has no column {name!r} among its {len(header)}")
            log("info", "columns of train_data", columns=header)
    if with_labels and common.id == common.label:
        problems.append(f"label: names the same column as id, {common.id!r}")
    if not table.rows:
        problems.append("train_data: has no rows")
    if uneven := sum(len(row) != len(header) for row in table.rows):
        problems.append(f"train_data: {uneven} rows do not have {len(header)} cells")
    if problems:
        raise BadParameters("; ".join(problems))
    columns = dict(zip(header, zip(*table.rows, strict=True), strict=True))
    ids = list(columns[common.id])
    if len(set(ids)) != len(ids):
        raise BadParameters(
            f"id: {len(ids) - len(set(ids))} rows repeat another row's id in {common.id!r}"
        )
    labels = _labels(columns[common.label], common.label) if with_labels else None
    names, values = [], []
    for name, cells in columns.items():
        if name in (common.id, common.label) or name.lower() in NO_FEATURES:
            continue
        numbers, bad = numbers_of(cells)
        if bad and not np.isfinite(numbers).any():
            log("warning", "column without numbers left out", column=name)
        elif bad:
            problems.append(f"train_data: {bad} cells of column {name!r} are not finite numbers")
        else:
            names.append(name)
            values.append(numbers)
    if problems:
        raise BadParameters("; ".join(problems))
    matrix = np.column_stack(values) if values else np.empty((len(ids), 0))
    return Rows(
        ids=ids,
        names=names,
        values=matrix,
        labels=labels,
    )


def sigmoid(scores: Floats) -> Floats:
    """Probabilities of scores, without overflow at either end."""
    small = np.exp(-np.abs(scores))
    result: Floats = np.where(scores >= 0, 1.0, small) / (1.0 + small)
    return result


def predictions(
    rows: Rows,
    common: Common,
    probabilities: Floats,
) -> Table:
    """The guest's output table: id, label, score in [0, 1] and the class at the threshold."""
    classes = probabilities >= common.threshold
    cells = [
        [i, str(int(y)), repr(float(p)), str(int(c))]
        for i, y, p, c in zip(rows.ids, rows.label_values, probabilities, classes, strict=True)
    ]
    return Table(header=[common.id, common.label, "score", "prediction"], rows=cells)


def only_ids(name: str, ids: Sequence[str]) -> Table:
    """The output table of a party that gets no scores."""
    return Table(header=[name], rows=[[value] for value in ids])


def held_by(*parties: str) -> dict[str, Any]:
    """A report that says where the real one is."""
    return {"held_by": list(parties)}


def numbered(losses: Sequence[float], step: str) -> list[dict[str, float]]:
    """The losses as a report has them: each with the number of its ``step``."""
    return [{step: i + 1, "loss": loss} for i, loss in enumerate(losses)]


class LossSoFar:
    """The report of the losses while training runs, written again at most once a second.

    A storage that refuses it fails nothing: the whole report is written at the end.
    """

    def __init__(
        self,
        io: Io,
        report: str,
        step: str,
        log: Log,
    ) -> None:
        self._io = io
        self._report = report
        self._step = step
        self._log = log
        self._losses: list[float] = []
        self._next = 0.0

    def add(self, loss: float) -> None:
        """Note the loss of one more step."""
        self._losses.append(loss)
        if time.monotonic() < self._next:
            return
        try:
            self._io.write_json(self._report, {"loss": numbered(self._losses, self._step)})
        except StorageFailed as error:
            self._log("warning", "losses not written yet", cause=str(error))
        self._next = time.monotonic() + 1.0


def quality(
    labels: Floats,
    probabilities: Floats,
    metrics: Sequence[str],
) -> dict[str, float]:
    """The measures that the job asks for."""
    measures = {"auc": auc, "ks": ks}
    return {name: float(measures[name](labels, probabilities)) for name in metrics}


def _labels(cells: Sequence[str], name: str) -> Floats:
    numbers, bad = numbers_of(cells)
    found = set(numbers[np.isfinite(numbers)].tolist())
    if bad or np.isnan(numbers).any() or not any(found == pair for pair in LABELS):
        raise BadParameters(
            f"label: column {name!r} must hold two classes, 0 and 1 or -1 and 1, in every row; "
            f"{bad + int(np.isnan(numbers).sum())} cells are no numbers, {len(found)} different numbers"
        )
    result: Floats = (numbers > 0).astype(np.float64)
    return result


def numbers_of(cells: Sequence[str]) -> tuple[Floats, int]:
    """The cells as numbers, NaN where missing, and how many are neither number nor missing."""
    numbers, bad = np.full(len(cells), np.nan), 0
    for i, cell in enumerate(cells):
        text = cell.strip()
        if text.lower() in MISSING:
            continue
        try:
            number = float(text)
        except ValueError:
            bad += 1
            continue
        if math.isfinite(number):
            numbers[i] = number
        else:
            bad += 1
    return numbers, bad
