"""A platform stops a task over the wire: what ends, what goes on, and what every party says of it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia.contract import DONE, Caller, envelope
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

PLATFORM, V2 = "/v1/platform/schedule", "/v2/schedule"
READY, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.SUCCESS, TaskStatus.FAILED
BY_THIRD = {
    "scheduler": THIRD,
    "initiator": THIRD,
    "initiator_role": "host",
}

_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_nodes(tmp_path_factory.mktemp("stop")) as world:
        yield world


def stop(
    node: Gateway,
    job_id: str,
    task: str = "",
    path: str = "/job/stop_task",
    prefix: str = PLATFORM,
) -> Any:
    body = {"job_id": job_id} | ({"task_name": task} if task else {})
    return envelope(Caller(node, "operator", prefix, {})(path, body))


def stopped(world: World, job_id: str) -> dict[str, Any]:
    """Wait for the end of the job and of all it left; return what every party says of it."""
    job = world.wait_status(job_id, JobStatus.FINISHED)
    shown = []
    for node, local in zip(
        *[(world.me, world.peer), world.closed(job_id, world.me, world.peer)], strict=True
    ):
        assert local.ending is not None and job.ending is not None
        assert (local.ending.outcome, local.ending.failure) == (Outcome.STOPPED, job.ending.failure)
        assert {r.task_name: r.status.name for r in local.runs}.items() <= {
            name: task.status.name for name, task in job.tasks.items()
        }.items()
        assert not {found.name for found in world.engine(node).list()} & {
            run.name for run in local.runs
        }
        view = Caller(node, "operator", PLATFORM, {})(
            "/job/status_all", method="GET", params={"job_id": job_id}
        )
        shown.append(envelope(view)["data"])
    assert shown[0] == shown[1]
    return dict(shown[0])


@pytest.mark.parametrize(("prefix", "where"), [(PLATFORM, PEER), (V2, ME)])
def test_a_task_and_what_follows_it_stop_everywhere_and_the_rest_goes_on(
    world: World,
    prefix: str,
    where: str,
):
    spec = a_spec(
        "a -> b; c -> d", {"guest": (ME,), "host": (PEER,)}, job_id=f"job-stop-{next(_numbers)}"
    )
    job_id, node = spec.job_id, world.me if where == ME else world.peer
    world.me.coordinator.submit_job(spec, "")

    def is_(task: str, status: TaskStatus) -> None:
        wait_for(
            lambda: world.job(job_id).tasks[task].status is status, 20, 0.01, f"{task} is {status}"
        )

    parties = (("guest.0", world.me), ("host.0", world.peer))
    for party, at in parties:
        world.run(job_id, "a", party, at)
    for path in ("/job/stop_task", "/job/stop_all"):
        assert stop(node, job_id, "a", path, prefix) == DONE
    is_("a", FAILED)
    for party, at in parties:
        table = at.storage.path(world.run(job_id, "c", party, at).outputs["out"])
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("id,x\n1,2\n")
    world.end_all(spec, "c")
    is_("c", SUCCESS)
    assert stop(node, job_id, "c") == DONE, "it is over already"
    is_("d", TaskStatus.RUNNING)
    assert (
        stop(node, job_id, "d", "/job/stop_task", prefix) == DONE
    )  # the last one, which takes the job with it
    said = stopped(world, job_id)
    assert [(t["task_name"], t["status"]) for t in said["tasks"]] == list(
        zip("abcd", ("FAILED", "READY", "SUCCESS", "FAILED"), strict=True)
    )
    assert (said["outcome"], said["progress"], said["failed_by"]["reason"]) == (
        "STOPPED",
        25,
        "STOPPED",
    )
    assert stop(node, job_id, "", "/job/stop_all") == stop(node, job_id, "a") == DONE


def test_a_silent_scheduling_node_is_named_when_a_task_should_stop(world: World):
    spec = a_spec("a", {"guest": (ME,), "host": (THIRD,)}, job_id="job-stop-away", **BY_THIRD)
    world.me.participant.create_job(spec, THIRD)
    answer = stop(world.me, spec.job_id, "a")
    assert answer["data"]["reason"] == "PEER_UNREACHABLE" and THIRD in answer["msg"]
    assert world.local(spec.job_id).status is JobStatus.READY
    world.me.participant.stop_job(spec.job_id, "", None, THIRD)
    assert stop(world.me, spec.job_id, "", "/job/stop_all") == DONE, (
        "it has ended here: no node is asked"
    )
