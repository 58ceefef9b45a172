"""Serves a node with a memory engine, so that containers cost nothing.

The module is put before the command that serves the node. Containers end immediately, or with
``--until FILE`` once the file exists. With ``--count`` the node counts its transactions and
statements in a file beside its database, which `read_counts` reads.
"""

import mmap
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from engines.base import Running
from gateway.cli.serve import run
from gateway.config.schema import Settings
from tests.memory_engine import MemoryEngine, Script
from tools.bench.floor import IMAGE

COUNT = "--count"  # argument of this module
_COUNTS = "transactions.count"  # file beside the database
_LAYOUT = struct.Struct("=QQ")  # of that file: transactions and statements


def main() -> None:
    """Serve the node of the last arguments: its configuration and the file for its addresses."""
    *_, config, _, ready_file = map(Path, sys.argv)
    end_file = Path(sys.argv[2]) if sys.argv[1] == "--until" else None
    if sys.argv[1] == COUNT:
        _count_statements(config.parent)

    def engine(settings: Settings, installation: str) -> MemoryEngine:
        script = Script()
        if end_file is not None:
            script = Script(code=None)  # runs until the engine ends it
        memory_engine = MemoryEngine(
            node=settings.node.id,
            installation=installation,
            images={IMAGE: script},
        )
        if end_file is not None:
            threading.Thread(
                target=_end_runs,
                args=(memory_engine, end_file),
                daemon=True,
            ).start()
        return memory_engine

    run(config, "text", ready_file, engine)


def _count_statements(home: Path) -> None:
    """Have the transactions and the statements of this process counted in a file.

    The file is mapped into memory: a write to it would release the interpreter at each statement,
    so that the counted node would hand it over more often than others.
    """
    file = home / _COUNTS
    file.write_bytes(bytes(_LAYOUT.size))
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
    lock = threading.Lock()
    transactions = 0
    statements = 0

    def count(
        _connection: Any,
        _cursor: Any,
        text: str,
        *_: Any,
    ) -> None:
        nonlocal transactions, statements
        with lock:
            statements += 1
            transactions += text.startswith("BEGIN")
            _LAYOUT.pack_into(mapped, 0, transactions, statements)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)


def read_counts(home: Path) -> tuple[int, int]:
    """Return how many transactions and statements a node with ``--count`` has begun so far."""
    transactions, statements = _LAYOUT.unpack((home / _COUNTS).read_bytes())
    return transactions, statements


def _end_runs(engine: MemoryEngine, end_file: Path) -> None:
    """Wait for the file; then end all runs, also the ones that start later."""
    while True:
        time.sleep(1.0)
        if end_file.exists():
            for name, container in list(engine.world.runs.items()):
                if isinstance(container.probe, Running):
                    with suppress(KeyError):  # it has been removed since the list was made
                        engine.finish(name)


if __name__ == "__main__":
    main()
