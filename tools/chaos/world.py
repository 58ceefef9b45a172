"""The world of the trials: two real nodes with all that a trial may break.

A world has a server of MariaDB or PostgreSQL, a proxy in each direction, and a small disk for the
storage of both nodes. The guest's node may have two gateways, which the host reaches in turn. With
Docker the world has its own daemon, and everything is in the network namespace of that; a
Kubernetes or a Swarm is the suite's.
"""

import contextlib
import copy
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, wait_for
from tests.services.own_docker import OwnDocker, enter
from tools.chaos import pair
from tools.chaos.clusters import Cluster, Pods, Tasks
from tools.chaos.containers import Containers, DockerContainers, Processes
from tools.chaos.databases import DATABASES, Database
from tools.chaos.links import LinkedNodes
from tools.chaos.proxy import Proxy

# With "links", both nodes run processes, and reach each other by links to a hub.
ENGINES = ("process", "docker", "links", "k8s", "swarm")

CLUSTERS: dict[str, type[Cluster]] = {
    "k8s": Pods,
    "swarm": Tasks,
}

X = TypeVar("X")


@contextmanager
def small_disk(
    folder: Path,
    megabytes: int = 32,
) -> Iterator[Path]:
    """Mount a file system of a size on a new folder. Needs root."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(
            ["umount", "--lazy", str(folder)],
            check=True,
        )


@dataclass
class World:
    """Everything that a trial may break."""

    guest: Node
    host: Node
    containers: Containers
    disk: Path
    database: Database | None = None
    proxies: tuple[Proxy, ...] = ()  # to the host and to the guest
    docker: OwnDocker | None = None  # the daemon, if the nodes use one
    links: LinkedNodes | None = None  # if the nodes are closed

    @property
    def gateways(self) -> tuple[Node, ...]:
        """Return the gateways of the guest, and then the host's."""
        if isinstance(self.guest, pair.Pair):
            return (*self.guest.gateways, self.host)
        return self.nodes

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Return the guest's and the host's node."""
        return self.guest, self.host


def within(
    engine: str,
    home: Path,
    work: Callable[[World], X],
    paired: bool = False,
    kind: str = "mariadb",
) -> X:
    """Build a world with an engine, do the work in it, and end it; return the work's result.

    - ``paired``: the guest's node has two gateways
    - ``kind``: the database server's, one of `DATABASES`; closed nodes have none
    """
    if engine == "docker":
        return _within_docker(home, work, paired, kind)
    if engine == "links":
        return _within_links(home, work)
    with ExitStack() as stack:
        register = home / "register"
        containers: Containers
        if engine in CLUSTERS:
            containers = stack.enter_context(CLUSTERS[engine](register))
        else:
            containers = Processes(register)
        world = stack.enter_context(_built(home, containers, None, paired, kind))
        return work(world)


def _within_links(home: Path, work: Callable[[World], X]) -> X:
    """Do the work with two closed nodes."""
    containers = Processes(home / "register")
    with LinkedNodes(home, containers.settings) as links:
        for node in (links.guest, links.host):
            node.register(_provider(containers.image))
        world = World(
            links.guest,
            links.host,
            containers,
            home,
            links=links,
        )
        return work(world)


def _within_docker(
    home: Path,
    work: Callable[[World], X],
    paired: bool,
    kind: str,
) -> X:
    """Do the work in a thread in the network namespace of a Docker daemon.

    Everything that the thread starts is in this namespace, too.
    """
    results: list[X] = []
    errors: list[BaseException] = []

    def work_inside(daemon: OwnDocker) -> None:
        try:
            enter(daemon.name)
            daemon.start()
            containers = DockerContainers(home / "register", daemon)
            containers.build(home / "image")
            with _built(home, containers, daemon, paired, kind) as world:
                results.append(work(world))
        except BaseException as error:
            errors.append(error)

    with contextlib.closing(OwnDocker()) as daemon:
        thread = threading.Thread(
            target=work_inside,
            args=(daemon,),
        )
        thread.start()
        thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _built(
    home: Path,
    containers: Containers,
    daemon: OwnDocker | None,
    paired: bool,
    kind: str,
) -> Iterator[World]:
    """Start everything, and end everything."""
    with ExitStack() as stack:
        database = stack.enter_context(DATABASES[kind](home / "db"))
        disk = stack.enter_context(small_disk(home / "disk"))
        federation = Federation(
            home / "nodes", [jobs.GUEST, "second", jobs.HOST], containers.settings
        )
        first, second, host = federation.nodes.values()
        guests: tuple[Node, ...] = (first, second)
        if not paired:
            del federation.nodes["second"]
            guests = (first,)
        ports = [node.peer_port for node in guests]
        to_host = stack.enter_context(Proxy("127.0.0.1", host.peer_port))
        to_guest = stack.enter_context(Proxy("127.0.0.1", *ports))
        _configure(guests, database.url("bfia_guest"), disk, containers)
        _configure((host,), database.url("bfia_host"), disk, containers)
        _write_routes(first, host.id, to_host)
        _write_routes(host, first.id, to_guest)
        # One gateway of a database has the file of routes; its partner reads them from there.
        del second.settings["route_table"]
        stack.callback(
            shutil.rmtree,
            home / "nodes",
            ignore_errors=True,
        )
        stack.enter_context(federation)
        containers.installations = (
            database.installation("bfia_guest"),
            database.installation("bfia_host"),
        )
        for node in (first, host):
            node.register(_provider(containers.image))
        guest = first
        if paired:
            _wait_for_routes(second)
            guest = pair.one_node(first, second)
        yield World(
            guest,
            host,
            containers,
            disk,
            database,
            (to_host, to_guest),
            daemon,
        )


def _configure(
    gateways: Sequence[Node],
    database_url: str,
    disk: Path,
    containers: Containers,
) -> None:
    """Write the settings of the gateways of one node, whose id is the first one's."""
    node_id = gateways[0].id
    for gateway in gateways:
        gateway.settings["node"] = {"id": node_id}
        gateway.settings |= containers.node_settings
        if containers.host:
            gateway.reached_at(containers.host)
        gateway.settings["database"] = {"url": database_url}
        gateway.settings["limits"] = {"storage_reserve_bytes": 1 << 20}
        gateway.settings["storage"] = {"url": f"file://{disk / node_id}"}
        gateway.pace = {"lost_gateway": pair.LOST_AFTER}


def _write_routes(gateway: Node, peer_id: str, proxy: Proxy) -> None:
    """Write the route to the peer, which leads to the proxy."""
    route = {
        "host": "127.0.0.1",
        "port": proxy.port,
        "deadline": 5,
    }
    (gateway.home / "routes.yml").write_text(yaml.safe_dump({peer_id: route}))


def _provider(image: str) -> dict[str, Any]:
    """Return the registration of the trials' component in an image."""
    provider: dict[str, Any] = copy.deepcopy(A_PROVIDER)
    provider["metadata"]["image"] = image
    provider["components_description"]["Echo"]["storageEngine"] += ["s3"]
    return provider


def _wait_for_routes(gateway: Node) -> None:
    """Wait until a gateway has read the routes from the database."""

    def has_route() -> bool:
        return jobs.HOST in str(gateway.get("/api/v1/routes"))

    wait_for(has_route, about="the second has the routes")
