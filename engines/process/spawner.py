"""Starts the supervisors of runs from one process that stands ready for it.

The start of an interpreter with all that a supervisor needs costs many times what a copy of one does. The process
ends by itself when the gateway does, and is begun anew where it has ended; the supervisors live on without it.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from engines.process import supervisor


class Nursery:
    """Makes supervisors for the runs below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._way: socket.socket | None = None
        self._pid = 0

    def start(self, directory: Path, answer: int) -> int:
        """Start the supervisor of a run, which says on ``answer`` how that went; return its descriptor.

        Raises OSError.
        """
        with self._lock:
            try:
                return self._asked(directory, answer)
            except OSError:
                self._end()  # it was killed: the next one is as good
                return self._asked(directory, answer)

    def close(self) -> None:
        """End the process that stands ready; supervisors live on."""
        with self._lock:
            self._end()

    def _asked(self, directory: Path, answer: int) -> int:
        if self._way is None:
            self._begin()
        assert self._way is not None
        socket.send_fds(self._way, [os.fsencode(directory)], [answer])
        said, descriptors, _, _ = socket.recv_fds(self._way, 1, 1)
        if not said or not descriptors:
            raise ConnectionError("the process that starts supervisors has ended")
        return descriptors[0]

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.settimeout(_PATIENCE)
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", supervisor.__file__, supervisor.NURSERY, str(self._root)],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
                setsigmask=[],
            )
        self._way = ours

    def _end(self) -> None:
        if self._way is None:
            return
        self._way.close()
        self._way = None
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)  # it would end by itself, if it is well
            os.waitpid(self._pid, 0)


_PATIENCE = 30.0
"""seconds until it has made a supervisor"""
