"""A node's channel in a process that dies when told: ``python -m … NAME FOLDER LISTENING_FD OTHER OTHERS_URL``.

A line ``after 2`` on its standard input kills it after its second write from then on, ``amid 2`` within it.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from gateway.broker import journal
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import Node


class AllOpen(dict):
    """Every session is that of a job that is known here."""

    def get(self, key, default=None):
        return super().get(key, True)


class Death:
    """Counts what is written, and kills the process at the write that it was told."""

    def __init__(self):
        self.how, self.left = "", 0
        self.write = journal._write_all

    def listen(self):
        for line in sys.stdin:
            self.how, left = line.split()
            self.left = int(left)
            print("armed", flush=True)
        os._exit(0)  # the test is gone

    def __call__(self, descriptor, data):
        self.left -= 1
        due = self.how if self.left == 0 else ""
        self.write(descriptor, data[: len(data) // 2] if due == "amid" else data)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(
    name,
    folder,
    descriptor,
    other,
    url,
):
    node = Node(name, Path(folder))
    node.socket.close()
    node.socket = socket.socket(fileno=int(descriptor))
    node.sessions = AllOpen()
    node.routes[other] = Route(other, url)
    journal._write_all = death = Death()
    await node.start()
    threading.Thread(target=death.listen, daemon=True).start()
    print("ready", flush=True)
    await node.task


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
