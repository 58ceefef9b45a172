"""What runs do in the contract of engines, as commands and as scripts of the memory engine; helpers that wait."""

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

LONG = 180.0
"""seconds that a test waits at most for what has to come"""

PYTHON = "python3"
"""stands for the interpreter of the engine's own world"""


@dataclass(frozen=True)
class Act:
    """What a run does: as a command, and as a script of the memory engine."""

    command: tuple[str, ...]
    script: Script = field(default=Script())


def shell(text: str, script: Script = Script()) -> Act:
    return Act(("sh", "-c", text), script)


def python(text: str, script: Script = Script()) -> Act:
    return Act((PYTHON, "-c", text), script)


def _tell_environment(spec: LaunchSpec, inside: Inside) -> int:
    inside.say("".join(f"{k}={v}\0" for k, v in spec.environment.items()).encode().hex().encode())
    return 0


def _copy_mounted(spec: LaunchSpec, inside: Inside) -> int:
    place = {mount.target: mount for mount in spec.mounts}
    text = (place["/in"].source / "text").read_bytes()
    (place["/out"].source / "text").write_bytes(text)
    return 0 if place["/in"].read_only else 1


def exits(code: int) -> Act:
    return shell(f"echo out; echo err >&2; exit {code}", Script(code, b"out\n", b"err\n"))


KILLS_ITSELF = shell("kill -9 $$", Script(137))
WAITS = shell("echo ready; exec sleep 600", Script(None, b"ready\n"))
ENDS_WELL_ON_TERM = shell(
    "trap 'exit 5' TERM; echo ready; sleep 600 & wait", Script(None, b"ready\n", on_term=5)
)
IGNORES_TERM = shell(
    "trap '' TERM; echo ready; while :; do sleep 1; done", Script(None, b"ready\n", on_term=None)
)
TELLS_ENVIRONMENT = python(
    "print(open('/proc/self/environ', 'rb').read().hex(), end='')", Script(body=_tell_environment)
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
        for _ in range(100):  # MiB; Docker's own bound is 64
            file.write(bytes(2**20))
finally:
    shared.unlink()
print(getpass.getuser())
""",
    Script(0, b"bfia\n"),
)
NO_SUCH_PROGRAM = Act(("/no/such/program",), Script(refused=CommandNotFound("/no/such/program")))


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of the condition; fail if none comes."""
    return nodes.wait_for(condition, LONG, 0.02, what)


def a_spec(
    harness: Any,
    act: Act,
    node: str = "alpha",
    **changes: Any,
) -> LaunchSpec:
    """Return a run of its own, in the world of a harness, that does what the act says."""
    identity = ("job-" + uuid.uuid4().hex, "task_1", "guest", 0, 1)
    return replace(
        LaunchSpec(
            name=run_name(node, *identity),
            image=harness.image,
            environment={"config.task_id": "task_1"},
            labels=labels(node, harness.installation, *identity),
            command=harness.command(act),
        ),
        **changes,
    )


def launched(
    harness: Any,
    engine: Engine,
    act: Act,
    **changes: Any,
) -> LaunchSpec:
    """Launch a run of its own; return what was launched."""
    spec = a_spec(harness, act, **changes)
    engine.launch(spec)
    return spec


def ended(engine: Engine, name: str) -> Exited:
    def over() -> Exited | None:
        probe = engine.probe(name)
        assert not isinstance(probe, Missing)
        return probe if isinstance(probe, Exited) else None

    exit_ = wait_for(over, f"the end of {name}")
    assert isinstance(exit_, Exited)
    return exit_


def output_of(
    harness: Any,
    engine: Engine,
    act: Act,
    code: int = 0,
    **changes: Any,
) -> bytes:
    """Launch a run that ends with this code; return what it wrote to stdout."""
    name = launched(harness, engine, act, **changes).name
    assert ended(engine, name).code == code, engine.logs(name)
    return engine.logs(name).stdout


def others(engine: Engine) -> Capacity:
    """Return what others than its node use."""
    found = engine.capacity().others
    assert found is not None
    return found


def said(
    engine: Engine,
    name: str,
    text: bytes,
) -> None:
    wait_for(lambda: text in engine.logs(name).stdout, f"{name} says {text!r}")


class Heard:
    """Takes in what a watch tells."""

    def __init__(self) -> None:
        self._names: queue.Queue[str] = queue.Queue()

    def __call__(self, name: str) -> None:
        self._names.put(name)

    def of(self, name: str) -> None:
        while self._names.get(timeout=LONG) != name:
            continue


def scripts(*acts: Act) -> Mapping[tuple[str, ...], Script]:
    return {act.command: act.script for act in acts}


ALL_SCRIPTS = scripts(
    *(exits(code) for code in (0, 1, 2, 3, 4, 255)),
    KILLS_ITSELF,
    WAITS,
    ENDS_WELL_ON_TERM,
    IGNORES_TERM,
    TELLS_ENVIRONMENT,
    WRITES_MUCH,
    COPIES,
    NEEDS_MEMORY,
    USES_ITS_HOME,
    NO_SUCH_PROGRAM,
)
