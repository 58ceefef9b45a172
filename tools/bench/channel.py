"""Measures the channel: push at one node, pop at the other, against a bare relay (`relay`)."""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.identity.sealing_keys import SealingKeyFile
from tests.certificates import Authority
from tests.e2e.nodes import Federation, Node, free_ports, wait_for
from tools.bench.requests import is_listening
from tools.bench.upload import PIECE

# Links between the two nodes, or between the two processes of the relay.
LINKS = ("HTTP", "gRPC", "mutual TLS")
_MAX_OVERHEAD = 1024  # bytes of a response in addition to the message
_PAIRS = 8
_TIMEOUT = 600  # seconds of a connection
_HEAD_END = b"\r\n\r\n"
_topic_numbers = count()


class Ends(NamedTuple):
    """The addresses for pushes and pops, and the headers of both."""

    push_url: str
    pop_url: str
    push_headers: Mapping[str, str]
    pop_headers: Mapping[str, str]


def connect(
    link: str,
    home: Path,
    federation: Federation,
) -> None:
    """Configure one of the links between two nodes that have not started yet."""
    authority = Authority(home / "certificates")
    first, second = federation.nodes.values()
    for node, peer in ((first, second), (second, first)):
        address = f"127.0.0.1:{peer.peer_port}"
        if link == "gRPC":
            route = {"url": f"http://{address}", "transport": f"grpc://{address}"}
            node.route(**{peer.id: route})
        elif link == "mutual TLS":
            _connect_by_tls(node, peer, f"https://{address}", authority)


def _connect_by_tls(
    node: Node,
    peer: Node,
    url: str,
    authority: Authority,
) -> None:
    """Give a node certificates for its listener and for its route to a peer."""
    signed = authority.sign(node.id, "127.0.0.1", node.id)
    files = {
        "certificate": signed.certificate,
        "key": signed.key,
    }
    node.settings["listen"]["peer"]["tls"] = {**files, "client_ca": authority.file}
    node.route(**{peer.id: {"url": url, "ca": authority.file, **files}})


@contextmanager
def bare_relay(link: str, folder: Path) -> Iterator[Ends]:
    """Run the relay in two processes, which are connected by one of the links."""
    _write_certificates(folder)
    push_port, pop_port, inner_port = free_ports(3)
    program = [sys.executable, "-m", "tools.bench.relay"]
    common = [str(inner_port), link, str(folder)]
    processes = [
        subprocess.Popen([*program, str(pop_port), *common]),
        subprocess.Popen([*program, str(push_port), *common, "--first"]),
    ]
    try:
        for port in (push_port, pop_port, inner_port):
            wait_for(partial(is_listening, port), about="the relay responds")
        yield Ends(f"http://127.0.0.1:{push_port}", f"http://127.0.0.1:{pop_port}", {}, {})
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _write_certificates(folder: Path) -> None:
    """Write the files of the relay's TLS into a folder."""
    authority = Authority(folder / "certificates")
    signed = authority.sign("bare", "127.0.0.1", "bare")
    shutil.copy(signed.certificate, folder / "bare.pem")
    shutil.copy(signed.key, folder / "bare.key")
    shutil.copy(authority.file, folder / "ca.pem")


class Connection:
    """A kept connection to a node, with next to no work for the client."""

    def __init__(
        self,
        url: str,
        path: str,
        headers: Mapping[str, str],
    ) -> None:
        """``path``: push or pop; ``headers``: sent with every request."""
        address = urlsplit(url)
        self._socket = socket.create_connection(
            (address.hostname, address.port),
            timeout=_TIMEOUT,
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [f"POST /v1/interconn/chan/{path} HTTP/1.1", f"host: {address.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._common_head = "".join(f"{line}\r\n" for line in lines)
        self._buffer = bytearray(PIECE)

    def request(
        self,
        topic: str,
        size: int,
        block: bytes = b"",
    ) -> int:
        """Send ``size`` bytes, the block repeatedly; return the length of the response's body."""
        head = f"{self._common_head}x-ptp-topic: {topic}\r\ncontent-length: {size}\r\n\r\n"
        first_bytes = block[:size][:_MAX_OVERHEAD]
        self._socket.sendall(head.encode() + first_bytes)  # in one packet, if the message is small
        view = memoryview(block)
        sent = len(first_bytes)
        while sent < size:
            offset = sent % len(block)
            piece = view[offset : offset + size - sent]
            self._socket.sendall(piece)
            sent += len(piece)
        return self._read_response()

    def _read_response(self) -> int:
        """Read a response and drop its body; return the length of the body."""
        head, _, beginning = self._read_beginning().partition(_HEAD_END)
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        missing = length - len(beginning)
        while missing:
            received = self._socket.recv_into(self._buffer)
            assert received, "the connection ended"
            missing -= received
        return length

    def _read_beginning(self) -> bytes:
        """Read the head of a response, and the part of its body that comes with the head."""
        data = b""
        while _HEAD_END not in data:
            received = self._socket.recv(65536)
            assert received, "the connection ended"
            data += received
        return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def message_times(
    ends: Ends,
    size: int,
    times: int,
) -> list[float]:
    """Return the seconds from the beginning of each push until its message has been read.

    The reader waits before the push begins.
    """
    block = os.urandom(min(size, PIECE))
    push = Connection(ends.push_url, "push", ends.push_headers)
    pop = Connection(ends.pop_url, "pop", ends.pop_headers)
    seconds = []
    with ThreadPoolExecutor(1) as reader:
        for _ in range(times):
            topic = f"t{next(_topic_numbers)}"
            reading = reader.submit(pop.request, topic, 0)
            start = time.perf_counter()
            push.request(topic, size, block)
            length = reading.result()
            seconds.append(time.perf_counter() - start)
            assert size <= length <= size + _MAX_OVERHEAD
    push.close()
    pop.close()
    return seconds


def pair_rate(ends: Ends, size: int, times: int) -> float:
    """Return the messages per second of eight concurrent pairs of sender and reader."""

    def run_pair(_number: int) -> list[float]:
        return message_times(ends, size, times)

    start = time.perf_counter()
    with ThreadPoolExecutor(_PAIRS) as pool:
        list(pool.map(run_pair, range(_PAIRS)))
    return _PAIRS * times / (time.perf_counter() - start)


def sealing_medians(
    nodes: tuple[Node, Node],
    ends: Ends,
    size: int,
    times: int,
    rounds: Iterable[int],
) -> tuple[float, float]:
    """Return the median seconds of a sealed and of an unsealed message, measured in turn."""
    sender, reader = nodes
    sealing_pair = SealingKeyFile(reader.home / "state").read()
    assert sealing_pair is not None  # the gateway has made one at its start
    seconds: dict[str, list[float]] = {"required": [], "off": []}
    for _ in rounds:
        for mode, of_mode in seconds.items():
            route = {"sealing_key": sealing_pair.public, "sealing": mode}
            sender.ask("PATCH", f"/api/v1/routes/{reader.id}", json={"route": route})
            of_mode += message_times(ends, size, times)
    return statistics.median(seconds["required"]), statistics.median(seconds["off"])


def medians(
    ends: Ends,
    floor: Ends,
    size: int,
    times: int,
    rounds: Iterable[int],
) -> tuple[float, float]:
    """Return the median seconds of a message at the nodes and at the floor, measured in turn."""
    seconds: list[float] = []
    bare_seconds: list[float] = []
    for _ in rounds:
        seconds += message_times(ends, size, times)
        bare_seconds += message_times(floor, size, times)
    return statistics.median(seconds), statistics.median(bare_seconds)
