"""Real servers that a test starts for itself."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def usable(*programs: str) -> None:
    """Raise `OSError` unless this process is root and the programs of a server are installed."""
    if os.geteuid() != 0:
        raise PermissionError("a test that starts this server needs root")
    for program in programs:
        if shutil.which(program) is None:
            raise FileNotFoundError(program)


def do(*command: str, cwd: Path | None = None) -> None:
    """Run a command. Raises `AssertionError` with its output if it fails."""
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=600,
    )
    assert process.returncode == 0, f"{' '.join(command)}: {process.stderr}"


def linked(namespace: str, network: str) -> tuple[str, str]:
    """Make a network namespace with a cable to this host.

    Return the addresses of the cable's near and far end. They are in a random part of ``network``,
    which is the first half of an address, such as ``10.213``.
    """
    third, fourth = divmod(int.from_bytes(os.urandom(2), "big") % 2**14 * 4, 256)
    near_address = f"{network}.{third}.{fourth + 1}"
    far_address = f"{network}.{third}.{fourth + 2}"
    near = f"{namespace[:11]}a"
    far = f"{namespace[:11]}b"
    do("ip", "netns", "add", namespace)
    do("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
    do("ip", "addr", "add", f"{near_address}/30", "dev", near)
    do("ip", "link", "set", near, "up")
    do("ip", "-n", namespace, "addr", "add", f"{far_address}/30", "dev", far)
    for interface in (far, "lo"):
        do("ip", "-n", namespace, "link", "set", interface, "up")
    return near_address, far_address


def started(
    command: Sequence[str],
    log: Path,
    answers: Callable[[], bool],
) -> subprocess.Popen[bytes]:
    """Start a server with its output in a file; return its process once it answers.

    Raises `AssertionError` with the output if it ends, or does not answer for 120 s.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    try:
        while not answers():
            is_alive = process.poll() is None
            assert is_alive and time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
    except BaseException:
        process.kill()
        raise
    return process


def listens(port: int) -> bool:
    """Return whether a port of the loopback address accepts connections."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
