"""Two real nodes when a third is away, a step after the creations fails, or one falls silent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia.peer import Peer
from gateway.bootstrap.node import Gateway
from gateway.domain import quorum
from gateway.domain.job import Job
from gateway.domain.run import Run
from gateway.domain.spec import Failure, JobSpec
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
    """Shorten the patience of both nodes, in seconds.

    `ME` gives up a node that does not answer a creation; `PEER` asks a silent scheduler.
    """
    world.me.scheduler.timing = replace(
        world.me.scheduler.timing,
        create_deadline=2.0,
    )
    world.peer.executor.timing = replace(world.peer.executor.timing, orphan=1.0)


def a_job(
    scratch: list[str],
    roles: Any = HOSTS,
    dag: str = "a",
    **common: Any,
) -> JobSpec:
    """Return a job that `ME` schedules; ``common`` are its common parameters."""
    job_id = f"job-faults-{next(_numbers)}"
    spec = a_spec(
        dag,
        roles,
        job_id=job_id,
        job_params={"common": common},
        scheduler=ME,
        initiator=ME,
    )
    scratch.append(job_id)
    return spec


def events(node: Gateway, spec: JobSpec) -> list[str]:
    """Return the names of the job's events, in order."""
    return [entry.event for entry in node.store.timeline(spec.job_id)]


def entries(node: Gateway, spec: JobSpec, event: str) -> list[Any]:
    """Return the entries of one kind in the job's timeline."""
    return [entry for entry in node.store.timeline(spec.job_id) if entry.event == event]


def node_variables(world: World, node: Gateway, run: Run) -> set[str]:
    """Return the names of a run's variables that hold ids of nodes."""
    launches = {launch.name: launch for launch in world.engine(node).launches}
    environment = launches[run.name].environment
    return {name for name in environment if name.startswith("config.node_id.")}


def party_states(node: Gateway, spec: JobSpec) -> dict[str, Any]:
    """Return the parties of a job as the node's operators see them, by label."""
    path = "/v1/platform/schedule/job/status_all"
    response = ask(
        node,
        "operator",
        "GET",
        path,
        params={"job_id": spec.job_id},
    )
    return {party["party"]: party for party in response.json()["data"]["parties"]}


def failure_of(record: Any) -> Failure:
    """Return the failure of a job, which has ended."""
    assert record.ending is not None
    assert record.ending.failure is not None
    return record.ending.failure


def test_a_job_runs_without_an_optional_party_that_is_down(world, scratch):
    spec = a_job(scratch, min_parties={"host": 1})

    world.me.coordinator.submit_job(spec, ME)  # THIRD does not respond

    guest = world.run(spec.job_id, "a", "guest.0")
    host = world.run(
        spec.job_id,
        "a",
        "host.0",
        world.peer,
    )
    present = {"config.node_id.guest.0", "config.node_id.host.0"}
    assert node_variables(world, world.me, guest) == present
    assert node_variables(world, world.peer, host) == present
    for node in (world.me, world.peer):
        parties = party_states(node, spec)
        states = {label: party["state"] for label, party in parties.items()}
        assert states == {"guest.0": "ok", "host.0": "ok", "host.1": "unknown"}
        third = parties["host.1"]
        assert third["node"] == THIRD
        assert third["excluded"] is True
        assert third["reason"] == "PEER_UNREACHABLE"
        assert third["tries"] >= 1
        assert THIRD in third["message"]
    world.end(
        spec.job_id,
        "a",
        "guest.0",
        node=world.me,
    )
    world.end(
        spec.job_id,
        "a",
        "host.0",
        node=world.peer,
    )
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED
    assert "continues without" in events(world.me, spec)


def set_reason_of_lost_calls(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Let every call to a node that is away fail with this reason."""
    call = Peer.raw

    def raw(peer: Peer, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        try:
            return call(peer, *args, **kwargs)
        except PeerUnreachable as error:
            raise PeerUnreachable(
                error.message, delivered=error.delivered, reason=reason
            ) from error

    monkeypatch.setattr(Peer, "raw", raw)


@pytest.mark.parametrize(
    ("common", "reason"),
    [
        ({}, "PEER_UNREACHABLE"),
        (
            {"min_parties": {"host": 1}, "required_parties": ["host.1"]},
            "ANSWER_NOT_SIGNED",
        ),
    ],
)
def test_a_required_party_that_is_down_ends_the_job_with_the_detail(
    world, scratch, common, reason, monkeypatch
):
    set_reason_of_lost_calls(monkeypatch, reason)
    spec = a_job(scratch, **common)

    with pytest.raises(Refused, match=THIRD) as refusal:
        world.me.coordinator.submit_job(spec, ME)

    assert refusal.value.reason == reason
    job = world.wait_status(spec.job_id, JobStatus.REJECTED)
    states = {detail.party: detail.state for detail in quorum.details(job)}
    assert states == {"guest.0": "ok", "host.0": "ok", "host.1": "unknown"}
    attempts = entries(world.me, spec, "create not answered")
    assert len(attempts) > 1
    assert all(attempt.by == THIRD for attempt in attempts)
    assert all(attempt.detail["next"] for attempt in attempts)
    tries = [attempt.detail["tries"] for attempt in attempts]
    assert tries == sorted(tries)
    # The nodes that had accepted the job hold nothing of it.
    for local in world.closed(spec.job_id, world.me, world.peer):
        assert local.status == JobStatus.FINISHED
        assert local.runs == ()
    for node in (world.me, world.peer):
        assert not node.resources.view()["holders"]
        assert not world.engine(node).list()


TWO = {"guest": (ME,), "host": (PEER,)}


class Failing:
    """A function that refuses its first calls as if it had a bug, then does its work."""

    def __init__(self, function: Callable[..., Any], failures: int) -> None:
        self._function = function
        self._failures = failures
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls <= self._failures:
            raise Refused("an error inside the gateway", reason="INTERNAL")
        return self._function(*args, **kwargs)


def wait_for_end(world: World, spec: JobSpec) -> Job:
    """Return a job of `ME` once it has ended."""
    wait_for(lambda: world.job(spec.job_id).ended_at is not None, 60, 0.02, "the job has ended")
    return world.job(spec.job_id)


def test_a_step_after_all_creations_that_fails_ends_the_job_at_every_node(
    world, scratch, monkeypatch
):
    failing = Failing(world.peer.participant.start_job, 1000)
    monkeypatch.setattr(world.peer.participant, "start_job", failing)
    spec = a_job(scratch, TWO)

    world.me.coordinator.submit_job(spec, ME)

    job = wait_for_end(world, spec)
    failure = failure_of(job)
    assert job.outcome == Outcome.FAILED
    assert failure.reason == "FAILED_TO_RUN"
    assert failure.node == PEER
    assert f"{PEER} error: INTERNAL" in failure.message
    for local in world.closed(spec.job_id, world.me, world.peer):
        assert local.status == JobStatus.FINISHED
        assert local.runs == ()
        assert failure_of(local) == failure
    assert "start refused" in events(world.me, spec)


def test_a_job_that_never_fits_ends_with_its_history_at_every_node(world, scratch):
    """Each attempt is reported with its reason, and the job leaves nothing behind."""
    params = {"common": {}, "guest": {"0": {"resources": {"cpu": 1}}}}
    first = replace(a_job(scratch, TWO), job_params=params)
    second = replace(a_job(scratch, TWO), job_params=params)
    world.me.coordinator.submit_job(first, ME)
    world.run(first.job_id, "a", "guest.0")

    world.me.coordinator.submit_job(second, ME)

    job = wait_for_end(world, second)
    obstacle = f"needs cpu 1 on node {ME}, free cpu 0, held by job {first.job_id} (cpu 1)"
    attempts = entries(world.me, second, "resources refused")
    assert [attempt.by for attempt in attempts] == [ME] * 3
    assert [attempt.detail["reason"] for attempt in attempts] == ["RESOURCES_BUSY"] * 3
    assert [attempt.detail["message"] for attempt in attempts] == [obstacle] * 3
    failure = failure_of(job)
    assert job.outcome == Outcome.FAILED
    assert failure.reason == "CANNOT_SCHEDULE"
    assert "asked 3 times" in failure.message
    assert obstacle in failure.message
    for local in world.closed(second.job_id, world.me, world.peer):
        assert failure_of(local) == failure
        assert local.runs == ()


def test_a_failed_finish_is_visible_retried_and_blocks_nothing(world, scratch, monkeypatch):
    failing = Failing(world.peer.participant.stop_job, 3)
    monkeypatch.setattr(world.peer.participant, "stop_job", failing)
    spec = a_job(scratch, TWO)

    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)

    assert wait_for_end(world, spec).outcome is Outcome.SUCCEEDED
    (local,) = world.closed(spec.job_id, world.peer)
    wait_for(
        lambda: world.job(spec.job_id).nodes[PEER].stop.completed, 60, 0.02, "it is acknowledged"
    )
    assert failing.calls == 4
    assert events(world.me, spec).count("stop refused") == 3
    assert local.ending.outcome is Outcome.SUCCEEDED


def start_orphan(world: World, scheduler: str, job_id: str) -> JobSpec:
    """Have `PEER` run a container of a job with this scheduler, which does not know the job."""
    roles = {"guest": (scheduler,), "host": (PEER,)}
    spec = a_spec(
        "a",
        roles,
        job_id=job_id,
        scheduler=scheduler,
    )
    participant = world.peer.participant
    participant.create_job(spec, scheduler)
    participant.start_task(job_id, f"task-{job_id}", "a", scheduler)
    return spec


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [(ME, "SCHEDULER_FORGOT"), (THIRD, "SCHEDULER_UNREACHABLE")],
)
def test_a_job_whose_scheduling_node_is_gone_ends_here(world, scheduler, reason):
    spec = start_orphan(world, scheduler, f"job-orphan-{reason}")
    may_go_on_elsewhere = scheduler == THIRD  # THIRD cannot be asked

    (local,) = world.closed(spec.job_id, world.peer)

    assert local.status is JobStatus.FINISHED
    assert all(run.over for run in local.runs)
    failure = failure_of(local)
    assert local.ending.outcome == Outcome.STOPPED
    assert failure.reason == reason
    assert scheduler in failure.message
    if may_go_on_elsewhere:
        assert world.job_view(spec, world.peer)["local_failure"]["reason"] == reason

    stop_all(world.peer, spec)

    stop_call = world.peer.store.local_jobs.get(spec.job_id).stop_call
    assert (stop_call is not None) == may_go_on_elsewhere


def stop_all(node: Gateway, spec: JobSpec) -> None:
    """Stop a job at a node, as its operators do."""
    path = "/v1/platform/schedule/job/stop_all"
    response = ask(
        node,
        "operator",
        "POST",
        path,
        json={"job_id": spec.job_id},
    )
    assert response.json()["code"] == 0, response.text


@contextmanager
def unreachable(node: Gateway, world: World, partner: Gateway) -> Iterator[None]:
    """Let a node's route to its partner lead nowhere."""
    routes = node.settings.route_table.file
    text = routes.read_text()
    url = partner.addresses()["peer"]
    assert url in text
    routes.write_text(text.replace(url, "http://127.0.0.1:9"))
    node.routes.reload()
    try:
        yield
    finally:
        routes.write_text(text)
        node.routes.reload()


NEVER = 36_000.0  # seconds


@pytest.fixture
def never_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `PEER` never ask a silent scheduler."""
    timing = replace(world.peer.executor.timing, orphan=NEVER)
    monkeypatch.setattr(world.peer.executor, "timing", timing)


@pytest.mark.usefixtures("never_asks")
def test_a_local_stop_works_without_the_scheduler_and_is_reported_later(world, scratch):
    spec = a_job(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    world.run(
        spec.job_id,
        "a",
        "host.0",
        world.peer,
    )

    with unreachable(world.peer, world, world.me), unreachable(world.me, world, world.peer):
        stop_all(world.peer, spec)
        wait_for(
            lambda: world.peer.store.local_jobs.get(spec.job_id).closed,
            60,
            0.02,
            "its containers are gone",
        )
        stop_all(world.peer, spec)  # changes nothing
        view = world.job_view(spec, world.peer)
        assert view["status"] == JobStatus.FINISHED
        assert view["outcome"] == Outcome.STOPPED
        waiting = view["local_waiting"]
        assert waiting["reason"] == "CONFIRMING"
        assert ME in waiting["message"]
        assert world.job(spec.job_id).ending is None

    # The end of the run or the report of the stop may come first.
    ending = wait_for_end(world, spec).ending
    assert ending is not None
    assert ending.outcome is Outcome.STOPPED
    wait_for(lambda: "stop reported" in events(world.peer, spec), 60, 0.02)


@pytest.mark.usefixtures("never_asks")
def test_a_lost_stop_is_noticed_when_the_jobs_state_is_read(world, scratch):
    spec = a_job(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    world.run(
        spec.job_id,
        "a",
        "host.0",
        world.peer,
    )

    with unreachable(world.me, world, world.peer):
        world.me.coordinator.stop_job(spec.job_id, "", ME)
        wait_for_end(world, spec)
        assert world.peer.job_statuses.status(spec.job_id).outcome is Outcome.STOPPED
        (local,) = world.closed(spec.job_id, world.peer)
        assert local.ending is not None
        assert local.ending.outcome is Outcome.STOPPED


@pytest.fixture
def without_polling(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both nodes neither probe runs nor poll tasks."""
    for node in (world.me, world.peer):
        executing = replace(node.executor.timing, probe_every=NEVER)
        scheduling = replace(
            node.scheduler.timing,
            poll_first=NEVER,
            poll_max=NEVER,
            poll_pushing=NEVER,
        )
        monkeypatch.setattr(node.executor, "timing", executing)
        monkeypatch.setattr(node.scheduler, "timing", scheduling)


@pytest.mark.usefixtures("without_polling")
def test_an_exit_reaches_every_party_without_polling(world, scratch):
    """The engine reports to its node, that node to the scheduler, which stops the others."""
    spec = a_job(scratch, TWO)
    world.me.coordinator.submit_job(spec, ME)
    guest = world.run(spec.job_id, "a", "guest.0")

    world.end(
        spec.job_id,
        "a",
        "host.0",
        code=1,
        node=world.peer,
    )

    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    failure = failure_of(job)
    assert failure.reason == "EXIT_1"
    assert failure.node == PEER
    assert {part.polls for part in job.tasks["a"].nodes.values()} == {0}
    world.closed(spec.job_id)
    assert guest.name not in {run.name for run in world.engine().list()}
