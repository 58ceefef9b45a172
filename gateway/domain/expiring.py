"""Permissions that come near their end: by time, or by the number of their jobs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.domain.applications import Application
from gateway.domain.datasets import Grant
from gateway.domain.spec import NodeId

SOON = timedelta(days=30)  # remaining time in which a permission counts as near its end
_FEW_JOBS = 10  # a permit is near its end when a tenth of its jobs is left


@dataclass(frozen=True)
class Expiring:
    """A permission between this node and a partner, and what is left of it."""

    kind: str  # grant, or the kind of the application
    subject: str
    partner: NodeId
    side: str  # the node that uses the permission: mine, theirs
    expires_at: datetime | None  # None: only the jobs are limited
    jobs_left: int | None  # None: any number
    number: int | None = None  # of the application; None for a grant


def is_soon(end: datetime | None, now: datetime) -> bool:
    """Return whether an end is within `SOON`; False without one (None)."""
    return end is not None and end - now < SOON


def expiring_grants(grants: Iterable[Grant], now: datetime) -> Iterator[Expiring]:
    """Yield the grants in force that end soon."""
    for grant in grants:
        if grant.holds(now) and is_soon(grant.expires_at, now):
            yield Expiring(
                kind="grant",
                subject=grant.dataset.dataset_id,
                partner=grant.node,
                side="theirs",
                expires_at=grant.expires_at,
                jobs_left=None,
            )


def expiring_permits(
    applications: Iterable[Application],
    now: datetime,
) -> Iterator[Expiring]:
    """Yield the approved applications in force that end soon, or have few jobs left."""
    for application in applications:
        if not application.holds(now):
            continue
        jobs_left = _jobs_left(application)
        if is_soon(application.expires_at, now) or _are_few(jobs_left, application.most_jobs):
            yield Expiring(
                kind=str(application.kind),
                subject=application.subject,
                partner=application.partner,
                side=str(application.side),
                expires_at=application.expires_at,
                jobs_left=jobs_left,
                number=application.number,
            )


def _jobs_left(application: Application) -> int | None:
    """Return how many further jobs may use a permit; None: any number."""
    if application.most_jobs is None:
        return None
    return max(0, application.most_jobs - application.jobs)


def _are_few(jobs_left: int | None, most_jobs: int | None) -> bool:
    """Return whether at most a tenth of a permit's jobs is left; of few jobs, none."""
    if jobs_left is None or most_jobs is None:
        return False
    return jobs_left <= most_jobs // _FEW_JOBS
