"""A component for tests of a job's life: it registers its start, waits, and succeeds.

It runs as a container: standard library only, all values come from its environment. Its node may
be killed at any moment, so it repeats each request until it gets a response. Its storage is a
folder or S3. Parameters:

* ``register``: the folder or ``host:port`` for registering its start; ``name``: its name
* ``lasts``: seconds to wait; ``until``: a file to wait for
* ``fails``: containers of the same task and role that fail before one succeeds
* ``unread``: a failing container first sends its peer a number that nobody reads
* ``rounds``: numbers that guest and host first send each other in turns; each must come once
* ``stubborn``: ignore SIGTERM
* ``silent``: report nothing; ``leaves``: whether outputs are written; ``code``: the exit code
* ``unique``: write the process id into the outputs
"""

import base64
import contextlib
import hashlib
import hmac
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
CHANNEL_SUCCESS = "E0000000000"
# The peer is unreachable, or has no capacity.
CHANNEL_TEMPORARY = ("E0000000607", "E0000000700")
DEFAULT_REGION = "us-east-1"  # of S3, for an address without a region


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
    send(request)


def send(request: urllib.request.Request) -> bytes:
    """Send a request until there is a response; raise after a minute without one."""
    end = time.monotonic() + 60
    while True:
        try:
            # Read to the end: a cut network may lose a part of the response.
            return bytes(urllib.request.urlopen(request, timeout=10).read())
        except urllib.error.HTTPError:
            raise  # a refusal is a response
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def call_channel(
    verb: str,
    target: str,
    **body: object,
) -> str:
    """Push or pop, under one id however often it is sent; return the content of the response."""
    id_header = {"push": "x-ptp-message-id", "pop": "x-ptp-pop-id"}[verb]
    headers = {
        "content-type": "application/json",
        "x-ptp-session-id": environment["config.session_id"],
        "x-ptp-target-node-id": environment[f"config.node_id.{target}"],
        "x-ptp-token": environment["config.token"],
        id_header: uuid.uuid4().hex,
    }
    request = urllib.request.Request(
        f"http://{environment['system.transport']}/v1/interconn/chan/{verb}",
        json.dumps(body).encode(),
        headers,
    )
    while True:
        response = json.loads(send(request))
        if response["code"] == CHANNEL_SUCCESS:
            return str(response.get("content") or "")
        if response["code"] not in CHANNEL_TEMPORARY:
            raise ValueError(f"{verb} was refused: {response}")
        time.sleep(0.1)


def push_number(number: int, peer: str) -> None:
    """Send a number to the peer."""
    payload = base64.b64encode(str(number).encode()).decode()
    call_channel(
        "push",
        peer,
        topic=f"numbers to {peer}",
        payload=payload,
    )


def pop_number() -> int:
    """Wait for the next number of the peer."""
    content = ""
    while not content:
        content = call_channel(
            "pop",
            role,
            topic=f"numbers to {role}",
            timeout=5000,
        )
    return int(base64.b64decode(content))


def exchange_numbers(rounds: int) -> None:
    """Send numbers to the peer and back; end with exit code 4 if one is lost or comes twice."""
    for number in range(rounds):
        if role == "guest.0":
            push_number(number, "host.0")
        if pop_number() != number:
            print(f"number {number} was lost or came twice", flush=True)
            sys.exit(4)
        if role == "host.0":
            push_number(number, "guest.0")
        time.sleep(0.02)


def write_outputs() -> None:
    """Write a table of one row to each output."""
    storage = urllib.parse.urlsplit(environment["system.storage"])
    value = os.getpid() if is_set("unique") else 2
    table = f"id,x\n1,{value}\n".encode()
    for text in values_below(OUTPUT, environment).values():
        address = json.loads(text)
        path = f"{address['namespace']}/{address['name']}"
        if storage.scheme == "s3":
            write_object(storage, f"{path}/data_0", table)
        else:
            write_file(Path(storage.path) / path, table)


def write_file(path: Path, content: bytes) -> None:
    """Write a file at a path, or into the folder there."""
    path.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    if path.is_dir():  # made by an engine that mounts it
        path /= "data_0"
    path.write_bytes(content)


def write_object(
    storage: urllib.parse.SplitResult,
    name: str,
    content: bytes,
) -> None:
    """Write an object into a bucket of S3; the storage's address has bucket and credentials."""
    values = dict(urllib.parse.parse_qsl(storage.query))
    path = urllib.parse.quote(f"/{values['bucket']}/{name}")
    headers = {
        "host": storage.netloc,
        "x-amz-content-sha256": hashlib.sha256(content).hexdigest(),
        "x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
    }
    if "token" in values:
        headers["x-amz-security-token"] = values["token"]
    headers["authorization"] = authorization(path, headers, values)
    scheme = values.get("scheme", "http")
    request = urllib.request.Request(
        f"{scheme}://{storage.netloc}{path}",
        content,
        headers,
        method="PUT",
    )
    send(request)


def authorization(
    path: str,
    headers: Mapping[str, str],
    values: Mapping[str, str],
) -> str:
    """Return the header that signs a PUT request with all its headers (AWS Signature Version 4).

    ``values``: the credentials and the region in the storage's address.
    """
    names = sorted(headers)
    signed_headers = ";".join(names)
    request = ["PUT", path, ""]
    request += [f"{name}:{headers[name]}" for name in names]
    request += ["", signed_headers, headers["x-amz-content-sha256"]]
    digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
    moment = headers["x-amz-date"]
    region = values.get("region", DEFAULT_REGION)
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    key = f"AWS4{values['password']}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{values['username']}/{scope}"
    fields = f"Credential={credential}, SignedHeaders={signed_headers}, Signature={key.hex()}"
    return f"AWS4-HMAC-SHA256 {fields}"


if is_set("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
earlier = register_start(f"{parameters['name']}.{role}")
print(f"container number {earlier} of {parameters['name']} as {role}", flush=True)
report("RUNNING")
exchange_numbers(int(parameters.get("rounds", "0")))
time.sleep(float(parameters["lasts"]))
while not os.path.exists(parameters.get("until", "/")):
    time.sleep(0.02)
if earlier < int(parameters.get("fails", "0")):
    if is_set("unread"):
        push_number(-1, "host.0" if role == "guest.0" else "guest.0")
    print("it broke", flush=True)
    sys.exit(3)
if is_set("leaves", default="True"):
    write_outputs()
report("SUCCESS")
print("last words", flush=True)
sys.exit(int(parameters.get("code", "0")))
