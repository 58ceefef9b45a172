"""The addresses that a container reaches, tried from inside.

Most tests show as well that a container which is not ours reaches the addresses that are closed to
runs. An address, ``host:port``, is called a door here.
"""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import docker
import pytest

from engines.base import (
    INSTALLATION,
    NODE,
    RULES_CREATED_AT_START,
    CreateFailed,
    Engine,
    EngineError,
    Isolation,
    Mount,
)
from engines.docker import ContainerdEngine, network
from engines.docker.network import NodeNetwork
from engines.firewall import Firewall
from tests.builders import raising
from tests.contracts.engine_acts import (
    WAITS,
    Act,
    a_spec,
    launch_run,
    output_of,
    python,
    wait_for_exit,
    wait_for_output,
)
from tests.contracts.harnesses import DockerHarness, InSandboxes
from tests.doors import LOOK, SERVES, listening
from tests.services import do, linked
from tests.services.own_docker import remove_network

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        os.geteuid() != 0,
        reason="the packet filter of this host needs root",
    ),
]


def default_bridge(daemon: docker.DockerClient) -> str:
    """Return this host's address in Docker's default network.

    After a daemon's first start, the address is not recorded: it is the first of the subnet.
    """
    pool = daemon.api.inspect_network("bridge")["IPAM"]["Config"][0]
    if pool.get("Gateway"):
        return str(pool["Gateway"])
    return str(next(ipaddress.ip_network(pool["Subnet"]).hosts()))


# Serves ports 8080 and 8081.
SERVES_TWO_PORTS = """
import select, socket
servers = [socket.create_server(("0.0.0.0", port)) for port in (8080, 8081)]
print("ready", flush=True)
while True:
    for server in select.select(servers, [], [])[0]:
        server.accept()[0].close()
"""

IN_BOTH = pytest.mark.parametrize(
    "harness",
    [ContainerdEngine, InSandboxes],
    indirect=True,
)


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[DockerHarness]:
    engine_class = getattr(request, "param", ContainerdEngine)
    name = f"bfia-isolation-{uuid.uuid4().hex[:8]}"
    with contextlib.closing(DockerHarness(name, engine_class)) as harness:
        yield harness


@pytest.fixture
def engine(harness: DockerHarness) -> Iterator[ContainerdEngine]:
    engine = harness.engine()
    yield engine
    for run in engine.list():
        engine.remove(run.name)
    remove_network(harness.network, engine.remove_network)


@contextlib.contextmanager
def another_machine(network: str = "10.214") -> Iterator[str]:
    """Serve ports 8080 and 8081 at an address behind this host, as in the internet.

    Yields the address.
    """
    name = "bfia" + uuid.uuid4().hex[:6]
    near, far = linked(name, network)
    try:
        do(
            "ip",
            "-n",
            name,
            "route",
            "add",
            "default",
            "via",
            near,
        )
        server = subprocess.Popen(
            ["nsenter", f"--net=/var/run/netns/{name}", "python3", "-c", SERVES_TWO_PORTS],
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield far
        finally:
            server.kill()
            server.communicate()
    finally:
        do("ip", "netns", "del", name)


# Returns for each door whether it is open.
Look = Callable[..., dict[str, bool]]


def open_doors(
    harness: Any,
    engine: Engine,
    *doors: str,
    **fields: Any,
) -> dict[str, bool]:
    """Return for each door whether it is open to a run; ``fields`` belong to its spec."""
    act = Act(("python3", "-c", LOOK, *doors))
    return dict(json.loads(output_of(harness, engine, act, **fields)))


@pytest.fixture
def from_run(harness: DockerHarness, engine: ContainerdEngine) -> Look:
    """Look from a run of the engine."""
    return partial(open_doors, harness, engine)


@pytest.fixture
def from_elsewhere(
    harness: DockerHarness,
    daemon: docker.DockerClient,
) -> Look:
    """Look from a container on the daemon's default network.

    A door that is closed to this container shows nothing about the isolation of runs.
    """

    def look(*doors: str) -> dict[str, bool]:
        command = ["python3", "-c", LOOK, *doors]
        output: bytes = daemon.containers.run(
            harness.image,
            command,
            remove=True,
        )
        return dict(json.loads(output))

    return look


def address_of(
    daemon: docker.DockerClient,
    name: str,
) -> str:
    networks: dict[str, Any] = daemon.api.inspect_container(name)["NetworkSettings"]["Networks"]
    (network,) = networks.values()
    return str(network["IPAddress"])


def launch_server(
    harness: DockerHarness,
    engine: ContainerdEngine,
    **fields: Any,
) -> str:
    """Launch a run that listens at port 9000; return its door."""
    command = ("python3", "-c", SERVES)
    spec = launch_run(harness, engine, WAITS, command=command, **fields)
    wait_for_output(engine, spec.name, b"ready")
    return f"{engine.address(spec.name)}:9000"


@pytest.fixture
def stranger(
    harness: DockerHarness,
    daemon: docker.DockerClient,
) -> Iterator[Any]:
    """A container that is no run's: it listens at port 9000, which is published at this host."""
    container = daemon.containers.run(
        harness.image,
        command=["python3", "-c", SERVES],
        detach=True,
        ports={"9000/tcp": None},
    )
    while b"ready" not in container.logs():
        threading.Event().wait(0.05)
    yield container
    container.remove(force=True)


def published_port(
    daemon: docker.DockerClient,
    container: Any,
) -> str:
    return str(daemon.api.port(container.id, 9000)[0]["HostPort"])


def opened(
    doors: Mapping[str, str],
    is_open: Mapping[str, bool],
) -> set[str]:
    """Return the descriptions of the doors that are open."""
    return {description for description, door in doors.items() if is_open[door]}


COMPLETE = Isolation(
    tasks=True,
    host=True,
    outside=True,
)


@IN_BOTH
def test_a_task_reaches_the_gateways_listener_and_nothing_else(
    harness, engine, daemon, stranger, from_run, from_elsewhere
):
    gateway = engine.gateway_address()
    docker0 = default_bridge(daemon)
    with (
        listening() as database,
        listening() as operators,
        listening(gateway) as door,
        another_machine() as far,
    ):
        engine.close_host([door])
        neighbour = launch_server(harness, engine)
        closed_to_all_but_docker = {
            "the database": f"{gateway}:{database}",
            "the operators' listener": f"{gateway}:{operators}",
            "this host by another address": f"{docker0}:{database}",
            "a container of somebody else": f"{address_of(daemon, stranger.id)}:9000",
            "another machine": f"{far}:8080",
        }
        closed = {"another task": neighbour, **closed_to_all_but_docker}

        is_open = from_run(*closed.values(), f"{gateway}:{door}")

        assert opened(closed, is_open) == set()
        assert is_open[f"{gateway}:{door}"]
        # Another task is closed to the stranger as well: Docker itself keeps bridges apart.
        assert all(from_elsewhere(*closed_to_all_but_docker.values()).values())
    assert engine.isolation() == COMPLETE


@IN_BOTH
def test_a_task_reaches_the_services_that_it_has_to_and_nothing_else(
    harness, engine, daemon, stranger, from_run, from_elsewhere
):
    gateway = engine.gateway_address()
    docker0 = default_bridge(daemon)
    with (
        listening() as database,
        listening() as local,
        listening(gateway) as door,
        another_machine() as far,
        another_machine("169.254") as metadata,
    ):
        engine.close_host([door])
        local_service = f"{docker0}:{local}"
        far_service = f"{far}:8080"
        published_service = f"{docker0}:{published_port(daemon, stranger)}"
        services = (local_service, far_service, published_service, "10.214.255.0/24:8080")
        neighbour = launch_server(
            harness,
            engine,
            reach=services,
        )
        needed = (f"{gateway}:{door}", local_service, far_service, published_service)
        closed_to_runs = {
            "the database": f"{gateway}:{database}",
            "the same by another address": f"{docker0}:{database}",
            "the service's port at another address": f"{gateway}:{local}",
            "a container of somebody else": f"{address_of(daemon, stranger.id)}:9000",
            "another port of the service's machine": f"{far}:8081",
            "another machine, such as cloud metadata": f"{metadata}:8080",
        }
        closed = {
            "a task at the same services": neighbour,
            "the listener's port elsewhere": f"{far}:{door}",
            **closed_to_runs,
        }

        is_open = from_run(*needed, *closed.values(), reach=services)

        assert [door for door in needed if not is_open[door]] == []
        assert opened(closed, is_open) == set()
        doors = services[:3]
        assert from_run(*doors) == dict.fromkeys(doors, False)
        assert from_run(*doors, reach=(far_service,)) == {
            local_service: False,
            far_service: True,
            published_service: False,
        }
        assert all(from_elsewhere(*closed_to_runs.values()).values())
        assert engine.isolation() == COMPLETE


def delete_rules(bridge: str) -> None:
    """Delete the rules of Docker's chain for users that name this bridge."""
    output = subprocess.check_output(
        ["iptables", "-S", "DOCKER-USER"],
        text=True,
    )
    for line in output.splitlines():
        if bridge in line:
            rule = line.split()[1:]  # without -A
            subprocess.run(["iptables", "-D", *rule], check=True)


def bridge_of(
    daemon: docker.DockerClient,
    network: str,
) -> str:
    """Return the name of a network's bridge."""
    options = daemon.api.inspect_network(network)["Options"]
    return str(options["com.docker.network.bridge.name"])


def test_a_service_is_found_by_name_and_lost_rules_are_restored(
    engine, daemon, from_run, monkeypatch
):
    addresses = {"lake.bank.example": default_bridge(daemon)}
    monkeypatch.setattr(socket, "gethostbyname", addresses.__getitem__)
    engine.close_host([1])
    with listening() as lake, listening() as other:
        service = f"lake.bank.example:{lake}"
        other_port = f"lake.bank.example:{other}"
        for _ in range(2):  # the second time after the loss of the rules
            assert from_run(service, other_port, reach=(service,)) == {
                service: True,
                other_port: False,
            }
            assert engine.isolation().outside

            container = daemon.api.inspect_container(engine.list()[0].name)
            delete_rules(bridge_of(daemon, container["HostConfig"]["NetworkMode"]))

            assert not engine.isolation().outside
            assert "no rules" in engine.isolation().gaps[0]
        assert engine.obstacle_to((service,)) == ""


def test_a_service_at_the_loopback_address_cannot_be_reached(harness, engine, monkeypatch):
    service = "here.example:80"
    monkeypatch.setattr(
        socket,
        "gethostbyname",
        {"here.example": "127.0.0.1"}.__getitem__,
    )

    assert "loopback" in engine.obstacle_to((service,))
    with pytest.raises(CreateFailed, match="loopback"):
        engine.launch(a_spec(harness, WAITS, reach=(service,)))


@dataclass(frozen=True)
class ClosedHost:
    """The rules that close this host to a bridge: a jump into our chain of the packet filter."""

    bridge: str

    @property
    def chain(self) -> str:
        return Firewall(self.bridge, "").chain

    def delete_jump(self) -> None:
        jump = ["INPUT", "-i", self.bridge, "-j", self.chain]
        subprocess.run(["iptables", "-D", *jump], check=True)

    def delete_chain(self) -> None:
        subprocess.run(
            ["iptables", "-F", self.chain],
            check=True,
        )
        subprocess.run(
            ["iptables", "-X", self.chain],
            check=True,
        )


def remove_network_with_runs(engine: ContainerdEngine, network: Any) -> None:
    engine.sandboxes.drain()
    for run in engine.list():
        engine.remove(run.name)
    network.remove()


@pytest.mark.parametrize(
    "is_wiped",
    [False, True],
    ids=["without its rule", "without its network"],
)
def test_a_host_that_was_opened_is_closed_again_before_the_next_start(
    engine, daemon, from_run, monkeypatch, caplog, is_wiped
):
    monkeypatch.setattr(network, "CHECK_EVERY", 0.0)
    gateway = engine.gateway_address()
    with listening() as operators, listening(gateway) as door:
        engine.close_host([door])
        closed_door = f"{default_bridge(daemon)}:{operators}"
        open_door = f"{gateway}:{door}"
        host = ClosedHost(bridge_of(daemon, engine.network_id()))
        host.delete_jump()
        if is_wiped:
            host.delete_chain()
            remove_network_with_runs(
                engine,
                daemon.networks.get(engine.network_id()),
            )

        is_open = from_run(closed_door, open_door)

        assert is_open == {
            closed_door: False,
            open_door: True,
        }
        assert "made anew" in caplog.messages[-1]


def test_a_host_that_cannot_be_closed_again_is_reported(
    engine, daemon, from_run, monkeypatch, caplog
):
    monkeypatch.setattr(network, "CHECK_EVERY", 0.0)
    engine.close_host([1])
    monkeypatch.setattr(
        Firewall,
        "close_except",
        raising(EngineError("no iptables")),
    )
    ClosedHost(bridge_of(daemon, engine.network_id())).delete_jump()

    from_run("127.0.0.1:1")

    assert "no iptables" in caplog.messages[-1]
    assert not engine.isolation().host


@contextlib.contextmanager
def no_jump(chain: str) -> Iterator[None]:
    """Delete Docker's jump to one of its chains.

    Docker itself does so for a moment while it creates a network.
    """
    jump = ["FORWARD", "-j", chain]
    subprocess.run(["iptables", "-w", "-D", *jump], check=True)
    try:
        yield
    finally:
        check = subprocess.run(["iptables", "-w", "-C", *jump], capture_output=True, check=False)
        if check.returncode != 0:
            insert = ["FORWARD", "1", "-j", chain]
            subprocess.run(["iptables", "-w", "-I", *insert], check=True)


def test_the_way_stays_closed_while_docker_makes_a_network(daemon, engine, from_run):
    docker0 = default_bridge(daemon)
    with listening() as local, another_machine() as far:
        engine.close_host([1])
        service = f"{docker0}:{local}"
        far_door = f"{far}:8080"
        assert from_run(service, reach=(service,)) == {service: True}  # the network exists now

        with no_jump("DOCKER-USER"):
            is_open = from_run(
                service,
                far_door,
                reach=(service,),
            )

        assert is_open == {
            service: True,
            far_door: False,
        }


def test_published_ports_stay_closed_while_docker_makes_a_network(
    daemon, engine, stranger, from_run, from_elsewhere
):
    engine.close_host([1])
    published = f"{default_bridge(daemon)}:{published_port(daemon, stranger)}"
    assert from_elsewhere(published) == {published: True}

    with no_jump("DOCKER-ISOLATION-STAGE-1"):
        is_open = from_run(published)

    assert is_open == {published: False}
    assert engine.isolation() == COMPLETE


@IN_BOTH
def test_there_is_no_way_out_by_another_protocol(harness, engine):
    text = """
import socket, pathlib
v6 = pathlib.Path("/proc/net/if_inet6")
assert not v6.exists() or "eth0" not in v6.read_text(), v6.read_text()
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
    try:
        socket.socket(family, kind, socket.IPPROTO_ICMP)
    except PermissionError:
        continue
    raise SystemExit(f"{family} is open")
"""
    output_of(harness, engine, python(text))


def test_several_gateways_of_a_node_keep_each_others_doors_open(harness, engine, from_run):
    second = harness.engine(instance="second")
    gateway = engine.gateway_address()
    with listening(gateway) as port, listening(gateway) as port_2, listening(gateway) as port_3:
        door = f"{gateway}:{port}"
        door_of_second = f"{gateway}:{port_2}"
        later_door = f"{gateway}:{port_3}"
        engine.close_host([port])
        second.close_host([port_2])
        assert from_run(door, door_of_second) == {
            door: True,
            door_of_second: True,
        }

        engine.close_host([port_3])  # the first gateway has restarted on another port

        assert from_run(door, door_of_second, later_door) == {
            door: False,
            door_of_second: True,
            later_door: True,
        }


def test_a_host_that_is_not_closed_is_a_gap(engine):
    engine.gateway_address()

    isolation = engine.isolation()

    assert isolation.tasks
    assert isolation.outside
    assert not isolation.host  # `close_host` was not called
    assert len(isolation.gaps) == 1
    assert "listens on all addresses" in isolation.gaps[0]


def test_the_network_of_the_host_isolates_nothing(harness):
    isolation = harness.engine(network_mode="host").isolation()

    assert isolation.tasks is False
    assert isolation.host is False
    assert isolation.outside is False
    assert "network_mode" in isolation.gaps[0]


def test_an_inspection_leaves_no_network_and_removes_none(harness, daemon):
    inspecting = harness.engine(installation="looks")
    node = harness.engine()

    gaps = inspecting.isolation().gaps

    assert len(gaps) == 1
    assert gaps[0].endswith(RULES_CREATED_AT_START)
    inspecting.undo_network()
    assert daemon.networks.list(names=[harness.network]) == []

    network_id = node.network_id()
    inspecting.isolation()
    inspecting.undo_network()
    networks = daemon.networks.list(names=[harness.network])
    assert [network.id for network in networks] == [network_id]
    daemon.api.remove_network(network_id)
    assert node.isolation().tasks  # the node has created its network again
    node.remove_network()


def test_a_network_of_the_admins_own_is_left_as_it_is(harness, daemon):
    name = f"bfia-isolation-{uuid.uuid4().hex[:8]}"
    admins_network = daemon.networks.create(name)
    engine = harness.engine(network=name)
    try:
        engine.close_host([1])

        isolation = engine.isolation()

        assert isolation.tasks is False
        assert isolation.host is False
        assert isolation.outside is False
        assert all("own" in gap for gap in isolation.gaps)
        assert admins_network.id == engine.network_id()
    finally:
        admins_network.remove()


def test_a_network_without_isolation_is_replaced(harness, engine, daemon):
    labels = {
        NODE: "alpha",
        INSTALLATION: "x",
    }
    open_network = NodeNetwork(lambda: daemon.api, harness.network, labels, outside=True)
    open_network_id = open_network.ensure()
    assert not daemon.api.inspect_network(open_network_id)["Internal"]

    assert engine.network_id() != open_network_id
    assert engine.isolation().outside


def test_the_outside_is_open_only_where_the_admin_says_so(harness):
    name = f"bfia-isolation-{uuid.uuid4().hex[:8]}"
    engine = harness.engine(
        network=name,
        outside=True,
    )
    try:
        with another_machine() as far:
            door = f"{far}:8080"
            assert open_doors(harness, engine, door) == {door: True}
        assert engine.isolation().tasks
        assert not engine.isolation().outside
        engine.remove(engine.list()[0].name)
    finally:
        remove_network(name, engine.remove_network)


def test_a_granted_capability_and_mount_are_all_that_is_added(harness, engine, daemon, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "model").write_text("weights")

    spec = launch_run(
        harness,
        engine,
        python("print(open('/opt/model/model').read())"),
        capabilities=("NET_BIND_SERVICE",),
        mounts=(Mount(tmp_path, "/opt/model"),),
    )

    assert wait_for_exit(engine, spec.name).code == 0, engine.logs(spec.name)
    assert engine.logs(spec.name).stdout == b"weights\n"
    host = daemon.api.inspect_container(spec.name)["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Privileged"] is False
    # Versions of Docker spell the name differently.
    assert host["CapAdd"] in (["NET_BIND_SERVICE"], ["CAP_NET_BIND_SERVICE"])
