"""What only the engine of local processes promises: nothing runs on unseen, nothing foreign is touched."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.base import (
    CommandNotFound,
    CreateFailed,
    Exited,
    LaunchSpec,
    Limits,
    Missing,
    NotSupported,
    Running,
    labels,
)
from engines.memory import Script
from engines.process import supervisor
from engines.process.engine import ProcessEngine
from tests.contracts.engine_acts import (
    IGNORES_TERM,
    WAITS,
    Act,
    Heard,
    a_spec,
    ended,
    exits,
    python,
    said,
    shell,
    wait_for,
)
from tests.contracts.harnesses import ProcessHarness

ROOT = Path(__file__).parents[2]
NOTHING = Script()

FAMILY = shell(
    "sleep 600 & echo $!; setsid sh -c 'echo $$; exec sleep 600' & setsid sh -c 'setsid sleep 600 & echo $!' ; "
    "echo ready; wait",
    NOTHING,
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


def record(harness: ProcessHarness, name: str, file: str) -> dict:
    found = supervisor.read_json(str(harness.root / name / file))
    assert found is not None
    return found


def alive(pid: int) -> bool:
    return supervisor.start_time(pid) is not None


def gone(pids: list[int]) -> None:
    wait_for(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}")


def launch(harness: ProcessHarness, engine: ProcessEngine, act: Act, **changes: object) -> str:
    spec = a_spec(harness, act, **changes)
    engine.launch(spec)
    return spec.name


def family(harness: ProcessHarness, engine: ProcessEngine) -> tuple[str, list[int]]:
    name = launch(harness, engine, FAMILY)
    said(engine, name, b"ready")
    lines = wait_for(
        lambda: (found := engine.logs(name).stdout.split()) and len(found) == 4 and found, "four lines"
    )
    pids = [int(line) for line in lines if line.isdigit()]
    pids.append(record(harness, name, supervisor.CHILD)["pid"])
    assert all(alive(pid) for pid in pids)
    return name, pids


# ------------------------------------------------------------ nothing stays behind


def test_stopping_ends_the_whole_family(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name, pids = family(harness, engine)
    engine.stop(name, 30)
    assert ended(engine, name).signal == signal.SIGTERM
    gone(pids)


def test_removing_ends_the_whole_family(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name, pids = family(harness, engine)
    engine.remove(name)
    gone(pids)
    assert list(harness.root.iterdir()) == []


def test_what_a_run_leaves_behind_ends_with_it(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name = launch(harness, engine, shell("setsid sleep 600 & echo $!; exit 3", NOTHING))
    assert ended(engine, name).code == 3
    gone([int(engine.logs(name).stdout)])


def test_a_killed_supervisor_ends_the_run(harness: ProcessHarness, engine: ProcessEngine) -> None:
    heard = Heard()
    engine.watch(heard)
    name = launch(harness, engine, shell("sleep 600 & echo $!; echo ready; wait", NOTHING))
    said(engine, name, b"ready")
    grandchild = int(engine.logs(name).stdout.split()[0])
    child = record(harness, name, supervisor.CHILD)["pid"]
    os.kill(record(harness, name, supervisor.SUPERVISOR)["pid"], signal.SIGKILL)
    heard.of(name)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert (exit_.code, exit_.signal) == (137, 9)
    assert exit_.started_at is not None
    gone([child, grandchild])


def test_a_supervisor_killed_while_nobody_looked(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name = launch(harness, engine, shell("sleep 600 & echo $!; echo ready; wait", NOTHING))
    said(engine, name, b"ready")
    grandchild = int(engine.logs(name).stdout.split()[0])
    engine.close()
    child = record(harness, name, supervisor.CHILD)["pid"]
    os.kill(record(harness, name, supervisor.SUPERVISOR)["pid"], signal.SIGKILL)
    gone([child])  # without anyone's help
    anew = harness.engine()
    exit_ = ended(anew, name)
    assert (exit_.code, exit_.signal) == (137, 9)
    assert anew.probe(name) == exit_
    gone([grandchild])


def test_a_removal_that_was_cut_short_is_finished(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name, pids = family(harness, engine)
    (harness.root / name).rename(harness.root / f".gone-{name}-1")
    assert engine.probe(name) == Missing()
    harness.engine().watch(Heard())
    gone(pids)
    assert list(harness.root.iterdir()) == []


def test_a_run_whose_directory_is_deleted_ends(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name, pids = family(harness, engine)
    pids.append(record(harness, name, supervisor.SUPERVISOR)["pid"])
    shutil.rmtree(harness.root / name)
    os.kill(pids[-1], signal.SIGCHLD)  # it looks now and then; this makes it look now
    gone(pids)
    assert engine.probe(name) == Missing()


# ------------------------------------------------------------ nothing foreign is touched


def forged(harness: ProcessHarness, pid: int, **changes: object) -> str:
    """Lay out a run whose numbers have gone to another process."""
    spec = a_spec(harness, WAITS)
    directory = harness.root / spec.name
    directory.mkdir(parents=True)
    supervisor.write_json(str(directory / supervisor.SPEC), {"labels": dict(spec.labels)})
    former = {**supervisor.identity(pid), "start": (supervisor.start_time(pid) or 0) - 1, **changes}
    supervisor.write_json(str(directory / supervisor.SUPERVISOR), former)
    supervisor.write_json(str(directory / supervisor.CHILD), {**former, "started": 1.7e9})
    return spec.name


def test_a_recycled_number_is_not_killed(
    harness: ProcessHarness, engine: ProcessEngine, bystander: subprocess.Popen[bytes]
) -> None:
    name = forged(harness, bystander.pid)
    engine.stop(name, 0.1)
    exit_ = engine.probe(name)
    assert isinstance(exit_, Exited)
    assert (exit_.code, exit_.signal) == (137, 9)
    engine.remove(name)
    assert bystander.poll() is None


def test_a_number_from_before_the_last_boot_is_not_killed(
    harness: ProcessHarness, engine: ProcessEngine, bystander: subprocess.Popen[bytes]
) -> None:
    name = forged(harness, bystander.pid, boot="before", start=supervisor.start_time(bystander.pid))
    engine.stop(name, 0.1)
    assert isinstance(engine.probe(name), Exited)
    engine.remove(name)
    assert bystander.poll() is None


def test_a_run_of_another_machine_is_left_alone(
    harness: ProcessHarness, engine: ProcessEngine, bystander: subprocess.Popen[bytes]
) -> None:
    start = supervisor.start_time(bystander.pid)
    name = forged(harness, bystander.pid, boot="another", host="another", start=start)
    assert engine.probe(name) == Missing()
    engine.stop(name, 0.1)
    assert not (harness.root / name / supervisor.EXIT).exists()
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


def test_runs_outlive_the_gateway_and_are_taken_up(harness: ProcessHarness) -> None:
    scripts = [WAITS.command[2], "echo out; exit 7"]
    done = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(harness.root), *scripts], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == 9
    heard, engine = Heard(), harness.engine()
    engine.watch(heard)
    heard.of("ends")
    assert ended(engine, "ends").code == 7
    assert isinstance(engine.probe("goes-on"), Running)
    engine.stop("goes-on", 30)
    heard.of("goes-on")
    assert ended(engine, "goes-on").code == 143


def test_a_run_that_was_claimed_but_never_started_can_be_launched(
    harness: ProcessHarness, engine: ProcessEngine
) -> None:
    spec = a_spec(harness, exits(3))
    directory = harness.root / spec.name
    directory.mkdir(parents=True)
    supervisor.write_json(str(directory / supervisor.SPEC), {"labels": dict(spec.labels)})
    assert engine.probe(spec.name) == Missing()
    engine.launch(spec)
    assert ended(engine, spec.name).code == 3


def test_a_second_supervisor_does_nothing(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name = launch(harness, engine, shell("echo once; exec sleep 600", NOTHING))
    said(engine, name, b"once")
    second = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, str(harness.root / name)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(second.stdout) == [supervisor.TAKEN]
    assert engine.logs(name).stdout == b"once\n"
    assert isinstance(engine.probe(name), Running)


def test_a_supervisor_of_a_removed_run_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, str(tmp_path / "gone")],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)[0] == supervisor.REFUSED
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------ commands and limits


def engine_of(root: Path, command: list[str]) -> ProcessEngine:
    return ProcessEngine(node="alpha", installation="first", images={"it:1": command}, run_root=root)


def spec_of(name: str, **changes: object) -> LaunchSpec:
    whole = {"image": "it:1", "environment": {}, "labels": labels("alpha", "first", "j", "t", "guest", 0, 1)}
    return LaunchSpec(name=name, **{**whole, **changes})  # type: ignore[arg-type]


def test_the_configured_command_runs(tmp_path: Path) -> None:
    with contextlib.closing(engine_of(tmp_path / "runs", ["sh", "-c", "pwd; exit 6"])) as engine:
        engine.launch(spec_of("run-1"))
        assert ended(engine, "run-1").code == 6
        assert engine.logs("run-1").stdout.decode().strip() == str(tmp_path / "runs" / "run-1" / "work")


def test_a_relative_executable_starts_at_the_folder_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vendor").write_text("#!/bin/sh\nexit 8\n")
    (tmp_path / "vendor").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(engine_of(tmp_path / "runs", ["./vendor"])) as engine:
        engine.launch(spec_of("run-1"))
        assert ended(engine, "run-1").code == 8


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        ("#!/bin/sh\n", 0o644, CommandNotFound),
        ("#!/no/such/interpreter\n", 0o755, CommandNotFound),
        ("neither a script nor a program", 0o755, CreateFailed),
    ],
)
def test_a_program_that_cannot_start_leaves_nothing(
    tmp_path: Path, text: str, mode: int, error: type[Exception]
) -> None:
    (tmp_path / "vendor").write_text(text)
    (tmp_path / "vendor").chmod(mode)
    with contextlib.closing(engine_of(tmp_path / "runs", [str(tmp_path / "vendor")])) as engine:
        with pytest.raises(error, match="vendor"):
            engine.launch(spec_of("run-1"))
        assert engine.probe("run-1") == Missing()
        assert not (tmp_path / "runs" / "run-1").exists()


def test_images_with_other_commands_have_other_digests(tmp_path: Path) -> None:
    images = {"a": ["sh", "-c", "x"], "b": ["sh", "-c x"], "c": ["sh", "-c", "x"]}
    engine = ProcessEngine(node="alpha", installation="first", images=images, run_root=tmp_path)
    digests = [engine.image_digest(image) for image in images]
    assert digests[0] == digests[2] != digests[1]
    engine.close()


def test_cores_are_given_in_turn(harness: ProcessHarness, engine: ProcessEngine) -> None:
    tells = python("import os; print(sorted(os.sched_getaffinity(0)))", NOTHING)
    present = sorted(os.sched_getaffinity(0))
    given = []
    for _ in range(len(present)):
        name = launch(harness, engine, tells, limits=Limits(cpu=1))
        assert ended(engine, name).code == 0
        given += json.loads(engine.logs(name).stdout)
    assert sorted(given) == present


def test_more_cores_than_there_are_is_noted(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name = launch(harness, engine, exits(0), limits=Limits(cpu=100_000))
    assert ended(engine, name).code == 0
    assert any("100000 cores" in note for note in record(harness, name, supervisor.SPEC)["notes"])


def test_a_refused_limit_says_why(harness: ProcessHarness, engine: ProcessEngine) -> None:
    with pytest.raises(NotSupported, match="whole cores"):
        engine.launch(a_spec(harness, WAITS, limits=Limits(cpu=1.5)))


def test_the_environment_of_the_gateway_does_not_leak(
    harness: ProcessHarness, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFIA_SECRET", "leaked")
    name = launch(harness, engine, shell("cat /proc/self/environ /proc/$PPID/environ", NOTHING))
    assert ended(engine, name).code == 0
    logs = engine.logs(name).stdout
    assert b"config.task_id" in logs or b"PATH" in logs
    assert b"leaked" not in logs


def test_a_run_holds_no_file_of_the_gateway_open(harness: ProcessHarness, engine: ProcessEngine) -> None:
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        name = launch(harness, engine, python("import os; print(os.listdir('/proc/self/fd'))", NOTHING))
        assert ended(engine, name).code == 0
    assert engine.logs(name).stdout == b"['0', '1', '2', '3']\n"  # 3 is the listed folder itself


def test_what_a_run_writes_is_for_the_gateway_alone(harness: ProcessHarness, engine: ProcessEngine) -> None:
    name = launch(harness, engine, IGNORES_TERM)
    for file in (supervisor.SPEC, supervisor.SUPERVISOR, supervisor.STDOUT):
        assert (harness.root / name / file).stat().st_mode & 0o077 == 0


def test_what_a_run_prints_takes_no_more_disk_than_it_may_while_it_runs(harness: ProcessHarness) -> None:
    """A look at it gives the middle back; what is read and saved has both ends, and says what is missing."""
    most = 64 * 1024
    engine = harness.engine(saved_log_size=most)
    script = "seq -f 'line %09.0f' 100000; read wait < held; seq -f 'late %09.0f' 20000"
    spec = a_spec(harness, shell(f"mkfifo held; {script}", NOTHING))
    engine.launch(spec)
    file = harness.root / spec.name / supervisor.STDOUT

    def cut() -> bool:
        return isinstance(engine.probe(spec.name), Running) and file.stat().st_blocks * 512 <= 3 * most

    wait_for(lambda: file.exists() and file.stat().st_size == 1_500_000, "it has printed")
    wait_for(cut, "it is cut")
    assert file.stat().st_size == 1_500_000
    text = engine.logs(spec.name).stdout
    assert text.startswith(b"line 000000001\n") and text.endswith(b"line 000100000\n") and b"\0" not in text
    assert b"bytes are left out here" in text and len(text) < 3 * most
    assert engine.logs(spec.name, 15).stdout == b"line 000100000\n"
    (harness.root / spec.name / supervisor.WORK / "held").write_text("go on\n")
    ended(engine, spec.name)
    engine.save_logs(spec.name, harness.root.parent / "saved")
    saved = (harness.root.parent / "saved" / "stdout.log").read_bytes()
    assert saved.startswith(b"line 000000001\n") and saved.endswith(b"late 000020000\n") and b"\0" not in saved
    assert b"bytes are left out here" in saved and len(saved) < most + 100


# ------------------------------------------------------------ the process that starts supervisors


def nursery_of(harness: ProcessHarness) -> list[int]:
    """Return the processes that start supervisors for this engine's runs."""
    found = []
    for pid in supervisor.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if supervisor.NURSERY.encode() in words and os.fsencode(harness.root) in words:
                found.append(pid)
    return found


def the_nursery(harness: ProcessHarness, *but: int) -> int:
    """Return the one that all supervisors come from: the leader of its session."""
    return next(p for p in nursery_of(harness) if supervisor.session_of(p) == p and p not in but and _serves(p))


def _serves(pid: int) -> bool:
    """Whether it is no copy, as a supervisor is: those have gone on from a parent with the same words."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[1]) == os.getpid()


def test_supervisors_are_copies_of_one_process(harness: ProcessHarness, engine: ProcessEngine) -> None:
    names = [launch(harness, engine, exits(0)) for _ in range(3)]
    assert [ended(engine, name).code for name in names] == [0, 0, 0]
    made_by = {pid for pid in nursery_of(harness) if _serves(pid)}
    assert len(made_by) == 1, "one start of an interpreter for all runs"


def test_runs_outlive_what_started_their_supervisors(harness: ProcessHarness, engine: ProcessEngine) -> None:
    first = launch(harness, engine, WAITS)
    os.kill(the_nursery(harness), signal.SIGKILL)
    second = launch(harness, engine, exits(5))  # by a new one
    assert ended(engine, second).code == 5
    assert isinstance(engine.probe(first), Running)
    engine.stop(first, 30)
    assert ended(engine, first).signal == signal.SIGTERM


def test_what_starts_supervisors_ends_with_the_engine(harness: ProcessHarness) -> None:
    engine = harness.engine()
    name = launch(harness, engine, WAITS)
    started_by = the_nursery(harness)
    engine.close()
    gone([started_by])
    assert isinstance(harness.engine().probe(name), Running)
