"""The harnesses of the engine contract: each builds one kind of engine and names its features."""

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
from engines.docker.client import Connection
from engines.process.engine import ProcessEngine
from engines.swarm import SwarmEngine, SwarmOptions
from tests.contracts.engine_acts import ALL_SCRIPTS, PYTHON, Act
from tests.memory_engine import MemoryEngine, MemoryWorld

E = TypeVar("E", bound=Engine)

HOME_VARIABLES = frozenset({"HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "USER", "LOGNAME"})


class Harness(Generic[E]):
    """An engine's world, empty at the start of each test."""

    # An existing image.
    image: str = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    # A missing image.
    no_image = "no-such-image:1.0"
    # Features that only some engines have.
    capabilities: frozenset[str] = CAPABILITIES
    # Variables that the engine may add to a run.
    adds = HOME_VARIABLES | {"PATH", "LANG", "HOSTNAME", "PYTHONUNBUFFERED"}
    # Whether stdout and stderr are separate streams.
    streams = True
    # Whether the engine is a client of a daemon, which may be down.
    daemon = True

    def __init__(self) -> None:
        self.installation = uuid.uuid4().hex  # new, as suites share a daemon
        self.another = uuid.uuid4().hex  # a second installation in the same world
        self.engines: list[E] = []
        self._owners: set[tuple[str, str]] = set()  # nodes and installations that launched runs

    def engine(
        self,
        node: str = "alpha",
        installation: str = "",
        **options: Any,
    ) -> E:
        """Return a new engine object over the same world; the harness closes it.

        ``installation`` "": that of the harness.
        """
        owner = (node, installation or self.installation)
        self._owners.add(owner)
        engine = self._build(*owner, **options)
        self.engines.append(engine)
        return engine

    def _build(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> E:
        """Return a new engine object; ``options`` replace the harness's defaults."""
        raise NotImplementedError

    def command(
        self,
        act: Act,
    ) -> tuple[str, ...]:
        """Return the command of an act for this engine."""
        return act.command

    def logged(
        self,
        stdout: bytes,
        stderr: bytes,
    ) -> set[bytes]:
        """Return the possible logs of stdout after a run has written a line to each stream."""
        if self.streams:
            return {stdout}
        return {stdout + stderr, stderr + stdout}

    def down(self) -> contextlib.AbstractContextManager[Engine]:
        """Yield an engine that is down."""
        raise NotImplementedError

    def remove_runs(self) -> None:
        """Remove the runs of all engines of this harness."""
        for owner in list(self._owners):
            engine = self.engine(*owner)
            for run in engine.list():
                engine.remove(run.name)

    def abandon_runs(self) -> None:
        """Leave the runs to their daemon: `close` does not remove them."""
        self._owners.clear()

    def close(self) -> None:
        """Remove all runs and close all engines."""
        self.remove_runs()
        for engine in self.engines:
            engine.close()


class MemoryHarness(Harness[MemoryEngine]):
    """Engines whose runs are scripts in this process."""

    image = "memory:1"
    adds: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.installation = "first"
        self._world = MemoryWorld()

    def _build(
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
    """Engines whose runs are processes of this machine."""

    image = "base:1"
    capabilities: frozenset[str] = frozenset()
    adds = HOME_VARIABLES | {"PATH", "LANG"}
    daemon = False

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.installation = "first"
        self.root = root

    def _build(
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
        return ProcessEngine(node=node, installation=installation, **options)

    def command(
        self,
        act: Act,
    ) -> tuple[str, ...]:
        program, *arguments = act.command
        if program == PYTHON:
            program = sys.executable
        return (program, *arguments)

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        blocked = self.root.with_name("a-file")
        blocked.write_text("a file in place of the folder of runs")
        with contextlib.closing(
            self._build(
                "alpha",
                self.installation,
                run_root=blocked,
            )
        ) as engine:
            yield engine


class SwarmHarness(Harness[SwarmEngine]):
    """Three machines; the first is the manager."""

    # Only the machines' own packet filters can stop connections to other machines.
    isolates = frozenset({"tasks"})
    capabilities = frozenset({"fractional_cpu", "network", "capabilities"})
    cluster = "swarm"
    last = "==3"
    gone = "the machine on which it was placed is gone"
    no_room = r"no suitable node .*insufficient resources"

    def __init__(self, machines: str = "!=3") -> None:
        """``machines``: a condition on the machine's number; some tests cut off the third."""
        super().__init__()
        self.constraint = f"node.labels.machine{machines}"
        self.manager = f"unix://{os.environ['BFIA_TEST_SWARM']}/1/s"

    def _build(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> SwarmEngine:
        options = {
            "base_url": self.manager,
            "grace": 2.0,
            "constraints": (self.constraint,),
            **options,
        }
        return SwarmEngine(node, installation, SwarmOptions(**options))

    def pods(self, run: str) -> Sequence[Any]:
        """Return no pods: only a Kubernetes has them."""
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
    """Engines at the Docker daemon of this machine."""

    def __init__(
        self, network: str, engine_class: type[ContainerdEngine] = ContainerdEngine
    ) -> None:
        super().__init__()
        self._engine_class = engine_class
        self.network = network

    def _build(
        self,
        node: str,
        installation: str,
        client: Connection | None = None,
        **options: Any,
    ) -> ContainerdEngine:
        options = {"network": self.network, **options}
        return self._engine_class(node, installation, DockerOptions(**options), client)

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # does not listen: connections are refused
            port = unused.getsockname()[1]
            yield self.engine(base_url=f"tcp://127.0.0.1:{port}")
