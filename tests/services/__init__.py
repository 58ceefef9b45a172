"""Real services that a test starts for itself."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def usable(*programs: str) -> None:
    """Raise OSError where a server of the test's own, which needs root and these, cannot be run."""
    if os.geteuid() != 0:
        raise PermissionError("a server of the test's own needs root")
    for program in programs:
        if shutil.which(program) is None:
            raise FileNotFoundError(program)


def do(*command: str, cwd: Path | None = None) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=600,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def linked(namespace: str, network: str) -> tuple[str, str]:
    """Make a network namespace with a cable to this host; return the addresses of the near and the far end."""
    third, fourth = divmod(int.from_bytes(os.urandom(2), "big") % 2**14 * 4, 256)
    near, far = (f"{network}.{third}.{fourth + n}" for n in (1, 2))
    one, other = (f"{namespace[:11]}{end}" for end in "ab")
    do("ip", "netns", "add", namespace)
    do("ip", "link", "add", one, "type", "veth", "peer", "name", other, "netns", namespace)
    do("ip", "addr", "add", f"{near}/30", "dev", one)
    do("ip", "link", "set", one, "up")
    do("ip", "-n", namespace, "addr", "add", f"{far}/30", "dev", other)
    for end in (other, "lo"):
        do("ip", "-n", namespace, "link", "set", end, "up")
    return near, far


def started(
    command: Sequence[str],
    log: Path,
    answers: Callable[[], bool],
) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, with its output in a file; return once it answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + 120
    try:
        while not answers():
            assert process.poll() is None and time.monotonic() < end, log.read_text(
                errors="replace"
            )
            time.sleep(0.05)
    except BaseException:
        process.kill()
        raise
    return process


def listens(port: int) -> bool:
    """Whether a port of the loopback address takes connections."""
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0
