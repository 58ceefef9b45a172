"""Turns CSV files into FATE's tables, and FATE's tables into outputs."""

from pathlib import Path
from typing import Any

import pandas
from fate.arch import URI, Context, dataframe
from fate.arch.computing import ComputingBuilder
from fate.arch.federation import FederationBuilder

from fatevendor.csv_tables import SAMPLE_ID, column_type, csv_files, describe, reading_options
from fatevendor.task import LOGGING, Party


def open_context(party: Party, scratch: Path) -> Context:
    """Return a context of FATE's that reads and writes tables, but reaches no other party."""
    builder = ComputingBuilder("tables")
    computing = builder.build_standalone(str(scratch), {"task_cores": 1}, LOGGING)
    name = (party.role, party.node)
    federation = FederationBuilder("tables", name, [name]).build_standalone(computing)
    return Context(computing=computing, federation=federation)


def take_in(context: Context, folder: Path, uri: str, columns: dict[str, str]) -> dict[str, Any]:
    """Write an input as a table of FATE's; return its schema."""
    options: dict[str, Any] = reading_options(folder, columns)
    as_text = {options["match_id_name"]: str, SAMPLE_ID: str}
    parts = [
        pandas.read_csv(file, dtype=as_text, encoding="utf-8-sig") for file in csv_files(folder)
    ]
    rows = pandas.concat(parts, ignore_index=True)
    features = rows.drop(columns=list(options.values()))
    if len(features.select_dtypes("number").columns) < len(features.columns):
        options["dtype"] = "object"  # there is text among the features, which FATE is to keep
    frame = dataframe.PandasReader(**options).to_frame(context, rows)
    table = dataframe.serialize(context, frame)
    schema: dict[str, Any] = {}
    table.save(URI.from_string(uri), schema)
    return schema


def give_out(
    context: Context,
    written: dict[str, Any],
    folder: Path,
    address: dict[str, str],
) -> None:
    """Write a table of FATE's as an output. ``written`` is FATE's record of the table."""
    schema = written["metadata"]["metadata"]["schema"]
    table = context.computing.load(URI.from_string(written["uri"]), schema, {})
    frame = dataframe.deserialize(context, table)
    rows = frame.as_pd_df()
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / "data_0", index=False)
    types = {name: column_type(str(dtype)) for name, dtype in rows.dtypes.items()}
    types[SAMPLE_ID] = "string"
    types[frame.schema.match_id_name] = "string"
    describe(
        folder,
        address,
        len(rows),
        column_info=[{"name": name, "type": kind} for name, kind in types.items()],
        id_column=frame.schema.match_id_name,
        label_column=frame.schema.label_name,
    )
