"""Jobs in the states of their schedule, as the scheduling node has them."""

from typing import Any

from gateway.domain.job import Job
from gateway.domain.scheduling.messages import StopRequested, TaskUnknown
from gateway.domain.states import JobStatus, TaskStatus
from tests.builders import a_job, at
from tests.domain.calls import POLL_1
from tests.domain.script import GUEST_AND_TWO_HOSTS, ONE_GUEST


def ready_job(**fields: Any) -> Job:
    """Return a job that every node has accepted."""
    return a_job(status=JobStatus.READY, **fields)


def running_job(dag: str = "a", **fields: Any) -> Job:
    """Return a job that every node has started."""
    return a_job(dag, JobStatus.RUNNING, **fields)


NEW_JOB = a_job()
NEW_JOB_OF_THREE = a_job(roles=GUEST_AND_TWO_HOSTS)
BEGUN = running_job()
BOTH_RUN = running_job(a=TaskStatus.RUNNING)
ONLY_N1 = running_job(roles=ONE_GUEST)
A_RUNS_BEFORE_B = running_job("a -> b", a=TaskStatus.RUNNING)
THREE_RUN = running_job(roles=GUEST_AND_TWO_HOSTS, a=TaskStatus.RUNNING)

TASK_UNKNOWN = TaskUnknown(POLL_1, at(13))
STOP_JOB = StopRequested("n1", at(1), "enough")
