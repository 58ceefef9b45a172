"""References to services that are built later, for services that need each other."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.bootstrap.sockets import Sockets
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.executor import Executor
from gateway.jobs.job_requests import JobRequests
from gateway.jobs.launcher import Launching
from gateway.jobs.participant import Participant
from gateway.jobs.scheduler import Scheduler
from gateway.runtime.context import Peers

S = TypeVar("S")


class Late(Generic[S]):
    """A reference to a service that is built later, usable once the service is bound."""

    def __init__(self) -> None:
        self._services: list[S] = []  # empty until `bind`, then the one service

    def bind(self, service: S) -> S:
        """Set the service, once, and return it."""
        if self._services:
            raise RuntimeError("the service is bound already")
        self._services.append(service)
        return service

    def __call__(self) -> S:
        """Return the service. Raises `RuntimeError` before `bind`."""
        if not self._services:
            raise RuntimeError("the service is not built yet")
        return self._services[0]


@dataclass(frozen=True)
class LateServices:
    """The services that are called by services of an earlier stage."""

    peers: Late[Peers] = field(default_factory=Late)
    launching: Late[Launching] = field(default_factory=Late)
    executor: Late[Executor] = field(default_factory=Late)
    scheduler: Late[Scheduler] = field(default_factory=Late)
    coordinator: Late[Coordinator] = field(default_factory=Late)
    job_requests: Late[JobRequests] = field(default_factory=Late)
    participant: Late[Participant] = field(default_factory=Late)
    sockets: Late[Sockets] = field(default_factory=Late)
