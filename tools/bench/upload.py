"""Large uploads: how fast, and how much memory the node needs for them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from opendal import Operator

from tests.e2e.nodes import Node

PIECE = 8 * 1024 * 1024
"""bytes that are sent or read in one piece"""


def write_table(file: Path, size: int) -> int:
    """Write a table of about ``size`` bytes with rows of a kilobyte; return their number."""
    rest = ",".join(f"{i}." + "0625" * 25 for i in range(10))
    count = size // (len(rest) + 11)
    with file.open("w") as stream:
        stream.write("id," + ",".join(f"x{i}" for i in range(10)) + "\n")
        for i in range(count):
            stream.write(f"{i:010d},{rest}\n")
    return count


def peak_growth(node: Node, work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what the work gives, and by how many bytes the node's resident memory grew at most meanwhile."""
    before = resident(node)
    peak = before
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.05):
            peak = max(peak, resident(node))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        result = work()
    finally:
        over.set()
        watching.join()
    return result, peak - before


def resident(node: Node) -> int:
    """Return the bytes that the node's process holds in memory."""
    status = Path(f"/proc/{node.addresses['pid']}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fetch(node: Node, namespace: str, name: str) -> None:
    """Download a table and throw it away."""
    url = f"{node.operator}/api/v1/datasets/{namespace}/{name}/download"
    with httpx.stream("GET", url, timeout=None, trust_env=False) as answer:
        answer.raise_for_status()
        for _ in answer.iter_raw():
            pass


def bare_write(operator: Operator, file: Path) -> None:
    """Send a file by the library alone."""
    with file.open("rb") as source, operator.open("bare", "wb", chunk=PIECE) as target:
        while data := source.read(PIECE):
            target.write(data)


def bare_read(operator: Operator) -> None:
    """Read by the library alone what `bare_write` sent."""
    with operator.open("bare", "rb") as source:
        while source.read(PIECE):
            pass
