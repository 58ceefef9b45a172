"""A job with a node that has no address: it dials out, and its links are cut meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.identity.keys import Keyring
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation, Node, wait_for
from tests.e2e.test_channel import PING_PONG, is_running
from tests.services.cable import Cable, cable_to

pytestmark = pytest.mark.slow

BACK_SECONDS = 30  # from the network's return until links stand; 5 s where nothing else runs


def key_of(node: Node) -> str:
    """Return the public key of a node."""
    keyring = Keyring(node.home / "state")
    return keyring.pairs["signing"].public


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def federation(home: Any) -> Iterator[tuple[Federation, Cable]]:
    """An open guest, and a host of which the guest knows no address; the cable between them."""
    federation = Federation(
        home,
        [GUEST, HOST],
        PING_PONG,
    )
    guest = federation[GUEST]
    host = federation[HOST]
    with cable_to(("127.0.0.1", guest.peer_port)) as cable:
        to_guest = {
            "url": f"http://127.0.0.1:{cable.server_address[1]}",
            "keys": key_of(guest),
            "dial": "out",
        }
        to_host = {
            "reached": "by-link",
            "keys": key_of(host),
        }
        host.route(**{GUEST: to_guest})
        guest.route(**{HOST: to_host})
        with federation:
            for node in (guest, host):
                node.register(A_PROVIDER)
            wait_for(lambda: links_at(guest) == 2, BACK_SECONDS)
            yield federation, cable


def links_at(guest: Node) -> int:
    """Return how many links of the host stand."""
    route = guest.get(f"/api/v1/routes/{HOST}")["route"]
    return len(route["links"])


def test_a_job_goes_on_after_its_links_were_cut(federation):
    nodes, cable = federation
    guest = nodes[GUEST]
    host = nodes[HOST]
    body = jobs.echo_job(GUEST, HOST, rounds=40)
    job_id = guest.submit(body)
    for node in (guest, host):
        wait_for(lambda node=node: is_running(node, job_id), 30)

    cable.cut()
    wait_for(lambda: links_at(guest) == 0, BACK_SECONDS)
    cable.mend()
    wait_for(lambda: links_at(guest) == 2, BACK_SECONDS)

    job = guest.wait_job(job_id, 90)
    assert job["outcome"] == "SUCCEEDED"
    assert job["progress"] == 100
    for node in (guest, host):
        starts = jobs.events(node, job_id, "run RUNNING")
        assert len(starts) == 1


def test_a_job_is_refused_while_no_link_stands_as_with_any_silent_node(federation):
    nodes, cable = federation
    guest = nodes[GUEST]
    cable.cut()
    wait_for(lambda: links_at(guest) == 0, BACK_SECONDS)
    path = "/v1/platform/schedule/job/create_all"
    refusal = guest.post(path, jobs.echo_job(GUEST, HOST, rounds=2))
    cable.mend()
    assert refusal["data"]["reason"] == "PEER_UNREACHABLE"


def test_a_closed_node_schedules_a_job_with_an_open_one(federation):
    nodes, _ = federation
    guest = nodes[GUEST]
    host = nodes[HOST]
    wait_for(lambda: links_at(guest) == 2, BACK_SECONDS)
    body = jobs.echo_job(HOST, GUEST, rounds=2)
    job_id = host.submit(body)
    job = host.wait_job(job_id, 90)
    assert job["outcome"] == "SUCCEEDED"
