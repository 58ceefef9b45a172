"""The node's network, where it is taken away and its addresses are given to others; the daemon is played."""

from typing import Any

import pytest
from docker.errors import APIError

from engines.base import HostMoved
from engines.docker.network import NodeNetwork


class Daemon:
    """Has one network at most; gives it the addresses that are asked for unless they are taken."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.there: dict[str, Any] | None = None
        self.taken: list[str] = []
        self.silent = 0
        """so many calls from now the network is not described"""

    def networks(self, names: list[str]) -> list[dict[str, Any]]:
        return [self.there] if self.there else []

    def inspect_network(self, network: str) -> dict[str, Any]:
        if self.silent:
            self.silent -= 1
            raise APIError("the daemon is away")
        assert self.there is not None
        return self.there

    def create_network(self, name: str, options: Any, ipam: Any, **more: Any) -> dict[str, Any]:
        asked = ipam["Config"][0]["Subnet"] if ipam else f"172.30.{len(self.made)}.0/24"
        if asked in self.taken:
            raise APIError("the addresses overlap")
        self.made.append(asked)
        pools = [{"Subnet": asked, "Gateway": asked.replace(".0/24", ".1")}]
        here = {"Id": f"id-{len(self.made)}", "Name": name, "Options": options, "Internal": True}
        self.there = {**here, "IPAM": {"Config": pools}}
        return here


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def network(daemon: Daemon) -> NodeNetwork:
    return NodeNetwork(lambda: daemon, "bfia-n1", {})  # type: ignore[arg-type, return-value]


def test_whatever_was_prepared_with_the_address_before_is_told(daemon: Daemon, network: NodeNetwork) -> None:
    before = network.address()
    assert network.ensure(before) == "id-1"
    daemon.there, daemon.taken = None, [*daemon.made]
    network.forget()  # the first launch found that the network was gone
    for _ in range(3):  # it, another that found the same, and one that came after both
        with pytest.raises(HostMoved):
            network.ensure(before)
    assert network.ensure() == network.ensure(network.address()) == "id-2" and network.address() != before


def test_a_network_with_its_addresses_of_before_is_told_to_nobody(daemon: Daemon, network: NodeNetwork) -> None:
    before = network.address()
    daemon.there = None
    network.forget()
    assert network.ensure(before) == "id-2" and network.address() == before


def test_the_addresses_are_remembered_while_they_cannot_be_looked_up(daemon: Daemon, network: NodeNetwork) -> None:
    network.address()
    daemon.there, daemon.silent = None, 1
    network.forget()
    with pytest.raises(APIError):
        network.ensure()
    daemon.there = None  # gone again before anybody could look
    network.ensure()
    assert len(daemon.made) == 3 and len({*daemon.made}) == 1
