"""Requests as fast as some clients can send them, by plain sockets: a client that parses would take
the cores.
"""

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.nodes import ROOT, Node, free_ports, wait_for
from tools.bench.bare import PATH
from tools.bench.load import CREATE, STATUS, quantile

LIST = "/v1/platform/schedule/job/query_job_list"
SECONDS = 3.0
"""of one measurement"""


class Sent:
    """What some clients measured, each sending its next request once the one before was
    answered.
    """

    def __init__(
        self,
        url: str,
        path: str,
        clients: int,
        body: bytes = b"",
        seconds: float = SECONDS,
        rest: float = 0.0,
    ) -> None:
        """``rest``: seconds before each request."""
        at = urlsplit(url)
        method, length = ("POST", f"content-length: {len(body)}\r\n") if body else ("GET", "")
        head = f"{method} {path} HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-type: application/json\r\n{length}\r\n"
        self._request = head.encode() + body
        self._address = (at.hostname or "", at.port or 0)
        self._end = time.perf_counter() + seconds
        self._seconds, self._rest = seconds, rest
        self._times: list[float] = []
        threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._times.sort()

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self._times) / self._seconds

    def within(self, share: float) -> float:
        """Return the seconds within which that share of the requests had its whole answer."""
        return quantile(self._times, share)

    def _ask(self) -> None:
        with socket.create_connection(self._address, 60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.perf_counter() < self._end:
                time.sleep(self._rest)
                began = time.perf_counter()
                connection.sendall(self._request)
                answer = _answer(connection)
                self._times.append(time.perf_counter() - began)
                assert answer.startswith(b"HTTP/1.1 200 ") and b'"code":0' in answer, answer


def _answer(connection: socket.socket) -> bytes:
    found = connection.recv(65536)
    while (head := found.find(b"\r\n\r\n")) < 0:
        found += connection.recv(65536)
    length = int(found[: head + 2].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(found) < head + 4 + length:
        found += connection.recv(65536)
    return found


@contextmanager
def bare(folder: Path) -> Iterator[str]:
    """Serve the bare path; give its address."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "tools.bench.bare", str(folder / "bare.db"), str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(lambda: listens(port), about="the bare path is served")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    """Tell whether something takes connections there."""
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def reads(
    node: Node,
    job_id: str,
    folder: Path,
    rounds: int,
    clients: int = 8,
) -> tuple[float, float, float]:
    """Return the rates of the bare path, of `status_all` of a job, and of the list of jobs: medians
    of rounds.
    """
    with bare(folder) as floor:
        asked = [
            (floor, f"{PATH}?job_id=job-1"),
            (node.operator, f"{STATUS}?job_id={job_id}"),
            (node.operator, LIST),
        ]
        found = [[Sent(url, path, clients).rate for url, path in asked] for _ in range(rounds)]
    bare_rate, status, listed = map(statistics.median, zip(*found, strict=True))
    return bare_rate, status, listed


def creates(
    node: Node,
    body: bytes,
    over: Callable[[], None],
    rounds: int,
    clients: int,
) -> tuple[float, float]:
    """Return the rate of `create_all` and its median seconds; ``over`` waits until a round's jobs
    have ended.
    """
    found = []
    for _ in range(rounds):
        sent = Sent(node.operator, CREATE, clients, body)
        found.append((sent.rate, sent.within(0.5)))
        over()
    rate, median = map(statistics.median, zip(*found, strict=True))
    return rate, median


def starts(node: Node, rounds: int) -> list[tuple[str, float]]:
    """Return how long commands take from start to end; the first, of an empty program, is the
    floor.
    """
    main = [sys.executable, "-m", "gateway.cli.main"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [*main, "--help"],
        "job list": [*main, "job", "list", "--url", node.operator],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(
                command,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            found[name].append(time.perf_counter() - began)
    return [(name, statistics.median(times)) for name, times in found.items()]
