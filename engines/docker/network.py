"""The bridge network of a node's containers, and its isolation.

An internal bridge isolates containers from other machines, but not from services of the host that
listen on all addresses. Only the host's packet filter can close these (`engines.firewall`),
if the gateway may use it.
"""

import hashlib
import ipaddress
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool

from engines.base import EngineError, Isolation
from engines.docker.client import Connection, is_away, translated
from engines.firewall import Firewall
from engines.records import list_in, object_in

log = logging.getLogger(__name__)

# HTTP statuses of the daemon for a bridge or name that exists already, and for the removal of a
# network with containers
_IN_USE = (403, 409)
_BRIDGE_NAME = "com.docker.network.bridge.name"
_BETWEEN_CONTAINERS = "com.docker.network.bridge.enable_icc"
CREATE_TIMEOUT = 10.0  # seconds for another gateway to complete its creation of the network
_PAUSE = 0.05  # seconds between two looks for the network that another gateway creates
CHECK_EVERY = 1.0  # seconds between checks of the packet filter


class NodeNetwork:
    """One network, created when it is first needed.

    The daemon lets two gateways that start at the same time create two networks of the same name,
    and then starts no container in either. It does not let two have the same bridge, so the bridge
    gets a name, too.
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
        """``outside``: containers reach other machines.

        ``owner`` identifies this gateway, as several may share the network.
        """
        self.name = name
        self.bridge = "bfia" + hashlib.sha256(name.encode()).hexdigest()[:11]
        self._client = client
        self._outside = outside
        self._labels = dict(labels)

        self._firewall = Firewall(self.bridge, owner, internal=not outside)
        self._firewall_lock = threading.Lock()
        # The error of the last attempt to close this host; empty if the attempt succeeded
        self._firewall_error = ""
        self._firewall_checked = 0.0  # monotonic time of the last check
        # Ports of this host that containers may reach; None until `close_host` has tried to close
        # this host to all others
        self._open_ports: tuple[int, ...] | None = None

        self._lock = threading.Lock()
        self._id: str | None = None  # None: the network has to be looked up
        self._created_id = ""  # of the network that this object created; empty: it created none
        # The daemon's last record of the network; at first, a record that says nothing about it
        self._record: Mapping[str, Any] = {
            "Options": None,
            "IPAM": {"Config": None},
        }

    @property
    def host(self) -> str:
        """This host's IPv4 address in the network, as last seen; empty if it has none."""
        pool = address_pool(self._record)
        if pool is None:
            return ""
        return pool["Gateway"]

    @property
    def is_own(self) -> bool:
        """Whether this node created the network, as last seen."""
        return bridge_option(self._record) == self.bridge

    def ensure(self) -> str:
        """Return the network's id; create the network unless it is known to exist.

        A network that is gone is created with its former addresses, unless these are in use. Raises
        APIError.
        """
        with self._lock:
            if self._id is None:
                self._record = self._find_usable() or self._create_or_wait()
                self._id = str(self._record["Id"])
            return self._id

    def forget(self) -> None:
        """Have the next use check whether the network exists."""
        with self._lock:
            self._id = None

    def look(self) -> None:
        """Find or create the network, also if it was pruned since the last use.

        Raises `EngineError`.
        """
        self.forget()
        with translated():
            self.ensure()

    def address(self) -> str:
        """Return this host's IPv4 address in the network. Raises `EngineError`."""
        self.look()
        if not self.host:
            raise EngineError(f"the network {self.name} has no IPv4 addresses")
        return self.host

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports.

        If the gateway lacks the rights, nothing is raised here, and `isolation` reports the gap.
        Nothing happens for a network that the admin created, or for a daemon on another machine.
        """
        try:
            self.look()
            if self.is_own and self._client.is_here():
                with self._firewall_lock:
                    self._open_ports = tuple(ports)  # also after a failure: `stay_closed` retries
                    self._firewall.close_except(ports)
            self._firewall_error = ""
        except EngineError as error:
            self._firewall_error = str(error)

    def stay_closed(self, *, immediately: bool = False) -> None:
        """Close this host again if its rules are gone, as after a reload of its packet filter.

        A check runs iptables, which takes some milliseconds, so there is at most one check in
        `CHECK_EVERY` seconds unless ``immediately``.
        """
        if self._open_ports is None:
            return
        with self._firewall_lock:
            since_last_check = time.monotonic() - self._firewall_checked
            if not immediately and since_last_check < CHECK_EVERY:
                return
            fault = self._firewall.fault(self._open_ports)
            if fault:
                self._close_again(fault, self._open_ports)
            self._firewall_checked = time.monotonic()

    def isolation(self) -> Isolation:
        """Check the isolation of the network. Raises `EngineError`."""
        self.look()
        are_apart = is_apart(self._record)
        is_internal = bool(self._record["Internal"])
        opening = self._opening()
        why = "it is not the gateway's own; leave engine.docker.network empty outside of containers"
        if self.is_own:
            why = (
                "it was made with other settings and is in use; it is made anew once no "
                "container is in it"
            )
        gaps = []
        if not are_apart:
            gaps.append(f"containers in the network {self.name} reach each other: {why}")
        if not is_internal:
            gaps.append(f"containers in the network {self.name} reach other machines: {why}")
        if opening:
            gaps.append(
                f"what listens on all addresses of the engine's host can be reached: {opening}"
            )
        return Isolation(
            tasks=are_apart,
            host=not opening,
            outside=is_internal,
            gaps=tuple(gaps),
        )

    def remove(self) -> None:
        """Remove the network, if there is one, and its rules.

        Raises `EngineError` while it is in use.
        """
        self.forget()
        with translated():
            for network in self._networks():
                self._remove(network["Id"])
        self._firewall.remove()

    def undo(self) -> None:
        """Remove the network if this object created it and nothing uses it.

        Raises `EngineError`.
        """
        with self._lock, translated():
            created_id = self._created_id
            self._created_id = ""
            self._id = None
            if created_id:
                self._remove_unless_used(created_id)

    # ------------------------------------------------------------ the packet filter

    def _close_again(self, fault: str, ports: Sequence[int]) -> None:
        """Close this host and log the outcome; the same error in a row is logged only once."""
        error_before = self._firewall_error
        try:
            self._firewall.close_except(ports)
            self._firewall_error = ""
            outcome = "made anew"
        except EngineError as error:
            self._firewall_error = str(error)
            outcome = self._firewall_error
        if outcome != error_before:
            log.warning(
                "containers could reach this host: rules of the network %s: %s: %s",
                self.name,
                fault,
                outcome,
            )

    def _opening(self) -> str:
        """Return why containers can reach this host; empty if they cannot."""
        if not self._client.is_here():
            return "the daemon is on another machine, whose packet filter the gateway cannot use"
        if not self.is_own:
            return "the network is not the gateway's own, and neither are its rules"
        if self._firewall_error:
            return self._firewall_error
        return self._firewall.fault() or ""  # without ports, too few open ones are no fault

    # ------------------------------------------------------------ creation; callers hold the lock

    def _find_usable(self) -> Mapping[str, Any] | None:
        """Return the existing network; None if there is none that can be used.

        A network of this node with other settings is removed, unless it is in use: then it is
        returned, and `isolation` reports its settings.
        """
        network = self._find()
        if network is None:
            return None
        self._record = network  # `is_own` reads it
        # ``Internal`` is the opposite of our setting ``outside``.
        is_as_configured = is_apart(network) and network["Internal"] != self._outside
        if is_as_configured or not self.is_own:
            return network
        if self._remove_unless_used(network["Id"]):
            return None
        return network

    def _create_or_wait(self) -> Mapping[str, Any]:
        """Create the network, or wait for another gateway that is creating it. Raises APIError."""
        self.stay_closed(immediately=True)  # rules first: a new bridge must not be open
        try:
            self._created_id = self._create_with_former_addresses()
        except APIError as error:
            if error.status_code not in _IN_USE:
                raise
            return self._wait_for_creation(error)
        return dict(self._client().inspect_network(self._created_id))

    def _create_with_former_addresses(self) -> str:
        """Create the network, with its former addresses unless these are in use; return its id.

        Raises APIError.
        """
        pool = address_pool(self._record)
        if pool is None:  # no former addresses are known
            return self._create(None)
        try:
            return self._create(pool)
        except APIError as error:
            if is_away(error):
                raise
            return self._create(None)

    def _create(self, pool: Mapping[str, str] | None) -> str:
        """Create the network; return its id.

        ``pool``: as `address_pool` returns it; None: the daemon chooses. Raises APIError.
        """
        ipam = None
        if pool is not None:
            ipam_pool = IPAMPool(
                subnet=pool["Subnet"],
                gateway=pool["Gateway"],
            )
            ipam = IPAMConfig(pool_configs=[ipam_pool])
        network = self._client().create_network(
            self.name,
            driver="bridge",
            options={_BRIDGE_NAME: self.bridge, _BETWEEN_CONTAINERS: "false"},
            check_duplicate=True,
            internal=not self._outside,
            labels=self._labels,
            ipam=ipam,
        )
        return str(network["Id"])

    def _wait_for_creation(self, refusal: APIError) -> Mapping[str, Any]:
        """Return the network that another gateway is creating.

        It becomes visible only when it is complete. Raises ``refusal`` if it does not appear in
        time.
        """
        deadline = time.monotonic() + CREATE_TIMEOUT
        while True:
            network = self._find()
            if network is not None:
                return network
            if time.monotonic() > deadline:
                raise refusal
            time.sleep(_PAUSE)

    # ------------------------------------------------------------ the daemon's networks

    def _find(self) -> Mapping[str, Any] | None:
        """Return the network of this name; None if there is none."""
        return next(iter(self._networks()), None)

    def _networks(self) -> list[Mapping[str, Any]]:
        """Return the networks of this name; the daemon also lists names that contain it."""
        networks = self._client().networks(names=[self.name])
        return [network for network in networks if network["Name"] == self.name]

    def _remove_unless_used(self, network_id: str) -> bool:
        """Remove a network; return False if containers are in it."""
        try:
            self._remove(network_id)
        except APIError as error:
            if error.status_code in _IN_USE:
                return False
            raise
        return True

    def _remove(self, network_id: str) -> None:
        """Remove a network, which may be gone. Raises APIError."""
        with suppress(NotFound):
            self._client().remove_network(network_id)


def address_pool(network: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the IPv4 ``Subnet`` of a network, with the daemon's host in it as ``Gateway``.

    ``network``: the daemon's record. None if the network has no IPv4 addresses, or the record says
    nothing about them.
    """
    pools = list_in(network["IPAM"], "Config")
    for pool in pools:
        subnet = ipaddress.ip_network(pool["Subnet"])
        if subnet.version == 4:
            # The daemon gives the host the first address, and does not always say so.
            host = str(pool.get("Gateway") or next(subnet.hosts()))
            return {"Subnet": str(pool["Subnet"]), "Gateway": host}
    return None


def bridge_option(network: Mapping[str, Any]) -> str:
    """Return the name that a network's bridge was given; empty if the daemon chose one."""
    return str(object_in(network, "Options").get(_BRIDGE_NAME, ""))


def is_apart(network: Mapping[str, Any]) -> bool:
    """Whether the containers in a network cannot reach each other."""
    return bool(object_in(network, "Options").get(_BETWEEN_CONTAINERS) == "false")
