"""Measures requests that some clients send as fast as they can.

The clients use plain sockets: a client that parses would need the cores of the nodes.
"""

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.e2e.nodes import ROOT, Node, free_ports, wait_for
from tools.bench.bare import CREATE_PATH, PATH
from tools.bench.load import CREATE, STATUS, quantile

LIST = "/v1/platform/schedule/job/query_job_list"
_SECONDS = 2.0  # of one measurement
_READ_CLIENTS = 8
_CHUNK = 65536  # bytes
_HEAD_END = b"\r\n\r\n"
_CLI = [sys.executable, "-m", "gateway.cli"]


class ReadRates(NamedTuple):
    """Responses per second."""

    bare: float  # of the bare path
    status: float  # of `status_all` of a job
    job_list: float


class CreateRates(NamedTuple):
    """Rates and median seconds of `create_all` at a node and at its floor, a bare pair."""

    rate: float  # responses per second
    median: float  # seconds
    bare_rate: float
    bare_median: float

    @property
    def share(self) -> float:
        """The node's rate as a share of the floor's."""
        return self.rate / self.bare_rate


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
        """Measure for ``seconds`` seconds; ``pause``: seconds before each request of a client."""
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
def bare_application(database: Path, next_url: str = "") -> Iterator[str]:
    """Serve a bare application with a new database, and yield its address.

    ``next_url``: where it passes bodies on to; empty: nowhere.
    """
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "tools.bench.bare", str(database), str(port), next_url]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(partial(is_listening, port), about="the bare application serves")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def bare_pair(folder: Path) -> Iterator[str]:
    """Serve two bare applications, and yield the address of the one that passes bodies on.

    Their databases are in the folder.
    """
    with (
        bare_application(folder / "second.db") as second,
        bare_application(folder / "first.db", second + CREATE_PATH) as first,
    ):
        yield first


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_rates(
    node: Node,
    job_id: str,
    folder: Path,
    rounds: Iterable[int],
) -> ReadRates:
    """Return the median rates of reads over alternating rounds."""
    with bare_application(folder / "bare.db") as floor:
        targets = (
            (floor, f"{PATH}?job_id=job-1"),
            (node.operator, f"{STATUS}?job_id={job_id}"),
            (node.operator, LIST),
        )
        rates: list[list[float]] = [[] for _ in targets]
        for _ in rounds:
            for values, (url, path) in zip(rates, targets, strict=True):
                values.append(Measurement(url, path, _READ_CLIENTS).rate)
    return ReadRates(*map(statistics.median, rates))


def create_rates(
    node: Node,
    floor: str,
    body: bytes,
    wait_for_jobs: Callable[[], None],
    rounds: Iterable[int],
    clients: int,
    seconds: float = _SECONDS,
) -> CreateRates:
    """Return the medians over alternating rounds of ``seconds`` seconds.

    ``floor`` is the address of a bare pair. ``wait_for_jobs`` waits until the jobs of a round have
    ended.
    """
    rounds_of_node = []
    rounds_of_floor = []
    for _ in rounds:
        rounds_of_floor.append(Measurement(floor, CREATE_PATH, clients, body, seconds))
        rounds_of_node.append(Measurement(node.operator, CREATE, clients, body, seconds))
        wait_for_jobs()
    return CreateRates(*_medians(rounds_of_node), *_medians(rounds_of_floor))


def _medians(measurements: Sequence[Measurement]) -> tuple[float, float]:
    """Return the median rate and the median of the median seconds."""
    rate = statistics.median(measurement.rate for measurement in measurements)
    seconds = statistics.median(measurement.quantile(0.5) for measurement in measurements)
    return rate, seconds


def command_times(
    node: Node,
    rounds: Iterable[int],
) -> list[tuple[str, float]]:
    """Return the median seconds of commands; the first one, an empty program, is the floor."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [*_CLI, "--help"],
        "job list": [*_CLI, "job", "list", "--url", node.operator],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in rounds:
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
