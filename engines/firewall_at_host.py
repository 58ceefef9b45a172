"""A program that keeps the rules of `engines.firewall.MemberFirewall` on the daemon's host.

A gateway in a container cannot use that host's packet filter. It starts this program in a container
with the host's network and root folder (`engines.docker.host_rules`), so that the rules are made by
the host's own iptables, as the daemon's are.

Usage: ``python3 -m engines.firewall_at_host close|check BRIDGE ADDRESS [PORT ...]``. The output is
one line of JSON: ``fault`` is why the bridge is not closed, null if it is; ``error`` is there
instead if the packet filter cannot be used.
"""

import json
import os
import sys
from collections.abc import Sequence

from engines.base import EngineError
from engines.firewall import Firewall, MemberFirewall

HOST_ROOT = "/host"  # where the container has the root folder of the daemon's host
CLOSE = "close"
CHECK = "check"


def main(arguments: Sequence[str]) -> int:
    """Make or check the rules, print the outcome, and return the exit code."""
    action, bridge, address, *ports = arguments
    os.chroot(HOST_ROOT)
    os.chdir("/")
    firewall = MemberFirewall(bridge, address)
    try:
        outcome = {"fault": _fault_after(action, firewall, [int(port) for port in ports])}
    except EngineError as error:
        outcome = {"error": str(error)}
    print(json.dumps(outcome))
    return 0


def _fault_after(
    action: str,
    firewall: MemberFirewall,
    ports: Sequence[int],
) -> str | None:
    """Make the rules if the action says so; return their fault, None if all are in place.

    Raises `EngineError` if the packet filter refuses a rule.
    """
    if action == CLOSE:
        Firewall.check()
        firewall.close_except(ports)
    return firewall.fault(ports)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
