"""The contract of a component with the outside world: its task, its data, its peers and its log.

A component has one function ``run(task, io, net, log) -> None`` per role. Environment variables,
files and HTTP are hidden behind these four values, in `env`, `storage`, `transport` and `report`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class VendorError(Exception):
    """A failure with a known cause; its message is shown to the user and must not quote data."""

    exit_code = 1  # of the process
    result_code = "99999999"  # reported to the platform


class BadParameters(VendorError):
    """A parameter, a variable of the environment or an input table is invalid."""

    exit_code = 2


class PeerTimeout(VendorError):
    """A peer or the transport did not answer before the task's deadline."""

    exit_code = 3


class StorageFailed(VendorError):
    """An input cannot be read or an output cannot be written."""

    exit_code = 4


@dataclass(frozen=True)
class Task:
    """One run of one component for one party."""

    component: str
    task_id: str
    role: str
    index: int
    # role -> node ids in the order of their index; only the roles that take part in this task
    parties: Mapping[str, Sequence[str]]
    # values as `env.decode_parameter` returns them
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # names of the inputs and outputs that the job connects
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def me(self) -> str:
        """This party's name, such as ``guest.0``."""
        return f"{self.role}.{self.index}"

    def count(self, role: str) -> int:
        """Return the number of parties of a role."""
        return len(self.parties.get(role, ()))

    def peers(self, role: str) -> list[str]:
        """Return the names (``role.index``) of a role's parties, without this one."""
        names = [f"{role}.{index}" for index in range(self.count(role))]
        return [name for name in names if name != self.me]


@dataclass
class Table:
    """A header and rows of text, in order."""

    header: list[str]
    rows: list[list[str]]
    id_column: str = field(default="", compare=False)  # for its metadata; "" for a table without


class Io(Protocol):
    """The task's inputs and outputs by name. Every method raises `StorageFailed`."""

    def read_table(self, name: str) -> Table:
        """Read an input as CSV, with all its partitions in order."""

    def read_json(self, name: str) -> Any:
        """Read an input as JSON."""

    def write_table(self, name: str, table: Table) -> None:
        """Write an output as CSV; do nothing if the job does not connect it."""

    def write_json(self, name: str, value: Any) -> None:
        """Write an output as JSON; do nothing if the job does not connect it."""


class Net(Protocol):
    """Messages to and from the other parties of the task. Every method raises `PeerTimeout`."""

    def send(
        self,
        to: str,
        name: str,
        payload: bytes,
    ) -> None:
        """Send to the party ``role.index``.

        Messages of one name to one party arrive in the order sent.
        """

    def recv(self, source: str, name: str) -> bytes:
        """Wait for the next message of this name from the party ``role.index``."""

    def push(
        self,
        to: str,
        payload: bytes,
    ) -> None:
        """Push bytes as they are, for a receiver of any vendor.

        Their topic is ``sender-receiver``, such as ``guest.0-host.0``.
        """

    def pop(
        self,
        source: str,
    ) -> bytes:
        """Wait for the next bytes that a sender of any vendor pushed."""


class Log(Protocol):
    """Writes lines to the log."""

    def __call__(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write one line; ``level`` is debug, info, warning or error."""


Component = Callable[[Task, Io, Net, Log], None]
