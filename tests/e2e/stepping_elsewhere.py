"""As `stepping`, for machines without a folder of the node: its checkpoints are in the storage."""

import json
import os
import signal

from refvendor.report import Reporter
from refvendor.storage_engines import open_engine

STEPS = 8
environment = dict(os.environ)
storage = open_engine(environment["system.storage"])
reporter = Reporter(
    environment["system.callback"],
    environment["config.task_id"],
    environment["config.self_role"],
    print,
)


def folder_in(variable: str) -> str:
    """Return the folder of the address in an environment variable."""
    return "{namespace}/{name}".format(**json.loads(environment[variable]))


checkpoints = folder_in("system.checkpoint.address")
steps = [int(name.removeprefix("step-")) for name in storage.names(checkpoints)]
last_step = max(steps, default=0)
reporter.running()
for step in range(last_step + 1, STEPS + 1):
    storage.publish(checkpoints, {f"step-{step}": b"done"})
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
output = folder_in("runtime.component.output.train_data")
storage.publish(
    output,
    {"data_0": f"id,begun\n1,{last_step}\n".encode()},
)
reporter.succeeded()
