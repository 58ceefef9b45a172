"""What is kept of a run's log: all of it, or both ends with a word on what is missing."""

import os
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engines import logs
from gateway.data.logs import _append
from gateway.data.workspace import Workspace
from tests.builders import a_run
from tests.contracts.engine_acts import a_spec, ended, python
from tests.contracts.harnesses import ProcessHarness
from tests.memory_engine import Script

CUT = re.compile(rb"\[(\d+) bytes are left out here: the log was longer than it may be\]\n")


def saved(folder: Path, chunks: list[bytes], most: int | None) -> bytes:
    logs.save(folder, "stdout", chunks, most)
    (file,) = folder.iterdir()
    return file.read_bytes()


def test_a_long_log_keeps_whole_lines_of_both_ends(tmp_path: Path) -> None:
    lines = [f"line {n:05}\n".encode() for n in range(10_000)]
    text = saved(tmp_path, lines, 1000)
    head, missing, tail = CUT.split(text)
    assert b"".join(lines).startswith(head) and head.endswith(b"\n")
    assert b"".join(lines).endswith(tail) and tail.startswith(b"line ")
    assert len(head) + len(tail) + int(missing) == sum(map(len, lines))
    assert 950 < len(head) + len(tail) <= 1000


@given(
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"[", b"(")), max_size=40),
    st.integers(min_value=2, max_value=200),
)
def test_nothing_is_invented_and_what_is_missing_is_counted(
    tmp_path_factory: object, chunks: list[bytes], most: int
) -> None:
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


def test_a_long_log_takes_little_memory(tmp_path: Path) -> None:
    def much() -> Iterator[bytes]:
        for _ in range(512):
            yield b"x" * 65535 + b"\n"

    tracemalloc.start()
    logs.save(tmp_path, "stdout", much(), 16 * 1024**2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "stdout.log").stat().st_size < 17 * 1024**2
    assert peak < 8 * 1024**2


def test_a_run_that_writes_without_end_is_saved_short(tmp_path: Path) -> None:
    harness = ProcessHarness(tmp_path / "runs")
    engine = harness.engine(saved_log_size=70_000)
    spec = a_spec(harness, python("[print('line', n) for n in range(100000)]", Script()))
    engine.launch(spec)
    ended(engine, spec.name)
    engine.save_logs(spec.name, tmp_path / "kept")
    text = (tmp_path / "kept" / "stdout.log").read_bytes()
    assert text.startswith(b"line 0\n") and text.endswith(b"line 99999\n") and CUT.search(text)
    assert len(text) < 71_000
    assert engine.logs(spec.name, tail=6).stdout == b"99999\n"
    harness.close()


def test_a_file_is_shortened_and_nothing_else_is_touched(tmp_path: Path) -> None:
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
    assert len(text) < 1100 and CUT.search(text) and text.endswith(b"line\n")
    assert (log / "short.log").read_bytes() == b"line\n"
    assert outside.stat().st_size == 10_000
    assert sorted(p.name for p in log.rglob("*")) == ["deep", "link", "long.log", "pipe", "short.log"]


def test_a_copy_that_was_followed_does_not_repeat_the_beginning(tmp_path: Path) -> None:
    """What is saved of a long log has its first lines again; they are in the copy already."""
    old, new = tmp_path / "so-far", tmp_path / "saved"
    lines = [f"line {n:06}\n".encode() for n in range(20_000)]
    old.write_bytes(b"".join(lines[:1000]))
    logs.save(tmp_path, "saved", lines, 20_000)
    (tmp_path / "saved.log").rename(new)
    _append(old, new)
    text = old.read_bytes()
    assert text.startswith(b"".join(lines[:1000])) and text.endswith(b"".join(lines[-700:]))
    assert text.count(b"line 000000\n") == 1 and b"some lines are missing here" in text
