"""What two real nodes do when a third is away, a step after the creations fails, or one of them falls silent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia.peer import Peer
from gateway.bootstrap.node import Gateway
from gateway.domain import quorum
from gateway.domain.job import Job
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import PeerUnreachable, Refused
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask

pytestmark = pytest.mark.xdist_group("faults")
HOSTS = {"guest": (ME,), "host": (PEER, THIRD)}

SETTINGS = {
    "me": {
        "limits": {"schedule_attempts": 3, "schedule_pause_seconds": 0.05},
        "resources": {"cpu": 1},
    }
}

_numbers = count()


@pytest.fixture(autouse=True, scope="module")
def impatient(world: World) -> None:
    """Let `ME` give up a node that does not answer a creation, and `PEER` ask a silent scheduler, soon."""
    world.me.scheduler.timing = replace(world.me.scheduler.timing, create_deadline=2.0)
    world.peer.executor.timing = replace(world.peer.executor.timing, orphan=1.0)


def a_job_of(
    scratch: list[str],
    roles: Any = HOSTS,
    dag: str = "a",
    **common: Any,
) -> JobSpec:
    spec = a_spec(dag, roles, job_id=f"job-faults-{next(_numbers)}", job_params={"common": common})
    spec = replace(spec, scheduler=ME, initiator=ME)
    scratch.append(spec.job_id)
    return spec


def events(node: Gateway, spec: JobSpec) -> list[str]:
    return [e.event for e in node.store.timeline(spec.job_id)]


def test_a_job_runs_without_an_optional_party_that_is_down(world, scratch):
    spec = a_job_of(scratch, min_parties={"host": 1})
    world.me.coordinator.submit_job(spec, ME)  # THIRD answers nobody
    guest, host = (
        world.run(spec.job_id, "a", "guest.0"),
        world.run(spec.job_id, "a", "host.0", world.peer),
    )
    for node, run in ((world.me, guest), (world.peer, host)):
        environment = world.engine(node)._run(run.name).spec.environment
        assert {k for k in environment if k.startswith("config.node_id.")} == {
            "config.node_id.guest.0",
            "config.node_id.host.0",
        }
    path = "/v1/platform/schedule/job/status_all"
    for node in (world.me, world.peer):
        data = ask(node, "operator", "GET", path, params={"job_id": spec.job_id}).json()["data"]
        told = {p["party"]: p for p in data["parties"]}
        assert {label: p["state"] for label, p in told.items()} == {
            "guest.0": "ok",
            "host.0": "ok",
            "host.1": "unknown",
        }
        third = told["host.1"]
        assert third["node"] == THIRD
        assert third["excluded"] is True
        assert third["reason"] == "PEER_UNREACHABLE"
        assert third["tries"] >= 1
        assert THIRD in third["message"]
    for label, node in (("guest.0", world.me), ("host.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED
    assert "continues without" in events(world.me, spec)


@pytest.mark.parametrize(
    ("common", "reason"),
    [
        ({}, "PEER_UNREACHABLE"),
        ({"min_parties": {"host": 1}, "required_parties": ["host.1"]}, "ANSWER_NOT_SIGNED"),
    ],
)
def test_a_required_party_that_is_down_ends_the_job_with_the_detail(
    world, scratch, common, reason, monkeypatch
):
    spec, call = a_job_of(scratch, **common), Peer.raw

    def raw(
        peer: Peer,
        *args: Any,
        **more: Any,
    ) -> tuple[int, Any]:
        try:
            return call(peer, *args, **more)
        except PeerUnreachable as error:
            raise PeerUnreachable(
                error.message, delivered=error.delivered, reason=reason
            ) from error

    monkeypatch.setattr(Peer, "raw", raw)
    with pytest.raises(Refused, match=THIRD) as caught:
        world.me.coordinator.submit_job(spec, ME)
    assert caught.value.reason == reason
    job = world.wait_status(spec.job_id, JobStatus.REJECTED)
    states = {d.party: d.state for d in quorum.details(job)}
    assert states == {
        "guest.0": "ok",
        "host.0": "ok",
        "host.1": "unknown",
    }
    attempts = [e for e in world.me.store.timeline(spec.job_id) if e.event == "create not answered"]
    assert len(attempts) > 1
    assert all(e.by == THIRD and e.detail["next"] for e in attempts)
    pauses = [e.detail["tries"] for e in attempts]
    assert pauses == sorted(pauses)
    for local in world.closed(
        spec.job_id, world.me, world.peer
    ):  # who had accepted keeps nothing of it
        assert local.status == JobStatus.FINISHED
        assert local.runs == ()
    assert not any(node.resources.view()["holders"] for node in (world.me, world.peer))
    assert not world.engine().list()
    assert not world.engine(world.peer).list()


TWO = {"guest": (ME,), "host": (PEER,)}


class Failing:
    """Refuses the first so many calls as a bug there would; counts all of them."""

    def __init__(self, real: Any, times: int) -> None:
        self.real, self.times, self.calls = real, times, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise Refused("an error inside the gateway", reason="INTERNAL")
        return self.real(*args, **kwargs)


def ended(world: World, spec: JobSpec) -> Job:
    wait_for(lambda: world.job(spec.job_id).ended_at is not None, 60, 0.02, "the job has ended")
    return world.job(spec.job_id)


def test_a_step_after_all_creations_that_fails_ends_the_job_at_every_node(
    world, scratch, monkeypatch
):
    failing = Failing(world.peer.participant.start_job, 1000)
    monkeypatch.setattr(world.peer.participant, "start_job", failing)
    spec = a_job_of(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    job = ended(world, spec)
    assert job.ending is not None
    assert job.ending.failure is not None
    failure = job.ending.failure
    assert job.outcome == Outcome.FAILED
    assert failure.reason == "FAILED_TO_RUN"
    assert failure.node == PEER
    assert f"{PEER} error: INTERNAL" in failure.message
    for local in world.closed(spec.job_id, world.me, world.peer):
        assert local.status == JobStatus.FINISHED
        assert local.runs == ()
        assert local.ending is not None
        assert local.ending.failure == failure
    assert "start refused" in events(world.me, spec)


def test_a_job_that_never_fits_ends_with_its_history_at_every_node(world, scratch):
    """Each attempt is told with its reason, and nothing of the job is left."""
    params = {"common": {}, "guest": {"0": {"resources": {"cpu": 1}}}}
    first, second = (replace(a_job_of(scratch, TWO), job_params=params) for _ in range(2))
    world.me.coordinator.submit_job(first, ME)
    world.run(first.job_id, "a", "guest.0")
    world.me.coordinator.submit_job(second, ME)
    job = ended(world, second)
    attempts = [e for e in world.me.store.timeline(second.job_id) if e.event == "resources refused"]
    held = f"needs cpu 1 on node {ME}, free cpu 0, held by job {first.job_id} (cpu 1)"
    assert [(e.by, e.detail["reason"], e.detail["message"]) for e in attempts] == [
        (ME, "RESOURCES_BUSY", held)
    ] * 3
    assert job.ending is not None
    assert job.ending.failure is not None
    assert job.outcome == Outcome.FAILED
    assert job.ending.failure.reason == "CANNOT_SCHEDULE"
    assert "asked 3 times" in job.ending.failure.message
    assert held in job.ending.failure.message
    for local in world.closed(second.job_id, world.me, world.peer):
        assert local.ending is not None
        assert local.ending.failure == job.ending.failure
        assert local.runs == ()


def test_a_failed_finish_is_visible_retried_and_blocks_nothing(world, scratch, monkeypatch):
    failing = Failing(world.peer.participant.stop_job, 3)
    monkeypatch.setattr(world.peer.participant, "stop_job", failing)
    spec = a_job_of(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    assert ended(world, spec).outcome is Outcome.SUCCEEDED
    (local,) = world.closed(spec.job_id, world.peer)
    wait_for(
        lambda: world.job(spec.job_id).nodes[PEER].stop.completed, 60, 0.02, "it is acknowledged"
    )
    assert failing.calls == 4
    assert events(world.me, spec).count("stop refused") == 3
    assert local.ending.outcome is Outcome.SUCCEEDED


def orphan(
    world: World,
    scheduler: str,
    job_id: str,
) -> JobSpec:
    """Have `PEER` run a container of a job that the given node is said to schedule."""
    spec = replace(
        a_spec("a", {"guest": (scheduler,), "host": (PEER,)}, job_id=job_id), scheduler=scheduler
    )
    api = world.peer.participant
    api.create_job(spec, scheduler)
    api.start_task(job_id, f"task-{job_id}", "a", scheduler)
    return spec


@pytest.mark.parametrize(
    ("scheduler", "reason"), [(ME, "SCHEDULER_FORGOT"), (THIRD, "SCHEDULER_UNREACHABLE")]
)
def test_a_job_whose_scheduling_node_is_gone_ends_here(world, scheduler, reason):
    spec = orphan(world, scheduler, f"job-orphan-{reason}")
    (local,) = world.closed(spec.job_id, world.peer)
    assert local.status is JobStatus.FINISHED
    assert all(run.over for run in local.runs)
    assert local.ending is not None
    assert local.ending.failure is not None
    assert local.ending.outcome == Outcome.STOPPED
    assert local.ending.failure.reason == reason
    assert scheduler in local.ending.failure.message
    if scheduler == THIRD:  # which cannot be asked
        assert world.job_view(spec, world.peer)["local_failure"]["reason"] == reason
    stop_all(world.peer, spec)
    wish = world.peer.store.local_jobs.get(spec.job_id).wish
    assert (wish is not None) == (scheduler == THIRD), "whether it goes on there is not known"


def stop_all(node: Gateway, spec: JobSpec) -> None:
    answer = ask(
        node, "operator", "POST", "/v1/platform/schedule/job/stop_all", json={"job_id": spec.job_id}
    )
    assert answer.json()["code"] == 0, answer.text


@contextmanager
def away(
    node: Gateway,
    world: World,
    other: Gateway,
) -> Iterator[None]:
    """Have a node reach nobody where another one is."""
    routes = node.settings.route_table.file
    kept, url = routes.read_text(), other.addresses()["peer"]
    assert url in kept
    routes.write_text(kept.replace(url, "http://127.0.0.1:9"))
    node.routes.reload()
    try:
        yield
    finally:
        routes.write_text(kept)
        node.routes.reload()


@pytest.fixture
def never_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        world.peer.executor, "timing", replace(world.peer.executor.timing, orphan=36_000.0)
    )


@pytest.mark.usefixtures("never_asks")
def test_a_local_stop_works_without_the_scheduler_and_is_reported_later(world, scratch):
    spec = a_job_of(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    world.run(spec.job_id, "a", "host.0", world.peer)
    with away(world.peer, world, world.me), away(world.me, world, world.peer):
        stop_all(world.peer, spec)
        wait_for(
            lambda: world.peer.store.local_jobs.get(spec.job_id).closed,
            60,
            0.02,
            "its containers are gone",
        )
        stop_all(world.peer, spec)  # changes nothing
        shown = world.job_view(spec, world.peer)
        assert shown["status"] == JobStatus.FINISHED
        assert shown["outcome"] == Outcome.STOPPED
        waits = shown["local_waiting"]
        assert waits["reason"] == "CONFIRMING"
        assert ME in waits["message"]
        assert world.job(spec.job_id).ending is None
    ending = ended(world, spec).ending
    assert ending is not None
    assert ending.outcome is Outcome.STOPPED  # by the stop, or by the run's end before it
    wait_for(lambda: "stop reported" in events(world.peer, spec), 60, 0.02)


@pytest.mark.usefixtures("never_asks")
def test_a_lost_stop_is_noticed_when_the_jobs_state_is_read(world, scratch):
    spec = a_job_of(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    world.run(spec.job_id, "a", "host.0", world.peer)
    with away(world.me, world, world.peer):
        world.me.coordinator.stop_job(spec.job_id, "", ME)
        ended(world, spec)
        assert world.peer.coordinator.status(spec.job_id).outcome is Outcome.STOPPED
        (local,) = world.closed(spec.job_id, world.peer)
        assert local.ending is not None
        assert local.ending.outcome is Outcome.STOPPED


def test_an_exit_reaches_every_party_without_polling(world, scratch):
    """The engine tells its node, that node the scheduling one, and this one stops the others."""
    nodes, never = (world.me, world.peer), 36_000.0
    usual = [(node.executor.timing, node.scheduler.timing) for node in nodes]
    for node in nodes:
        node.executor.timing = replace(node.executor.timing, probe_every=never)
        node.scheduler.timing = replace(
            node.scheduler.timing,
            poll_first=never,
            poll_max=never,
            poll_pushing=never,
        )
    try:
        spec = a_job_of(scratch, roles={"guest": (ME,), "host": (PEER,)})
        world.me.coordinator.submit_job(spec, ME)
        guest = world.run(spec.job_id, "a", "guest.0")
        world.end(spec.job_id, "a", "host.0", code=1, node=world.peer)
        job = world.wait_status(spec.job_id, JobStatus.FINISHED)
        assert job.ending is not None
        assert job.ending.failure is not None
        assert job.ending.failure.reason == "EXIT_1"
        assert job.ending.failure.node == PEER
        assert {part.polls for part in job.tasks["a"].nodes.values()} == {0}
        world.closed(spec.job_id)
        assert guest.name not in {found.name for found in world.engine().list()}
    finally:
        for node, (executing, scheduling) in zip(nodes, usual, strict=True):
            node.executor.timing, node.scheduler.timing = executing, scheduling
