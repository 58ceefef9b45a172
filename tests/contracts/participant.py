"""Jobs of the tests of `ParticipantApi`: the node under test plays a guest and two hosts."""

from itertools import count
from typing import Any

from gateway.domain.dag import Dag
from gateway.domain.spec import JobSpec
from gateway.domain.states import TaskStatus
from gateway.ports import ParticipantApi
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.inprocess import ME, PEER

RUNNING = TaskStatus.RUNNING
ROLES = {
    "arbiter": (PEER,),
    "guest": (ME,),
    "host": (ME, ME),
}
# The parties of the node under test.
PARTIES = ("guest.0", "host.0", "host.1")
NOT_AUTHORISED = ("NOT_AUTHORISED", 403)
JOB_ENDED = ("JOB_ENDED", 409)
JOB_ID_CONFLICT = ("JOB_ID_CONFLICT", 409)
JOB_UNKNOWN = ("JOB_UNKNOWN", 404)
TASK_UNKNOWN = ("TASK_UNKNOWN", 404)
TASK_ID_CONFLICT = ("TASK_ID_CONFLICT", 409)
ATTEMPTS_USED_UP = ("ATTEMPTS_USED_UP", 409)
_job_numbers = count()


def a_job_of(
    scratch: list[str],
    dag: str | Dag = "a",
    **fields: Any,
) -> JobSpec:
    """Return a new job, which is stopped after the test."""
    job_id = f"job-participant-{next(_job_numbers)}"
    spec = a_spec(dag, ROLES, job_id=job_id, **fields)
    scratch.append(spec.job_id)
    return spec


def task_id_of(
    spec: JobSpec,
    task: str = "a",
) -> str:
    """Return the id under which the tests start a task first."""
    return f"task-{spec.job_id}-{task}"


def start(
    api: ParticipantApi,
    world: World,
    spec: JobSpec,
    task: str = "a",
) -> str:
    """Start a task of a new job; return the task's id once all its containers are up."""
    task_id = task_id_of(spec, task)
    api.create_job(spec, PEER)
    api.start_job(spec.job_id, PEER)
    api.start_task(spec.job_id, task_id, task, PEER)
    for label in PARTIES:
        world.run(spec.job_id, task, label)
    return task_id


def end_parties(
    world: World, spec: JobSpec, labels: tuple[str, ...] = PARTIES, code: int = 0
) -> None:
    """Let the containers of task ``a`` exit at some parties."""
    for label in labels:
        world.end(
            spec.job_id,
            "a",
            label,
            code=code,
        )
