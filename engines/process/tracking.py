"""Processes identified by number and start time, so that a later one with the same number is never touched."""

import contextlib
import logging
import os
import select
import selectors
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from engines.process.supervisor import boot_id, processes, start_time, stat

log = logging.getLogger(__name__)


def same_machine(identity: dict[str, Any]) -> bool:
    """Whether the process ran on this machine, possibly before its last reboot."""
    return identity.get("boot") == boot_id() or identity.get("host") == os.uname().nodename


@contextlib.contextmanager
def opened(identity: dict[str, Any] | None) -> Iterator[int | None]:
    """Open a descriptor of exactly this process; None if it has exited."""
    descriptor = open_process(identity)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_process(identity: dict[str, Any] | None) -> int | None:
    """Return a descriptor of exactly this process, which the caller closes; None if it has exited."""
    if identity is None or identity.get("boot") != boot_id() or identity.get("start") is None:
        return None
    try:
        descriptor = os.pidfd_open(identity["pid"])
    except ProcessLookupError:
        return None
    if start_time(identity["pid"]) == identity["start"]:  # the number cannot be reused once the descriptor is open
        return descriptor
    os.close(descriptor)
    return None


def send(descriptor: int, number: signal.Signals) -> None:
    """Signal a process; one that has exited is left alone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def exits_within(descriptor: int, seconds: float) -> bool:
    """Wait for the process to exit; return whether it did."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, round(seconds * 1000))))


def kill_session(leader: dict[str, Any] | None) -> None:
    """Kill what is left of the session that the process led, the process included."""
    if leader is None or leader.get("boot") != boot_id() or leader.get("start") is None:
        return
    pid, start = leader["pid"], leader["start"]
    if start_time(pid) not in (None, start):
        return  # the number belongs to another process now, so the session was empty
    for member in processes():
        if _session_of(member) != pid:
            continue
        since = start_time(member)
        if since is None or since < start:
            continue
        with opened({**leader, "pid": member, "start": since}) as descriptor:
            if descriptor is not None and _session_of(member) == pid:
                send(descriptor, signal.SIGKILL)
                exits_within(descriptor, 2.0)


def _session_of(pid: int) -> int | None:
    fields = stat(pid)
    return None if fields is None else int(fields[3])


class Exits:
    """Calls ``on_exit(name)`` once for each process added, after it has exited."""

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._names: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, name: str, descriptor: int) -> None:
        """Wait for the process behind the descriptor, which belongs to this object from now on."""
        with self._lock:
            if self._closed or name in self._names:
                os.close(descriptor)
                return
            self._names.add(name)
            self._selector.register(descriptor, selectors.EVENT_READ, name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine-exits", daemon=True)
                self._thread.start()

    def knows(self, name: str) -> bool:
        """Whether the process is still being waited for."""
        with self._lock:
            return name in self._names

    def close(self) -> None:
        """Stop waiting."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        os.write(self._wake, b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            os.close(self._wake)

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            if self._closed:
                return
            for key, _ in ready:
                with self._lock:
                    self._selector.unregister(key.fd)
                    self._names.discard(key.data)
                os.close(key.fd)
                try:
                    self._on_exit(key.data)
                except Exception:
                    log.exception("the exit of %s could not be recorded", key.data)
