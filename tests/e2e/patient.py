"""A component for tests of a job's life: it registers its start, waits, and succeeds.

It runs as a container: standard library only, all values come from its environment. Its node may
be killed at any moment, so it repeats each request until it gets a response. Parameters:

* ``register``: the folder or ``host:port`` for registering its start; ``name``: its name
* ``lasts``: seconds to wait; ``until``: a file to wait for
* ``fails``: containers of the same task and role that fail before one succeeds
* ``stubborn``: ignore SIGTERM
* ``silent``: report nothing; ``leaves``: whether outputs are written; ``code``: the exit code
* ``unique``: write the process id into the outputs
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
from collections.abc import Mapping
from pathlib import Path

PARAMETER = "runtime.component.parameter."
OUTPUT = "runtime.component.output."


def values_below(
    prefix: str,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables with a prefix, by the rest of their names."""
    values = {}
    for name, value in environment.items():
        if name.startswith(prefix):
            values[name.removeprefix(prefix)] = value
    return values


environment = dict(os.environ)
task = environment["config.task_id"]
role = environment["config.self_role"]
parameters = values_below(PARAMETER, environment)


def is_set(
    parameter: str,
    default: str = "False",
) -> bool:
    """Return whether a parameter is true."""
    return parameters.get(parameter, default) == "True"


def register_start(name: str) -> int:
    """Register that this container was started; return the number of earlier ones of its name."""
    register = parameters["register"]
    container = str(os.getpid())
    if __file__ == "/patient.py":
        # In the containers of an image all process ids are the same.
        container = f"{task}.{uuid.uuid4().hex}"
    if os.path.isabs(register):
        earlier = len(list(Path(register).glob(f"{name}.*")))
        (Path(register) / f"{name}.{container}").touch()
        return earlier
    host, _, port = register.partition(":")
    while True:  # the network may be cut
        with contextlib.suppress(OSError, ValueError):
            return send_start((host, int(port)), f"{name}.{container}")
        time.sleep(0.1)


def send_start(
    address: tuple[str, int],
    line: str,
) -> int:
    """Send a line to the register; return its response, the number of earlier containers."""
    with socket.create_connection(address, 5) as connection:
        connection.sendall(f"{line}\n".encode())
        return int(connection.recv(100))


def report(status: str) -> None:
    """Report a status to the node, unless the component is silent."""
    if is_set("silent"):
        return
    body = {
        "task_id": task,
        "role": role,
        "status": status,
    }
    request = urllib.request.Request(
        environment["system.callback"],
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    end = time.monotonic() + 60
    while True:
        try:
            # Read to the end: a cut network may lose a part of the response.
            urllib.request.urlopen(request, timeout=10).read()
            return
        except urllib.error.HTTPError:
            raise  # a refusal is a response
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def write_outputs() -> None:
    """Write a table of one row to each output."""
    storage = Path(urllib.parse.urlsplit(environment["system.storage"]).path)
    value = os.getpid() if is_set("unique") else 2
    for text in values_below(OUTPUT, environment).values():
        address = json.loads(text)
        table = storage / address["namespace"] / address["name"]
        table.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        if table.is_dir():  # made by an engine that mounts it
            table /= "data_0"
        table.write_text(f"id,x\n1,{value}\n")


if is_set("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
earlier = register_start(f"{parameters['name']}.{role}")
print(f"container number {earlier} of {parameters['name']} as {role}", flush=True)
report("RUNNING")
time.sleep(float(parameters["lasts"]))
while not os.path.exists(parameters.get("until", "/")):
    time.sleep(0.02)
if earlier < int(parameters.get("fails", "0")):
    print("it broke", flush=True)
    sys.exit(3)
if is_set("leaves", default="True"):
    write_outputs()
report("SUCCESS")
print("last words", flush=True)
sys.exit(int(parameters.get("code", "0")))
