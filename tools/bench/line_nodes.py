"""Two nodes in network namespaces of their own, at the ends of a long line (`long_line`)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.identity.keys import Keyring
from tests.e2e.nodes import ROOT, Federation, Node
from tools.bench.long_line import FIRST_ADDRESS, SECOND_ADDRESS
from tools.bench.nodes import GUEST, HOST, provider

_NAMESPACES = ("bench-line-a", "bench-line-b")
_LINE_ADDRESSES = (FIRST_ADDRESS, SECOND_ADDRESS)
# A short way from this program to each namespace, for its operator and its containers
_NEAR_ADDRESSES = (("10.98.0.1", "10.98.0.2"), ("10.98.0.5", "10.98.0.6"))
_PREFIX = 30  # bits of the network of each short way
_BLOCK = 1 << 18  # bytes

# Receives until the end of a connection, and confirms it.
_RECEIVE = f"""
import socket, sys
listener = socket.create_server(("{SECOND_ADDRESS}", int(sys.argv[1])))
print("ready", flush=True)
connection, _ = listener.accept()
while connection.recv({_BLOCK}):
    pass
connection.sendall(b".")
"""
# Sends a number of bytes, and prints the seconds until they are confirmed.
_SEND = f"""
import socket, sys, time
start = time.perf_counter()
connection = socket.create_connection(("{SECOND_ADDRESS}", int(sys.argv[1])))
missing = int(sys.argv[2])
block = bytes({_BLOCK})
while missing:
    piece = block[:missing]
    connection.sendall(piece)
    missing -= len(piece)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.perf_counter() - start)
"""
_BARE_PORT = 9000


@dataclass(frozen=True)
class LongLine:
    """The process that plays the line."""

    process: "subprocess.Popen[bytes]"

    def cut(self) -> None:
        """Drop all packets from now on."""
        self._say(b"cut\n")

    def restore(self) -> None:
        """Pass packets on again."""
        self._say(b"restore\n")

    def _say(self, word: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word)
        self.process.stdin.flush()


@contextmanager
def long_line(congestion: str) -> Iterator[LongLine]:
    """Run a line between two namespaces, whose TCP has this congestion control."""
    with ExitStack() as stack:
        for namespace, (near, inside) in zip(_NAMESPACES, _NEAR_ADDRESSES, strict=True):
            _run("ip", "netns", "add", namespace)
            stack.callback(_run, "ip", "netns", "delete", namespace)
            _connect(namespace, near, inside)
            # A process that still ends there would keep the namespace and its devices.
            stack.callback(_run, "ip", "link", "delete", _near_device(namespace))
            _set_congestion_control(namespace, congestion)
        program = [sys.executable, "-m", "tools.bench.long_line", *_NAMESPACES]
        process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        stack.callback(process.communicate)  # ends its input
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield LongLine(process)


def _connect(namespace: str, near: str, inside: str) -> None:
    """Connect this program with a namespace; both get an address."""
    device = _near_device(namespace)
    peer = ("peer", "name", "near", "netns", namespace)
    in_namespace = ("ip", "-n", namespace)
    _run("ip", "link", "add", device, "type", "veth", *peer)
    _run("ip", "address", "add", f"{near}/{_PREFIX}", "dev", device)
    _run("ip", "link", "set", device, "up")
    _run(*in_namespace, "address", "add", f"{inside}/{_PREFIX}", "dev", "near")
    _run(*in_namespace, "link", "set", "near", "up")
    _run(*in_namespace, "link", "set", "lo", "up")


def _near_device(namespace: str) -> str:
    """Return this program's end of the short way to a namespace."""
    return f"near-{namespace[-1]}"


def _set_congestion_control(namespace: str, congestion: str) -> None:
    setting = "/proc/sys/net/ipv4/tcp_congestion_control"
    command = f"echo {congestion} > {setting}"
    _run("ip", "netns", "exec", namespace, "sh", "-c", command)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def bare_seconds(size: int) -> float:
    """Return the seconds of one TCP stream for ``size`` bytes over the line."""
    port = str(_BARE_PORT)
    receiver = subprocess.Popen(
        [*inside(1), sys.executable, "-c", _RECEIVE, port],
        stdout=subprocess.PIPE,
    )
    with receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        sender = [*inside(0), sys.executable, "-c", _SEND, port, str(size)]
        result = subprocess.run(sender, stdout=subprocess.PIPE, check=True)
    return float(result.stdout)


def inside(number: int) -> list[str]:
    """Return the words before a command that runs at one end, 0 or 1."""
    return ["ip", "netns", "exec", _NAMESPACES[number]]


@contextmanager
def nodes_at_line(
    way: str,
    engine: dict[str, Any],
    **settings: Any,
) -> Iterator[tuple[Node, Node]]:
    """Run the guest's and the host's node at the ends of the line.

    ``way``: ``direct``, or ``link``: the guest opens links to the host.
    """
    with TemporaryDirectory() as home:
        federation = Federation(Path(home), [GUEST, HOST], engine, fresh=True, **settings)
        guest = federation[GUEST]
        host = federation[HOST]
        _place(guest, 0)
        _place(host, 1)
        _route(guest, host, way)
        _route(host, guest, way)
        with federation, ExitStack() as stack:
            for number, node in enumerate((guest, host)):
                stack.enter_context(_reachable(node, number))
                node.register(provider())
            yield guest, host


def _place(node: Node, number: int) -> None:
    """Have a node run at one end, 0 or 1, and serve its peers there."""
    listener = node.settings["listen"]["peer"]
    port = listener["bind"].rpartition(":")[2]
    listener["bind"] = f"{_LINE_ADDRESSES[number]}:{port}"
    node.prefix = inside(number)


@contextmanager
def _reachable(node: Node, number: int) -> Iterator[None]:
    """Use the short way to a node's listeners for operators and containers.

    At the end, the node's own addresses lead nowhere, so that nothing more is asked of it.
    """
    address = _NEAR_ADDRESSES[number][1]
    ports = []
    for listener in ("operator", "container"):
        port = node.addresses[listener].rpartition(":")[2]
        node.addresses[listener] = f"http://{address}:{port}"
        ports.append(port)
    node.headers = {"host": "127.0.0.1"}  # operators without a token ask from the node's machine
    program = [*inside(number), sys.executable, "-m", "tools.bench.near_way", address, *ports]
    process = subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()  # ends its input


def _route(node: Node, peer: Node, way: str) -> None:
    """Write the only route of a node."""
    pair = Keyring(peer.home / "state").signing
    assert pair is not None
    entry = {
        "url": f"http://{peer.settings['listen']['peer']['bind']}",
        "keys": pair.public,
        "signing": "accepted",
    }
    if way == "link" and node.id == GUEST:
        entry["dial"] = "out"
    if way == "link" and node.id == HOST:
        del entry["url"]
        entry["reached"] = "by-link"
    node.route(**{peer.id: entry})
