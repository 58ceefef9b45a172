"""The documented example job, submitted at a node whose guest and host it both is."""

import copy

import httpx

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap.node import Gateway
from gateway.domain.job import Job
from gateway.domain.states import JobStatus
from tests.e2e.nodes import wait_for
from tests.inprocess import ask

IMAGE = "example:1.0.0"
PLATFORM = "/v1/platform/schedule/job"
# A process that outlives every test, as the command of the job's containers.
LASTING_COMMANDS = {IMAGE: ["/bin/sleep", "60"]}


def submit(
    node: Gateway,
    disk: float | None = None,
) -> httpx.Response:
    """Register the example provider and submit the job; return the response.

    ``disk``: the disk of each party's containers in GiB; None leaves it to the node.
    """
    registered = ask(
        node,
        "operator",
        "POST",
        "/v2/provider/register",
        json=A_PROVIDER,
    )
    assert registered.is_success
    body = copy.deepcopy(A_JOB)
    if disk is not None:
        parameters = body["config"].setdefault("job_params", {})
        for role in ("guest", "host"):
            parameters.setdefault(role, {}).setdefault("0", {})["resources"] = {
                "cpu": -1,
                "memory": -1,
                "disk": disk,
            }
    return ask(
        node,
        "operator",
        "POST",
        f"{PLATFORM}/create_all",
        json=body,
    )


def submit_job(
    node: Gateway,
    disk: float | None = None,
) -> str:
    """Submit the job like `submit`; return its id."""
    return str(submit(node, disk).json()["data"]["job_id"])


def run_to_end(
    node: Gateway,
    disk: float | None = None,
) -> Job:
    """Submit the job like `submit`; return it as it is at its end."""
    return wait_for_end(node, submit_job(node, disk))


def wait_for_end(node: Gateway, job_id: str) -> Job:
    return wait_for_status(node, job_id, JobStatus.FINISHED)


def wait_for_status(
    node: Gateway,
    job_id: str,
    status: JobStatus,
) -> Job:
    """Wait until the job has a status; return it."""

    def has_status() -> bool:
        return node.store.jobs.get(job_id).status is status

    wait_for(has_status, 30, 0.02, f"{job_id} is {status}")
    return node.store.jobs.get(job_id)
