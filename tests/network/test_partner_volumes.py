"""The bytes that two nodes exchange: both count the same, and people see them."""

import pytest

from gateway.domain.volumes import Volume
from tests.cli import call_node
from tests.contracts.apis import THIRD, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("volumes")) as world:
        yield world


def traffic(node, partner):
    """Return the bytes exchanged with a partner today, as the API has them."""
    response = node.get(f"/api/v1/routes/{partner}").json()
    assert response["traffic"]["today"] == response["traffic"]["month"]
    return response["traffic"]["today"]


def test_a_request_counts_at_both_nodes_as_the_same_bytes(world):
    body = {"task_id": "x" * 5000}
    world.me.protocol.peer(PEER).raw("POST", "/task/poll", body)

    sent = world.me.volumes.since_start()[PEER]
    assert sent.bytes_out > 5000
    assert sent.bytes_in > 0
    # The other node counts once its response has been sent.
    expected = Volume(bytes_in=sent.bytes_out, bytes_out=sent.bytes_in)

    def is_counted():
        return world.peer.volumes.since_start().get(ME) == expected

    wait_for(is_counted)


def test_a_message_of_the_channel_counts_for_its_source(world):
    before = world.me.volumes.since_start().get(THIRD, Volume())
    headers = {
        "x-ptp-source-node-id": THIRD,
        "x-ptp-target-node-id": ME,
        "x-ptp-session-id": "s",
    }
    ask(
        world.me,
        "peer",
        "POST",
        "/v1/interconn/chan/invoke",
        content=b"m" * 3000,
        headers=headers,
    )

    def is_counted():
        after = world.me.volumes.since_start().get(THIRD, Volume())
        return after.bytes_in - before.bytes_in == 3000

    wait_for(is_counted)


def test_people_and_prometheus_see_the_bytes(world):
    world.me.volumes.add(PEER, Volume(3 * 2**20, 0))
    world.me.volumes.save()
    today = traffic(world.me, PEER)
    output = call_node("route", world.me, "show", PEER).stdout

    assert today["bytes_in"] >= 3 * 2**20
    assert "MiB in" in output
    counted = world.me.volumes.since_start()[PEER]
    metrics = world.me.get("/metrics").text
    name = f'bfia_partner_received_bytes_total{{node="{PEER}"}} '
    _, _, rest = metrics.partition(f"\n{name}")
    figure = rest.split()[0]
    assert float(figure) == counted.bytes_in


def test_people_and_prometheus_see_how_a_bandwidth_is_used(world):
    path = f"/api/v1/routes/{PEER}"
    change = {
        "route": {"bandwidth": "20MB"},
    }
    world.me.request(
        "PATCH",
        path,
        json=change,
    )
    body = {"task_id": "x"}
    peer = world.me.protocol.peer(PEER)
    peer.raw("POST", "/task/poll", body)

    response = world.me.get(path)
    route = response.json()
    output = call_node("route", world.me, "show", PEER).stdout
    metrics = world.me.get("/metrics").text

    sending = route["sending"]
    receiving = route["receiving"]
    assert route["route"]["bandwidth"] == 20_000_000
    assert sending["limit"] == 20_000_000
    assert receiving["waiting"] == 0
    assert "MiB/s, 0 messages wait" in output
    name = f'bfia_partner_bandwidth_limit_bytes{{direction="out",node="{PEER}"}}'
    assert f"{name} 2e+07" in metrics


def test_a_partner_without_a_limit_has_no_pace(world):
    response = world.me.get(f"/api/v1/routes/{THIRD}")
    route = response.json()
    assert route["sending"] is None
    assert route["receiving"] is None
