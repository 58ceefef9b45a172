"""Turns CSV files into FATE's tables, and FATE's tables into outputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from fate.arch import URI, Context, dataframe
from fate.arch.computing import ComputingBuilder
from fate.arch.federation import FederationBuilder

from fatevendor.csv_tables import (
    SAMPLE_ID,
    column_type,
    csv_files,
    describe,
    feature_columns,
    reading_options,
)
from fatevendor.fate_config import LOGGING
from fatevendor.task import Party


@dataclass(frozen=True)
class FateTable:
    """A table as FATE has it."""

    schema: dict[str, Any]
    features: list[str]  # the columns besides those of ids and labels


def open_context(party: Party, scratch: Path) -> Context:
    """Return a context of FATE's that reads and writes tables, but reaches no other party."""
    builder = ComputingBuilder("tables")
    computing = builder.build_standalone(str(scratch), {"task_cores": 1}, LOGGING)
    name = (party.role, party.node)
    federation = FederationBuilder("tables", name, [name]).build_standalone(computing)
    return Context(computing=computing, federation=federation)


def take_in(
    context: Context,
    folder: Path,
    uri: str,
    columns: dict[str, str],
    trained: list[str] | None,
) -> FateTable:
    """Write an input as a table of FATE's.

    - ``columns``: the columns of ids and labels, where parameters name them
    - ``trained``: the features of the table of a training, None for all of this one
    """
    options: dict[str, Any] = reading_options(folder, columns)
    as_text = {options["match_id_name"]: str, SAMPLE_ID: str}
    parts = [
        pandas.read_csv(file, dtype=as_text, encoding="utf-8-sig") for file in csv_files(folder)
    ]
    rows = pandas.concat(parts, ignore_index=True)
    if SAMPLE_ID in rows and not rows[SAMPLE_ID].is_unique:
        # Scores of several tables, or folds: FATE would drop all rows but one of each id.
        del options["sample_id_name"], rows[SAMPLE_ID]
    features = feature_columns(list(rows), options, trained)
    rows = rows[[*options.values(), *features]]
    if len(rows[features].select_dtypes("number").columns) < len(features):
        options["dtype"] = "object"  # there is text among the features, which FATE is to keep
    frame = dataframe.PandasReader(**options).to_frame(context, rows)
    table = dataframe.serialize(context, frame)
    schema: dict[str, Any] = {}
    table.save(URI.from_string(uri), schema)
    return FateTable(schema, features)


def give_out(
    context: Context,
    written: list[dict[str, Any]],
    folder: Path,
    address: dict[str, str],
) -> None:
    """Write tables of FATE's as one output.

    ``written`` is FATE's record of the tables: one for each fold of a cross-validation, whose
    number becomes a column, otherwise a single one.
    """
    frames = [read_frame(context, record) for record in written]
    parts = [frame.as_pd_df() for frame in frames]
    if len(parts) > 1:
        for number, part in enumerate(parts):
            part["fold"] = number
    rows = pandas.concat(parts, ignore_index=True)
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / "data_0", index=False)
    schema = frames[0].schema
    types = {name: column_type(str(dtype)) for name, dtype in rows.dtypes.items()}
    types[SAMPLE_ID] = "string"
    types[schema.match_id_name] = "string"
    describe(
        folder,
        address,
        len(rows),
        column_info=[{"name": name, "type": kind} for name, kind in types.items()],
        id_column=schema.match_id_name,
        label_column=schema.label_name,
    )


def read_frame(context: Context, written: dict[str, Any]) -> dataframe.DataFrame:
    """Return a table that FATE has written."""
    schema = written["metadata"]["metadata"]["schema"]
    table = context.computing.load(URI.from_string(written["uri"]), schema, {})
    return dataframe.deserialize(context, table)
