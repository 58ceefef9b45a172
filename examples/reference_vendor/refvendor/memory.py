"""Runs all parties of a task in threads of one process, over queues: for the self-test and for
tests.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refvendor.contract import Component, PeerTimeout, StorageFailed, Table, Task, VendorError

PLAIN = ""  # name of messages without one


@dataclass(frozen=True)
class Sent:
    """One message as the channel saw it."""

    source: str
    to: str
    name: str
    payload: bytes


class MemoryChannel:
    """Queues between parties, with a record of every message.

    When one party fails, all others stop waiting.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        """``seconds`` is the longest time that a party waits for a message."""
        self.sent: list[Sent] = []
        self._seconds = seconds
        self._lock = threading.Lock()
        # by source, target and name; None marks the end of all messages
        self._queues: dict[tuple[str, str, str], queue.Queue[bytes | None]] = defaultdict(
            queue.Queue
        )
        self._broken = False

    def put(self, message: Sent) -> None:
        """Record a message and deliver it."""
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
            messages = self._queues[source, to, name]
            if self._broken and messages.empty():
                raise PeerTimeout(f"{source}'s message {name} will not come")
        try:
            payload = messages.get(timeout=self._seconds)
        except queue.Empty:
            payload = None
        if payload is None:
            raise PeerTimeout(f"{source}'s message {name} did not come")
        return payload

    def give_up(self) -> None:
        """Make all parties stop waiting."""
        with self._lock:
            self._broken = True
            for messages in self._queues.values():
                messages.put(None)

    def all_bytes(self) -> bytes:
        """Return the payloads of all messages."""
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
        """Wait for a party's next message of this name. Raises `PeerTimeout`."""
        return self._channel.take(source, self._me, name)

    def push(
        self,
        to: str,
        payload: bytes,
    ) -> None:
        """Push bytes as they are."""
        self.send(to, PLAIN, payload)

    def pop(
        self,
        source: str,
    ) -> bytes:
        """Wait for the next bytes that a party pushed. Raises `PeerTimeout`."""
        return self.recv(source, PLAIN)


@dataclass
class MemoryIo:
    """An `Io` over dictionaries."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None  # that the job connects; None for all
    tables: dict[str, Table] = field(default_factory=dict)  # outputs
    values: dict[str, Any] = field(default_factory=dict)  # outputs

    def read_table(self, name: str) -> Table:
        """Return a copy of an input. Raises `StorageFailed` if it does not exist."""
        table = self._input(name)
        return Table(list(table.header), [list(row) for row in table.rows])

    def read_json(self, name: str) -> Any:
        """Return a copy of an input. Raises `StorageFailed` if it does not exist."""
        return json.loads(json.dumps(self._input(name)))

    def write_table(self, name: str, table: Table) -> None:
        """Store a table if the job connects the output."""
        if self._is_connected(name):
            self.tables[name] = table

    def write_json(self, name: str, value: Any) -> None:
        """Store a value if the job connects the output."""
        if self._is_connected(name):
            self.values[name] = value

    def _input(self, name: str) -> Any:
        if name not in self.inputs:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        return self.inputs[name]

    def _is_connected(self, name: str) -> bool:
        return self.outputs is None or name in self.outputs


@dataclass
class PartyRun:
    """The run of one party."""

    io: MemoryIo
    lines: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # of the log
    error: BaseException | None = None

    def log(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Store a log line."""
        self.lines.append((level, message, fields))


@dataclass
class TaskRun:
    """The runs of all parties, and the channel between them."""

    parties: dict[str, PartyRun]
    channel: MemoryChannel

    def __getitem__(self, party: str) -> PartyRun:
        return self.parties[party]

    def require_success(self) -> TaskRun:
        """Return this run; raise a party's error if there is one.

        Errors of parties that only stopped waiting come last, as they are no cause.
        """
        errors = [run.error for run in self.parties.values() if run.error is not None]
        causes = [error for error in errors if not isinstance(error, PeerTimeout)]
        if errors:
            raise (causes or errors)[0]
        return self


def run_parties(
    name: str,
    roles: Mapping[str, Component],
    inputs: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Any] | Callable[[str], Mapping[str, Any]],
    *,
    task_id: str = "task_memory",
    seconds: float = 60.0,
) -> TaskRun:
    """Run the component ``name`` for every party in ``inputs`` and wait for all of them.

    ``roles`` holds the function of each role and ``inputs`` the tables and JSON values of each
    party (``role.index``) by name. ``parameters`` are the same for all parties, or a function of
    the party's name. ``seconds`` is the longest time that a party waits for a message.
    """
    nodes = _nodes_of(inputs)
    channel = MemoryChannel(seconds)
    run = TaskRun({party: PartyRun(MemoryIo(inputs[party])) for party in inputs}, channel)

    def run_party(party: str) -> None:
        role, _, index = party.partition(".")
        values = parameters(party) if callable(parameters) else parameters
        task = Task(
            name,
            task_id,
            role,
            int(index),
            nodes,
            dict(values),
            tuple(inputs[party]),
        )
        party_run = run[party]
        try:
            if role not in roles:
                raise VendorError(f"{name} has no role {role}")
            roles[role](
                task,
                party_run.io,
                MemoryNet(channel, party),
                party_run.log,
            )
        except BaseException as error:
            party_run.error = error
            channel.give_up()

    threads = [
        threading.Thread(
            target=run_party,
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


def _nodes_of(parties: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return a made-up node id for each party, by role."""
    nodes: dict[str, tuple[str, ...]] = {}
    for party in parties:
        role = party.partition(".")[0]
        earlier = nodes.get(role, ())
        nodes[role] = (*earlier, f"node-{role}-{len(earlier)}")
    return nodes
