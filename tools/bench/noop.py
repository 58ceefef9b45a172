"""The container of the measurements: reports SUCCESS and exits. Raw sockets, because imports cost more."""

import os
import socket

environment = dict(os.environ)
host, _, rest = environment["system.callback"].removeprefix("http://").partition("/")
name, _, port = host.partition(":")
task, role = environment["config.task_id"], environment["config.self_role"]
body = f'{{"task_id": "{task}", "role": "{role}", "status": "SUCCESS"}}'.encode()
head = f"POST /{rest} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
with socket.create_connection((name, int(port)), 10) as connection:
    connection.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    while connection.recv(4096):
        pass
