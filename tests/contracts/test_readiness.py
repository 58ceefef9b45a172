"""A node takes a job once it has the images, and none while its storage or channel is broken; on real nodes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from engines.base import EngineDown, PullDenied
from gateway.bootstrap.node import Gateway
from gateway.data import workspace
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.dry_run import Standing
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import EngineFailed, Refused
from gateway.jobs.readiness import Readiness
from tests.builders import a_dag, a_spec
from tests.contracts.apis import World, a_provider_of, catch_refusal
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.memory_engine import Image, Script

pytestmark = pytest.mark.xdist_group("readiness")
SETTINGS = {
    "me": {
        "engine": {"kind": "docker", "docker": {"pull": "missing", "registries": ["shop.example"]}}
    }
}
"""`ME` may fetch images; `PEER` schedules, and has them all"""

ROLES = {"guest": (PEER,), "host": (ME,)}
PLACES = [("storage", "STORAGE_NOT_WRITABLE", ME), ("channel", "TRANSPORT_DOWN", PEER)]
_numbers = count()


def a_job() -> JobSpec:
    return replace(a_spec("a", ROLES, job_id=f"job-ready-{next(_numbers)}"), scheduler=PEER)


@contextmanager
def broken(node: Gateway, place: str) -> Iterator[None]:
    """Put a file where the node's storage, or its channel's folder, has been."""
    settings = node.settings
    folder: Path = settings.storage.path if place == "storage" else settings.state_dir / "channel"
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def seen(node: Gateway, lacks: int) -> None:
    """Wait until the node sees what is broken, as soon as it looks at all again."""

    def look() -> bool:
        node.admission._readiness._fine_until.clear()
        return len(node.admission.failures()) == lacks

    wait_for(look, 60, 0.05)


@pytest.mark.parametrize(("place", "reason", "at"), PLACES)
def test_such_a_party_refuses_the_job_wherever_it_is(world, place, reason, at):
    node = world.me if at == ME else world.peer

    spec = a_job()
    with broken(node, place):
        seen(node, 1)
        with suppress(Refused):  # it may be known before the answer
            world.peer.coordinator.submit_job(spec, PEER)
        job = world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
        assert job.ending is not None
        assert job.ending.failure is not None
        failure = job.ending.failure
        assert failure.reason == reason
        assert failure.node == at
        assert "Not a directory" in failure.message
        assert str(world.home) not in failure.message
        assert world.job_view(spec, world.peer)["failure"]["reason"] == reason
        assert node.store.local_jobs.find(job.id) is None
        item = next(
            i
            for n in world.peer.dry_run.plan(a_job()).nodes
            for i in n.items
            if n.node == at and i.standing is Standing.PROBLEM
        )
        assert item.check == {"storage": "storage", "channel": "transport"}[place]
        assert item.cause.startswith(reason)
        assert item.remedy
    spec = a_job()
    world.peer.coordinator.submit_job(spec, PEER)  # as soon as it is mended
    assert world.local(spec.job_id).status in (JobStatus.READY, JobStatus.RUNNING)
    world.stop(spec)


def test_a_disk_without_room_takes_no_job_though_it_takes_folders(world, monkeypatch):
    real = workspace.tempfile.TemporaryFile
    full = lambda dir: real(dir=dir) if "channel" in str(dir) else open("/dev/full", "wb")  # noqa: E731, SIM115
    monkeypatch.setattr(workspace.tempfile, "TemporaryFile", full)
    seen(world.me, 1)
    with pytest.raises(Refused) as refused:
        world.me.participant.create_job(a_job(), PEER)
    assert refused.value.reason == "STORAGE_NOT_WRITABLE"
    assert "No space left" in refused.value.message
    (item,) = [i for i in world.me.participant.dry_run(a_job(), PEER) if i.check == "storage"]
    assert item.standing is Standing.PROBLEM


@pytest.mark.parametrize("reason", ["PORT_IN_USE", "CREATE_FAILED", EngineDown.reason])
def test_containers_cut_off_from_the_gateway_mean_a_transport_failure(world, reason):
    def way() -> object:
        raise EngineFailed("no way to 10.0.0.1:7381", reason=reason)

    node = world.me
    readiness = Readiness(
        ME, node.registry, lambda _: ("", node.engine), {"storage": bool, "transport": way}
    )
    lack = readiness.failures()["transport"]
    if reason == EngineDown.reason:
        assert lack.text == "ENGINE_DOWN"
        assert not lack.refuses_jobs
        return
    assert lack.refuses_jobs
    assert lack.reason == "TRANSPORT_DOWN"
    assert reason in lack.text
    assert "10.0.0.1" not in lack.text


class Shop:
    """Hands an image over once it is let."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.ended_by: list[BaseException] = []

    def __call__(self, told: Callable[[str], None]) -> Image:
        try:
            told("1 of 2 layers, 3.0 MB under way")
            while not self.may.wait(0.05):
                told("1 of 2 layers, 3.0 MB under way")
        except BaseException as error:
            self.ended_by.append(error)
            raise
        return Script(code=None)


def a_far_job(world: World, fetch: Callable[[Callable[[str], None]], Image]) -> JobSpec:
    """Return a job of a component whose image `ME` has still to fetch."""
    spec = a_job()
    name = spec.job_id.replace("job-ready-", "Far")
    image = f"shop.example/{name.lower()}"
    for node in (world.me, world.peer):
        node.registry.register(a_provider_of(name, image))
    peer = world.engine(world.peer)
    peer._images = {**peer._images, image: Script(code=None)}
    world.engine().fetchable[image] = fetch
    dag = Dag((replace(a_dag("a").nodes[0], component=ComponentRef(name, "1.0.0", name)),))
    return replace(spec, dag=dag)


def test_a_job_is_ready_once_its_image_is_and_shows_the_pulls_progress(world):
    shop = Shop()
    spec = a_far_job(world, shop)
    world.peer.coordinator.submit_job(spec, PEER)
    assert world.scheduled(spec).status is JobStatus.PENDING
    here = wait_for(
        lambda: "3.0 MB" in str(world.job_view(spec)["local_waiting"]) and world.job_view(spec), 20
    )
    assert here["local_waiting"]["reason"] == "PREPARING"
    assert "shop.example/far" in here["local_waiting"]["message"]
    assert ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"] == []
    assert catch_refusal(world.me.participant.start_job, spec.job_id, PEER) == ("NOT_READY", 409)
    refused = ask(world.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/approve")
    assert refused.json()["data"]["reason"] == "NOT_WAITING"
    there = world.job_view(spec, world.peer)
    assert there["waiting"]["reason"] == "PREPARING"
    assert f"{ME}: fetches shop.example" in there["waiting"]["message"]
    view = world.peer.coordinator.status_here(spec.job_id)
    assert view
    assert [p.reason for p in view.parties if p.node == ME] == ["PREPARING"]
    assert world.engine().launches == []
    shop.may.set()
    wait_for(lambda: world.scheduled(spec).status is JobStatus.RUNNING, 20, 0.01)
    events = [e.event for e in world.me.store.timeline(spec.job_id)]
    assert (
        events.index("images are fetched")
        < events.index("images fetched")
        < events.index("job RUNNING here")
    )
    world.end_all(spec)
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.SUCCEEDED, 20, 0.01)


def test_an_image_that_cannot_be_had_rejects_the_job_with_the_nodes_reason(world):
    def denied(told: Callable[[str], None]) -> Image:
        raise PullDenied("the registry shop.example does not let this node in")

    spec = a_far_job(world, denied)
    with suppress(Refused):  # it may be known before the answer
        world.peer.coordinator.submit_job(spec, PEER)
    wait_for(lambda: world.scheduled(spec).status is JobStatus.REJECTED, 20, 0.01)
    failure = world.scheduled(spec).ending.failure
    assert failure.reason == "PULL_DENIED"
    assert failure.node == ME
    assert "does not let" in failure.message
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).ended_at is not None, 20, 0.01)


def test_a_stop_ends_the_fetching(world):
    shop = Shop()
    spec = a_far_job(world, shop)
    world.peer.coordinator.submit_job(spec, PEER)
    world.peer.coordinator.stop_job(spec.job_id, "", PEER)
    wait_for(lambda: shop.ended_by, 20, 0.01)
    assert world.local(spec.job_id).status is JobStatus.REJECTED
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.STOPPED, 20, 0.01)
