"""Ends of local runs while nothing can be written: a limit on the size of files stands for a disk that is full."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.base import Exited, Running
from engines.memory import Script
from engines.process import supervisor
from engines.process.engine import ProcessEngine
from tests.contracts.engine_acts import a_spec, ended, said, shell, wait_for
from tests.contracts.harnesses import ProcessHarness

ENDS_WHEN_TOLD = shell("trap 'exit 0' USR1; echo ready; while :; do sleep 600 & wait; done", Script())


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ProcessHarness]:
    with contextlib.closing(ProcessHarness(tmp_path / "runs")) as harness:
        yield harness


@contextlib.contextmanager
def nothing_can_be_written(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def running(harness: ProcessHarness, engine: ProcessEngine) -> tuple[str, int, int]:
    """Start a run; return its name, and the numbers of its supervisor and of its first process."""
    spec = a_spec(harness, ENDS_WHEN_TOLD)
    engine.launch(spec)
    said(engine, spec.name, b"ready")
    found = [
        supervisor.read_json(str(harness.root / spec.name / f)) for f in (supervisor.SUPERVISOR, supervisor.CHILD)
    ]
    assert found[0] is not None and found[1] is not None
    return spec.name, found[0]["pid"], found[1]["pid"]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_run_that_succeeded_on_a_full_disk_has_succeeded_once_there_is_room(harness: ProcessHarness) -> None:
    engine = harness.engine()
    name, keeper, child = running(harness, engine)
    with nothing_can_be_written(keeper):
        os.kill(child, signal.SIGUSR1)
        wait_for(lambda: not os.path.exists(f"/proc/{child}") and state(keeper) in "SZ", "its end")
        assert isinstance(engine.probe(name), Running)
    assert ended(engine, name).code == 0


def test_a_run_whose_end_cannot_be_written_down_has_ended(harness: ProcessHarness) -> None:
    engine = harness.engine()
    name, keeper, _ = running(harness, engine)
    engine.close()
    anew = harness.engine()
    with nothing_can_be_written(os.getpid()):
        os.kill(keeper, signal.SIGKILL)
        found = wait_for(lambda: isinstance(one := anew.probe(name), Exited) and one, "its end")
        assert found.code == 137
        assert [one.name for one in anew.list()] == [name]
    assert ended(anew, name).code == 137
