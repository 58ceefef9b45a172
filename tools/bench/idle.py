"""An idle node: its memory, the packages that take it, its threads, and FATE-Flow's server."""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import remove_networks
from tests.e2e import fate_site
from tests.e2e.fate_site import FateSite
from tests.e2e.nodes import Federation, free_ports, wait_for
from tools.bench.nodes import DOCKER_ENGINE, GUEST, PROCESS_ENGINE
from tools.bench.parts import PARTS, print_table
from tools.bench.upload import resident_of

_IDLE_SECONDS = 3.0  # after the start, before memory and threads are read
_LISTED_PACKAGES = 30
_MIB = 2**20
_ENGINES = {"process": PROCESS_ENGINE, "docker": DOCKER_ENGINE}


@dataclass(frozen=True)
class IdleProcess:
    """A process that serves and does nothing."""

    resident: int  # bytes
    threads: int
    thread_names: tuple[str, ...] = ()  # those that Python knows
    growth: Mapping[str, int] | None = None  # bytes by package; None: not measured


def measure_idle(_options: argparse.Namespace) -> None:
    """Print the memory and the threads of an idle node, with each engine, and of FATE-Flow."""
    nodes = {kind: _idle_node(engine) for kind, engine in _ENGINES.items()}
    rows = [_row(f"node, engine {kind}", process) for kind, process in nodes.items()]
    remove_networks()
    rows += [_row("FATE-Flow's server", process) for process in _idle_fate_flow()]
    print_table("idle", "Idle processes", ["process", "resident memory", "threads"], rows)
    node = nodes["process"]
    print_table(
        "idle packages",
        "Growth of the process by the import of each package (engine process)",
        ["package", "growth"],
        _package_rows(node.growth or {}),
    )
    names = Counter(node.thread_names)
    print_table(
        "idle threads",
        "Threads of the idle node (engine process)",
        ["thread", "number"],
        [[name, count] for name, count in sorted(names.items())],
    )


PARTS["idle"] = measure_idle


def _row(name: str, process: IdleProcess) -> list[object]:
    return [name, f"{process.resident / _MIB:.0f} MiB", process.threads]


def _package_rows(growth: Mapping[str, int]) -> list[list[object]]:
    """Return a row for each of the largest packages, and one for all others."""
    largest = Counter(growth).most_common(_LISTED_PACKAGES)
    others = sum(growth.values()) - sum(size for _, size in largest)
    rows: list[list[object]] = []
    for name, size in [*largest, ("all others", others)]:
        rows.append([name, f"{size / _MIB:.1f} MiB"])
    return rows


def _idle_node(engine: Mapping[str, object]) -> IdleProcess:
    """Start a node, and return its state after some seconds."""
    with TemporaryDirectory() as home:
        report_file = Path(home) / "report.json"
        federation = Federation(Path(home), [GUEST], engine, fresh=True)
        node = federation[GUEST]
        node.prefix = [sys.executable, "-m", "tools.bench.idle_node", str(report_file)]
        with federation:
            time.sleep(_IDLE_SECONDS)
            pid = node.addresses["pid"]
            process = _process(int(pid))
            os.kill(int(pid), signal.SIGUSR2)
            wait_for(report_file.exists, about="the node has written its report")
        report = json.loads(report_file.read_text())
    return IdleProcess(
        resident=process.resident,
        threads=process.threads,
        thread_names=tuple(report["threads"]),
        growth=report["growth"],
    )


def _idle_fate_flow() -> Iterator[IdleProcess]:
    """Yield the state of FATE-Flow's server; nothing if it is not installed."""
    if not fate_site.PYTHON.exists():
        print(f"FATE-Flow is not measured: there is no {fate_site.HOME.name}\n")
        return
    with (
        TemporaryDirectory() as home,
        FateSite("9999", Path(home) / "site", free_ports(1)[0]) as site,
    ):
        time.sleep(_IDLE_SECONDS)
        assert site.process is not None
        yield _process(site.process.pid)


def _process(pid: int) -> IdleProcess:
    """Return the memory and the number of threads of a process."""
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    return IdleProcess(resident_of(pid), len(threads))
