"""A node that lacks an image fetches it before it says that a job is READY; over two real nodes."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from engines.base import PullDenied
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Refused
from tests.builders import a_dag, a_spec
from tests.contracts.apis import World, a_provider_of
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.memory_engine import Image, Script

pytestmark = pytest.mark.xdist_group("preparing")


ROLES = {"guest": (PEER,), "host": (ME,)}


FETCHING = {"kind": "docker", "docker": {"pull": "missing", "registries": ["shop.example"]}}


SETTINGS = {"me": {"engine": FETCHING}}
"""`ME` may fetch images; `PEER` schedules, and has them all"""


_numbers = count()


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


def a_job(world: World, fetch: Callable[[Callable[[str], None]], Image]) -> JobSpec:
    """Return a job of a component whose image `ME` has still to fetch."""
    number = next(_numbers)
    name, image = f"Far{number}", f"shop.example/far:{number}"
    for node in (world.me, world.peer):
        node.registry.register(a_provider_of(name, image))
    peer = world.engine(world.peer)
    peer._images = {**peer._images, image: Script(code=None)}
    world.engine().fetchable[image] = fetch
    dag = Dag((replace(a_dag("a").nodes[0], component=ComponentRef(name, "1.0.0", name)),))
    return replace(a_spec("a", ROLES, job_id=f"job-far-{number}"), scheduler=PEER, dag=dag)


def test_a_job_is_ready_once_the_image_is_here_and_tells_how_far_it_has_come(world: World):
    shop = Shop()
    spec = a_job(world, shop)
    world.peer.coordinator.submit_job(spec, PEER)
    assert world.scheduled(spec).status is JobStatus.PENDING
    here = wait_for(lambda: "3.0 MB" in str(world.shown(spec)["local_waiting"]) and world.shown(spec), 20)
    assert (
        here["local_waiting"]["reason"] == "PREPARING" and "shop.example/far" in here["local_waiting"]["message"]
    )
    assert ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"] == []
    refused = ask(world.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/approve")
    assert refused.json()["data"]["reason"] == "NOT_WAITING"
    there = world.shown(spec, world.peer)
    assert (
        there["waiting"]["reason"] == "PREPARING" and f"{ME}: fetches shop.example" in there["waiting"]["message"]
    )
    view = world.peer.coordinator.status_here(spec.job_id)
    assert view and [p.reason for p in view.parties if p.node == ME] == ["PREPARING"]
    assert world.engine().launches == []
    shop.may.set()
    wait_for(lambda: world.scheduled(spec).status is JobStatus.RUNNING, 20, 0.01)
    events = [e.event for e in world.me.store.timeline(spec.job_id)]
    assert events.index("images are fetched") < events.index("images fetched") < events.index("job RUNNING here")
    world.end_all(spec)
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.SUCCEEDED, 20, 0.01)


def test_an_image_that_cannot_be_had_rejects_the_job_with_the_nodes_reason(world: World):
    def denied(told: Callable[[str], None]) -> Image:
        raise PullDenied("the registry shop.example does not let this node in")

    spec = a_job(world, denied)
    with suppress(Refused):  # it may be known before the answer
        world.peer.coordinator.submit_job(spec, PEER)
    wait_for(lambda: world.scheduled(spec).status is JobStatus.REJECTED, 20, 0.01)
    failure = world.scheduled(spec).ending.failure
    assert (failure.reason, failure.node) == ("PULL_DENIED", ME) and "does not let" in failure.message
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).ended_at is not None, 20, 0.01)


def test_a_stop_ends_the_fetching(world: World):
    shop = Shop()
    spec = a_job(world, shop)
    world.peer.coordinator.submit_job(spec, PEER)
    world.peer.coordinator.stop_job(spec.job_id, "", PEER)
    wait_for(lambda: shop.ended_by, 20, 0.01)
    assert world.local(spec.job_id).status is JobStatus.REJECTED
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.STOPPED, 20, 0.01)
