"""Two real nodes and jobs whose containers last as long as they are told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e import jobs
from tests.e2e.nodes import Federation, wait_for


class Waiting:
    """Two nodes, and where each container says that it is there."""

    def __init__(self, federation: Federation, register: Path) -> None:
        self.nodes = federation
        self.register = register
        self.guest, self.host = federation[jobs.GUEST], federation[jobs.HOST]

    def submit(self, seconds: float, flow: dict[str, str] | None = None, *more: str) -> str:
        lasting = dict.fromkeys(("first", *more), seconds)
        return self.guest.submit(jobs.job_of(self.register, lasting, flow))

    def body(self, seconds: float) -> Any:
        return jobs.job_of(self.register, {"first": seconds})

    def running(self) -> list[str]:
        return jobs.running(self.register)

    def until_running(self, count: int = 2) -> None:
        wait_for(lambda: len(self.running()) == count, 60, about=f"{count} containers run")


@contextmanager
def waiting_nodes(home: Path, **settings: Any) -> Iterator[Waiting]:
    register = home / "register"
    register.mkdir()
    with jobs.patient_nodes(home, **settings) as federation:
        yield Waiting(federation, register)
