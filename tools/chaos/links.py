"""Two closed nodes that reach each other over a hub, and the faults of their links.

Each node is at a host of its own (`tests.network.lab`). Firewalls keep connections away from the
guest and the host, which both keep links to the hub; the guest calls it through a proxy.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, wait_for
from tests.network import lab
from tests.network.lab import Host, Lab
from tests.network.offices import (
    key_of,
    peer_url,
    place,
    sealed_route,
    wait_for_links,
)
from tests.services import outbound_proxy

PROGRAMS = (*lab.PROGRAMS, outbound_proxy.PROGRAM)
FAULTS = (
    "cut link",
    "silence link",
    "half-open link",
    "kill hub",
    "restart proxy",
    "freeze proxy",
)
# Phases and faults of the trials that the test suite plays.
SAMPLE = (
    ("creating", "restart proxy"),
    ("starting", "kill hub"),
    ("running", "silence link"),
    ("running", "half-open link"),
    ("running", "freeze proxy"),
    ("stopping", "cut link"),
)
_HUB = jobs.ARBITER
_PROXY_PORT = 3128
_ABSENCE = (0.0, 3.0)  # seconds for which the hub or the proxy does not run
# Seconds of a cut; links of a silent end are given up after six.
_SHORT = (1.0, 4.0)
_LONG = (7.0, 10.0)
_DEADLINE = 5  # seconds of a request between the nodes


class LinkedNodes:
    """Guest, host and hub with their hosts. Use as a context."""

    def __init__(self, home: Path, engine: Mapping[str, Any]) -> None:
        """``engine``: the settings of the engine of guest and host."""
        self.seconds_until_back = 0.0  # after the last fault, until a request passed again
        self._nodes = Federation(
            home / "nodes",
            [jobs.GUEST, jobs.HOST, _HUB],
            engine,
        )
        self.guest = self._nodes[jobs.GUEST]
        self.host = self._nodes[jobs.HOST]
        self.hub = self._nodes[_HUB]
        self._home = home
        self._stack = ExitStack()
        self._hosts: dict[str, Host] = {}
        self._actions: dict[str, Callable[[Random], None]] = {
            "cut link": self._cut,
            "silence link": self._silence,
            "half-open link": self._half_open,
            "kill hub": self._kill_hub,
            "restart proxy": self._restart_proxy,
            "freeze proxy": self._freeze_proxy,
        }

    def __enter__(self) -> "LinkedNodes":
        with ExitStack() as stack:
            network = stack.enter_context(Lab())
            for node in self._nodes:
                self._hosts[node.id] = network.host()
                place(node, self._hosts[node.id])
            self._proxy_host = network.host()
            self._hosts[jobs.GUEST].call_only(self._proxy_host)
            self._hosts[jobs.HOST].drop_inbound()
            self._set_up_proxy()
            stack.callback(self._stop_proxy)
            self._write_routes()
            stack.enter_context(self._nodes)
            self._wait_for_links()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cause(self, fault: str, random: Random) -> None:
        """Cause a fault, end it after a while, and measure how long requests need to pass again."""
        self._actions[fault](random)
        end = time.monotonic()
        wait_for(self._passes, about="a request passes again")
        self._wait_for_links()
        self.seconds_until_back = time.monotonic() - end

    # ------------------------------------------------------------ set-up

    def _write_routes(self) -> None:
        password_file = self._home / "password"
        password_file.write_text(outbound_proxy.PASSWORD)
        to_hub = {
            "url": peer_url(self.hub),
            "keys": key_of(self.hub),
            "dial": "out",
            "deadline": _DEADLINE,
        }
        through_proxy = {
            "proxy": self._proxy.url,
            "proxy_password": str(password_file),
        }
        routes_of_guest = {
            _HUB: to_hub | through_proxy,
            jobs.HOST: self._route_by_hub(self.host),
        }
        routes_of_host = {
            _HUB: to_hub,
            jobs.GUEST: self._route_by_hub(self.guest),
        }
        self.guest.route(**routes_of_guest)
        self.host.route(**routes_of_host)
        routes_of_hub = {}
        for node in (self.guest, self.host):
            routes_of_hub[node.id] = {
                "reached": "by-link",
                "keys": key_of(node),
                "relay": True,
                "deadline": _DEADLINE,
            }
        self.hub.route(**routes_of_hub)

    def _route_by_hub(self, partner: Node) -> dict[str, Any]:
        return sealed_route(partner, self.hub) | {"deadline": _DEADLINE}

    def _set_up_proxy(self) -> None:
        folder = self._home / "proxy"
        folder.mkdir()
        self._proxy = outbound_proxy.OutboundProxy(
            folder,
            _PROXY_PORT,
            [self.hub.peer_port],
            self._proxy_host.ipv4,
        )
        self._start_proxy()

    def _start_proxy(self) -> None:
        self._running_proxy = ExitStack()
        serving = self._proxy_host.serving(
            self._proxy.command(),
            self._home / "proxy.log",
            _PROXY_PORT,
        )
        self._proxy_process = self._running_proxy.enter_context(serving)

    def _stop_proxy(self) -> None:
        self._running_proxy.close()

    # ------------------------------------------------------------ faults

    def _cut(self, random: Random) -> None:
        """End all connections of the guest or the host, and let none begin for a while."""
        self._disconnect(random, "reset")

    def _silence(self, random: Random) -> None:
        """Drop all packets of the guest or the host for a while."""
        self._disconnect(random, "silence")

    def _half_open(self, random: Random) -> None:
        """Drop all packets to the guest or the host: the hub still hears them for a while."""
        self._disconnect(random, "deafness")

    def _disconnect(self, random: Random, how: str) -> None:
        victim = self._hosts[random.choice((jobs.GUEST, jobs.HOST))]
        bounds = random.choice((_SHORT, _LONG))
        time.sleep(random.uniform(0.0, 0.6))
        victim.cut(how)
        try:
            time.sleep(random.uniform(*bounds))
        finally:
            victim.mend()

    def _kill_hub(self, random: Random) -> None:
        time.sleep(random.uniform(0.0, 0.6))
        self.hub.kill()
        time.sleep(random.uniform(*_ABSENCE))
        self.hub.start()

    def _restart_proxy(self, random: Random) -> None:
        time.sleep(random.uniform(0.0, 0.6))
        self._stop_proxy()
        time.sleep(random.uniform(*_ABSENCE))
        self._start_proxy()

    def _freeze_proxy(self, random: Random) -> None:
        """Let the proxy stand still: its connections stay open, and nothing passes."""
        time.sleep(random.uniform(0.0, 0.6))
        self._proxy_process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(random.uniform(*random.choice((_SHORT, _LONG))))
        finally:
            self._proxy_process.send_signal(signal.SIGCONT)

    # ------------------------------------------------------------ the way back

    def _passes(self) -> bool:
        """Return whether the guest reaches the host."""
        route_test = self.guest.post(f"/api/v1/routes/{jobs.HOST}/test", {})
        results = {step["name"]: step["result"] for step in route_test["steps"]}
        return results["answer"] == "ok"

    def _wait_for_links(self) -> None:
        """Wait until the hub has both links of both nodes."""
        for node in (self.guest, self.host):
            wait_for_links(self.hub, node)
