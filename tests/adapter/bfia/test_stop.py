"""Stopping over the wire: request, reply, each error and each accepted deviation of every path that stops."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import yaml

from adapter.bfia.client import ParticipantClient, SchedulerClient
from adapter.bfia.peer import Connections, Peer
from gateway.bootstrap.node import Gateway
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from route_table.live import LiveRoutes
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.e2e.nodes import wait_for
from tests.e2e.recorder import Recorder, Seen
from tests.inprocess import ME, PEER, STRANGER, ask

CONTROL = "/v1/interconn/schedule"
PLATFORM = "/v1/platform/schedule"
READY, RUNNING = TaskStatus.READY, TaskStatus.RUNNING
SUCCESS, FAILED = TaskStatus.SUCCESS, TaskStatus.FAILED

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

    def submit(dag: str = "a -> b; c") -> str:
        spec = a_spec(dag, {"guest": (ME,), "host": (PEER,)}, job_id=f"job-stop-{next(_numbers)}")
        jobs.append(spec.job_id)
        world.me.coordinator.submit_job(spec, "")
        world.wait_status(spec.job_id, JobStatus.RUNNING)
        return spec.job_id

    yield submit
    for job_id in jobs:
        world.me.coordinator.stop_job(job_id, "", "")


def platform(node: Gateway, path: str, body: Any) -> dict[str, Any]:
    return said(ask(node, "operator", "POST", path, json=body))


def peer(node: Gateway, path: str, body: Any, sender: str = PEER) -> dict[str, Any]:
    return said(ask(node, "peer", "POST", CONTROL + path, json=body, headers={"x-source-node-id": sender}))


def said(answer: Any) -> dict[str, Any]:
    body = answer.json()
    assert answer.status_code == 200, answer.text
    assert set(body) == {"code", "msg", "data"} and isinstance(body["data"], dict), body
    return dict(body)


DONE = {"code": 0, "msg": "success", "data": {}}


def reason(answer: dict[str, Any]) -> str:
    assert answer["code"] not in (0, 200), answer
    return str(answer["data"]["reason"])


def paths(answer: dict[str, Any]) -> set[str]:
    assert reason(answer) == "INVALID"
    return {p["path"] for p in answer["data"]["problems"]}


def up(world: World, job_id: str, *tasks: str) -> None:
    """Wait until both parties' containers of these tasks run."""
    for task in tasks:
        world.run(job_id, task, "guest.0", world.me)
        world.run(job_id, task, "host.0", world.peer)


def succeed(world: World, job_id: str, task: str) -> None:
    """Let both parties' containers leave their output and succeed."""
    for label, node in (("guest.0", world.me), ("host.0", world.peer)):
        leave_output(world, job_id, task, label, node)
        world.end(job_id, task, label, node=node)
    wait_for(lambda: world.job(job_id).tasks[task].status is SUCCESS, 20, 0.01, f"{task} has succeeded")


def leave_output(world: World, job_id: str, task: str, label: str, node: Gateway) -> None:
    table = node.storage.path(world.run(job_id, task, label, node).outputs["out"])
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("id,x\n1,2\n")


def locals_of(world: World, job_id: str) -> list[LocalJob]:
    return [node.store.local_jobs.get(job_id) for node in (world.me, world.peer)]


def statuses(world: World, job_id: str) -> dict[str, TaskStatus]:
    return {name: task.status for name, task in world.job(job_id).tasks.items()}


def ended(world: World, job_id: str) -> Job:
    """Wait for the end of the job and of all it left; check that every party says the same of it."""
    job = world.wait_status(job_id, JobStatus.FINISHED)
    for node in (world.me, world.peer):
        wait_for(lambda node=node: node.store.local_jobs.get(job_id).closed, 20, 0.01, "nothing is held any more")
    for local in locals_of(world, job_id):
        assert (local.status, local.ending.outcome) == (JobStatus.FINISHED, job.outcome)
        assert local.ending.failure == job.ending.failure
        for run in local.runs:
            assert run.status.name == job.tasks[run.task_name].status.name
    kept = {found.name for node in (world.me, world.peer) for found in world.engine(node).list()}
    assert not kept & {run.name for local in locals_of(world, job_id) for run in local.runs}
    query = {"params": {"job_id": job_id}}
    shown = [
        said(ask(node, "operator", "GET", f"{PLATFORM}/job/status_all", **query))["data"]
        for node in (world.me, world.peer)
    ]
    assert shown[0] == shown[1]
    return job


# ---------------------------------------------------------------- a platform stops a job


@pytest.mark.parametrize("path", [f"{PLATFORM}/job/stop_all", "/v2/schedule/job/stop_all"])
@pytest.mark.parametrize("where", ["initiator", "other party"])
def test_a_platform_stops_a_job_wherever_it_is_scheduled(world: World, submitted: Any, where: str, path: str):
    job_id = submitted()
    up(world, job_id, "a", "c")
    node = world.me if where == "initiator" else world.peer
    assert platform(node, path, {"job_id": job_id}) == DONE
    assert platform(node, path, {"job_id": job_id}) == DONE
    job = ended(world, job_id)
    assert job.outcome is Outcome.STOPPED
    assert (job.ending.failure.reason, job.ending.by) == ("STOPPED", ME if node is world.me else PEER)
    assert statuses(world, job_id) == {"a": FAILED, "b": READY, "c": FAILED}
    for local in locals_of(world, job_id):
        assert {run.failure.reason for run in local.runs} == {"STOPPED"}
    at_the_end = world.job(job_id)
    for one in (world.me, world.peer):
        assert platform(one, path, {"job_id": job_id}) == DONE
        assert platform(one, f"{PLATFORM}/job/stop_task", {"job_id": job_id, "task_name": "a"}) == DONE
    assert world.job(job_id) == at_the_end


def test_a_job_that_succeeded_is_left_as_it_is(world: World, submitted: Any):
    job_id = submitted("a")
    succeed(world, job_id, "a")
    assert ended(world, job_id).outcome is Outcome.SUCCEEDED
    for node in (world.me, world.peer):
        assert platform(node, f"{PLATFORM}/job/stop_all", {"job_id": job_id}) == DONE
    assert ended(world, job_id).outcome is Outcome.SUCCEEDED


def test_a_job_that_nobody_knows_cannot_be_stopped(world: World):
    for node in (world.me, world.peer):
        answer = platform(node, f"{PLATFORM}/job/stop_all", {"job_id": "job-nowhere"})
        assert (answer["code"], reason(answer)) == (404, "JOB_UNKNOWN")
        assert answer["msg"].startswith("JOB_UNKNOWN: ")
        answer = platform(node, f"{PLATFORM}/job/stop_task", {"job_id": "job-nowhere", "task_name": "a"})
        assert reason(answer) == "JOB_UNKNOWN"


def test_a_scheduling_node_that_does_not_answer_is_named(world: World):
    spec = a_spec("a", {"guest": (ME,), "host": (THIRD,)}, job_id="job-stop-away", **BY_THIRD)
    world.me.participant.create_job(spec, THIRD)
    stop = {"job_id": spec.job_id}
    answer = platform(world.me, f"{PLATFORM}/job/stop_all", stop)
    assert reason(answer) == "PEER_UNREACHABLE" and THIRD in answer["msg"]
    assert world.local(spec.job_id).status is JobStatus.READY
    world.me.participant.stop_job(spec.job_id, "", None, THIRD)
    assert platform(world.me, f"{PLATFORM}/job/stop_all", stop) == DONE, "it has ended here: nobody need be asked"


def test_what_a_platform_sends_wrongly_is_named_at_once(world: World):
    stop, task = f"{PLATFORM}/job/stop_all", f"{PLATFORM}/job/stop_task"
    for body in ({}, {"job_id": None}, {"job_id": 5}, {"job_id": ""}, {"job_id": "x" * 101}, {"job_id": "a b"}):
        assert paths(platform(world.me, stop, body)) == {"job_id"}
    assert paths(platform(world.me, stop, {"job_id": "j", "task_name": 5})) == {"task_name"}
    assert paths(platform(world.me, task, {})) == {"job_id", "task_name"}
    for name in (None, "", 5, ["a"]):
        assert paths(platform(world.me, task, {"job_id": "j", "task_name": name})) == {"task_name"}
    for raw in (b"", b"{", b"[]", b"null"):
        for path in (stop, task):
            assert said(ask(world.me, "operator", "POST", path, content=raw))["code"] == 400
    assert ask(world.me, "operator", "GET", stop).status_code == 405
    for listener in ("peer", "container"):
        assert ask(world.me, listener, "POST", stop, json={"job_id": "j"}).status_code == 404


def test_fields_that_stop_all_does_not_have_are_read_over(world: World, submitted: Any):
    job_id = submitted("a")
    body = {"job_id": job_id, "task_name": None, "role": "guest", "why": {"not": ["known"]}}
    assert platform(world.me, f"{PLATFORM}/job/stop_all", body) == DONE
    assert ended(world, job_id).outcome is Outcome.STOPPED


# ---------------------------------------------------------------- a platform stops a task


@pytest.mark.parametrize("path", [f"{PLATFORM}/job/stop_task", "/v2/schedule/job/stop_task"])
@pytest.mark.parametrize("where", ["initiator", "other party"])
def test_a_task_and_what_follows_it_stop_everywhere_and_the_rest_goes_on(
    world: World, submitted: Any, where: str, path: str
):
    job_id = submitted("a -> b; c -> d")
    up(world, job_id, "a", "c")
    node = world.me if where == "initiator" else world.peer
    for _ in range(2):
        assert platform(node, path, {"job_id": job_id, "task_name": "a", "role": "guest"}) == DONE
    wait_for(lambda: world.job(job_id).tasks["a"].status is FAILED, 20, 0.01, "the task has ended")
    for local in locals_of(world, job_id):
        assert local.status is JobStatus.RUNNING
        of_a = [run for run in local.runs if run.task_name == "a"]
        wait_for(lambda one=local: _over(world, one, "a"), 20, 0.01, "no container of it is left")
        assert len(of_a) == 1
    succeed(world, job_id, "c")
    up(world, job_id, "d")
    succeed(world, job_id, "d")
    job = ended(world, job_id)
    assert job.outcome is Outcome.STOPPED
    assert statuses(world, job_id) == {"a": FAILED, "b": READY, "c": SUCCESS, "d": SUCCESS}
    failure = job.tasks["a"].failure
    assert (failure.reason, failure.task, failure) == ("STOPPED", "a", job.ending.failure)
    for local in locals_of(world, job_id):
        assert sorted(run.task_name for run in local.runs) == ["a", "c", "d"]


def _over(world: World, local: LocalJob, task: str) -> bool:
    node = world.me if local.node == ME else world.peer
    return all(run.over for run in node.store.local_jobs.get(local.id).runs if run.task_name == task)


def test_the_last_task_takes_the_job_with_it(world: World, submitted: Any):
    job_id = submitted("a -> b")
    succeed(world, job_id, "a")
    up(world, job_id, "b")
    stop = {"job_id": job_id, "task_name": "b"}
    assert platform(world.peer, f"{PLATFORM}/job/stop_task", stop) == DONE
    assert ended(world, job_id).outcome is Outcome.STOPPED
    assert statuses(world, job_id) == {"a": SUCCESS, "b": FAILED}
    assert world.job(job_id).progress == 50


def test_a_task_that_has_succeeded_or_never_started_takes_nothing_with_it(world: World, submitted: Any):
    job_id = submitted("a -> b; c -> d")
    succeed(world, job_id, "a")
    up(world, job_id, "b", "c")
    for node in (world.me, world.peer):
        stop = {"job_id": job_id, "task_name": "a"}
        assert platform(node, f"{PLATFORM}/job/stop_task", stop) == DONE
    assert platform(world.me, f"{PLATFORM}/job/stop_task", {"job_id": job_id, "task_name": "d"}) == DONE
    succeed(world, job_id, "c")
    succeed(world, job_id, "b")
    assert ended(world, job_id).outcome is Outcome.STOPPED
    assert statuses(world, job_id) == {"a": SUCCESS, "b": SUCCESS, "c": SUCCESS, "d": READY}


def test_a_task_that_the_flow_does_not_have_cannot_be_stopped(world: World, submitted: Any):
    job_id = submitted("a")
    for node in (world.me, world.peer):
        answer = platform(node, f"{PLATFORM}/job/stop_task", {"job_id": job_id, "task_name": "nothing"})
        assert (answer["code"], reason(answer)) == (404, "TASK_UNKNOWN")
        assert "nothing" in answer["msg"]
    assert world.job(job_id).ending is None


def test_stop_all_with_a_task_stops_no_more_than_the_task(world: World, submitted: Any):
    job_id = submitted("a; c")
    up(world, job_id, "a", "c")
    assert platform(world.me, f"{PLATFORM}/job/stop_all", {"job_id": job_id, "task_name": "a"}) == DONE
    assert {name for name, task in world.job(job_id).tasks.items() if task.ending is not None} == {"a"}
    assert world.job(job_id).ending is None


# ---------------------------------------------------------------- between nodes: the whole job


def test_a_node_of_the_job_stops_it(world: World, submitted: Any):
    job_id = submitted()
    up(world, job_id, "a", "c")
    body = {"job_id": job_id, "task_name": None, "role": "host", "unknown": 1}
    for _ in range(2):
        assert peer(world.me, "/job/stop_all", body) == DONE
    assert ended(world, job_id).ending.by == PEER
    assert peer(world.me, "/job/stop_all", body) == DONE


def test_a_node_of_the_job_stops_a_task(world: World, submitted: Any):
    job_id = submitted()
    up(world, job_id, "a", "c")
    assert peer(world.me, "/job/stop_all", {"job_id": job_id, "task_name": "a"}) == DONE
    wait_for(lambda: world.job(job_id).tasks["a"].status is FAILED, 20, 0.01)
    assert world.job(job_id).ending is None
    answer = peer(world.me, "/job/stop_all", {"job_id": job_id, "task_name": "nothing"})
    assert (answer["code"], reason(answer)) == (404, "TASK_UNKNOWN")


def test_who_has_no_part_in_a_job_cannot_stop_it(world: World, submitted: Any):
    job_id = submitted("a")
    for sender in (THIRD, STRANGER):
        for more in ({}, {"task_name": "a"}):
            answer = peer(world.me, "/job/stop_all", {"job_id": job_id} | more, sender)
            assert (answer["code"], reason(answer)) == (403, "NOT_AUTHORISED")
    assert world.job(job_id).ending is None
    assert all(task.ending is None for task in world.job(job_id).tasks.values())


def test_what_a_node_asks_wrongly_is_named(world: World, submitted: Any):
    job_id = submitted("a")
    answer = peer(world.me, "/job/stop_all", {"job_id": "job-nowhere"})
    assert (answer["code"], reason(answer)) == (404, "JOB_UNKNOWN")
    answer = peer(world.peer, "/job/stop_all", {"job_id": job_id}, ME)
    assert reason(answer) == "JOB_UNKNOWN", "it takes part, and schedules nothing"
    for body in ({}, {"job_id": 5}, {"job_id": None}):
        assert paths(peer(world.me, "/job/stop_all", body)) == {"job_id"}
    assert paths(peer(world.me, "/job/stop_all", {"job_id": job_id, "task_name": {}})) == {"task_name"}
    assert world.job(job_id).ending is None


# ---------------------------------------------------------------- between nodes: a task by its id


@pytest.fixture
def foreign(world: World) -> Iterator[Any]:
    """Creates jobs here that `THIRD` schedules, with two tasks started; returns job id and task id by task."""
    jobs: list[str] = []

    def create() -> tuple[str, dict[str, str]]:
        job_id = f"job-foreign-{next(_numbers)}"
        jobs.append(job_id)
        roles = {"guest": (ME,), "host": (THIRD,)}
        spec = a_spec("a -> b; c", roles, job_id=job_id, **BY_THIRD)
        world.me.participant.create_job(spec, THIRD)
        ids = {name: f"{job_id}-{name}" for name in "abc"}
        for name in "ac":
            world.me.participant.start_task(job_id, ids[name], name, THIRD)
            world.run(job_id, name, "guest.0")
        return job_id, ids

    yield create
    for job_id in jobs:
        world.me.participant.stop_job(job_id, "", None, THIRD)


def test_a_task_is_stopped_by_its_id(world: World, foreign: Any):
    job_id, ids = foreign()
    body = {"task_id": ids["a"], "job_id": None, "role": "guest"}
    for _ in range(2):
        assert peer(world.me, "/task/stop", body, THIRD) == DONE | {"code": 200}
    wait_for(lambda: _over(world, world.local(job_id), "a"), 20, 0.01)
    local = world.local(job_id)
    assert {run.task_name: run.stop_at is not None for run in local.runs} == {"a": True, "c": False}
    assert local.runs[0].failure.reason == "STOPPED" and local.status is JobStatus.RUNNING
    assert peer(world.me, "/task/stop", body, THIRD)["code"] == 200


def test_a_task_that_succeeded_is_only_tidied_up_by_its_id(world: World, foreign: Any):
    job_id, ids = foreign()
    leave_output(world, job_id, "a", "guest.0", world.me)
    world.end(job_id, "a", "guest.0")
    world.me.participant.start_task(job_id, ids["b"], "b", THIRD)
    world.run(job_id, "b", "guest.0")
    assert peer(world.me, "/task/stop", {"task_id": ids["a"]}, THIRD)["code"] == 200
    local = world.local(job_id)
    assert all(run.stop_at is None for run in local.runs)


def test_who_may_not_stop_a_task_by_its_id_and_what_is_not_there(world: World, foreign: Any):
    job_id, ids = foreign()
    for sender in (PEER, STRANGER):
        assert reason(peer(world.me, "/task/stop", {"task_id": ids["a"]}, sender)) == "NOT_AUTHORISED"
    for unknown in ("task-nowhere", ids["b"]):
        answer = peer(world.me, "/task/stop", {"task_id": unknown}, THIRD)
        assert (answer["code"], reason(answer)) == (404, "TASK_UNKNOWN")
    for body in ({}, {"task_id": None}, {"task_id": 1}, {"task_id": ""}):
        assert paths(peer(world.me, "/task/stop", body, THIRD)) == {"task_id"}
    assert all(run.stop_at is None for run in world.local(job_id).runs)


# ---------------------------------------------------------------- what goes out


@pytest.mark.parametrize(
    ("profile", "path", "body"),
    [
        ("spec", "/job/stop", {"job_id": "j", "task_name": "a"}),
        ("fate", "/job/stop", {"job_id": "j", "task_name": "a"}),
        ("kuscia", "/task/stop", {"task_id": "t"}),
    ],
)
def test_a_task_is_stopped_at_each_kind_of_peer_in_its_own_way(
    world: World, tmp_path: Any, profile: str, path: str, body: dict[str, str]
):
    seen: list[Seen] = []
    routes, connections = tmp_path / "routes.yml", Connections()
    with Recorder(ME, world.me.addresses()["peer"], seen) as recorder:
        routes.write_text(yaml.safe_dump({ME: {"host": "127.0.0.1", "port": recorder.port, "profile": profile}}))
        client = Peer(PEER, ME, LiveRoutes(routes), connections)
        with pytest.raises(Exception, match="UNKNOWN"):
            ParticipantClient(client).stop_task("j", "t", "a", PEER)
        for task, more in (("", {}), ("a", {"task_name": "a"})):
            with pytest.raises(Exception, match="UNKNOWN"):
                SchedulerClient(client).stop_job("j", task, PEER)
            assert (seen[-1].path, seen[-1].body) == (f"{CONTROL}/job/stop_all", {"job_id": "j"} | more)
    connections.close()
    assert (seen[0].path, seen[0].body) == (CONTROL + path, body)
    assert json.loads(seen[0].raw) == body
