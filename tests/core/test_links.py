"""A node without an open port: requests of both nodes pass over the links that it keeps."""

import pytest

from adapter.bfia.channel.codec import INVOKE, SUCCESS, Ptp, decode_answer, invoke_headers
from adapter.bfia.channel.message_forms import Form
from gateway.errors import PeerUnreachable
from route_table.model import Identity
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER
from tests.linking import (
    ANSWER_SECONDS,
    answer_of,
    key_of,
    link,
    linked_nodes,
    set_routes,
    wait_for_links,
)
from tests.services.cable import cable_to
from tests.services.outbound_proxy import PASSWORD, outbound_proxy
from tests.world import NodeSetup

HUB = "JG0100003300000030"
MEBIBYTE = 1024**2


@pytest.fixture
def nodes(world):
    return linked_nodes(world)


def test_each_node_is_called_over_the_links(nodes):
    open_node, closed_node = nodes
    assert answer_of(open_node, PEER)["node_id"] == PEER
    assert answer_of(closed_node, ME)["node_id"] == ME
    assert {state.dials_out for state in closed_node.links.states()} == {True}


def test_the_test_of_a_route_says_that_the_partner_dials_in(nodes):
    open_node, closed_node = nodes
    for node, partner, words in (
        (
            open_node,
            PEER,
            "this partner dials in: 2 links since",
        ),
        (
            closed_node,
            ME,
            "2 links, over which the partner calls this node",
        ),
    ):
        test = node.post(f"/api/v1/routes/{partner}/test", {}).json()
        steps = {step["name"]: step for step in test["steps"]}
        assert test["good"], steps
        assert words in steps["tcp"]["found"]
        assert steps["way back"]["result"] == "ok"


def test_routes_show_since_when_and_from_where_links_stand(nodes):
    open_node, closed_node = nodes
    response = open_node.get(f"/api/v1/routes/{PEER}")
    assert response.status_code == 200, response.text
    route = response.json()["route"]
    assert (route["reached"], route["url"]) == ("by-link", f"link://{PEER}")
    assert [each["dials_out"] for each in route["links"]] == [False, False]
    assert all(each["address"].startswith("127.0.0.1:") for each in route["links"])
    route = closed_node.get(f"/api/v1/routes/{ME}").json()["route"]
    assert [each["dials_out"] for each in route["links"]] == [True, True]


def test_a_node_without_a_link_is_unreachable_and_nothing_was_delivered(world):
    node = world.node(NodeSetup(ME))
    set_routes(node, {PEER: {"reached": "by-link", "keys": key_of(node).public}})
    with pytest.raises(PeerUnreachable, match="no link of the node stands") as raised:
        answer_of(node, PEER)
    assert (raised.value.delivered, raised.value.reason) == (False, "PEER_UNREACHABLE")
    assert not node.protocol.reaches(PEER)
    steps = node.post(f"/api/v1/routes/{PEER}/test", {}).json()["steps"]
    causes = [step["cause"] for step in steps if step["result"] == "failed"]
    assert causes == [f"this partner dials in, and no link of {PEER} stands"]


def test_a_message_of_64_mebibytes_passes_in_each_direction(world):
    open_node, closed_node = linked_nodes(
        world,
        settings={"limits": {"message_bytes": 64 * MEBIBYTE, "session_bytes": 128 * MEBIBYTE}},
    )
    for sender, receiver in ((open_node, closed_node), (closed_node, open_node)):
        target = receiver.settings.node.id
        ptp = Ptp(
            session="session_early",
            target=target,
            topic="large",
        )
        headers = invoke_headers(
            ptp,
            node=sender.settings.node.id,
            institution="",
            message_id="1",
            token="",
            encapsulated=False,
        )
        headers["content-type"] = "application/octet-stream"
        body = bytes(64 * MEBIBYTE)
        status, content = sender.protocol.peer(target).invoke(
            INVOKE,
            body,
            headers,
        )
        assert (status, decode_answer(content, Form.PROTOBUF.value).code) == (200, SUCCESS)
        assert receiver.broker.usage().bytes == len(body)


def test_requests_go_on_while_one_of_two_links_is_cut(world):
    open_node = world.node(NodeSetup(ME))
    closed_node = world.node(NodeSetup(PEER))
    port = int(open_node.addresses()["peer"].rpartition(":")[2])
    with cable_to(("127.0.0.1", port)) as cable:
        link(
            open_node,
            closed_node,
            at=f"http://127.0.0.1:{cable.server_address[1]}",
        )
        cable.cut_one()
        wait_for_links(open_node, PEER, 1)
        assert answer_of(open_node, PEER)["node_id"] == PEER
        wait_for_links(open_node, PEER, 2)


def test_two_closed_nodes_reach_each_other_through_a_hub(world):
    hub = world.node(NodeSetup(HUB))
    closed = [world.node(NodeSetup(ME)), world.node(NodeSetup(PEER))]
    keys = {node.settings.node.id: key_of(node).public for node in (hub, *closed)}
    to_hub = {
        "url": hub.addresses()["peer"],
        "keys": keys[HUB],
        "dial": "out",
    }
    for node, partner in zip(
        closed,
        (PEER, ME),
        strict=True,
    ):
        set_routes(node, {HUB: to_hub, partner: {"via": HUB, "keys": keys[partner]}})
    entries = {}
    for node_id in (ME, PEER):
        entries[node_id] = {
            "reached": "by-link",
            "keys": keys[node_id],
            "relay": True,
        }
    set_routes(hub, entries)
    wait_for(
        lambda: len(hub.links.states()) == 4,
        ANSWER_SECONDS,
        0.02,
        "four links",
    )
    for node, partner in zip(
        closed,
        (PEER, ME),
        strict=True,
    ):
        assert answer_of(node, partner)["node_id"] == partner


def test_a_request_uses_no_link_that_was_opened_another_way(world):
    open_node = world.node(NodeSetup(ME))
    closed_node = world.node(NodeSetup(PEER))
    link(open_node, closed_node)
    url = open_node.addresses()["peer"]
    over_link = closed_node.links.connect(url)
    assert over_link is not None
    over_link.close()
    through_proxy = Identity(proxy="http://127.0.0.1:9")
    assert closed_node.links.connect(url, through_proxy) is None


def test_a_link_ends_with_its_route(nodes):
    open_node, closed_node = nodes
    set_routes(closed_node, {})
    wait_for(
        lambda: open_node.links.states() == [],
        ANSWER_SECONDS,
        0.02,
        "no link",
    )
    assert closed_node.links.states() == []


@pytest.mark.slow
@pytest.mark.outbound_proxy
def test_links_pass_a_proxy_that_asks_for_a_login(world, tmp_path):
    open_node = world.node(NodeSetup(ME))
    closed_node = world.node(NodeSetup(PEER))
    port = int(open_node.addresses()["peer"].rpartition(":")[2])
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    with outbound_proxy(tmp_path / "proxy", port) as proxy:
        link(
            open_node,
            closed_node,
            proxy=proxy.url,
            proxy_password=str(password),
        )
        assert f":{proxy.port}" in closed_node.links.states()[0].address
        assert answer_of(open_node, PEER)["node_id"] == PEER
