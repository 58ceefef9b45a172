"""Lets FATE's own entry point execute a task."""

import json
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fate.arch import Context

from fatevendor import fate_tables, fate_values, relay
from fatevendor.components import MODEL, TABLE
from fatevendor.csv_tables import TableUnusable, copy_file, read_metadata
from fatevendor.fate_config import table_uri, task_config
from fatevendor.fate_tables import FateTable
from fatevendor.storage import Storage, open_storage
from fatevendor.task import Task, path_of
from fatevendor.unpickling import ValueRefused

# In the text of a worker's error.
REFUSAL = re.compile(f"{fate_values.TABLE_VALUE} is refused: (.*) is not allowed")


@dataclass(frozen=True)
class Inputs:
    """The inputs of a task, by their names."""

    tables: dict[str, FateTable]
    models: dict[str, Path]  # the files

    @property
    def schemas(self) -> dict[str, Any]:
        """FATE's schemas of the tables."""
        return {name: table.schema for name, table in self.tables.items()}


def execute(task: Task, scratch: Path) -> None:
    """Execute a task and write its outputs. Raises `TaskFailed`, and what FATE raises."""
    fate_values.restrict()
    context = fate_tables.open_context(task.own, scratch)
    storage = open_storage(task.storage)
    inputs = take_in(context, task, storage, scratch)
    server, port = relay.serve(relay.channel_of(task))
    config = task_config(task, scratch, inputs.schemas, inputs.models, port)
    written = run_fate(config, scratch)
    server.stop(grace=None)
    write_outputs(context, task, storage, scratch, inputs, written)


def take_in(
    context: Context,
    task: Task,
    storage: Storage,
    scratch: Path,
) -> Inputs:
    """Fetch the stage's inputs, and write the tables as FATE's. Raises `TaskFailed`.

    FATE tells features apart by their places, so all tables get the columns of the one with which
    the model was trained, or else of the first, in its order.
    """
    features = None
    tables = {}
    models = {}
    for name in task.inputs_in(task.stage.models):
        folder = storage.fetch(path_of(task.inputs[name]), scratch / "inputs" / name)
        models[name] = folder / "data_0"
        features = read_metadata(folder).get("features")
    for name in task.inputs_in(task.stage.tables):
        folder = storage.fetch(path_of(task.inputs[name]), scratch / "inputs" / name)
        uri = table_uri(task, scratch, name)
        try:
            tables[name] = fate_tables.take_in(context, folder, uri, task.columns, features)
        except TableUnusable as error:
            path = path_of(task.inputs[name])
            raise TableUnusable(f"input {path} cannot be used: {error}") from None
        features = tables[name].features
    return Inputs(tables, models)


def run_fate(config: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run ``python -m fate.components component execute``; return FATE's record of the outputs.

    Raises `ValueRefused`, and what FATE raises.
    """
    config_file = scratch / "task.yaml"
    config_file.write_text(json.dumps(config), encoding="utf-8")
    record = scratch / "record.json"
    sys.argv[1:] = ["component", "execute", "--config", str(config_file)]
    sys.argv += ["--execution-final-meta-path", str(record)]
    try:
        runpy.run_module("fate.components", run_name="__main__")
    except SystemExit as end:  # as every command of this kind ends
        if end.code:
            raise RuntimeError(f"FATE ended with code {end.code}") from end
    except RuntimeError as error:  # of a worker's error, FATE passes on the text
        refusal = REFUSAL.search(str(error))
        if refusal is None:
            raise
        raise ValueRefused(fate_values.TABLE_VALUE, refusal[1]) from error
    outputs: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))["io_meta"]["outputs"]
    return outputs


def write_outputs(
    context: Context,
    task: Task,
    storage: Storage,
    scratch: Path,
    inputs: Inputs,
    written: dict[str, Any],
) -> None:
    """Write the outputs that the job connects and that FATE has written."""
    data = written["data"].get(task.stage.data_output, [])
    if isinstance(data, dict):
        data = [data]
    data = [table for table in data if table["consumed"]]
    about_model = {}
    if TABLE in inputs.tables:  # an arbiter has none
        about_model["features"] = inputs.tables[TABLE].features
    for name, address in task.outputs.items():
        folder = scratch / "outputs" / name
        file = scratch / name
        if name == TABLE and data:
            fate_tables.give_out(context, data, folder, address)
        elif name == MODEL and file.is_file():
            copy_file(file, folder, address, **about_model)
        elif file.is_file():
            copy_file(file, folder, address)
        else:
            print(f"info FATE writes no {name} at {task.self_role}", flush=True)
            continue
        storage.publish(folder, path_of(address))
