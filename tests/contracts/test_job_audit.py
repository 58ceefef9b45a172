"""Two real nodes, one of which is asked about jobs before they are created: the job audit from end to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import yaml

from gateway.domain.approval import id_for
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Refused
from tests.builders import a_spec
from tests.contracts.apis import World, two_nodes
from tests.contracts.test_readiness import broken, seen
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask

ROLES = {"guest": (PEER,), "host": (ME,)}


_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`ME` asks a person, and is asked first by `PEER`, which by `ME`'s profile takes no late word."""
    person = {"approval": {"mode": "person", "deadline_seconds": 600}}
    with two_nodes(tmp_path_factory.mktemp("nodes"), me=person) as world:
        for node, other, profile in ((world.peer, world.me, "audited"), (world.me, world.peer, "fate")):
            entry = {other.settings.node.id: {"url": other.addresses()["peer"], "profile": profile}}
            Path(node.settings.route_table.file).write_text(yaml.safe_dump(entry))
            node.routes.reload()
        yield world


@pytest.fixture
def spec(world: World) -> Iterator[JobSpec]:
    spec = replace(a_spec("a", ROLES, job_id=f"job-audit-{next(_numbers)}"), scheduler=PEER)
    yield spec
    world.stop(spec)


def ended_here(world: World, spec: JobSpec) -> Failure:
    """Return why the job ended at `ME`, once it has."""
    (local,) = world.closed(spec.job_id)
    ending = local.ending
    assert ending is not None and ending.failure is not None
    shown = world.shown(spec)
    told = shown.get("local_failure") or shown["failed_by"]
    assert told["reason"] == ending.failure.reason  # and the people here can see it
    return ending.failure


def decide(world: World, spec: JobSpec, word: str) -> None:
    said = world.decide(spec, word, by="li", reason="as agreed")
    assert said.status_code == 200, said.text


def status(world: World, spec: JobSpec) -> str:
    path, headers = "/v1/interconn/job/audit/query", {"x-source-node-id": PEER}
    said = ask(world.me, "peer", "GET", path, params={"audit_id": id_for(spec.job_id)}, headers=headers)
    return str(said.json()["data"]["status"])


def test_a_job_is_created_and_runs_after_a_person_agreed(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    assert (world.scheduled(spec).status, status(world, spec)) == (JobStatus.PENDING, "APPLIED")
    assert world.local(spec.job_id).audit.created is False
    decide(world, spec, "approve")
    world.wait_status(spec.job_id, JobStatus.RUNNING, world.peer)
    assert world.local(spec.job_id).audit.created and status(world, spec) == "APPROVED"
    world.end_all(spec)
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = [e.event for e in world.me.store.timeline(spec.job_id)]
    for before, then in (("asked before creation", "approved"), ("approved", "decision told")):
        assert events.index(before) < events.index(then)


def test_what_was_agreed_to_is_refused_where_it_cannot_be_taken_by_then(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    with broken(world.me, "storage"):
        seen(world.me, 1)
        decide(world, spec, "approve")
        world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
    failure = world.scheduled(spec).ending.failure
    assert (failure.reason, failure.node) == ("STORAGE_NOT_WRITABLE", ME)
    assert ended_here(world, spec) == failure  # who agreed learns why it came to nothing, and nothing waits on
    assert world.local(spec.job_id).audit.created is False and status(world, spec) == "TERMINATED"


@contextmanager
def out_of_reach(world: World) -> Iterator[None]:
    """Have `PEER` not reach `ME`, which still reaches it."""
    file = Path(world.peer.settings.route_table.file)
    kept = file.read_text()
    file.write_text(kept.replace(world.me.addresses()["peer"], "http://127.0.0.1:9"))
    world.peer.routes.reload()
    try:
        yield
    finally:
        file.write_text(kept)
        world.peer.routes.reload()


def test_who_agrees_to_what_has_ended_meanwhile_learns_it_at_once(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    with out_of_reach(world):
        world.peer.coordinator.stop_job(spec.job_id, "", PEER)
        wait_for(lambda: world.scheduled(spec).ended_at is not None, 60, 0.01)
        decide(world, spec, "approve")
        assert ended_here(world, spec).reason == "STOPPED"  # although no stop can come here


def test_a_refusal_rejects_the_job_with_the_persons_words(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    decide(world, spec, "reject")
    world.wait_status(spec.job_id, JobStatus.REJECTED, world.peer)
    failure = world.scheduled(spec).ending.failure
    assert (failure.reason, failure.node, status(world, spec)) == ("APPROVAL_REJECTED", ME, "REJECTED")
    assert "li" in failure.message and "as agreed" in failure.message


def test_a_job_that_is_stopped_meanwhile_is_not_asked_about_any_more(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    world.peer.coordinator.stop_job(spec.job_id, "", PEER)
    wait_for(lambda: world.local(spec.job_id).status is JobStatus.REJECTED, 20, 0.01)
    assert status(world, spec) == "TERMINATED"
    wait_for(lambda: world.scheduled(spec).outcome is Outcome.STOPPED, 20, 0.01)
    assert world.local(spec.job_id).ending.failure == world.scheduled(spec).ending.failure


def test_who_creates_without_asking_where_a_person_decides_is_told_so(world: World, spec: JobSpec):
    """The other node's profile does not wait; the question is its way to a person all the same."""
    with pytest.raises(Refused) as caught:
        world.me.participant.create_job(spec, PEER)
    assert caught.value.reason == "APPROVAL_UNSUPPORTED"
    world.peer.coordinator.submit_job(spec, PEER)
    assert status(world, spec) == "APPLIED"
