"""Jobs of the tests of `SchedulerApi`: the node under test schedules them."""

from itertools import count
from typing import Any

from gateway.domain.dag import Dag
from gateway.domain.job import Job
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import TaskStatus
from gateway.ports import SchedulerApi, TaskReport
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED
ROLES = {
    "guest": (PEER,),
    "host": (ME, ME),
}
_job_numbers = count()


def a_job_of(
    scratch: list[str],
    dag: str | Dag = "a",
    **fields: Any,
) -> JobSpec:
    """Return a new job that `ME` schedules and that is stopped after the test."""
    job_id = f"job-scheduler-{next(_job_numbers)}"
    spec = a_spec(dag, ROLES, **{"job_id": job_id, "scheduler": ME, **fields})
    scratch.append(spec.job_id)
    return spec


def submit(
    api: SchedulerApi,
    world: World,
    spec: JobSpec,
) -> Job:
    """Submit a job; return it once every party has reported that its containers are up."""
    api.submit_job(spec, PEER)

    def all_run() -> bool:
        for task in world.job(spec.job_id).tasks.values():
            for node_part in task.nodes.values():
                if set(node_part.roles.values()) - {RUNNING}:
                    return False
        return True

    wait_for(all_run, 20, 0.01, f"{spec.job_id} is up")
    return world.job(spec.job_id)


def report(
    world: World,
    spec: JobSpec,
    role: str,
    status: TaskStatus,
    failure: Failure | None = None,
) -> TaskReport:
    """Return a report of a party about task ``a``."""
    task_id = world.job(spec.job_id).tasks["a"].task_id
    return TaskReport(task_id, role, status, failure, spec.job_id)
