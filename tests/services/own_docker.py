"""A Docker daemon of the test's own, in a network namespace of its own: to be killed, and reached over TLS.

The daemon that other tests share is never touched. Needs root, and the programs in `PROGRAMS`.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import docker
from docker.utils import kwargs_from_env

from engines.base import EngineError
from engines.docker.client import Client
from tests.e2e.nodes import wait_for
from tests.services import do, linked, started

PROGRAMS = ("/usr/sbin/dockerd", "ip", "nsenter", "openssl")
BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")


_NETWORK = 0x40000000  # CLONE_NEWNET


def enter(namespace: str) -> None:
    """Move this thread, and all that it starts, to a network namespace by its name."""
    with open(f"/var/run/netns/{namespace}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class Daemon(docker.DockerClient):
    """A client of a daemon, by default of the shared one; it leaves no socket open where that is away."""

    def __init__(self, url: str = "", seconds: int = 60) -> None:
        where = {"base_url": url} if url else kwargs_from_env()
        self.api = Client(
            version="auto",
            timeout=seconds,
            **where,
        )


def remove_network(name: str, remove: Callable[[], None] | None = None) -> None:
    """Remove a network: the shared daemon lets go of its last container a moment after that has gone.

    ``remove``: what else to call for it than the daemon.
    """
    with contextlib.closing(Daemon()) as client:

        def removed() -> bool:
            try:
                (remove or client.networks.get(name).remove)()
            except docker.errors.NotFound:
                return True
            except (docker.errors.APIError, EngineError) as error:
                print(error)
                with contextlib.suppress(docker.errors.APIError):
                    network = client.networks.get(name)
                    for left in network.attrs[
                        "Containers"
                    ]:  # a sandbox whose removal the daemon refused
                        network.disconnect(left, force=True)
                return False
            return True

        wait_for(removed, about=f"network {name} is removed")


class OwnDocker:
    """Start, kill and start it again; `close` leaves nothing."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="bfia-dock-"))  # sockets' paths must be short
        self.name = "bfia" + uuid.uuid4().hex[:8]
        self.socket = self.home / "d.sock"
        self.url = f"unix://{self.socket}"
        self.outer, self.inner = linked(self.name, "10.213")
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._options: list[str] = []

    @property
    def inside(self) -> list[str]:
        """Return what to put before a command that is to run where the daemon's bridges are."""
        return ["nsenter", f"--net=/var/run/netns/{self.name}"]

    def start(self, *options: str) -> None:
        """Start the daemon, with the options of the first start if none are given."""
        self._options = list(options) or self._options
        self.socket.unlink(missing_ok=True)
        (self.home / "d.pid").unlink(missing_ok=True)
        self._end_containerd()
        self.starts += 1
        command = [
            *self.inside, "/usr/sbin/dockerd", "--data-root", f"{self.home}/data", "--exec-root",
            f"{self.home}/exec", "-H", self.url, "--pidfile", f"{self.home}/d.pid", "--log-level", "warn",
            *self._options,
        ]  # fmt: skip
        self.process = started(command, self.home / f"log-{self.starts}", self.answers)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(100)
            except OSError:
                return False

    def load(self, *images: str) -> None:
        """Give it images that the shared daemon has."""
        saved = self.home / "images.tar"
        do("docker", "save", "-o", str(saved), *images)
        do("docker", "-H", self.url, "load", "-q", "-i", str(saved))
        saved.unlink()

    def kill(self) -> None:
        """End it as a crash would; its containers stay until it comes back."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is not None and not self.answers():
                self.start()  # only a daemon takes its containers away
            with contextlib.closing(Daemon(self.url)) as client:
                for left in client.containers.list(all=True, ignore_removed=True):
                    left.remove(force=True)
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_containerd()
        do("ip", "netns", "del", self.name)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed(
            [m for m in mounts if m.startswith(f"{self.home}/")]
        ):  # what a killed daemon left
            do("umount", "-l", mount)
        shutil.rmtree(self.home)

    def _end_containerd(self) -> None:
        file = self.home / "exec" / "containerd" / "containerd.pid"
        if not file.exists():
            return
        pid = int(file.read_text())
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(self.home).encode() in command:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
        file.unlink()


def certificates(folder: Path, address: str) -> None:
    """Make an authority with a certificate for a server at the address and one for a client: ``*.pem``."""
    folder.mkdir()
    server = f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n"
    (folder / "server.ext").write_text(server)
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    do(*new, "-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca-key.pem", "-out", "ca.pem",
        cwd=folder)  # fmt: skip
    for who in ("server", "client"):
        do(
            *new,
            "-subj",
            f"/CN={who}",
            "-keyout",
            f"{who}-key.pem",
            "-out",
            f"{who}.csr",
            cwd=folder,
        )
        do("openssl", "x509", "-req", "-days", "2", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem",
            "-CAcreateserial", "-out", f"{who}.pem", "-extfile", f"{who}.ext", cwd=folder)  # fmt: skip
