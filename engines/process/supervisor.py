"""Supervises one local run: starts it, forwards signals, kills what it leaves behind, records how it exited.

Forked for each run by one process of the engine (`engines.process.engine`), and told on a socket what to run. It
outlives the gateway. The run directory holds

    spec.json        labels of the run; written by the engine
    supervisor.json  the supervising process; created exclusively, so that a run is not started twice
    child.json       the started process
    stdout.log, stderr.log, work/ (the run's working and home directory)
    supervisor.log   the supervisor's own output: empty unless it is broken
    exit.json        how it exited

SIGTERM is forwarded to every process of the run, SIGUSR1 kills them all. What the run starts stays below this
process (it is their "subreaper"), even if it leaves the session.
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
from typing import Any

SPEC, SUPERVISOR, CHILD, EXIT = "spec.json", "supervisor.json", "child.json", "exit.json"
STDOUT, STDERR, WORK, OWN_LOG = "stdout.log", "stderr.log", "work", "supervisor.log"

STARTED, TAKEN, REFUSED, FAILED = "started", "taken", "refused", "failed"
"""First word of the one line that the engine reads: the run is up; it was started before; this supervisor could
not claim it; it could not be started. An error number and a text follow the last two."""

KILL_ALL = signal.SIGUSR1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALS = {signal.SIGCHLD, KILL_ALL, *_FORWARDED}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127
_MOST_OPEN = 65_536
"""descriptors of each process of a run: the gateway may have more"""
_RETRY_AFTER = 1.0
"""seconds before the exit of a run is written again after the disk was full"""
_CHECK_EVERY = 10.0
"""seconds between two checks that the run's directory is still there"""

_LIBC = ctypes.CDLL(None)


def serve() -> None:
    """Fork a supervisor for every directory and connection from standard input, until the gateway is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    control = socket.socket(fileno=os.dup(0))
    while True:
        directory, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
        if not directory or not descriptors:
            return
        os.set_inheritable(descriptors[0], False)
        if os.fork() == 0:
            control.close()
            _begin(os.fsdecode(directory), socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def _begin(directory: str, connection: socket.socket) -> None:
    """Supervise, and end this process. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        own = os.pidfd_open(os.getpid())
        socket.send_fds(connection, [b"."], [own])
        os.close(own)
        supervise(directory, connection)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def supervise(directory: str, connection: socket.socket) -> None:
    """Supervise the run in the directory until its last process is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with connection, connection.makefile("rb") as request:
        command = json.load(request)
        try:
            os.dup2(
                os.open(
                    os.path.join(directory, OWN_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
                ),
                2,
            )
            if not write(
                os.path.join(directory, SUPERVISOR),
                json.dumps(identity(os.getpid())),
                exclusive=True,
            ):
                _report(connection, TAKEN)
                return
        except OSError as error:
            _report(connection, REFUSED, error)
            return
        started = time.time()
        try:
            child = _start(directory, **command)
            write(
                os.path.join(directory, CHILD), json.dumps({**identity(child), "started": started})
            )
        except OSError as error:
            _kill_all()
            _report(connection, FAILED, error)
            return
        _report(connection, STARTED)
    status = _wait(directory, child)
    _kill_all()
    code = os.waitstatus_to_exitcode(status)
    _finish(directory, 128 - code if code < 0 else code, -code if code < 0 else None, started)


def _start(
    directory: str,
    command: list[str],
    environment: dict[str, str],
    memory: int | None,
    cores: list[int] | None,
) -> int:
    """Start the command; return its process id. Raises the OSError that kept it from starting."""
    supervisor = os.getpid()
    failure, failed = os.pipe()  # closed by a start that works
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(_NOT_STARTED)
            _become(directory, command, environment, memory, cores)
        except OSError as error:
            os.write(failed, f"{error.errno}".encode())
        finally:
            os._exit(_NOT_STARTED)
    os.close(failed)
    reported = os.read(failure, 16)
    os.close(failure)
    if reported:
        os.waitpid(child, 0)
        raise OSError(int(reported), os.strerror(int(reported)), command[0])
    return child


def _become(
    directory: str,
    command: list[str],
    environment: dict[str, str],
    memory: int | None,
    cores: list[int] | None,
) -> None:
    for number, name in ((1, STDOUT), (2, STDERR)):
        log = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, number)
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, _MOST_OPEN), min(hard, _MOST_OPEN)))
    if cores is not None:
        os.sched_setaffinity(0, cores)
    os.chdir(os.path.join(directory, WORK))
    for ignored in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores them, and a new program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.execve(command[0], command, environment)


def _wait(directory: str, child: int) -> int:
    """Forward signals until the child exits; return its wait status. A run without a directory is killed."""
    while True:
        got = signal.sigtimedwait(_SIGNALS, _CHECK_EVERY)
        number = None if got is None else got.si_signo
        if number == KILL_ALL or not os.path.exists(os.path.join(directory, SUPERVISOR)):
            _signal_all(signal.SIGKILL)
        elif number in _FORWARDED:
            _signal_all(signal.SIGTERM)
        ended = -1
        while ended:  # several exits may come as one signal
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                return status


def _kill_all() -> None:
    """Kill and reap whatever is left of the run."""
    with contextlib.suppress(ChildProcessError):  # nothing is left
        while True:
            os.waitpid(-1, os.WNOHANG)
            _signal_all(signal.SIGKILL)
            os.waitpid(-1, 0)


def _signal_all(number: int) -> None:
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _finish(
    directory: str,
    code: int,
    number: int | None,
    started: float,
) -> None:
    """Record the exit, unless the run was removed meanwhile; once the disk has space, which it may have filled."""
    end = {
        "code": code,
        "signal": number,
        "started": started,
        "finished": time.time(),
    }
    while True:
        try:
            write(os.path.join(directory, EXIT), json.dumps(end), exclusive=True)
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
    line = word if error is None else f"{word} {error.errno} {error}"
    with contextlib.suppress(OSError):  # the gateway is gone: the run goes on
        connection.sendall(line.encode("utf-8", "replace") + b"\n")


def _descendants(pid: int) -> list[int]:
    """Return the processes below the process.

    Zombies are included: the first thread of a process may be dead while others run.
    """
    parents: dict[int, list[int]] = {}
    for number in processes():
        if fields := stat(number):
            parents.setdefault(int(fields[1]), []).append(number)
    found = [pid]
    for one in found:  # grows meanwhile
        found += parents.get(one, [])
    return found[1:]


# The rest is shared with the engine.


def identity(pid: int) -> dict[str, Any]:
    """Return what distinguishes a process from a later one with the same number."""
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
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def processes() -> list[int]:
    """Return the number of every process."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on; the name before may contain anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def write(
    path: str,
    text: str,
    *,
    exclusive: bool = False,
) -> bool:
    """Write the file whole or not at all. Exclusive: only if there is none yet; return whether it was written."""
    new = f"{path}.{os.urandom(6).hex()}"
    try:
        with open(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        if exclusive:
            os.link(new, path)
        else:
            os.replace(new, path)
        return True
    except FileExistsError:
        return False
    finally:
        if os.path.exists(new):
            os.unlink(new)


if __name__ == "__main__":
    serve()
