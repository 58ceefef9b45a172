"""What a component sees of the outside world: its task, its data, its peers, its log.

A component is a function ``run(task, io, net, log) -> None`` per role. Everything behind these four
values (environment variables, files, HTTP) lives in `env`, `storage`, `transport` and `report`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class VendorError(Exception):
    """A failure the component can name. ``exit_code`` ends the process, ``result_code`` is reported."""

    exit_code = 1
    result_code = "99999999"


class BadParameters(VendorError):
    """A parameter or the environment cannot work; raised before any work is done."""

    exit_code = 2


class PeerTimeout(VendorError):
    """A peer or the transport gave no answer before the task's deadline."""

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
    parties: Mapping[str, Sequence[str]]
    """role -> node ids, in index order; only the roles that take part in this task"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """values decoded from the environment: JSON where the text is JSON, else the text"""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def me(self) -> str:
        """This party, such as ``guest.0``."""
        return f"{self.role}.{self.index}"

    def peers(self, role: str) -> list[str]:
        """Every party of a role as ``role.index``, this one excepted."""
        return [
            p for i in range(len(self.parties.get(role, ()))) if (p := f"{role}.{i}") != self.me
        ]


@dataclass
class Table:
    """Rows of text, in order, under a header."""

    header: list[str]
    rows: list[list[str]]


class Io(Protocol):
    """The task's data. Every method raises `StorageFailed`."""

    def read_table(self, name: str) -> Table:
        """Read the input of that name, all partitions in order. Raises `StorageFailed`."""

    def read_json(self, name: str) -> Any:
        """Read the input of that name as JSON. Raises `StorageFailed`."""

    def write_table(self, name: str, table: Table) -> None:
        """Write the output of that name as CSV; an output the job does not ask for is not written."""

    def write_json(self, name: str, value: Any) -> None:
        """Write the output of that name as JSON; an output the job does not ask for is not written."""


class Net(Protocol):
    """The other parties of the task. Every method raises `PeerTimeout`."""

    def send(
        self,
        to: str,
        name: str,
        payload: bytes,
    ) -> None:
        """Send to ``role.index``. Messages of one name to one party arrive in the order sent."""

    def recv(self, source: str, name: str) -> bytes:
        """Wait for the next message of that name from ``role.index``. Raises `PeerTimeout`."""


class Log(Protocol):
    """Takes one line."""

    def __call__(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        """Write one line; level is debug, info, warning or error."""


Component = Callable[[Task, Io, Net, Log], None]
