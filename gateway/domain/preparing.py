"""What a participating node fetches before it says that a job is READY: images that are not here and may be had.

To the scheduling node this looks like the wait for a person: the creation is answered PENDING, and the word
follows once everything is here, or cannot be had. Where a person has to agree as well, both have to be done.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from gateway.domain import approval
from gateway.domain.run import Approval, LocalJob, Preparation
from gateway.domain.spec import Call, CallState, Failure
from gateway.domain.states import JobStatus


def opened(local: LocalJob, images: Mapping[str, str], seconds: float, at: datetime) -> LocalJob:
    """Return a new job as one that waits for its images, for so many seconds at most; without any, as it is."""
    if not images:
        return local
    from_person = local.status is JobStatus.PENDING
    until = at + timedelta(seconds=seconds)
    preparation = Preparation(dict(images), at, until, agreed=not from_person)
    local = replace(local, preparation=preparation)
    if not from_person:
        local = replace(local, status=JobStatus.PENDING, approval=Approval(at, until))
    return local.noted(at, "images are fetched", images=sorted(images), until=until.isoformat())


def told(local: LocalJob, progress: str) -> LocalJob:
    """Note how far the fetching has come; nothing changes once it is over."""
    if not approval.prepares(local) or local.preparation is None:
        return local
    return replace(local, preparation=replace(local.preparation, progress=progress))


def finished(local: LocalJob, failure: Failure | None, at: datetime) -> LocalJob:
    """Return the job once everything is here, or (with a failure) cannot be had."""
    if not approval.prepares(local) or local.preparation is None:
        return local
    state = CallState.REFUSED if failure else CallState.OK
    fetch = replace(local.preparation.fetch, state=state, due_at=None)
    local = replace(local, preparation=replace(local.preparation, fetch=fetch))
    seconds = round((at - local.preparation.since).total_seconds(), 1) if local.preparation else 0.0
    if failure is not None:
        local = local.noted(at, "images not fetched", **failure.as_dict())
        return approval.concluded(local, False, "", replace(failure, node=local.node), failure.message, at)
    local = local.noted(at, "images fetched", seconds=seconds)
    if not local.preparation or not local.preparation.agreed:
        return local  # a person has still to agree
    known = local.approval
    return approval.concluded(local, True, known.by if known else "", None, "", at)


def alone(local: LocalJob) -> bool:
    """Say whether the job waits, or waited, for its images and for no person."""
    known = local.preparation
    return known is not None and known.agreed and (local.approval is None or not local.approval.by)


def to_fetch(local: LocalJob) -> Call | None:
    """Return the fetching as far as it has come; None where there is nothing to fetch."""
    return local.preparation.fetch if approval.prepares(local) and local.preparation else None


def fetching(local: LocalJob, fetch: Call) -> LocalJob:
    """Return the job with the fetching as it is now."""
    return replace(local, preparation=replace(local.preparation, fetch=fetch)) if local.preparation else local
