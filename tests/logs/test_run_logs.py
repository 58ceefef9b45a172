"""Lines of runs on an engine in memory: their numbers, and lines that are cut, masked or lost."""

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
from tests.builders import OK, a_job, a_local_job, a_run, a_spec, raising, returning
from tests.memory_engine import MemoryEngine, Script

TASK = "task_a"
DEBUG, INFO, ERROR = LEVELS
ROLES = ("guest", "host")
SECRET = "0123456789abcdef" * 4
TOKEN = "fedcba9876543210" * 2
FULL_DISK = OSError(errno.ENOSPC, "No space left on device")


class Node:
    """A node that runs task a as guest and as host, with scripted output.

    Its clock leaps with every read, so that the log is copied from the engine each time.
    """

    def __init__(self, home: Path) -> None:
        self.store = Store(open_database(f"sqlite:///{home / 'gateway.db'}"))
        self.workspace = Workspace(
            home / "storage",
            home / "runs",
            contained=False,
        )
        self.engine = MemoryEngine(
            node="n1",
            installation="i",
            images={"vendor:1.0.0": Script(code=None)},
        )
        self.seconds = 0.0
        runs = []
        for index, role in enumerate(ROLES):
            run = a_run(
                "a",
                RunStatus.RUNNING,
                Party(role, 0, "n1"),
                run_id=f"{index}{SECRET[1:]}",
                token=f"{index}{TOKEN[1:]}",
            )
            runs.append(run)
            run_labels = labels(
                "n1",
                "i",
                "job-1",
                TASK,
                role,
                0,
                0,
            )
            self.engine.launch(LaunchSpec(run.name, run.software.image, {}, run_labels))
        spec = a_spec(
            "a",
            {
                "guest": ("n1",),
                "host": ("n1",),
            },
        )
        self.store.local_jobs.add(a_local_job(*runs, spec=spec, node="n1"), "")
        self.restart()

    def restart(
        self,
        elsewhere: Callable[[str], str] = returning(""),
    ) -> None:
        """Start again with an empty memory.

        ``elsewhere`` names the gateway that has an owner's logs; empty if it is this one.
        """
        self.logs = RunLogs(
            "n1",
            self.store,
            self.engine,
            self.workspace,
            lambda: self.seconds,
            elsewhere,
        )

    def close(self) -> None:
        self.store.close()

    def run(self, role: str = "guest") -> Run:
        runs = self.store.local_jobs.get("job-1").runs
        return next(run for run in runs if run.party.role == role)

    def log_folder(self, role: str = "guest") -> Path:
        return self.workspace.logs(self.run(role))

    def change(
        self,
        role: str,
        **changes: Any,
    ) -> None:
        """Change fields of a role's run."""

        def change_run(local: LocalJob) -> LocalJob:
            runs = []
            for run in local.runs:
                if run.party.role == role:
                    run = replace(run, **changes)
                runs.append(run)
            return replace(
                local,
                runs=tuple(runs),
            )

        self.store.local_jobs.update("job-1", change_run)

    def write(
        self,
        text: bytes,
        role: str = "guest",
        stream: str = "stdout",
    ) -> None:
        """Have a run write to one of its streams."""
        run = self.engine.world.runs[self.run(role).name]
        streams_of_run = {
            "stdout": run.stdout,
            "stderr": run.stderr,
        }
        streams_of_run[stream].extend(text)

    def forget_beginning(self, size: int) -> None:
        """Drop the first bytes of the guest's stdout, as an engine with limited logs does."""
        del self.engine.world.runs[self.run().name].stdout[:size]

    def exit(self, role: str = "guest") -> None:
        self.engine.finish(self.run(role).name)
        self.change(
            role,
            exit=Exit(0),
            status=RunStatus.SUCCESS,
        )

    def has_exited(self, role: str) -> bool:
        return self.run(role).exit is not None

    def collect(self, role: str = "guest") -> None:
        """Save the log and remove the container, as the executor does after its end."""
        self.engine.save_logs(
            self.run(role).name,
            self.log_folder(role),
        )
        self.engine.remove(self.run(role).name)
        self.change(role, collect=OK)

    def all(
        self,
        level: Level = DEBUG,
        role: str = "",
    ) -> list[str]:
        """Return every line, read in as many responses as needed."""
        lines: list[str] = []
        while True:
            excerpt = self.read(len(lines), level, role)
            lines += texts_of(excerpt)
            end = excerpt.start + len(excerpt.lines) + excerpt.left_out
            assert end == max(excerpt.total, excerpt.start)
            if not excerpt.left_out:
                return lines

    def read(
        self,
        start: int = 0,
        level: Level = DEBUG,
        role: str = "",
        length: int | None = None,
    ) -> Excerpt:
        """Read lines in one response."""
        self.seconds += 1000
        return self.logs.read(
            TASK,
            level,
            start,
            length,
            role,
        )

    def lines_of_stream(
        self,
        role: str,
        stream: str,
    ) -> list[str]:
        return texts_of(self.logs.read_run("job-1", self.run(role), [stream], 0, None))


def texts_of(excerpt: Excerpt) -> list[str]:
    return [line.text for line in excerpt.lines]


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.close()


# ---------------------------------------------------------------- lines


def test_a_progress_bar_is_seen_while_it_grows(node):
    """As tqdm writes it: a carriage return before each state, a line feed at the end only."""
    states = [f"{percent:3d}%|#   |" for percent in range(4)]
    for number, state in enumerate(states):
        node.write(f"\r{state}".encode())
        assert node.all() == states[:number]
    node.write(b"\n")
    assert node.all() == states

    node.write(b"done\r")
    assert len(node.all()) == 4  # the line is not over: a line feed may follow, and does
    node.write(b"\n\r\nnext\r\r\n")
    assert node.all()[4:] == ["done", "", "next"]


@pytest.mark.parametrize(
    "size",
    [1, 2, 3, 5, 7, 64],
)
def test_lines_are_the_same_in_pieces_of_any_size(node, size):
    text = b"a\rb\r\n\r\rc\n\n\rd\r\re\r\n f\r"
    for start in range(0, len(text), size):
        node.write(text[start : start + size])
        node.all()
    node.exit()
    node.collect()

    assert node.all() == ["a", "b", "c", "", "d", "e", " f"]


def test_colours_are_left_out_and_hide_no_secret(node):
    token = node.run().token
    node.write(b"\x1b[1;32mdone\x1b[0m \x1b[2K\x1b]0;title\x07\xe4\xb8\xad\x1b[?25h\n")
    node.write(f"{token[:9]}\x1b[31m{token[9:]}\n".encode())

    assert node.all() == ["done 中", "*" * len(token)]


def test_a_ledger_that_counted_line_feeds_only_is_replaced(node):
    node.write(b"1\r2\r3\nend\n")
    node.log_folder().mkdir(parents=True, exist_ok=True)
    ledger = node.log_folder() / "lines.txt"
    ledger.write_text(f"{node.run().name} stdout 0 10 0 2 0\n")

    assert node.all() == ["1", "2", "3", "end"]


def test_level_start_and_length_choose_lines(node):
    node.write(b"debug a\ninfo b\nwarn c\nerror d\nunfin")
    assert node.all(DEBUG) == ["debug a", "info b", "warn c", "error d"]
    assert node.all(INFO) == ["info b", "warn c", "error d"]
    assert node.all(ERROR) == ["error d"]
    assert [node.logs.read(TASK, level, 0, 0).total for level in LEVELS] == [4, 3, 1]

    excerpt = node.read(
        1,
        INFO,
        length=1,
    )
    assert texts_of(excerpt) == ["warn c"]
    assert excerpt.total == 3
    assert excerpt.next == 2
    assert excerpt.left_out == 0

    beyond_end = node.read(7, INFO)
    assert beyond_end.lines == ()
    assert beyond_end.total == 3
    assert beyond_end.left_out == 0
    assert node.read(0, INFO, length=0).lines == ()

    node.write(b"ished \xff\x00 \xe4\xb8\xad\r\n")
    assert node.all()[4:] == ["unfinished \ufffd\x00 中"]


def test_roles_are_separate_or_merged_in_the_order_of_reading(node):
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
    assert node.all(role="host") == ["h1", "h2"]
    assert node.all(role="host.0") == ["h1", "h2"]
    with pytest.raises(NotFound) as refusal:
        node.read(role="host.1")
    assert refusal.value.reason == "ROLE_UNKNOWN"


def test_a_half_written_last_line_of_the_ledger_is_cut_off(node):
    node.write(b"one\n")
    node.all()
    with (node.log_folder() / "lines.txt").open("a") as ledger:
        ledger.write("bfia-a-guest.0 stdout 4 9")
    node.restart()
    node.write(b"two\n")

    assert node.all() == ["one", "two"]
    node.restart()
    assert node.all() == ["one", "two"]


# ---------------------------------------------------------------- engines and containers


def test_while_an_engine_is_down_the_copied_log_is_served_with_a_notice(node):
    node.write(b"one\n")
    node.all()
    node.write(b"two\n")

    node.engine.world.down = True
    excerpt = node.read()
    assert texts_of(excerpt) == ["one"]
    notice = "ENGINE_DOWN: the engine does not answer"
    assert excerpt.incomplete == f"guest.0: {notice}; host.0: {notice}"
    assert not excerpt.over

    node.engine.world.down = False
    assert node.all() == ["one", "two"]
    assert not node.read().incomplete


def test_the_log_of_a_removed_container_is_its_copy(node):
    node.write(b"one\n")
    node.all()
    node.engine.remove(node.run().name)
    node.change(
        "guest",
        status=RunStatus.FAILED,
        collect=OK,
    )

    excerpt = node.read(role="guest")

    assert texts_of(excerpt) == ["one"]
    assert excerpt.over


def test_a_log_is_not_complete_while_its_container_is_being_removed(node):
    node.write(b"one\n")
    node.all()
    node.write(b"two")
    node.exit()
    node.engine.save_logs(
        node.run().name,
        node.log_folder(),
    )
    node.engine.remove(node.run().name)
    assert not node.read(role="guest").over

    node.change("guest", collect=OK)

    assert node.all(role="guest") == ["one", "two"]
    assert node.read(role="guest").over
    files = {path.name for path in node.log_folder().iterdir()}
    assert files == {"stdout.log", "stderr.log", "lines.txt"}


def test_a_copy_is_not_made_more_often_than_its_size_allows(node, monkeypatch):
    ticks = itertools.count()

    def tick() -> float:
        return float(next(ticks))

    copies = []
    monkeypatch.setattr(node.engine, "save_logs", lambda *_: copies.append(tick()))
    logs = RunLogs(
        "n1",
        node.store,
        node.engine,
        node.workspace,
        tick,
    )

    for _ in range(100):
        logs.read(TASK, DEBUG, 0, None, "guest")

    # A copy takes two ticks here, and one tick in twenty may be used for copies.
    assert 2 <= len(copies) <= 12


def test_lines_keep_their_numbers_when_the_engine_drops_the_oldest(node):
    first = [f"line {number} of the first thousand" for number in range(1000)]
    second = [f"line {number} of those that come later" for number in range(500)]
    node.write("".join(f"{line}\n" for line in first).encode())
    assert node.all() == first

    node.write("".join(f"{line}\n" for line in second).encode())
    node.forget_beginning(20_000)
    assert node.all() == first + second

    node.exit()
    node.collect()
    assert node.all() == first + second
    assert node.all() == first + second


def test_lines_missing_on_the_engine_are_shown_once_as_a_gap(node):
    node.write(b"old\n" * 10)
    node.all()
    node.forget_beginning(40)
    node.write(b"new\n" * 3)

    lines = node.all()
    assert lines[:10] == ["old"] * 10
    assert "missing" in lines[10]
    assert lines[11:] == ["new"] * 3

    node.exit()
    node.collect()
    assert node.all() == lines
    assert node.all() == lines


def test_an_unwritable_folder_is_named_and_copied_logs_are_served(node, monkeypatch):
    node.write(b"one\n")
    assert node.all() == ["one"]
    monkeypatch.setattr(node.engine, "save_logs", raising(FULL_DISK))

    excerpt = node.read()

    assert texts_of(excerpt) == ["one"]
    assert "COPY_FAILED: No space left on device" in excerpt.incomplete


def test_a_log_whose_ledger_cannot_be_read_is_refused(node, monkeypatch):
    node.write(b"one\n")
    assert node.all() == ["one"]
    monkeypatch.setattr(data_logs, "read_ledger", raising(FULL_DISK))

    with pytest.raises(Busy, match="the logs cannot be read now: No space left") as refusal:
        node.read()
    assert refusal.value.reason == "LOGS_UNREADABLE"


def test_a_file_that_shrinks_while_it_is_read_ends_there(tmp_path):
    file = tmp_path / "stdout.log"
    file.write_bytes(b"one\n")
    assert [line.head for line in log_lines.read_lines([file], 4, 9)] == []

    copy = tmp_path / "new.log"
    copy.touch()
    log_copies.append_end(file, copy)
    assert file.read_bytes() == b"one\n"

    copy.write_bytes(b"two\nthree\n")
    assert not log_copies.continues(file, copy)


# ---------------------------------------------------------------- streams of lines

UNREADABLE = raising(Busy("the logs cannot be read now", reason="LOGS_UNREADABLE"))


def read_two_of_three(start: int, length: int | None) -> Excerpt:
    """Return up to two lines of a log of three, as `RunLogs` does with a full response."""
    numbers = range(start, min(start + 2, 3))
    lines = tuple(LogLine(f"line {number}", "guest.0", "stdout") for number in numbers)
    return Excerpt(
        lines,
        start,
        3,
        left_out=3 - start - len(lines),
        parties=(),
    )


def test_a_log_as_text_is_complete_or_says_why_not():
    text = b"[LOGS_UNREADABLE: the logs cannot be read now]\n"
    assert list(streams.log_text(UNREADABLE, 0, 5)) == [text]

    text = b"".join(streams.log_text(read_two_of_three, 0, 9))
    assert text == b"line 0\nline 1\nline 2\n"


def test_a_follower_is_told_why_no_more_lines_come():
    ((events, waits),) = streams.follow_lines(
        UNREADABLE,
        a_run,
        0,
    )
    assert b"LOGS_UNREADABLE" in b"".join(events)
    assert not waits

    events, waits = next(streams.follow_lines(read_two_of_three, a_run, 0))
    assert len(events) == 2
    assert not waits  # the last line follows without a pause


# ---------------------------------------------------------------- secrets and limits


def test_a_runs_secrets_are_never_shown(node):
    secrets = (node.run().run_id, node.run().token)
    run_id, token = secrets
    node.write(f"config.token={token}\nhttp://gateway/callback?run={run_id}&a={run_id}\n".encode())
    for secret in secrets:
        # The limit of a line's length is within the secret.
        node.write(b"x" * (LONGEST_LINE - 16) + secret.encode() + b"y" * 100 + b"\n")

    text = "\n".join(node.all())

    assert "config.token=****" in text
    assert "callback?run=****" in text
    for secret in secrets:
        assert secret not in text
        assert secret[:12] not in text


def test_an_endless_line_is_cut_with_a_count(node):
    node.write(b"before\n" + b"x" * 3_000_000 + b"\nafter\n")

    before, cut_line, after = node.all()

    assert before == "before"
    assert after == "after"
    assert cut_line.startswith("x" * LONGEST_LINE + "…")
    assert cut_line.endswith("bytes left out]")
    assert len(cut_line) < LONGEST_LINE + 100


def test_a_response_is_limited_in_lines(node):
    node.write(b"short\n" * (MOST_LINES + 5))

    excerpt = node.read(role="guest")

    assert len(excerpt.lines) == MOST_LINES
    assert excerpt.left_out == 5
    assert len(node.all(role="guest")) == MOST_LINES + 5


def test_a_response_is_limited_in_bytes(node):
    node.write((b"y" * 50_000 + b"\n") * 30, "host")

    excerpt = node.read(role="host")

    assert sum(len(text) for text in texts_of(excerpt)) <= MOST_BYTES
    assert len(excerpt.lines) + excerpt.left_out == 30
    assert len(node.all(role="host")) == 30


# ---------------------------------------------------------------- no log at this node


def test_a_run_that_never_had_a_container_has_no_lines_and_no_files(node):
    shutil.rmtree(
        node.log_folder(),
        ignore_errors=True,
    )
    node.change(
        "guest",
        status=RunStatus.WAITING,
        launch=a_run().launch,
    )

    assert node.logs.read(TASK, DEBUG, 0, 0, "guest").total == 0
    assert not node.log_folder().exists()


def test_a_task_at_another_node_is_refused_with_that_node(node):
    spec = a_spec(
        "b",
        {
            "guest": ("n1",),
            "host": ("n2",),
        },
        job_id="job-2",
    )
    job = a_job(
        spec=spec,
        task_roles={"b": ["host"]},
        dag="b",
    )
    node.store.jobs.add(job, "")

    with pytest.raises(NotFound, match="ask at n2") as refusal:
        node.logs.read("task_b", DEBUG, 0, 0)
    assert refusal.value.reason == "TASK_UNKNOWN"


def test_a_future_task_has_no_log_lines(node):
    node.store.jobs.add(
        a_job(
            spec=a_spec("c", job_id="job-3"),
            dag="c",
        ),
        "",
    )

    excerpt = node.logs.read("task_c", DEBUG, 0)

    assert excerpt.lines == ()
    assert excerpt.total == 0
    assert excerpt.over is False


def test_a_log_kept_by_another_gateway_names_that_gateway(node):
    def elsewhere(owner: str) -> str:
        return f"the gateway http://of-{owner or 'nobody'}"

    node.write(b"here\n")
    node.restart(elsewhere)
    node.change("guest", owner="other")

    with pytest.raises(NotFound) as refusal:
        node.read()
    assert refusal.value.reason == "LOG_ELSEWHERE"
    assert "http://of-other of this node" in refusal.value.message
    with pytest.raises(NotFound) as refusal:
        node.lines_of_stream("guest", "stdout")
    assert refusal.value.reason == "LOG_ELSEWHERE"
    assert "http://of-other of this node" in refusal.value.message


def test_a_log_whose_owner_is_gone_is_read_here(node):
    def elsewhere(owner: str) -> str:
        if owner:
            return ""
        return "another gateway"

    node.write(b"here\n")
    node.restart(elsewhere)
    node.change("guest", owner="other")

    assert node.all(role="guest") == ["here"]


def test_deleted_logs_are_empty_and_not_created_again(node):
    for role in ROLES:
        node.write(b"line\n", role)
        node.exit(role)
        node.collect(role)
    assert node.read().total == 2

    for role in ROLES:
        shutil.rmtree(node.log_folder(role))

    assert node.read().total == 0
    assert node.read().over
    assert not any(node.log_folder(role).exists() for role in ROLES)


# ---------------------------------------------------------------- any order of steps

PIECES = [b"info i", b"debug d", b"error e", b"plain", b"\n", b"\n", b"\r\n", b"{}"]
OUTPUTS = st.tuples(
    st.sampled_from(ROLES),
    st.sampled_from(["stdout", "stderr"]),
    st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join),
)
STEPS = st.sampled_from(["read", "read guest", "restart", "exit guest", "exit host", "collect"])
LAST_STEPS = ["exit guest", "exit host", "read", "collect", "read"]


class History:
    """Everything written to a node's logs, and everything read from them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.written: dict[tuple[str, str], bytes] = defaultdict(bytes)  # by role and stream
        self.lines: dict[tuple[Level, str], list[str]] = defaultdict(list)  # by level and role

    def do(self, step: Any) -> None:
        match step:
            case (role, stream, text):
                self.write(role, stream, text)
            case "restart":
                self.node.restart()
            case "exit guest" | "exit host":
                role = step.removeprefix("exit ")
                if not self.node.has_exited(role):
                    self.node.exit(role)
            case "collect":
                for role in ROLES:
                    if self.node.has_exited(role):
                        self.node.collect(role)
            case "read guest":
                self.read_and_compare("guest")
            case "read":
                for role in ("", *ROLES):
                    self.read_and_compare(role)

    def write(
        self,
        role: str,
        stream: str,
        text: bytes,
    ) -> None:
        if not self.node.has_exited(role):
            self.node.write(text, role, stream)
            self.written[role, stream] += text

    def read_and_compare(self, role: str) -> None:
        """Fail unless a role's lines of each level begin with those read before."""
        for level in LEVELS:
            before = self.lines[level, role]
            lines = self.node.all(level, role)
            assert lines[: len(before)] == before
            assert self.node.logs.read(TASK, level, 0, 0, role).total == len(lines)
            self.lines[level, role] = lines

    def check_nothing_is_lost(self) -> None:
        for (role, stream), text in self.written.items():
            lines = text.decode().split("\n")
            if lines[-1] == "":
                lines.pop()
            expected = [line.rstrip("\r") for line in lines]
            assert self.node.lines_of_stream(role, stream) == expected


@settings(max_examples=25)
@given(st.lists(st.one_of(OUTPUTS, STEPS), max_size=25))
def test_a_line_never_changes_its_number_and_none_is_lost(tmp_path_factory, steps):
    node = Node(tmp_path_factory.mktemp("node"))
    history = History(node)
    try:
        for step in [*steps, *LAST_STEPS]:
            history.do(step)
        history.check_nothing_is_lost()
        assert node.read().over
    finally:
        node.close()
