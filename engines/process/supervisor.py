"""Supervises one local run: starts it, forwards signals, and records its exit.

The engine (`engines.process.engine`) has one process that forks a supervisor for each run. The
supervisor receives its run's program on a socket and outlives the gateway. The run directory holds

    spec.json        labels of the run; written by the engine
    supervisor.json  the supervising process; created exclusively: no run is started twice
    child.json       the started process
    stdout.log, stderr.log, work/ (the run's working and home directory)
    supervisor.log   the supervisor's own output: empty unless it is broken
    exit.json        the exit

SIGTERM is forwarded to every process of the run, SIGUSR1 kills all of them. All processes that the
run starts stay below this process (it is their "subreaper"), even if they leave the session.
Processes that remain when the run's first process has exited are killed.

This module runs as a program without the rest of the package, so it only imports the standard
library.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import time
import traceback
from dataclasses import dataclass
from typing import Any

# Files of the run directory
SPEC = "spec.json"
SUPERVISOR = "supervisor.json"
CHILD = "child.json"
EXIT = "exit.json"
STDOUT = "stdout.log"
STDERR = "stderr.log"
WORK = "work"
OWN_LOG = "supervisor.log"

# First word of the one line that the engine reads. An error number and a text follow `REFUSED` and
# `FAILED`.
STARTED = "started"
TAKEN = "taken"  # the run was started before
REFUSED = "refused"  # this supervisor could not claim the run
FAILED = "failed"  # the run could not be started

# Positions in the list that `stat` returns
_STATE_FIELD = 0
_PARENT_FIELD = 1
SESSION_FIELD = 3
_START_FIELD = 19  # in clock ticks since boot

KILL_ALL = signal.SIGUSR1

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALS = {signal.SIGCHLD, KILL_ALL, *_FORWARDED}  # blocked, and received by `_wait`
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # from the start of an interpreter on

# Options of prctl
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_NOT_STARTED = 127  # exit code of a child that could not become the run's program
_FIRST_SIGNAL_CODE = 128  # exit codes above it mean a signal
_MAX_OPEN_FILES = 65_536  # of each process of a run; the gateway may have more
_MAX_REQUEST = 65_536  # bytes of the path of a run directory
_RETRY_AFTER = 1.0  # seconds before the exit of a run is written again after the disk was full
_CHECK_EVERY = 10.0  # seconds between two checks that the run's directory exists

_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Program:
    """The program of a run and its limits, as the engine sends them."""

    command: list[str]  # the executable's path and the arguments
    environment: dict[str, str]
    memory: int | None  # bytes; None: no limit
    cores: list[int] | None  # the numbers of the cores that it may use; None: all


def serve() -> None:
    """Fork a supervisor for every directory and connection that arrives at standard input.

    Standard input is a socket. Returns when the gateway is gone, which closes the other end.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the supervisors
    control = socket.socket(fileno=os.dup(0))
    while True:
        directory, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 1)
        is_complete = bool(directory) and bool(descriptors)
        if not is_complete:
            return
        connection = descriptors[0]
        os.set_inheritable(connection, False)
        if os.fork() == 0:
            control.close()
            _run_supervisor(os.fsdecode(directory), socket.socket(fileno=connection))
        os.close(connection)


def _run_supervisor(directory: str, connection: socket.socket) -> None:
    """Supervise a run, and end this process. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        own_descriptor = os.pidfd_open(os.getpid())
        socket.send_fds(connection, [b"."], [own_descriptor])  # a descriptor needs at least a byte
        os.close(own_descriptor)
        supervise(directory, connection)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def supervise(directory: str, connection: socket.socket) -> None:
    """Supervise the run in the directory until its last process is gone.

    Returns early, after a report, if the run was started before or cannot be started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with connection, connection.makefile("rb") as request:
        program = Program(**json.load(request))
        try:
            if not _claim(directory):
                _report(connection, TAKEN)
                return
        except OSError as error:
            _report(connection, REFUSED, error)
            return
        started = time.time()
        try:
            child = _start(directory, program)
            record = {**identity(child), "started": started}
            write(os.path.join(directory, CHILD), json.dumps(record))
        except OSError as error:
            _kill_all()  # the run may have started, and only its record could not be written
            _report(connection, FAILED, error)
            return
        _report(connection, STARTED)
    status = _wait(directory, child)
    _kill_all()
    _record_exit(directory, os.waitstatus_to_exitcode(status), started)


def _claim(directory: str) -> bool:
    """Claim the run and return True; return False if the run was started before.

    The supervisor's own errors go to a file in the run's directory from here on. Raises OSError.
    """
    path = os.path.join(directory, OWN_LOG)
    os.dup2(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        2,
    )
    record = json.dumps(identity(os.getpid()))
    return write(
        os.path.join(directory, SUPERVISOR),
        record,
        exclusive=True,
    )


def _start(directory: str, program: Program) -> int:
    """Start the program; return its process id. Raises the OSError of a failed start."""
    # A successful start closes the pipe, a failed one writes its error number.
    error_reader, error_writer = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _run_child(directory, program, supervisor, error_writer)
    os.close(error_writer)
    error_number = os.read(error_reader, 16)
    os.close(error_reader)
    if error_number:
        os.waitpid(child, 0)
        number = int(error_number)
        raise OSError(number, os.strerror(number), program.command[0])
    return child


def _run_child(
    directory: str,
    program: Program,
    supervisor: int,
    error_writer: int,
) -> None:
    """Become the program of the run, in a new session. Never returns.

    If the supervisor dies, the kernel kills this process only; the engine kills the rest of the
    session.
    """
    try:
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        has_supervisor = os.getppid() == supervisor
        if has_supervisor:  # False if the supervisor died before the call of prctl
            _become(directory, program)
    except OSError as error:
        os.write(error_writer, f"{error.errno}".encode())
    finally:
        os._exit(_NOT_STARTED)


def _become(directory: str, program: Program) -> None:
    """Replace this process by the program of the run. Raises OSError."""
    for descriptor, name in ((1, STDOUT), (2, STDERR)):
        path = os.path.join(directory, name)
        log = os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            0o600,
        )
        os.dup2(log, descriptor)
    _apply_limits(program)
    os.chdir(os.path.join(directory, WORK))
    for number in _IGNORED_BY_PYTHON:  # else the new program would ignore these signals, too
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.execve(program.command[0], program.command, program.environment)


def _apply_limits(program: Program) -> None:
    """Limit this process: memory, core dumps, open files and cores."""
    if program.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (program.memory, program.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = (
        min(soft, _MAX_OPEN_FILES),
        min(hard, _MAX_OPEN_FILES),
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    if program.cores is not None:
        os.sched_setaffinity(0, program.cores)


def _wait(directory: str, child: int) -> int:
    """Forward signals until the child exits; return its wait status.

    A run whose directory was removed is killed, which makes the child exit.
    """
    while True:
        received = signal.sigtimedwait(_SIGNALS, _CHECK_EVERY)
        number = 0  # no signal came: `_forward` only checks that the directory exists
        if received is not None:
            number = received.si_signo
        _forward(number, directory)
        status = _reap(child)
        if status is not None:
            return status


def _forward(number: int, directory: str) -> None:
    """Pass a signal on to all processes of the run, SIGINT and SIGHUP as SIGTERM.

    Kill the processes if the signal is `KILL_ALL`, or if the run's directory was removed.
    ``number``: 0 without a signal.
    """
    is_removed = not os.path.exists(os.path.join(directory, SUPERVISOR))
    if is_removed or number == KILL_ALL:
        _signal_all(signal.SIGKILL)
    elif number in _FORWARDED:
        _signal_all(signal.SIGTERM)


def _reap(child: int) -> int | None:
    """Reap the processes that have exited: several exits may come as one signal.

    Returns the wait status of the child; None if it has not exited.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return status
        if not pid:  # no further process has exited
            return None


def _kill_all() -> None:
    """Kill and reap all remaining processes of the run."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, os.WNOHANG)  # raises ChildProcessError if none remains
            _signal_all(signal.SIGKILL)
            os.waitpid(-1, 0)  # reaps one process; the loop continues until none remains


def _signal_all(number: int) -> None:
    """Send a signal to all processes of the run, as far as they exist and may be signalled."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _record_exit(directory: str, exit_code: int, started: float) -> None:
    """Record the exit of the run, unless the run was removed. Wait for space on a full disk.

    ``exit_code``: negative for a signal; ``started``: seconds since the epoch.
    """
    code = exit_code
    signal_number = None
    if exit_code < 0:
        signal_number = -exit_code
        code = _FIRST_SIGNAL_CODE + signal_number
    record = {
        "code": code,
        "signal": signal_number,
        "started": started,
        "finished": time.time(),
    }
    while True:
        try:
            write(
                os.path.join(directory, EXIT),
                json.dumps(record),
                exclusive=True,
            )
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_RETRY_AFTER)


def _report(
    connection: socket.socket,
    word: str,
    error: OSError | None = None,
) -> None:
    """Send the engine the line that it waits for, with the error if there is one."""
    line = word
    if error is not None:
        line = f"{word} {error.errno} {error}"
    with contextlib.suppress(OSError):  # the gateway is gone; the run continues
        connection.sendall(line.encode("utf-8", "replace") + b"\n")


def _descendants(pid: int) -> list[int]:
    """Return all processes below a process.

    Zombies are included: the first thread of a process may be dead while others run.
    """
    children: dict[int, list[int]] = {}
    for process in processes():
        fields = stat(process)
        if fields:
            parent = int(fields[_PARENT_FIELD])
            children.setdefault(parent, []).append(process)
    descendants = list(children.get(pid, ()))
    for descendant in descendants:  # the list grows during the loop
        descendants += children.get(descendant, ())
    return descendants


# ------------------------------------------------------------ shared with the engine


def identity(pid: int) -> dict[str, Any]:
    """Return a record that distinguishes a process from a later one with the same number."""
    return {
        "pid": pid,
        "start": start_time(pid),
        "boot": boot_id(),
    }


def boot_id() -> str:
    """Return the id of this boot of the machine: process numbers start over with each."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it has exited."""
    fields = stat(pid)
    if fields is None or fields[_STATE_FIELD] in "ZX":  # a zombie, or dead
        return None
    return int(fields[_START_FIELD])


def processes() -> list[int]:
    """Return the number of every process."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on; None if the process has exited.

    The program's name, in brackets before the state, may contain any character, so the last closing
    bracket counts.
    """
    try:
        # The first thread's file has the same fields; qemu-user makes up /proc/<pid>/stat for a
        # process that reads its own.
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def write(
    path: str,
    text: str,
    *,
    exclusive: bool = False,
) -> bool:
    """Write a file completely or not at all; return whether it was written.

    ``exclusive``: write the file only if it does not exist, and return False if it does. Raises
    OSError.
    """
    temporary = f"{path}.{os.urandom(6).hex()}"
    try:
        descriptor = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL,
            0o600,
        )
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if exclusive:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was renamed, or not created
            os.unlink(temporary)


if __name__ == "__main__":
    serve()
