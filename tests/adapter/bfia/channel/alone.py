"""One node's channel in a process that kills itself on command.

    python -m tests.adapter.bfia.channel.alone NAME FOLDER LISTENING_FD PEER PEER_URL

Each line on standard input arms the process: after ``after 2`` it dies as soon as its second
write from then on is complete, after ``amid 2`` in the middle of that write.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import structlog

from route_table.model import Route
from tests.adapter.bfia.channel.nodes import Node


class AllOpen(dict):
    """Sessions of a node that knows a running job for every session."""

    def get(self, key, default=None):
        return super().get(key, True)


class KillingWriter:
    """Writes as `os.write` does, and kills the process at the armed write to a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.moment = ""  # "after" or "amid" the write
        self.remaining_writes = 0
        self.write = os.write

    def read_commands(self):
        """Arm the process once per line; end with the test, which closes standard input."""
        for line in sys.stdin:
            self.moment, writes = line.split()
            self.remaining_writes = int(writes)
            print("armed", flush=True)
        os._exit(0)

    def __call__(self, descriptor, data):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self.folder):
            return self.write(descriptor, data)
        self.remaining_writes -= 1
        must_die = self.remaining_writes == 0
        if must_die and self.moment == "amid":
            data = data[: len(data) // 2]
        size = self.write(descriptor, data)
        if must_die:
            os.kill(os.getpid(), signal.SIGKILL)
        return size


async def main(name, folder, descriptor, peer, peer_url):
    """Serve the channel until the process is killed."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    node = Node(name, Path(folder))
    node.socket.close()
    node.socket = socket.socket(fileno=int(descriptor))
    node.sessions = AllOpen()
    node.routes[peer] = Route(peer, peer_url)
    writer = KillingWriter(Path(folder).resolve())
    os.write = writer
    await node.start()
    threading.Thread(target=writer.read_commands, daemon=True).start()
    print("ready", flush=True)
    await node.task


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
