"""Supervises one local run: starts it, forwards signals, kills what it leaves behind, records how it exited.

Started as ``python -I -S supervisor.py <run directory>``, and told on stdin what to run. It outlives the gateway.
The run directory holds

    spec.json        labels of the run; written by the engine
    supervisor.json  the supervising process; created exclusively, so that a run is not started twice
    child.json       the started process
    stdout.log, stderr.log, work/ (the run's working and home directory)
    supervisor.log   the supervisor's own output: empty unless it is broken
    exit.json        how it exited

SIGTERM is forwarded to every process of the run, SIGUSR1 kills them all. What the run starts stays below this
process (it is their "subreaper"), even if it leaves the session.

A run waits for this to start, so nothing is imported but modules in C: json, signal, ctypes, typing and contextlib
cost 40 ms together, twice as much as Python itself.
"""

from __future__ import annotations

import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import errno
import marshal
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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

Command = tuple[tuple[str, ...], dict[str, str], int | None, tuple[int, ...] | None]
"""What the engine sends with `marshal`: command line, environment, bytes of memory, cores."""


def main(directory: str) -> None:
    """Supervise the run in the directory until its last process is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command: Command = marshal.load(sys.stdin.buffer)
    try:
        claimed = write(os.path.join(directory, SUPERVISOR), record(identity(os.getpid())), exclusive=True)
    except OSError as error:
        _report(REFUSED, error)
        return
    if not claimed:
        _report(TAKEN)
        return
    started = time.time()
    try:
        child = _start(directory, command)
        write(os.path.join(directory, CHILD), record({**identity(child), "started": started}))
    except OSError as error:
        _kill_all()
        _report(FAILED, error)
        _finish(directory, _NOT_STARTED, None, started, patient=False)
        return
    _report(STARTED)
    status = _wait(directory, child)
    _kill_all()
    code = os.waitstatus_to_exitcode(status)
    _finish(directory, 128 - code if code < 0 else code, -code if code < 0 else None, started)


def _prctl(option: int, value: int) -> None:
    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # this program itself
    _ctypes.call_function(_ctypes.dlsym(libc, "prctl"), (option, value, 0, 0, 0))


def _start(directory: str, command: Command) -> int:
    """Start the command; return its process id. Raises the OSError that kept it from starting."""
    supervisor = os.getpid()
    failure, failed = os.pipe()  # closed by a start that works
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(_NOT_STARTED)
            _become(directory, *command)
        except (OSError, ValueError) as error:  # ValueError: a limit above what is allowed here
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            os.write(failed, f"{number or errno.EIO}".encode())
        finally:
            os._exit(_NOT_STARTED)
    os.close(failed)
    reported = os.read(failure, 16)
    os.close(failure)
    if reported:
        os.waitpid(child, 0)
        raise OSError(int(reported), os.strerror(int(reported)), command[0][0])
    return child


def _become(
    directory: str,
    command: tuple[str, ...],
    environment: dict[str, str],
    memory: int | None,
    cores: tuple[int, ...] | None,
) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would inherit that
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
        while True:  # several exits may come as one signal
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == child:
                return status
            if ended == 0:
                break


def _kill_all() -> None:
    """Kill and reap whatever is left of the run."""
    try:
        while True:
            os.waitpid(-1, os.WNOHANG)
            _signal_all(signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:  # nothing is left
        return


def _signal_all(number: int) -> None:
    for pid in _descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _finish(directory: str, code: int, number: int | None, started: float, *, patient: bool = True) -> None:
    """Record the exit, unless the run was removed meanwhile. ``patient``: retry until the disk has space.

    Nobody else knows how the run exited, and it may have filled the disk itself.
    """
    end = {"code": code, "signal": number, "started": started, "finished": time.time()}
    while True:
        try:
            write(os.path.join(directory, EXIT), record(end), exclusive=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            if not patient:
                raise
            time.sleep(_RETRY_AFTER)


def _report(word: str, error: OSError | None = None) -> None:
    line = word if error is None else f"{word} {error.errno or errno.EIO} {error}"
    try:
        os.write(1, line.encode("utf-8", "replace") + b"\n")
    except BrokenPipeError:  # the gateway is gone: the run goes on
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _descendants(pid: int) -> list[int]:
    """Return the processes below the process.

    Zombies are included: the first thread of a process may be dead while others run.
    """
    parents: dict[int, list[int]] = {}
    for number in processes():
        fields = stat(number)
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(number)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


# The rest is shared with the engine.


def identity(pid: int) -> dict[str, object]:
    """Return what distinguishes a process from a later one with the same number."""
    return {"pid": pid, "start": start_time(pid), "boot": boot_id(), "host": os.uname().nodename}


def record(fields: Mapping[str, object]) -> str:
    """Return numbers and plain words as JSON."""
    texts = {k: f'"{v}"' if isinstance(v, str) else "null" if v is None else repr(v) for k, v in fields.items()}
    return "{" + ", ".join(f'"{k}": {text}' for k, text in texts.items()) + "}"


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


def write(path: str, text: str, *, exclusive: bool = False) -> bool:
    """Write the file whole or not at all. Exclusive: only if there is none yet; return whether it was written."""
    new = f"{path}.{os.urandom(6).hex()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        if not exclusive:
            os.replace(new, path)
            return True
        try:
            os.link(new, path)
        except FileExistsError:
            return False
        return True
    finally:
        if os.path.exists(new):
            os.unlink(new)


if __name__ == "__main__":
    main(sys.argv[1])
