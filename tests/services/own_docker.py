"""A Docker daemon for one test, in its own network namespace: it may be killed, or reached over
TLS.

Other tests share another daemon. Needs root and the programs in `PROGRAMS`.
"""

import contextlib
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
from tests import namespaces
from tests.e2e.nodes import wait_for
from tests.services import do, linked, started

PROGRAMS = ("/usr/sbin/dockerd", "ip", "nsenter", "openssl")
BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")


def enter(namespace: str) -> None:
    """Move this thread, and the processes that it starts, to a network namespace with a name."""
    namespaces.enter(f"/var/run/netns/{namespace}")


class Daemon(docker.DockerClient):
    """A client of a daemon, which leaves no socket open if the daemon does not answer."""

    def __init__(self, url: str = "", seconds: int = 60) -> None:
        """``url`` "": the daemon that tests share. ``seconds``: for each request."""
        address = kwargs_from_env()
        if url:
            address = {"base_url": url}
        self.api = Client(version="auto", timeout=seconds, **address)


def remove_network(
    name: str,
    remove: Callable[[], None] | None = None,
) -> None:
    """Remove a network, once the shared daemon has detached its last container.

    ``remove``: called in place of the daemon's own removal.
    """
    with contextlib.closing(Daemon()) as client:

        def is_removed() -> bool:
            try:
                if remove is not None:
                    remove()
                else:
                    client.networks.get(name).remove()
            except docker.errors.NotFound:
                return True
            except (docker.errors.APIError, EngineError) as error:
                print(error)
                _disconnect_all(client, name)
                return False
            return True

        wait_for(is_removed, about=f"network {name} is removed")


def _disconnect_all(client: docker.DockerClient, name: str) -> None:
    """Detach the containers of a network, such as a sandbox whose removal the daemon refused."""
    with contextlib.suppress(docker.errors.APIError):
        network = client.networks.get(name)
        for container in network.attrs["Containers"]:
            network.disconnect(container, force=True)


class OwnDocker:
    """A daemon that can be started, killed and started again; `close` removes it with its
    containers.
    """

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
        """Return the prefix of a command that runs in the daemon's network namespace."""
        return ["nsenter", f"--net=/var/run/netns/{self.name}"]

    def start(self, *options: str) -> None:
        """Start the daemon; without options, with the options of the last start."""
        self._options = list(options) or self._options
        self.socket.unlink(missing_ok=True)
        (self.home / "d.pid").unlink(missing_ok=True)
        self._end_containerd()
        self.starts += 1
        command = [
            *self.inside,
            "/usr/sbin/dockerd",
            "--data-root",
            f"{self.home}/data",
            "--exec-root",
            f"{self.home}/exec",
            "-H",
            self.url,
            "--pidfile",
            f"{self.home}/d.pid",
            "--log-level",
            "warn",
            *self._options,
        ]
        self.process = started(command, self.home / f"log-{self.starts}", self.answers)

    def answers(self) -> bool:
        """Return whether the daemon answers a ping."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(100)
            except OSError:
                return False

    def load(self, *images: str) -> None:
        """Copy images of the shared daemon."""
        archive = self.home / "images.tar"
        do("docker", "save", "-o", str(archive), *images)
        do("docker", "-H", self.url, "load", "-q", "-i", str(archive))
        archive.unlink()

    def kill(self) -> None:
        """End the daemon as a crash would; its containers stay until it starts again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        """Remove the containers, the daemon, its network namespace and its files."""
        if self.process is not None:
            if self.process.poll() is not None and not self.answers():
                self.start()  # only a running daemon can remove its containers
            with contextlib.closing(Daemon(self.url)) as client:
                for container in client.containers.list(all=True, ignore_removed=True):
                    container.remove(force=True)
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_containerd()
        do("ip", "netns", "del", self.name)
        self._unmount_all()
        shutil.rmtree(self.home)

    def _unmount_all(self) -> None:
        """Unmount what a killed daemon left mounted, innermost first."""
        mounts = []
        for line in Path("/proc/mounts").read_text().splitlines():
            target = line.split()[1]
            if target.startswith(f"{self.home}/"):
                mounts.append(target)
        for mount in reversed(mounts):
            do("umount", "-l", mount)

    def _end_containerd(self) -> None:
        """Kill the containerd of a killed daemon, which would block the next start."""
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
    """Write an authority and certificates for a server at an address and a client: ``*.pem`` in
    a folder.
    """
    folder.mkdir()
    server = f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n"
    (folder / "server.ext").write_text(server)
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    do(
        *new,
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
        "-keyout",
        "ca-key.pem",
        "-out",
        "ca.pem",
        cwd=folder,
    )
    for name in ("server", "client"):
        do(
            *new,
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}-key.pem",
            "-out",
            f"{name}.csr",
            cwd=folder,
        )
        do(
            "openssl",
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca-key.pem",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-extfile",
            f"{name}.ext",
            cwd=folder,
        )
