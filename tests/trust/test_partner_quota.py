"""One partner takes all that a node has: requests without end, jobs without end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.peer import INTERCONN
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.bootstrap.node import Gateway
from gateway.domain.execution import machine
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import RunTiming
from gateway.http import peers
from gateway.http.peers import TokenBucket
from tests.builders import a_local_job, a_run, a_spec, at
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER, ask


def reason(answer: Any) -> tuple[int, str]:
    said = answer.json()
    return said["code"], (said.get("data") or {}).get("reason", "")


def sent(
    node: Gateway,
    path: str,
    body: Any,
    sender: str,
) -> tuple[int, str]:
    headers = {"x-source-node-id": sender}
    return reason(ask(node, "peer", "POST", INTERCONN + path, json=body, headers=headers))


def test_a_bucket_refills_within_a_minute_and_each_name_has_its_own():
    now = [0.0]
    bucket = TokenBucket(3, lambda: now[0])
    assert [bucket.take("a") for _ in range(4)] == [True, True, True, False]
    assert bucket.take("b")
    now[0] = 20.0
    assert [bucket.take("a") for _ in range(2)] == [True, False]
    now[0] = 2000.0
    assert [bucket.take("a") for _ in range(4)] == [True, True, True, False]


def test_names_without_end_are_kept_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    """Attack: each request names another node."""
    monkeypatch.setattr(peers, "MAX_BUCKETS", 2)
    bucket = TokenBucket(3)
    assert all(bucket.take(f"{number}") for number in range(9)) and len(bucket._buckets) <= 2


def test_a_partner_that_sends_too_many_requests_is_refused_and_no_other(tmp_path: Path):
    with two_nodes(tmp_path, me={"limits": {"partner_requests_per_minute": 5}}) as world:
        asked = [sent(world.me, "/job/status_all", {"job_id": "job-none"}, PEER) for _ in range(7)]
        assert asked[:5] == [(404, "JOB_UNKNOWN")] * 5 and asked[5:] == [(429, "PARTNER_QUOTA")] * 2
        assert sent(world.me, "/job/status_all", {"job_id": "job-none"}, THIRD) == (
            404,
            "JOB_UNKNOWN",
        )
        channel = {
            "x-ptp-source-node-id": PEER,
            "x-ptp-session-id": "s",
            "x-ptp-target-node-id": ME,
        }
        answer = ask(
            world.me, "peer", "POST", "/v1/interconn/chan/invoke", headers=channel, content=b"x"
        )
        assert answer.status_code == 429


def a_job(world: World, scheduler: str) -> JobSpec:
    """Submit a job of both nodes at one of them."""
    roles = {"guest": (scheduler,), "host": (PEER if scheduler == ME else ME,)}
    spec = a_spec("a", roles, job_id=f"job-of-{scheduler}")
    (world.me if scheduler == ME else world.peer).coordinator.submit_job(spec, scheduler)
    return spec


def test_a_partners_job_does_not_run_here_for_ever(tmp_path: Path):
    with two_nodes(tmp_path, me={"limits": {"partner_job_seconds": 0.1}}) as world:
        spec = a_job(world, PEER)  # its containers never end by themselves
        assert (
            world.wait_status(spec.job_id, JobStatus.FINISHED, world.peer).outcome
            is Outcome.STOPPED
        )
        (local,) = world.closed(spec.job_id)
        assert local.ending is not None and local.ending.failure is not None
        assert (local.ending.failure.reason, local.ending.failure.node) == ("TIMEOUT", ME)
        own = a_job(world, ME)
        for label, node in (("guest.0", world.me), ("host.0", world.peer)):
            world.run(own.job_id, "a", label, node)
        world.end_all(own)  # which could not be if it had been ended
        assert world.wait_status(own.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("scheduler", "initiator"), [("n1", "n1"), ("n2", "n1"), ("n1", "n2"), ("n2", "n2")]
)
def test_the_time_of_a_job_is_bounded_unless_it_is_ours(scheduler: str, initiator: str):
    spec = replace(a_spec("a"), scheduler=scheduler, initiator=initiator)
    local = replace(a_local_job(a_run("a", created_at=at(0))), spec=spec, node="n1")
    for limit in (None, 60.0):
        timing = RunTiming(partner_job=limit)
        ended = machine.step(local, at(61), timing)[0].ending
        ours = limit is None or (scheduler, initiator) == ("n1", "n1")
        assert (ended is None) is ours
        assert machine.step(local, at(59), timing)[0].ending is None


def test_a_partners_task_that_requests_nothing_leaves_cores_to_others(tmp_path: Path):
    with two_nodes(tmp_path) as world:
        cores = {}
        for scheduler in (ME, PEER):
            spec = a_job(world, scheduler)
            run = world.run(spec.job_id, "a", "guest.0" if scheduler == ME else "host.0")
            (launch,) = [one for one in world.engine().launches if one.name == run.name]
            cores[scheduler] = launch.limits.cpu
        assert cores[PEER] == 0.75 * cores[ME] > 0


def test_only_a_partner_with_too_many_jobs_is_refused(tmp_path: Path):
    with two_nodes(tmp_path, me={"limits": {"partner_jobs": 2}}) as world:

        def created(number: int, sender: str) -> tuple[int, str]:
            spec = a_spec("a", {"guest": (sender,), "host": (ME,)}, job_id=f"job-{sender}-{number}")
            return sent(world.me, "/job/create", create_body(spec, PROFILES["spec"]), sender)

        assert [created(n, PEER)[0] for n in range(2)] == [0, 0]
        assert created(2, PEER) == (429, "PARTNER_QUOTA")
        assert created(1, PEER) == (0, ""), "what is here already is no further job"
        assert created(0, THIRD) == (0, "")
        world.me.participant.stop_job(f"job-{PEER}-0", "", None, PEER)
        assert created(3, PEER) == (0, "")
        for number in (1, 3):
            assert sent(world.me, "/job/stop", {"job_id": f"job-{PEER}-{number}"}, PEER)[0] == 0

        def submitted(job_id: str) -> tuple[int, str]:
            spec = a_spec(
                "a",
                {"guest": (PEER,), "host": (ME,)},
                job_id=job_id,
                scheduler=ME,
                initiator=PEER,
            )
            return sent(world.me, "/job/create_all", create_body(spec, PROFILES["spec"]), PEER)

        assert [submitted(f"job-{n}")[0] for n in range(2)] == [0, 0]
        assert submitted("job-2") == (429, "PARTNER_QUOTA"), (
            "what it has submitted here counts as well"
        )
        for number in range(2):
            world.me.coordinator.stop_job(f"job-{number}", "", PEER)
