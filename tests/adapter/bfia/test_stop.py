"""Stopping over the wire, by a platform and by nodes: what ends, what goes on, and what every party says of it."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import yaml

from gateway.bootstrap.node import Gateway
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia.contract import DONE, Caller, envelope
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

PLATFORM, V2 = "/v1/platform/schedule", "/v2/schedule"
READY, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.SUCCESS, TaskStatus.FAILED
BY_THIRD = {"scheduler": THIRD, "initiator": THIRD, "initiator_role": "host"}

_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two nodes; `THIRD` is a peer that reads 200 as success."""
    with two_nodes(tmp_path_factory.mktemp("stop")) as world:
        file = world.home / ME / "routes.yml"
        routes = yaml.safe_load(file.read_text())
        routes[THIRD]["profile"] = "kuscia"
        file.write_text(yaml.safe_dump(routes))
        world.me.routes.reload()
        yield world


@pytest.fixture
def submitted(world: World) -> Iterator[Any]:
    """Submits jobs of a guest here and a host at the peer, and ends them after the test."""
    jobs: list[str] = []

    def submit(dag: str, *up: str) -> str:
        spec = a_spec(dag, {"guest": (ME,), "host": (PEER,)}, job_id=f"job-stop-{next(_numbers)}")
        jobs.append(spec.job_id)
        world.me.coordinator.submit_job(spec, "")
        world.wait_status(spec.job_id, JobStatus.RUNNING)
        wait_up(world, spec.job_id, *up)
        return spec.job_id

    yield submit
    for job_id in jobs:
        world.me.coordinator.stop_job(job_id, "", "")


def stop(node: Gateway, prefix: str, job_id: str, task: str = "", path: str = "") -> Any:
    body = {"job_id": job_id} | ({"task_name": task} if task else {})
    return Caller(node, "operator", prefix, {})(path or ("/job/stop_task" if task else "/job/stop_all"), body)


def wait_up(world: World, job_id: str, *tasks: str) -> None:
    for task in tasks:
        world.run(job_id, task, "guest.0", world.me)
        world.run(job_id, task, "host.0", world.peer)


def succeed(world: World, job_id: str, *tasks: str) -> None:
    """Let both parties' containers leave their output and succeed."""
    for task in tasks:
        for label, node in (("guest.0", world.me), ("host.0", world.peer)):
            table = node.storage.path(world.run(job_id, task, label, node).outputs["out"])
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text("id,x\n1,2\n")
            world.end(job_id, task, label, node=node)
        wait_for(lambda task=task: world.job(job_id).tasks[task].status is SUCCESS, 20, 0.01)


def locals_of(world: World, job_id: str) -> list[LocalJob]:
    return [node.store.local_jobs.get(job_id) for node in (world.me, world.peer)]


def statuses(world: World, job_id: str) -> dict[str, TaskStatus]:
    return {name: task.status for name, task in world.job(job_id).tasks.items()}


def stopped(world: World, job_id: str) -> Job:
    """Wait for the end of the job and of all it left; check that every party says the same of it."""
    job = world.wait_status(job_id, JobStatus.FINISHED)
    shown = []
    for node in (world.me, world.peer):
        wait_for(lambda node=node: node.store.local_jobs.get(job_id).closed, 20, 0.01, "nothing is held any more")
        local = node.store.local_jobs.get(job_id)
        assert (local.status, local.ending.outcome) == (JobStatus.FINISHED, job.outcome)
        assert local.ending.failure == job.ending.failure
        assert {r.task_name: r.status.name for r in local.runs}.items() <= {
            name: task.status.name for name, task in job.tasks.items()
        }.items()
        assert not {found.name for found in world.engine(node).list()} & {run.name for run in local.runs}
        view = Caller(node, "operator", PLATFORM, {})("/job/status_all", method="GET", params={"job_id": job_id})
        shown.append(envelope(view)["data"])
    assert shown[0] == shown[1] and job.outcome is Outcome.STOPPED
    return job


@pytest.mark.parametrize(("prefix", "where"), [(PLATFORM, ME), (V2, PEER)])
def test_a_platform_stops_a_job_wherever_it_is_scheduled(world: World, submitted: Any, prefix: str, where: str):
    job_id = submitted("a -> b; c", "a", "c")
    node = world.me if where == ME else world.peer
    for _ in range(2):
        assert envelope(stop(node, prefix, job_id)) == DONE
    job = stopped(world, job_id)
    assert (job.ending.failure.reason, job.ending.by) == ("STOPPED", where)
    assert statuses(world, job_id) == {"a": FAILED, "b": READY, "c": FAILED}
    for local in locals_of(world, job_id):
        assert {run.failure.reason for run in local.runs} == {"STOPPED"}
    for one in (world.me, world.peer):
        assert envelope(stop(one, prefix, job_id)) == envelope(stop(one, prefix, job_id, "a")) == DONE
    assert world.job(job_id) == job


def test_a_scheduling_node_that_does_not_answer_is_named_where_a_task_is_to_stop(world: World):
    spec = a_spec("a", {"guest": (ME,), "host": (THIRD,)}, job_id="job-stop-away", **BY_THIRD)
    world.me.participant.create_job(spec, THIRD)
    answer = envelope(stop(world.me, PLATFORM, spec.job_id, "a"))
    assert answer["data"]["reason"] == "PEER_UNREACHABLE" and THIRD in answer["msg"]
    assert world.local(spec.job_id).status is JobStatus.READY
    world.me.participant.stop_job(spec.job_id, "", None, THIRD)
    assert envelope(stop(world.me, PLATFORM, spec.job_id)) == DONE, "it has ended here: nobody need be asked"


@pytest.mark.parametrize(("prefix", "where"), [(PLATFORM, PEER), (V2, ME)])
def test_a_task_and_what_follows_it_stop_everywhere_and_the_rest_goes_on(
    world: World, submitted: Any, prefix: str, where: str
):
    job_id = submitted("a -> b; c -> d", "a", "c")
    node = world.me if where == ME else world.peer
    for path in ("/job/stop_task", "/job/stop_all"):
        assert envelope(stop(node, prefix, job_id, "a", path)) == DONE
    wait_for(lambda: world.job(job_id).tasks["a"].status is FAILED, 20, 0.01, "the task has ended")
    succeed(world, job_id, "c", "d")
    failure = stopped(world, job_id).tasks["a"].failure
    assert statuses(world, job_id) == {"a": FAILED, "b": READY, "c": SUCCESS, "d": SUCCESS}
    assert (failure.reason, failure.task, failure) == ("STOPPED", "a", world.job(job_id).ending.failure)
    for local in locals_of(world, job_id):
        assert sorted(run.task_name for run in local.runs) == ["a", "c", "d"]


def test_what_has_succeeded_stays_so_and_the_last_task_takes_the_job_with_it(world: World, submitted: Any):
    job_id = submitted("a -> b; c -> d")
    succeed(world, job_id, "a")
    wait_up(world, job_id, "b", "c")
    for node, task in ((world.me, "a"), (world.peer, "a"), (world.me, "d")):  # over already, and never begun
        assert envelope(stop(node, PLATFORM, job_id, task)) == DONE
    succeed(world, job_id, "c")
    assert envelope(stop(world.peer, PLATFORM, job_id, "b")) == DONE
    assert stopped(world, job_id).progress == 50
    assert statuses(world, job_id) == {"a": SUCCESS, "b": FAILED, "c": SUCCESS, "d": READY}
