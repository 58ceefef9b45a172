"""How long it takes to find a route among 10,000, and to take up a new file of so many."""

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.store.database import opened
from gateway.store.repositories import SqlRouteVersions
from gateway.store.store import Store
from route_table.live import LiveRoutes

ROUTES = 10_000
_LOOKUPS = 100_000


def _text(port: int) -> str:
    entries = (
        f"JG{i:016d}:  # partner {i}\n  host: 10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}\n  port: {port}\n"
        for i in range(ROUTES)
    )
    return "".join(entries)


def routing(rounds: int) -> list[list[Any]]:
    """Return rows: what was done, the aim, and how long it took."""
    with TemporaryDirectory() as home:
        file = Path(home) / "routes.yml"
        file.write_text(_text(7000))
        store = Store(opened(f"sqlite:///{home}/bench.db"))
        routes = LiveRoutes(file, SqlRouteVersions(store))
        nodes = [f"JG{i * 7919 % ROUTES:016d}" for i in range(ROUTES)] * (_LOOKUPS // ROUTES)
        began = time.perf_counter()
        for node in nodes:
            routes.resolve(node)
        lookup = (time.perf_counter() - began) / len(nodes)
        reloads, work = [], []
        for round_ in range(rounds):
            file.write_text(_text(7001 + round_))
            began, used = time.perf_counter(), time.process_time()
            assert routes.reload() and not routes.problems
            reloads.append(time.perf_counter() - began)
            work.append(time.process_time() - used)
        store.close()
    return [
        ["lookup among 10,000 routes", "10 µs", f"{lookup * 1e6:.1f} µs", ""],
        [
            "a new file of 10,000 routes is in force, and kept as a version",
            "1 s",
            f"{statistics.median(reloads):.2f} s",
            f"{statistics.median(work):.2f} s of the processor",
        ],
    ]
