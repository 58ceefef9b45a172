"""The containers of the trials: processes of this machine, or those of a Docker daemon that a trial
may kill.
"""

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
    """Each says in a folder, the register, that it was started."""

    image = IMAGE
    host = ""
    """the nodes' address for them, where that is not loopback"""
    installations: tuple[str, ...] = ()
    """of the nodes, once these are there"""
    brief = False
    """whether a fault of the engine alone comes immediately and passes soon"""

    def __init__(self, register: Path) -> None:
        self._register = register
        register.mkdir()
        register.chmod(0o777)  # containers write there as nobody

    @property
    def register(self) -> Path:
        return self._register

    @property
    def registers_at(self) -> str:
        """Return where they find the register."""
        return str(self._register)

    @property
    def more(self) -> dict[str, Any]:
        """Return further settings of the nodes."""
        return {}

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        """Return those of their engine alone: each comes, stays for a while and passes."""
        return {}

    def reasons(self, fault: str) -> tuple[str, ...]:
        """Return what a fault of the engine alone, as it just was, may end a job for."""
        return ()

    def started(self) -> list[str]:
        """Return one name per start: task, role, in an image also the attempt, and what tells it
        from others.
        """
        return sorted(path.name for path in self._register.iterdir())

    def forget(self) -> None:
        """Begin a new trial."""
        for path in self._register.iterdir():
            path.unlink()

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of a node's engine."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return those that are there."""

    @abstractmethod
    def kill_one(self, random: Random) -> None:
        """End one that runs, as the kernel does when memory is short."""


def write_image(folder: Path) -> None:
    """Write what an image of the containers is built from."""
    (folder / "patient.py").write_text(PATIENT.read_text())
    entry = 'ENTRYPOINT ["python3", "-I", "-S", "/patient.py"]'
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY patient.py /\n{entry}\n")


class Processes(Containers):
    @property
    def settings(self) -> dict[str, Any]:
        return process_engine(IMAGE, command=[sys.executable, "-I", "-S", str(PATIENT)])

    def left(self) -> list[str]:
        return [name for name in self.started() if alive(_pid(name))]

    def kill_one(self, random: Random) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(_pid(random.choice(self.started())), signal.SIGKILL)


def _pid(name: str) -> int:
    return int(name.rpartition(".")[2])


class DockerContainers(Containers):
    """Of the given daemon, in whose network namespace the nodes, and this thread, have to be."""

    def __init__(self, register: Path, daemon: OwnDocker) -> None:
        super().__init__(register)
        self.daemon = daemon

    def build(self, folder: Path) -> None:
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
        mount = {
            "source": str(self.register),
            "target": str(self.register),
            "read_only": False,
        }
        return {
            "kind": "docker",
            "docker": {"base_url": self.daemon.url, "allow": {"example": {"mounts": [mount]}}},
        }

    def left(self) -> list[str]:
        with contextlib.closing(self._client()) as client:
            listed = client.containers.list(
                all=True,
                ignore_removed=True,
                filters={"label": NODE},
            )
            return [str(found.name) for found in listed]

    def kill_one(self, random: Random) -> None:
        with contextlib.closing(self._client()) as client:
            listed = client.containers.list(ignore_removed=True, filters={"label": NODE})
            running = sorted(listed, key=lambda found: str(found.name))
            with contextlib.suppress(docker.errors.APIError):  # it ended just now
                random.choice(running).kill()

    def _client(self) -> Daemon:
        return Daemon(self.daemon.url)
