"""What the engine contract needs to know of each engine, and how one is made for a test."""

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from engines.base import CAPABILITIES, Engine, LaunchSpec
from engines.docker import ContainerdEngine, DockerOptions
from engines.process.engine import ProcessEngine
from engines.swarm import SwarmEngine, SwarmOptions
from tests.contracts.engine_acts import ALL_SCRIPTS, PYTHON, Act
from tests.memory_engine import MemoryEngine, MemoryWorld

E = TypeVar("E", bound=Engine)

HOME_VARIABLES = frozenset({"HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "USER", "LOGNAME"})


class Harness(Generic[E]):
    """An engine's world, empty at the start of each test."""

    image: str = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    """an image that exists"""
    no_image = "no-such-image:1.0"
    capabilities: frozenset[str] = CAPABILITIES
    adds = HOME_VARIABLES | {"PATH", "LANG", "HOSTNAME", "PYTHONUNBUFFERED"}
    """variables that a run sees besides those it is given"""
    streams = True
    """whether stdout and stderr are separate streams"""
    daemon = True
    """whether there is something that may be away"""

    def __init__(self) -> None:
        self.installation = uuid.uuid4().hex  # suites that share a daemon do not meet
        self.another = uuid.uuid4().hex
        """a second installation in the same world"""
        self._engines: list[E] = []
        self._owners: set[tuple[str, str]] = set()

    def engine(
        self,
        node: str = "alpha",
        installation: str = "",
        **options: Any,
    ) -> E:
        """Return a new engine object over the same world; the harness closes it."""
        owner = (node, installation or self.installation)
        self._owners.add(owner)
        self._engines.append(self._made(*owner, **options))
        return self._engines[-1]

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> E:
        raise NotImplementedError

    def command(self, act: Act) -> tuple[str, ...]:
        return act.command

    def logged(self, stdout: bytes, stderr: bytes) -> set[bytes]:
        """Return what may be in the log of stdout after a run has written one line to each stream."""
        return {stdout} if self.streams else {stdout + stderr, stderr + stdout}

    def down(self) -> contextlib.AbstractContextManager[Engine]:
        """Give an engine that cannot do anything."""
        raise NotImplementedError

    def close(self) -> None:
        for owner in list(self._owners):
            engine = self.engine(*owner)
            for found in engine.list():
                engine.remove(found.name)
        for engine in self._engines:
            engine.close()


class MemoryHarness(Harness[MemoryEngine]):
    image = "memory:1"
    adds: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.installation = "first"
        self._world = MemoryWorld()

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> MemoryEngine:
        images = {self.image: lambda spec: ALL_SCRIPTS[spec.command or ()]}
        return MemoryEngine(
            node=node,
            installation=installation,
            images=images,
            world=self._world,
            **options,
        )

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        self._world.down = True
        yield self.engine()
        self._world.down = False


class ProcessHarness(Harness[ProcessEngine]):
    image = "base:1"
    capabilities: frozenset[str] = frozenset()
    adds = HOME_VARIABLES | {"PATH", "LANG"}
    daemon = False

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.installation = "first"
        self.root = root

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> ProcessEngine:
        options = {
            "images": {self.image: ("sh",)},
            "run_root": self.root,
            **options,
        }
        return ProcessEngine(
            node=node,
            installation=installation,
            **options,
        )

    def command(self, act: Act) -> tuple[str, ...]:
        return (sys.executable, *act.command[1:]) if act.command[0] == PYTHON else act.command

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        blocked = self.root.with_name("a-file")
        blocked.write_text("where the folder of runs should be")
        with contextlib.closing(self._made("alpha", self.installation, run_root=blocked)) as engine:
            yield engine


class SwarmHarness(Harness[SwarmEngine]):
    """Three machines, of which the first is the manager."""

    isolates = frozenset({"tasks"})
    """what goes to other machines, only their own packet filters can stop"""
    capabilities = frozenset({"fractional_cpu", "network", "capabilities"})
    cluster, last = "swarm", "==3"
    gone = "the machine on which it was placed is gone"
    no_room = r"no suitable node .*insufficient resources"

    def __init__(self, where: str = "!=3") -> None:
        """``where``: on which machines; one of the tests takes the third away."""
        super().__init__()
        self.where = f"node.labels.machine{where}"
        self.manager = f"unix://{os.environ['BFIA_TEST_SWARM']}/1/s"

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> SwarmEngine:
        options = {
            "base_url": self.manager,
            "grace": 2.0,
            "constraints": (self.where,),
            **options,
        }
        return SwarmEngine(node, installation, SwarmOptions(**options))

    def pods(self, run: str) -> Sequence[Any]:
        return ()

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        yield self.engine(base_url="unix:///no/such/socket")


class InSandboxes(ContainerdEngine):
    """Starts every run in a sandbox."""

    def launch(self, spec: LaunchSpec) -> None:
        self.sandboxes.prepare(self.network_id())
        super().launch(spec)


class DockerHarness(Harness[ContainerdEngine]):
    def __init__(self, network: str, kind: type[ContainerdEngine] = ContainerdEngine) -> None:
        super().__init__()
        self._kind = kind
        self.network = network

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> ContainerdEngine:
        return self._kind(node, installation, DockerOptions(**{"network": self.network, **options}))

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
            port = unused.getsockname()[1]
            yield self.engine(base_url=f"tcp://127.0.0.1:{port}")
