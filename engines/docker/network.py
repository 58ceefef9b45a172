"""The bridge network of a node's containers, and what it isolates."""

import hashlib
import ipaddress
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool

from engines.base import EngineError, HostMoved, Isolation
from engines.docker.client import Connection, is_away, translated
from engines.docker.isolation import Firewall

_TAKEN = (403, 409)
"""statuses for a bridge or a name that exists already"""
_NAME = "com.docker.network.bridge.name"
_BETWEEN = "com.docker.network.bridge.enable_icc"
_CREATE_TIMEOUT, _PAUSE = 10.0, 0.05


class NodeNetwork:
    """One network, created when it is first needed.

    The daemon lets two gateways that start at the same time create two networks of one name, and then starts no
    container in either. It does not let two have one bridge: hence the bridge gets a name, too.
    """

    def __init__(
        self,
        client: Connection,
        name: str,
        labels: Mapping[str, str],
        *,
        outside: bool = False,
        owner: str = "",
    ) -> None:
        """``owner``: the gateway, of several that may share the network."""
        self.name = name
        self.bridge = "bfia" + hashlib.sha256(name.encode()).hexdigest()[:11]
        self._client = client
        self._outside = outside
        self._labels = dict(labels)
        self._firewall = Firewall(self.bridge, owner)
        self._refused = ""
        self._lock = threading.Lock()
        self._id: str | None = None
        self._made = ""
        self._pools: tuple[IPAMPool, ...] = ()
        """its addresses when it was last inspected"""
        self._host = ""
        """this host's address among them"""

    def ensure(self, host: str = "") -> str:
        """Return the network's id; create the network unless it is known to exist.

        One that is gone is created with its former addresses, unless these are taken. Raises APIError, and
        `HostMoved` if this host is not at the address ``host`` in it.
        """
        with self._lock:
            found = self._known()
            if host not in ("", self._host):
                raise HostMoved("the engine's network was made anew with other addresses")
            return found

    def forget(self) -> None:
        """Check whether it exists before the next use."""
        with self._lock:
            self._id = None

    def address(self) -> str:
        """Return this host's IPv4 address in the network. Raises `EngineError`."""
        with self._lock, translated():
            self._id = None
            self._known()
            if not self._host:
                raise EngineError(f"the network {self.name} has no IPv4 addresses")
            return self._host

    def holds(self) -> tuple[bool, bool, bool]:
        """Return whether the network is our own, isolates containers, and isolates them from other machines.

        Raises `EngineError`.
        """
        with translated():
            found = self._client().inspect_network(self.ensure())
        return self._is_ours(found), (found["Options"] or {}).get(_BETWEEN) == "false", bool(found["Internal"])

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports, if we may."""
        try:
            ours, _, _ = self.holds()
            if ours and self._client.is_here():
                self._firewall.close_except(ports)
            self._refused = ""
        except EngineError as error:
            self._refused = str(error)

    def isolation(self) -> Isolation:
        """Check what holds. Raises `EngineError`."""
        ours, apart, inside = self.holds()
        why = (
            "it was made with other settings and is in use; it is made anew once no container is in it"
            if ours
            else "it is not the gateway's own; leave engine.docker.network empty outside of containers"
        )
        gaps = []
        if not apart:
            gaps.append(f"containers in the network {self.name} reach each other: {why}")
        if not inside:
            gaps.append(f"containers in the network {self.name} reach other machines: {why}")
        if not self._client.is_here():
            opening = "the daemon is on another machine, whose packet filter the gateway cannot use"
        elif not ours:
            opening = "the network is not the gateway's own, and so are its rules"
        else:
            opening = self._refused or self._firewall.gap() or ""
        if opening:
            gaps.append(f"what listens on all addresses of the engine's host can be reached: {opening}")
        return Isolation(tasks=apart, host=not opening, outside=inside, gaps=tuple(gaps))

    def remove(self) -> None:
        """Remove the network, if there is one, and its rules. Raises `EngineError` while it is in use."""
        self.forget()
        with translated():
            for network in self._all():
                self._remove(network["Id"])
        self._firewall.remove()

    def undo(self) -> None:
        """Remove the network if it was created here and nothing uses it. Raises `EngineError`."""
        with self._lock, translated():
            made, self._made, self._id = self._made, "", None
            if made:
                self._unless_used(made)

    def _known(self) -> str:
        """Return the id of the network, found or created; call it with the lock held. Raises APIError."""
        if self._id is None:
            found = self._renewed(self._find()) or self._make()
            self._learn(found)
            self._id = found
        return self._id

    def _make(self) -> str:
        try:
            try:
                made = self._create(self._pools)
            except APIError as error:
                if not self._pools or is_away(error):
                    raise
                made = self._create(())  # its former addresses are taken
        except APIError as error:
            if error.status_code not in _TAKEN:
                raise
            return self._made_by_another(error)
        self._made = made
        return made

    def _create(self, pools: Sequence[IPAMPool]) -> str:
        made = self._client().create_network(
            self.name,
            driver="bridge",
            options={_NAME: self.bridge, _BETWEEN: "false"},
            check_duplicate=True,
            internal=not self._outside,
            labels=self._labels,
            ipam=IPAMConfig(pool_configs=list(pools)) if pools else None,
        )
        return str(made["Id"])

    def _learn(self, network: str) -> None:
        """Remember the addresses of the network, and which is this host's."""
        pools: tuple[IPAMPool, ...] = ()
        host = ""
        for pool in self._client().inspect_network(network)["IPAM"]["Config"] or []:
            addresses = ipaddress.ip_network(pool["Subnet"])
            if addresses.version == 4:
                host = str(pool.get("Gateway") or next(addresses.hosts()))
                pools = (IPAMPool(subnet=pool["Subnet"], gateway=host),)
                break
        self._pools, self._host = pools, host

    def _renewed(self, found: str | None) -> str | None:
        """Return the network; one that has other options than ours and is not in use is removed first."""
        if found is None:
            return None
        network = self._client().inspect_network(found)
        right = (network["Options"] or {}).get(_BETWEEN) == "false" and network["Internal"] is not self._outside
        if right or not self._is_ours(network):
            return found
        return None if self._unless_used(found) else found  # `holds` reports what is wrong with it

    def _unless_used(self, network: str) -> bool:
        """Remove a network; return False if containers are in it."""
        try:
            self._remove(network)
        except APIError as error:
            if error.status_code not in _TAKEN:
                raise
            return False
        return True

    def _is_ours(self, network: Mapping[str, Any]) -> bool:
        return (network["Options"] or {}).get(_NAME) == self.bridge

    def _made_by_another(self, refusal: APIError) -> str:
        """Return the network that another gateway is just creating; it is visible only afterwards."""
        until = time.monotonic() + _CREATE_TIMEOUT
        while (found := self._find()) is None:
            if time.monotonic() > until:
                raise refusal
            time.sleep(_PAUSE)
        return found

    def _find(self) -> str | None:
        return next((str(network["Id"]) for network in self._all()), None)

    def _all(self) -> list[dict[str, Any]]:
        found = self._client().networks(names=[self.name])  # the daemon also finds names that contain this one
        return [network for network in found if network["Name"] == self.name]

    def _remove(self, network: str) -> None:
        try:
            self._client().remove_network(network)
        except NotFound:
            return
