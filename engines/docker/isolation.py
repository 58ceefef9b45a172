"""Closes this host to a bridge's containers, except for the gateway's listener.

An internal bridge isolates containers from other machines, but not from services of the host that listen on all
addresses. Only the host's packet filter can close these: if the gateway may use it, it has a chain per bridge, to
which INPUT passes everything that comes from the bridge. Rules carry the mark of the gateway that made them, so
that several gateways of one node do not remove each other's.
"""

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from engines.base import EngineError

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
        if _run("-C", self.chain, "-j", "DROP") is not None:
            _must("-A", self.chain, "-j", "DROP")
        for line in _must("-S", self.chain).splitlines():
            if f'"{self._mark}"' in line:  # of an earlier start of this gateway
                _must("-D", *shlex.split(line)[1:])
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
