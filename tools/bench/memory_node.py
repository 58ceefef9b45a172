"""A node whose containers cost nothing: put before the command that serves it, it serves with a memory engine."""

import sys
from pathlib import Path

from gateway.cli.serve import run
from tests.memory_engine import MemoryEngine, Script
from tools.bench.floor import IMAGE

if __name__ == "__main__":
    *_, config, _, ready = map(Path, sys.argv)
    run(
        config,
        "text",
        ready,
        lambda settings, installation: MemoryEngine(
            node=settings.node.id, installation=installation, images={IMAGE: Script()}
        ),
    )
