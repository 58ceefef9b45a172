"""Runs a component in a process of its own, so that a stop ends even a call into the engine.

This process relays the messages of SecretFlow's client.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from types import FrameType

from sfvendor import container
from sfvendor.channel import Channel
from sfvendor.relay import Relay, http_post
from sfvendor.storage import StorageFailed

COMPONENTS = {
    "PSI": "sfvendor.intersection",
    "LogisticRegression": "sfvendor.regression",
}
RUN = "run"  # the argument of the process of the component
STOPPED = 143
REPORTED = 3  # exit code of the process of the component: it has reported its failure
SUCCESS = "0000"
FAILURE = "9999"


def main() -> int:
    """Run the component that the environment names; return the exit code."""
    channel = Channel(http_post(container.environment["system.transport"]))
    relay = Relay(channel)
    component = subprocess.Popen(
        [sys.executable, "-m", "sfvendor", RUN],
        env=container.environment | {"system.transport": relay.address},
    )
    relay.start(on_refusal=component.kill)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        component.kill()
        os._exit(STOPPED)

    signal.signal(signal.SIGTERM, stop)
    container.report("RUNNING")
    exit_code = component.wait()
    if exit_code == 0:
        container.report("SUCCESS", SUCCESS)
        return 0
    if exit_code != REPORTED:
        container.report("FAILED", FAILURE)
    return 1


def run_component() -> int:
    """Run the component in this process; return the exit code."""
    name = container.environment["runtime.component.name"]
    module = COMPONENTS.get(name)
    if module is None:
        print(f"error this image has no component {name}", flush=True)
        return 1
    try:
        importlib.import_module(module).run()
    except (container.BadInput, StorageFailed) as error:
        print(f"error {error}", flush=True)
        container.report("FAILED", FAILURE, str(error))
        return REPORTED
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == [RUN]:
        sys.exit(run_component())
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)  # without waiting for the relay's requests
