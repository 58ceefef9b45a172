"""The network of a gateway that is a container itself, and the rules on the daemon's host."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import docker
import pytest
from docker.errors import ImageNotFound

from engines.base import CreateFailed, EngineError, Isolation
from engines.docker import ContainerdEngine, DockerOptions, member_network
from engines.docker.host_rules import HostRules
from engines.docker.member_network import MemberNetwork
from engines.firewall import MemberFirewall
from tests.contracts.harnesses import DockerHarness
from tests.contracts.scripted_daemon import Daemon
from tests.doors import LOOK, SERVES
from tests.e2e.nodes import wait_for

OPTIONS = DockerOptions(network="net", rules_image="gateway:1")
CLOSED = b'{"fault": null}\n'
FAULT = b'{"fault": "iptables has no rules"}\n'
ERROR = b'{"error": "there is no iptables here"}\n'

# This machine's address in each of these networks follows from the network alone.
MEMBER = {"Subnet": "127.0.0.0/8", "Gateway": "127.0.0.2"}  # 127.0.0.1
ON_THE_HOST = {"Subnet": "127.0.0.0/8", "Gateway": "127.0.0.1"}
ELSEWHERE = {"Subnet": "127.1.0.0/16", "Gateway": "127.1.0.1"}


def a_network(pool: dict[str, str] = MEMBER, **fields: Any) -> dict[str, Any]:
    """Return the daemon's record of the network that Compose has created."""
    return {
        "Name": "net",
        "Id": "0123456789abcdef",
        "Options": {"com.docker.network.bridge.enable_icc": "false"},
        "IPAM": {"Config": [pool]},
        **fields,
    }


def an_engine(*outputs: bytes, **responses: Any) -> tuple[ContainerdEngine, Daemon]:
    """Return an engine in a container, and its daemon.

    ``outputs``: what the program that makes and checks the rules prints, one time after another.
    """
    answers = {
        "networks": [[a_network()]],
        "create_host_config": [{}],
        "create_container": [{"Id": "c"}],
        "attach": [[output] for output in outputs],
        "start": [None],
        "remove_container": [None],
        **responses,
    }
    daemon = Daemon(**answers)
    return ContainerdEngine("n", "i", OPTIONS, daemon), daemon


def a_member(*outputs: bytes, **responses: Any) -> tuple[MemberNetwork, Daemon]:
    """Return the network of such an engine, and its daemon."""
    _, daemon = an_engine(*outputs, **responses)
    return MemberNetwork(daemon, "net", HostRules(daemon, "gateway:1")), daemon


# ------------------------------------------------------------ the gateway in its network


def test_containers_reach_the_gateway_at_its_own_address():
    engine, _ = an_engine(CLOSED)

    assert engine.gateway_address() == "127.0.0.1"
    assert engine.network_id() == "0123456789abcdef"


@pytest.mark.parametrize(
    ("networks", "cause"),
    [
        ([], "there is no network net: start the gateway with its Compose file"),
        ([a_network(Name="net-2")], "there is no network net: start the gateway"),
        ([a_network(ELSEWHERE)], "not in the network net: add it to the networks of its service"),
        ([a_network(ON_THE_HOST)], "leave engine.docker.rules_image and engine.docker.network"),
        ([a_network(IPAM={"Config": None})], "the network net has no IPv4 addresses"),
    ],
)
def test_a_network_that_the_gateway_is_not_in_is_refused(networks, cause):
    engine, _ = an_engine(CLOSED, networks=[networks])

    with pytest.raises(EngineError, match=cause):
        engine.gateway_address()


def test_a_network_whose_rules_are_in_place_isolates():
    engine, _ = an_engine(CLOSED)

    engine.close_host([7381])

    assert engine.isolation() == Isolation(tasks=True, host=True, outside=True)


def test_a_network_that_docker_leaves_open_is_a_gap():
    engine, _ = an_engine(CLOSED, networks=[[a_network(Options={})]])

    engine.close_host([7381])

    isolation = engine.isolation()
    assert not isolation.tasks
    assert "com.docker.network.bridge.enable_icc" in isolation.gaps[0]


@pytest.mark.parametrize(
    ("responses", "cause"),
    [
        ({"attach": [[FAULT]]}, "iptables has no rules"),
        ({"attach": [[ERROR]]}, "there is no iptables here"),
        ({"attach": [[b"exec: python3: not found"]]}, "gateway:1 cannot make rules: exec: python3"),
        ({"attach": [[]]}, "gateway:1 cannot make rules: it printed nothing"),
        ({"create_container": [ImageNotFound("no")]}, "engine.docker.rules_image"),
    ],
)
def test_no_run_starts_in_a_network_that_is_not_closed(responses, cause):
    network, _ = a_member(**responses)

    network.close_host([7381])

    with pytest.raises(CreateFailed, match=cause):
        network.stay_closed()


def test_lost_rules_are_made_again_before_the_next_start(monkeypatch):
    monkeypatch.setattr(member_network, "CHECK_EVERY", 0.0)
    network, daemon = a_member(CLOSED, FAULT, CLOSED)
    network.close_host([7381])

    network.stay_closed()

    assert daemon.calls.count("attach") == 3  # made, checked, made again


def test_rules_that_were_made_a_moment_ago_are_not_checked():
    network, daemon = a_member(CLOSED)
    network.close_host([7381])

    network.stay_closed()

    assert daemon.calls.count("attach") == 1


def test_a_service_on_another_machine_cannot_be_reached_from_compose():
    engine, _ = an_engine(CLOSED)

    obstacle = engine.obstacle_to(("10.1.1.1:9000",))

    assert "reach the gateway alone" in obstacle


# ------------------------------------------------------------ the rules, on this machine


@dataclass(frozen=True)
class Bridge:
    """A closed bridge as in the Compose files, with containers that listen at port 9000."""

    daemon: docker.DockerClient
    image: str
    name: str

    def container(self) -> Any:
        """Start a container in the network."""
        container = self.daemon.containers.run(
            self.image,
            ["python3", "-c", SERVES],
            network=self.name,
            detach=True,
            labels={"bfia.sandbox": self.name},
        )
        wait_for(lambda: b"ready" in container.logs())
        container.reload()
        return container

    @property
    def interface(self) -> str:
        network_id = self.daemon.networks.get(self.name).id
        return f"br-{network_id[:12]}"

    def is_open(self, source: Any, target: Any) -> bool:
        """Return whether a container reaches the port of another one."""
        door = f"{address_of(target)}:9000"
        output = source.exec_run(["python3", "-c", LOOK, door]).output
        return bool(json.loads(output)[door])


def address_of(container: Any) -> str:
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    return str(network["IPAddress"])


@pytest.fixture
def bridge(daemon: docker.DockerClient) -> Iterator[Bridge]:
    name = f"bfia-member-{uuid.uuid4().hex[:8]}"
    daemon.networks.create(
        name,
        internal=True,
        options={"com.docker.network.bridge.enable_icc": "false"},
    )
    with contextlib.closing(DockerHarness(name)) as harness:
        bridge = Bridge(daemon, harness.image, name)
        interface = bridge.interface
        yield bridge
        for container in daemon.containers.list(filters={"network": name}):
            container.remove(force=True)
        daemon.networks.get(name).remove()
        MemberFirewall(interface, "").remove()


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="the packet filter of this host needs root")
def test_containers_and_the_gateway_reach_each_other_and_nobody_else(bridge):
    gateway, former_gateway, run = (bridge.container() for _ in range(3))
    MemberFirewall(bridge.interface, address_of(former_gateway)).close_except([9000])
    rules = MemberFirewall(bridge.interface, address_of(gateway))
    assert rules.fault([9000]) is not None  # they are those of the former gateway
    assert not bridge.is_open(run, gateway)

    rules.close_except([9000])

    assert rules.fault([9000]) is None
    assert bridge.is_open(run, gateway)
    assert bridge.is_open(gateway, run)
    assert not bridge.is_open(run, former_gateway)
    assert not bridge.is_open(former_gateway, run)

    rules.close_except([9001])  # the gateway has restarted on another port

    assert not bridge.is_open(run, gateway)
