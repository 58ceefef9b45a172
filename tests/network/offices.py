"""Nodes at the hosts of a `Lab`, and what passes over the cable of one of them."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from tests.e2e.nodes import Node, wait_for
from tests.network.lab import Host

# Words of every job of the user: a task, a parameter and a dataset.
WORDS = ("intersect_rsa_1", "tree_param", "testspace#test_host")

_ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
_FORCED_BUFFER = 33  # SO_RCVBUFFORCE
_BUFFER_SIZE = 1 << 26  # bytes of packets that wait to be read
_LARGEST_PACKET = 1 << 17  # bytes
_LOOK_SECONDS = 0.2  # between two looks whether a recording is over


def place(
    node: Node,
    host: Host,
    address: str = "",
) -> None:
    """Have a node run at a host.

    ``address``: its listener's for peers; by default the host's of IPv4.
    """
    node.namespace = host
    address = address or host.ipv4
    listener = node.settings["listen"]["peer"]
    listener["bind"] = f"{address}:{node.peer_port}"


def peer_url(node: Node, scheme: str = "http") -> str:
    """Return the URL of a node's listener for peers."""
    return f"{scheme}://{node.settings['listen']['peer']['bind']}"


def key_of(node: Node) -> str:
    """Return the public key of a node."""
    return Keyring(node.home / "state").pairs["signing"].public


def sealed_route(partner: Node, hub: Node) -> dict[str, Any]:
    """Return the route to a partner through a hub, which reads nothing of it."""
    sealing_pair = SealingKeyFile(partner.home / "state").ensure()
    assert sealing_pair is not None
    return {
        "via": hub.id,
        "keys": key_of(partner),
        "sealing_key": sealing_pair.public,
        "sealing": "required",
        "control_sealing": "required",
    }


def wait_for_links(
    node: Node,
    partner: Node,
    count: int = 2,
) -> None:
    """Wait until a node has ``count`` links with a partner."""

    def links_stand() -> bool:
        response = node.get(f"/api/v1/routes/{partner.id}")
        return len(response["route"]["links"]) == count

    wait_for(links_stand, about=f"{node.id} has {count} links with {partner.id}")


def check_routes(guest: Node, host: Node) -> None:
    """Check that the tests of the routes in both directions are good."""
    for source, target in permutations((host, guest)):
        path = f"/api/v1/routes/{target.id}/test"
        route_test = source.post(path, {})
        assert route_test["good"], route_test


def check_outputs(
    guest: Node,
    host: Node,
    job_id: str,
) -> None:
    """Check that both parties have the outputs of the user's job, and that its model is good."""
    outputs = guest.outputs(job_id)
    report = outputs["hetero_secureboost_1", "guest.0", "report1"]
    assert report["value"]["auc"] > 0.9
    outputs |= host.outputs(job_id)
    for party in ("guest.0", "host.0"):
        table = outputs["intersect_rsa_1", party, "train_data"]
        assert table["there"]


class Recording:
    """The packets on a host's cable, one after the other."""

    def __init__(self, tap: socket.socket) -> None:
        self._tap = tap
        self._packets = bytearray()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        """Read packets until the recording is over."""
        self._tap.settimeout(_LOOK_SECONDS)
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                self._packets += self._tap.recv(_LARGEST_PACKET)

    def stop(self) -> None:
        """End the recording."""
        self._is_over.set()
        self._thread.join()

    def words(self) -> tuple[str, ...]:
        """Return the words of `WORDS` that can be read."""
        return tuple(word for word in WORDS if word.encode() in self._packets)


@contextlib.contextmanager
def recorded(host: Host) -> Iterator[Recording]:
    """Record all packets on the cable of a host."""
    with host.entered():
        tap = socket.socket(
            socket.AF_PACKET,
            socket.SOCK_RAW,
            socket.htons(_ALL_PROTOCOLS),
        )
    with tap:
        tap.setsockopt(socket.SOL_SOCKET, _FORCED_BUFFER, _BUFFER_SIZE)
        tap.bind(("eth0", 0))
        recording = Recording(tap)
        try:
            yield recording
        finally:
            recording.stop()
