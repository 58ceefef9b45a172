"""One node's channel in a process that kills itself on command.

Each command, a moment and a number, arms the process: after ``("after", 2)`` it dies as soon as its
second write from then on is complete, after ``("amid", 2)`` in the middle of that write.
"""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
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

    def __init__(self, folder, commands):
        """``commands``: the connection to the test."""
        self.folder = folder
        self.commands = commands
        self.moment = ""  # "after" or "amid" the write
        self.remaining_writes = 0
        self.write = os.write

    def read_commands(self):
        """Arm the process once per command; end with the test, which closes the connection."""
        with suppress(EOFError):
            while True:
                self.moment, self.remaining_writes = self.commands.recv()
                self.commands.send("armed")
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


def run(*arguments):
    """Serve the channel until the process is killed; for ``arguments`` see `serve`."""
    asyncio.run(serve(*arguments))


async def serve(name, folder, listener, peer, peer_url, commands):
    """Serve the channel of a node with one peer.

    ``listener``: the listening socket; ``commands``: the connection to the test.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    node = Node(name, folder)
    node.socket.close()
    node.socket = listener
    node.sessions = AllOpen()
    node.routes[peer] = Route(peer, peer_url)
    writer = KillingWriter(folder.resolve(), commands)
    os.write = writer
    await node.start()
    threading.Thread(target=writer.read_commands, daemon=True).start()
    commands.send("ready")
    await node.task
