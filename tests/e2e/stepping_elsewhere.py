"""As `stepping`, for machines that share no folder with the node: its steps are kept at the task's storage."""

import json
import os
import signal

from refvendor.report import Reporter
from refvendor.storage_engines import open_engine

told = dict(os.environ)
storage = open_engine(told["system.storage"])
reporter = Reporter(
    told["system.callback"], told["config.task_id"], told["config.self_role"], print
)


def folder(variable: str) -> str:
    return "{namespace}/{name}".format(**json.loads(told[variable]))


kept = folder("system.checkpoint.address")
begun = max((int(name.removeprefix("step-")) for name in storage.names(kept)), default=0)
reporter.running()
for step in range(begun + 1, 9):
    storage.publish(kept, {f"step-{step}": b"done"})
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
storage.publish(
    folder("runtime.component.output.train_data"), {"data_0": f"id,begun\n1,{begun}\n".encode()}
)
reporter.succeeded()
