"""Folders that a container filled: however deep they are, they are measured, cut to size and deleted."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import files
from gateway.data import workspace as data_workspace
from gateway.data.workspace import DiskWatch, Workspace
from gateway.domain.run import Address, Run
from gateway.jobs.archive import of_files
from gateway.jobs.retention import size_of
from tests.builders import a_run

MIB = 1024**2
DEEP = 400


def nest(top: Path, levels: int, name: str = "d") -> int:
    """Nest folders in a folder; return a descriptor of the innermost one."""
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        above, here = here, os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(above)
    return here


def put(here: int, size: int, name: str = "data") -> None:
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(b"a line\n" * (size // 7))
    os.close(here)


@pytest.fixture(autouse=True)
def little_stack() -> Iterator[None]:
    """Let Python recurse so little that folders need not be thousands of levels deep to be too deep for it."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    yield
    sys.setrecursionlimit(usual)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True, log_bytes=64 * 1024)
    yield made
    for name in ("storage", "runs"):
        files.try_to_remove(tmp_path / name)
    assert not [*tmp_path.glob("*")]  # pytest could not delete what is that deep


@pytest.fixture
def run() -> Run:
    return a_run(outputs={"out": Address("job-1-guest-0", "task_a-out")}, limits={"disk": 16 * MIB})


def test_deep_folders_neither_escape_the_granted_disk_nor_hold_descriptors(workspace: Workspace, run: Run) -> None:
    workspace.prepare(run)
    log = workspace.logs(run) / "log"
    nested = nest(log, DEEP)
    (log / "run.log").write_bytes(b"x" * 300_000)
    before = len(os.listdir("/proc/self/fd"))
    assert DiskWatch(workspace).over(run) is None
    assert len(os.listdir("/proc/self/fd")) == before
    put(nested, 20 * MIB)
    failure = DiskWatch(workspace).over(run)
    assert failure is not None and failure.reason == "NO_SPACE" and "0.0" in failure.message
    workspace.clear(run)
    assert {entry.name for entry in of_files(log, "log", [])} == {"log/run.log", "log/" + "d/" * DEEP + "data"}
    assert size_of(log) > 128 * 1024
    workspace.forget(run)
    assert not workspace.logs(run).exists()


def test_what_no_path_leads_to_counts_as_too_much_and_can_be_deleted(workspace: Workspace, run: Run) -> None:
    workspace.prepare(run)
    put(nest(workspace.logs(run) / "log", 30, "d" * 250), 10)
    failure = DiskWatch(workspace).over(run)
    assert failure is not None and failure.reason == "NO_SPACE" and "too deep" in failure.message
    workspace.clear(run)
    workspace.forget(run)
    assert not workspace.logs(run).exists()


def test_no_more_folders_are_looked_through_than_a_bounded_number(tmp_path: Path) -> None:
    for n in range(20):
        (tmp_path / f"{n:02}").mkdir()
        (tmp_path / f"{n:02}" / "file").touch()
    assert len([*files.walk(tmp_path, 25)]) == 25 and len([*files.walk(tmp_path)]) == 40


def test_deep_checkpoints_are_taken_over(tmp_path: Path, workspace: Workspace) -> None:
    (source := tmp_path / "storage").mkdir()
    put(nest(source, DEEP), 10)
    data_workspace.copy_checkpoint(source, tmp_path / "runs")
    (copied,) = (e for e in files.walk(tmp_path / "runs") if e.is_file())
    assert copied.path == str(tmp_path / "runs" / ("d/" * DEEP + "data"))


def test_a_link_is_neither_followed_nor_deleted_through(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    for folder in (outside, top / "a" / "b"):
        folder.mkdir(parents=True)
    (outside / "kept").touch()
    (top / "link").symlink_to(outside)
    (top / "a" / "b" / "link").symlink_to(outside)
    files.remove(top)
    assert [p.name for p in tmp_path.iterdir()] == ["outside"] and (outside / "kept").exists()
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        files.remove(tmp_path / "link")
    assert (outside / "kept").exists()
