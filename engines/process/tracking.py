"""Processes that are known by number and start time, so that a later one with the same number is never touched."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from typing import Any

from engines.process.supervisor import boot_id, processes, session_of, start_time


def same_machine(identity: dict[str, Any]) -> bool:
    """Tell whether the process ran on this machine, be it before its last start."""
    return identity.get("boot") == boot_id() or identity.get("host") == os.uname().nodename


@contextlib.contextmanager
def opened(identity: dict[str, Any] | None) -> Iterator[int | None]:
    """Hold the very process by a descriptor; None if it is over."""
    descriptor = open_process(identity)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_process(identity: dict[str, Any] | None) -> int | None:
    """Return a descriptor of the very process, which the caller closes; None if it is over."""
    if identity is None or identity.get("boot") != boot_id() or identity.get("start") is None:
        return None
    try:
        descriptor = os.pidfd_open(identity["pid"])
    except ProcessLookupError:
        return None
    if (
        start_time(identity["pid"]) == identity["start"]
    ):  # asked once it is held: the number is its own from here on
        return descriptor
    os.close(descriptor)
    return None


def send(descriptor: int, number: signal.Signals) -> None:
    """Signal a process by its descriptor; one that has ended already is left alone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def ends_within(descriptor: int, seconds: float) -> bool:
    """Wait for the process to end; return whether it did."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, round(seconds * 1000))))


def collect(descriptor: int, *, wait: bool = False) -> None:
    """Take the exit status of an ended process if it is a child of ours, so that nothing of it stays."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | (0 if wait else os.WNOHANG))


def kill_session(leader: dict[str, Any] | None) -> None:
    """Kill what is left of the session that the process led, the process included."""
    if leader is None or leader.get("boot") != boot_id() or leader.get("start") is None:
        return
    pid, start = leader["pid"], leader["start"]
    if start_time(pid) not in (None, start):
        return  # the number has gone to another process, hence the session was empty
    for member in processes():
        if session_of(member) != pid:
            continue
        since = start_time(member)
        if since is None or since < start:
            continue
        with opened({**leader, "pid": member, "start": since}) as descriptor:
            if descriptor is not None and session_of(member) == pid:
                send(descriptor, signal.SIGKILL)
                ends_within(descriptor, 2.0)
