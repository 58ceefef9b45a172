"""A node that cannot write its storage, or whose containers could not talk, takes no job; over two real nodes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from engines.base import EngineDown
from gateway.bootstrap.node import Gateway
from gateway.data import files
from gateway.domain.dry_run import Standing
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import EngineFailed, Refused
from gateway.jobs.admission import Readiness
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("readiness")


ROLES = {"guest": (PEER,), "host": (ME,)}


PLACES = [("storage", "STORAGE_NOT_WRITABLE"), ("channel", "TRANSPORT_DOWN")]


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
        return len(node.admission.lacks()) == lacks

    wait_for(look, 60, 0.05)


@pytest.mark.parametrize(("place", "reason"), PLACES)
@pytest.mark.parametrize("at", [ME, PEER])
def test_such_a_party_refuses_the_job_wherever_it_is(world: World, place: str, reason: str, at: str):
    node = world.me if at == ME else world.peer

    spec = a_job()
    with broken(node, place):
        seen(node, 1)
        with suppress(Refused):  # it may be known before the answer
            world.peer.coordinator.submit_job(spec, PEER)
        job = world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
        assert job.ending is not None and job.ending.failure is not None
        failure = job.ending.failure
        assert (failure.reason, failure.node) == (reason, at)
        assert "Not a directory" in failure.message and str(world.home) not in failure.message
        assert world.shown(spec, world.peer)["failure"]["reason"] == reason
        assert node.store.local_jobs.find(job.id) is None
        item = next(
            i
            for n in world.peer.dry_run.plan(a_job()).nodes
            for i in n.items
            if n.node == at and i.standing is Standing.PROBLEM
        )
        assert item.check == {"storage": "storage", "channel": "transport"}[place]
        assert item.cause.startswith(reason) and item.remedy
    spec = a_job()
    world.peer.coordinator.submit_job(spec, PEER)  # as soon as it is mended
    assert world.local(spec.job_id).status in (JobStatus.READY, JobStatus.RUNNING)
    world.stop(spec)


def test_a_disk_without_room_takes_no_job_though_it_takes_folders(world: World, monkeypatch: pytest.MonkeyPatch):
    real = files.tempfile.TemporaryFile
    full = lambda dir: real(dir=dir) if "channel" in str(dir) else open("/dev/full", "wb")  # noqa: E731, SIM115
    monkeypatch.setattr(files.tempfile, "TemporaryFile", full)
    seen(world.me, 1)
    with pytest.raises(Refused) as refused:
        world.me.participant.create_job(a_job(), PEER)
    assert refused.value.reason == "STORAGE_NOT_WRITABLE" and "No space left" in refused.value.message
    (item,) = [i for i in world.me.participant.dry_run(a_job(), PEER) if i.check == "storage"]
    assert item.standing is Standing.PROBLEM


@pytest.mark.parametrize("reason", ["PORT_IN_USE", "CREATE_FAILED", EngineDown.reason])
def test_containers_that_cannot_reach_the_gateway_are_a_transport_that_is_down(world: World, reason: str):
    def way() -> object:
        raise EngineFailed("no way to 10.0.0.1:7381", reason=reason)

    node = world.me
    readiness = Readiness(ME, node.registry, lambda _: ("", node.engine), {"storage": bool, "transport": way})
    lack = readiness.places()["transport"]
    if reason == EngineDown.reason:
        assert lack.text == "ENGINE_DOWN" and not lack.refuses
        return
    assert lack.refuses and lack.reason == "TRANSPORT_DOWN"
    assert reason in lack.text and "10.0.0.1" not in lack.text
