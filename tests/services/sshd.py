"""A real ssh server on loopback, and an ``ssh`` command that trusts it."""

import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.nodes import free_ports
from tests.services import do, listens, started

PROGRAM = "/usr/sbin/sshd"
PROGRAMS = (PROGRAM, "ssh", "ssh-keygen")


@dataclass(frozen=True)
class Sshd:
    """A running server."""

    url: str  # ssh://user@host:port
    command: Path  # folder of the ``ssh`` command, for the front of PATH
    process: "subprocess.Popen[bytes]"

    def drop(self) -> None:
        """Cut every connection and refuse new ones."""
        pid = self.process.pid
        for session in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(int(session), signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        self.process.wait(60)


@contextmanager
def sshd(home: Path) -> Iterator[Sshd]:
    """Serve until the test is over; the server accepts one key only."""
    home.mkdir()
    home.chmod(0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "own"):
        do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name))
    (port,) = free_ports(1)
    host_key = (home / "host.pub").read_text()
    (home / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (home / "config").write_text(
        f"HostKey {home}/host\nAuthorizedKeysFile {home}/own.pub\nPidFile none\nUsePAM "
        f"no\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication "
        "no\nKbdInteractiveAuthentication no\n"
    )
    (home / "client").write_text(
        f"IdentityFile {home}/own\nIdentitiesOnly yes\nUserKnownHostsFile {home}/known\n"
        "StrictHostKeyChecking yes\n"
    )
    command = home / "bin" / "ssh"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/client "$@"\n')
    command.chmod(0o755)
    line = [
        PROGRAM,
        "-D",
        "-e",
        "-f",
        str(home / "config"),
        "-o",
        f"ListenAddress=127.0.0.1:{port}",
    ]
    process = started(line, home / "log", partial(listens, port))
    try:
        yield Sshd(f"ssh://{getpass.getuser()}@127.0.0.1:{port}", command.parent, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
