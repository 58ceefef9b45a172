"""The standard's tables: CSV files in a folder, with their metadata."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

from .task import TaskFailed

SAMPLE_ID = "sample_id"  # FATE's own column, by which parties find the same row after a PSI
LABELS = ("y", "label")  # names of a label's column, if nothing else tells it


class TableUnusable(TaskFailed):
    """A table with which the component cannot work."""


def csv_files(folder: Path) -> list[Path]:
    """Return the parts of a table, in order."""
    return sorted(folder.glob("data_*"), key=lambda file: int(file.name.removeprefix("data_")))


def reading_options(folder: Path, columns: dict[str, str]) -> dict[str, str]:
    """Return how FATE is to read a table: the columns of ids and labels.

    ``columns``: those that parameters name, which take precedence over the table's metadata.
    Raises `TableUnusable`.
    """
    header = read_header(folder)
    metadata = read_metadata(folder)
    names = [name for name in header if name != SAMPLE_ID]
    if not names:
        raise TableUnusable("the table has no columns")
    id_column = columns.get("id") or metadata.get("id_column")
    if id_column not in header:
        id_column = names[0]
    options = {"match_id_name": id_column}
    if SAMPLE_ID in header:
        options["sample_id_name"] = SAMPLE_ID
    for name in (columns.get("label"), metadata.get("label_column"), *LABELS):
        if name in header:
            options["label_name"] = name
            break
    return options


def read_header(folder: Path) -> list[str]:
    """Return the names of a table's columns, none if it is empty."""
    for part in csv_files(folder)[:1]:
        with part.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    return []


def feature_columns(
    header: list[str],
    options: dict[str, str],
    trained: list[str] | None,
) -> list[str]:
    """Return the features of a table, in the order for FATE.

    - ``options``: the result of `reading_options`
    - ``trained``: the columns of the table of a training, which the table has to have, too; None if
      it is that table

    Raises `TableUnusable` with all columns that are missing.
    """
    if trained is None:
        return [name for name in header if name not in options.values()]
    missing = [name for name in trained if name not in header]
    if missing:
        raise TableUnusable(f"the table has no columns {', '.join(missing)}, as the training's had")
    return trained


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of an input."""
    metadata: dict[str, Any] = json.loads((folder / "metadata").read_text(encoding="utf-8"))
    return metadata


def column_type(dtype: str) -> str:
    """Return the standard's name for a type of pandas'."""
    if dtype.startswith("float"):
        return "float"
    if dtype.startswith(("int", "uint")):
        return "int"
    return "string"


def copy_file(file: Path, folder: Path, address: dict[str, str], **about: Any) -> None:
    """Write a file, such as a model or a report, as an output."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / "data_0")
    describe(folder, address, 1, **about)


def describe(folder: Path, address: dict[str, str], rows: int, **about: Any) -> None:
    """Write an output's metadata, last, as it says that the output is complete."""
    metadata = {**address, "count": rows, "partitions": 1, "data_type": "dense", **about}
    (folder / "metadata").write_text(json.dumps(metadata), encoding="utf-8")
