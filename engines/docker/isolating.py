"""Keeps a node's containers from each other, from this host and from other machines; says what of it holds."""

from collections.abc import Sequence

from engines.base import EngineError, Isolation
from engines.docker.connection import Connection
from engines.docker.isolation import Firewall
from engines.docker.network import NodeNetwork

NOT_AT_ALL = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=("engine.docker.network_mode is host: containers are not isolated at all; use bridge",),
)


class Surroundings:
    """A node's network with this host's packet filter around it."""

    def __init__(self, connection: Connection, network: NodeNetwork, owner: str) -> None:
        self._connection = connection
        self._network = network
        self._firewall = Firewall(network.bridge, owner)
        self._refused = ""

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports, where we may."""
        try:
            ours, _, _ = self._network.holds()
            if ours and self._connection.is_here():
                self._firewall.close_except(ports)
            self._refused = ""
        except EngineError as error:
            self._refused = str(error)

    def isolation(self) -> Isolation:
        """Look what holds. Raises `EngineError`."""
        ours, apart, inside = self._network.holds()
        name = self._network.name
        why = (
            "it was made with other settings and is in use; it is made anew once no container is in it"
            if ours
            else "it is not the gateway's own; leave engine.docker.network empty where the gateway is no container"
        )
        gaps = []
        if not apart:
            gaps.append(f"containers in the network {name} reach each other: {why}")
        if not inside:
            gaps.append(f"containers in the network {name} reach other machines: {why}")
        if not self._connection.is_here():
            opening = "the daemon is on another machine, whose packet filter the gateway cannot use"
        elif not ours:
            opening = "the network is not the gateway's own, and so are its rules"
        else:
            opening = self._refused or self._firewall.gap() or ""
        if opening:
            gaps.append(f"what listens on all addresses of the engine's host can be reached: {opening}")
        return Isolation(tasks=apart, host=not opening, outside=inside, gaps=tuple(gaps))

    def remove(self) -> None:
        """Take network and rules away. Raises `EngineError` while the network is in use."""
        self._network.remove()
        self._firewall.remove()
