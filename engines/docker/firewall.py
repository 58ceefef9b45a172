"""Rules of this host's packet filter for one bridge of a daemon.

A bridge has a chain of its own, to which INPUT passes everything that comes from the bridge. Rules for a gateway's
ports carry the mark of that gateway, so that several gateways of one node do not remove each other's. The other rules
have no mark: the gateways share them.
"""

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from engines.base import MADE_AT_START, EngineError

Rule = tuple[str, ...]
Table = tuple[str, ...]

PREFIX = "BFIA-"  # of chains
IPTABLES_TIMEOUT = 20  # seconds

_DOCKER_CHAIN = "DOCKER-USER"  # Docker's chain for rules that precede its own
_FILTER: Table = ()  # the default table
_MANGLE: Table = ("-t", "mangle")
_SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin"


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
        """``owner``: the gateway. ``forwarded``: the rules also apply to traffic to other machines and bridges.

        ``internal``: no such traffic is allowed. With either, the rules are also in the table mangle: Docker
        rebuilds its own chain while it creates a network; the copy in mangle protects meanwhile.
        """
        self.chain = PREFIX + hashlib.sha256(bridge.encode()).hexdigest()[:16]
        self._mark = "bfia " + hashlib.sha256(owner.encode()).hexdigest()[:12]
        self._tables = [_FILTER]
        self._jumps: list[Rule] = [("INPUT", "-i", bridge, "-j", self.chain)]
        if forwarded:
            replies = ("-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
            self._jumps.append((_DOCKER_CHAIN, "-i", bridge, "-j", self.chain))
            self._jumps.append((_DOCKER_CHAIN, "-o", bridge, *replies))
        if forwarded or internal:
            self._jumps.append(("FORWARD", "-i", bridge, "-j", self.chain, *_MANGLE))
            self._tables.append(_MANGLE)

    @staticmethod
    def check() -> None:
        """Raise `EngineError` unless rules for forwarded traffic can be made."""
        _run("-n", "-L", _DOCKER_CHAIN)

    def close_except(self, ports: Sequence[int]) -> None:
        """Let containers reach only these ports of this host. Raises `EngineError`."""
        for table in self._tables:
            self._ensure_chain(table)
        self._delete_own_rules()
        for port in ports:
            # Not in mangle, which is entered from FORWARD only, where no port of this host is a target.
            _run("-I", self.chain, "1", *self._open_port_rule(port))
        for jump in self._jumps:
            if not _succeeds("-C", *jump):
                _run("-I", jump[0], "1", *jump[1:])

    def open_to(self, address: str, port: int) -> None:
        """Let containers reach an address and port as they address it, also if Docker translates it.

        The rule has no mark, as every gateway that uses the bridge needs it. Raises `EngineError`.
        """
        original_target = ("--ctorigdst", address, "--ctorigdstport", str(port))
        for table in self._tables:
            rule = ("-p", "tcp", "-m", "conntrack", *original_target, "-j", "ACCEPT", *table)
            if not _succeeds("-C", self.chain, *rule):
                _run("-I", self.chain, "1", *rule)

    def fault(self, ports: Sequence[int] = ()) -> str | None:
        """Return what is missing, of the rules in general or for these ports; None if all rules are in place."""
        rules: set[str] = set()
        for table in self._tables:
            try:
                result = _iptables("-S", *table)
            except EngineError as error:
                return str(error)
            if result.returncode != 0:
                reason = (result.stderr.strip() or "refused").splitlines()[0]
                return f"iptables cannot be used (root or CAP_NET_ADMIN may): {reason}"
            for line in result.stdout.splitlines():
                rules.add(" ".join((line, *table)))  # ends like the rules of `_has_all_rules`
        if self._has_all_rules(rules, ports):
            return None
        return f"iptables has no rules for them; {MADE_AT_START}"

    def remove(self) -> None:
        """Remove the chain, if there is one."""
        with suppress(EngineError):
            for jump in self._jumps:
                while _succeeds("-D", *jump):  # two gateways may have made it
                    continue
            for table in self._tables:
                _iptables("-F", self.chain, *table)
                _iptables("-X", self.chain, *table)

    def _ensure_chain(self, table: Table) -> None:
        """Create the chain for the containers of this bridge, with its final rule, which drops everything.

        Raises `EngineError`.
        """
        created = _iptables("-N", self.chain, *table)
        if created.returncode != 0 and not _succeeds("-n", "-L", self.chain, *table):
            raise EngineError(created.stderr.strip() or "refused")
        drop = self._drop_rule(table)
        if not _succeeds("-C", *drop):
            _run("-A", *drop)

    def _delete_own_rules(self) -> None:
        """Delete the rules of an earlier start of this gateway."""
        for line in _run("-S", self.chain).stdout.splitlines():
            if f'"{self._mark}"' in line:
                _run("-D", *shlex.split(line)[1:])

    def _has_all_rules(self, rules: set[str], ports: Sequence[int]) -> bool:
        for rule in (*self._jumps, *map(self._drop_rule, self._tables)):
            if " ".join(("-A", *rule)) not in rules:
                return False
        open_ports = ""
        for line in rules:
            if self.chain in line and f'"{self._mark}"' in line:
                open_ports += f"{line} "
        return all(f"--dport {port} " in open_ports for port in ports)

    def _drop_rule(self, table: Table) -> Rule:
        return (self.chain, "-j", "DROP", *table)

    def _open_port_rule(self, port: int) -> Rule:
        match = ("-p", "tcp", "--dport", str(port), "-m", "addrtype", "--dst-type", "LOCAL")
        return (*match, "-m", "comment", "--comment", self._mark, "-j", "RETURN")


def _succeeds(*arguments: str) -> bool:
    """Whether iptables accepts a command, such as the check for a rule. Raises `EngineError` if it cannot be run."""
    return _iptables(*arguments).returncode == 0


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run iptables. Raises `EngineError` if it refuses."""
    result = _iptables(*arguments)
    if result.returncode != 0:
        raise EngineError(result.stderr.strip() or f"iptables {arguments[0]} failed")
    return result


def _iptables(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run iptables. Raises `EngineError` if it cannot be run."""
    path = shutil.which("iptables", path=_SEARCH_PATH)
    if path is None:
        raise EngineError("there is no iptables here")
    try:
        return subprocess.run(
            [path, "-w", "10", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=IPTABLES_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"iptables cannot be used: {error}") from error
