"""The decision whether the permits of partners open a resource of this node to a job.

A permit is an approved application of a partner for a dataset, model, flow or project.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from gateway.domain.applications import Application
from gateway.domain.datasets import Grant
from gateway.domain.permit_scope import UNLIMITED, Use, missing_scope
from gateway.domain.spec import NodeId

# The reason of a grant that follows from a permit; `grant_reason` writes it.
_GRANT_REASON = re.compile(r"application \d+")


@dataclass(frozen=True)
class JobPermits:
    """The permits of a job: those that it has presented, and those that have counted it."""

    sender: NodeId  # the node that has sent the current request
    tokens: Collection[str]  # digests of the permits in the current request
    # Number of each application that counts the job as a use -> whether the job presented its
    # permit at that time.
    counted: Mapping[int, bool]

    def presents(self, permit: Application) -> bool:
        """Return whether the job presents a permit now, or has presented it at its creation.

        A permit in the current request must come from the partner to which it was issued.
        """
        if self.counted.get(permit.number, False):
            return True
        return permit.partner == self.sender and permit.digest in self.tokens


@dataclass(frozen=True)
class Holding:
    """The permits that one partner has for a resource, and their use by a job."""

    use: Use
    permits: Sequence[Application]  # in force, oldest first; at least one


class Finding(Enum):
    """The result of a decision on the use of a resource."""

    ALLOWED = "allowed"
    OUT_OF_SCOPE = "out of scope"  # a partner has permits, and no scope covers the use
    USED_UP = "used up"  # the permit counts as many other jobs as it allows
    MISSING = "missing"  # a permit is required, and the job presents none


@dataclass(frozen=True)
class Decision:
    """A finding, with the partner's permits that it is about (None: about no partner's)."""

    finding: Finding
    holding: Holding | None = None


def decide(
    holdings: Sequence[Holding],
    job: JobPermits,
    *,
    is_required: bool,
) -> Decision:
    """Decide whether a job may use a resource.

    ``holdings``: one for each partner of the job with permits in force. The permit of every one of
    them must cover the use and have room for the job. If ``is_required``, the job has to present
    one of these permits.
    """
    permits = []
    for holding in holdings:
        permit = covering_permit(holding, job.counted)
        if permit is None:
            return Decision(Finding.OUT_OF_SCOPE, holding)
        if _is_used_up(permit, job.counted):
            return Decision(Finding.USED_UP, holding)
        permits.append(permit)
    is_presented = any(job.presents(permit) for permit in permits)
    if is_required and not is_presented:
        return Decision(Finding.MISSING)
    return Decision(Finding.ALLOWED)


def covering_permit(
    holding: Holding,
    counted: Collection[int],
) -> Application | None:
    """Return the partner's permit for a use: None if no scope covers the use.

    A permit that counts the job already precedes the others; otherwise the newest counts.
    ``counted``: the numbers of the applications that count the job.
    """
    covering = [
        permit
        for permit in holding.permits
        if missing_scope(permit.scope, holding.use) == UNLIMITED
    ]
    return _preferred(covering, counted)


def grant_reason(permit: Application) -> str:
    """Return the reason stored with the grant that follows from a permit."""
    return f"application {permit.number}"


def is_personal(grant: Grant) -> bool:
    """Return whether a person has made a grant, so that it does not follow from a permit.

    A grant with the reason of a permit counts as the permit's, so that in doubt scopes apply.
    """
    return _GRANT_REASON.fullmatch(grant.reason) is None


def decide_agreement(
    applications: Sequence[Application],
    job: JobPermits,
    now: datetime,
) -> Finding:
    """Decide whether a job may use a flow or project for which a partner has applied.

    ``applications``: all of this partner for it, oldest first. One has to be in force at ``now``
    and have room for the job. If the partner sends the job, the job has to present the permit.
    """
    permit = agreement_permit(applications, job.counted, now)
    if permit is None:
        return Finding.MISSING
    if _is_used_up(permit, job.counted):
        return Finding.USED_UP
    if permit.partner == job.sender and not job.presents(permit):
        return Finding.MISSING
    return Finding.ALLOWED


def agreement_permit(
    applications: Sequence[Application],
    counted: Collection[int],
    now: datetime,
) -> Application | None:
    """Return the permit for a flow or project; None if none of the applications is in force.

    The preference and ``counted`` are as in `covering_permit`.
    """
    permits = [application for application in applications if application.holds(now)]
    return _preferred(permits, counted)


def _preferred(
    permits: Sequence[Application],
    counted: Collection[int],
) -> Application | None:
    """Return the permit that counts the job already, else the newest; None for no permits."""
    for permit in permits:
        if permit.number in counted:
            return permit
    if not permits:
        return None
    return permits[-1]


def _is_used_up(
    permit: Application,
    counted: Collection[int],
) -> bool:
    """Return whether no further job may use a permit.

    False for a permit that counts this job already.
    """
    if permit.number in counted or permit.most_jobs is None:
        return False
    return permit.jobs >= permit.most_jobs
