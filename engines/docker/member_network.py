"""The network of a node's containers if the gateway is a container in it, too, as in Compose.

Compose creates the network: internal, and without traffic between containers. The gateway only has
the daemon's host pass packets between its own address and the runs, and drop all others of the
bridge (`engines.firewall.MemberFirewall`). Until these rules are made, no run starts.
"""

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.base import CreateFailed, EngineError, Isolation
from engines.docker.client import Connection, translated
from engines.docker.host_rules import HostRules
from engines.docker.network import address_pool, bridge_option, is_apart
from engines.docker.service_networks import Services

log = logging.getLogger(__name__)

# Seconds between two checks of the rules; a check takes a container on the daemon's host
CHECK_EVERY = 5.0
_ANY_PORT = 9  # no packet is sent to it


@dataclass(frozen=True)
class _Membership:
    """The network as the daemon last described it, and the gateway's place in it."""

    id: str
    bridge: str  # the name of its interface on the daemon's host
    address: str  # of the gateway, in the network
    is_apart: bool  # its containers do not reach each other, but for the rules


class MemberNetwork:
    """One network with the gateway's container as a member."""

    # The gateway isolates the network itself, as one that it created.
    is_own = True

    def __init__(
        self,
        client: Connection,
        name: str,
        rules: HostRules,
    ) -> None:
        self.name = name
        self._client = client
        self._rules = rules
        self._lock = threading.Lock()
        self._membership: _Membership | None = None  # None: the network has to be looked up

        self._rules_lock = threading.Lock()
        self._open_ports: tuple[int, ...] = ()  # of the gateway; empty before `close_host`
        self._fault = "the gateway has not made its rules yet"  # empty: they were in place
        self._checked = 0.0  # monotonic time of the last check

    @property
    def host(self) -> str:
        """The gateway's address in the network, as last seen; empty if it was not seen yet."""
        membership = self._membership
        if membership is None:
            return ""
        return membership.address

    def ensure(self) -> str:
        """Return the network's id.

        Raises `EngineError` if there is no such network or the gateway is not in it, APIError.
        """
        return self._look_up().id

    def forget(self) -> None:
        """Have the next use look the network up."""
        with self._lock:
            self._membership = None

    def look(self) -> None:
        """Look the network up. Raises `EngineError`."""
        self.forget()
        with translated():
            self.ensure()

    def address(self) -> str:
        """Return the gateway's address in the network. Raises `EngineError`."""
        self.look()
        return self.host

    def close_host(self, ports: Sequence[int]) -> None:
        """Close everything to containers, except for these ports of the gateway.

        If the rules cannot be made, nothing is raised here: `isolation` reports it, and
        `stay_closed` refuses to start a run.
        """
        with self._rules_lock:
            self._open_ports = tuple(ports)
            self._close()

    def stay_closed(self) -> None:
        """Make the rules again if they are gone, as after a reload of the host's packet filter.

        There is at most one check in `CHECK_EVERY` seconds, unless the last one found a fault.
        Raises `CreateFailed` if the rules are not in place: a run would reach nothing, or too much.
        """
        with self._rules_lock:
            if self._fault or self._is_check_due():
                self._check_and_repair()
            if self._fault:
                raise CreateFailed(f"the network {self.name} is not closed: {self._fault}")

    def isolation(self) -> Isolation:
        """Check the isolation of the network. Raises `EngineError`."""
        self.look()
        with translated():
            membership = self._look_up()
        with self._rules_lock:
            fault = self._fault_of_rules()
        gaps = []
        if fault:
            gaps.append(f"containers in the network {self.name} cannot be started: {fault}")
        if not membership.is_apart:
            gaps.append(
                f"containers in the network {self.name} may reach each other: set its option "
                "com.docker.network.bridge.enable_icc to false, as the shipped Compose files do"
            )
        is_closed = not fault
        return Isolation(
            tasks=is_closed and membership.is_apart,
            host=is_closed,
            outside=is_closed,
            gaps=tuple(gaps),
        )

    def remove(self) -> None:
        """Leave the network as it is: it is Compose's, and the gateway is in it."""

    def undo(self) -> None:
        """Leave the network as it is: this object never creates one."""

    # ------------------------------------------------------------ rules; callers hold their lock

    def _is_check_due(self) -> bool:
        """Whether the last check is too long ago."""
        return time.monotonic() - self._checked >= CHECK_EVERY

    def _check_and_repair(self) -> None:
        """Check the rules, and make them again unless they are in place."""
        try:
            fault = self._fault_of_rules()
        except EngineError as error:
            self._fault = str(error)
            return
        if fault:
            log.warning("rules of the network %s are made again: %s", self.name, fault)
            self._close()

    def _fault_of_rules(self) -> str:
        """Check the rules; return their fault, empty if they are in place. Raises `EngineError`."""
        with translated():
            membership = self._look_up()
        ports = self._open_ports
        self._fault = self._rules.fault(membership.bridge, membership.address, ports)
        self._checked = time.monotonic()
        return self._fault

    def _close(self) -> None:
        """Make the rules, and note why they could not be made."""
        try:
            with translated():
                membership = self._look_up()
            self._rules.close(membership.bridge, membership.address, self._open_ports)
            self._fault = ""
        except EngineError as error:
            self._fault = str(error)
        self._checked = time.monotonic()

    # ------------------------------------------------------------ the network

    def _look_up(self) -> _Membership:
        """Return the network, which is looked up unless it is known.

        Raises `EngineError`, APIError.
        """
        with self._lock:
            if self._membership is None:
                self._membership = self._find()
            return self._membership

    def _find(self) -> _Membership:
        """Return the network as the daemon describes it.

        Raises `EngineError` if there is none or the gateway is not in it, APIError.
        """
        networks = self._client().networks(names=[self.name])
        # The daemon also lists names that contain it.
        network = next((each for each in networks if each["Name"] == self.name), None)
        if network is None:
            raise EngineError(
                f"there is no network {self.name}: start the gateway with its Compose file"
            )
        return _Membership(
            id=str(network["Id"]),
            bridge=bridge_option(network) or f"br-{network['Id'][:12]}",
            address=self._own_address(network),
            is_apart=is_apart(network),
        )

    def _own_address(self, network: Mapping[str, Any]) -> str:
        """Return this machine's address in the network.

        Raises `EngineError` if it has none, or if this machine is the daemon's host.
        """
        pool = address_pool(network)
        if pool is None:
            raise EngineError(f"the network {self.name} has no IPv4 addresses")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((pool["Gateway"], _ANY_PORT))
            address = str(probe.getsockname()[0])
        is_member = ipaddress.ip_address(address) in ipaddress.ip_network(pool["Subnet"])
        if not is_member:
            raise EngineError(
                f"this gateway is not in the network {self.name}: add it to the networks of its "
                "service"
            )
        if address == pool["Gateway"]:
            raise EngineError(
                "this gateway runs on the daemon's host itself: leave engine.docker.rules_image "
                "and engine.docker.network empty"
            )
        return address


class NoServiceNetworks:
    """Takes the place of networks for services, which a gateway in a container cannot make."""

    def ensure(
        self,
        services: Services,
        open_ports: Sequence[int],
    ) -> tuple[str, dict[str, str]]:
        """Raise `CreateFailed`."""
        raise CreateFailed(f"containers cannot reach {', '.join(services)}: {self.obstacle()}")

    def obstacle(self) -> str:
        """Return why containers cannot be connected to services."""
        return (
            "containers of a gateway in Compose reach the gateway alone; run the gateway on the "
            "machine itself, or set engine.docker.network to a network of your own without "
            "engine.docker.rules_image"
        )

    def gaps(self) -> list[str]:
        """Return no gaps, as there are no networks."""
        return []

    def forget(self) -> None:
        """Do nothing, as there are no networks."""

    def remove(self) -> None:
        """Do nothing, as there are no networks."""
