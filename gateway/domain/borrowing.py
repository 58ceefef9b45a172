"""A job's own pool: what it holds at this node, and what its runs have borrowed of it.

A run borrows when it is launched and returns when it is over; nothing is counted up and down, so nothing can be
returned twice. The runs of one task borrow together or not at all, tasks in the order in which they were accepted
unless a later one fits.
"""

from dataclasses import replace

from gateway.domain.amounts import Amounts, Portions, together
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import RunStatus


def amounts(run: Run) -> Amounts:
    """Return what a run borrows."""
    limits = run.limits
    return Amounts.of(limits.get("cpu"), limits.get("memory"), limits.get("disk"))


def portions(local: LocalJob, run: Run) -> Portions:
    """Return what a run borrows, and where: cores and memory of its engine, disk of the storage.

    A job that was taken in before further engines were counted has all of it from the main one.
    """
    needed = amounts(run)
    if local.pool is None or run.engine not in local.pool.further:
        return Portions({"": needed})
    return Portions.of(Amounts(disk=needed.disk), {run.engine: replace(needed, disk=0)})


def borrowed(local: LocalJob) -> Portions:
    """Return what the job's runs use of its pool now."""
    return together(portions(local, r) for r in local.runs if not r.over and r.status is not RunStatus.WAITING)


def remaining(local: LocalJob) -> Portions:
    """Return what is left of the job's pool."""
    return (local.pool.portions if local.pool else Portions()) - borrowed(local)


def may_launch(local: LocalJob) -> set[str]:
    """Return the ids of the waiting runs for which the job's pool has enough now."""
    waiting = [run for run in local.runs if run.status is RunStatus.WAITING]
    if local.pool is None or not waiting:
        return {run.run_id for run in waiting}
    left = remaining(local)
    found: set[str] = set()
    for task_id in dict.fromkeys(run.task_id for run in waiting):
        runs = [run for run in waiting if run.task_id == task_id]
        needed = together(portions(local, run) for run in runs)
        if needed.fits(left):
            left -= needed
            found.update(run.run_id for run in runs)
    return found


def waits_for(local: LocalJob, run: Run) -> str:
    """Say why a waiting run is not launched yet; empty for one that is about to be, or was."""
    if run.status is not RunStatus.WAITING or local.pool is None or run.run_id in may_launch(local):
        return ""
    waiting = (r for r in local.runs if r.task_id == run.task_id and r.status is RunStatus.WAITING)
    needed, left = together(portions(local, r) for r in waiting), remaining(local)
    busy = [r for r in local.runs if not r.over and r.status is not RunStatus.WAITING]
    said = []
    for engine, one in needed:
        if lacks := one.lacking(left[engine]):
            users = sorted({r.task_name for r in busy if portions(local, r)[engine]})
            of = f"the job's pool at engine {engine}" if engine else "the job's pool"
            free = f"free {left[engine].text(lacks)}, borrowed by {', '.join(users)}"
            said.append(f"needs {one.text(lacks)} of {of}, {free}")
    return "; ".join(said)
