"""Two real nodes on a MariaDB server of their own, a proxy in each direction, a small disk for
their storage.

The guest's may be two gateways, which the host reaches in turn.

With Docker the daemon is the world's own too, and everything is in its network namespace. A
Kubernetes or a Swarm is that of the suite.
"""

import contextlib
import copy
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pymysql
import yaml

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, free_ports, wait_for
from tests.services.own_docker import OwnDocker, enter
from tools.chaos import pair
from tools.chaos.clusters import Cluster, Pods, Tasks
from tools.chaos.containers import Containers, DockerContainers, Processes
from tools.chaos.proxy import Proxy

ENGINES = ("process", "docker", "k8s", "swarm")

CLUSTERS: dict[str, type[Cluster]] = {"k8s": Pods, "swarm": Tasks}

X = TypeVar("X")


class Database:
    """A MariaDB server that a trial may kill."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Database":
        self._home.mkdir()
        install = [
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={self._home / 'data'}",
        ]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True)
        self.start()
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute("create user bfia@'127.0.0.1' identified by 'bfia'")
            cursor.execute("grant all on *.* to bfia@'127.0.0.1'")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={self._home / 'data'}"]
        command += [
            f"--socket={self._home / 's.sock'}",
            f"--pid-file={self._home / 'm.pid'}",
            "--skip-name-resolve",
        ]
        command += [
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--innodb-buffer-pool-size=32M",
        ]
        path = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"}
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=path,
            )
        wait_for(self._answers, 60, 0.1, "the database answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def url(self, name: str) -> str:
        """Make a database; return its address."""
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {name}")
        return f"mysql+pymysql://bfia:bfia@127.0.0.1:{self.port}/{name}"

    def installation(self, name: str) -> str:
        """Return the id that a node has given to a database."""
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"select id from {name}.installation")
            return str((cursor.fetchone() or ("",))[0])

    def _connection(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(unix_socket=str(self._home / "s.sock"), user="root")

    def _answers(self) -> bool:
        with socket.socket(
            socket.AF_UNIX
        ) as knocking:  # the driver leaves its socket open where nobody is there
            try:
                knocking.connect(str(self._home / "s.sock"))
            except OSError:
                return False
        with contextlib.suppress(pymysql.Error):
            self._connection().close()
            return True
        return False


@contextmanager
def small_disk(folder: Path, megabytes: int = 32) -> Iterator[Path]:
    """Mount a file system of that size. Needs root."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class World:
    """Everything that a trial may break."""

    guest: Node
    host: Node
    database: Database
    to_host: Proxy
    to_guest: Proxy
    disk: Path
    containers: Containers
    docker: OwnDocker | None
    """the daemon, where the nodes use one"""

    @property
    def gateways(self) -> tuple[Node, ...]:
        """Return the guest's, then the host's."""
        return (
            *(self.guest.gateways if isinstance(self.guest, pair.Pair) else (self.guest,)),
            self.host,
        )

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self.guest, self.host

    @property
    def proxies(self) -> tuple[Proxy, Proxy]:
        return self.to_host, self.to_guest


def within(
    engine: str,
    home: Path,
    work: Callable[[World], X],
    paired: bool = False,
) -> X:
    """Build a world of that engine, do the work in it, and end it; ``paired``: the guest is two
    gateways.
    """
    if engine == "process":
        with _built(home, Processes(home / "register"), None, paired) as world:
            return work(world)
    if engine in CLUSTERS:
        with (
            CLUSTERS[engine](home / "register") as cluster,
            _built(home, cluster, None, paired) as world,
        ):
            return work(world)
    found: list[X] = []
    failed: list[BaseException] = []

    def inside(daemon: OwnDocker) -> None:
        try:
            enter(daemon.name)
            daemon.start()
            containers = DockerContainers(home / "register", daemon)
            containers.build(home / "image")
            with _built(home, containers, daemon, paired) as world:
                found.append(work(world))
        except BaseException as error:
            failed.append(error)

    with contextlib.closing(OwnDocker()) as daemon:
        thread = threading.Thread(
            target=inside, args=(daemon,)
        )  # it and what it starts are in the namespace
        thread.start()
        thread.join()
    if failed:
        raise failed[0]
    return found[0]


@contextmanager
def _built(
    home: Path,
    containers: Containers,
    daemon: OwnDocker | None,
    paired: bool,
) -> Iterator[World]:
    """Start everything; end everything."""
    with ExitStack() as stack:
        database = stack.enter_context(Database(home / "db"))
        disk = stack.enter_context(small_disk(home / "disk"))
        federation = Federation(
            home / "nodes", [jobs.GUEST, "second", jobs.HOST], containers.settings
        )
        first, second, host = federation.nodes.values()
        if not paired:
            del federation.nodes["second"]
        gateways = (first, second) if paired else (first,)
        to_host = stack.enter_context(Proxy("127.0.0.1", host.peer_port))
        to_guest = stack.enter_context(Proxy("127.0.0.1", *(node.peer_port for node in gateways)))
        for nodes, other, proxy, name in (
            (gateways, host, to_host, "guest"),
            ((host,), first, to_guest, "host"),
        ):
            url = database.url(f"bfia_{name}")
            for node in nodes:
                node.settings["node"] = {"id": nodes[0].id}
                node.settings |= containers.more
                if containers.host:
                    node.reached_at(containers.host)
                node.settings["database"] = {"url": url}
                node.settings["limits"] = {"storage_reserve_bytes": 1 << 20}
                node.pace = {"lost_gateway": pair.LOST_AFTER}
                node.settings["storage"] = {"url": f"file://{disk / nodes[0].id}"}
            routes = {
                other.id: {
                    "host": "127.0.0.1",
                    "port": proxy.port,
                    "deadline": 5,
                }
            }
            (nodes[0].home / "routes.yml").write_text(yaml.safe_dump(routes))
        del second.settings[
            "route_table"
        ]  # one gateway of a database has the file, all have its routes
        stack.callback(shutil.rmtree, home / "nodes", ignore_errors=True)
        stack.enter_context(federation)
        containers.installations = tuple(
            database.installation(f"bfia_{name}") for name in ("guest", "host")
        )
        provider = copy.deepcopy(A_PROVIDER)
        provider["metadata"]["image"] = containers.image
        provider["components_description"]["Echo"]["storageEngine"] += ["s3"]
        for node in (first, host):
            node.register(provider)
        if paired:
            wait_for(
                lambda: jobs.HOST in str(second.get("/api/v1/routes")),
                about="the second has the routes",
            )
        guest = pair.one_node(first, second) if paired else first
        yield World(guest, host, database, to_host, to_guest, disk, containers, daemon)
