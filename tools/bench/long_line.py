"""A long line between two network namespaces: delay, loss, a limited rate, and cuts.

``python -m tools.bench.long_line FIRST SECOND`` creates a TUN device in each of two namespaces, and
passes their IP packets on until its standard input ends. A line ``cut`` there drops all packets
from then on, ``restore`` passes them on again. The nodes' own TCP meets the losses, as with netem,
which the kernels of many machines lack. Needs root.
"""

import argparse
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass

FIRST_ADDRESS = "10.97.0.1"
SECOND_ADDRESS = "10.97.0.2"
# The line of the measurements
ROUND_TRIP = 0.1  # seconds
LOSS = 0.001  # share of the packets
RATE = 100e6 / 8  # bytes per second in each direction

_QUEUE_SECONDS = 0.1  # of bytes that wait before the line at most; further packets are dropped
_MAX_PACKET = 2048  # bytes
_BATCH = 64  # packets that are read before due ones are written
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_DEVICES = ("line-a", "line-b")


@dataclass(frozen=True)
class Line:
    """The properties of each direction."""

    delay: float  # seconds
    loss: float  # share of the packets
    rate: float  # bytes per second


class Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, line: Line, seed: int) -> None:
        self._line = line
        self._random = random.Random(seed)
        self._free_at = 0.0  # when the last accepted packet has left for the line
        self._packets: deque[tuple[float, bytes]] = deque()

    def put(self, packet: bytes, now: float) -> None:
        """Accept a packet, or drop it: by chance, or because too many wait."""
        if self._random.random() < self._line.loss:
            return
        start = max(self._free_at, now)
        if start - now > _QUEUE_SECONDS:
            return
        self._free_at = start + len(packet) / self._line.rate
        self._packets.append((self._free_at + self._line.delay, packet))

    def arrived(self, now: float) -> list[bytes]:
        """Remove and return the packets that have reached the other end."""
        packets = []
        while self._packets and self._packets[0][0] <= now:
            packets.append(self._packets.popleft()[1])
        return packets

    @property
    def next_at(self) -> float | None:
        """When the next packet reaches the other end; None without packets."""
        if not self._packets:
            return None
        return self._packets[0][0]


def open_device(name: str) -> int:
    """Create a TUN device and return its descriptor. Raises OSError."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def place(
    name: str,
    namespace: str,
    address: str,
    other: str,
) -> None:
    """Move a device into a namespace, and give it an address whose peer is ``other``."""
    inside = ["ip", "-n", namespace]
    subprocess.run(["ip", "link", "set", name, "netns", namespace], check=True)
    subprocess.run(
        [*inside, "address", "add", address, "peer", other, "dev", name],
        check=True,
    )
    subprocess.run([*inside, "link", "set", name, "up", "txqueuelen", "1000"], check=True)


class Relay:
    """Passes packets between two devices over a line."""

    def __init__(
        self,
        first: int,
        second: int,
        line: Line,
    ) -> None:
        self._directions = {
            first: (Direction(line, 1), second),
            second: (Direction(line, 2), first),
        }
        self._is_cut = False
        self._poll = select.epoll()
        for device in self._directions:
            self._poll.register(device, select.EPOLLIN)
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Pass packets on until the standard input ends."""
        while True:
            for descriptor, _ in self._poll.poll(self._pause()):
                if descriptor in self._directions:
                    self._read(descriptor)
                elif not self._obey():
                    return
            self._write_arrived()

    def _pause(self) -> float | None:
        """Return the seconds until the next packet arrives; None without packets."""
        arrivals = []
        for direction, _ in self._directions.values():
            if direction.next_at is not None:
                arrivals.append(direction.next_at)
        if not arrivals:
            return None
        return max(min(arrivals) - time.monotonic(), 0.0)

    def _read(self, device: int) -> None:
        """Put the packets that wait at a device onto the line."""
        direction, _ = self._directions[device]
        for _ in range(_BATCH):
            try:
                packet = os.read(device, _MAX_PACKET)
            except BlockingIOError:
                return
            if not self._is_cut:
                direction.put(packet, time.monotonic())

    def _write_arrived(self) -> None:
        now = time.monotonic()
        for direction, other in self._directions.values():
            for packet in direction.arrived(now):
                if not self._is_cut:
                    os.write(other, packet)

    def _obey(self) -> bool:
        """Follow the next word of the standard input; return False at its end."""
        words = os.read(sys.stdin.fileno(), 1024).split()
        if words:
            self._is_cut = words[-1] == b"cut"
        return bool(words)


def main() -> None:
    """Connect two namespaces, and pass packets on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", help="namespace")
    parser.add_argument("second", help="namespace")
    parser.add_argument(
        "--round-trip",
        type=float,
        default=ROUND_TRIP,
        help="seconds",
    )
    parser.add_argument(
        "--loss",
        type=float,
        default=LOSS,
        help="share of the packets",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=RATE,
        help="bytes per second",
    )
    options = parser.parse_args()
    # Before all other processes: packets must not wait for a busy machine.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    devices = [open_device(name) for name in _DEVICES]
    place(_DEVICES[0], options.first, FIRST_ADDRESS, SECOND_ADDRESS)
    place(_DEVICES[1], options.second, SECOND_ADDRESS, FIRST_ADDRESS)
    print("ready", flush=True)
    line = Line(options.round_trip / 2, options.loss, options.rate)
    Relay(*devices, line).run()


if __name__ == "__main__":
    main()
