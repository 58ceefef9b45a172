"""Networks of containers that have to reach services elsewhere, such as a storage: one for each set of services.

Such a bridge has a way out, which the host's packet filter closes except to the services. So its rules are made
before the bridge, and are looked at before each start: without them nothing starts there.
"""

import hashlib
import ipaddress
import socket
import threading
from collections.abc import Mapping, Sequence

from engines.base import CreateFailed, EngineError
from engines.docker.client import Connection
from engines.docker.network import Firewall, NodeNetwork

Services = tuple[str, ...]
"""``host:port``, or ``10.0.8.0/24:port`` for every machine there"""
_OTHERWISE = "else name a network of yours in engine.docker.network, or let containers out (engine.docker.outside)"


class ServiceNetworks:
    """Makes each network when it is first needed."""

    def __init__(
        self,
        client: Connection,
        name: str,
        labels: Mapping[str, str],
        owner: str,
    ) -> None:
        """``name`` is the node's own network's; ``owner``: the gateway, of several that may share these."""
        self._client = client
        self._name = name
        self._labels = dict(labels)
        self._owner = owner
        self._lock = threading.Lock()
        self._known: dict[Services, tuple[NodeNetwork, Firewall]] = {}

    def ensure(self, services: Services, doors: Sequence[int]) -> tuple[str, dict[str, str]]:
        """Return the id of the network of containers that reach these services and these ports of this host.

        Beside it, the addresses of the hosts that have names: nobody answers a container that asks for them.
        Raises `EngineError`, APIError.
        """
        where = addresses(services)
        with self._lock:
            known = self._known.get(services)
            network, firewall = known or self._parts(services)
            if known is None or firewall.gap():
                if why := self.lacks():
                    raise CreateFailed(f"containers cannot reach {', '.join(services)}: {why}")
                firewall.close_except(doors)
            for service in services:
                host, _, port = service.rpartition(":")
                firewall.open_to(where[host], int(port))
            self._known[services] = network, firewall
            return network.ensure(), {host: at for host, at in where.items() if host != at}

    def lacks(self) -> str:
        """Return why containers can be given no way to services; empty if they can. Raises `EngineError`."""
        if not self._client.is_here():
            return (
                f"the daemon's host has a packet filter that the gateway cannot use; {_OTHERWISE}"
            )
        try:
            Firewall.check()
        except EngineError as error:
            return f"iptables cannot be used (root or CAP_NET_ADMIN may): {error}; {_OTHERWISE}"
        return ""

    def gaps(self) -> list[str]:
        """Return what of the rules does not hold at present."""
        with self._lock:
            found = [(network.name, firewall.gap()) for network, firewall in self._known.values()]
        return [
            f"containers in the network {name} reach other machines: {gap}"
            for name, gap in found
            if gap
        ]

    def forget(self) -> None:
        """Check whether they exist before the next use."""
        with self._lock:
            for network, _ in self._known.values():
                network.forget()

    def remove(self) -> None:
        """Remove those that were made here, and their rules. Raises `EngineError` while one is in use."""
        with self._lock:
            while self._known:
                _, (network, firewall) = self._known.popitem()
                network.remove()
                firewall.remove()

    def _parts(self, services: Services) -> tuple[NodeNetwork, Firewall]:
        name = f"{self._name}-{hashlib.sha256(' '.join(services).encode()).hexdigest()[:8]}"
        network = NodeNetwork(self._client, name, self._labels, outside=True, owner=self._owner)
        return network, Firewall(network.bridge, self._owner, forwarded=True)


def addresses(services: Services) -> dict[str, str]:
    """Return the IPv4 address of each host, and each range of addresses as it is. Raises `CreateFailed`."""
    found = {}
    for host in dict.fromkeys(service.rpartition(":")[0] for service in services):
        try:
            found[host] = host if "/" in host else str(socket.gethostbyname(host))
        except OSError as error:
            raise CreateFailed(f"{host} cannot be resolved: {error.strerror}") from error
        if ipaddress.ip_network(found[host], strict=False).is_loopback:
            raise CreateFailed(
                f"{host} is a loopback address, which is each container's own; name another one"
            )
    return found
