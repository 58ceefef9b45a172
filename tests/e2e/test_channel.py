"""Messages of containers: through a third node that is killed meanwhile, and read after their sender exited."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for

A, B, X = jobs.GUEST, jobs.HOST, jobs.ARBITER
PING_PONG = process_engine(
    "example:1.0.0", command=[sys.executable, str(Path(__file__).with_name("ping_pong.py"))]
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A and B know X by https, and each other only behind it."""
    home = tmp_path_factory.mktemp("nodes")
    federation = Federation(home, [A, B, X], PING_PONG)
    authority = Authority(home / "certificates")
    own = {node: authority.sign(node, "127.0.0.1", node) for node in (A, B, X)}
    binds = {node.id: node.settings["listen"]["peer"]["bind"] for node in federation.nodes.values()}
    shown = {
        "certificate": own[X].certificate,
        "key": own[X].key,
        "client_ca": authority.file,
    }
    federation[X].settings["listen"]["peer"]["tls"] = shown
    for node, other in ((A, B), (B, A)):
        keys = {"certificate": own[node].certificate, "key": own[node].key}
        hop = {
            "url": f"https://{binds[X]}",
            "ca": authority.file,
            **keys,
        }
        federation[node].route(**{X: hop, other: {"via": X}})
    federation[X].route(
        **{node: {"url": f"http://{binds[node]}", "relay": True} for node in (A, B)}
    )
    with federation:
        for node in (A, B):
            federation[node].register(A_PROVIDER)
        yield federation


@pytest.mark.slow
def test_a_job_through_a_third_node_that_is_killed_meanwhile(three):
    guest, host, relay = three[A], three[B], three[X]
    assert guest.post(f"/api/v1/routes/{B}/test", {})["good"]
    job_id = guest.submit(jobs.echo_job(A, B, rounds=40))
    wait_for(
        lambda: (
            [r["status"] for n in (guest, host) for r in n.job(job_id)["runs"]] == ["RUNNING"] * 2
        ),
        30,
    )
    relay.kill()
    relay.start()
    assert guest.wait_job(job_id, 90)["progress"] == 100
    for node in (guest, host):
        assert len(jobs.events(node, job_id, "run RUNNING")) == 1
    assert relay.get("/api/v1/jobs")["jobs"] == []  # it has seen none of the job


@pytest.mark.slow
def test_a_sender_that_exits_right_after_its_push_loses_nothing(three, tmp_path):
    may_read, guest, host = tmp_path / "may-read", three[A], three[B]
    job_id = guest.submit(jobs.echo_job(A, B, rounds=1, may_read=str(may_read)))
    wait_for(
        lambda: (
            [(r["status"], bool(r["ended_at"])) for r in guest.job(job_id)["runs"]]
            == [("SUCCESS", True)]
        )
    )
    wait_for(lambda: [r["status"] for r in host.job(job_id)["runs"]] == ["RUNNING"])
    assert host.get("/health/ready")["checks"]["channel"]["messages"] == 1
    may_read.touch()
    guest.wait_job(job_id, 60)
    for node in (guest, host):  # and then all of it is given back
        wait_for(
            lambda node=node: node.get("/health/ready")["checks"]["channel"]["messages"] == 0, 15
        )


@pytest.mark.slow
def test_a_container_that_speaks_grpc_and_one_that_speaks_json_have_a_job(three):
    guest = three[A]
    job_id = guest.submit(jobs.echo_job(A, B, rounds=3, rpc=True))
    assert guest.wait_job(job_id)["progress"] == 100
