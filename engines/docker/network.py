"""The bridge network of a node's containers, and what it isolates.

An internal bridge isolates containers from other machines, but not from services of the host that listen on all
addresses. Only the host's packet filter can close these: if the gateway may use it, it has a chain per bridge, to
which INPUT passes everything that comes from the bridge. Rules carry the mark of the gateway that made them, so
that several gateways of one node do not remove each other's.
"""

import hashlib
import ipaddress
import logging
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool

from engines.base import MADE_AT_START, EngineError, Isolation
from engines.docker.client import Connection, is_away, translated

log = logging.getLogger(__name__)

_TAKEN = (403, 409)
"""statuses for a bridge or a name that exists already"""
_NAME = "com.docker.network.bridge.name"
_BETWEEN = "com.docker.network.bridge.enable_icc"
_CREATE_TIMEOUT, _PAUSE = 10.0, 0.05
_CHECK_EVERY = 1.0
"""seconds between checks of the rules"""

PREFIX = "BFIA-"
_FORWARDED = "DOCKER-USER"
"""Docker's chain for rules that go before its own"""
_MANGLE = ("-t", "mangle")
_TIMEOUT = 20


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
        self._firewall = Firewall(self.bridge, owner, internal=not outside)
        self._refused = ""
        self._doors: tuple[int, ...] | None = None
        """ports of this host that stay open, once it was to be closed"""
        self._checked = 0.0
        self._rules = threading.Lock()
        self._lock = threading.Lock()
        self._id: str | None = None
        self._made = ""
        self._seen: Mapping[str, Any] = {"Options": None, "IPAM": {"Config": None}}
        """what the daemon last said of it"""

    @property
    def host(self) -> str:
        """This host's IPv4 address in it, as last seen; empty if there is none."""
        return next((str(pool["Gateway"]) for pool in self._pools()), "")

    @property
    def ours(self) -> bool:
        """Whether this node made it."""
        return _option(self._seen, _NAME) == self.bridge

    def ensure(self) -> str:
        """Return the network's id; create the network unless it is known to exist.

        One that is gone is created with its former addresses, unless these are taken. Raises APIError.
        """
        with self._lock:
            return self._known()

    def forget(self) -> None:
        """Check whether it exists before the next use."""
        with self._lock:
            self._id = None

    def look(self) -> None:
        """Find or create the network, also if it was pruned meanwhile. Raises `EngineError`."""
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
        """Close this host to containers, except for these ports, if we may."""
        try:
            self.look()
            if self.ours and self._client.is_here():
                with self._rules:
                    self._doors = tuple(ports)  # also where it fails: `stay_closed` tries again
                    self._firewall.close_except(ports)
            self._refused = ""
        except EngineError as error:
            self._refused = str(error)

    def stay_closed(self, *, at_once: bool = False) -> None:
        """Close this host again where its rules are gone, as after a reload of its packet filter.

        A check is one run of iptables, some 5 ms; a burst of starts has one a second.
        """
        if self._doors is None:
            return
        with self._rules:
            if not at_once and time.monotonic() - self._checked < _CHECK_EVERY:
                return
            if gap := self._firewall.gap(self._doors):
                before = self._refused
                try:
                    self._firewall.close_except(self._doors)
                    self._refused, done = "", "made anew"
                except EngineError as error:
                    self._refused = done = str(error)
                if done != before:
                    text = "containers could reach this host: rules of the network %s: %s: %s"
                    log.warning(text, self.name, gap, done)
            self._checked = time.monotonic()

    def isolation(self) -> Isolation:
        """Check what holds. Raises `EngineError`."""
        self.look()
        ours, apart, inside = (
            self.ours,
            _option(self._seen, _BETWEEN) == "false",
            bool(self._seen["Internal"]),
        )
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
            gaps.append(
                f"what listens on all addresses of the engine's host can be reached: {opening}"
            )
        return Isolation(
            tasks=apart,
            host=not opening,
            outside=inside,
            gaps=tuple(gaps),
        )

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
            if (found := self._find()) is not None:
                self._seen = found
                right = (
                    _option(found, _BETWEEN) == "false" and found["Internal"] is not self._outside
                )
                if (
                    not right and self.ours and self._unless_used(found["Id"])
                ):  # else `isolation` reports it
                    found = None
            self._seen = found or self._make()
            self._id = str(self._seen["Id"])
        return self._id

    def _make(self) -> Mapping[str, Any]:
        self.stay_closed(at_once=True)
        pools = self._pools()
        try:
            try:
                self._made = self._create(pools)
            except APIError as error:
                if not pools or is_away(error):
                    raise
                self._made = self._create([])  # its former addresses are taken
        except APIError as error:
            if error.status_code not in _TAKEN:
                raise
            return self._made_by_another(error)
        return dict(self._client().inspect_network(self._made))

    def _create(self, pools: list[IPAMPool]) -> str:
        made = self._client().create_network(
            self.name,
            driver="bridge",
            options={_NAME: self.bridge, _BETWEEN: "false"},
            check_duplicate=True,
            internal=not self._outside,
            labels=self._labels,
            ipam=IPAMConfig(pool_configs=pools) if pools else None,
        )
        return str(made["Id"])

    def _pools(self) -> list[IPAMPool]:
        """Return its IPv4 addresses as last seen, with this host's."""
        for pool in self._seen["IPAM"]["Config"] or ():
            network = ipaddress.ip_network(pool["Subnet"])
            if network.version == 4:
                host = str(pool.get("Gateway") or next(network.hosts()))
                return [IPAMPool(subnet=pool["Subnet"], gateway=host)]
        return []

    def _unless_used(self, network: str) -> bool:
        """Remove a network; return False if containers are in it."""
        try:
            self._remove(network)
            return True
        except APIError as error:
            if error.status_code not in _TAKEN:
                raise
            return False

    def _made_by_another(self, refusal: APIError) -> Mapping[str, Any]:
        """Return the network that another gateway is just creating; it is visible only afterwards."""
        until = time.monotonic() + _CREATE_TIMEOUT
        while (found := self._find()) is None:
            if time.monotonic() > until:
                raise refusal
            time.sleep(_PAUSE)
        return found

    def _find(self) -> Mapping[str, Any] | None:
        return next(iter(self._all()), None)

    def _all(self) -> list[dict[str, Any]]:
        found = self._client().networks(
            names=[self.name]
        )  # the daemon also finds names that contain this one
        return [network for network in found if network["Name"] == self.name]

    def _remove(self, network: str) -> None:
        with suppress(NotFound):
            self._client().remove_network(network)


def _option(network: Mapping[str, Any], name: str) -> str | None:
    """Return an option of a network; the daemon says null where there are none."""
    return (network["Options"] or {}).get(name)


class Firewall:
    """The rules for one bridge."""

    def __init__(
        self,
        bridge: str,
        owner: str,
        *,
        forwarded: bool = False,
        internal: bool = False,
    ) -> None:
        """``forwarded``: they also hold for what goes to other machines and bridges; ``internal``: nothing goes.

        They then stand in the table mangle, too: Docker takes its own jumps away while it makes a network.
        """
        self.chain = PREFIX + hashlib.sha256(bridge.encode()).hexdigest()[:16]
        self._mark = "bfia " + hashlib.sha256(owner.encode()).hexdigest()[:12]
        self._jumps: list[tuple[str, ...]] = [("INPUT", "-i", bridge, "-j", self.chain)]
        if forwarded:
            answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
            self._jumps += [
                (_FORWARDED, "-i", bridge, "-j", self.chain),
                (_FORWARDED, "-o", bridge, *answers),
            ]
        self._tables: tuple[tuple[str, ...], ...] = ((),)
        if forwarded or internal:
            self._jumps.append(("FORWARD", "-i", bridge, "-j", self.chain, *_MANGLE))
            self._tables = ((), _MANGLE)
        self._drops = [(self.chain, "-j", "DROP", *table) for table in self._tables]

    @staticmethod
    def check() -> None:
        """Raise `EngineError` unless rules for what is forwarded can be made."""
        _iptables("-n", "-L", _FORWARDED, must=True)

    def close_except(self, ports: Sequence[int]) -> None:
        """Let containers reach only these ports of this host. Raises `EngineError`."""
        for table, drop in zip(self._tables, self._drops, strict=True):
            made = _iptables("-N", self.chain, *table)
            if (
                made.returncode and _iptables("-n", "-L", self.chain, *table).returncode
            ):  # nor did it exist before
                raise EngineError(made.stderr.strip() or "refused")
            if _iptables("-C", *drop).returncode:
                _iptables("-A", *drop, must=True)
        for line in _iptables("-S", self.chain, must=True).stdout.splitlines():
            if f'"{self._mark}"' in line:  # of an earlier start of this gateway
                _iptables("-D", *shlex.split(line)[1:], must=True)
        for door in map(self._door, ports):
            _iptables("-I", self.chain, "1", *door, must=True)
        for jump in self._jumps:
            if _iptables("-C", *jump).returncode:
                _iptables("-I", jump[0], "1", *jump[1:], must=True)

    def open_to(self, address: str, port: int) -> None:
        """Let containers reach a port, also one that a container elsewhere publishes. Raises `EngineError`."""
        asked = ("-m", "conntrack", "--ctorigdst", address, "--ctorigdstport", str(port))
        for table in self._tables:
            rule = ("-p", "tcp", *asked, "-j", "ACCEPT", *table)
            if _iptables("-C", self.chain, *rule).returncode:
                _iptables("-I", self.chain, "1", *rule, must=True)

    def gap(self, ports: Sequence[int] = ()) -> str | None:
        """Return why the host is open to containers, or closed at these ports of the gateway; None if neither."""
        found: set[str] = set()
        for table in self._tables:
            try:
                answer = _iptables("-S", *table)
            except EngineError as error:
                return str(error)
            if answer.returncode != 0:
                text = (answer.stderr.strip() or "refused").splitlines()[0]
                return f"iptables cannot be used (root or CAP_NET_ADMIN may): {text}"
            found.update(" ".join((line, *table)) for line in answer.stdout.splitlines())
        doors = " ".join(line for line in found if self.chain in line and f'"{self._mark}"' in line)
        wanted = {" ".join(("-A", *rule)) for rule in (*self._jumps, *self._drops)}
        if wanted <= found and all(f"--dport {port} " in doors for port in ports):
            return None
        return f"iptables has no rules for them; {MADE_AT_START}"

    def _door(self, port: int) -> tuple[str, ...]:
        match = ("-p", "tcp", "--dport", str(port), "-m", "addrtype", "--dst-type", "LOCAL")
        return (*match, "-m", "comment", "--comment", self._mark, "-j", "RETURN")

    def remove(self) -> None:
        """Remove the chain, if there is one."""
        with suppress(EngineError):
            for jump in self._jumps:
                while not _iptables("-D", *jump).returncode:  # two gateways may have made it
                    continue
            for table in self._tables:
                _iptables("-F", self.chain, *table)
                _iptables("-X", self.chain, *table)


def _iptables(*arguments: str, must: bool = False) -> subprocess.CompletedProcess[str]:
    """Run iptables. Raises `EngineError` if it cannot be run, or with ``must`` where it refuses."""
    path = shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if path is None:
        raise EngineError("there is no iptables here")
    command = [path, "-w", "10", *arguments]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"iptables cannot be used: {error}") from error
    if must and answer.returncode != 0:
        raise EngineError(answer.stderr.strip() or f"iptables {arguments[0]} failed")
    return answer
