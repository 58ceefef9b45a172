"""Networks for containers that must reach services on other machines, such as a storage.

There is one network for each set of services. Its bridge leads to other machines, so the host's
packet filter closes it except to the services. The rules are therefore made before the bridge and
checked before each start: without them, no container starts there.
"""

import hashlib
import ipaddress
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.base import CreateFailed, EngineError
from engines.docker.client import Connection
from engines.docker.network import NodeNetwork
from engines.firewall import Firewall

# ``host:port``, or ``10.0.8.0/24:port`` for every machine of a range
Services = tuple[str, ...]

_ALTERNATIVES = (
    "else name a network of yours in engine.docker.network, or let containers out "
    "(engine.docker.outside)"
)


@dataclass(frozen=True)
class _ServiceNetwork:
    """The network of one set of services, with its rules."""

    network: NodeNetwork
    firewall: Firewall


class ServiceNetworks:
    """Creates each network when it is first needed."""

    def __init__(
        self,
        client: Connection,
        name: str,
        labels: Mapping[str, str],
        owner: str,
    ) -> None:
        """``name``: the name of the node's own network.

        ``owner``: the gateway, if several share the networks.
        """
        self._client = client
        self._name = name
        self._labels = dict(labels)
        self._owner = owner
        self._lock = threading.Lock()
        self._by_services: dict[Services, _ServiceNetwork] = {}

    def ensure(
        self,
        services: Services,
        open_ports: Sequence[int],
    ) -> tuple[str, dict[str, str]]:
        """Return the id of the network for containers that must reach these services.

        The containers also reach ``open_ports`` of this host. The second value has the IP address
        of each host that a service gives by name: containers cannot resolve names. Raises
        `EngineError`, APIError.
        """
        address_of = addresses(services)
        with self._lock:
            service_network = self._by_services.get(services)
            if service_network is None:
                service_network = self._prepare(services)
                self._close(service_network.firewall, services, open_ports)
            elif service_network.firewall.fault():
                self._close(service_network.firewall, services, open_ports)
            for service in services:
                host, _, port = service.rpartition(":")
                service_network.firewall.open_to(address_of[host], int(port))
            self._by_services[services] = service_network
            network_id = service_network.network.ensure()
        named_hosts = {host: address for host, address in address_of.items() if host != address}
        return network_id, named_hosts

    def _close(
        self,
        firewall: Firewall,
        services: Services,
        open_ports: Sequence[int],
    ) -> None:
        """Close a network except to these ports of this host.

        Raises `CreateFailed`, with the services that cannot be reached, if the packet filter cannot
        be used.
        """
        obstacle = self.obstacle()
        if obstacle:
            raise CreateFailed(f"containers cannot reach {', '.join(services)}: {obstacle}")
        firewall.close_except(open_ports)

    def obstacle(self) -> str:
        """Return why containers cannot be connected to services; empty if they can.

        Raises `EngineError`.
        """
        if not self._client.is_here():
            return (
                "the daemon's host has a packet filter that the gateway cannot use; "
                f"{_ALTERNATIVES}"
            )
        try:
            Firewall.check()
        except EngineError as error:
            return f"iptables cannot be used (root or CAP_NET_ADMIN may): {error}; {_ALTERNATIVES}"
        return ""

    def gaps(self) -> list[str]:
        """Return the present gaps in the rules, one for each network that lacks some.

        Empty if all rules are in place.
        """
        gaps = []
        with self._lock:
            for service_network in self._by_services.values():
                fault = service_network.firewall.fault()
                if fault:
                    name = service_network.network.name
                    gaps.append(f"containers in the network {name} reach other machines: {fault}")
        return gaps

    def forget(self) -> None:
        """Have the next use of each network check whether the network exists."""
        with self._lock:
            for service_network in self._by_services.values():
                service_network.network.forget()

    def remove(self) -> None:
        """Remove the networks that this object has used, and their rules.

        Raises `EngineError` while one is in use; another call then tries again.
        """
        with self._lock:
            for services, service_network in list(self._by_services.items()):
                service_network.network.remove()
                service_network.firewall.remove()
                del self._by_services[services]

    def _prepare(self, services: Services) -> _ServiceNetwork:
        """Return the network for these services, without creating it at the daemon."""
        digest = hashlib.sha256(" ".join(services).encode()).hexdigest()
        name = f"{self._name}-{digest[:8]}"
        network = NodeNetwork(
            self._client,
            name,
            self._labels,
            outside=True,
            owner=self._owner,
        )
        return _ServiceNetwork(network, Firewall(network.bridge, self._owner, forwarded=True))


def addresses(services: Services) -> dict[str, str]:
    """Return the IPv4 address of each host; ranges stay as they are.

    Raises `CreateFailed` as `_resolve` does.
    """
    address_of = {}
    for service in services:
        host = service.rpartition(":")[0]
        if host not in address_of:
            address_of[host] = _resolve(host)
    return address_of


def _resolve(host: str) -> str:
    """Return the IPv4 address of a host, or a range of addresses as it is.

    Raises `CreateFailed` for an unknown host and for a loopback address.
    """
    address = host
    if "/" not in host:
        try:
            address = socket.gethostbyname(host)
        except OSError as error:
            raise CreateFailed(f"{host} cannot be resolved: {error.strerror}") from error
    if ipaddress.ip_network(address, strict=False).is_loopback:
        raise CreateFailed(
            f"{host} is a loopback address, which is each container's own; name another one"
        )
    return address
