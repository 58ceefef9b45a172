"""The container of the measurements: writes its outputs, reports SUCCESS and exits.

It uses a plain socket and no JSON module, as further imports would cost time.
"""

import os
import socket

environment = dict(os.environ)
for variable, address in environment.items():
    if variable.startswith("runtime.component.output."):
        _, _, _, namespace, _, _, _, output, _ = address.split('"')
        storage = environment["system.storage"].removeprefix("file://")
        folder = f"{storage}/{namespace}/{output}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/data_0", "w") as table:
            table.write("id\n1\n")
host, _, path = environment["system.callback"].removeprefix("http://").partition("/")
name, _, port = host.partition(":")
task = environment["config.task_id"]
role = environment["config.self_role"]
body = f'{{"task_id": "{task}", "role": "{role}", "status": "SUCCESS"}}'.encode()
head = (
    f"POST /{path} HTTP/1.1\r\n"
    f"host: {host}\r\n"
    "content-type: application/json\r\n"
    "connection: close\r\n"
    f"content-length: {len(body)}\r\n"
    "\r\n"
)
with socket.create_connection((name, int(port)), 10) as connection:
    connection.sendall(head.encode() + body)
    while connection.recv(4096):
        pass
