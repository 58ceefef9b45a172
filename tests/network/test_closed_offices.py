"""Nodes whose firewall drops every packet that opens a connection inwards.

Two of them keep links to the third one, which is a party, and the hub between the two.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import jobs
from tests.e2e.jobs import ARBITER, GUEST, HOST
from tests.e2e.nodes import Federation, process_engine, wait_for
from tests.network.lab import Host, Lab
from tests.network.offices import (
    WORDS,
    check_outputs,
    check_routes,
    key_of,
    peer_url,
    place,
    recorded,
    sealed_route,
    wait_for_links,
)

pytestmark = [pytest.mark.slow, pytest.mark.network]

OPEN = GUEST
CLOSED = (HOST, ARBITER)
PARTNERS = {HOST: ARBITER, ARBITER: HOST}


@dataclass(frozen=True)
class Offices:
    """The nodes and their hosts, by node id, and the segment."""

    nodes: Federation
    hosts: dict[str, Host]
    lab: Lab


@pytest.fixture(scope="module")
def offices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offices]:
    nodes = Federation(
        tmp_path_factory.mktemp("nodes"),
        [OPEN, *CLOSED],
        process_engine("unionpay:2.0.0"),
    )
    with Lab() as lab:
        hosts = {}
        for node in nodes:
            hosts[node.id] = lab.host()
            place(node, hosts[node.id])
        for node_id in CLOSED:
            hosts[node_id].drop_inbound()
        write_routes(nodes)
        with nodes:
            jobs.prepare(nodes, OPEN, HOST)
            jobs.upload(nodes[HOST], "guest")
            jobs.upload(nodes[ARBITER], "host")
            for node_id in CLOSED:
                wait_for_links(nodes[OPEN], nodes[node_id])
            yield Offices(nodes, hosts, lab)


def write_routes(nodes: Federation) -> None:
    """Let the closed nodes keep links to the open one, and reach each other through it."""
    hub = nodes[OPEN]
    to_hub = {
        "url": peer_url(hub),
        "keys": key_of(hub),
        "dial": "out",
    }
    to_closed = {}
    for node_id in CLOSED:
        partner = nodes[PARTNERS[node_id]]
        routes = {
            OPEN: to_hub,
            partner.id: sealed_route(partner, hub),
        }
        nodes[node_id].route(**routes)
        to_closed[node_id] = {
            "reached": "by-link",
            "keys": key_of(nodes[node_id]),
            "relay": True,
        }
    hub.route(**to_closed)


def test_the_firewall_of_a_closed_node_drops_what_would_open_a_connection(offices):
    open_host = offices.hosts[OPEN]
    closed_host = offices.hosts[HOST]
    port = offices.nodes[HOST].peer_port
    dropped = closed_host.dropped()

    def drops() -> bool:
        return closed_host.dropped() > dropped

    with open_host.entered():
        caller = socket.socket()
    with caller:
        caller.setblocking(False)
        caller.connect_ex((closed_host.ipv4, port))
        wait_for(drops, about="the firewall drops a packet")


def test_the_users_job_runs_between_an_open_and_a_closed_node(offices):
    guest = offices.nodes[OPEN]
    host = offices.nodes[HOST]
    check_routes(guest, host)

    with recorded(offices.hosts[OPEN]) as recording:
        body = jobs.user_job(OPEN, HOST)
        job_id = guest.submit(body)
        job = guest.wait_job(job_id)

    assert job["progress"] == 100
    check_outputs(guest, host, job_id)
    # Neither seals nor TLS: so the recording of the next test would show what there is to read.
    assert recording.words() == WORDS


def test_a_job_of_two_closed_nodes_runs_over_a_hub_that_reads_nothing(offices):
    guest = offices.nodes[HOST]
    host = offices.nodes[ARBITER]
    check_routes(guest, host)

    with recorded(offices.hosts[OPEN]) as recording:
        body = jobs.quick_job(HOST, ARBITER)
        job_id = guest.submit(body)
        job = guest.wait_job(job_id)

    assert job["progress"] == 100
    check_outputs(guest, host, job_id)
    assert recording.words() == ()
