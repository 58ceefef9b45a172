"""Two real nodes, one of which is asked about jobs before they are created: the job audit from end to end."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import yaml

from gateway.domain.auditing import id_for
from gateway.domain.job import Job
from gateway.domain.model import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Refused
from tests.builders import a_spec
from tests.contracts.apis import World, two_nodes
from tests.contracts.test_readiness import broken
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
    if job(world, spec).ended_at is None:
        world.peer.coordinator.stop_job(spec.job_id, "", "")
        wait_for(lambda: job(world, spec).ended_at is not None, 20, 0.01)


def job(world: World, spec: JobSpec) -> Job:
    return world.peer.store.jobs.get(spec.job_id)


def decide(world: World, spec: JobSpec, word: str) -> None:
    body = {"by": "li", "reason": "as agreed"}
    said = ask(world.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/{word}", json=body)
    assert said.status_code == 200, said.text


def status(world: World, spec: JobSpec) -> str:
    path, headers = "/v1/interconn/job/audit/query", {"x-source-node-id": PEER}
    said = ask(world.me, "peer", "GET", path, params={"audit_id": id_for(spec.job_id)}, headers=headers)
    return str(said.json()["data"]["status"])


def test_a_job_is_created_and_runs_after_a_person_agreed(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    assert (job(world, spec).status, status(world, spec)) == (JobStatus.PENDING, "APPLIED")
    assert world.local(spec.job_id).audit.created is False
    decide(world, spec, "approve")
    wait_for(lambda: job(world, spec).status is JobStatus.RUNNING, 20, 0.01, "the job runs")
    assert world.local(spec.job_id).audit.created and status(world, spec) == "APPROVED"
    for label, node in (("host.0", world.me), ("guest.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    wait_for(lambda: job(world, spec).outcome is Outcome.SUCCEEDED, 20, 0.01)
    events = [e.event for e in world.me.store.timeline(spec.job_id)]
    for before, then in (("asked before creation", "approved"), ("approved", "decision told")):
        assert events.index(before) < events.index(then)


def test_what_was_agreed_to_is_refused_where_it_cannot_be_taken_by_then(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    with broken(world.me, "storage"):
        wait_for(lambda: world.me.participant.looked(spec).lacks, 60, about="it is seen")
        decide(world, spec, "approve")
        wait_for(lambda: job(world, spec).status is JobStatus.REJECTED, 60, 0.01)
    failure = job(world, spec).ending.failure
    assert (failure.reason, failure.node) == ("STORAGE_NOT_WRITABLE", ME)
    assert world.local(spec.job_id).audit.created is False  # an approval that is not used ends by itself


def test_a_refusal_rejects_the_job_with_the_persons_words(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    decide(world, spec, "reject")
    wait_for(lambda: job(world, spec).status is JobStatus.REJECTED, 20, 0.01)
    failure = job(world, spec).ending.failure
    assert (failure.reason, failure.node, status(world, spec)) == ("APPROVAL_REJECTED", ME, "REJECTED")
    assert "li" in failure.message and "as agreed" in failure.message


def test_a_job_that_is_stopped_meanwhile_is_not_asked_about_any_more(world: World, spec: JobSpec):
    world.peer.coordinator.submit_job(spec, PEER)
    world.peer.coordinator.stop_job(spec.job_id, "", PEER)
    wait_for(lambda: world.local(spec.job_id).status is JobStatus.REJECTED, 20, 0.01)
    assert status(world, spec) == "TERMINATED"
    wait_for(lambda: job(world, spec).outcome is Outcome.STOPPED, 20, 0.01)
    assert world.local(spec.job_id).ending.failure.reason == "AUDIT_WITHDRAWN"


def test_who_creates_without_asking_where_a_person_decides_is_told_so(world: World, spec: JobSpec):
    """The other node's profile does not wait; the question is its way to a person all the same."""
    with pytest.raises(Refused) as caught:
        world.me.participant.create_job(spec, PEER)
    assert caught.value.reason == "APPROVAL_UNSUPPORTED"
    world.peer.coordinator.submit_job(spec, PEER)
    assert status(world, spec) == "APPLIED"
