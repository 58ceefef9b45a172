"""The containers of the trials: processes of this machine, or of a Docker daemon to kill."""

import contextlib
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import docker.errors

from engines.base import NODE
from tests.e2e.nodes import ROOT, alive, process_engine
from tests.services.own_docker import BASE, Daemon, OwnDocker

IMAGE = "example:1.0.0"
PATIENT = ROOT / "tests" / "e2e" / "patient.py"


class Containers(ABC):
    """Containers that each write their start into a folder, the register."""

    image = IMAGE
    host = ""  # the nodes' address for containers; empty: loopback
    installations: tuple[str, ...] = ()  # ids of the nodes' installations, once the nodes run
    brief = False  # whether a fault of the engine comes immediately and ends soon

    def __init__(self, register: Path) -> None:
        self._register = register
        register.mkdir()
        register.chmod(0o777)  # containers write there as an unprivileged user

    @property
    def register(self) -> Path:
        return self._register

    @property
    def register_address(self) -> str:
        """Return the address of the register for containers: its folder or, in clusters, a port."""
        return str(self._register)

    @property
    def node_settings(self) -> dict[str, Any]:
        """Return further settings of the nodes."""
        return {}

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        """Return the faults of the engine itself; a call causes one for a while and ends it."""
        return {}

    def reasons(self, fault: str) -> tuple[str, ...]:
        """Return the reasons for which the last fault of the engine may end a job."""
        return ()

    def started(self) -> list[str]:
        """Return a name per start: task, role, the attempt in an image, and a distinct ending."""
        return sorted(path.name for path in self._register.iterdir())

    def forget(self) -> None:
        """Empty the register for a new trial."""
        for path in self._register.iterdir():
            path.unlink()

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of a node's engine."""

    @abstractmethod
    def remaining(self) -> list[str]:
        """Return the containers that exist."""

    @abstractmethod
    def kill_one(self, random: Random) -> None:
        """Kill a running container, as the kernel does when memory is short."""


def write_image(folder: Path) -> None:
    """Write the files from which the image of the containers is built."""
    (folder / "patient.py").write_text(PATIENT.read_text())
    entry = 'ENTRYPOINT ["python3", "-I", "-S", "/patient.py"]'
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY patient.py /\n{entry}\n")


class Processes(Containers):
    """Processes of this machine."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the process engine."""
        return process_engine(
            IMAGE,
            command=[sys.executable, "-I", "-S", str(PATIENT)],
        )

    def remaining(self) -> list[str]:
        """Return the containers whose processes exist."""
        return [name for name in self.started() if alive(_pid(name))]

    def kill_one(self, random: Random) -> None:
        """Kill a started process, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(
                _pid(random.choice(self.started())),
                signal.SIGKILL,
            )


def _pid(name: str) -> int:
    return int(name.rpartition(".")[2])


class DockerContainers(Containers):
    """Containers of a daemon; the nodes and this thread must be in its network namespace."""

    def __init__(self, register: Path, daemon: OwnDocker) -> None:
        super().__init__(register)
        self.daemon = daemon

    def build(self, folder: Path) -> None:
        """Build the image from files in a new folder."""
        self.daemon.load(BASE)
        folder.mkdir()
        write_image(folder)
        with contextlib.closing(self._client()) as client:
            client.images.build(
                path=str(folder),
                tag=IMAGE,
                rm=True,
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the Docker engine, which mounts the register."""
        mount = {
            "source": str(self.register),
            "target": str(self.register),
            "read_only": False,
        }
        return {
            "kind": "docker",
            "docker": {
                "base_url": self.daemon.url,
                "allow": {"example": {"mounts": [mount]}},
            },
        }

    def remaining(self) -> list[str]:
        """Return the nodes' containers, also the ones that have ended."""
        with contextlib.closing(self._client()) as client:
            containers = client.containers.list(
                all=True,
                ignore_removed=True,
                filters={"label": NODE},
            )
            return [str(container.name) for container in containers]

    def kill_one(self, random: Random) -> None:
        """Kill a running container of a node, unless it has ended."""
        with contextlib.closing(self._client()) as client:
            containers = client.containers.list(
                ignore_removed=True,
                filters={"label": NODE},
            )
            running = sorted(containers, key=name_of)
            with contextlib.suppress(docker.errors.APIError):
                random.choice(running).kill()

    def _client(self) -> Daemon:
        return Daemon(self.daemon.url)


def name_of(container: Any) -> str:
    """Return the name of a container, by which they are sorted."""
    return str(container.name)
