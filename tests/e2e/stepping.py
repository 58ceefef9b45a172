"""A component of eight steps with a checkpoint each; the guest's first container dies at the fifth.

It runs as a container: standard library only, all values come from its environment. It continues
after the last step in its checkpoint folder, and its output is the number of that step.
"""

import json
import os
import signal
import urllib.parse
import urllib.request
from pathlib import Path

STEPS = 8
OUTPUT = "runtime.component.output."
environment = dict(os.environ)
role = environment["config.self_role"]
checkpoints = Path(environment["system.checkpoint"])


def report(status: str) -> None:
    body = {
        "task_id": environment["config.task_id"],
        "role": role,
        "status": status,
    }
    request = urllib.request.Request(
        environment["system.callback"],
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).read()


def write_checkpoint(step: int) -> None:
    """Write a checkpoint in two steps: the other party's container is killed at any moment."""
    incomplete = checkpoints / "half"
    incomplete.write_text(str(step))
    incomplete.rename(checkpoints / f"step-{step}")


def write_outputs(last_step: int) -> None:
    storage = Path(urllib.parse.urlsplit(environment["system.storage"]).path)
    for name, text in environment.items():
        if name.startswith(OUTPUT):
            address = json.loads(text)
            table = storage / address["namespace"] / address["name"]
            table.mkdir(
                parents=True,
                exist_ok=True,
            )
            (table / "data_0").write_text(f"id,begun\n1,{last_step}\n")


last_step = max((int(file.read_text()) for file in checkpoints.glob("step-*")), default=0)
print(f"goes on after step {last_step}", flush=True)
report("RUNNING")
# The first task of a job of two has no steps.
if environment.get("runtime.component.parameter.name") != "first":
    for step in range(last_step + 1, STEPS + 1):
        write_checkpoint(step)
        if step == 5 and role == "guest.0":
            os.kill(os.getpid(), signal.SIGKILL)
write_outputs(last_step)
report("SUCCESS")
