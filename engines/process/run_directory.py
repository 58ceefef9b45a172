"""The state of local runs, and a watch that reports their exits.

The state comes only from the runs' directories and the process table. Processes are identified by
number and start time, so that a later process with the same number is never touched.
"""

import json
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.base import FIRST_SIGNAL_CODE, KILLED, DiskUse, Exited, Missing, Probe, Running
from engines.files import size_below, try_to_remove
from engines.logs import STREAMS
from engines.process import supervisor
from engines.process.supervisor import boot_id, processes, start_time, stat
from engines.watch import Follower

KILL_TIMEOUT = 5.0  # seconds that a supervisor may take to kill its run
_SESSION_KILL_TIMEOUT = 2.0  # seconds that one process of a session may take to end
# Seconds between two looks; almost 0, as a look itself waits until a process exits
_PAUSE = 0.001
_BLOCK = 512  # bytes; unit of st_blocks


class RunDirectory:
    """One run's directory; `engines.process.supervisor` describes its files."""

    def __init__(self, path: Path) -> None:
        """``path``: the directory, which need not exist."""
        self.path = path

    def create(self, labels: Mapping[str, str]) -> None:
        """Create the directory, with the working folder and the labels. Raises OSError."""
        self.work.mkdir(parents=True, exist_ok=True, mode=0o700)
        supervisor.write(
            self._file(supervisor.SPEC),
            json.dumps({"labels": dict(labels)}),
        )

    @property
    def work(self) -> Path:
        """The folder in which the run was started."""
        return self.path / supervisor.WORK

    def log(self, stream: str) -> Path:
        """Return the file of a stream, ``stdout`` or ``stderr``."""
        return self.path / f"{stream}.log"

    def disk_use(self, max_files: int) -> DiskUse:
        """Measure the working folder and the streams.

        At most ``max_files`` + 1 files are counted.
        """
        size, files = size_below(self.work, max_files)
        for stream in STREAMS:
            with suppress(FileNotFoundError):
                size += self.log(stream).stat().st_blocks * _BLOCK
        return DiskUse(size, files)

    @property
    def claimed(self) -> bool:
        """Whether a supervisor has claimed the run; stays True after the exit of the run."""
        return os.path.exists(self._file(supervisor.SUPERVISOR))

    def labels(self) -> dict[str, str] | None:
        """Return the labels; None if the run does not exist."""
        spec = self._read(supervisor.SPEC)
        if spec is None:
            return None
        return dict(spec["labels"])

    def probe(self) -> Probe:
        """Return the state of the run; record its exit if its supervisor could not."""
        recorded = self._exit()
        if recorded is not None:
            return recorded
        identity = self._read(supervisor.SUPERVISOR)
        if identity is None:
            return Missing()
        with opened(identity) as supervisor_fd:
            if supervisor_fd is not None:
                return Running(_to_datetime(self._started()))
        return self._record_exit()

    def stop(self, grace: float) -> None:
        """Send SIGTERM to every process of the run through its supervisor, which passes it on.

        Kill the rest after ``grace`` seconds. Return when all are gone.
        """
        with opened(self._read(supervisor.SUPERVISOR)) as supervisor_fd:
            if supervisor_fd is not None:
                self._end(supervisor_fd, grace)
        self.probe()  # records the exit if the supervisor could not

    def _end(self, supervisor_fd: int, grace: float) -> None:
        """End the run of a supervisor as `stop` does; a ``grace`` of 0 kills immediately."""
        if grace > 0:
            send(supervisor_fd, signal.SIGTERM)
        if not exits_within(supervisor_fd, max(0.0, grace)):
            self._kill(supervisor_fd)

    def kill(self) -> None:
        """Kill every process of the run."""
        with opened(self._read(supervisor.SUPERVISOR)) as supervisor_fd:
            if supervisor_fd is not None:
                self._kill(supervisor_fd)
        exit_is_missing = self._exit() is None
        if exit_is_missing:  # the supervisor may have died first, and left processes
            kill_session(self._read(supervisor.CHILD))

    def open_supervisor(self) -> int | None:
        """Return a descriptor of the supervisor's process; None if the process has exited.

        The caller closes the descriptor.
        """
        return open_process(self._read(supervisor.SUPERVISOR))

    def delete(self) -> None:
        """Delete the directory, as far as that is possible."""
        try_to_remove(self.path)

    def _kill(self, supervisor_fd: int) -> None:
        """Have the supervisor kill the run; if it fails to, kill both it and the run's session."""
        send(supervisor_fd, supervisor.KILL_ALL)
        if exits_within(supervisor_fd, KILL_TIMEOUT):
            return
        send(supervisor_fd, signal.SIGKILL)
        exits_within(supervisor_fd, KILL_TIMEOUT)
        kill_session(self._read(supervisor.CHILD))

    def _record_exit(self) -> Probe:
        """Record the exit of a run whose supervisor is gone, and return it.

        If the supervisor recorded the exit just before it ended, its record stays.
        """
        kill_session(self._read(supervisor.CHILD))
        record = {
            "code": FIRST_SIGNAL_CODE + KILLED,
            "signal": KILLED,
            "started": self._started(),
            "finished": time.time(),
        }
        with suppress(OSError):  # the run was removed, or the disk is full
            supervisor.write(
                self._file(supervisor.EXIT),
                json.dumps(record),
                exclusive=True,
            )
        return self._exit() or Missing()

    def _exit(self) -> Exited | None:
        """Return the recorded exit; None if none is recorded."""
        record = self._read(supervisor.EXIT)
        if record is None:
            return None
        return Exited(
            code=record["code"],
            signal=record["signal"],
            started_at=_to_datetime(record["started"]),
            finished_at=_to_datetime(record["finished"]),
        )

    def _started(self) -> float | None:
        """Return when the run started, in seconds since the epoch; None if it has not."""
        child = self._read(supervisor.CHILD)
        if child is None:
            return None
        return float(child["started"])  # not the start time in ticks, which identifies the process

    def _read(self, name: str) -> Any:
        """Return the object in a file; None if the file is missing or damaged."""
        try:
            with open(self._file(name), encoding="utf-8") as file:
                return json.load(file)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def _file(self, name: str) -> str:
        """Return the path of a file of the directory."""
        return os.path.join(self.path, name)


def _to_datetime(seconds: float | None) -> datetime | None:
    """Return a time given in seconds since the epoch."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC)


@contextmanager
def opened(identity: dict[str, Any] | None) -> Iterator[int | None]:
    """Yield a descriptor of a process, and close it afterwards; None if the process has exited.

    ``identity``: as `supervisor.identity` returns it; None: no process. Another process with the
    same number is never opened.
    """
    descriptor = open_process(identity)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_process(identity: dict[str, Any] | None) -> int | None:
    """Return a descriptor of a process; None if the process has exited.

    The caller closes the descriptor. ``identity``: as for `opened`.
    """
    if identity is None or not _is_of_this_boot(identity):
        return None
    pid = identity["pid"]
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Checked only now: the number cannot be reused once the descriptor is open.
    if start_time(pid) == identity["start"]:
        return descriptor
    os.close(descriptor)
    return None


def _is_of_this_boot(identity: Mapping[str, Any]) -> bool:
    """Whether a record of `supervisor.identity` is complete and from this boot of the machine."""
    return identity["boot"] == boot_id() and identity["start"] is not None


def send(descriptor: int, number: signal.Signals) -> None:
    """Signal a process, which may have exited."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def exits_within(descriptor: int, seconds: float) -> bool:
    """Wait at most ``seconds`` for a process to exit; return whether it has exited."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, round(seconds * 1000))))


def kill_session(leader: dict[str, Any] | None) -> None:
    """Kill the remaining processes of the session that a process led, itself included.

    ``leader``: as for `opened`.
    """
    if leader is None or not _is_of_this_boot(leader):
        return
    session = leader["pid"]
    # Another process can have the leader's number only once the session is empty.
    is_reused = start_time(session) not in (None, leader["start"])
    if is_reused:
        return
    for pid in processes():
        start = start_time(pid)
        if start is not None and _is_member(pid, start, leader):
            member = {**leader, "pid": pid, "start": start}  # of the same boot as the leader
            _kill_member(session, member)


def _is_member(
    pid: int,
    start: int,
    leader: Mapping[str, Any],
) -> bool:
    """Whether a process belongs to the leader's session.

    ``start``: when the process started, as `supervisor.start_time` returns it. No member of a
    session starts before its leader.
    """
    is_in_session = _session_of(pid) == leader["pid"]
    return is_in_session and bool(start >= leader["start"])


def _kill_member(session: int, identity: dict[str, Any]) -> None:
    """Kill a process if it is still in the session."""
    with opened(identity) as descriptor:
        if descriptor is not None and _session_of(identity["pid"]) == session:
            send(descriptor, signal.SIGKILL)
            exits_within(descriptor, _SESSION_KILL_TIMEOUT)


def _session_of(pid: int) -> int | None:
    """Return the session of a process; None if it has exited."""
    fields = stat(pid)
    if fields is None:
        return None
    return int(fields[supervisor.SESSION_FIELD])


class Exits(Follower):
    """Reports the exit of each process added, once."""

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        """``on_exit`` is called with the name of each run that was added and has exited."""
        self._adding = threading.Lock()  # for changes of the selector
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0)  # readable once `_interrupt` is called
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        super().__init__(_PAUSE, on_exit, on_away=None)  # last: it starts the thread

    def add(self, name: str, descriptor: int) -> None:
        """Wait for the process behind a descriptor, which this object owns from now on."""
        with self._adding:
            if self._closed.is_set():
                os.close(descriptor)
            else:
                self._selector.register(descriptor, selectors.EVENT_READ, name)

    def close(self) -> None:
        """End the watch, after a call in progress, and close all descriptors."""
        if self._closed.is_set():
            return
        super().close()
        with self._adding:
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()

    def _look(self) -> None:
        """Wait for exits and report them; also ends when `_interrupt` is called."""
        for key, _ in self._selector.select():
            is_wake = key.data is None
            if is_wake:
                continue
            with self._adding:
                self._selector.unregister(key.fd)
            os.close(key.fd)
            self.report(key.data)

    def _interrupt(self) -> None:
        """Wake the thread that waits for exits."""
        os.eventfd_write(self._wake, 1)
