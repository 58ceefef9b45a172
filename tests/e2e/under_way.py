"""Waits for the containers and jobs of two nodes."""

from pathlib import Path

from tests.e2e.jobs import running, started
from tests.e2e.nodes import wait_for


def wait_until_nothing_runs(register: Path) -> None:
    """Wait until no container runs."""

    def is_empty() -> bool:
        return running(register) == []

    wait_for(is_empty, 30, about="no container is left")


def wait_for_containers(register: Path, count: int) -> None:
    """Wait until ``count`` containers run."""

    def all_run() -> bool:
        return len(running(register)) == count

    wait_for(all_run, 60, about=f"{count} containers run")


def wait_for_starts(register: Path, count: int) -> None:
    """Wait until ``count`` containers were started."""

    def all_started() -> bool:
        return len(started(register)) == count

    wait_for(all_started, 60, about=f"{count} containers started")
