"""One party of tasks that FATE runs by itself on one machine, one after another, without any node.

Arguments: the party's role, a folder shared by all parties, the party's own folder, to which the
outputs of a task are written in a folder of its name, and the tasks as JSON: name, component,
parameters, and the inputs as paths in the party's folder. The environment has the nodes of all
parties, as variables of a run.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from fatevendor import execution, fate_tables, fate_values
from fatevendor.__main__ import start_workers
from fatevendor.fate_config import party_task_id, task_config
from fatevendor.storage import open_storage
from fatevendor.task import Task, read_task

NOT_USED = {
    "config.token": "none",
    "system.callback": "none",
    "system.transport": "none",
}
OUTPUTS = ("train_data", "model", "report")


def main() -> None:
    """Run all tasks as this party."""
    role, shared, home, tasks = sys.argv[1:]
    for fields in json.loads(tasks):
        task = read_task(variables_of(fields, role, Path(home)))
        run(task, Path(shared))


def run(task: Task, shared: Path) -> None:
    """Run a task as this party and write its outputs; ``shared`` is a folder of all parties."""
    scratch = shared / f"files_of_{party_task_id(task)}"
    scratch.mkdir()
    fate_values.pickle_enums_by_value()
    context = fate_tables.open_context(task.own, shared)
    storage = open_storage(task.storage)
    inputs = execution.take_in(context, task, storage, scratch)
    config = task_config(task, scratch, inputs.schemas, inputs.models, 0)
    config["conf"]["computing"]["metadata"] = {
        "computing_id": f"computing_of_{party_task_id(task)}",
        "options": {"data_dir": str(shared)},
    }
    federation = config["conf"]["federation"]
    federation["type"] = "standalone"
    del federation["metadata"]["osx_config"]
    written = execution.run_fate(config, scratch)
    execution.write_outputs(context, task, storage, scratch, inputs, written)


def variables_of(fields: dict[str, Any], role: str, home: Path) -> dict[str, str]:
    """Return the variables of a run of a task."""
    name = fields["name"]
    variables = {
        **NOT_USED,
        **os.environ,
        "config.self_role": f"{role}.0",
        "config.session_id": name,
        "config.task_id": name,
        "system.storage": f"file://{home}",
        "runtime.component.name": fields["component"],
    }
    for parameter, value in fields["parameters"].items():
        variables[f"runtime.component.parameter.{parameter}"] = json.dumps(value)
    for input_name, path in fields["inputs"].items():
        if (home / path).exists():  # an arbiter has no tables
            variables[f"runtime.component.input.{input_name}"] = address_of(path)
    for output in OUTPUTS:
        variables[f"runtime.component.output.{output}"] = address_of(f"{name}/{output}")
    return variables


def address_of(path: str) -> str:
    """Return the address of a folder in the storage, in the form of a variable."""
    namespace, name = path.split("/")
    return json.dumps({"namespace": namespace, "name": name})


if __name__ == "__main__":
    start_workers()
    main()
    sys.stdout.flush()
    os._exit(0)
