"""The container of the measurements: writes its outputs, reports SUCCESS and exits.

Imports would cost more.
"""

import os
import socket

environment = dict(os.environ)
for variable, address in environment.items():
    if variable.startswith("runtime.component.output."):
        _, _, _, namespace, _, _, _, output, _ = address.split('"')
        folder = f"{environment['system.storage'].removeprefix('file://')}/{namespace}/{output}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/data_0", "w") as table:
            table.write("id\n1\n")
host, _, rest = environment["system.callback"].removeprefix("http://").partition("/")
name, _, port = host.partition(":")
task, role = environment["config.task_id"], environment["config.self_role"]
body = f'{{"task_id": "{task}", "role": "{role}", "status": "SUCCESS"}}'.encode()
head = f"POST /{rest} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
with socket.create_connection((name, int(port)), 10) as connection:
    connection.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    while connection.recv(4096):
        pass
