"""Measures the channel: push at one node, pop at the other, beside a bare relay of the same way
(`relay`).
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.certificates import Authority
from tests.e2e.nodes import Federation, free_ports, wait_for
from tools.bench.requests import listens
from tools.bench.upload import PIECE

_OVERHEAD = 1024
"""bytes at most of an answer beside the message"""
_TOPICS = count()


WAYS = ("HTTP", "gRPC", "mutual TLS")


def link(
    way: str,
    home: Path,
    federation: Federation,
) -> None:
    """Have two nodes that have not started speak to each other in one of these ways."""
    authority = Authority(home / "certificates")
    one, other = federation.nodes.values()
    for node, peer in ((one, other), (other, one)):
        at = f"127.0.0.1:{peer.peer_port}"
        if way == "gRPC":
            node.route(**{peer.id: {"url": f"http://{at}", "transport": f"grpc://{at}"}})
        elif way == "mutual TLS":
            own = authority.sign(node.id, "127.0.0.1", node.id)
            files = {"certificate": own.certificate, "key": own.key}
            node.settings["listen"]["peer"]["tls"] = {**files, "client_ca": authority.file}
            node.route(
                **{
                    peer.id: {
                        "url": f"https://{at}",
                        "ca": authority.file,
                        **files,
                    }
                }
            )


class Ends(NamedTuple):
    """Where messages go in and out, and the headers of each side."""

    push: str
    pop: str
    writes: Mapping[str, str]
    reads: Mapping[str, str]


@contextmanager
def bare(way: str, folder: Path) -> Iterator[Ends]:
    """Run the relay in two processes, between which messages go in one of these ways."""
    authority = Authority(folder / "certificates")
    own = authority.sign("bare", "127.0.0.1", "bare")
    for file, name in (
        (own.certificate, "bare.pem"),
        (own.key, "bare.key"),
        (authority.file, "ca.pem"),
    ):
        shutil.copy(file, folder / name)
    first, second, inner = free_ports(3)
    line = [sys.executable, "-m", "tools.bench.relay"]
    common = [str(inner), way, str(folder)]
    processes = [
        subprocess.Popen([*line, str(second), *common]),
        subprocess.Popen([*line, str(first), *common, "--first"]),
    ]
    try:
        for port in (first, second, inner):
            wait_for(lambda port=port: listens(port), about="the relay answers")  # type: ignore[misc]
        yield Ends(f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}", {}, {})
    finally:
        for process in processes:
            process.terminate()
            process.wait()


class Wire:
    """One kept connection, with next to no work for the client."""

    def __init__(
        self,
        url: str,
        path: str,
        headers: Mapping[str, str],
    ) -> None:
        address = urlsplit(url)
        self._sock = socket.create_connection((address.hostname, address.port), timeout=600)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f"POST /v1/interconn/chan/{path} HTTP/1.1\r\nhost: {address.netloc}\r\n{lines}"
        self._room = bytearray(PIECE)

    def ask(
        self,
        topic: str,
        size: int,
        block: bytes = b"",
    ) -> int:
        """Send ``size`` bytes, the block over and over; return how many came back."""
        self._sock.sendall(
            f"{self._head}x-ptp-topic: {topic}\r\ncontent-length: {size}\r\n\r\n".encode()
            + block[:size][:_OVERHEAD]
        )
        view = memoryview(block)
        at = min(size, _OVERHEAD)
        while at < size:
            piece = view[at % len(block) : at % len(block) + size - at]
            self._sock.sendall(piece)
            at += len(piece)
        head, _, rest = self._begun().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        left = length - len(rest)
        while left:
            got = self._sock.recv_into(self._room)
            assert got, "the connection ended"
            left -= got
        return length

    def _begun(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._sock.recv(65536)
            assert more, "the connection ended"
            data += more
        return data

    def close(self) -> None:
        self._sock.close()


def passes(
    ends: Ends,
    size: int,
    times: int,
) -> list[float]:
    """Return the seconds from the begin of each push until its message is read; the reader waits
    already.
    """
    block = os.urandom(min(size, PIECE))
    push, pop = Wire(ends.push, "push", ends.writes), Wire(ends.pop, "pop", ends.reads)
    seconds = []
    with ThreadPoolExecutor(1) as reader:
        for _ in range(times):
            topic = f"t{next(_TOPICS)}"
            asked = reader.submit(pop.ask, topic, 0)
            began = time.perf_counter()
            push.ask(topic, size, block)
            got = asked.result()
            seconds.append(time.perf_counter() - began)
            assert size <= got <= size + _OVERHEAD
    push.close()
    pop.close()
    return seconds


def pairs(
    ends: Ends,
    size: int,
    times: int,
    many: int = 8,
) -> float:
    """Return how many messages a second so many pairs pass."""
    began = time.perf_counter()
    with ThreadPoolExecutor(many) as pool:
        list(pool.map(lambda _: passes(ends, size, times), range(many)))
    return many * times / (time.perf_counter() - began)


def in_turn(
    ours: Ends,
    floor: Ends,
    size: int,
    times: int,
    rounds: int,
) -> tuple[float, float]:
    """Return the medians of both over alternating rounds."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for ends, into in zip((ours, floor), found, strict=True):
            into += passes(ends, size, times)
    return statistics.median(found[0]), statistics.median(found[1])
