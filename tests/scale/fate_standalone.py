"""One party of a training that FATE runs by itself on one machine, without any node.

Arguments: the party's role, the folder of its table, a folder that both parties share, and the
folder for the guest's predictions.
"""

import json
import os
import sys
from pathlib import Path

from fatevendor import execution, fate_tables
from fatevendor.__main__ import start_workers
from fatevendor.task import read_task, table_uri, task_config

PARTIES = {
    "config.node_id.guest.0": "9999",
    "config.node_id.host.0": "10000",
}
NOT_USED = {
    "config.session_id": "standalone",
    "config.task_id": "standalone",
    "config.token": "none",
    "system.callback": "none",
    "system.transport": "none",
}


def main() -> None:
    """Train as this party; the guest writes its predictions."""
    role, table, shared, predictions = sys.argv[1:]
    data = Path(shared)
    scratch = data / role
    scratch.mkdir()
    # Both parties have their tables in one folder, so the names differ.
    address = json.dumps({"namespace": ".", "name": table})
    variables = {
        **PARTIES,
        **NOT_USED,
        **os.environ,  # with the training's parameters
        "config.self_role": f"{role}.0",
        "system.storage": "file:///",
        "runtime.component.name": "HeteroSecureBoost",
        f"runtime.component.input.{role}_data": address,
    }
    task = read_task(variables)
    execution.pickle_enums_by_value()
    context = fate_tables.open_context(task.own, data)
    ((name, folder),) = task.inputs.items()
    schema = fate_tables.take_in(context, folder, table_uri(scratch, name), {})
    config = task_config(task, scratch, {name: schema}, 0)
    config["conf"]["computing"]["metadata"] = {
        "computing_id": role,
        "options": {"data_dir": shared},
    }
    federation = config["conf"]["federation"]
    federation["type"] = "standalone"
    del federation["metadata"]["osx_config"]
    written = execution.run_fate(config, scratch)
    if role == "guest":
        output = {"namespace": "", "name": ""}
        record = written["data"]["train_output_data"]
        fate_tables.give_out(context, record, Path(predictions), output)


if __name__ == "__main__":
    start_workers()
    main()
    sys.stdout.flush()
    os._exit(0)
