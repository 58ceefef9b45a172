"""A process that serves, in an interpreter of its own."""

import sys

from tests.e2e.nodes import Federation

# Runs the command that follows it, and prints the number of exempt objects at the end.
COUNT_EXEMPT_OBJECTS = """
import atexit, gc, sys
from gateway.cli.main import main

def report():
    print("exempt objects:", gc.get_freeze_count(), flush=True)

atexit.register(report)
sys.argv = sys.argv[3:]  # without the interpreter, -c and its code
main()
"""


def test_the_garbage_collector_passes_over_the_objects_of_the_start(tmp_path):
    federation = Federation(tmp_path, ["bank"], {"kind": "process"})
    node = federation["bank"]
    node.prefix = [sys.executable, "-c", COUNT_EXEMPT_OBJECTS]

    with federation:
        pass

    [line] = [line for line in node.log().splitlines() if line.startswith("exempt objects")]
    assert int(line.split()[-1]) > 100_000
