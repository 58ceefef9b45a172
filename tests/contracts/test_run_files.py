"""What runs leave: folders, however deep, are measured and deleted; of long logs both ends are kept."""

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
from gateway.domain.run import Address, Run
from gateway.jobs.archive import of_files
from gateway.jobs.retention import size_of
from tests.builders import a_run
from tests.contracts.engine_acts import launch_run, python, wait_for_exit
from tests.contracts.harnesses import ProcessHarness

MIB = 1024**2
DEEP = 400


def nest(
    top: Path,
    levels: int,
    name: str = "d",
) -> int:
    """Nest folders in a folder; return a descriptor of the innermost one."""
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        above, here = here, os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(above)
    return here


def put(
    here: int,
    size: int,
    name: str = "data",
) -> None:
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(b"a line\n" * (size // 7))
    os.close(here)


@pytest.fixture
def little_stack() -> Iterator[None]:
    """Let Python recurse so little that folders need not be thousands of levels deep to be too deep for it."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    yield
    sys.setrecursionlimit(usual)


@pytest.fixture
def workspace(tmp_path: Path, little_stack: None) -> Iterator[Workspace]:
    made = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True, log_bytes=64 * 1024)
    yield made
    for name in ("storage", "runs"):
        files.try_to_remove(tmp_path / name)
    assert not [*tmp_path.glob("*")]  # pytest could not delete what is that deep


@pytest.fixture
def run() -> Run:
    return a_run(outputs={"out": Address("job-1-guest-0", "task_a-out")}, limits={"disk": 16 * MIB})


def test_deep_folders_neither_escape_the_granted_disk_nor_hold_descriptors(workspace, run):
    workspace.prepare(run)
    log = workspace.logs(run) / "log"
    nested = nest(log, DEEP)
    (log / "run.log").write_bytes(b"x" * 300_000)
    before = len(os.listdir("/proc/self/fd"))
    assert DiskWatch(workspace).over(run) is None
    assert (
        len(os.listdir("/proc/self/fd")) <= before
    )  # some thread of an earlier test may close one meanwhile
    put(nested, 20 * MIB)
    failure = DiskWatch(workspace).over(run)
    assert failure is not None
    assert failure.reason == "NO_SPACE"
    assert "0.0" in failure.message
    workspace.clear(run)
    assert {entry.name for entry in of_files(log, "log", [])} == {
        "log/run.log",
        "log/" + "d/" * DEEP + "data",
    }
    assert size_of(log) > 128 * 1024
    workspace.forget(run)
    assert not workspace.logs(run).exists()


def test_a_hole_in_what_a_run_leaves_counts_as_room(workspace, run):
    workspace.prepare(run)
    with (workspace.root / "job-1-guest-0" / "task_a-out" / "data_0").open("wb") as file:
        file.truncate(20 * MIB)
    failure = DiskWatch(workspace).over(run)
    assert failure is not None
    assert failure.reason == "NO_SPACE"


def test_what_no_path_leads_to_counts_as_too_much_and_can_be_deleted(workspace, run):
    workspace.prepare(run)
    put(nest(workspace.logs(run) / "log", 30, "d" * 250), 10)
    failure = DiskWatch(workspace).over(run)
    assert failure is not None
    assert failure.reason == "NO_SPACE"
    assert "too deep" in failure.message
    workspace.clear(run)
    workspace.forget(run)
    assert not workspace.logs(run).exists()


def test_no_more_folders_are_looked_through_than_a_bounded_number(tmp_path):
    for n in range(20):
        (tmp_path / f"{n:02}").mkdir()
        (tmp_path / f"{n:02}" / "file").touch()
    assert len([*files.walk(tmp_path, 25)]) == 25
    assert len([*files.walk(tmp_path)]) == 40


def test_deep_checkpoints_are_taken_over(tmp_path, workspace):
    (source := tmp_path / "storage").mkdir()
    put(nest(source, DEEP), 10)
    data_workspace.copy_checkpoint(source, tmp_path / "runs")
    (copied,) = (e for e in files.walk(tmp_path / "runs") if e.is_file())
    assert copied.path == str(tmp_path / "runs" / ("d/" * DEEP + "data"))


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b"begins", b""), (b"", b"ends"), (b"begins", b"ends")]
)
def test_a_hole_in_a_checkpoint_stays_a_hole(tmp_path, before, after):
    size = 64 * MIB
    (source := tmp_path / "storage").mkdir()
    with (source / "data").open("wb") as file:
        file.write(before)
        file.seek(size - len(after))
        file.write(after)
        file.truncate(size)
    data_workspace.copy_checkpoint(source, tmp_path / "copy")
    with (tmp_path / "copy" / "data").open("rb") as file:
        found = os.stat(file.fileno())
        assert found.st_size == size
        assert found.st_blocks * 512 < MIB
        assert file.read(len(before) + 1) == before + b"\0"
        file.seek(-len(after) - 1, os.SEEK_END)
        assert file.read() == b"\0" + after


def test_a_link_is_neither_followed_nor_deleted_through(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    for folder in (outside, top / "a" / "b"):
        folder.mkdir(parents=True)
    (outside / "kept").touch()
    (top / "link").symlink_to(outside)
    (top / "a" / "b" / "link").symlink_to(outside)
    files.remove(top)
    assert [p.name for p in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        files.remove(tmp_path / "link")
    assert (outside / "kept").exists()


# ---------------------------------------------------------------- logs: of a long one both ends are kept

CUT = re.compile(rb"\[(\d+) bytes are left out here: the log was longer than it may be\]\n")


def saved(
    folder: Path,
    chunks: list[bytes],
    most: int | None,
) -> bytes:
    logs.save(folder, "stdout", chunks, most)
    (file,) = folder.iterdir()
    return file.read_bytes()


def test_a_long_log_keeps_whole_lines_of_both_ends(tmp_path):
    lines = [f"line {n:05}\n".encode() for n in range(10_000)]
    text = saved(tmp_path, lines, 1000)
    head, missing, tail = CUT.split(text)
    assert b"".join(lines).startswith(head)
    assert head.endswith(b"\n")
    assert b"".join(lines).endswith(tail)
    assert tail.startswith(b"line ")
    assert len(head) + len(tail) + int(missing) == sum(map(len, lines))
    assert 950 < len(head) + len(tail) <= 1000


@given(
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"[", b"(")), max_size=40),
    st.integers(min_value=2, max_value=200),
)
def test_nothing_is_invented_and_what_is_missing_is_counted(tmp_path_factory, chunks, most):
    folder = Path(tmp_path_factory.mktemp("log"))  # type: ignore[attr-defined]
    whole = b"".join(chunks)
    text = saved(folder, chunks, most)
    if len(whole) <= most:
        assert text == whole
        return
    head, missing, tail = CUT.split(text)
    assert whole.endswith(tail)
    assert whole.startswith((head, head.removesuffix(b"\n")))  # a line was ended
    own = len(head) - (0 if whole.startswith(head) and b"\n" in whole[: most // 2] else 1)
    assert own + int(missing) + len(tail) == len(whole)


def test_a_long_log_takes_little_memory(tmp_path):
    def much() -> Iterator[bytes]:
        for _ in range(512):
            yield b"x" * 65535 + b"\n"

    tracemalloc.start()
    logs.save(tmp_path, "stdout", much(), 16 * 1024**2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "stdout.log").stat().st_size < 17 * 1024**2
    assert peak < 8 * 1024**2


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


def test_a_file_is_shortened_and_nothing_else_is_touched(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"x\n" * 5000)
    run = a_run("a")
    workspace = Workspace(tmp_path / "storage", tmp_path / "runs", contained=True, log_bytes=1000)
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
    assert sorted(p.name for p in log.rglob("*")) == [
        "deep",
        "link",
        "long.log",
        "pipe",
        "short.log",
    ]


def test_a_copy_that_was_followed_does_not_repeat_the_beginning(tmp_path):
    """What is saved of a long log has its first lines again; they are in the copy already."""
    old, new = tmp_path / "so-far", tmp_path / "saved"
    lines = [f"line {n:06}\n".encode() for n in range(20_000)]
    old.write_bytes(b"".join(lines[:1000]))
    logs.save(tmp_path, "saved", lines, 20_000)
    (tmp_path / "saved.log").rename(new)
    append_end(old, new)
    text = old.read_bytes()
    assert text.startswith(b"".join(lines[:1000]))
    assert text.endswith(b"".join(lines[-700:]))
    assert text.count(b"line 000000\n") == 1
    assert b"some lines are missing here" in text
