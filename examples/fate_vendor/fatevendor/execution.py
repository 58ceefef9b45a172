"""Lets FATE's own entry point execute a task."""

import copyreg
import json
import runpy
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from fate.arch import Context

from fatevendor import fate_tables, relay
from fatevendor.csv_tables import copy_file
from fatevendor.storage import Storage, open_storage
from fatevendor.task import Task, path_of, table_uri, task_config


def execute(task: Task, scratch: Path) -> None:
    """Execute a task and write its outputs. Raises `StorageFailed`, and what FATE raises."""
    pickle_enums_by_value()
    context = fate_tables.open_context(task.own, scratch)
    storage = open_storage(task.storage)
    schemas = {}
    for name, address in task.inputs.items():
        folder = storage.fetch(path_of(address), scratch / "inputs" / name)
        uri = table_uri(scratch, name)
        schemas[name] = fate_tables.take_in(context, folder, uri, task.columns)
    server, port = relay.serve(relay.channel_of(task))
    config = task_config(task, scratch, schemas, port)
    written = run_fate(config, scratch)
    server.stop(grace=None)
    write_outputs(context, task, storage, scratch, written)


def run_fate(config: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run ``python -m fate.components component execute``; return FATE's record of the outputs."""
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
    outputs: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))["io_meta"]["outputs"]
    return outputs


def write_outputs(
    context: Context,
    task: Task,
    storage: Storage,
    scratch: Path,
    written: dict[str, Any],
) -> None:
    """Write the outputs that the job connects and that FATE has written."""
    table = written["data"].get(task.component.data_output, {})
    for name, address in task.outputs.items():
        folder = scratch / "outputs" / name
        if name == "train_data" and table.get("consumed"):
            fate_tables.give_out(context, table, folder, address)
        elif (scratch / name).exists():
            copy_file(scratch / name, folder, address)
        else:
            print(f"info FATE writes no {name} at {task.self_role}", flush=True)
            continue
        storage.publish(folder, path_of(address))


def pickle_enums_by_value() -> None:
    """Let FATE send members of its enumerations as Python 3.10 does: the class and the value.

    Python 3.11 sends a call of `getattr` instead, which FATE does not accept in a message.
    """
    for kind in Enum.__subclasses__():
        if kind.__module__.startswith("fate."):
            copyreg.pickle(kind, class_and_value)


def class_and_value(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    """Return what a member of an enumeration is made from."""
    return type(member), (member.value,)
