"""Two real nodes: a job starts with its images, and needs working storages and channels."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from engines.base import EngineDown, PullDenied
from gateway.bootstrap.node import Gateway
from gateway.data import workspace
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.dry_run import Item, Standing
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import DatabaseAway, EngineFailed, Refused
from gateway.jobs.readiness import FacilityFailure, Readiness
from tests.builders import a_dag, a_spec, raising
from tests.contracts.apis import World, a_provider_of, catch_refusal
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.memory_engine import Image, Script

pytestmark = pytest.mark.xdist_group("readiness")
# `ME` may fetch images; `PEER` schedules, and has them all.
SETTINGS = {
    "me": {
        "engine": {
            "kind": "docker",
            "docker": {
                "pull": "missing",
                "registries": ["shop.example"],
            },
        }
    }
}

ROLES = {
    "guest": (PEER,),
    "host": (ME,),
}
# Broken facilities: the folder, the reason of the refusal, the node, and the check of a dry run.
BROKEN = [
    ("storage", "STORAGE_NOT_WRITABLE", ME, "storage"),
    ("channel", "TRANSPORT_DOWN", PEER, "transport"),
]
_numbers = count()


def a_job() -> JobSpec:
    """Return a job that `PEER` schedules."""
    return a_spec(
        "a",
        ROLES,
        job_id=f"job-ready-{next(_numbers)}",
        scheduler=PEER,
    )


@contextmanager
def broken(
    node: Gateway,
    facility: str,
) -> Iterator[None]:
    """Put a file in place of the folder of the node's storage or channel."""
    folders = {
        "storage": node.settings.storage.path,
        "channel": node.settings.state_dir / "channel",
    }
    folder = folders[facility]
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def wait_for_failures(node: Gateway, count: int) -> None:
    """Wait until the node has noticed this many failures; it checks once a second."""
    wait_for(lambda: len(node.admission.failures()) == count, 60, 0.05)


def problem_at(world: World, node: str) -> Item:
    """Return the first problem of a node in a dry run."""
    nodes = {report.node: report for report in world.peer.dry_run.plan(a_job()).nodes}
    problems = [item for item in nodes[node].items if item.standing is Standing.PROBLEM]
    return problems[0]


@pytest.mark.parametrize(
    ("facility", "reason", "node_id", "check"),
    BROKEN,
)
def test_such_a_party_refuses_the_job_wherever_it_is(world, facility, reason, node_id, check):
    node = world.me if node_id == ME else world.peer
    spec = a_job()

    with broken(node, facility):
        wait_for_failures(node, 1)
        with suppress(Refused):  # raised if the refusal comes before the answer
            world.peer.coordinator.submit_job(spec, PEER)

        job = world.wait_status(
            spec.job_id,
            JobStatus.REJECTED,
            world.peer,
        )
        assert job.ending is not None
        assert job.ending.failure is not None
        failure = job.ending.failure
        assert failure.reason == reason
        assert failure.node == node_id
        assert "Not a directory" in failure.message
        assert str(world.home) not in failure.message
        assert world.job_view(spec, world.peer)["failure"]["reason"] == reason
        assert node.store.local_jobs.find(job.id) is None
        problem = problem_at(world, node_id)
        assert problem.check == check
        assert problem.cause.startswith(reason)
        assert problem.remedy

    repaired = a_job()
    world.peer.coordinator.submit_job(repaired, PEER)
    assert world.local(repaired.job_id).status in (JobStatus.READY, JobStatus.RUNNING)
    world.stop(repaired)


def test_a_disk_without_room_takes_no_job_though_it_takes_folders(world, monkeypatch):
    temporary_file = workspace.tempfile.TemporaryFile

    def file_on_full_disk(dir: str) -> Any:
        if "channel" in str(dir):
            return temporary_file(dir=dir)
        return open("/dev/full", "wb")

    monkeypatch.setattr(workspace.tempfile, "TemporaryFile", file_on_full_disk)
    wait_for_failures(world.me, 1)

    with pytest.raises(Refused) as refused:
        world.me.participant.create_job(a_job(), PEER)

    assert refused.value.reason == "STORAGE_NOT_WRITABLE"
    assert "No space left" in refused.value.message
    items = world.me.participant.dry_run(
        a_job(),
        PEER,
    )
    (item,) = [item for item in items if item.check == "storage"]
    assert item.standing is Standing.PROBLEM


def transport_failure(world: World, reason: str) -> FacilityFailure:
    """Return the failure of the transport if the check of the channel fails with this reason."""
    node = world.me
    check = raising(EngineFailed("no way to 10.0.0.1:7381", reason=reason))
    checks = {
        "storage": bool,
        "transport": check,
    }
    readiness = Readiness(ME, node.registry, lambda _: ("", node.engine), checks)
    return readiness.failures()["transport"]


@pytest.mark.parametrize("reason", ["PORT_IN_USE", "CREATE_FAILED"])
def test_containers_cut_off_from_the_gateway_mean_a_transport_failure(world, reason):
    failure = transport_failure(world, reason)

    assert failure.refuses_jobs
    assert failure.reason == "TRANSPORT_DOWN"
    assert reason in failure.text
    assert "10.0.0.1" not in failure.text


def test_an_engine_that_is_down_is_no_transport_failure(world):
    failure = transport_failure(world, EngineDown.reason)

    assert failure.text == "ENGINE_DOWN"
    assert not failure.refuses_jobs


class SlowPull:
    """A pull that reports its progress and ends once `may_end` is set."""

    PROGRESS = "1 of 2 layers, 3.0 MB under way"

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.aborted_by: list[BaseException] = []

    def __call__(
        self,
        on_progress: Callable[[str], None],
    ) -> Image:
        try:
            on_progress(self.PROGRESS)
            while not self.may_end.wait(0.05):
                on_progress(self.PROGRESS)
        except BaseException as error:  # a stop aborts the pull by an error of `on_progress`
            self.aborted_by.append(error)
            raise
        return Script(code=None)


def a_job_to_pull(
    world: World,
    pull: Callable[[Callable[[str], None]], Image],
) -> JobSpec:
    """Return a job of a component whose image `ME` has still to pull."""
    spec = a_job()
    name = spec.job_id.replace("job-ready-", "Far")
    image = f"shop.example/{name.lower()}"
    for node in (world.me, world.peer):
        node.registry.register(a_provider_of(name, image))
    peer_engine = world.engine(world.peer)
    peer_engine.images = {**peer_engine.images, image: Script(code=None)}
    world.engine().fetchable[image] = pull
    task = replace(
        a_dag("a").nodes[0],
        component=ComponentRef(name, "1.0.0", name),
    )
    return replace(spec, dag=Dag((task,)))


def wait_for_progress(world: World, spec: JobSpec) -> Any:
    """Return the job as `ME` shows it once the pull has reported its progress."""

    def view_with_progress() -> Any:
        view = world.job_view(spec)
        return view if "3.0 MB" in str(view["local_waiting"]) else None

    return wait_for(view_with_progress, 20)


def wait_for_outcome(
    world: World,
    spec: JobSpec,
    outcome: Outcome,
) -> None:
    """Wait until the job has ended with this outcome at `PEER`."""
    wait_for(lambda: world.scheduled(spec).outcome is outcome, 20, 0.01)


def test_a_job_is_ready_once_its_image_is_and_shows_the_pulls_progress(world):
    pull = SlowPull()
    spec = a_job_to_pull(world, pull)

    world.peer.coordinator.submit_job(spec, PEER)

    assert world.scheduled(spec).status is JobStatus.PENDING
    waiting = wait_for_progress(world, spec)["local_waiting"]
    assert waiting["reason"] == "PREPARING"
    assert "shop.example/far" in waiting["message"]
    assert ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"] == []
    assert catch_refusal(world.me.participant.start_job, spec.job_id, PEER) == ("NOT_READY", 409)
    approval = ask(world.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/approve")
    assert approval.json()["data"]["reason"] == "NOT_WAITING"
    waiting_at_peer = world.job_view(spec, world.peer)["waiting"]
    assert waiting_at_peer["reason"] == "PREPARING"
    assert f"{ME}: fetches shop.example" in waiting_at_peer["message"]
    view = world.peer.job_statuses.status_here(spec.job_id)
    assert view
    assert [party.reason for party in view.parties if party.node == ME] == ["PREPARING"]
    launched_jobs = {launch.labels["bfia.job"] for launch in world.engine().launches}
    assert spec.job_id not in launched_jobs

    pull.may_end.set()

    world.wait_status(
        spec.job_id,
        JobStatus.RUNNING,
        world.peer,
    )
    events = [entry.event for entry in world.me.store.timeline(spec.job_id)]
    milestones = ["images are fetched", "images fetched", "job RUNNING here"]
    assert [event for event in events if event in milestones] == milestones
    world.end_all(spec)
    wait_for_outcome(world, spec, Outcome.SUCCEEDED)


def test_a_pull_goes_on_while_the_database_is_away(world, monkeypatch):
    pulls = []

    def pull(on_progress):
        pulls.append(ME)
        with monkeypatch.context() as patch:
            patch.setattr(world.me.store.local_jobs, "get", raising(DatabaseAway("away")))
            on_progress("1 of 3 layers")
        return Script(code=None)

    spec = a_job_to_pull(world, pull)
    world.peer.coordinator.submit_job(spec, PEER)

    world.wait_status(
        spec.job_id,
        JobStatus.RUNNING,
        world.peer,
    )
    assert pulls == [ME]
    world.end_all(spec)
    wait_for_outcome(world, spec, Outcome.SUCCEEDED)


def test_an_image_that_cannot_be_had_rejects_the_job_with_the_nodes_reason(world):
    spec = a_job_to_pull(
        world, raising(PullDenied("the registry shop.example does not let this node in"))
    )

    with suppress(Refused):  # raised if the refusal comes before the answer
        world.peer.coordinator.submit_job(spec, PEER)

    world.wait_status(
        spec.job_id,
        JobStatus.REJECTED,
        world.peer,
    )
    failure = world.scheduled(spec).ending.failure
    assert failure.reason == "PULL_DENIED"
    assert failure.node == ME
    assert "does not let" in failure.message
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).ended_at is not None, 20, 0.01)


def test_a_stop_aborts_the_pull(world):
    pull = SlowPull()
    spec = a_job_to_pull(world, pull)
    world.peer.coordinator.submit_job(spec, PEER)

    world.peer.coordinator.stop_job(
        spec.job_id,
        "",
        PEER,
    )

    wait_for(lambda: pull.aborted_by, 20, 0.01)
    assert world.local(spec.job_id).status is JobStatus.REJECTED
    wait_for_outcome(world, spec, Outcome.STOPPED)
