"""Runs images as local processes, for machines without a container daemon.

An image is a command line from the configuration. Runs have the gateway's own rights: nothing is
isolated. Each run has a supervisor of its own (`engines.process.supervisor`) that outlives the
gateway.
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

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"  # the variable PATH of a run that sets none

# File with the memory limit, in bytes, of this process's control group
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")
_REMOVED_PREFIX = ".gone-"  # of the directories of removed runs
_NO_RUN = ".none"  # name of a directory that never exists, as no run can have this name
_EXIT_TIMEOUT = 5.0  # seconds for the exit of a supervisor that started nothing
_FORK_TIMEOUT = 30.0  # seconds for the fork of a supervisor
REPORT_TIMEOUT = 30.0  # seconds for a supervisor's report on its run's start
_LOCKS = 64  # for all runs; each run uses one of them
_LONGEST_OUTPUT = 2000  # bytes of a supervisor's output in a message

# Errors of a failed start by the system's error number
_START_ERRORS: Mapping[int | None, type[EngineError]] = {
    **engines_logs.SHORTAGES,
    errno.ENOENT: CommandNotFound,
    errno.ENOTDIR: CommandNotFound,
    errno.ELOOP: CommandNotFound,
}


def this_machine() -> Capacity:
    """Return the cores available to this process, and the memory of the machine.

    The memory is that of this process's control group if that has a limit.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTROL_GROUP.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        limit = ""
    if limit.isdecimal():  # the file contains "max" if there is no limit
        memory = min(memory, int(limit))
    cores = len(os.sched_getaffinity(0))
    return Capacity(float(cores), memory)


class ProcessEngine(Engine):
    """Local processes. `engines.base.Engine` specifies the methods."""

    kind = "process"
    capabilities: frozenset[str] = frozenset()  # none of `engines.base.CAPABILITIES`

    def __init__(
        self,
        *,
        node: str,
        installation: str,
        images: Mapping[str, Sequence[str]],
        run_root: Path,
        saved_log_size: int = 32 * 1024 * 1024,
    ) -> None:
        """``images``: the command of each image.

        ``run_root``: the directory of the runs, which only this engine uses. ``saved_log_size``:
        bytes of a stream that `save_logs` keeps.
        """
        self._saved_log_size = saved_log_size
        self._node = node
        self._installation = installation
        self._images = {image: tuple(command) for image, command in images.items()}
        self._root = run_root.absolute()
        self._gateway_folder = Path.cwd()  # relative paths in commands start here
        self._spawner = Spawner()
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))
        # Counts the cores that runs have got, for `_choose_cores`, which gives them out in turn
        self._core_numbers = itertools.count()
        self._watches: list[Exits] = []

    def check(self) -> None:
        """Check that runs can be identified, and create the directory of runs if it is missing."""
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
        """Return the capacity of this machine."""
        return this_machine()

    def image_digest(self, image: str) -> str:
        """Return the digest of the image's command.

        Raises `CommandNotFound` if its program does not exist.
        """
        self._executable_path(image, self._command_of(image), SEARCH_PATH)
        return self._digest(image)

    def image_metadata(self, image: str) -> ImageMetadata:
        """Return empty metadata. Raises `ImageNotFound`.

        They have no digest of the content: an image is a command of the admin, and the files that
        it uses may change. `image_digest` returns a digest of the command alone.
        """
        self._command_of(image)
        return ImageMetadata()

    def isolation(self) -> Isolation:
        """Return that nothing is isolated."""
        gap = (
            "the process engine keeps nothing apart: runs have the gateway's own rights; use "
            "engine.kind docker"
        )
        return Isolation(
            tasks=False,
            host=False,
            outside=False,
            gaps=(gap,),
        )

    def launch(self, spec: LaunchSpec) -> None:
        """Start the run; refuse mounts, capabilities, GPUs and fractions of a core.

        The limit ``pids`` is not applied. A run whose directory a supervisor has claimed was
        started before, and is left as it is.
        """
        check_launch(spec)
        _check_supported(spec)
        check_digest(spec, self._digest(spec.image))
        cores = self._choose_cores(spec.limits.cpu)
        run = RunDirectory(self._root / spec.name)
        environment = {
            "PATH": SEARCH_PATH,
            "LANG": "C.UTF-8",
            **home_variables(home=str(run.work), temporary=str(run.work)),
            **spec.environment,
        }
        program = {
            "command": self._command_line(spec, environment),
            "environment": environment,
            "memory": spec.limits.memory,
            "cores": cores,
        }
        with self._lock(spec.name), engines_logs.translated(CreateFailed):
            if not run.claimed:
                self._create_and_start(spec, run, program)
            elif not self._is_own_run(run):
                raise CreateFailed(f"the name {spec.name} is taken by another installation")

    def _create_and_start(
        self, spec: LaunchSpec, run: RunDirectory, program: Mapping[str, object]
    ) -> None:
        """Create the run's directory and start the run.

        After a failure, the directory is deleted, unless another supervisor has claimed the run.
        ``program``: the fields of `supervisor.Program`.
        """
        try:
            run.create(spec.labels)
            self._start(spec.name, run, program)
        except BaseException as error:
            # An EngineError means that our own supervisor claimed the run and could not start it.
            is_unused = isinstance(error, EngineError) or not run.claimed
            if is_unused:
                run.delete()
            raise

    def probe(self, name: str) -> Probe:
        """Return the state, which the run's directory and its supervisor's process show."""
        return self._run(name).probe()

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        """Measure the run's working folder and logs."""
        return self._run(name).disk_use(max_files)

    def stop(self, name: str, grace: float) -> None:
        """Have the run's supervisor end the run."""
        self._run(name).stop(grace)

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return the end of the files that the run writes to."""
        run = self._run(name)
        stdout = engines_logs.read_tail(run.log("stdout"), tail)
        stderr = engines_logs.read_tail(run.log("stderr"), tail)
        return Logs(stdout, stderr)

    def save_logs(self, name: str, directory: Path) -> None:
        """Copy the files that the run writes to."""
        run = self._run(name)
        if not run.path.exists():
            return
        with engines_logs.translated():
            for stream in engines_logs.STREAMS:
                engines_logs.save_file(directory, stream, run.log(stream), self._saved_log_size)

    def remove(self, name: str) -> None:
        """Kill the run and delete its directory."""
        removed = self._root / f"{_REMOVED_PREFIX}{name}-{os.urandom(4).hex()}"
        with self._lock(name), suppress(FileNotFoundError):
            # Renamed first: a supervisor that has not claimed the run by now can no longer do so.
            self._run(name).path.rename(removed)
            _kill_and_delete(removed)

    def list(self) -> Sequence[ListedRun]:
        """Return the runs that have a directory with our labels."""
        return [ListedRun(name, labels, run.probe()) for name, run, labels in self._owned_runs()]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch this node's runs, also those of an earlier process. ``on_away`` is never called.

        Also completes the removals that an earlier process left incomplete.
        """
        for removed in self._root.glob(f"{_REMOVED_PREFIX}*"):
            _kill_and_delete(removed)
        watch = Exits(on_exit)
        self._watches.append(watch)
        for name, run, _ in self._owned_runs():
            descriptor = run.open_supervisor()
            if descriptor is not None:
                watch.add(name, descriptor)
            elif isinstance(run.probe(), Exited):
                watch.report(name)
        return watch

    def close(self) -> None:
        """End the process that starts supervisors, then the watches."""
        self._spawner.close()
        for watch in self._watches:
            watch.close()

    def _command_of(self, image: str) -> tuple[str, ...]:
        """Return the command of an image. Raises `ImageNotFound`."""
        if image not in self._images:
            remedy = "name one under engine.process.images"
            raise ImageNotFound(f"no command is configured for the image {image}", remedy)
        return self._images[image]

    def _command_line(
        self,
        spec: LaunchSpec,
        environment: Mapping[str, str],
    ) -> tuple[str, ...]:
        """Return the run's command line with the path of its executable.

        A relative path starts at the gateway's working directory. Raises `CommandNotFound`.
        """
        command = spec.command
        if command is None:
            command = self._command_of(spec.image)
        return (self._executable_path(spec.image, command, environment["PATH"]), *command[1:])

    def _digest(self, image: str) -> str:
        """Return a digest of an image's command, not of its files. Raises `ImageNotFound`."""
        command = json.dumps(self._command_of(image))
        return f"sha256:{hashlib.sha256(command.encode()).hexdigest()}"

    def _executable_path(
        self,
        image: str,
        command: Sequence[str],
        search_path: str,
    ) -> str:
        """Return the path of a command's executable.

        For ``env NAME=value … program``, the program is checked, too. Raises `CommandNotFound`.
        """
        name = command[0]
        if "/" in name:
            name = os.path.join(self._gateway_folder, name)
        path = shutil.which(name, path=search_path)
        if path is None:
            raise CommandNotFound(
                f"the image {image} is to run {command[0]}, which is not an executable here"
            )
        if os.path.basename(name) == "env":
            self._check_program_of_env(image, command[1:], search_path)
        return path

    def _check_program_of_env(
        self,
        image: str,
        arguments: Sequence[str],
        search_path: str,
    ) -> None:
        """Check the program that env runs. Raises `CommandNotFound`."""
        inner_command = list(itertools.dropwhile(_is_assignment, arguments))
        assignments = arguments[: len(arguments) - len(inner_command)]
        variables = {}
        for assignment in assignments:
            name, _, value = assignment.partition("=")
            variables[name] = value
        # Options of env may change which program it runs, so they are not interpreted.
        is_program = bool(inner_command) and not inner_command[0].startswith("-")
        if is_program:
            self._executable_path(image, inner_command, variables.get("PATH", search_path))

    def _choose_cores(
        self,
        cpu: float | None,
    ) -> tuple[int, ...] | None:
        """Choose which cores a run gets, in turn, so that runs share the machine evenly.

        None for no limit. Raises `NotSupported` for a fraction of a core.
        """
        if cpu is None:
            return None
        if cpu != int(cpu):
            raise NotSupported(f"cpu {cpu}: this engine gives whole cores only")
        available = sorted(os.sched_getaffinity(0))
        cores = []
        for _ in range(int(cpu)):
            position = next(self._core_numbers) % len(available)
            cores.append(available[position])
        return tuple(cores)

    def _start(
        self,
        name: str,
        run: RunDirectory,
        program: Mapping[str, object],
    ) -> None:
        """Start the supervisor and wait for its report. ``program``: as for `_create_and_start`.

        Raises OSError, `EngineError` if the run could not start.
        """
        descriptor, report = self._spawner.start(run.path, program)
        word, _, details = report.partition(" ")
        try:
            if word == supervisor.STARTED:
                for watch in self._watches:
                    watch.add(name, os.dup(descriptor))  # each watch closes its own descriptor
                return
            has_reported = bool(word)
            if not has_reported:
                send(descriptor, signal.SIGKILL)
            # The caller may delete the directory only when the supervisor no longer uses it.
            exits_within(descriptor, _EXIT_TIMEOUT)
        finally:
            os.close(descriptor)
        _check_report(run, word, details)

    def _run(self, name: str) -> RunDirectory:
        """Return the directory of one of this node's runs.

        For any other name, a directory that does not exist.
        """
        if is_name(name):
            run = RunDirectory(self._root / name)
            if self._is_own_run(run):
                return run
        return RunDirectory(self._root / _NO_RUN)

    def _is_own_run(self, run: RunDirectory) -> bool:
        """Whether a run exists and belongs to this node of this installation."""
        labels = run.labels() or {}
        return belongs_to(labels, self._node, self._installation)

    def _owned_runs(self) -> Iterator[tuple[str, RunDirectory, Mapping[str, str]]]:
        """Yield name, directory and labels of each of this node's runs."""
        if not self._root.exists():
            return
        for name in sorted(os.listdir(self._root)):
            run = self._run(name)
            labels = run.labels()
            if labels is not None:
                yield name, run, labels

    def _lock(self, name: str) -> threading.Lock:
        """Return the lock for launches and removals of a run."""
        return self._locks[hash(name) % len(self._locks)]


def _check_report(run: RunDirectory, word: str, details: str) -> None:
    """Raise the error that a supervisor reports; return if the run was started before.

    ``details``: an error number and a text; empty if the word has none. Raises OSError if the run
    could not be claimed, else `EngineError`.
    """
    number, _, text = details.partition(" ")
    match word:
        case supervisor.TAKEN:
            return
        case supervisor.REFUSED:
            raise OSError(int(number), text)
        case supervisor.FAILED:
            error_type = _START_ERRORS.get(int(number), CreateFailed)
            raise error_type(text)
        case _:  # no report, or one that was cut off
            log = engines_logs.read_tail(run.path / supervisor.OWN_LOG, _LONGEST_OUTPUT)
            output = log.decode(errors="replace") or "no output"
            raise CreateFailed(f"the run's supervisor did not start it: {output}")


def _check_supported(spec: LaunchSpec) -> None:
    """Raise `NotSupported` for a run that needs a container."""
    refusals = (
        (
            spec.mounts,
            "this engine cannot mount: its runs see the gateway's own files",
        ),
        (
            spec.capabilities,
            "this engine cannot grant capabilities: its runs have the gateway's own",
        ),
        (
            spec.limits.gpu,
            "this engine cannot set GPUs aside: its runs see all that the machine has",
        ),
    )
    for request, refusal in refusals:
        if request:
            raise NotSupported(refusal)


def _is_assignment(argument: str) -> bool:
    """Whether an argument of env sets a variable."""
    return "=" in argument


def _kill_and_delete(directory: Path) -> None:
    """Kill the run in a directory that was renamed by a removal, then delete the directory."""
    run = RunDirectory(directory)
    run.kill()
    run.delete()


def _send_program(connection: socket.socket, program: Mapping[str, object]) -> int:
    """Send a program to a new supervisor; return a descriptor of the supervisor's process.

    ``program``: the fields of `supervisor.Program`. Raises OSError if the supervisor could not be
    forked.
    """
    descriptors: Sequence[int] = ()
    # If the forking process ends without a fork, the connection breaks or ends.
    with suppress(ConnectionError):
        connection.sendall(json.dumps(program).encode())
        connection.shutdown(socket.SHUT_WR)
        # The supervisor sends one byte, and with it a descriptor of its own process. The two
        # arguments are the largest numbers of bytes and of descriptors to receive.
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        raise BlockingIOError(errno.EAGAIN, "the supervisor could not be forked")
    return descriptors[0]


class Spawner:
    """Forks supervisors.

    The fork of one small process costs a fraction of the start of an interpreter. The forking
    process ends with the gateway and is replaced if it dies. The supervisors outlive both.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(
        self,
        directory: Path,
        program: Mapping[str, object],
    ) -> tuple[int, str]:
        """Start the supervisor of a run; return a descriptor of its process, and its report.

        ``program``: the fields of `supervisor.Program`. The report is empty if it does not come
        within `REPORT_TIMEOUT`, or the supervisor ends before. Raises OSError if the supervisor
        could not be forked.
        """
        connection, supervisor_end = socket.socketpair()
        with connection:
            connection.settimeout(_FORK_TIMEOUT)
            with supervisor_end:
                self._request(directory, supervisor_end)
            descriptor = _send_program(connection, program)
            connection.settimeout(REPORT_TIMEOUT)
            report = b""
            with suppress(TimeoutError, ConnectionError), connection.makefile("rb") as lines:
                report = lines.readline()
            return descriptor, report.decode(errors="replace").strip()

    def close(self) -> None:
        """End the process that forks; supervisors continue."""
        with self._lock:
            self._end()

    def _request(self, directory: Path, connection: socket.socket) -> None:
        """Send a request for a supervisor; replace a dead forking process once. Raises OSError."""
        with self._lock:
            try:
                self._send(directory, connection)
            except OSError:
                self._end()
                self._send(directory, connection)

    def _send(self, directory: Path, connection: socket.socket) -> None:
        """Send a directory with the supervisor's end of a connection. Raises OSError."""
        socket.send_fds(
            self._ensure_server(),
            [os.fsencode(directory)],
            [connection.fileno()],
        )

    def _ensure_server(self) -> socket.socket:
        """Return the connection to the forking process, which is started on demand."""
        if self._control is None:
            # This type of socket keeps each request a message of its own.
            self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with server_end:
                self._server = subprocess.Popen(
                    # -I and -S: the module needs neither the user's settings nor site packages.
                    [sys.executable, "-I", "-S", supervisor.__file__],
                    stdin=server_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,
                )
        return self._control

    def _end(self) -> None:
        """End the forking process, if there is one."""
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.kill()
            self._server.wait()
        self._control = None
        self._server = None
