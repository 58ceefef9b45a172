"""One party of a training that FATE runs by itself on one machine, without any node.

Arguments: the party's role, the folder of its table (none for an arbiter), a folder shared by all
parties, and the folder for the party's outputs. The environment has a run's variables: parties,
component and parameters.
"""

import json
import os
import sys
from pathlib import Path

from fatevendor import execution, fate_tables
from fatevendor.__main__ import start_workers
from fatevendor.storage import open_storage
from fatevendor.task import read_task, table_uri, task_config

NOT_USED = {
    "config.session_id": "standalone",
    "config.task_id": "standalone",
    "config.token": "none",
    "system.callback": "none",
    "system.transport": "none",
}


def main() -> None:
    """Train as this party and write its outputs."""
    role, table, shared, output = sys.argv[1:]
    data = Path(shared)
    scratch = data / role
    scratch.mkdir()
    variables = {
        **NOT_USED,
        **os.environ,
        "config.self_role": f"{role}.0",
        "system.storage": "file:///",
        "runtime.component.output.train_data": address_of(output, "train_data"),
        "runtime.component.output.model": address_of(output, "model"),
    }
    if Path(table).exists():
        # All parties have their tables in one folder, so the names differ.
        variables[f"runtime.component.input.{role}_data"] = address_of(".", table)
    task = read_task(variables)
    execution.pickle_enums_by_value()
    context = fate_tables.open_context(task.own, data)
    schemas = {
        name: fate_tables.take_in(context, Path(address["name"]), table_uri(scratch, name), {})
        for name, address in task.inputs.items()
    }
    config = task_config(task, scratch, schemas, 0)
    config["conf"]["computing"]["metadata"] = {
        "computing_id": role,
        "options": {"data_dir": shared},
    }
    federation = config["conf"]["federation"]
    federation["type"] = "standalone"
    del federation["metadata"]["osx_config"]
    written = execution.run_fate(config, scratch)
    execution.write_outputs(context, task, open_storage(task.storage), scratch, written)


def address_of(namespace: str, name: str) -> str:
    """Return a table's address in the form of a variable."""
    return json.dumps({"namespace": namespace, "name": name})


if __name__ == "__main__":
    start_workers()
    main()
    sys.stdout.flush()
    os._exit(0)
