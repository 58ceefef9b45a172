"""Runs images as local processes, where there is no container daemon.

An image is a command line from the configuration. Runs have the gateway's own rights: nothing is isolated.
Each run has a supervisor of its own (`engines.process.supervisor`) that outlives the gateway.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from engines import logs as engines_logs
from engines.base import (
    Capacity,
    CommandNotFound,
    CreateFailed,
    DiskUse,
    Engine,
    EngineDown,
    EngineError,
    Exited,
    ImageMetadata,
    ImageNotFound,
    Isolation,
    LaunchSpec,
    ListedRun,
    Logs,
    NotSupported,
    Probe,
    Watch,
    belongs_to,
    check_digest,
    check_launch,
    home_variables,
    is_name,
)
from engines.process import supervisor
from engines.process.run_directory import Exits, RunDirectory, exits_within, send

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")
_GONE, _NONE = ".gone-", ".none"
_EXIT_TIMEOUT = 5.0
"""seconds until a supervisor that started nothing is gone"""
_REPORT_TIMEOUT = 30.0
"""seconds until a supervisor has reported whether its run started"""


def this_machine() -> Capacity:
    """Return the cores that this process may use, and the memory of the machine or of its control group."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        bound = _CONTROL_GROUP.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        bound = ""
    if bound.isdecimal():
        memory = min(memory, int(bound))
    return Capacity(float(len(os.sched_getaffinity(0))), memory)


class ProcessEngine(Engine):
    """Local processes; see `engines.base.Engine` for what each method promises."""

    kind = "process"
    capabilities: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        node: str,
        installation: str,
        images: Mapping[str, Sequence[str]],
        run_root: Path,
        saved_log_size: int = 32 * 1024 * 1024,
    ) -> None:
        """Run the images' commands; keep the runs below ``run_root``, which no other use has.

        ``saved_log_size``: bytes of a stream that `save_logs` keeps.
        """
        self._saved_log_size = saved_log_size
        self._node = node
        self._installation = installation
        self._images = {image: tuple(command) for image, command in images.items()}
        self._root = run_root.absolute()
        self._home = Path.cwd()
        self._spawner = Spawner()
        self._locks = tuple(threading.Lock() for _ in range(64))
        self._turn = itertools.count()
        self._watches: list[Exits] = []

    def check(self) -> None:
        try:
            self._root.mkdir(
                parents=True,
                exist_ok=True,
                mode=0o700,
            )
            supervisor.boot_id()
        except OSError as error:
            raise EngineDown(f"local processes cannot be run: {error}") from error
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise EngineDown(f"local processes cannot be run: no right to write to {self._root}")

    def capacity(self) -> Capacity:
        return this_machine()

    def image_digest(self, image: str) -> str:
        """Return the digest of the image's command. Raises `CommandNotFound` where its program is not here."""
        self._program(image, self._command_of(image), SEARCH_PATH)
        return self._digest(image)

    def image_facts(self, image: str) -> ImageMetadata:
        """Return no digest: an image is the admin's own command, and any file may be behind it."""
        self._command_of(image)
        return ImageMetadata()

    def isolation(self) -> Isolation:
        text = "the process engine keeps nothing apart: runs have the gateway's own rights; use engine.kind docker"
        return Isolation(
            tasks=False,
            host=False,
            outside=False,
            gaps=(text,),
        )

    def launch(self, spec: LaunchSpec) -> None:
        """Start the run. A mount or a part of a core is refused; ``pids`` is not applied."""
        check_launch(spec)
        if spec.mounts:
            raise NotSupported("this engine cannot mount: its runs see the gateway's own files")
        if spec.capabilities:
            raise NotSupported(
                "this engine cannot grant capabilities: its runs have the gateway's own"
            )
        if spec.limits.gpu:
            raise NotSupported(
                "this engine cannot set GPUs aside: its runs see all that the machine has"
            )
        check_digest(spec, self._digest(spec.image))
        cores = self._cores(spec.limits.cpu)
        run = RunDirectory(self._root / spec.name)
        home = home_variables(str(run.work), str(run.work))
        environment = {
            "PATH": SEARCH_PATH,
            "LANG": "C.UTF-8",
            **home,
            **spec.environment,
        }
        command = self._resolved(spec, environment)
        with self._lock(spec.name), engines_logs.translated(CreateFailed):
            if run.claimed:
                if not belongs_to(run.labels() or {}, self._node, self._installation):
                    raise CreateFailed(f"the name {spec.name} is taken by another installation")
                return
            given = {
                "command": command,
                "environment": environment,
                "memory": spec.limits.memory,
                "cores": cores,
            }
            try:
                run.create(spec.labels)
                self._start(spec.name, run, given)
            except BaseException as error:
                if (
                    isinstance(error, EngineError) or not run.claimed
                ):  # our own supervisor could not start it
                    run.delete()
                raise

    def probe(self, name: str) -> Probe:
        return self._run(name).probe()

    def disk_use(self, name: str, most: int) -> DiskUse:
        return self._run(name).disk_use(most)

    def stop(self, name: str, grace: float) -> None:
        self._run(name).stop(grace)

    def logs(self, name: str, tail: int | None = None) -> Logs:
        run = self._run(name)
        return Logs(
            *(engines_logs.read_tail(run.log(stream), tail) for stream in engines_logs.STREAMS)
        )

    def save_logs(self, name: str, directory: Path) -> None:
        run = self._run(name)
        with engines_logs.translated():
            for stream in engines_logs.STREAMS if run.path.exists() else ():
                engines_logs.save_file(directory, stream, run.log(stream), self._saved_log_size)

    def remove(self, name: str) -> None:
        gone = self._root / f"{_GONE}{name}-{os.urandom(4).hex()}"
        with self._lock(name), suppress(FileNotFoundError):
            self._run(name).path.rename(
                gone
            )  # a supervisor that is still to claim the run finds nothing
            _bury(gone)

    def list(self) -> Sequence[ListedRun]:
        return [ListedRun(name, labels, run.probe()) for name, run, labels in self._owned()]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch runs started by this object, and those that an earlier one left. This engine is never away."""
        for left in self._root.glob(f"{_GONE}*"):  # a removal that was cut short
            _bury(left)
        self._watches.append(watch := Exits(on_exit))
        for name, run, _ in self._owned():
            if (descriptor := run.open_supervisor()) is not None:
                watch.add(name, descriptor)
            elif isinstance(run.probe(), Exited):
                watch.report(name)
        return watch

    def close(self) -> None:
        self._spawner.close()
        for watch in self._watches:
            watch.close()

    def _command_of(self, image: str) -> tuple[str, ...]:
        if image not in self._images:
            remedy = "name one under engine.process.images"
            raise ImageNotFound(f"no command is configured for the image {image}", remedy)
        return self._images[image]

    def _resolved(self, spec: LaunchSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line with the path of its executable; a relative path starts where we did."""
        command = self._command_of(spec.image) if spec.command is None else spec.command
        return (self._program(spec.image, command, environment["PATH"]), *command[1:])

    def _digest(self, image: str) -> str:
        return "sha256:" + hashlib.sha256(json.dumps(self._command_of(image)).encode()).hexdigest()

    def _program(
        self,
        image: str,
        command: Sequence[str],
        path: str,
    ) -> str:
        """Return the path of a command's executable; what ``env NAME=value …`` runs has to be there, too."""
        first = os.path.join(self._home, command[0]) if "/" in command[0] else command[0]
        if (found := shutil.which(first, path=path)) is None:
            text = f"the image {image} is to run {command[0]}, which is not an executable here"
            raise CommandNotFound(text)
        if os.path.basename(first) == "env":
            rest = list(itertools.dropwhile(lambda word: "=" in word, command[1:]))
            paths = [
                word[5:]
                for word in command[1 : len(command) - len(rest)]
                if word.startswith("PATH=")
            ]
            if rest and not rest[0].startswith("-"):  # options of env may change what it runs
                self._program(image, rest, paths[-1] if paths else path)
        return found

    def _cores(self, cpu: float | None) -> tuple[int, ...] | None:
        """Choose cores in turn, so that runs share the machine evenly. Raises `NotSupported` for parts of one."""
        if cpu is None:
            return None
        if cpu != int(cpu):
            raise NotSupported(f"cpu {cpu}: this engine gives whole cores only")
        present = sorted(os.sched_getaffinity(0))
        return tuple(present[next(self._turn) % len(present)] for _ in range(int(cpu)))

    def _start(
        self,
        name: str,
        run: RunDirectory,
        command: Mapping[str, object],
    ) -> None:
        """Start the supervisor and wait for its report. Raises the reason why the run could not start."""
        descriptor, report = self._spawner.start(run.path, command)
        word, _, details = report.partition(" ")
        number, _, text = details.partition(" ")
        if word == supervisor.STARTED:
            for watch in self._watches:
                watch.add(name, os.dup(descriptor))
            os.close(descriptor)
            return
        if not word:
            send(descriptor, signal.SIGKILL)
        exits_within(descriptor, _EXIT_TIMEOUT)
        os.close(descriptor)
        match word:
            case supervisor.TAKEN:
                return
            case supervisor.REFUSED:
                raise OSError(int(number), text)
            case supervisor.FAILED:
                raise _REASONS.get(int(number), CreateFailed)(text)
            case _:
                output = engines_logs.read_tail(run.path / supervisor.OWN_LOG, 2000).decode(
                    errors="replace"
                )
                raise CreateFailed(
                    f"the run's supervisor did not start it: {output or 'no output'}"
                )

    def _run(self, name: str) -> RunDirectory:
        """Return the run if it is one of ours, else one that was never started."""
        run = RunDirectory(self._root / (name if is_name(name) else _NONE))
        ours = belongs_to(run.labels() or {}, self._node, self._installation)
        return run if ours else RunDirectory(self._root / _NONE)

    def _owned(self) -> Iterator[tuple[str, RunDirectory, Mapping[str, str]]]:
        for name in sorted(os.listdir(self._root)) if self._root.exists() else ():
            run = self._run(name)
            labels = run.labels()
            if labels is not None:
                yield name, run, labels

    def _lock(self, name: str) -> threading.Lock:
        return self._locks[hash(name) % len(self._locks)]


_REASONS: Mapping[int | None, type[EngineError]] = {
    **engines_logs.SHORTAGES,
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ELOOP), CommandNotFound),
}


def _bury(gone: Path) -> None:
    """Kill the run in a directory that was renamed away, then delete it."""
    run = RunDirectory(gone)
    run.kill()
    run.delete()


class Spawner:
    """Forks supervisors: a fork of one small process costs a fraction of the start of an interpreter.

    Its process ends with the gateway, the supervisors live on; one that died is replaced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self, directory: Path, command: Mapping[str, object]) -> tuple[int, str]:
        """Start the supervisor of a run; return a descriptor of its process, and its report.

        The report is empty if there is none in time. Raises OSError if there is no supervisor.
        """
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(_REPORT_TIMEOUT)
            with theirs:
                self._request(directory, theirs)
            ours.sendall(json.dumps(command).encode())
            ours.shutdown(socket.SHUT_WR)
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            if not descriptors:
                raise BlockingIOError(errno.EAGAIN, "the supervisor could not be forked")
            with suppress(TimeoutError), ours.makefile("rb") as lines:
                return descriptors[0], lines.readline().decode(errors="replace").strip()
            return descriptors[0], ""

    def close(self) -> None:
        """End the process that forks; supervisors live on."""
        with self._lock:
            self._end()

    def _request(self, directory: Path, connection: socket.socket) -> None:
        message = os.fsencode(directory)
        with self._lock:
            try:
                socket.send_fds(self._begun(), [message], [connection.fileno()])
            except OSError:
                self._end()
                socket.send_fds(self._begun(), [message], [connection.fileno()])

    def _begun(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-I", "-S", supervisor.__file__]
                self._server = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,
                )
        return self._control

    def _end(self) -> None:
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.kill()
            self._server.wait()
        self._control = self._server = None
