"""Closes this host to a bridge's containers, except for the gateway's listener.

An internal bridge isolates containers from other machines, but not from services of the host that listen on all
addresses. Only the host's packet filter can close these: if the gateway may use it, it has a chain per bridge, to
which INPUT passes everything that comes from the bridge. Rules carry the mark of the gateway that made them, so
that several gateways of one node do not remove each other's.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence

from engines.base import EngineError, Isolation
from engines.docker.client import Connection
from engines.docker.network import NodeNetwork

PREFIX = "BFIA-"
_TIMEOUT = 20
_NOT_THERE = (1, 2)
"""exit codes of iptables for a missing rule or chain; others mean that it cannot be used"""
_MOST_JUMPS = 16
"""more than gateways that may have created the same rule at the same time"""


class Firewall:
    """The rules for one bridge."""

    def __init__(self, bridge: str, owner: str) -> None:
        self.chain = PREFIX + hashlib.sha256(bridge.encode()).hexdigest()[:16]
        self._bridge = bridge
        self._mark = "bfia " + hashlib.sha256(owner.encode()).hexdigest()[:12]
        self._jump = ("INPUT", "-i", bridge, "-j", self.chain)

    def close_except(self, ports: Sequence[int]) -> None:
        """Let containers reach only these ports of this host. Raises `EngineError`."""
        refusal = _run("-N", self.chain)
        if refusal is not None and _run("-n", "-L", self.chain) is not None:  # nor did it exist before
            raise EngineError(refusal)
        _must_be_there(self.chain, "-j", "DROP")
        for rule in self._marked():
            _must("-D", *rule[1:])
        for port in ports:
            match = ("-p", "tcp", "--dport", str(port), "-m", "comment", "--comment", self._mark)
            _must("-I", self.chain, "1", *match, "-j", "RETURN")
        if _run("-C", *self._jump) is not None:
            _must("-I", self._jump[0], "1", *self._jump[1:])

    def gap(self) -> str | None:
        """Return why the host is open to containers, None if it is closed."""
        for rule in (self._jump, (self.chain, "-j", "DROP")):
            try:
                answer = _call(("-C", *rule))
            except EngineError as error:
                return str(error)
            if answer.returncode in _NOT_THERE:
                return "iptables has no rules for them; the node makes them at its start if it may"
            if answer.returncode != 0:
                text = (answer.stderr.strip() or "refused").splitlines()[0]
                return f"iptables cannot be used (root or CAP_NET_ADMIN may): {text}"
        return None

    def remove(self) -> None:
        """Remove the chain, if there is one."""
        for _ in range(_MOST_JUMPS):
            if _run("-D", *self._jump) is not None:
                break
        _run("-F", self.chain)
        _run("-X", self.chain)

    def _marked(self) -> list[list[str]]:
        """Return the rules of this gateway, as iptables prints them."""
        listed = _must("-S", self.chain)
        return [_words(line) for line in listed.splitlines() if f'"{self._mark}"' in line]


def _words(line: str) -> list[str]:
    before, _, rest = line.partition('"')
    quoted, _, after = rest.partition('"')
    return [*before.split(), quoted, *after.split()]


def _must_be_there(*rule: str) -> None:
    if _run("-C", *rule) is not None:
        _must("-A", *rule)


def _must(*arguments: str) -> str:
    answer = _call(arguments)
    if answer.returncode != 0:
        raise EngineError(answer.stderr.strip() or f"iptables {arguments[0]} failed")
    return answer.stdout


def _run(*arguments: str) -> str | None:
    """Return the error, None if it worked."""
    try:
        answer = _call(arguments)
    except EngineError as error:
        return str(error)
    return None if answer.returncode == 0 else answer.stderr.strip() or "refused"


def _call(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    path = shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if path is None:
        raise EngineError("there is no iptables here")
    command = [path, "-w", "10", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"iptables cannot be used: {error}") from error


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
        """Close this host to containers, except for these ports, if we may."""
        try:
            ours, _, _ = self._network.holds()
            if ours and self._connection.is_here():
                self._firewall.close_except(ports)
            self._refused = ""
        except EngineError as error:
            self._refused = str(error)

    def isolation(self) -> Isolation:
        """Check what holds. Raises `EngineError`."""
        ours, apart, inside = self._network.holds()
        name = self._network.name
        why = (
            "it was made with other settings and is in use; it is made anew once no container is in it"
            if ours
            else "it is not the gateway's own; leave engine.docker.network empty outside of containers"
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
        """Remove network and rules. Raises `EngineError` while the network is in use."""
        self._network.remove()
        self._firewall.remove()
