"""A network for tests: hosts with addresses, cables and real firewalls (nftables).

Each host is a network namespace without a name (`tests.namespaces`), so it is gone when a test
dies. The hosts share a segment, on which each has an address of IPv4, of IPv6, or of both.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import namespaces
from tests.e2e.nodes import wait_for
from tests.namespaces import Namespace

PROGRAMS = (*namespaces.PROGRAMS, "ip", "ss", "nft", "setpriv")

_PREFIX_V4 = "10.99.0"
_FIRST_FURTHER = 100  # last part of the first address that a host gets besides its own
_PREFIX_V6 = "fd99:"
# Packets with which others open connections.
_OPENING = "tcp flags & (syn | ack) == syn"
_FIREWALL = """\
table inet firewall {{
  chain inbound {{
    type filter hook input priority filter
    iifname "lo" accept
    {inbound}
  }}
  chain outbound {{
    type filter hook output priority filter
    oifname "lo" accept
    {outbound}
  }}
}}
"""
_DROP_OPENINGS = f"{_OPENING} counter drop"
# What a cut does to every packet to a host, and to every packet from it.
_RESET = "meta l4proto tcp reject with tcp reset"
_CUTS = {
    "silence": ("drop", "drop"),
    "deafness": ("drop", "accept"),
    "reset": (_RESET, _RESET),
}
_CUT = """\
table inet cut {{
  chain inbound {{
    type filter hook input priority raw
    iifname != "lo" {inbound}
  }}
  chain outbound {{
    type filter hook output priority raw
    oifname != "lo" {outbound}
  }}
}}
"""


class Host(Namespace):
    """A host of a `Lab`."""

    def __init__(self, number: int, families: str) -> None:
        """``number``: the last part of its addresses. ``families``: 4, 6 or 46."""
        super().__init__()
        self.ipv4 = f"{_PREFIX_V4}.{number}"
        self.ipv6 = f"{_PREFIX_V6}:{number}"
        lines = ["link set lo up", "link set eth0 up"]
        if "4" in families:
            lines.append(f"addr add {self.ipv4}/24 dev eth0")
        if "6" in families:
            lines.append(f"addr add {self.ipv6}/64 dev eth0 nodad")
        self._lines = lines

    def set_up(self) -> None:
        """Give the interface, which now exists, its addresses."""
        _configure(self, *self._lines)

    def more_addresses(self, count: int) -> list[str]:
        """Add ``count`` addresses of IPv4, and return them."""
        numbers = range(_FIRST_FURTHER, _FIRST_FURTHER + count)
        addresses = [f"{_PREFIX_V4}.{number}" for number in numbers]
        _configure(self, *[f"addr add {address}/24 dev eth0" for address in addresses])
        return addresses

    # ------------------------------------------------------------ firewall

    def drop_inbound(self) -> None:
        """Have the firewall drop every packet with which another host opens a connection."""
        rules = _FIREWALL.format(inbound=_DROP_OPENINGS, outbound="")
        self.do("nft", "-f", "-", text=rules)

    def call_only(self, *hosts: "Host") -> None:
        """Let connections out to some hosts only, and none in."""
        addresses = ", ".join(host.ipv4 for host in hosts)
        allowed = f"ip daddr {{ {addresses} }} accept; counter drop"
        rules = _FIREWALL.format(inbound=_DROP_OPENINGS, outbound=allowed)
        self.do("nft", "-f", "-", text=rules)

    def dropped(self, chain: str = "inbound") -> int:
        """Return how many packets a chain of the firewall has dropped."""
        listing = self.do("nft", "list", "chain", "inet", "firewall", chain)
        words = listing.partition("counter packets ")[2]
        return int(words.split()[0])

    # ------------------------------------------------------------ cable

    def cut(self, how: str = "silence") -> None:
        """Let no packet pass until `mend`.

        ``how``: "silence" drops them, so that neither end notices; "deafness" drops only those to
        the host; "reset" ends connections.
        """
        inbound, outbound = _CUTS[how]
        rules = _CUT.format(inbound=inbound, outbound=outbound)
        self.do("nft", "-f", "-", text=rules)

    def mend(self) -> None:
        """Let packets pass again."""
        self.do("nft", "delete", "table", "inet", "cut")

    # ------------------------------------------------------------ servers

    @contextmanager
    def serving(
        self,
        command: Sequence[str],
        log: Path,
        port: int,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a server with its output in a file; yield its process once it listens on a port.

        It ends with the test's process at the latest.
        """
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.inside, "setpriv", "--pdeathsig", "TERM", *command],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:

            def listens() -> bool:
                assert process.poll() is None, log.read_text(errors="replace")
                return bool(self.do("ss", "-Hltn", f"sport = :{port}"))

            wait_for(listens, about=f"{command[0]} listens")
            yield process
        finally:
            process.terminate()
            process.wait(60)


class Lab:
    """Hosts on one segment. Use as a context."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._switch = Namespace()
        self._stack.callback(self._switch.close)
        self._count = 0
        lines = ["link add switch type bridge", "link set switch up"]
        _configure(self._switch, *lines)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, families: str = "4") -> Host:
        """Add a host. ``families``: 4, 6 or 46, of its addresses."""
        self._count += 1
        host = Host(self._count, families)
        self._stack.callback(host.close)
        port = f"port{self._count}"
        lines = [
            f"link add {port} type veth peer name eth0 netns {host.path}",
            f"link set {port} master switch up",
        ]
        _configure(self._switch, *lines)
        host.set_up()
        return host


def _configure(namespace: Namespace, *lines: str) -> None:
    """Run commands of `ip` in a namespace."""
    namespace.do("ip", "-batch", "-", text="\n".join(lines))
