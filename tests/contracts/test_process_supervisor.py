"""The engine of local processes: no process of a run is left, and no other process is touched."""

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

# Children in the session, in a session of their own, and one whose parent is gone. The run prints
# their process ids.
FAMILY = shell(
    "sleep 600 & echo $!; setsid sh -c 'echo $$; exec sleep 600' & "
    "setsid sh -c 'setsid sleep 600 & echo $!' ; echo ready; wait"
)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ProcessHarness]:
    with contextlib.closing(ProcessHarness(tmp_path / "runs")) as harness:
        yield harness


@pytest.fixture
def engine(harness: ProcessHarness) -> ProcessEngine:
    return harness.engine()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no run and leads a session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def read_record(
    harness: ProcessHarness,
    name: str,
    file: str,
) -> dict:
    """Return a record in a run's folder."""
    return dict(json.loads((harness.root / name / file).read_text()))


def pid_in(
    harness: ProcessHarness,
    name: str,
    file: str,
) -> int:
    """Return the process id in a record of a run's folder."""
    return int(read_record(harness, name, file)["pid"])


def is_alive(pid: int) -> bool:
    return supervisor.start_time(pid) is not None


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(is_alive(pid) for pid in pids), f"the end of {pids}")


def launch_family(
    harness: ProcessHarness,
    engine: ProcessEngine,
) -> tuple[str, list[int]]:
    """Launch a run with four processes; return its name and their ids, the main process last."""
    name = launch_run(harness, engine, FAMILY).name
    wait_for_output(engine, name, b"ready")

    def complete_output() -> list[bytes] | None:
        lines = engine.logs(name).stdout.split()
        return lines if len(lines) == 4 else None

    lines = wait_for(complete_output, "four lines")
    pids = [int(line) for line in lines if line.isdigit()]
    pids.append(pid_in(harness, name, supervisor.CHILD))
    assert all(is_alive(pid) for pid in pids)
    return name, pids


# ------------------------------------------------------------ nothing stays behind


def test_gpus_cannot_be_set_aside_for_a_process(harness, engine):
    assert engine.capacity().gpu == 0
    with pytest.raises(NotSupported, match="cannot set GPUs aside"):
        launch_run(
            harness,
            engine,
            exits(0),
            limits=Limits(gpu=1),
        )


def test_stopping_ends_the_whole_family(harness, engine):
    name, pids = launch_family(harness, engine)
    engine.stop(name, 30)
    assert wait_for_exit(engine, name).signal == signal.SIGTERM
    wait_until_gone(pids)


def test_background_processes_of_a_run_end_with_it(harness, engine):
    pid = output_of(harness, engine, shell("setsid sleep 600 & echo $!; exit 3"), 3)

    wait_until_gone([int(pid)])


def test_a_killed_supervisor_ends_the_run(harness, engine):
    reported = ExitListener()
    engine.watch(reported)
    name, pids = launch_family(harness, engine)

    os.kill(
        pid_in(harness, name, supervisor.SUPERVISOR),
        signal.SIGKILL,
    )

    reported.wait_for(name)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert exit_.started_at is not None
    assert exit_.code == 137
    assert exit_.signal == 9
    wait_until_gone(
        [pids[0], pids[-1]]
    )  # only the supervisor could find processes of other sessions


def remove_run(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    engine.remove(name)


def interrupt_removal(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    """Leave the run as a gateway does that was killed during the removal; then start the next."""
    (harness.root / name).rename(harness.root / f".gone-{name}-1")
    assert engine.probe(name) == Missing()
    harness.engine().watch(ExitListener())


def delete_folder(
    harness: ProcessHarness,
    engine: ProcessEngine,
    name: str,
) -> None:
    keeper = pid_in(harness, name, supervisor.SUPERVISOR)
    shutil.rmtree(harness.root / name)
    os.kill(keeper, signal.SIGCHLD)  # it checks its folder now and then; this makes it check now
    wait_until_gone([keeper])


@pytest.mark.parametrize(
    "remove",
    [remove_run, interrupt_removal, delete_folder],
)
def test_a_run_that_is_removed_in_any_way_leaves_no_process(harness, engine, remove):
    name, pids = launch_family(harness, engine)

    remove(harness, engine, name)

    wait_until_gone(pids)
    assert engine.probe(name) == Missing()
    assert list(harness.root.iterdir()) == []


# ------------------------------------------------------------ nothing foreign is touched


def prepare_folder(harness: ProcessHarness, spec: LaunchSpec) -> Path:
    """Create the folder of a run without a supervisor."""
    run = RunDirectory(harness.root / spec.name)
    run.create(spec.labels)
    return run.path


def forge_run(
    harness: ProcessHarness,
    pid: int,
    **fields: object,
) -> str:
    """Lay out a run whose process ids now belong to another process; return its name.

    ``fields`` replace fields of the process's identity; without any, the process is younger than
    the run's.
    """
    spec = a_spec(harness, WAITS)
    directory = prepare_folder(harness, spec)
    start = supervisor.start_time(pid) or 0
    if not fields:
        start -= 1
    identity = {**supervisor.identity(pid), "start": start, **fields}
    (directory / supervisor.SUPERVISOR).write_text(json.dumps(identity))
    (directory / supervisor.CHILD).write_text(json.dumps({**identity, "started": 1.7e9}))
    return spec.name


@pytest.mark.parametrize(
    "fields", [{}, {"boot": "before"}], ids=["its number was recycled", "before the last boot"]
)
def test_a_recycled_number_is_not_killed(harness, engine, bystander, fields):
    name = forge_run(harness, bystander.pid, **fields)

    engine.stop(name, 0.1)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert exit_.code == 137

    engine.remove(name)

    assert bystander.poll() is None


# ------------------------------------------------------------ the gateway dies


# Launches two runs and dies: the folder of runs and two shell texts are its arguments.
GATEWAY = """
import os, sys
from pathlib import Path
from engines.base import LaunchSpec
from engines.process.engine import ProcessEngine

engine = ProcessEngine(
    node="alpha", installation="first", images={"base:1": ("sh",)}, run_root=Path(sys.argv[1])
)
labels = {"bfia.node": "alpha", "bfia.installation": "first"}
for name, script in (("goes-on", sys.argv[2]), ("ends", sys.argv[3])):
    command = ("sh", "-c", script)
    spec = LaunchSpec(
        name=name, image="base:1", environment={}, labels=labels, command=command
    )
    engine.launch(spec)
os._exit(9)
"""


def test_runs_outlive_the_gateway_and_are_taken_up(harness):
    texts = [WAITS.command[2], "echo out; exit 7"]
    gateway = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(harness.root), *texts],
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert gateway.returncode == 9

    reported = ExitListener()
    engine = harness.engine()
    engine.watch(reported)

    reported.wait_for("ends")
    assert wait_for_exit(engine, "ends").code == 7
    assert isinstance(engine.probe("goes-on"), Running)
    engine.stop("goes-on", 30)
    reported.wait_for("goes-on")
    assert wait_for_exit(engine, "goes-on").code == 143


def test_a_run_that_was_claimed_but_never_started_can_be_launched(harness, engine):
    spec = a_spec(harness, exits(3))
    prepare_folder(harness, spec)
    assert engine.probe(spec.name) == Missing()
    engine.launch(spec)
    assert wait_for_exit(engine, spec.name).code == 3


def supervise(directory: Path) -> str:
    """Run a supervisor by itself; return its report. Without a report, it is killed."""
    with contextlib.closing(Spawner()) as spawner:
        command = {
            "command": ["/bin/false"],
            "environment": {},
            "memory": None,
            "cores": None,
        }
        descriptor, report = spawner.start(directory, command)
        if not report:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
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
    spec = LaunchSpec(
        "run-1",
        "it:1",
        {},
        labels(
            "alpha",
            "first",
            "j",
            "t",
            "guest",
            0,
            1,
        ),
    )
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


def test_cores_are_assigned_in_turn(harness, engine):
    prints_cores = python("import os; print(sorted(os.sched_getaffinity(0)))")
    cores = sorted(os.sched_getaffinity(0))

    assigned = []
    for _ in cores:
        output = output_of(
            harness,
            engine,
            prints_cores,
            limits=Limits(cpu=1),
        )
        assigned += json.loads(output)

    assert sorted(assigned) == cores


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


def test_the_output_of_a_run_counts_as_its_disk(harness, engine):
    name = launch_run(harness, engine, shell("seq 200000; echo ready; sleep 600")).name
    wait_for_output(engine, name, b"ready")

    size = engine.disk_use(name, 10).size

    log_size = (harness.root / name / supervisor.STDOUT).stat().st_size
    assert log_size > 1_000_000
    assert size >= log_size


# ------------------------------------------------------------ a full disk: a limit on file sizes


def test_an_exit_on_a_full_disk_is_recorded_once_there_is_room(harness, engine):
    act = shell("trap 'exit 0' USR1; echo ready; while :; do sleep 600 & wait; done")
    name = launch_run(harness, engine, act).name
    wait_for_output(engine, name, b"ready")
    keeper = pid_in(harness, name, supervisor.SUPERVISOR)
    child = pid_in(harness, name, supervisor.CHILD)
    usual_limit = resource.prlimit(
        keeper,
        resource.RLIMIT_FSIZE,
        (0, resource.RLIM_INFINITY),
    )

    def is_waiting_for_room() -> bool:
        is_over = not os.path.exists(f"/proc/{child}")
        return is_over and supervisor.stat(keeper)[0] in "SZ"  # sleeping, or ended

    os.kill(child, signal.SIGUSR1)
    wait_for(is_waiting_for_room, "its end")
    assert isinstance(engine.probe(name), Running)

    resource.prlimit(keeper, resource.RLIMIT_FSIZE, usual_limit)

    assert wait_for_exit(engine, name).code == 0


# ------------------------------------------------------------ failures around a run


def forking_process(
    harness: ProcessHarness,
    engine: ProcessEngine,
) -> int:
    """Return the id of the process that forks the supervisors of an engine."""
    name = launch_run(harness, engine, WAITS).name
    keeper = pid_in(harness, name, supervisor.SUPERVISOR)
    return int(supervisor.stat(keeper)[1])  # its parent


def test_the_process_that_forks_is_replaced_when_it_ended(harness, engine):
    pid = forking_process(harness, engine)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone([pid])

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
def test_the_report_of_a_supervisor_is_passed_on(
    harness,
    engine,
    monkeypatch,
    report,
    kind,
    words,
):
    spec = a_spec(harness, exits(0))
    command = ["true"] if report else ["sleep", "600"]  # without a report, it has not ended
    with subprocess.Popen(command) as process:

        def start(*_: object) -> tuple[int, str]:
            return os.pidfd_open(process.pid), report

        monkeypatch.setattr(engine._spawner, "start", start)

        with pytest.raises(kind, match=words):
            engine.launch(spec)
        assert not (harness.root / spec.name).exists()


def test_a_launch_without_free_descriptors_can_be_repeated(harness, engine, monkeypatch):
    no_descriptor = raising(OSError(errno.EMFILE, "Too many open files"))
    spec = a_spec(harness, exits(3))

    with monkeypatch.context() as patch, pytest.raises(EngineDown, match="Too many open files"):
        patch.setattr(socket, "socketpair", no_descriptor)
        engine.launch(spec)
    engine.launch(spec)

    assert wait_for_exit(engine, spec.name).code == 3


def test_a_launch_for_which_no_process_was_forked_can_be_repeated(harness, engine):
    spec = a_spec(harness, exits(3))
    pid = forking_process(harness, engine)
    # Without a free descriptor, the process that forks cannot take the request, and ends.
    resource.prlimit(
        pid,
        resource.RLIMIT_NOFILE,
        (0, 0),
    )

    with pytest.raises(EngineDown, match="could not be forked"):
        engine.launch(spec)
    assert engine.probe(spec.name) == Missing()
    wait_until_gone([pid])
    engine.launch(spec)

    assert wait_for_exit(engine, spec.name).code == 3


def test_a_supervisor_that_cannot_be_forked_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")  # instead of the process that forks

    with contextlib.closing(Spawner()) as spawner, pytest.raises(OSError):
        spawner.start(tmp_path, {})


def test_a_supervisor_that_never_reports_has_an_empty_report(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / supervisor.OWN_LOG)  # its opening waits for a reader, so for ever
    monkeypatch.setattr(engines, "REPORT_TIMEOUT", 0.05)

    assert supervise(tmp_path) == ""


def test_a_supervisor_whose_connection_breaks_leaves_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr(socket.socket, "makefile", raising(ConnectionResetError("by its end")))
    before = set(os.listdir("/proc/self/fd"))

    assert supervise(tmp_path) == ""

    # Descriptors of other tests' objects may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_run_whose_supervisor_does_not_end_is_killed_without_it(harness, engine, monkeypatch):
    name = launch_run(harness, engine, WAITS).name
    pids = [pid_in(harness, name, file) for file in (supervisor.SUPERVISOR, supervisor.CHILD)]
    monkeypatch.setattr(supervisor, "KILL_ALL", 0)  # signal 0 is not delivered
    monkeypatch.setattr(run_directory, "KILL_TIMEOUT", 0.01)

    engine.stop(name, 0)

    wait_until_gone(pids)


def test_a_closed_watch_waits_for_no_further_run():
    watch = run_directory.Exits(print)
    watch.close()
    descriptor = os.pidfd_open(os.getpid())
    watch.add("late", descriptor)
    with pytest.raises(OSError):  # the watch has closed it
        os.fstat(descriptor)


def test_a_folder_without_the_right_to_write_is_an_error(engine, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(EngineDown, match="no right to write"):
        engine.check()


def test_the_memory_of_a_control_group_is_the_capacity(engine, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(engines, "CONTROL_GROUP", tmp_path / "memory.max")

    assert engine.capacity().memory == 1048576


def test_a_folder_that_cannot_be_removed_says_why(tmp_path, monkeypatch):
    def fail_to_remove(*_: object, **__: object) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess([], 1, "", "rm: Operation not permitted")

    monkeypatch.setattr(
        files.shutil,
        "rmtree",
        raising(RecursionError()),
    )
    monkeypatch.setattr(files.subprocess, "run", fail_to_remove)

    with pytest.raises(OSError, match="Operation not permitted"):
        files.remove(tmp_path)


def test_of_a_long_log_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(logs, "CHUNK", 2)
    assert logs.tail_of([b"abc", b"def", b"ghi"], 2) == b"hi"


def test_the_digest_at_a_registry_is_the_local_one(harness, engine):
    spec = a_spec(harness, exits(0))
    assert engine.registry_digest(spec.image, 1.0) == engine.image_digest(spec.image)
