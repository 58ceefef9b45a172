"""A real ssh server on loopback, and an ``ssh`` command that knows it."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.nodes import free_ports

PROGRAM = "/usr/sbin/sshd"


def usable() -> None:
    """Raise OSError where such a server cannot be run."""
    for program in (PROGRAM, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            raise FileNotFoundError(program)
    if os.geteuid() != 0:
        raise PermissionError("an ssh server of the test's own needs root")


@dataclass(frozen=True)
class Sshd:
    url: str
    """ssh://user@host:port"""
    command: Path
    """folder with the ``ssh`` command, to be put before the others"""
    process: "subprocess.Popen[bytes]"

    def drop(self) -> None:
        """Cut every connection, and take no new one."""
        pid = self.process.pid
        for session in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(int(session), signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        self.process.wait(60)


@contextmanager
def sshd(home: Path) -> Iterator[Sshd]:
    """Serve the one key of the test, and nothing but that."""
    home.mkdir()
    home.chmod(0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "own"):
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name))
    (port,) = free_ports(1)
    host_key = (home / "host.pub").read_text()
    (home / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (home / "config").write_text(
        f"HostKey {home}/host\nAuthorizedKeysFile {home}/own.pub\nPidFile none\nUsePAM no\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    (home / "client").write_text(
        f"IdentityFile {home}/own\nIdentitiesOnly yes\nUserKnownHostsFile {home}/known\n"
        "StrictHostKeyChecking yes\n"
    )
    command = home / "bin" / "ssh"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/client "$@"\n')
    command.chmod(0o755)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "-D", "-e", "-f", str(home / "config"), "-o", f"ListenAddress=127.0.0.1:{port}"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(port, process, home / "log")
        yield Sshd(f"ssh://{getpass.getuser()}@127.0.0.1:{port}", command.parent, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
