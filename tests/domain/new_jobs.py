"""Jobs before their start, and the steps of their reservations and creations."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.domain import reservations
from gateway.domain.job import Acceptance, Job, Reservation
from gateway.domain.scheduling.messages import ReleaseAt, ReserveAt
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus
from tests.builders import a_job, a_spec
from tests.domain.calls import C1, C2, C3, C4, S1, S2
from tests.domain.script import Step, accept

GUEST_AND_THREE_HOSTS = {
    "guest": ("n1",),
    "host": ("n2", "n3", "n4"),
}

RESERVE_1 = ReserveAt("n1")
RESERVE_2 = ReserveAt("n2")
RESERVE_3 = ReserveAt("n3")
RELEASE_1 = ReleaseAt("n1")

NEEDS_RESERVATION = Acceptance(holds=True)
BUSY = Failure(reservations.BUSY, "needs cpu 4 on node n2, free cpu 1")
REFUSED_BY_PERSON = Failure("APPROVAL_REJECTED", "li at n2 refused: not this data", "n2")

# Three of four nodes have created the job.
THREE_CREATED: list[Step] = [
    0,
    accept(C1, 0.1),
    accept(C2, 0.1),
    accept(C3, 0.1),
]
# All four have, and two have started it.
START_UNDER_WAY: list[Step] = [
    *THREE_CREATED,
    accept(C4, 0.1),
    1,
    accept(S1, 2),
    accept(S2, 2),
]


def spec_with(
    dag: str = "a",
    roles: Mapping[str, Any] = GUEST_AND_THREE_HOSTS,
    **common: Any,
) -> JobSpec:
    """Return a job with these common settings."""
    return a_spec(
        dag,
        roles,
        job_params={"common": common},
    )


def job_with_optional_host() -> Job:
    """Return a new job of n1 to n4 that needs two of its three hosts."""
    return a_job(spec=spec_with(min_parties={"host": 2}))


def job_with_reservations(*needing: str) -> Job:
    """Return a READY job of n3, n1 and n2 with a reservation to make at some of them."""
    job = a_job(
        "a; b; c",
        JobStatus.READY,
        roles={
            "guest": ("n3",),
            "host": ("n1", "n2"),
        },
    )
    nodes = dict(job.nodes)
    for node in needing:
        nodes[node] = replace(
            nodes[node],
            reservation=Reservation(NEEDS_RESERVATION),
        )
    return replace(job, nodes=nodes)


def grant(*requests: ReserveAt, begin: float = 0.0) -> list[Step]:
    """Return the steps that have reservations granted, one per second."""
    steps: list[Step] = []
    for number, request in enumerate(requests):
        seconds = begin + number
        steps += [seconds, accept(request, seconds + 0.5)]
    return steps
