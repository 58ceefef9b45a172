"""Network namespaces without names: open files hold them.

So a namespace disappears, with its interfaces, once the test's process and those inside it have
ended, however they end. Needs root and the program `nsenter`.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAMS = ("nsenter",)
_NETWORK = 0x40000000  # CLONE_NEWNET
_OWN = "/proc/thread-self/ns/net"
_SECONDS = 60  # for a command that sets something up


class Namespace:
    """A new network namespace."""

    def __init__(self) -> None:
        with _returning():
            _call("unshare", _NETWORK)
            self._file = os.open(_OWN, os.O_RDONLY)

    @property
    def path(self) -> str:
        """Its file, for other processes as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def inside(self) -> list[str]:
        """Return the prefix of a command that runs in it."""
        return ["nsenter", f"--net={self.path}"]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread, and the processes that it starts, there for a while.

        A socket stays in the namespace in which it was opened.
        """
        with _returning():
            enter(self.path)
            yield

    def do(self, *command: str, text: str = "") -> str:
        """Run a command inside, with a text as its input; return its output.

        Raises `AssertionError` with its output if it fails.
        """
        process = subprocess.run(
            [*self.inside, *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert process.returncode == 0, f"{' '.join(command)}: {process.stderr}"
        return process.stdout

    def close(self) -> None:
        """Give the namespace up; it ends with the last process inside."""
        os.close(self._file)


def enter(path: str) -> None:
    """Move this thread, and the processes that it starts, to the namespace of a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        _call("setns", file, _NETWORK)
    finally:
        os.close(file)


@contextmanager
def _returning() -> Iterator[None]:
    """Move this thread back to its present namespace at the end."""
    present = os.open(_OWN, os.O_RDONLY)
    try:
        yield
    finally:
        _call("setns", present, _NETWORK)
        os.close(present)


def _call(name: str, *arguments: int) -> None:
    """Call a function of libc. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
