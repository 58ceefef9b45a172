"""Stands over one local run: starts it, hands on signals, ends what it leaves behind, writes down how it ended.

Started by `engines.process.spawner`, or by hand as ``python -I -S supervisor.py <run directory>``, so it imports
the standard library only. It outlives the gateway. The run directory holds

    spec.json        command, environment, limits and labels of the run; written by the engine
    supervisor.json  who supervises; made once, hence the claim that keeps a run from being started twice
    child.json       the started process
    stdout.log, stderr.log, work/ (the run's working and home directory)
    supervisor.log   what the supervisor itself had to say: empty unless it is broken
    exit.json        how it ended

SIGTERM is handed to every process of the run, SIGUSR1 kills them all. What the run starts stays below this process
(it is their "subreaper"), even if it leaves the session.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

SPEC, SUPERVISOR, CHILD, EXIT = "spec.json", "supervisor.json", "child.json", "exit.json"
STDOUT, STDERR, WORK, OWN_LOG = "stdout.log", "stderr.log", "work", "supervisor.log"

STARTED, TAKEN, REFUSED, FAILED = "started", "taken", "refused", "failed"
"""First word of the one line that the engine reads: the run is up; it was started before; this supervisor could
not make it its own; it could not be started."""

NURSERY = "--nursery"
"""first argument of the process that makes supervisors; the second says for which directory"""

KILL_ALL = signal.SIGUSR1
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127
_MOST_OPEN = 65_536
"""descriptors of each process of a run: the gateway may have more"""
_REAP_EVERY = 1.0
"""seconds for which an ended supervisor may stay in the table of processes"""
_TRY_AGAIN = 1.0
"""seconds until the end of a run is written once more, where the disk was full"""
_LOOK_EVERY = 10.0
"""seconds between two looks whether the run's directory is still there"""


def main(directory: str) -> None:
    """Supervise the run in the directory until its last process is gone."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    signals = {signal.SIGCHLD, KILL_ALL, *_HANDED_ON}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if os.getsid(0) != os.getpid():
        os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        spec = read_json(os.path.join(directory, SPEC))
        if spec is None:
            raise OSError(errno.ESTALE, "the run was removed", directory)
        claimed = write_json(os.path.join(directory, SUPERVISOR), identity(os.getpid()), exclusive=True)
    except OSError as error:
        _tell(REFUSED, error)
        return
    if not claimed:
        _tell(TAKEN)
        return

    started = time.time()
    try:
        child = _start(directory, spec, libc)
        write_json(os.path.join(directory, CHILD), {**identity(child), "started": started})
    except OSError as error:
        _end_all()
        _tell(FAILED, error)
        _finish(directory, _NOT_STARTED, None, started, patient=False)
        return
    _tell(STARTED)
    status = _wait(directory, child, signals)
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    _finish(directory, 128 - code if code < 0 else code, -code if code < 0 else None, started)


def serve() -> None:
    """Make a supervisor for every directory that comes in on standard input, until the gateway is gone.

    With each comes the descriptor on which the supervisor tells of its start; back goes one of the supervisor.
    """
    os.setsid()  # what ends the gateway from its terminal does not end this
    way = socket.socket(fileno=os.dup(0))
    asked = select.poll()
    asked.register(way, select.POLLIN)
    while True:
        if not asked.poll(_REAP_EVERY * 1000):
            _collect_ended()
            continue
        directory, descriptors, _, _ = socket.recv_fds(way, 65536, 1)
        if not directory or not descriptors:
            return
        child = os.fork()
        if child == 0:
            _bear(os.fsdecode(directory), descriptors[0])
        os.close(descriptors[0])
        born = os.pidfd_open(child)  # nobody has collected it yet, so the number is its own
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(way, [b"."], [born])
        os.close(born)
        _collect_ended()


def _bear(directory: str, answer: int) -> None:
    """Become the supervisor of a run. Never returns."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(answer, 1)
        os.dup2(os.open(os.path.join(directory, OWN_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        main(directory)
        code = 0
    except BaseException:
        import traceback  # noqa: PLC0415  only where something is broken

        traceback.print_exc()
    finally:
        os._exit(code)


def _collect_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _start(directory: str, spec: dict[str, Any], libc: ctypes.CDLL) -> int:
    """Start the command; return its process id. Raises the OSError that kept it from starting."""
    supervisor = os.getpid()
    failure, failed = os.pipe()  # closed by a start that works
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(_NOT_STARTED)
            _become(directory, spec)
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
        raise OSError(int(reported), os.strerror(int(reported)), spec["command"][0])
    return child


def _become(directory: str, spec: dict[str, Any]) -> None:
    for number, name in ((1, STDOUT), (2, STDERR)):
        log = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, number)
    if spec["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (spec["memory"], spec["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, _MOST_OPEN), min(hard, _MOST_OPEN)))
    if spec["cores"] is not None:
        os.sched_setaffinity(0, spec["cores"])
    os.chdir(os.path.join(directory, WORK))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _wait(directory: str, child: int, signals: set[signal.Signals]) -> int:
    """Hand on signals until the child ends; return its wait status. A run whose directory is deleted is killed."""
    while True:
        got = signal.sigtimedwait(signals, _LOOK_EVERY)
        if not os.path.exists(os.path.join(directory, SUPERVISOR)):  # nobody could find the run any more
            _signal_all(signal.SIGKILL)
        elif got is not None and got.si_signo in _HANDED_ON:
            _signal_all(signal.SIGTERM)
        elif got is not None and got.si_signo == KILL_ALL:
            _signal_all(signal.SIGKILL)
        while True:  # several ends may come as one signal
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == child:
                return status
            if ended == 0:
                break


def _end_all() -> None:
    """Kill and collect whatever is left of the run."""
    while _collects_one(os.WNOHANG):  # most runs leave nothing, and to look for it is to look at every process
        _signal_all(signal.SIGKILL)
        _collects_one(0)


def _collects_one(options: int) -> bool:
    """Collect a process that has ended, if one has; say whether any was left."""
    try:
        os.waitpid(-1, options)
    except ChildProcessError:
        return False
    return True


def _signal_all(number: signal.Signals) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _finish(directory: str, code: int, number: int | None, started: float, *, patient: bool = True) -> None:
    """Write down the end, unless the run was removed meanwhile. ``patient``: once there is room for it.

    Nobody else knows how the run ended: what filled the disk may well have been its own output.
    """
    end = {"code": code, "signal": number, "started": started, "finished": time.time()}
    while True:
        try:
            write_json(os.path.join(directory, EXIT), end, exclusive=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            if not patient:
                raise
            time.sleep(_TRY_AGAIN)


def _tell(word: str, error: OSError | None = None) -> None:
    line = json.dumps([word] if error is None else [word, error.errno or errno.EIO, str(error)])
    with contextlib.suppress(BrokenPipeError):  # the gateway is gone: the run goes on
        os.write(1, line.encode() + b"\n")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)


# ---------------------------------------------------------------- shared with the engine


def identity(pid: int) -> dict[str, Any]:
    """Return what tells a process from a later one with the same number."""
    return {"pid": pid, "start": start_time(pid), "boot": boot_id(), "host": os.uname().nodename}


def boot_id() -> str:
    """Return what tells this start of the machine from others: process numbers begin anew with each."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it is over."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def session_of(pid: int) -> int | None:
    """Return the session that a process belongs to; None: there is no such process."""
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def processes() -> Iterator[int]:
    """Yield the number of every process."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def descendants(pid: int) -> list[int]:
    """Return the processes below the process.

    Uncollected dead ones are among them: the first thread of a process may be dead while others run.
    """
    parents: dict[int, list[int]] = {}
    for number in processes():
        fields = _stat(number)
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(number)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on; the name before may contain anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """Return the object in the file, None if there is no such file or it is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str, value: dict[str, Any], *, exclusive: bool = False) -> bool:
    """Write the file whole or not at all. Exclusive: only if there is none yet; return whether it was written."""
    new = f"{path}.{os.urandom(6).hex()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
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
    serve() if sys.argv[1] == NURSERY else main(sys.argv[1])
