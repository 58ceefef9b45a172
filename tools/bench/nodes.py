"""The nodes and jobs of the measurements."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from tests.e2e.nodes import Federation, Node
from tools.bench.floor import IMAGE

GUEST = "JG0100001100000010"
HOST = "JG0100002200000020"
PROCESS_ENGINE = {"kind": "process"}
# Put before a node's command: its containers end immediately, and cost nothing.
MEMORY_NODE = [sys.executable, "-m", "tools.bench.memory_node"]
DOCKER_ENGINE = {"kind": "docker"}
_DATASET_OUTPUT = {"type": "dataset", "key": "d"}


def process_engine(*command: str) -> dict[str, Any]:
    """Return the settings of a process engine whose containers run a command."""
    return {
        "kind": "process",
        "process": {"images": {IMAGE: {"command": list(command)}}},
    }


def reporting_engine() -> dict[str, Any]:
    """Return the settings of a process engine whose containers report success and exit."""
    script = Path(__file__).with_name("noop.sh")
    return process_engine("/bin/bash", str(script))


@contextmanager
def two_nodes(
    engine: dict[str, Any],
    prefix: Sequence[str] = (),
    connect: Callable[[Federation], None] | None = None,
    **settings: Any,
) -> Iterator[tuple[Node, Node]]:
    """Run the guest's and the host's node, both with the provider of the jobs.

    ``prefix``: words before the command that serves a node; ``connect`` may change the nodes'
    routes and listeners before they start.
    """
    with TemporaryDirectory() as home:
        federation = Federation(Path(home), [GUEST, HOST], engine, fresh=True, **settings)
        for node in federation.nodes.values():
            node.prefix = list(prefix)
        if connect is not None:
            connect(federation)
        with federation:
            for node in federation.nodes.values():
                node.register(provider())
            yield federation[GUEST], federation[HOST]


def provider() -> dict[str, Any]:
    """Return the registration of the example's provider with the image of the measurements."""
    metadata = {**A_PROVIDER["metadata"], "image": IMAGE}
    return {**A_PROVIDER, "metadata": metadata}


def chain(tasks: int, mode: str = "poll") -> dict[str, Any]:
    """Return a job of ``tasks`` tasks at two parties; each reads the output of the task before."""
    return {
        "flow_id": "bench",
        "dag": {
            "components": list(map(_chained_task, range(tasks))),
            "version": "2.0",
        },
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": GUEST},
            "role": {
                "guest": [GUEST],
                "host": [HOST],
            },
            "job_params": {"common": {"sync_type": mode}},
            "task_params": {"common": {}},
        },
    }


def _chained_task(number: int) -> dict[str, Any]:
    inputs = []
    if number:
        inputs.append({"type": "dataset", "key": f"t{number - 1}.d"})
    return {
        "name": f"t{number}",
        "componentName": "Echo",
        "provider": "example",
        "version": "1.0.0",
        "output": [_DATASET_OUTPUT],
        "input": inputs,
    }
