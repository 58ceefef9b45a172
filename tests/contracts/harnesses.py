"""What the engine contract needs to know of each engine, and how one is made for a test."""

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.base import CAPABILITIES, Engine, LaunchSpec
from engines.docker import ContainerdEngine, DockerOptions
from engines.process.engine import ProcessEngine
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm.tasks import Form
from tests.contracts.engine_acts import ALL_SCRIPTS, PYTHON, Act
from tests.memory_engine import MemoryEngine, MemoryWorld

Owner = tuple[str, str]


class MemoryHarness:
    image = "memory:1"
    capabilities = CAPABILITIES
    adds: frozenset[str] = frozenset()
    daemon = True
    installation, another = "first", "second"

    def __init__(self) -> None:
        self._world = MemoryWorld()
        self._engines: list[MemoryEngine] = []

    def engine(self, node: str = "alpha", installation: str = "") -> MemoryEngine:
        engine = MemoryEngine(
            node=node,
            installation=installation or self.installation,
            images={self.image: lambda spec: ALL_SCRIPTS[spec.command or ()]},
            world=self._world,
        )
        self._engines.append(engine)
        return engine

    def command(self, act: Act) -> tuple[str, ...]:
        return act.command

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        self._world.down = True
        yield self.engine()
        self._world.down = False

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


class ProcessHarness:
    image = "base:1"
    capabilities: frozenset[str] = frozenset()
    adds = frozenset({"PATH", "HOME", "LANG"})
    daemon = False
    installation, another = "first", "second"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._engines: dict[ProcessEngine, Owner] = {}

    def engine(self, node: str = "alpha", installation: str = "", **options: Any) -> ProcessEngine:
        owner = (node, installation or self.installation)
        engine = self._over(self.root, owner, **options)
        self._engines[engine] = owner
        return engine

    def command(self, act: Act) -> tuple[str, ...]:
        return (sys.executable, *act.command[1:]) if act.command[0] == PYTHON else act.command

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        blocked = self.root.with_name("a-file")
        blocked.write_text("where the folder of runs should be")
        engine = self._over(blocked, ("alpha", self.installation))
        yield engine
        engine.close()

    def close(self) -> None:
        for engine in self._engines:
            for found in engine.list():
                engine.remove(found.name)
            engine.close()

    def _over(self, root: Path, owner: Owner, **options: Any) -> ProcessEngine:
        images = {self.image: ("sh",)}
        return ProcessEngine(node=owner[0], installation=owner[1], images=images, run_root=root, **options)


class InSandboxes(ContainerdEngine):
    """Starts every run in a sandbox."""

    def launch(self, spec: LaunchSpec) -> None:
        self.sandboxes.prepare(self.network_id())
        super().launch(spec)


class SwarmHarness:
    """Three machines, of which the first is the manager."""

    isolates = frozenset({"tasks"})
    """what goes to other machines, only their own packet filters can stop"""
    capabilities = frozenset({"fractional_cpu", "network", "capabilities"})
    adds = frozenset({"PATH", "HOME", "LANG", "HOSTNAME", "PYTHONUNBUFFERED"})
    daemon = True

    def __init__(self, where: str = "!=3") -> None:
        """``where``: on which machines; one of the tests takes the third away."""
        self.where = where
        self.image = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
        self.manager = f"unix://{os.environ['BFIA_TEST_SWARM']}/1/s"
        self.installation, self.another = uuid.uuid4().hex, uuid.uuid4().hex
        self._engines: list[SwarmEngine] = []
        self._owners: set[Owner] = set()

    def engine(self, node: str = "alpha", installation: str = "", **options: Any) -> SwarmEngine:
        owner = (node, installation or self.installation)
        form = Form(grace=2.0, constraints=(f"node.labels.machine{self.where}",))
        engine = SwarmEngine(*owner, SwarmOptions(**{"base_url": self.manager, "form": form, **options}))
        self._engines.append(engine)
        self._owners.add(owner)
        return engine

    def command(self, act: Act) -> tuple[str, ...]:
        return act.command

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        yield self.engine(base_url="unix:///no/such/socket")

    def close(self) -> None:
        for node, installation in list(self._owners):
            engine = self.engine(node, installation)
            for found in engine.list():
                engine.remove(found.name)
        for engine in self._engines:
            engine.close()


class DockerHarness:
    """Has installations of its own, so that suites that share a daemon do not meet."""

    capabilities = CAPABILITIES
    adds = frozenset({"PATH", "HOME", "LANG", "HOSTNAME", "PYTHONUNBUFFERED"})
    daemon = True

    def __init__(self, network: str, kind: type[ContainerdEngine] = ContainerdEngine) -> None:
        self._kind = kind
        self.image = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
        self.network = network
        self.installation, self.another = uuid.uuid4().hex, uuid.uuid4().hex
        self._engines: list[ContainerdEngine] = []
        self._owners: set[Owner] = set()

    def engine(self, node: str = "alpha", installation: str = "", **options: Any) -> ContainerdEngine:
        owner = (node, installation or self.installation)
        options = {"network": self.network, **options}
        engine = self._kind(*owner, DockerOptions(**options))
        self._engines.append(engine)
        self._owners.add(owner)
        return engine

    def command(self, act: Act) -> tuple[str, ...]:
        return act.command

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
            port = unused.getsockname()[1]
            yield self.engine(base_url=f"tcp://127.0.0.1:{port}")

    def close(self) -> None:
        for node, installation in list(self._owners):
            engine = self.engine(node, installation)
            for found in engine.list():
                engine.remove(found.name)
        for engine in self._engines:
            engine.close()
