"""A component for tests of a job's life: says that it is there, waits as long as it is told, and succeeds.

Where it is told to (``until``), it waits for a file to be there as well.

Where it is told to (``fails``), so many of its containers of one task and role fail before one succeeds.

Where it is ``silent`` it reports nothing, leaves its outputs or not (``leaves``) and exits with a ``code``.
Its node may be killed at any moment, so it repeats what it could not say until somebody listens.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

told = dict(os.environ)
task, role = told["config.task_id"], told["config.self_role"]
wanted = {k.removeprefix("runtime.component.parameter."): v for k, v in told.items() if ".parameter." in k}

if wanted.get("stubborn") == "True":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
register = Path(wanted["register"])
before = len(list(register.glob(f"{wanted['name']}.{role}.*")))
started_as = os.getpid() if os.getpid() > 1 else uuid.uuid4().hex  # each one in a container of its own is number 1
(register / f"{wanted['name']}.{role}.{started_as}").touch()
print(f"container number {before} of {wanted['name']} as {role}", flush=True)


def say(status: str) -> None:
    if wanted.get("silent") == "True":
        return
    body = json.dumps({"task_id": task, "role": role, "status": status}).encode()
    request = urllib.request.Request(told["system.callback"], body, {"content-type": "application/json"})
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=60).read()
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > end:
                raise
            time.sleep(0.1)


say("RUNNING")
time.sleep(float(wanted["lasts"]))
while not os.path.exists(wanted.get("until", "/")):
    time.sleep(0.02)
if before < int(wanted.get("fails", "0")):
    print("it broke", flush=True)
    sys.exit(3)
storage = Path(urllib.parse.urlsplit(told["system.storage"]).path)
outputs = [json.loads(v) for k, v in told.items() if k.startswith("runtime.component.output.")]
for address in outputs if wanted.get("leaves", "True") == "True" else ():
    table = storage / address["namespace"] / address["name"]
    table.parent.mkdir(parents=True, exist_ok=True)
    table = table / "data_0" if table.is_dir() else table  # an engine with mounts has made a folder of it
    table.write_text(f"id,x\n1,{os.getpid() if wanted.get('unique') == 'True' else 2}\n")
say("SUCCESS")
print("last words", flush=True)
sys.exit(int(wanted.get("code", "0")))
