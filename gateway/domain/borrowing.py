"""A job's own pool: what it holds at this node, and what its runs have borrowed of it.

A run borrows when it is launched and returns when it is over; nothing is counted up and down, so nothing can be
returned twice. The runs of one task borrow together or not at all, tasks in the order in which they were accepted
unless a later one fits.
"""

from gateway.domain.amounts import Amounts, total
from gateway.domain.local_job import LocalJob, Run
from gateway.domain.states import RunStatus


def amounts(run: Run) -> Amounts:
    """Return what a run borrows."""
    limits = run.limits
    return Amounts.of(limits.get("cpu"), limits.get("memory"), limits.get("disk"))


def borrowed(local: LocalJob) -> Amounts:
    """Return what the job's runs use of its pool now."""
    return total(amounts(r) for r in local.runs if not r.over and r.status is not RunStatus.WAITING)


def remaining(local: LocalJob) -> Amounts:
    """Return what is left of the job's pool."""
    return (local.pool.amounts if local.pool else Amounts()) - borrowed(local)


def may_launch(local: LocalJob) -> set[str]:
    """Return the ids of the waiting runs for which the job's pool has enough now."""
    waiting = [run for run in local.runs if run.status is RunStatus.WAITING]
    if local.pool is None or not waiting:
        return {run.run_id for run in waiting}
    left = remaining(local)
    found: set[str] = set()
    for task_id in dict.fromkeys(run.task_id for run in waiting):
        runs = [run for run in waiting if run.task_id == task_id]
        needed = total(map(amounts, runs))
        if needed.fits(left):
            left -= needed
            found.update(run.run_id for run in runs)
    return found


def waits_for(local: LocalJob, run: Run) -> str:
    """Say why a waiting run is not launched yet; empty for one that is about to be, or was."""
    if run.status is not RunStatus.WAITING or local.pool is None or run.run_id in may_launch(local):
        return ""
    needed = total(amounts(r) for r in local.runs if r.task_id == run.task_id and r.status is RunStatus.WAITING)
    left = remaining(local)
    lacks = needed.lacking(left)
    has = {r.task_name for r in local.runs if not r.over and r.status is not RunStatus.WAITING and amounts(r)}
    users = ", ".join(sorted(has))
    return f"needs {needed.text(lacks)} of the job's pool, free {left.text(lacks)}, borrowed by {users}"
