"""Attacks: one partner uses up a node by endless requests or endless jobs."""

from dataclasses import replace

import pytest

from adapter.bfia.paths import SCHEDULE
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.domain.execution import machine
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import RunTiming
from gateway.http import peers
from gateway.http.peers import TokenBuckets
from tests.builders import a_local_job, a_run, a_spec, at
from tests.contracts.apis import THIRD, two_nodes
from tests.inprocess import ME, PEER, ask
from tests.trust.peer_requests import reason_of


def send(world, path, body, sender):
    """Send `ME` a request in a node's name; return the body of the response."""
    headers = {"x-source-node-id": sender}
    response = ask(world.me, "peer", "POST", SCHEDULE + path, json=body, headers=headers)
    return response.json()


def check_quota_is_reached(response):
    """Check that a request was refused for its sender's quota."""
    assert response["code"] == 429
    assert reason_of(response) == "PARTNER_QUOTA"


# ---------------------------------------------------------------- requests


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_bucket_refills_within_a_minute():
    clock = Clock()
    bucket = TokenBuckets(3, clock)
    assert take_until_refused(bucket, "a") == 3

    clock.now = 20.0
    assert take_until_refused(bucket, "a") == 1
    clock.now = 2000.0
    assert take_until_refused(bucket, "a") == 3


def take_until_refused(bucket, name):
    """Return the number of tokens that a name gets."""
    number = 0
    while bucket.take(name):
        number += 1
    return number


def test_each_name_has_its_own_bucket():
    bucket = TokenBuckets(3, Clock())
    take_until_refused(bucket, "a")
    assert bucket.take("b")


def test_the_number_of_names_is_bounded(monkeypatch):
    """Attack: each request names another node."""
    monkeypatch.setattr(peers, "MAX_BUCKETS", 2)
    bucket = TokenBuckets(3)
    for number in range(9):
        assert bucket.take(str(number))
        assert len(bucket) <= 2


def test_a_partner_that_sends_too_many_requests_is_refused_and_no_other(tmp_path):
    body = {"job_id": "job-none"}
    with two_nodes(tmp_path, me={"limits": {"partner_requests_per_minute": 5}}) as world:
        for _ in range(5):
            response = send(world, "/job/status_all", body, PEER)
            assert response["code"] == 404
            assert reason_of(response) == "JOB_UNKNOWN"
        check_quota_is_reached(send(world, "/job/status_all", body, PEER))
        check_quota_is_reached(send(world, "/job/status_all", body, PEER))

        of_third = send(world, "/job/status_all", body, THIRD)
        assert of_third["code"] == 404
        assert reason_of(of_third) == "JOB_UNKNOWN"
        headers = {
            "x-ptp-source-node-id": PEER,
            "x-ptp-session-id": "s",
            "x-ptp-target-node-id": ME,
        }
        path = "/v1/interconn/chan/invoke"
        message = ask(
            world.me,
            "peer",
            "POST",
            path,
            headers=headers,
            content=b"x",
        )
        assert message.status_code == 429


# ---------------------------------------------------------------- time and cores


def submit(world, scheduler):
    """Submit a job of both nodes at one of them; its containers run until the test ends them."""
    node = world.me
    partner = PEER
    if scheduler == PEER:
        node = world.peer
        partner = ME
    roles = {
        "guest": (scheduler,),
        "host": (partner,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id=f"job-of-{scheduler}",
    )
    node.coordinator.submit_job(spec, scheduler)
    return spec


def test_a_partners_job_ends_after_its_time_here(tmp_path):
    with two_nodes(tmp_path, me={"limits": {"partner_job_seconds": 0.1}}) as world:
        spec = submit(world, PEER)

        job = world.wait_status(
            spec.job_id,
            JobStatus.FINISHED,
            world.peer,
        )

        assert job.outcome is Outcome.STOPPED
        [local_job] = world.closed(spec.job_id)
        assert local_job.ending.failure.reason == "TIMEOUT"
        assert local_job.ending.failure.node == ME


def test_the_time_of_partners_jobs_does_not_bound_our_own(tmp_path):
    with two_nodes(tmp_path, me={"limits": {"partner_job_seconds": 0.1}}) as world:
        spec = submit(world, ME)
        world.run(
            spec.job_id,
            "a",
            "guest.0",
            world.me,
        )
        world.run(
            spec.job_id,
            "a",
            "host.0",
            world.peer,
        )

        world.end_all(spec)  # fails if a run was ended before

        job = world.wait_status(spec.job_id, JobStatus.FINISHED)
        assert job.outcome is Outcome.SUCCEEDED


def is_ended(scheduler, initiator, limit, seconds):
    """Return whether a job ends itself at node n1 after some seconds."""
    spec = replace(
        a_spec("a"),
        scheduler=scheduler,
        initiator=initiator,
    )
    job = a_local_job(a_run("a", created_at=at(0)))
    job = replace(job, spec=spec, node="n1")
    changed, *_ = machine.step(job, at(seconds), RunTiming(partner_job=limit))
    return changed.ending is not None


@pytest.mark.parametrize(
    ("scheduler", "initiator"),
    [
        ("n1", "n1"),
        ("n2", "n1"),
        ("n1", "n2"),
        ("n2", "n2"),
    ],
)
def test_the_time_of_a_job_is_bounded_unless_it_is_ours(scheduler, initiator):
    is_ours = scheduler == "n1" and initiator == "n1"
    assert not is_ended(scheduler, initiator, 60.0, 59)
    assert is_ended(scheduler, initiator, 60.0, 61) is not is_ours
    assert not is_ended(scheduler, initiator, None, 59)
    assert not is_ended(scheduler, initiator, None, 61)


def test_a_partners_task_that_requests_nothing_leaves_cores_to_others(tmp_path):
    with two_nodes(tmp_path) as world:
        our_job = submit(world, ME)
        partners_job = submit(world, PEER)

        our_cores = cores_of(world, our_job, "guest.0")
        partners_cores = cores_of(world, partners_job, "host.0")

        assert partners_cores == 0.75 * our_cores
        assert partners_cores > 0


def cores_of(world, spec, party):
    """Return the cores of a party's container at `ME`."""
    run = world.run(spec.job_id, "a", party)
    [launch] = [launch for launch in world.engine().launches if launch.name == run.name]
    return launch.limits.cpu


# ---------------------------------------------------------------- the number of jobs


@pytest.fixture
def two_jobs_world(tmp_path):
    """Two nodes; `ME` accepts two jobs of each partner."""
    with two_nodes(tmp_path, me={"limits": {"partner_jobs": 2}}) as world:
        yield world


def create_job(world, number, sender):
    """Create a job of a partner at `ME`; return the body of the response."""
    roles = {
        "guest": (sender,),
        "host": (ME,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id=f"job-{sender}-{number}",
    )
    return send(
        world,
        "/job/create",
        create_body(spec, PROFILES["spec"]),
        sender,
    )


def test_only_a_partner_with_too_many_jobs_is_refused(two_jobs_world):
    world = two_jobs_world
    assert create_job(world, 0, PEER)["code"] == 0
    assert create_job(world, 1, PEER)["code"] == 0

    check_quota_is_reached(create_job(world, 2, PEER))

    repeated = create_job(world, 1, PEER)
    assert repeated["code"] == 0, "a job that is already here does not count again"
    assert create_job(world, 0, THIRD)["code"] == 0
    world.me.participant.stop_job(
        f"job-{PEER}-0",
        "",
        None,
        PEER,
    )
    assert create_job(world, 3, PEER)["code"] == 0
    for number in (1, 3):
        stop = {"job_id": f"job-{PEER}-{number}"}
        assert send(world, "/job/stop", stop, PEER)["code"] == 0


def submit_as_peer(world, job_id):
    """Submit a job of `PEER` that `ME` schedules; return the body of the response."""
    spec = a_spec(
        "a",
        {
            "guest": (PEER,),
            "host": (ME,),
        },
        job_id=job_id,
        scheduler=ME,
        initiator=PEER,
    )
    return send(
        world,
        "/job/create_all",
        create_body(spec, PROFILES["spec"]),
        PEER,
    )


def test_jobs_that_a_partner_submits_here_count_as_well(two_jobs_world):
    world = two_jobs_world
    assert submit_as_peer(world, "job-0")["code"] == 0
    assert submit_as_peer(world, "job-1")["code"] == 0

    check_quota_is_reached(submit_as_peer(world, "job-2"))

    world.me.coordinator.stop_job("job-0", "", PEER)
    world.me.coordinator.stop_job("job-1", "", PEER)
