"""Runs all parties of a task in threads of one process, over queues: for the self-test and for tests."""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refvendor.contract import Component, PeerTimeout, StorageFailed, Table, Task, VendorError


@dataclass(frozen=True)
class Sent:
    """One message as the channel saw it."""

    source: str
    to: str
    name: str
    payload: bytes


class MemoryChannel:
    """Queues between parties; remembers every byte. When one party fails, nobody waits on."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.sent: list[Sent] = []
        self._seconds = seconds
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str, str], queue.Queue[bytes | None]] = defaultdict(
            queue.Queue
        )
        self._broken = False

    def put(self, message: Sent) -> None:
        """Remember a message and hand it on."""
        with self._lock:
            self.sent.append(message)
            self._queues[message.source, message.to, message.name].put(message.payload)

    def take(
        self,
        source: str,
        to: str,
        name: str,
    ) -> bytes:
        """Wait for the next message. Raises `PeerTimeout`, immediately if a party has failed."""
        with self._lock:
            waiting = self._queues[source, to, name]
            if self._broken and waiting.empty():
                raise PeerTimeout(f"{source}'s message {name} will not come")
        try:
            payload = waiting.get(timeout=self._seconds)
        except queue.Empty:
            payload = None
        if payload is None:
            raise PeerTimeout(f"{source}'s message {name} did not come")
        return payload

    def give_up(self) -> None:
        """Wake everybody who waits."""
        with self._lock:
            self._broken = True
            for waiting in self._queues.values():
                waiting.put(None)

    def all_bytes(self) -> bytes:
        """Return all that was ever sent."""
        return b"\n".join(message.payload for message in self.sent)


class MemoryNet:
    """A `Net` of one party on a `MemoryChannel`."""

    def __init__(self, channel: MemoryChannel, me: str) -> None:
        self._channel = channel
        self._me = me

    def send(
        self,
        to: str,
        name: str,
        payload: bytes,
    ) -> None:
        """Send to a party."""
        self._channel.put(Sent(self._me, to, name, bytes(payload)))

    def recv(self, source: str, name: str) -> bytes:
        """Wait for a party's next message of that name. Raises `PeerTimeout`."""
        return self._channel.take(source, self._me, name)


@dataclass
class MemoryIo:
    """An `Io` over dictionaries."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] | None = None
    """outputs the job asks for; None for all"""
    tables: dict[str, Table] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def read_table(self, name: str) -> Table:
        """Return a copy of an input. Raises `StorageFailed` where there is none."""
        if name not in self.inputs:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        table = self.inputs[name]
        return Table(list(table.header), [list(row) for row in table.rows])

    def read_json(self, name: str) -> Any:
        """Return a copy of an input. Raises `StorageFailed` where there is none."""
        if name not in self.inputs:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        return json.loads(json.dumps(self.inputs[name]))

    def write_table(self, name: str, table: Table) -> None:
        """Keep a table, if the task has an output of that name."""
        if self.wanted is None or name in self.wanted:
            self.tables[name] = table

    def write_json(self, name: str, value: Any) -> None:
        """Keep a value, if the task has an output of that name."""
        if self.wanted is None or name in self.wanted:
            self.values[name] = value


@dataclass
class PartyRun:
    """What one party did."""

    io: MemoryIo
    lines: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """log lines: level, message, fields"""
    error: BaseException | None = None

    def log(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Keep a line."""
        self.lines.append((level, message, fields))


@dataclass
class TaskRun:
    """What all parties did, and what they said to each other."""

    parties: dict[str, PartyRun]
    channel: MemoryChannel

    def __getitem__(self, party: str) -> PartyRun:
        return self.parties[party]

    def checked(self) -> TaskRun:
        """This run, unless a party failed: then its error is raised, the cause before those who only waited."""
        errors = [run.error for run in self.parties.values() if run.error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, PeerTimeout)):
            raise error
        return self


def run_parties(
    name: str,
    roles: Mapping[str, Component],
    inputs: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Any] | Callable[[str], Mapping[str, Any]],
    *,
    task_id: str = "task_memory",
    wanted: tuple[str, ...] | None = None,
    seconds: float = 60.0,
) -> TaskRun:
    """Run a component for every party in ``inputs`` and wait for all.

    ``inputs``: ``role.index`` -> input name -> table or JSON value.
    ``roles`` holds the function of each role; ``parameters`` are the same for all or a function of the party.
    """
    counts: dict[str, int] = defaultdict(int)
    for party in inputs:
        counts[party.partition(".")[0]] += 1
    nodes = {
        role: tuple(f"node-{role}-{i}" for i in range(count)) for role, count in counts.items()
    }
    channel = MemoryChannel(seconds)
    run = TaskRun(
        {party: PartyRun(MemoryIo(dict(tables), wanted)) for party, tables in inputs.items()},
        channel,
    )

    def work(party: str) -> None:
        role, _, index = party.partition(".")
        mine = run.parties[party]
        values = parameters(party) if callable(parameters) else parameters
        task = Task(
            name, task_id, role, int(index), nodes, dict(values), tuple(inputs[party]), wanted or ()
        )
        try:
            if role not in roles:
                raise VendorError(f"{name} has no role {role}")
            roles[role](task, mine.io, MemoryNet(channel, party), mine.log)
        except BaseException as error:
            mine.error = error
            channel.give_up()

    threads = [
        threading.Thread(
            target=work,
            args=(party,),
            name=party,
            daemon=True,
        )
        for party in inputs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run
