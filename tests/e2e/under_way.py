"""Waits for the containers and jobs of two nodes."""

from pathlib import Path

from tests.e2e.jobs import running, started
from tests.e2e.nodes import wait_for


def wait_until_nothing_runs(register: Path) -> None:
    wait_for(lambda: running(register) == [], 30, about="no container is left")


def wait_for_containers(register: Path, count: int) -> None:
    """Wait until so many containers run."""
    wait_for(lambda: len(running(register)) == count, 60, about=f"{count} containers run")


def wait_for_starts(register: Path, count: int) -> None:
    """Wait until so many containers were started."""
    wait_for(lambda: len(started(register)) == count, 60, about=f"{count} containers started")
