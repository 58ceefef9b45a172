"""A component of eight steps, each kept in its checkpoint folder; the guest's first container dies at the fifth.

It succeeds with the number of the step after which it began as its output.
"""

import json
import os
import signal
import urllib.parse
import urllib.request
from pathlib import Path

told = dict(os.environ)
folder = Path(told["system.checkpoint"])
name = told.get("runtime.component.parameter.name", "")


def say(status: str) -> None:
    body = json.dumps(
        {
            "task_id": told["config.task_id"],
            "role": told["config.self_role"],
            "status": status,
        }
    )
    request = urllib.request.Request(
        told["system.callback"], body.encode(), {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=30).read()


begun = max((int(path.read_text()) for path in folder.glob("step-*")), default=0)
print(f"goes on after step {begun}", flush=True)
say("RUNNING")
for step in range(begun + 1, 9) if name != "first" else ():
    half = folder / "half"  # the other party's container is killed at any moment
    half.write_text(str(step))
    half.rename(folder / f"step-{step}")
    if (
        step == 5 and told["config.self_role"] == "guest.0"
    ):  # the other one, killed for it, has no part in when
        os.kill(os.getpid(), signal.SIGKILL)
storage = Path(urllib.parse.urlsplit(told["system.storage"]).path)
for address in (
    json.loads(v) for k, v in told.items() if k.startswith("runtime.component.output.")
):
    table = storage / address["namespace"] / address["name"]
    table.mkdir(parents=True, exist_ok=True)
    (table / "data_0").write_text(f"id,begun\n1,{begun}\n")
say("SUCCESS")
