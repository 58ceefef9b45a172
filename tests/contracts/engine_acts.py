"""The programs of runs in the engine contract, and helpers that wait.

Each program is a command for real engines and a script for the memory engine.
"""

import queue
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engines.base import (
    Capacity,
    CommandNotFound,
    Engine,
    Exited,
    LaunchSpec,
    Missing,
    labels,
    run_name,
)
from tests.e2e import nodes
from tests.memory_engine import Inside, Script

# Seconds that a test waits at most for an expected event.
LONG = 180.0

# In a command: the Python interpreter of the engine. A harness may replace it by a path.
PYTHON = "python3"


@dataclass(frozen=True)
class Act:
    """A program of a run: a command, and the same as a script of the memory engine."""

    command: tuple[str, ...]
    script: Script = field(default=Script())


def shell(
    text: str,
    script: Script = Script(),
) -> Act:
    """Return an act that runs this text in a shell."""
    return Act(("sh", "-c", text), script)


def python(
    text: str,
    script: Script = Script(),
) -> Act:
    """Return an act that runs this text in Python."""
    return Act((PYTHON, "-c", text), script)


def _print_environment(spec: LaunchSpec, inside: Inside) -> int:
    """Write the run's variables in hexadecimal, in the form of ``/proc/self/environ``."""
    entries = [f"{name}={value}\0" for name, value in spec.environment.items()]
    inside.say("".join(entries).encode().hex().encode())
    return 0


def _copy_mounted(spec: LaunchSpec, inside: Inside) -> int:
    """Copy the file ``text`` from the mount /in to the mount /out."""
    mounts = {mount.target: mount for mount in spec.mounts}
    text = (mounts["/in"].source / "text").read_bytes()
    (mounts["/out"].source / "text").write_bytes(text)
    return 0 if mounts["/in"].read_only else 1


def exits(code: int) -> Act:
    """Return an act that writes ``out`` and ``err`` and ends with this code."""
    return shell(f"echo out; echo err >&2; exit {code}", Script(code, b"out\n", b"err\n"))


KILLS_ITSELF = shell("kill -9 $$", Script(137))
WAITS = shell("echo ready; exec sleep 600", Script(None, b"ready\n"))
ENDS_WELL_ON_TERM = shell(
    "trap 'exit 5' TERM; echo ready; sleep 600 & wait",
    Script(None, b"ready\n", on_term=5),
)
IGNORES_TERM = shell(
    "trap '' TERM; echo ready; while :; do sleep 1; done",
    Script(None, b"ready\n", on_term=None),
)
PRINTS_ENVIRONMENT = python(
    "print(open('/proc/self/environ', 'rb').read().hex(), end='')", Script(body=_print_environment)
)
WRITES_MUCH = python("print('x' * 70000 + 'the end', end='')", Script(0, b"x" * 70000 + b"the end"))
COPIES = shell(
    "cat /in/text > /out/text || exit 2; echo no > /in/more && exit 3; exit 0",
    Script(body=_copy_mounted),
)
NEEDS_MEMORY = python(
    "b = bytearray(400 * 1024 * 1024); print(len(b))", Script(137, oom_killed=True)
)
USES_ITS_HOME = python(
    """
import getpass, os, pathlib, tempfile
for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
    pathlib.Path(os.environ[name], ".cache", name).mkdir(parents=True)
pathlib.Path.home().joinpath("file").write_text("written")
tempfile.TemporaryFile().write(b"x" * 2**20)
pathlib.Path("core.txt").write_text("in the working directory")
shared = pathlib.Path("/dev/shm", f"bfia-{os.getpid()}-{os.urandom(4).hex()}")
try:
    with shared.open("wb") as file:
        for _ in range(100):  # MiB; Docker's default limit is 64
            file.write(bytes(2**20))
finally:
    shared.unlink()
print(getpass.getuser())
""",
    Script(0, b"bfia\n"),
)
NO_SUCH_PROGRAM = Act(
    ("/no/such/program",),
    Script(refused=CommandNotFound("/no/such/program")),
)


def wait_for(
    condition: Callable[[], Any],
    what: str,
) -> Any:
    """Return the first true value of the condition; fail if none comes."""
    return nodes.wait_for(condition, LONG, 0.02, what)


def a_spec(
    harness: Any,
    act: Act,
    node: str = "alpha",
    **fields: Any,
) -> LaunchSpec:
    """Return the launch of a new run with this act; ``fields`` replace fields of the spec."""
    identity = ("job-" + uuid.uuid4().hex, "task_1", "guest", 0, 1)
    spec = LaunchSpec(
        name=run_name(node, *identity),
        image=harness.image,
        environment={"config.task_id": "task_1"},
        labels=labels(node, harness.installation, *identity),
        command=harness.command(act),
    )
    return replace(spec, **fields)


def launch_run(
    harness: Any,
    engine: Engine,
    act: Act,
    **fields: Any,
) -> LaunchSpec:
    """Launch a new run with this act; return its spec."""
    spec = a_spec(harness, act, **fields)
    engine.launch(spec)
    return spec


def wait_for_exit(engine: Engine, name: str) -> Exited:
    """Wait until the run has ended; return its exit. A missing run fails the test."""

    def find_exit() -> Exited | None:
        probe = engine.probe(name)
        assert not isinstance(probe, Missing)
        return probe if isinstance(probe, Exited) else None

    exit_ = wait_for(find_exit, f"the end of {name}")
    assert isinstance(exit_, Exited)
    return exit_


def output_of(
    harness: Any,
    engine: Engine,
    act: Act,
    code: int = 0,
    **fields: Any,
) -> bytes:
    """Launch a run that ends with this code; return its stdout."""
    name = launch_run(harness, engine, act, **fields).name
    exit_ = wait_for_exit(engine, name)
    assert exit_.code == code, engine.logs(name)
    return engine.logs(name).stdout


def used_by_others(engine: Engine) -> Capacity:
    """Return the resources in use by others than the engine's node."""
    usage = engine.capacity().others
    assert usage is not None
    return usage


def wait_for_output(
    engine: Engine,
    name: str,
    text: bytes,
) -> None:
    """Wait until the run has written this text to stdout."""
    wait_for(lambda: text in engine.logs(name).stdout, f"{name} writes {text!r}")


class ExitListener:
    """A subscriber of a watch, which collects the reported names of runs."""

    def __init__(self) -> None:
        self._names: queue.Queue[str] = queue.Queue()

    def __call__(self, name: str) -> None:
        self._names.put(name)

    def wait_for(self, name: str) -> None:
        """Wait until this run is reported; forget the reports before it."""
        while self._names.get(timeout=LONG) != name:
            continue

    @property
    def is_empty(self) -> bool:
        """True if no report is left."""
        return self._names.empty()


def scripts(*acts: Act) -> Mapping[tuple[str, ...], Script]:
    """Return the acts' scripts by their commands."""
    return {act.command: act.script for act in acts}


ALL_SCRIPTS = scripts(
    *(exits(code) for code in (0, 1, 2, 3, 4, 255)),
    KILLS_ITSELF,
    WAITS,
    ENDS_WELL_ON_TERM,
    IGNORES_TERM,
    PRINTS_ENVIRONMENT,
    WRITES_MUCH,
    COPIES,
    NEEDS_MEMORY,
    USES_ITS_HOME,
    NO_SUCH_PROGRAM,
)
