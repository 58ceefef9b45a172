"""Gateway nodes for tests: the setup of one node, and a world of nodes with routes to each other.

A module whose tests share one node declares how it differs from a new installation. Its tests take
the fixture ``node``::

    NODE = NodeSetup(routes={PEER: UNREACHABLE}, commands={"vendor:1.0.0": ["/bin/sleep", "60"]})

    def test_a_route_is_listed(node):
        assert node.get("/api/v1/routes").json()["total"] == 1

A test that needs several nodes, or a node of its own, builds them from the fixture ``world``::

    def test_two_nodes_run_a_job(world):
        guest = world.node(scripts={IMAGE: Script()})
        host = world.node(NodeSetup(PEER), scripts={IMAGE: Script()})
        world.connect(guest, host)

Everything that a setup does not name is as in a new installation, on free loopback ports.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from gateway.bootstrap.parts import Pace
from provider_registry.registration import provider_from_request
from tests.inprocess import ME, Node, running
from tests.memory_engine import Image, MemoryEngine

# An entry of the route table for a node that nothing listens for.
UNREACHABLE: Mapping[str, Any] = {"url": "http://127.0.0.1:9"}


@dataclass(frozen=True)
class NodeSetup:
    """How a test's node differs from a new installation."""

    node_id: str = ME
    # the route table, by node id, as in routes.yml
    routes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # commands of the process engine, by image
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # scripts of an engine in memory, by image; in place of the process engine
    scripts: Mapping[str, Image] = field(default_factory=dict)
    # the bootstrap token; "" leaves access control off
    token: str = ""
    # bodies of /v2/provider/register
    providers: Sequence[Mapping[str, Any]] = ()
    # further settings, by their first key
    settings: Mapping[str, Any] = field(default_factory=dict)
    # called with the running node, before the first test
    prepare: Callable[[Node], object] | None = None
    # intervals of the node's background work; None as in production
    pace: Pace | None = None

    def all_settings(self) -> dict[str, Any]:
        """Return the settings that differ from a new installation's."""
        settings = dict(self.settings)
        if self.token:
            settings["auth"] = {
                "mode": "on",
                "token": self.token,
            }
        if self.commands:
            images = {}
            for image, command in self.commands.items():
                images[image] = {"command": list(command)}
            settings["engine"] = {
                "kind": "process",
                "process": {"images": images},
            }
        return settings


class World:
    """Builds nodes below a folder and stops them when it is left."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.nodes: list[Node] = []
        self._running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def node(
        self,
        setup: NodeSetup | None = None,
        **changes: Any,
    ) -> Node:
        """Start a node and return it.

        ``changes`` replace fields of the setup, which is a new installation's if it is left out.
        """
        setup = replace(setup or NodeSetup(), **changes)
        home = self.home / f"{len(self.nodes)}-{setup.node_id}"
        home.mkdir(parents=True)
        write_routes(home / "routes.yml", setup.routes)
        make_engine = None
        if setup.scripts:
            make_engine = MemoryEngine.making(setup.scripts)
        node = self._running.enter_context(
            running(
                home,
                setup.node_id,
                make_engine,
                setup.pace or Pace(),
                **setup.all_settings(),
            )
        )
        self.nodes.append(node)
        for request in setup.providers:
            node.registry.register(provider_from_request(request))
        if setup.prepare:
            setup.prepare(node)
        return node

    def connect(self, *nodes: Node, **entry: Any) -> None:
        """Give nodes (all of the world if none is named) routes to each other.

        ``entry`` holds further keys of each route, such as ``profile``. Other routes stay.
        """
        for node, partner in permutations(nodes or self.nodes, 2):
            file = Path(str(node.settings.route_table.file))
            routes = yaml.safe_load(file.read_text()) or {}
            url = partner.addresses()["peer"]
            routes[partner.settings.node.id] = {"url": url, **entry}
            write_routes(file, routes)
            node.routes.reload()


def write_routes(
    file: Path,
    routes: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write a route table, by node id."""
    entries = {node_id: dict(entry) for node_id, entry in routes.items()}
    file.write_text(yaml.safe_dump(entries))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The world of one test, which builds its nodes."""
    with World(tmp_path / "world") as world:
        yield world


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world of a module, for fixtures that build nodes for all of its tests."""
    with World(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, shared_world: World) -> Node:
    """The node of a module, set up as the module's constant ``NODE`` says."""
    return shared_world.node(request.module.NODE)
