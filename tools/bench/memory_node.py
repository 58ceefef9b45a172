"""A node whose containers cost nothing: put before the command that serves it, it serves with a
memory engine.

Containers end immediately, or with ``--until FILE`` when the file is there.
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
    """Serve the node that the last arguments name."""
    *_, config, _, ready = map(Path, sys.argv)
    until = Path(sys.argv[2]) if sys.argv[1] == "--until" else None

    def engine(settings: Settings, installation: str) -> MemoryEngine:
        script = Script(code=None) if until else Script()
        made = MemoryEngine(
            node=settings.node.id,
            installation=installation,
            images={IMAGE: script},
        )
        if until:
            threading.Thread(
                target=_end,
                args=(made, until),
                daemon=True,
            ).start()
        return made

    run(config, "text", ready, engine)


def _end(engine: MemoryEngine, until: Path) -> None:
    while True:
        time.sleep(1.0)
        if until.exists():
            for name, one in list(engine.world.runs.items()):
                if isinstance(one.probe, Running):
                    with suppress(KeyError):  # it was removed meanwhile
                        engine.finish(name)


if __name__ == "__main__":
    main()
