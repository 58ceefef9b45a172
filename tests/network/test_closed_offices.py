"""Nodes whose firewall drops every packet that opens a connection inwards.

Two of them keep links to the third one, which is a party, and the hub between the two.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.sync.client import connect

from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.links.carrier import LINK_PATH
from tests.e2e import jobs
from tests.e2e.jobs import ARBITER, GUEST, HOST
from tests.e2e.nodes import Federation, Node, example, process_engine, wait_for
from tests.e2e.test_secretflow import PARTY, PYTHON, expected_ids, ids_of, intersection_job
from tests.linking import Dialling
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

SECRETFLOW_IMAGE = "secretflow:1.0.0"
SECRETFLOW_VERSION = "2.1.0"
# The request for a WebSocket.
UPGRADE = f"""\
GET {LINK_PATH} HTTP/1.1
Host: hub
Connection: upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==

""".replace("\n", "\r\n").encode()


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
        engine(),
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


def engine() -> dict[str, Any]:
    """Return the settings of an engine with the reference vendor and SecretFlow."""
    settings = process_engine("unionpay:2.0.0")
    settings["process"]["images"][SECRETFLOW_IMAGE] = {
        "command": [*PYTHON, str(PARTY)],
    }
    return settings


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


@pytest.mark.parametrize(
    "make_job",
    [
        jobs.quick_job,
        pytest.param(jobs.user_job, marks=pytest.mark.scale),
    ],
)
def test_the_users_job_runs_between_an_open_and_a_closed_node(offices, make_job):
    guest = offices.nodes[OPEN]
    host = offices.nodes[HOST]
    check_routes(guest, host)

    with recorded(offices.hosts[OPEN]) as recording:
        body = make_job(OPEN, HOST)
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


# ---------------------------------------------------------------- SecretFlow


@pytest.mark.secretflow
def test_secretflow_intersects_with_a_closed_node(offices):
    guest = offices.nodes[OPEN]
    host = offices.nodes[HOST]
    for node in (guest, host):
        node.register(secretflow())
    body = intersection_job()
    body["dag"]["components"][0]["version"] = SECRETFLOW_VERSION

    job_id = guest.submit(body)
    guest.wait_job(job_id, 300)

    for node, party in ((guest, "guest.0"), (host, "host.0")):
        path = f"/api/v1/jobs/{job_id}/outputs/intersect_rsa_1/{party}/train_data/download"
        table = node.ask("GET", path).text
        assert ids_of(table) == expected_ids()


def secretflow() -> dict[str, Any]:
    """Return the registration of SecretFlow's engine, as a version of the reference vendor's."""
    provider: dict[str, Any] = example("register_unionpay.json")
    provider["version"] = SECRETFLOW_VERSION
    provider["metadata"]["image"] = SECRETFLOW_IMAGE
    for description in provider["components_description"].values():
        description["version"] = SECRETFLOW_VERSION
    return provider


# ---------------------------------------------------------------- strangers


def test_a_stranger_opens_no_link_in_the_name_of_a_closed_node(offices):
    stranger = offices.lab.host()
    hub = offices.nodes[OPEN]
    url = peer_url(hub, "ws") + LINK_PATH
    with stranger.entered():
        connection = connect(
            url,
            compression=None,
            proxy=None,
        )
    with connection:
        dialling = Dialling(connection)
        pair = KeyPair(KEY_GENERATORS["ed25519"]())
        refusal = dialling.claim(
            HOST,
            pair,
            {"to": OPEN},
        )
    assert refusal["refused"] == "LINK_UNPROVEN"
    audit = hub.get("/api/v1/audit", limit=20)
    assert stranger.ipv4 in str(audit)


def test_half_open_links_of_a_stranger_keep_no_node_away(offices):
    """The stranger has as many addresses as it needs to take each place before the proof."""
    stranger = offices.lab.host()
    hub = offices.nodes[OPEN]
    host = offices.nodes[HOST]
    addresses = stranger.more_addresses(8)
    offices.hosts[HOST].cut("reset")
    wait_for_links(hub, host, 0)
    with ExitStack() as stack:
        for address in addresses * 8:
            connection = half_open_link(stranger, address, hub)
            stack.enter_context(connection)
        offices.hosts[HOST].mend()
        wait_for_links(hub, host)
    assert "too many links are being opened" not in hub.log()


def half_open_link(
    stranger: Host,
    address: str,
    node: Node,
) -> socket.socket:
    """Ask a node for a link, and send no proof; return the connection."""
    target, _, port = peer_url(node).rpartition("/")[2].partition(":")
    with stranger.entered():
        connection = socket.create_connection(
            (target, int(port)),
            source_address=(address, 0),
        )
    connection.sendall(UPGRADE)
    response = connection.recv(1000)
    assert response.startswith(b"HTTP/1.1 101 ")
    return connection
