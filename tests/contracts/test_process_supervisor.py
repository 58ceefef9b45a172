"""What only the engine of local processes promises: nothing runs on unseen, nothing foreign is touched."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import files, logs
from engines.base import (
    CommandNotFound,
    CreateFailed,
    EngineDown,
    EngineError,
    Exited,
    LaunchSpec,
    Limits,
    Missing,
    NoSpace,
    NotSupported,
    Running,
    labels,
)
from engines.process import engine as engines
from engines.process import run_directory, supervisor
from engines.process.engine import ProcessEngine, Spawner
from engines.process.run_directory import RunDirectory
from tests.builders import raising
from tests.contracts.engine_acts import (
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    output_of,
    python,
    shell,
    wait_for,
    wait_for_exit,
    wait_for_output,
)
from tests.contracts.harnesses import ProcessHarness

ROOT = Path(__file__).parents[2]

FAMILY = shell(
    "sleep 600 & echo $!; setsid sh -c 'echo $$; exec sleep 600' & setsid sh -c 'setsid sleep 600 & echo $!' ; "
    "echo ready; wait"
)
"""children in the session, in a session of their own, and one whose parent is gone; it tells their numbers"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ProcessHarness]:
    with contextlib.closing(ProcessHarness(tmp_path / "runs")) as harness:
        yield harness


@pytest.fixture
def engine(harness: ProcessHarness) -> ProcessEngine:
    return harness.engine()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that has nothing to do with any run and leads a session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def record(
    harness: ProcessHarness,
    name: str,
    file: str,
) -> dict:
    return dict(json.loads((harness.root / name / file).read_text()))


def alive(pid: int) -> bool:
    return supervisor.start_time(pid) is not None


def gone(pids: list[int]) -> None:
    wait_for(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}")


def family(harness: ProcessHarness, engine: ProcessEngine) -> tuple[str, list[int]]:
    name = launch_run(harness, engine, FAMILY).name
    wait_for_output(engine, name, b"ready")
    lines = wait_for(
        lambda: (found := engine.logs(name).stdout.split()) and len(found) == 4 and found,
        "four lines",
    )
    pids = [int(line) for line in lines if line.isdigit()]
    pids.append(record(harness, name, supervisor.CHILD)["pid"])
    assert all(alive(pid) for pid in pids)
    return name, pids


# ------------------------------------------------------------ nothing stays behind


def test_gpus_cannot_be_set_aside_for_a_process(harness, engine):
    assert engine.capacity().gpu == 0
    with pytest.raises(NotSupported, match="cannot set GPUs aside"):
        launch_run(harness, engine, exits(0), limits=Limits(gpu=1))


def test_stopping_ends_the_whole_family(harness, engine):
    name, pids = family(harness, engine)
    engine.stop(name, 30)
    assert wait_for_exit(engine, name).signal == signal.SIGTERM
    gone(pids)


def test_what_a_run_leaves_behind_ends_with_it(harness, engine):
    gone([int(output_of(harness, engine, shell("setsid sleep 600 & echo $!; exit 3"), 3))])


def test_a_killed_supervisor_ends_the_run(harness, engine):
    heard = ExitListener()
    engine.watch(heard)
    name, pids = family(harness, engine)
    os.kill(record(harness, name, supervisor.SUPERVISOR)["pid"], signal.SIGKILL)
    heard.wait_for(name)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert exit_.started_at is not None
    assert exit_.code == 137
    assert exit_.signal == 9
    gone([pids[0], pids[-1]])  # what has left the session, nobody is left to find


def removed(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    engine.remove(name)


def cut_short(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    (harness.root / name).rename(harness.root / f".gone-{name}-1")
    assert engine.probe(name) == Missing()
    harness.engine().watch(ExitListener())


def deleted(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    keeper = record(harness, name, supervisor.SUPERVISOR)["pid"]
    shutil.rmtree(harness.root / name)
    os.kill(keeper, signal.SIGCHLD)  # it looks now and then; this makes it look now
    gone([keeper])


@pytest.mark.parametrize("remove", [removed, cut_short, deleted])
def test_a_run_that_is_removed_in_any_way_leaves_no_process(harness, engine, remove):
    name, pids = family(harness, engine)
    remove(harness, engine, name)
    gone(pids)
    assert engine.probe(name) == Missing()
    assert list(harness.root.iterdir()) == []


# ------------------------------------------------------------ nothing foreign is touched


def prepared(harness: ProcessHarness, spec: LaunchSpec) -> Path:
    """Create the directory of a run that nobody has claimed."""
    run = RunDirectory(harness.root / spec.name)
    run.create(spec.labels)
    return run.path


def forged(
    harness: ProcessHarness,
    pid: int,
    **changes: object,
) -> str:
    """Lay out a run whose numbers have gone to another process."""
    spec = a_spec(harness, WAITS)
    directory = prepared(harness, spec)
    start = supervisor.start_time(pid) or 0
    former = {
        **supervisor.identity(pid),
        "start": start if changes else start - 1,
        **changes,
    }
    (directory / supervisor.SUPERVISOR).write_text(json.dumps(former))
    (directory / supervisor.CHILD).write_text(json.dumps({**former, "started": 1.7e9}))
    return spec.name


@pytest.mark.parametrize(
    "changes", [{}, {"boot": "before"}], ids=["its number was recycled", "before the last boot"]
)
def test_a_recycled_number_is_not_killed(harness, engine, bystander, changes):
    name = forged(harness, bystander.pid, **changes)
    engine.stop(name, 0.1)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert exit_.code == 137
    engine.remove(name)
    assert bystander.poll() is None


# ------------------------------------------------------------ the gateway dies


GATEWAY = """
import os, sys
from pathlib import Path
from engines.base import LaunchSpec
from engines.process.engine import ProcessEngine

engine = ProcessEngine(node="alpha", installation="first", images={"base:1": ("sh",)}, run_root=Path(sys.argv[1]))
labels = {"bfia.node": "alpha", "bfia.installation": "first"}
for name, script in (("goes-on", sys.argv[2]), ("ends", sys.argv[3])):
    command = ("sh", "-c", script)
    engine.launch(LaunchSpec(name=name, image="base:1", environment={}, labels=labels, command=command))
os._exit(9)
"""


def test_runs_outlive_the_gateway_and_are_taken_up(harness):
    scripts = [WAITS.command[2], "echo out; exit 7"]
    done = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(harness.root), *scripts],
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 9
    heard, engine = ExitListener(), harness.engine()
    engine.watch(heard)
    heard.wait_for("ends")
    assert wait_for_exit(engine, "ends").code == 7
    assert isinstance(engine.probe("goes-on"), Running)
    engine.stop("goes-on", 30)
    heard.wait_for("goes-on")
    assert wait_for_exit(engine, "goes-on").code == 143


def test_a_run_that_was_claimed_but_never_started_can_be_launched(harness, engine):
    spec = a_spec(harness, exits(3))
    prepared(harness, spec)
    assert engine.probe(spec.name) == Missing()
    engine.launch(spec)
    assert wait_for_exit(engine, spec.name).code == 3


def supervise(directory: Path) -> str:
    """Run a supervisor by itself; return its report."""
    with contextlib.closing(Spawner()) as spawner:
        command = {
            "command": ["/bin/false"],
            "environment": {},
            "memory": None,
            "cores": None,
        }
        descriptor, report = spawner.start(directory, command)
        os.close(descriptor)
        return report


def test_a_second_supervisor_and_one_of_a_removed_run_do_nothing(harness, engine, tmp_path):
    name = launch_run(harness, engine, shell("echo once; exec sleep 600")).name
    wait_for_output(engine, name, b"once")
    assert supervise(harness.root / name) == supervisor.TAKEN
    assert engine.logs(name).stdout == b"once\n"
    assert isinstance(engine.probe(name), Running)
    assert supervise(tmp_path / "gone").startswith(supervisor.REFUSED)
    assert not (tmp_path / "gone").exists()


# ------------------------------------------------------------ commands and limits


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        ("#!/bin/sh\nexit 8\n", 0o755, None),
        ("#!/bin/sh\n", 0o644, CommandNotFound),
        ("#!/no/such/interpreter\n", 0o755, CommandNotFound),
        ("neither a script nor a program", 0o755, CreateFailed),
    ],
)
def test_a_program_starts_in_its_folder_and_a_failed_start_leaves_nothing(
    tmp_path, monkeypatch, text, mode, error
):
    (tmp_path / "vendor").write_text(text)
    (tmp_path / "vendor").chmod(mode)
    monkeypatch.chdir(tmp_path)
    images, runs = {"it:1": ["./vendor"]}, tmp_path / "runs"
    spec = LaunchSpec("run-1", "it:1", {}, labels("alpha", "first", "j", "t", "guest", 0, 1))
    engine = ProcessEngine(
        node="alpha",
        installation="first",
        images=images,
        run_root=runs,
    )
    with contextlib.closing(engine):
        if error is None:
            engine.launch(spec)
            assert wait_for_exit(engine, "run-1").code == 8
            return
        with pytest.raises(error, match="vendor"):
            engine.launch(spec)
        assert engine.probe("run-1") == Missing()
        assert not (runs / "run-1").exists()


def test_cores_are_given_in_turn(harness, engine):
    tells = python("import os; print(sorted(os.sched_getaffinity(0)))")
    present = sorted(os.sched_getaffinity(0))
    given = []
    for _ in range(len(present)):
        given += json.loads(output_of(harness, engine, tells, limits=Limits(cpu=1)))
    assert sorted(given) == present


def test_a_run_gets_neither_environment_nor_files_of_the_gateway(harness, engine, monkeypatch):
    monkeypatch.setenv("BFIA_SECRET", "leaked")
    name = launch_run(harness, engine, shell("cat /proc/self/environ /proc/$PPID/environ")).name
    assert wait_for_exit(engine, name).code == 0
    logs = engine.logs(name).stdout
    assert b"PATH" in logs
    assert b"leaked" not in logs
    for file in (supervisor.SPEC, supervisor.SUPERVISOR, supervisor.STDOUT):
        assert (harness.root / name / file).stat().st_mode & 0o077 == 0
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        listed = output_of(harness, engine, python("import os; print(os.listdir('/proc/self/fd'))"))
    assert listed == b"['0', '1', '2', '3']\n"  # 3 is the listed folder itself


def test_what_a_run_prints_counts_as_its_disk(harness, engine):
    name = launch_run(harness, engine, shell("seq 200000; echo ready; sleep 600")).name
    wait_for_output(engine, name, b"ready")
    assert (
        engine.disk_use(name, 10).size
        >= (harness.root / name / supervisor.STDOUT).stat().st_size
        > 1_000_000
    )


# ------------------------------------------------------------ a full disk, for which a limit on files stands


def test_an_exit_on_a_full_disk_is_recorded_once_there_is_room(harness, engine):
    act = shell("trap 'exit 0' USR1; echo ready; while :; do sleep 600 & wait; done")
    name = launch_run(harness, engine, act).name
    wait_for_output(engine, name, b"ready")
    keeper, child = (
        record(harness, name, f)["pid"] for f in (supervisor.SUPERVISOR, supervisor.CHILD)
    )
    before = resource.prlimit(keeper, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    os.kill(child, signal.SIGUSR1)
    wait_for(
        lambda: not os.path.exists(f"/proc/{child}") and supervisor.stat(keeper)[0] in "SZ",
        "its end",
    )
    assert isinstance(engine.probe(name), Running)
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, before)
    assert wait_for_exit(engine, name).code == 0


# ------------------------------------------------------------ what fails around it


def test_the_process_that_forks_is_begun_anew(harness, engine):
    launch_run(harness, engine, exits(0))
    server = engine._spawner._server
    assert server is not None
    server.kill()
    server.wait()
    output_of(harness, engine, exits(3), 3)


@pytest.mark.parametrize(
    ("report", "kind", "words"),
    [
        ("refused 13 Permission denied", EngineError, "Permission denied"),
        ("failed 28 no space", NoSpace, "no space"),
        ("failed 7 too long", CreateFailed, "too long"),
        ("failed 24 too many open files", EngineDown, "too many"),
        ("refused 11 no more processes", EngineDown, "no more"),
        ("", CreateFailed, "the run's supervisor did not start it: no output"),
    ],
)
def test_what_a_supervisor_reports_is_said(harness, engine, monkeypatch, report, kind, words):
    with subprocess.Popen(["sleep", "600"] if not report else ["true"]) as process:
        monkeypatch.setattr(
            engine._spawner, "start", lambda *_: (os.pidfd_open(process.pid), report)
        )
        spec = a_spec(harness, exits(0))
        with pytest.raises(kind, match=words):
            engine.launch(spec)
        assert not (harness.root / spec.name).exists()


def test_without_descriptors_or_processes_a_run_is_to_be_launched_later(
    harness, engine, monkeypatch
):
    spec, kept = a_spec(harness, exits(3)), []

    def not_forked(_: Path, connection: socket.socket) -> None:
        kept.append(connection.dup())
        kept[-1].send(b"-")

    with monkeypatch.context() as patch, pytest.raises(EngineDown, match="Too many open files"):
        patch.setattr(socket, "socketpair", raising(OSError(errno.EMFILE, "Too many open files")))
        engine.launch(spec)
    with monkeypatch.context() as patch, pytest.raises(EngineDown, match="could not be forked"):
        patch.setattr(engine._spawner, "_request", not_forked)
        engine.launch(spec)
    kept[0].close()
    engine.launch(spec)
    assert wait_for_exit(engine, spec.name).code == 3


def test_a_supervisor_that_cannot_be_forked_or_never_reports(tmp_path, monkeypatch):
    spawner, kept = Spawner(), []
    monkeypatch.setattr(spawner, "_request", lambda _, connection: None)  # the other end is closed
    with pytest.raises(OSError):
        spawner.start(tmp_path, {})

    def silent(_: Path, connection: socket.socket) -> None:
        kept.append(connection.dup())
        socket.send_fds(kept[-1], [b"-"], [os.pidfd_open(os.getpid())])

    monkeypatch.setattr(engines, "REPORT_TIMEOUT", 0.05)
    monkeypatch.setattr(spawner, "_request", silent)
    descriptor, report = spawner.start(tmp_path, {})
    os.close(descriptor)
    kept[0].close()
    assert report == ""


def test_a_run_whose_supervisor_does_not_end_is_killed_past_it(harness, engine, monkeypatch):
    name = launch_run(harness, engine, WAITS).name
    pids = [
        record(harness, name, file)["pid"] for file in (supervisor.SUPERVISOR, supervisor.CHILD)
    ]
    monkeypatch.setattr(supervisor, "KILL_ALL", 0)  # a signal that it does not hear
    monkeypatch.setattr(run_directory, "KILL_TIMEOUT", 0.01)
    engine.stop(name, 0)
    gone(pids)


def test_what_begins_after_a_watch_was_closed_is_not_waited_for():
    watch = run_directory.Exits(print)
    watch.close()
    descriptor = os.pidfd_open(os.getpid())
    watch.add("late", descriptor)
    with pytest.raises(OSError):  # it was closed
        os.fstat(descriptor)


def test_a_folder_without_the_right_to_write_and_a_bound_of_memory(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(EngineDown, match="no right to write"):
        engine.check()
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(engines, "CONTROL_GROUP", tmp_path / "memory.max")
    assert engine.capacity().memory == 1048576


def test_a_folder_that_cannot_be_removed_says_why(tmp_path, monkeypatch):
    def too_deep(_: Path) -> None:
        raise RecursionError

    monkeypatch.setattr(files.shutil, "rmtree", too_deep)
    ran = lambda *_, **__: subprocess.CompletedProcess([], 1, "", "rm: Operation not permitted")  # noqa: E731
    monkeypatch.setattr(files.subprocess, "run", ran)
    with pytest.raises(OSError, match="Operation not permitted"):
        files.remove(tmp_path)


def test_of_a_long_log_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(logs, "CHUNK", 2)
    assert logs.last([b"abc", b"def", b"ghi"], 2) == b"hi"


def test_what_a_registry_would_offer_is_what_is_here(harness, engine):
    spec = a_spec(harness, exits(0))
    assert engine.registry_digest(spec.image, 1.0) == engine.image_digest(spec.image)
