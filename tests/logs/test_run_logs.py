"""Lines of runs, found on an engine in memory: their numbers, what is cut, hidden or lost."""

import errno
import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import LaunchSpec, labels
from gateway.admin import streams
from gateway.data import log_copies, log_lines
from gateway.data import logs as data_logs
from gateway.data.log_levels import LEVELS, LONGEST_LINE, Level
from gateway.data.logs import MOST_BYTES, MOST_LINES, Excerpt, LogLine, RunLogs
from gateway.data.workspace import Workspace
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Party
from gateway.domain.states import RunStatus
from gateway.errors import Busy, NotFound
from gateway.store.database import open_database
from gateway.store.store import Store
from tests.builders import OK, a_job, a_local_job, a_run, a_spec, raising
from tests.memory_engine import MemoryEngine, Script

TASK = "task_a"
DEBUG, INFO, ERROR = LEVELS
SECRET, TOKEN = "0123456789abcdef" * 4, "fedcba9876543210" * 2


class Node:
    """A node that runs task a as guest and as host, with scripted output and a clock that leaps."""

    def __init__(self, home: Path) -> None:
        self.store = Store(open_database(f"sqlite:///{home / 'gateway.db'}"))
        self.workspace = Workspace(home / "storage", home / "runs", contained=False)
        self.engine = MemoryEngine(
            node="n1",
            installation="i",
            images={"vendor:1.0.0": Script(code=None)},
        )
        self.seconds = 0.0
        self.parties = [Party("guest", 0, "n1"), Party("host", 0, "n1")]
        runs = [
            a_run("a", RunStatus.RUNNING, party, run_id=f"{i}{SECRET[1:]}", token=f"{i}{TOKEN[1:]}")
            for i, party in enumerate(self.parties)
        ]
        spec = a_spec("a", {"guest": ("n1",), "host": ("n1",)})
        self.store.local_jobs.add(a_local_job(*runs, spec=spec, node="n1"), "")
        for run in runs:
            told = labels("n1", "i", "job-1", TASK, run.party.role, 0, 0)
            self.engine.launch(LaunchSpec(run.name, run.image, {}, told))
        self.restart()

    def restart(self, elsewhere: Callable[[str], str] = lambda owner: "") -> None:
        self.logs = RunLogs(
            "n1", self.store, self.engine, self.workspace, lambda: self.seconds, elsewhere
        )

    def close(self) -> None:
        self.store.close()

    def run(self, role: str = "guest") -> Run:
        return next(r for r in self.store.local_jobs.get("job-1").runs if r.party.role == role)

    def change(self, role: str, **changes: Any) -> None:
        def change(local: LocalJob) -> LocalJob:
            return replace(
                local,
                runs=tuple(
                    replace(r, **changes) if r.party.role == role else r for r in local.runs
                ),
            )

        self.store.local_jobs.update("job-1", change)

    def write(
        self,
        text: bytes,
        role: str = "guest",
        stream: str = "stdout",
    ) -> None:
        run = self.engine.world.runs[self.run(role).name]
        (run.stdout if stream == "stdout" else run.stderr).extend(text)

    def forget_beginning(self, size: int) -> None:
        """Drop bytes at the beginning, as an engine does that keeps so many only."""
        del self.engine.world.runs[self.run().name].stdout[:size]

    def exit(self, role: str = "guest") -> None:
        self.engine.finish(self.run(role).name)
        self.change(role, exit=Exit(0), status=RunStatus.SUCCESS)

    def collect(self, role: str = "guest") -> None:
        """Do what the executor does with a container that is over."""
        run = self.run(role)
        self.engine.save_logs(run.name, self.workspace.logs(run))
        self.engine.remove(run.name)
        self.change(role, collect=OK)

    def all(self, level: Level = DEBUG, role: str = "") -> list[str]:
        """Return every line, asked for in several answers."""
        found: list[str] = []
        while True:
            some = self.read(len(found), level, role)
            found += [line.text for line in some.lines]
            assert some.start + len(some.lines) + some.left_out == max(some.total, some.start)
            if not some.left_out:
                return found

    def read(
        self,
        start: int = 0,
        level: Level = DEBUG,
        role: str = "",
        length: int | None = None,
    ) -> Excerpt:
        self.seconds += 1000
        return self.logs.read(TASK, level, start, length, role)

    def of_stream(self, role: str, stream: str) -> list[str]:
        return [
            line.text
            for line in self.logs.read_run("job-1", self.run(role), [stream], 0, None).lines
        ]


@pytest.fixture
def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    yield node
    node.close()


def test_a_progress_bar_is_seen_while_it_grows(node):
    """As tqdm writes it: a carriage return before each state, a line feed at the end alone."""
    for percent in range(4):
        node.write(b"\r%3d%%|#   |" % percent)
        assert node.all() == [f"{n:3d}%|#   |" for n in range(percent)]
    node.write(b"\n")
    assert node.all() == [f"{n:3d}%|#   |" for n in range(4)]
    node.write(b"done\r")
    assert len(node.all()) == 4  # a line feed may follow, as it does here
    node.write(b"\n\r\nnext\r\r\n")
    assert node.all()[4:] == ["done", "", "next"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
def test_lines_are_the_same_however_they_come(node, size):
    text = b"a\rb\r\n\r\rc\n\n\rd\r\re\r\n f\r"
    for at in range(0, len(text), size):
        node.write(text[at : at + size])
        node.all()
    node.exit()
    node.collect()
    assert node.all() == ["a", "b", "c", "", "d", "e", " f"]


def test_colours_are_left_out_and_hide_no_secret(node):
    token = node.run().token
    node.write(b"\x1b[1;32mdone\x1b[0m \x1b[2K\x1b]0;title\x07\xe4\xb8\xad\x1b[?25h\n")
    node.write(f"{token[:9]}\x1b[31m{token[9:]}\n".encode())
    assert node.all() == ["done 中", "*" * len(token)]


def test_a_log_that_was_counted_by_line_feeds_alone_is_counted_anew(node):
    node.write(b"1\r2\r3\nend\n")
    folder = node.workspace.logs(node.run())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.txt").write_text(f"{node.run().name} stdout 0 10 0 2 0\n")
    assert node.all() == ["1", "2", "3", "end"]


def test_level_start_and_length_choose_lines(node):
    node.write(b"debug a\ninfo b\nwarn c\nerror d\nunfin")
    assert node.all(DEBUG) == ["debug a", "info b", "warn c", "error d"]
    assert node.all(INFO) == ["info b", "warn c", "error d"]
    assert node.all(ERROR) == ["error d"]
    assert [node.logs.read(TASK, level, 0, 0).total for level in LEVELS] == [4, 3, 1]
    some = node.read(1, INFO, length=1)
    assert [line.text for line in some.lines] == ["warn c"]
    assert some.total == 3
    assert some.next == 2
    assert some.left_out == 0
    beyond = node.read(7, INFO)
    assert beyond.lines == ()
    assert beyond.total == 3
    assert beyond.left_out == 0
    assert node.read(0, INFO, length=0).lines == ()
    node.write(b"ished \xff\x00 \xe4\xb8\xad\r\n")
    assert node.all()[4:] == ["unfinished \ufffd\x00 中"]


def test_roles_are_kept_apart_or_merged_as_found(node):
    node.write(b"h1\n", "host")
    assert node.all() == ["h1"]
    node.write(b"g1\n", "guest")
    assert node.all() == ["h1", "g1"]
    node.write(b"h2\n", "host")
    merged = node.read()
    assert [(line.party, line.text) for line in merged.lines] == [
        ("host.0", "h1"),
        ("guest.0", "g1"),
        ("host.0", "h2"),
    ]
    assert merged.parties == ("guest.0", "host.0")
    assert node.all(role="host") == node.all(role="host.0") == ["h1", "h2"]
    with pytest.raises(NotFound) as refused:
        node.read(role="host.1")
    assert refused.value.reason == "ROLE_UNKNOWN"


def test_a_half_written_last_line_of_the_ledger_is_cut_off(node):
    node.write(b"one\n")
    node.all()
    with (node.workspace.logs(node.run()) / "lines.txt").open("a") as ledger:
        ledger.write("bfia-a-guest.0 stdout 4 9")
    node.restart()
    node.write(b"two\n")
    assert node.all() == ["one", "two"]
    node.restart()
    assert node.all() == ["one", "two"]


def test_while_an_engine_is_down_the_copied_log_is_served_with_a_notice(node):
    node.write(b"one\n")
    node.all()
    node.write(b"two\n")
    node.engine.world.down = True
    some = node.read()
    assert [line.text for line in some.lines] == ["one"]
    assert some.incomplete == "guest.0: ENGINE_DOWN: the engine does not answer; host.0: " + (
        "ENGINE_DOWN: the engine does not answer"
    )
    assert not some.over
    node.engine.world.down = False
    assert node.all() == ["one", "two"]
    assert not node.read().incomplete


def test_the_log_of_a_removed_container_is_what_was_copied(node):
    node.write(b"one\n")
    node.all()
    node.engine.remove(node.run().name)
    node.change("guest", status=RunStatus.FAILED, collect=OK)
    some = node.read(role="guest")
    assert [line.text for line in some.lines] == ["one"]
    assert some.over


def test_a_log_is_not_complete_while_its_container_is_being_removed(node):
    node.write(b"one\n")
    node.all()
    node.write(b"two")
    node.exit()
    run = node.run()
    node.engine.save_logs(run.name, node.workspace.logs(run))
    node.engine.remove(run.name)
    assert not node.read(role="guest").over
    node.change("guest", collect=OK)
    assert node.all(role="guest") == ["one", "two"]
    assert node.read(role="guest").over
    files = {path.name for path in node.workspace.logs(run).iterdir()}
    assert files == {"stdout.log", "stderr.log", "lines.txt"}


def test_a_copy_is_not_made_more_often_than_its_size_allows(node, monkeypatch):
    clock = itertools.count()
    copies: list[float] = []
    monkeypatch.setattr(
        node.engine, "save_logs", lambda name, directory: copies.append(next(clock))
    )
    logs = RunLogs("n1", node.store, node.engine, node.workspace, lambda: float(next(clock)))
    for _ in range(100):
        logs.read(TASK, DEBUG, 0, None, "guest")
    assert (
        2 <= len(copies) <= 12
    )  # a copy takes 2 of these seconds, so one in twenty is for copying


def test_lines_keep_their_numbers_when_the_engine_drops_the_oldest(node):
    first = [f"line {i} of the first thousand" for i in range(1000)]
    then = [f"line {i} of those that come later" for i in range(500)]
    node.write("".join(f"{line}\n" for line in first).encode())
    assert node.all() == first
    node.write("".join(f"{line}\n" for line in then).encode())
    node.forget_beginning(20_000)
    assert node.all() == first + then
    node.exit()
    node.collect()
    assert node.all() == first + then
    assert node.all() == first + then


def test_an_unwritable_folder_is_named_and_copied_logs_are_served(node, monkeypatch):
    node.write(b"one\n")
    assert node.all() == ["one"]
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(node.engine, "save_logs", full)
        found = node.read()
        assert [line.text for line in found.lines] == ["one"]
        assert "COPY_FAILED: No space left on device" in found.incomplete
    monkeypatch.setattr(data_logs, "read_ledger", full)
    with pytest.raises(Busy, match="the logs cannot be read now: No space left") as caught:
        node.read()
    assert caught.value.reason == "LOGS_UNREADABLE"


def test_a_reader_is_told_why_no_more_lines_come():
    gone = raising(Busy("the logs cannot be read now", reason="LOGS_UNREADABLE"))

    def some(start: int, length: int | None) -> Excerpt:
        lines = tuple(
            LogLine(f"line {n}", "guest.0", "stdout") for n in range(start, min(start + 2, 3))
        )
        return Excerpt(lines, start, 3, left_out=3 - start - len(lines), parties=())

    assert list(streams._text(gone, 0, 5)) == [b"[LOGS_UNREADABLE: the logs cannot be read now]\n"]
    assert b"".join(streams._text(some, 0, 9)) == b"line 0\nline 1\nline 2\n"
    (ended,) = streams._lines(gone, lambda: a_run(), 0)
    assert b"LOGS_UNREADABLE" in b"".join(ended[0])
    assert not ended[1]
    first, waits = next(streams._lines(some, lambda: a_run(), 0))
    assert len(first) == 2
    assert not waits  # the rest follows without a pause


def test_a_file_that_shrinks_while_it_is_read_ends_there(tmp_path):
    file = tmp_path / "stdout.log"
    file.write_bytes(b"one\n")
    assert [line.head for line in log_lines.read_lines([file], 4, 9)] == []
    (tmp_path / "new.log").touch()
    log_copies.append_end(file, tmp_path / "new.log")
    assert file.read_bytes() == b"one\n"
    (tmp_path / "new.log").write_bytes(b"two\nthree\n")
    assert not log_copies.continues(file, tmp_path / "new.log")


def test_a_gap_in_what_the_engine_kept_is_shown_once(node):
    node.write(b"old\n" * 10)
    node.all()
    node.forget_beginning(40)
    node.write(b"new\n" * 3)
    seen = node.all()
    assert seen[:10] + seen[11:] == ["old"] * 10 + ["new"] * 3
    assert "missing" in seen[10]
    node.exit()
    node.collect()
    assert node.all() == node.all() == seen


def test_a_runs_secrets_are_never_shown(node):
    secret, token = node.run().run_id, node.run().token
    long = b"x" * (LONGEST_LINE - 16)
    node.write(f"config.token={token}\nhttp://gateway/callback?run={secret}&a={secret}\n".encode())
    for hidden in (secret, token):
        node.write(long + hidden.encode() + b"y" * 100 + b"\n")
    shown = "\n".join(node.all())
    assert "config.token=****" in shown
    assert "callback?run=****" in shown
    for hidden in (secret, token):
        assert hidden not in shown
        assert hidden[:12] not in shown


def test_an_endless_line_is_cut_with_a_count(node):
    node.write(b"before\n" + b"x" * 3_000_000 + b"\nafter\n")
    before, cut, after = node.all()
    assert before == "before"
    assert after == "after"
    assert cut.startswith("x" * LONGEST_LINE + "…")
    assert cut.endswith("bytes left out]")
    assert len(cut) < LONGEST_LINE + 100


def test_a_response_is_limited_in_lines_and_bytes(node):
    node.write(b"short\n" * (MOST_LINES + 5))
    some = node.read(role="guest")
    assert len(some.lines) == MOST_LINES
    assert some.left_out == 5
    assert len(node.all(role="guest")) == MOST_LINES + 5
    node.write((b"y" * 50_000 + b"\n") * 30, "host")
    some = node.read(role="host")
    assert sum(len(line.text) for line in some.lines) <= MOST_BYTES
    assert len(some.lines) + some.left_out == 30
    assert len(node.all(role="host")) == 30


def test_a_run_that_never_had_a_container_has_no_lines_and_no_files(node):
    shutil.rmtree(node.workspace.logs(node.run()), ignore_errors=True)
    node.change("guest", status=RunStatus.WAITING, launch=a_run().launch)
    assert node.logs.read(TASK, DEBUG, 0, 0, "guest").total == 0
    assert not node.workspace.logs(node.run()).exists()


def test_a_future_task_has_no_log_lines_and_a_foreign_one_names_its_nodes(node):
    spec = a_spec("b", {"guest": ("n1",), "host": ("n2",)}, job_id="job-2")
    job = a_job(
        spec=spec,
        task_roles={"b": ["host"]},
        dag="b",
    )
    node.store.jobs.add(job, "")
    with pytest.raises(NotFound, match="ask at n2") as refused:
        node.logs.read("task_b", DEBUG, 0, 0)
    assert refused.value.reason == "TASK_UNKNOWN"
    node.store.jobs.add(a_job(spec=a_spec("c", job_id="job-3"), dag="c"), "")
    empty = node.logs.read("task_c", DEBUG, 0)
    assert empty.lines == ()
    assert empty.total == 0
    assert empty.over is False


def test_a_log_kept_by_another_gateway_names_that_gateway(node):
    node.write(b"here\n")
    node.restart(lambda owner: f"the gateway http://of-{owner or 'nobody'}")
    node.change("guest", owner="other")
    for ask in (
        lambda: node.read(),
        lambda: node.logs.read_run("job-1", node.run(), ("stdout",), 0, None),
    ):
        with pytest.raises(NotFound) as raised:
            ask()
        assert raised.value.reason == "LOG_ELSEWHERE"
        assert "http://of-other of this node" in raised.value.message
    node.restart(lambda owner: "" if owner else "another gateway")
    assert [line.text for line in node.logs.read(TASK, DEBUG, 0, role="guest").lines] == ["here"]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["guest", "host"]),
            st.sampled_from(["stdout", "stderr"]),
            st.lists(
                st.sampled_from(
                    [b"info i", b"debug d", b"error e", b"plain", b"\n", b"\n", b"\r\n", b"{}"]
                ),
                max_size=6,
            ).map(b"".join),
        ),
        st.sampled_from(["ask", "ask guest", "restart", "exit guest", "exit host", "collect"]),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(STEPS)
def test_a_line_never_changes_its_number_and_none_is_lost(tmp_path_factory, steps):
    node = Node(tmp_path_factory.mktemp("node"))
    written: dict[tuple[str, str], bytes] = defaultdict(bytes)
    seen: dict[tuple[Level, str], list[str]] = defaultdict(list)
    try:
        for step in [*steps, "exit guest", "exit host", "ask", "collect", "ask"]:
            match step:
                case (role, stream, text):
                    if node.run(role).exit is None:
                        node.write(text, role, stream)
                        written[role, stream] += text
                case "restart":
                    node.restart()
                case "exit guest" | "exit host":
                    role = step.removeprefix("exit ")
                    if node.run(role).exit is None:
                        node.exit(role)
                case "collect":
                    for role in ("guest", "host"):
                        if node.run(role).exit is not None:
                            node.collect(role)
                case _:
                    roles = ("guest",) if step == "ask guest" else ("", "guest", "host")
                    for key in itertools.product(LEVELS, roles):
                        now = node.all(*key)
                        assert now[: len(seen[key])] == seen[key]
                        assert node.logs.read(TASK, key[0], 0, 0, *key[1:]).total == len(now)
                        seen[key] = now
        for (role, stream), text in written.items():
            lines = text.decode().split("\n")
            whole = lines[:-1] if lines[-1] == "" else lines
            assert node.of_stream(role, stream) == [line.rstrip("\r") for line in whole]
        assert node.read().over
    finally:
        node.close()


def test_deleted_logs_are_empty_and_not_created_again(node):
    for role in ("guest", "host"):
        node.write(b"line\n", role)
        node.exit(role)
        node.collect(role)
    assert node.read().total == 2
    for role in ("guest", "host"):
        node.workspace.forget(node.run(role))
    assert node.read().total == 0
    assert node.read().over
    assert not any(node.workspace.logs(node.run(role)).exists() for role in ("guest", "host"))
