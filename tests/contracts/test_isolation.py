"""What a container reaches, asked from inside; each door is shown to be open for a container that is not ours."""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import docker
import pytest

from engines.base import (
    INSTALLATION,
    MADE_AT_START,
    NODE,
    CreateFailed,
    Engine,
    EngineError,
    Isolation,
    Mount,
)
from engines.docker import ContainerdEngine, network
from engines.docker.firewall import Firewall
from engines.docker.network import NodeNetwork
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
from tests.services import do, linked
from tests.services.own_docker import remove_network

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="the packet filter of this host needs root"),
]


def default_bridge(daemon: docker.DockerClient) -> str:
    """Return this host's address in Docker's own network, not recorded at a daemon's first start."""
    pool = daemon.api.inspect_network("bridge")["IPAM"]["Config"][0]
    return str(pool.get("Gateway") or next(ipaddress.ip_network(pool["Subnet"]).hosts()))


LOOK = """
import array, errno, fcntl, json, socket, sys, termios, threading, time
found = {}
def look(target):
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1) as connection:
            found[target] = arrives(connection)
    except OSError:
        found[target] = False
def arrives(connection):
    waits, end = array.array("i", [1]), time.monotonic() + 1
    reset = 0
    try:
        connection.send(b"x")
        while waits[0] and not reset and time.monotonic() < end:
            time.sleep(0.02)
            fcntl.ioctl(connection, termios.TIOCOUTQ, waits)
            reset = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.ECONNRESET, errno.EPIPE)
    except ConnectionError:
        return True  # the other side has answered
    return bool(reset) or not waits[0]
threads = [threading.Thread(target=look, args=[target]) for target in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({target: found[target] for target in sys.argv[1:]}))
"""
"""tries all doors at once: one that is closed says nothing, and takes its whole time

Behind an open one a byte arrives.
"""


SERVES = "import socket\ns = socket.create_server(('', 9000))\nprint('ready', flush=True)\nwhile True: s.accept()"
IN_BOTH = pytest.mark.parametrize("harness", [ContainerdEngine, InSandboxes], indirect=True)


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[DockerHarness]:
    kind = getattr(request, "param", ContainerdEngine)
    with contextlib.closing(
        DockerHarness(f"bfia-isolation-{uuid.uuid4().hex[:8]}", kind)
    ) as harness:
        yield harness


@pytest.fixture
def engine(harness: DockerHarness) -> Iterator[ContainerdEngine]:
    engine = harness.engine()
    yield engine
    for found in engine.list():
        engine.remove(found.name)
    remove_network(harness.network, engine.remove_network)


@contextlib.contextmanager
def listening(host: str = "0.0.0.0") -> Iterator[int]:
    """Take connections on a port of this host."""
    with socket.create_server((host, 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@contextlib.contextmanager
def another_machine(network: str = "10.214") -> Iterator[str]:
    """Give an address behind this host, such as the internet's are, where ports 8080 and 8081 are served."""
    name = "bfia" + uuid.uuid4().hex[:6]
    near, far = linked(name, network)
    try:
        do("ip", "-n", name, "route", "add", "default", "via", near)
        text = (
            "import select, socket; doors = [socket.create_server(('0.0.0.0', n)) for n in (8080, 8081)]\n"
            "print('ready', flush=True)\n"
            "while True: [s.accept()[0].close() for s in select.select(doors, [], [])[0]]"
        )
        server = subprocess.Popen(
            ["nsenter", f"--net=/var/run/netns/{name}", "python3", "-c", text],
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


Look = Callable[..., dict[str, bool]]


def open_doors(
    harness: Any,
    engine: Engine,
    *targets: str,
    **changes: Any,
) -> dict[str, bool]:
    """Return which of these doors are open to a run."""
    return dict(
        json.loads(output_of(harness, engine, Act(("python3", "-c", LOOK, *targets)), **changes))
    )


@pytest.fixture
def ours(harness: DockerHarness, engine: ContainerdEngine) -> Look:
    return partial(open_doors, harness, engine)


@pytest.fixture
def not_ours(harness: DockerHarness, daemon: docker.DockerClient) -> Look:
    """Look from a container on the daemon's own bridge: what is closed to it shows nothing."""

    def look(*targets: str) -> dict[str, bool]:
        said: bytes = daemon.containers.run(
            harness.image, ["python3", "-c", LOOK, *targets], remove=True
        )
        return dict(json.loads(said))

    return look


def address_of(daemon: docker.DockerClient, name: str) -> str:
    networks: dict[str, Any] = daemon.api.inspect_container(name)["NetworkSettings"]["Networks"]
    (network,) = networks.values()
    return str(network["IPAddress"])


@IN_BOTH
def test_a_task_reaches_the_gateways_listener_and_nothing_else(
    harness, engine, daemon, ours, not_ours
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
        task = launch_run(harness, engine, WAITS, command=("python3", "-c", SERVES))
        wait_for_output(engine, task.name, b"ready")
        elsewhere = daemon.containers.run(harness.image, ["python3", "-c", SERVES], detach=True)
        try:
            while b"ready" not in elsewhere.logs():
                threading.Event().wait(0.05)
            closed = {
                "another task": f"{engine.address(task.name)}:9000",
                "the database": f"{gateway}:{database}",
                "the operators' listener": f"{gateway}:{operators}",
                "this host by another address": f"{docker0}:{database}",
                "a container of somebody else": f"{address_of(daemon, elsewhere.id)}:9000",
                "another machine": f"{far}:8080",
            }
            seen = ours(*closed.values(), f"{gateway}:{door}")
            assert {what for what, target in closed.items() if seen[target]} == set()
            assert seen[f"{gateway}:{door}"]
            del closed["another task"]  # Docker itself keeps bridges apart
            assert all(not_ours(*closed.values()).values())
        finally:
            elsewhere.remove(force=True)
    assert engine.isolation() == Isolation(
        tasks=True,
        host=True,
        outside=True,
    )


@IN_BOTH
def test_a_task_reaches_the_services_that_it_has_to_and_nothing_else(
    harness, engine, daemon, ours, not_ours
):
    gateway = engine.gateway_address()
    docker0 = default_bridge(daemon)
    published: dict[str, Any] = {
        "command": ["python3", "-c", SERVES],
        "detach": True,
        "ports": {"9000/tcp": None},
    }
    with contextlib.ExitStack() as stack:
        database, local, door = (
            stack.enter_context(listening(at)) for at in ("0.0.0.0", "0.0.0.0", gateway)
        )
        far = stack.enter_context(another_machine())
        metadata = stack.enter_context(another_machine("169.254"))
        engine.close_host([door])
        elsewhere = daemon.containers.run(harness.image, **published)
        stack.callback(elsewhere.remove, force=True)
        port = daemon.api.port(elsewhere.id, 9000)[0]["HostPort"]
        services = (
            f"{docker0}:{local}",
            f"{far}:8080",
            f"{docker0}:{port}",
            "10.214.255.0/24:8080",
        )
        neighbour = launch_run(
            harness, engine, WAITS, command=("python3", "-c", SERVES), reach=services
        )
        wait_for_output(engine, neighbour.name, b"ready")
        open_, closed = (
            {f"{gateway}:{door}", *services[:3]},
            {
                "a task at the same services": f"{engine.address(neighbour.name)}:9000",
                "the database": f"{gateway}:{database}",
                "the same by another address": f"{docker0}:{database}",
                "the service's port at another address": f"{gateway}:{local}",
                "the listener's port elsewhere": f"{far}:{door}",
                "a container of somebody else": f"{address_of(daemon, elsewhere.id)}:9000",
                "another port of the service's machine": f"{far}:8081",
                "another machine, such as cloud metadata": f"{metadata}:8080",
            },
        )
        seen = ours(*open_, *closed.values(), reach=services)
        assert {target for target in open_ if not seen[target]} == set()
        assert {what for what, target in closed.items() if seen[target]} == set()
        assert ours(*services[:3]) == dict.fromkeys(services[:3], False)
        assert [*ours(*services[:3], reach=services[1:2]).values()] == [False, True, False]
        del closed["a task at the same services"], closed["the listener's port elsewhere"]
        assert all(not_ours(*closed.values()).values())
        assert engine.isolation() == Isolation(
            tasks=True,
            host=True,
            outside=True,
        )


def test_a_service_is_found_by_name_and_lost_rules_are_restored(
    harness, engine, daemon, ours, monkeypatch
):
    docker0 = default_bridge(daemon)
    names = {"lake.bank.example": docker0, "here.example": "127.0.0.1"}
    monkeypatch.setattr(socket, "gethostbyname", names.__getitem__)
    engine.close_host([1])
    with listening() as lake, listening() as other:
        service = f"lake.bank.example:{lake}"
        for _ in range(2):
            assert [*ours(service, f"lake.bank.example:{other}", reach=(service,)).values()] == [
                True,
                False,
            ]
            assert engine.isolation().outside
            found: dict[str, Any] = daemon.api.inspect_container(engine.list()[0].name)[
                "HostConfig"
            ]
            bridge = daemon.api.inspect_network(found["NetworkMode"])["Options"][
                "com.docker.network.bridge.name"
            ]
            rules = subprocess.check_output(
                ["iptables", "-S", "DOCKER-USER"], text=True
            ).splitlines()
            for rule in (line.split()[1:] for line in rules if bridge in line):
                subprocess.run(["iptables", "-D", *rule], check=True)
            assert not engine.isolation().outside
            assert "no rules" in engine.isolation().gaps[0]
        assert engine.no_way_to((service,)) == ""
        assert "loopback" in engine.no_way_to(("here.example:80",))
        with pytest.raises(CreateFailed, match="loopback"):
            engine.launch(a_spec(harness, WAITS, reach=("here.example:80",)))


def test_a_host_that_was_opened_is_closed_again_before_the_next_start(
    engine, daemon, ours, monkeypatch, caplog
):
    monkeypatch.setattr(network, "CHECK_EVERY", 0.0)
    with listening() as operators, listening(engine.gateway_address()) as door:
        engine.close_host([door])
        there = (f"{default_bridge(daemon)}:{operators}", f"{engine.gateway_address()}:{door}")
        made = daemon.networks.get(engine.network_id())
        bridge = made.attrs["Options"]["com.docker.network.bridge.name"]
        jump, chain = ["INPUT", "-i", bridge, "-j"], Firewall(bridge, "").chain
        for wiped in (False, True):
            subprocess.run(["iptables", "-D", *jump, chain], check=True)
            if wiped:  # and the network with it
                subprocess.run(["iptables", "-F", chain], check=True)
                subprocess.run(["iptables", "-X", chain], check=True)
                engine.sandboxes.drain()
                for left in engine.list():
                    engine.remove(left.name)
                made.remove()
            assert [*ours(*there).values()] == [False, True]
            assert "made anew" in caplog.messages[-1]
    monkeypatch.setattr(
        Firewall, "close_except", lambda *_: (_ for _ in ()).throw(EngineError("no iptables"))
    )
    subprocess.run(["iptables", "-D", *jump, chain], check=True)
    ours("127.0.0.1:1")
    assert "no iptables" in caplog.messages[-1]
    assert not engine.isolation().host


@contextlib.contextmanager
def no_jump(chain: str) -> Iterator[None]:
    """Take Docker's jump to one of its chains away, as it does itself for a moment while it makes a network."""
    jump = ("FORWARD", "-j", chain)
    subprocess.run(["iptables", "-w", "-D", *jump], check=True)
    try:
        yield
    finally:
        if subprocess.run(
            ["iptables", "-w", "-C", *jump], capture_output=True, check=False
        ).returncode:
            subprocess.run(["iptables", "-w", "-I", jump[0], "1", *jump[1:]], check=True)


def test_the_way_stays_closed_while_docker_makes_a_network(daemon, engine, ours):
    docker0 = default_bridge(daemon)
    with listening() as local, another_machine() as far:
        engine.close_host([1])
        here, there = f"{docker0}:{local}", f"{far}:8080"
        assert ours(here, reach=(here,)) == {here: True}  # the network is made
        with no_jump("DOCKER-USER"):
            assert ours(here, there, reach=(here,)) == {here: True, there: False}


def test_published_ports_stay_closed_while_docker_makes_a_network(
    harness, daemon, engine, ours, not_ours
):
    engine.close_host([1])
    serves: dict[str, Any] = {
        "command": ["python3", "-c", SERVES],
        "detach": True,
        "ports": {"9000/tcp": None},
    }
    elsewhere = daemon.containers.run(harness.image, **serves)
    try:
        published = f"{default_bridge(daemon)}:{daemon.api.port(elsewhere.id, 9000)[0]['HostPort']}"
        assert not_ours(published) == {published: True}
        with no_jump("DOCKER-ISOLATION-STAGE-1"):
            assert ours(published) == {published: False}
        assert engine.isolation() == Isolation(
            tasks=True,
            host=True,
            outside=True,
        )
    finally:
        elsewhere.remove(force=True)


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


def test_several_gateways_of_a_node_leave_each_other_their_doors(harness, engine, ours):
    second = harness.engine(instance="second")
    gateway = engine.gateway_address()
    with listening(gateway) as one, listening(gateway) as two, listening(gateway) as later:
        engine.close_host([one])
        second.close_host([two])
        assert set(ours(f"{gateway}:{one}", f"{gateway}:{two}").values()) == {True}
        engine.close_host([later])  # started again, on another port
        seen = ours(f"{gateway}:{one}", f"{gateway}:{two}", f"{gateway}:{later}")
        assert list(seen.values()) == [False, True, True]


def test_what_does_not_hold_is_told(harness, engine):
    engine.gateway_address()
    found = engine.isolation()
    assert found.tasks
    assert found.outside
    assert not found.host  # nobody has closed the host yet
    assert len(found.gaps) == 1
    assert "listens on all addresses" in found.gaps[0]
    host = harness.engine(network_mode="host").isolation()
    assert host.tasks is False
    assert host.host is False
    assert host.outside is False
    assert "network_mode" in host.gaps[0]


def test_who_only_looks_leaves_no_network_and_takes_none_away(harness, daemon):
    looking, node = harness.engine(installation="looks"), harness.engine()
    told = looking.isolation().gaps
    assert len(told) == 1
    assert told[0].endswith(MADE_AT_START)
    looking.undo_network()
    assert daemon.networks.list(names=[harness.network]) == []
    made = node.network_id()
    looking.isolation()
    looking.undo_network()
    assert [network.id for network in daemon.networks.list(names=[harness.network])] == [made]
    daemon.api.remove_network(made)
    assert node.isolation().tasks, "one that was removed under the node is made anew"
    node.remove_network()


def test_a_network_of_the_admins_own_is_left_as_it_is(harness, daemon):
    name = f"bfia-isolation-{uuid.uuid4().hex[:8]}"
    made = daemon.networks.create(name)
    engine = harness.engine(network=name)
    try:
        engine.close_host([1])
        found = engine.isolation()
        assert found.tasks is False
        assert found.host is False
        assert found.outside is False
        assert all("own" in gap for gap in found.gaps)
        assert made.id == engine.network_id()
    finally:
        made.remove()


def test_a_network_that_was_made_without_isolation_is_made_anew(harness, engine, daemon):
    network = NodeNetwork(
        lambda: daemon.api, harness.network, {NODE: "alpha", INSTALLATION: "x"}, outside=True
    )
    first = network.ensure()
    assert not daemon.api.inspect_network(first)["Internal"]
    assert engine.network_id() != first
    assert engine.isolation().outside


def test_the_outside_is_open_only_where_the_admin_says_so(harness):
    name = f"bfia-isolation-{uuid.uuid4().hex[:8]}"
    engine = harness.engine(network=name, outside=True)
    try:
        with another_machine() as far:
            assert open_doors(harness, engine, f"{far}:8080") == {f"{far}:8080": True}
        assert engine.isolation().tasks
        assert not engine.isolation().outside
        engine.remove(engine.list()[0].name)
    finally:
        remove_network(name, engine.remove_network)


def test_a_granted_capability_and_mount_are_all_that_is_added(harness, engine, daemon, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "model").write_text("weights")
    spec = a_spec(
        harness,
        python("print(open('/opt/model/model').read())"),
        capabilities=("NET_BIND_SERVICE",),
        mounts=(Mount(tmp_path, "/opt/model"),),
    )
    engine.launch(spec)
    assert wait_for_exit(engine, spec.name).code == 0, engine.logs(spec.name)
    assert engine.logs(spec.name).stdout == b"weights\n"
    host = daemon.api.inspect_container(spec.name)["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Privileged"] is False
    assert host["CapAdd"] in (["NET_BIND_SERVICE"], ["CAP_NET_BIND_SERVICE"])
