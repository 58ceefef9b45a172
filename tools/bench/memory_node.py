"""Serves a node with a memory engine, so that containers cost nothing.

The module is put before the command that serves the node. Containers end immediately, or with
``--until FILE`` once the file exists.
"""

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from engines.base import Running
from gateway.cli.serve import run
from gateway.config.schema import Settings
from tests.memory_engine import MemoryEngine, Script
from tools.bench.floor import IMAGE


def main() -> None:
    """Serve the node of the last arguments: its configuration and the file for its addresses."""
    *_, config, _, ready_file = map(Path, sys.argv)
    end_file = Path(sys.argv[2]) if sys.argv[1] == "--until" else None

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
