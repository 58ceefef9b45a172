"""Measures requests that some clients send as fast as they can.

The clients use plain sockets: a client that parses would need the cores of the nodes.
"""

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.e2e.nodes import ROOT, Node, free_ports, wait_for
from tools.bench.bare import PATH
from tools.bench.load import CREATE, STATUS, quantile

LIST = "/v1/platform/schedule/job/query_job_list"
_SECONDS = 3.0  # of one measurement
_READ_CLIENTS = 8
_CHUNK = 65536  # bytes
_HEAD_END = b"\r\n\r\n"
_CLI = [sys.executable, "-m", "gateway.cli.main"]


class ReadRates(NamedTuple):
    """Responses per second."""

    bare: float  # of the bare path
    status: float  # of `status_all` of a job
    job_list: float


class Measurement:
    """Responses to clients that each send a request as soon as the one before has its response."""

    def __init__(
        self,
        url: str,
        path: str,
        clients: int,
        body: bytes = b"",
        seconds: float = _SECONDS,
        pause: float = 0.0,
    ) -> None:
        """Measure for so many seconds; ``pause``: seconds before each request of a client."""
        address = urlsplit(url)
        self._request = _request(address.netloc, path, body)
        self._address = (address.hostname or "", address.port or 0)
        self._end = time.perf_counter() + seconds
        self._seconds = seconds
        self._pause = pause
        self._times: list[float] = []
        threads = [threading.Thread(target=self._run_client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._times.sort()

    @property
    def rate(self) -> float:
        """Return the responses per second."""
        return len(self._times) / self._seconds

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the requests had its response."""
        return quantile(self._times, share)

    def _run_client(self) -> None:
        with socket.create_connection(self._address, 60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.perf_counter() < self._end:
                time.sleep(self._pause)
                start = time.perf_counter()
                connection.sendall(self._request)
                response = _read_response(connection)
                self._times.append(time.perf_counter() - start)
                assert response.startswith(b"HTTP/1.1 200 "), response
                assert b'"code":0' in response, response


def _request(host: str, path: str, body: bytes) -> bytes:
    """Return the bytes of a request: POST with a body, else GET."""
    lines = [f"GET {path} HTTP/1.1"]
    if body:
        lines = [f"POST {path} HTTP/1.1", f"content-length: {len(body)}"]
    lines += [f"host: {host}", "content-type: application/json", "", ""]
    return "\r\n".join(lines).encode() + body


def _read_response(connection: socket.socket) -> bytes:
    """Read a response with its head."""
    data = connection.recv(_CHUNK)
    while _HEAD_END not in data:
        data += connection.recv(_CHUNK)
    head_length = data.index(_HEAD_END) + len(_HEAD_END)
    head = data[:head_length].lower()
    body_length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(data) < head_length + body_length:
        data += connection.recv(_CHUNK)
    return data


@contextmanager
def bare_path(folder: Path) -> Iterator[str]:
    """Serve the bare path with its database in a folder, and yield its address."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "tools.bench.bare", str(folder / "bare.db"), str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(partial(is_listening, port), about="the bare path is served")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_rates(
    node: Node,
    job_id: str,
    folder: Path,
    rounds: int,
) -> ReadRates:
    """Return the median rates of reads over alternating rounds."""
    with bare_path(folder) as floor:
        targets = (
            (floor, f"{PATH}?job_id=job-1"),
            (node.operator, f"{STATUS}?job_id={job_id}"),
            (node.operator, LIST),
        )
        rates: list[list[float]] = [[] for _ in targets]
        for _ in range(rounds):
            for values, (url, path) in zip(rates, targets, strict=True):
                values.append(Measurement(url, path, _READ_CLIENTS).rate)
    return ReadRates(*map(statistics.median, rates))


def create_rate(
    node: Node,
    body: bytes,
    wait_for_jobs: Callable[[], None],
    rounds: int,
    clients: int,
) -> tuple[float, float]:
    """Return the median rate of `create_all` and its median seconds.

    ``wait_for_jobs`` waits until the jobs of a round have ended.
    """
    rates = []
    medians = []
    for _ in range(rounds):
        responses = Measurement(node.operator, CREATE, clients, body)
        rates.append(responses.rate)
        medians.append(responses.quantile(0.5))
        wait_for_jobs()
    return statistics.median(rates), statistics.median(medians)


def command_times(
    node: Node,
    rounds: int,
) -> list[tuple[str, float]]:
    """Return the median seconds of commands; the first one, an empty program, is the floor."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [*_CLI, "--help"],
        "job list": [*_CLI, "job", "list", "--url", node.operator],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(_command_seconds(command))
    return [(name, statistics.median(seconds)) for name, seconds in times.items()]


def _command_seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start
