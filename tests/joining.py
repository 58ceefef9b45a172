"""Stands for a worker of a test run, as the process that pytest-xdist starts and waits for.

Hands its standard streams over to the server of `tests.workers`, whose fork is the worker, and ends
with that fork. The argument is the server's address.
"""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(f"\0{sys.argv[1]}")
    socket.send_fds(server, [b"w"], [0, 1, 2])
    os.close(0)
    os.close(1)
    server.recv(1)
