"""How far a job is as a participating node knows it, for when the scheduling node is not there to be asked.

What that node told last is kept, and never falls; what has succeeded here counts too, if that makes it more.
"""

import math
from dataclasses import replace

from gateway.domain.run import LocalJob
from gateway.domain.states import Outcome, RunStatus

MOST = 99
"""per cent of a job that has not succeeded"""


def told(local: LocalJob, percent: float) -> LocalJob:
    """Return the job after the scheduling node said how far it is; nothing changes where more was known."""
    known = int(min(max(percent, 0), MOST)) if math.isfinite(percent) else 0
    return replace(local, progress=known) if known > local.progress else local


def of(local: LocalJob) -> int:
    """Return the share of finished tasks in per cent; 100 only once the job has succeeded."""
    if local.ending is not None and local.ending.outcome is Outcome.SUCCEEDED:
        return 100
    latest = {(run.task_name, run.party): run for run in local.standing()}
    failed = {name for (name, _), run in latest.items() if run.status is not RunStatus.SUCCESS}
    done = {name for name, _ in latest} - failed
    tasks = len(local.spec.dag.nodes)
    return max(local.progress, min(MOST, 100 * len(done) // tasks) if tasks else 0)
