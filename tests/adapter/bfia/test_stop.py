"""A platform stops a task over the wire: its effects, and the job as every party then shows it."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia.contract import DONE, Caller, read_envelope
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

# Both prefixes of the paths for a platform.
PLATFORM = "/v1/platform/schedule"
PLATFORM_V2 = "/v2/schedule"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_nodes(tmp_path_factory.mktemp("stop")) as world:
        yield world


def stop_task(
    node: Gateway,
    job_id: str,
    task: str,
    prefix: str = PLATFORM,
) -> Any:
    """Stop one task of a job; return the response's body."""
    body = {
        "job_id": job_id,
        "task_name": task,
    }
    return read_envelope(Caller(node, "operator", prefix, {})("/job/stop_task", body))


def stop_all(
    node: Gateway,
    job_id: str,
    task: str = "",
    prefix: str = PLATFORM,
) -> Any:
    """Stop a job, or one task of it, by the path for jobs; return the response's body."""
    body = {"job_id": job_id}
    if task:
        body["task_name"] = task
    return read_envelope(Caller(node, "operator", prefix, {})("/job/stop_all", body))


@pytest.mark.parametrize(
    ("prefix", "stopping_node"),
    [
        (PLATFORM, PEER),
        (PLATFORM_V2, ME),
    ],
    ids=["partner", "scheduler"],
)
def test_a_task_and_what_follows_it_stop_everywhere_and_the_rest_goes_on(
    world, prefix, stopping_node
):
    roles = {
        "guest": (ME,),
        "host": (PEER,),
    }
    spec = a_spec(
        "a -> b; c -> d",
        roles,
        job_id=f"job-stop-by-{stopping_node}",
    )
    job_id = spec.job_id
    node = {ME: world.me, PEER: world.peer}[stopping_node]
    parties = {
        "guest.0": world.me,
        "host.0": world.peer,
    }
    world.me.coordinator.submit_job(spec, "")

    # a stops everywhere, so that b, which follows it, never starts
    for label, party_node in parties.items():
        world.run(job_id, "a", label, party_node)
    assert stop_task(node, job_id, "a", prefix) == DONE
    assert stop_all(node, job_id, "a", prefix) == DONE
    wait_for_task(world, job_id, "a", TaskStatus.FAILED)

    # c goes on; a stop after its end has no effect
    world.end_all(spec, "c")
    wait_for_task(world, job_id, "c", TaskStatus.SUCCESS)
    assert stop_task(node, job_id, "c") == DONE

    # d is the last task, with which the job ends
    wait_for_task(world, job_id, "d", TaskStatus.RUNNING)
    assert stop_task(node, job_id, "d", prefix) == DONE
    view = stopped_view(world, job_id)
    assert {task["task_name"]: task["status"] for task in view["tasks"]} == {
        "a": "FAILED",
        "b": "READY",
        "c": "SUCCESS",
        "d": "FAILED",
    }
    assert view["outcome"] == "STOPPED"
    assert view["progress"] == 25
    assert view["failed_by"]["reason"] == "STOPPED"

    assert stop_all(node, job_id) == DONE
    assert stop_task(node, job_id, "a") == DONE


def wait_for_task(
    world: World,
    job_id: str,
    task: str,
    status: TaskStatus,
) -> None:
    """Wait until a task of the job has a status."""

    def has_status() -> bool:
        return world.job(job_id).tasks[task].status is status

    wait_for(has_status, 20, 0.01, f"{task} is {status}")


def stopped_view(
    world: World,
    job_id: str,
) -> dict[str, Any]:
    """Wait until both nodes have released a stopped job; return the view that both show.

    It has no warnings: each node's platform also gets those about the node's own part.
    """
    job = world.wait_status(job_id, JobStatus.FINISHED)
    nodes = (world.me, world.peer)
    views = []
    for node, local in zip(nodes, world.closed(job_id, *nodes), strict=True):
        check_stopped_part(job, local)
        containers = {container.name for container in world.engine(node).list()}
        assert containers.isdisjoint(run.name for run in local.runs)
        call = Caller(node, "operator", PLATFORM, {})
        response = call(
            "/job/status_all",
            method="GET",
            params={"job_id": job_id},
        )
        view = read_envelope(response)["data"]
        del view["warnings"]
        views.append(view)

    by_me, by_peer = views
    assert by_me == by_peer
    return dict(by_me)


def check_stopped_part(job: Job, local: LocalJob) -> None:
    """Fail unless a node's part of a stopped job agrees with the job."""
    assert job.ending is not None
    assert local.ending is not None
    assert local.ending.outcome is Outcome.STOPPED
    assert local.ending.failure == job.ending.failure
    for run in local.runs:
        assert run.status.name == job.tasks[run.task_name].status.name


def test_a_silent_scheduling_node_is_named_when_a_task_should_stop(world):
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (THIRD,),
        },
        job_id="job-stop-away",
        scheduler=THIRD,
        initiator=THIRD,
        initiator_role="host",
    )
    world.me.participant.create_job(spec, THIRD)

    refusal = stop_task(world.me, spec.job_id, "a")

    assert refusal["data"]["reason"] == "PEER_UNREACHABLE"
    assert THIRD in refusal["msg"]
    assert world.local(spec.job_id).status is JobStatus.READY

    world.me.participant.stop_job(
        spec.job_id,
        "",
        None,
        THIRD,
    )
    # the job has ended at this node, which now needs no other node to stop it
    assert stop_all(world.me, spec.job_id) == DONE
