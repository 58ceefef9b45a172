"""Files of ended runs: folders of any depth are measured and deleted, long logs keep both ends."""

import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import files, logs
from gateway.data import workspace as data_workspace
from gateway.data.log_copies import append_end
from gateway.data.workspace import DiskWatch, Workspace
from gateway.domain.run import Address, Run, RunData
from gateway.jobs.archive import of_files
from gateway.jobs.retention import size_of
from tests.builders import a_run
from tests.contracts.engine_acts import launch_run, python, wait_for_exit
from tests.contracts.harnesses import ProcessHarness

MIB = 1024**2
DEEP = 400  # levels of folders; more than the recursion limit of these tests


def nest(
    top: Path,
    levels: int,
    name: str = "d",
) -> int:
    """Nest folders in a folder; return a descriptor of the innermost one.

    A path of that length would exceed the system's limit.
    """
    innermost = os.open(
        top,
        os.O_RDONLY | os.O_DIRECTORY,
    )
    for _ in range(levels):
        os.mkdir(name, dir_fd=innermost)
        parent = innermost
        innermost = os.open(
            name,
            os.O_RDONLY | os.O_DIRECTORY,
            dir_fd=parent,
        )
        os.close(parent)
    return innermost


def put(
    folder: int,
    size: int,
    name: str = "data",
) -> None:
    """Write a file of about this size in bytes into an open folder, and close the folder."""
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder), "wb") as file:
        file.write(b"a line\n" * (size // 7))
    os.close(folder)


@pytest.fixture
def little_stack() -> Iterator[None]:
    """Lower Python's recursion limit, so that a few hundred levels are too deep for it."""
    usual_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    yield
    sys.setrecursionlimit(usual_limit)


@pytest.fixture
def workspace(
    tmp_path: Path,
    little_stack: None,
) -> Iterator[Workspace]:
    workspace = Workspace(
        tmp_path / "storage", tmp_path / "runs", contained=True, log_bytes=64 * 1024
    )
    yield workspace
    # pytest itself could not delete folders of that depth.
    for name in ("storage", "runs"):
        files.try_to_remove(tmp_path / name)
    assert not [*tmp_path.glob("*")]


@pytest.fixture
def run() -> Run:
    data = RunData(outputs={"out": Address("job-1-guest-0", "task_a-out")})
    return a_run(data=data, limits={"disk": 16 * MIB})


def open_descriptors() -> int:
    """Return the number of this process's open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


def no_space_message(workspace: Workspace, run: Run) -> str:
    """Return the message with which a run fails that uses too much disk."""
    failure = DiskWatch(workspace).excess(run)
    assert failure is not None
    assert failure.reason == "NO_SPACE"
    return failure.message


def test_deep_folders_neither_escape_the_granted_disk_nor_hold_descriptors(workspace, run):
    workspace.prepare(run)
    log = workspace.logs(run) / "log"
    innermost = nest(log, DEEP)
    (log / "run.log").write_bytes(b"x" * 300_000)

    descriptors = open_descriptors()
    assert DiskWatch(workspace).excess(run) is None
    assert open_descriptors() <= descriptors  # less if a thread of another test has ended

    put(innermost, 20 * MIB)
    assert "0.0" in no_space_message(workspace, run)

    workspace.clear(run)
    entries = {entry.name for entry in of_files(log, "log", [])}
    assert entries == {"log/run.log", "log/" + "d/" * DEEP + "data"}
    assert size_of(log) > 128 * 1024

    files.remove(workspace.logs(run))
    assert not workspace.logs(run).exists()


def test_a_deep_folder_that_cannot_be_deleted_is_left(tmp_path, little_stack, monkeypatch):
    top = tmp_path / "top"
    top.mkdir()
    os.close(nest(top, DEEP))

    with monkeypatch.context() as without_commands:
        without_commands.setenv("PATH", str(tmp_path))
        files.try_to_remove(top)
    assert top.exists()

    files.try_to_remove(top)
    assert not top.exists()


def test_a_hole_in_an_output_counts_as_room(workspace, run):
    workspace.prepare(run)
    output = workspace.root / "job-1-guest-0" / "task_a-out" / "data_0"
    with output.open("wb") as file:
        file.truncate(20 * MIB)

    no_space_message(workspace, run)


def test_a_folder_too_deep_for_paths_is_too_large_and_can_be_deleted(workspace, run):
    workspace.prepare(run)
    put(nest(workspace.logs(run) / "log", 30, "d" * 250), 10)

    assert "too deep" in no_space_message(workspace, run)

    workspace.clear(run)
    files.remove(workspace.logs(run))
    assert not workspace.logs(run).exists()


def test_a_walk_visits_no_more_entries_than_a_limit(tmp_path):
    for n in range(20):
        folder = tmp_path / f"{n:02}"
        folder.mkdir()
        (folder / "file").touch()

    assert len([*files.walk(tmp_path, 25)]) == 25
    assert len([*files.walk(tmp_path)]) == 40


def test_deep_checkpoints_are_copied(tmp_path, workspace):
    source = tmp_path / "storage"
    source.mkdir()
    put(nest(source, DEEP), 10)

    data_workspace.copy_checkpoint(source, tmp_path / "runs")

    (copy,) = (entry for entry in files.walk(tmp_path / "runs") if entry.is_file())
    assert copy.path == str(tmp_path / "runs" / ("d/" * DEEP + "data"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"begins", b""),
        (b"", b"ends"),
        (b"begins", b"ends"),
    ],
)
def test_a_hole_in_a_checkpoint_stays_a_hole(tmp_path, before, after):
    size = 64 * MIB
    source = tmp_path / "storage"
    source.mkdir()
    with (source / "data").open("wb") as file:
        file.write(before)
        file.seek(size - len(after))
        file.write(after)
        file.truncate(size)

    data_workspace.copy_checkpoint(source, tmp_path / "copy")

    with (tmp_path / "copy" / "data").open("rb") as file:
        status = os.stat(file.fileno())
        assert status.st_size == size
        assert status.st_blocks * 512 < MIB
        assert file.read(len(before) + 1) == before + b"\0"
        file.seek(
            -len(after) - 1,
            os.SEEK_END,
        )
        assert file.read() == b"\0" + after


def test_a_link_is_neither_followed_nor_deleted_through(tmp_path):
    outside = tmp_path / "outside"
    top = tmp_path / "top"
    inner = top / "a" / "b"
    outside.mkdir()
    inner.mkdir(parents=True)
    (outside / "kept").touch()
    (top / "link").symlink_to(outside)
    (inner / "link").symlink_to(outside)

    files.remove(top)

    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_a_link_itself_is_not_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "link").symlink_to(outside)

    with pytest.raises(OSError, match="link"):
        files.remove(tmp_path / "link")

    assert (outside / "kept").exists()


# ---------------------------------------------------------------- logs: both ends are kept

# The line in place of the removed part of a log; its group is the number of removed bytes.
CUT = re.compile(rb"\[(\d+) bytes are left out here: the log was longer than it may be\]\n")


def save(
    folder: Path,
    chunks: list[bytes],
    limit: int | None,
) -> bytes:
    """Save a log of these chunks into an empty folder; return the content of the file."""
    logs.save(folder, "stdout", chunks, limit)
    (file,) = folder.iterdir()
    return file.read_bytes()


def test_a_long_log_keeps_whole_lines_of_both_ends(tmp_path):
    lines = [f"line {n:05}\n".encode() for n in range(10_000)]
    log = b"".join(lines)

    head, missing, tail = CUT.split(save(tmp_path, lines, 1000))

    assert log.startswith(head)
    assert head.endswith(b"\n")
    assert log.endswith(tail)
    assert tail.startswith(b"line ")
    assert len(head) + len(tail) + int(missing) == len(log)
    assert 950 < len(head) + len(tail) <= 1000


@given(
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"[", b"(")), max_size=40),
    st.integers(
        min_value=2,
        max_value=200,
    ),
)
def test_nothing_is_invented_and_missing_bytes_are_counted(tmp_path_factory, chunks, limit):
    log = b"".join(chunks)

    text = save(
        Path(tmp_path_factory.mktemp("log")),
        chunks,
        limit,
    )

    if len(log) <= limit:
        assert text == log
        return
    head, missing, tail = CUT.split(text)
    assert log.endswith(tail)
    # The head may end with a line end of its own.
    assert log.startswith((head, head.removesuffix(b"\n")))
    has_own_line_end = log.startswith(head) and b"\n" in log[: limit // 2]
    head_length = len(head) if has_own_line_end else len(head) - 1
    assert head_length + int(missing) + len(tail) == len(log)


def test_a_long_log_takes_little_memory(tmp_path):
    chunk = b"x" * 65535 + b"\n"
    chunks = (chunk for _ in range(512))  # 32 MiB

    tracemalloc.start()
    logs.save(tmp_path, "stdout", chunks, 16 * MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (tmp_path / "stdout.log").stat().st_size < 17 * MIB
    assert peak < 8 * MIB


def test_a_run_that_writes_without_end_is_saved_short(tmp_path):
    harness = ProcessHarness(tmp_path / "runs")
    engine = harness.engine(saved_log_size=70_000)
    spec = launch_run(harness, engine, python("[print('line', n) for n in range(100000)]"))
    wait_for_exit(engine, spec.name)

    engine.save_logs(spec.name, tmp_path / "kept")

    text = (tmp_path / "kept" / "stdout.log").read_bytes()
    assert text.startswith(b"line 0\n")
    assert text.endswith(b"line 99999\n")
    assert CUT.search(text)
    assert len(text) < 71_000
    assert engine.logs(spec.name, tail=6).stdout == b"99999\n"
    harness.close()


def test_long_log_files_are_shortened_and_nothing_else_is_touched(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"x\n" * 5000)
    run = a_run("a")
    workspace = Workspace(
        tmp_path / "storage",
        tmp_path / "runs",
        contained=True,
        log_bytes=1000,
    )
    workspace.prepare(run)
    log = workspace.logs(run) / "log"
    (log / "deep").mkdir()
    (log / "deep" / "long.log").write_bytes(b"line\n" * 5000)
    (log / "short.log").write_bytes(b"line\n")
    (log / "link").symlink_to(outside)
    os.mkfifo(log / "pipe")

    workspace.clear(run)

    text = (log / "deep" / "long.log").read_bytes()
    assert len(text) < 1100
    assert CUT.search(text)
    assert text.endswith(b"line\n")
    assert (log / "short.log").read_bytes() == b"line\n"
    assert outside.stat().st_size == 10_000
    assert sorted(path.name for path in log.rglob("*")) == [
        "deep",
        "link",
        "long.log",
        "pipe",
        "short.log",
    ]


def test_a_copy_that_was_followed_does_not_repeat_the_beginning(tmp_path):
    """A saved long log repeats its first lines, which are in the copy already."""
    copy = tmp_path / "so-far"
    saved = tmp_path / "saved"
    lines = [f"line {n:06}\n".encode() for n in range(20_000)]
    copy.write_bytes(b"".join(lines[:1000]))
    logs.save(tmp_path, "saved", lines, 20_000)
    (tmp_path / "saved.log").rename(saved)

    append_end(copy, saved)

    text = copy.read_bytes()
    assert text.startswith(b"".join(lines[:1000]))
    assert text.endswith(b"".join(lines[-700:]))
    assert text.count(b"line 000000\n") == 1
    assert b"some lines are missing here" in text
