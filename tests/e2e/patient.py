"""A component for tests of a job's life: says that it is there, waits as long as it is told, and succeeds.

Where it is told to (``until``), it waits for a file to be there as well.

Where it is told to (``fails``), so many of its containers of one task and role fail before one succeeds.

Where it is ``silent`` it reports nothing, leaves its outputs or not (``leaves``) and exits with a ``code``.
Its node may be killed at any moment, so it repeats what it could not say until somebody listens.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

told = dict(os.environ)
task, role = told["config.task_id"], told["config.self_role"]
wanted = {
    k.removeprefix("runtime.component.parameter."): v for k, v in told.items() if ".parameter." in k
}


def registered(what: str, name: str) -> int:
    """Write down that this container was started, in a folder or at ``host:port``; return how many were so far."""
    if os.path.isabs(register):
        before = len(list(Path(register).glob(f"{what}.*")))
        (Path(register) / f"{what}.{name}").touch()
        return before
    host, _, port = register.partition(":")
    while True:  # the machine's cable may be cut
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection((host, int(port)), 5) as connection,
        ):
            connection.sendall(f"{what}.{name}\n".encode())
            return int(connection.recv(100))
        time.sleep(0.1)


if wanted.get("stubborn") == "True":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
register = wanted["register"]
# in an image's containers process numbers are all the same
started_as = f"{task}.{uuid.uuid4().hex}" if __file__ == "/patient.py" else os.getpid()
before = registered(f"{wanted['name']}.{role}", str(started_as))
print(f"container number {before} of {wanted['name']} as {role}", flush=True)


def say(status: str) -> None:
    if wanted.get("silent") == "True":
        return
    body = json.dumps(
        {
            "task_id": task,
            "role": role,
            "status": status,
        }
    ).encode()
    request = urllib.request.Request(
        told["system.callback"], body, {"content-type": "application/json"}
    )
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(
                request, timeout=10
            ).read()  # an answer may be lost, where a cable was cut
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
    table = (
        table / "data_0" if table.is_dir() else table
    )  # an engine with mounts has made a folder of it
    table.write_text(f"id,x\n1,{os.getpid() if wanted.get('unique') == 'True' else 2}\n")
say("SUCCESS")
print("last words", flush=True)
sys.exit(int(wanted.get("code", "0")))
