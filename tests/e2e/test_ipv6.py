"""Two nodes that reach each other by IPv6 alone."""

from collections.abc import Iterator

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation
from tests.e2e.test_channel import PING_PONG

pytestmark = pytest.mark.slow

PARTNERS = {
    GUEST: HOST,
    HOST: GUEST,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Guest and host, whose listeners for peers have addresses of IPv6."""
    federation = Federation(
        tmp_path_factory.mktemp("nodes"),
        [GUEST, HOST],
        PING_PONG,
    )
    for node in federation:
        node.settings["listen"]["peer"]["bind"] = f"[::1]:{node.peer_port}"
    for node_id, partner_id in PARTNERS.items():
        url = f"http://[::1]:{federation[partner_id].peer_port}"
        federation[node_id].route(**{partner_id: {"url": url}})
    with federation:
        for node in federation:
            node.register(A_PROVIDER)
        yield federation


def test_a_job_and_its_messages_pass_by_ipv6(federation):
    for node_id, partner_id in PARTNERS.items():
        route_test = federation[node_id].post(f"/api/v1/routes/{partner_id}/test", {})
        assert route_test["good"], route_test
    guest = federation[GUEST]

    job_id = guest.submit(jobs.echo_job(GUEST, HOST, rounds=3))

    assert guest.wait_job(job_id)["progress"] == 100


def test_a_route_may_name_host_and_port_apart(federation):
    guest = federation[GUEST]
    entry = {"host": "::1", "port": federation[HOST].peer_port, "url": None}
    path = f"/api/v1/routes/{HOST}"
    response = guest.ask("PATCH", path, json={"route": entry, "reason": "apart"})
    assert response.status_code == 200, response.text
    assert guest.post(f"{path}/test", {})["good"]
