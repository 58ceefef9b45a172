"""What this protocol needs of the rest of the gateway and of the standard's protocol."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.ports import ParticipantApi, SchedulerApi, Site


class Send(Protocol):
    """Posts JSON to a node; returns HTTP status and JSON. Raises `PeerUnreachable`, `Refused` without a route."""

    def __call__(
        self, node: NodeId, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_factor: float
    ) -> tuple[int, Any]:
        """Post; ``timeout_factor`` multiplies the time that the node's route gives a call."""


class Standard(Protocol):
    """The standard's protocol, in which gateways like this one exchange what FATE's has no requests for."""

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return a job as the standard describes it."""

    def specified(self, request: Mapping[str, Any], scheduler: NodeId, trace_id: str) -> JobSpec:
        """Read what `request` has written. Raises `Invalid`."""

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client of the standard's protocol for a node that schedules."""

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client of the standard's protocol for a node that takes part."""

    def environment(self, local: LocalJob, run: Run, site: Site) -> dict[str, str]:
        """Return the variables of a run's container."""


JobOf = Callable[[str], Job | None]
"""A job that this node schedules, by its id."""
LocalOf = Callable[[str], LocalJob | None]
"""A job in which this node takes part, by its id."""
