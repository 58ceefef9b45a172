"""Messages of containers: by way of a third node, read after their sender's exit, and by gRPC."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.jobs import ARBITER, GUEST, HOST
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

pytestmark = pytest.mark.slow

COMPONENT = Path(__file__).with_name("ping_pong.py")
PING_PONG = process_engine(
    "example:1.0.0",
    command=[sys.executable, str(COMPONENT)],
)


def peer_bind(node: Node) -> str:
    """Return host and port of a node's listener for peers."""
    return str(node.settings["listen"]["peer"]["bind"])


def connect_by_relay(federation: Federation, authority: Authority) -> None:
    """Give guest and host routes to the arbiter by https, and to each other through it.

    Their messages and control requests have to be sealed from end to end.
    """
    relay = federation[ARBITER]
    certificates = {}
    for node_id in federation.nodes:
        certificates[node_id] = authority.sign(node_id, "127.0.0.1", node_id)
    relay.settings["listen"]["peer"]["tls"] = {
        "certificate": certificates[ARBITER].certificate,
        "key": certificates[ARBITER].key,
        "client_ca": authority.file,
    }
    for node_id, partner_id in ((GUEST, HOST), (HOST, GUEST)):
        route_to_relay = {
            "url": f"https://{peer_bind(relay)}",
            "ca": authority.file,
            "certificate": certificates[node_id].certificate,
            "key": certificates[node_id].key,
        }
        routes = {
            ARBITER: route_to_relay,
            partner_id: sealed_route(federation[partner_id]),
        }
        federation[node_id].route(**routes)
    relayed = {}
    for node_id in (GUEST, HOST):
        relayed[node_id] = {
            "url": f"http://{peer_bind(federation[node_id])}",
            "relay": True,
        }
    relay.route(**relayed)


def sealed_route(partner: Node) -> dict[str, str]:
    """Return the route to a partner through the arbiter, with a seal on each message."""
    state = partner.home / "state"
    sealing_pair = SealingKeyFile(state).ensure()
    assert sealing_pair is not None
    return {
        "via": ARBITER,
        "keys": Keyring(state).pairs["signing"].public,
        "signing": "accepted",
        "sealing_key": sealing_pair.public,
        "sealing": "required",
        "control_sealing": "required",
    }


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Guest and host with the component, which reach each other through the arbiter only."""
    home = tmp_path_factory.mktemp("nodes")
    federation = Federation(
        home,
        [GUEST, HOST, ARBITER],
        PING_PONG,
    )
    connect_by_relay(federation, Authority(home / "certificates"))
    with federation:
        federation[GUEST].register(A_PROVIDER)
        federation[HOST].register(A_PROVIDER)
        yield federation


@pytest.fixture
def guest(federation: Federation) -> Node:
    return federation[GUEST]


@pytest.fixture
def host(federation: Federation) -> Node:
    return federation[HOST]


def is_running(node: Node, job_id: str) -> bool:
    """Return whether the only run of a job runs at a node."""
    statuses = [run["status"] for run in node.job(job_id)["runs"]]
    return statuses == ["RUNNING"]


def has_exited(node: Node, job_id: str) -> bool:
    """Return whether the only run of a job has succeeded and exited at a node."""
    ended = []
    for run in node.job(job_id)["runs"]:
        ended.append(run["status"] == "SUCCESS" and bool(run["ended_at"]))
    return ended == [True]


def stored_messages(node: Node) -> int:
    """Return how many messages a node's channel stores."""
    checks = node.get("/health/ready")["checks"]
    return int(checks["channel"]["messages"])


def test_a_job_through_a_third_node_that_is_killed_meanwhile(federation, guest, host):
    relay = federation[ARBITER]
    route_test = guest.post(f"/api/v1/routes/{HOST}/test", {})
    assert route_test["good"]
    sealing = {step["name"]: step["result"] for step in route_test["steps"]}["sealing"]
    assert sealing == "ok"
    body = jobs.echo_job(GUEST, HOST, rounds=40)
    job_id = guest.submit(body)
    for node in (guest, host):
        wait_for(lambda node=node: is_running(node, job_id), 30)

    relay.kill()
    relay.start()

    job = guest.wait_job(job_id, 90)
    assert job["progress"] == 100
    for node in (guest, host):
        starts = jobs.events(node, job_id, "run RUNNING")
        assert len(starts) == 1
    # The relay has learned nothing of the job.
    listing = relay.get("/api/v1/jobs")
    assert listing["jobs"] == []


def test_a_sender_that_exits_right_after_its_push_loses_nothing(guest, host, tmp_path):
    may_read = tmp_path / "may-read"
    body = jobs.echo_job(
        GUEST,
        HOST,
        rounds=1,
        may_read=str(may_read),
    )
    job_id = guest.submit(body)
    wait_for(lambda: has_exited(guest, job_id))
    wait_for(lambda: is_running(host, job_id))
    assert stored_messages(host) == 1

    may_read.touch()

    guest.wait_job(job_id, 60)
    for node in (guest, host):
        wait_for(
            lambda node=node: stored_messages(node) == 0,
            15,
            about="capacity is returned",
        )


def test_a_container_that_speaks_grpc_and_one_that_speaks_json_have_a_job(guest):
    body = jobs.echo_job(GUEST, HOST, rounds=3, rpc=True)
    job_id = guest.submit(body)

    job = guest.wait_job(job_id)
    assert job["progress"] == 100
