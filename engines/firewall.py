"""Rules of this host's packet filter for one bridge of a Docker daemon.

Each bridge has its own chain, to which the chain INPUT passes every packet from the bridge. Rules
for a gateway's ports carry that gateway's mark (a comment), so that several gateways of one node do
not remove each other's rules. All other rules have no mark: the gateways share them.
"""

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from engines.base import RULES_CREATED_AT_START, EngineError

# Arguments of iptables: a chain, conditions and a target, then those that select the table
Rule = tuple[str, ...]
Table = tuple[str, ...]  # arguments of iptables that select a table; none for the default one

PREFIX = "BFIA-"  # of the names of chains
IPTABLES_TIMEOUT = 20  # seconds

_DOCKER_CHAIN = "DOCKER-USER"  # Docker's chain for rules that precede its own
_FILTER: Table = ()
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
        """``owner``: identifies the gateway.

        ``internal``: no traffic to other machines and bridges is allowed. ``forwarded``: such
        traffic is possible, and the rules apply to it, too. With neither flag, such traffic is
        free: the rules apply only to packets to this host. With either flag, the rules are also in
        the table mangle: while Docker creates a network, Docker rebuilds its own chain, and the
        copy in mangle protects until that chain is complete.
        """
        self.chain = PREFIX + hashlib.sha256(bridge.encode()).hexdigest()[:16]
        self._mark = "bfia " + hashlib.sha256(owner.encode()).hexdigest()[:12]
        self._tables = [_FILTER]
        # Rules in other chains; all but the one for replies pass packets of the bridge to our chain
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
        """Let containers reach only these ports of this host. Raises `EngineError`.

        The chain with its final rule exists before any rule leads to it.
        """
        for table in self._tables:
            self._ensure_chain(table)
        self._delete_own_rules()
        for rule in self._own_rules(ports):
            _run("-I", self.chain, "1", *rule)
        for jump in self._jumps:
            if not _succeeds("-C", *jump):
                chain, *conditions = jump
                _run("-I", chain, "1", *conditions)

    def open_to(self, address: str, port: int) -> None:
        """Let containers reach an address and port.

        The rule matches the address to which the container sent the packet, before Docker
        translates it. The rule has no mark, as every gateway that uses the bridge needs it. Raises
        `EngineError`.
        """
        original_target = ("--ctorigdst", address, "--ctorigdstport", str(port))
        for table in self._tables:
            rule = ("-p", "tcp", "-m", "conntrack", *original_target, "-j", "ACCEPT", *table)
            if not _succeeds("-C", self.chain, *rule):
                _run("-I", self.chain, "1", *rule)

    def fault(self, ports: Sequence[int] = ()) -> str | None:
        """Return why containers may reach too much, or too few of these ports.

        None if all rules are in place. The fault is that rules are missing, or that the packet
        filter cannot be read.
        """
        rules: set[str] = set()
        for table in self._tables:
            try:
                rules.update(_rules_of(table))
            except EngineError as error:
                return str(error)
        if self._has_all_rules(rules, ports):
            return None
        return f"iptables has no rules for them; {RULES_CREATED_AT_START}"

    def remove(self) -> None:
        """Remove the chain with the rules that lead to it, if there is one.

        Errors are ignored: without a packet filter there are no rules to remove.
        """
        with suppress(EngineError):
            for jump in self._jumps:
                _delete_all(jump)
            for table in self._tables:
                _iptables("-F", self.chain, *table)
                _iptables("-X", self.chain, *table)

    def _ensure_chain(self, table: Table) -> None:
        """Create the chain of this bridge with its final rule, which drops everything.

        Raises `EngineError`.
        """
        created = _iptables("-N", self.chain, *table)
        exists = created.returncode == 0 or _succeeds("-n", "-L", self.chain, *table)
        if not exists:
            raise EngineError(created.stderr.strip() or "refused")
        drop = self._drop_rule(table)
        if not _succeeds("-C", *drop):
            _run("-A", *drop)

    def _delete_own_rules(self) -> None:
        """Delete the rules of an earlier start of this gateway."""
        for table in self._tables:
            for line in _run("-S", self.chain, *table).stdout.splitlines():
                # iptables prints the mark in quotes, as it contains a space.
                if f'"{self._mark}"' in line:
                    _append, *rule = shlex.split(line)  # the line reads "-A CHAIN …"
                    _run("-D", *rule, *table)

    def _has_all_rules(
        self,
        rules: set[str],
        ports: Sequence[int],
    ) -> bool:
        """Whether the rules include the bridge's, and this gateway's for these ports.

        ``rules``: as `_rules_of` returns them.
        """
        drop_rules = map(self._drop_rule, self._tables)
        shared_rules = {" ".join(("-A", *rule)) for rule in (*self._jumps, *drop_rules)}
        if not shared_rules <= rules:
            return False
        rules_with_mark = " ".join(filter(self._is_own_rule, rules))
        return all(f"--dport {port} " in rules_with_mark for port in ports)

    def _is_own_rule(self, line: str) -> bool:
        """Whether a rule belongs to the bridge and has the mark of this gateway."""
        return self.chain in line and f'"{self._mark}"' in line

    def _drop_rule(self, table: Table) -> Rule:
        """Return the final rule of the chain, which drops every packet."""
        return (self.chain, "-j", "DROP", *table)

    def _own_rules(self, ports: Sequence[int]) -> list[Rule]:
        """Return this gateway's rules for ports of this host, without the name of the chain.

        They end the chain without dropping the packet. The table mangle has none: only its chain
        FORWARD leads to our chain there, and packets to a port of this host do not pass FORWARD.
        """
        rules = []
        for port in ports:
            match = ("-p", "tcp", "--dport", str(port), "-m", "addrtype", "--dst-type", "LOCAL")
            rules.append((*match, *self._own_comment, "-j", "RETURN"))
        return rules

    @property
    def _own_comment(self) -> Rule:
        """The arguments that give a rule the mark of this gateway."""
        return ("-m", "comment", "--comment", self._mark)


class MemberFirewall(Firewall):
    """The rules for a bridge in which the gateway is a container, too.

    Containers reach the gateway's ports, and the gateway reaches them; nothing else passes, neither
    between containers nor to the daemon's host. The rules have one mark for all gateways: those of
    a former gateway are deleted, as a run may have its address now.
    """

    def __init__(self, bridge: str, address: str) -> None:
        """``address``: the gateway's, in the bridge's network."""
        super().__init__(bridge, owner="", forwarded=True)
        self._address = address

    def fault(self, ports: Sequence[int] = ()) -> str | None:
        """Return why containers may reach too much or too little, as `Firewall.fault` does.

        The rules for these ports must also name the gateway's present address.
        """
        fault = super().fault(ports)
        if fault is not None or not ports:
            return fault
        if all(_succeeds("-C", self.chain, *rule) for rule in self._own_rules(ports)):
            return None
        return f"iptables has no rules for the gateway at {self._address}"

    def _own_rules(self, ports: Sequence[int]) -> list[Rule]:
        """Return the rules for the gateway, without the name of the chain."""
        gateway = f"{self._address}/32"
        replies = ("-m", "conntrack", "--ctstate", "ESTABLISHED")
        matches: list[Rule] = [("-s", gateway), ("-d", gateway, *replies)]
        for port in ports:
            matches.append(("-d", gateway, "-p", "tcp", "--dport", str(port)))
        rules = []
        for table in self._tables:
            for match in matches:
                rules.append((*match, *self._own_comment, "-j", "ACCEPT", *table))
        return rules


def _rules_of(table: Table) -> list[str]:
    """Return the rules of a table as ``iptables -S`` prints them.

    Each is followed by the arguments that select the table, so that equal rules of two tables
    differ. Raises `EngineError` if the rules cannot be read.
    """
    result = _iptables("-S", *table)
    if result.returncode != 0:
        reason = (result.stderr.strip() or "refused").splitlines()[0]
        raise EngineError(f"iptables cannot be used (root or CAP_NET_ADMIN may): {reason}")
    return [" ".join((line, *table)) for line in result.stdout.splitlines()]


def _succeeds(*arguments: str) -> bool:
    """Whether iptables accepts a command, such as the check for a rule.

    Raises `EngineError` if iptables cannot be run.
    """
    return _iptables(*arguments).returncode == 0


def _delete_all(rule: Rule) -> None:
    """Delete a rule as often as it exists: two gateways may have added it at the same time."""
    while _succeeds("-D", *rule):
        continue


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
            [path, "-w", "10", *arguments],  # wait up to 10 s for the lock of the packet filter
            capture_output=True,
            text=True,
            check=False,
            timeout=IPTABLES_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"iptables cannot be used: {error}") from error
