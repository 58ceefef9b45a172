"""Nodes of two gateways each, one of which has no open port: a link ends at one gateway of each."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.identity.keys import Keyring
from tests.contracts.databases import careless_database
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation, Node, wait_for
from tests.e2e.test_channel import PING_PONG
from tests.services.cable import Balancer, cable_to

pytestmark = [pytest.mark.slow, pytest.mark.mariadb]

BACK_SECONDS = 60  # until links stand, also on a busy machine
ROUNDS = 120  # of messages in each direction; so gateways die while the containers talk
ALL_LINKS = 4  # two from each gateway of the closed node


class Sites(NamedTuple):
    """The gateways of the open and the closed node, and the open node's balancer."""

    open: tuple[Node, Node]
    closed: tuple[Node, Node]
    balancer: Balancer

    def lead_to(self, *gateways: Node) -> None:
        """Lead new connections to the first of these gateways that listens."""
        self.balancer.targets = [("127.0.0.1", node.peer_port) for node in gateways]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Sites]:
    federation = Federation(
        tmp_path_factory.mktemp("nodes"),
        [GUEST, "guest-2", HOST, "host-2"],
        PING_PONG,
        pace={"lost_gateway": 600.0},
    )
    guest, guest_2, host, host_2 = federation.nodes.values()
    with ExitStack() as stack:
        for first, second, node_id in ((guest, guest_2, GUEST), (host, host_2, HOST)):
            database = careless_database(f"{worker_id}_{node_id[-4:]}")
            make_one_node(first, second, node_id, stack.enter_context(database))
        balancer = stack.enter_context(cable_to(("127.0.0.1", 0), kind=Balancer))
        sites = Sites((guest, guest_2), (host, host_2), balancer)
        sites.lead_to(guest_2)
        make_partners(sites)
        stack.enter_context(federation)
        for node in (guest, host):
            node.register(A_PROVIDER)
        wait_for_links(guest, ALL_LINKS)
        yield sites


def make_one_node(
    first: Node,
    second: Node,
    node_id: str,
    database: str,
) -> None:
    """Let two gateways be one node, with one key pair, database and storage."""
    shutil.copytree(
        first.home / "state" / "identity",
        second.home / "state" / "identity",
        dirs_exist_ok=True,
    )
    for gateway in (first, second):
        gateway.settings["node"] = {"id": node_id}
        gateway.settings["database"] = {"url": database}
        gateway.settings["storage"] = {"url": f"file://{first.home / 'shared'}"}
    # The first gateway reads the file into the database, where the second has its routes.
    del second.settings["route_table"]


def make_partners(sites: Sites) -> None:
    """Give both nodes their routes: the closed one dials the balancer of the open one."""
    guest, _ = sites.open
    host, _ = sites.closed
    port = sites.balancer.server_address[1]
    to_guest = {
        "url": f"http://127.0.0.1:{port}",
        "keys": key_of(guest),
        "dial": "out",
    }
    to_host = {
        "reached": "by-link",
        "keys": key_of(host),
    }
    host.route(**{GUEST: to_guest})
    guest.route(**{HOST: to_host})


def key_of(node: Node) -> str:
    """Return the public key of a node."""
    return Keyring(node.home / "state").pairs["signing"].public


def ends_of_links(gateway: Node) -> list[str]:
    """Return the gateway at which each link of the host ends; "" for the asked one."""
    view = gateway.get(f"/api/v1/routes/{HOST}")
    if "route" not in view:  # before it has read the routes
        return []
    return [link["gateway"] for link in view["route"]["links"]]


def wait_for_links(gateway: Node, count: int) -> None:
    """Wait until the host has ``count`` links, at all gateways of the open node together."""
    wait_for(
        lambda: len(ends_of_links(gateway)) == count,
        BACK_SECONDS,
        about=f"{count} links",
    )


def received(gateways: tuple[Node, Node], job_id: str) -> int:
    """Return how many messages of a job the running gateways of a node have received."""
    count = 0
    for gateway in gateways:
        if gateway.is_running:
            sessions = gateway.job(job_id)["channel_received"]
            count += sum(session["messages"] for session in sessions)
    return count


def wait_for_messages(gateways: tuple[Node, Node], job_id: str, count: int) -> None:
    """Wait until a node has received ``count`` messages of a job."""
    wait_for(
        lambda: received(gateways, job_id) >= count,
        BACK_SECONDS,
        about=f"{count} messages",
    )


def check_end(sites: Sites, job_id: str) -> None:
    """Check that a job succeeds, and that each node ran its container once."""
    guest, _ = sites.open
    host, _ = sites.closed
    assert guest.wait_job(job_id, 120)["progress"] == 100
    for node in (guest, host):
        assert len(jobs.events(node, job_id, "run RUNNING")) == 1


def test_the_gateway_without_a_link_calls_the_partner_through_the_other(sites: Sites) -> None:
    guest, guest_2 = sites.open
    assert ends_of_links(guest) == [guest_2.peer] * ALL_LINKS

    test = guest.post(f"/api/v1/routes/{HOST}/test", {})
    steps = {step["name"]: step for step in test["steps"]}
    assert f"at this node's gateway {guest_2.peer}" in steps["tcp"]["found"]
    assert {step["result"] for step in steps.values()} <= {"ok", "skipped"}


def test_a_job_outlasts_the_gateway_at_which_the_links_end(sites: Sites) -> None:
    guest, guest_2 = sites.open
    job_id = guest.submit(jobs.echo_job(GUEST, HOST, rounds=ROUNDS))
    wait_for_messages(sites.closed, job_id, 5)

    sites.lead_to(guest_2, guest)
    guest_2.kill()
    wait_for_messages(sites.closed, job_id, 40)
    wait_for(
        lambda: ends_of_links(guest) == [""] * ALL_LINKS,
        BACK_SECONDS,
        about="all links end at the other gateway",
    )
    guest_2.start()

    check_end(sites, job_id)


def test_a_job_outlasts_a_gateway_that_has_dialled(sites: Sites) -> None:
    guest, _ = sites.open
    job_id = guest.submit(jobs.echo_job(GUEST, HOST, rounds=ROUNDS))
    wait_for_messages(sites.closed, job_id, 5)
    victim = next(node for node in sites.closed if not node.job(job_id)["channel_received"])

    victim.kill()
    wait_for_links(guest, 2)
    wait_for_messages(sites.closed, job_id, 40)
    victim.start()

    check_end(sites, job_id)
    wait_for_links(guest, ALL_LINKS)
