"""Partners with a contract learn this node's new address or key, until they acknowledge it."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.runtime.trials import Result
from route_table.certificates import key_pin, public_key
from tests.cli import call_node
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, running
from tests.trust.agreeing import call_api, edit_route, forget_all, make_contract, two_nodes
from tests.trust.test_contracts import send_update

ANY_PORT = "127.0.0.1:0"


@contextmanager
def node_at(home: Path, node_id: str, port: int, host: str = "127.0.0.1"):
    """Serve a node at a port, which it advertises under the name of a host."""
    listen = {
        "peer": {
            "bind": f"127.0.0.1:{port}",
            "advertise": f"http://{host}:{port}",
        },
        "container": {"bind": ANY_PORT},
        "operator": {"bind": ANY_PORT},
    }
    with running(home / node_id, node_id, listen=listen) as node:
        yield node


def announcement_of(node):
    """Return what the only partner of a node knows of it."""
    [announcement] = call_api(node, "GET", "/announcements")["announcements"]
    return announcement


def make_keys(home):
    """Make a key pair for each of the two nodes."""
    for node_id in (ME, PEER):
        Keyring(home / node_id / "state").make("ed25519")


@pytest.mark.parametrize("applicant", [ME, PEER])
def test_a_new_address_is_reported_at_the_start(tmp_path, applicant):
    make_keys(tmp_path)
    my_port, peer_port = free_ports(2)
    with node_at(tmp_path, PEER, peer_port) as peer:
        with node_at(tmp_path, ME, my_port) as me:
            sides = (me, peer) if applicant == ME else (peer, me)
            make_contract(*sides)
            assert call_api(me, "POST", "/announcements", {})["announcements"][0]["acknowledged"]
        before = peer.routes.table.routes[ME]

        with node_at(tmp_path, ME, my_port, host="localhost") as me:
            wait_for(lambda: announcement_of(me)["acknowledged"], 20, 0.02)

            after = peer.routes.table.routes[ME]
            assert before.url == f"http://127.0.0.1:{my_port}"
            assert after.url == announcement_of(me)["address"] == f"http://localhost:{my_port}"
            assert after.keys == before.keys
            assert after.signing_mode == "required"


def test_an_update_is_repeated_until_the_partner_acknowledges_it(tmp_path):
    make_keys(tmp_path)
    my_port, peer_port = free_ports(2)
    with node_at(tmp_path, PEER, peer_port) as peer, node_at(tmp_path, ME, my_port) as me:
        make_contract(me, peer)
        call_api(me, "POST", "/announcements", {})

    with node_at(tmp_path, ME, my_port, host="localhost") as me:
        wait_for(lambda: announcement_of(me)["trouble"], 20, 0.02)
        assert not announcement_of(me)["acknowledged"]
        listed = call_node("partner", me, "update", "--list")
        assert "PEER_UNREACHABLE" in listed.stdout

        with node_at(tmp_path, PEER, peer_port) as peer:
            assert call_node("partner", me, "update").exit_code == 0

            assert announcement_of(me)["acknowledged"]
            assert announcement_of(me)["at"]
            assert peer.routes.table.routes[ME].url == f"http://localhost:{my_port}"


# ---------------------------------------------------------------- a new key


@pytest.fixture
def nodes(tmp_path):
    """Give two nodes with a contract for which `ME` has applied."""
    with two_nodes(tmp_path) as (me, peer):
        mine, _ = make_contract(me, peer)
        call_api(me, "POST", "/announcements", {})
        yield me, peer, mine
        forget_all(me, peer)


def rotate(node):
    """Replace a node's key with a new one, as ``identity rotate`` does; return the key ring."""
    ring = Keyring(node.settings.state_dir)
    ring.make("ed25519")
    assert ring.switch(keep_previous=True)
    return ring


def test_a_new_key_is_reported_with_the_signature_of_the_earlier_one(nodes):
    me, peer, _ = nodes
    [key_before] = peer.routes.table.routes[ME].keys
    ring = rotate(me)
    assert ring.previous.public == key_before

    call_api(me, "POST", "/announcements", {})

    new_key = ring.pairs["signing"].public
    assert peer.routes.table.routes[ME].keys == (new_key,)
    assert announcement_of(me)["acknowledged"]
    assert announcement_of(me)["key"] == key_pin(public_key(new_key))
    assert ring.previous is None, "it is deleted once every partner knows the new key"
    results = {step.name: step.result for step in me.protocol.try_route(PEER)}
    assert results["way back"] is Result.OK


def test_a_partner_that_knows_both_keys_keeps_only_the_new_one(nodes):
    me, peer, _ = nodes
    ring = Keyring(me.settings.state_dir)
    next_key = ring.make("ed25519").public
    keys = [*peer.routes.table.routes[ME].keys, next_key]
    edit_route(peer, ME, keys=", ".join(keys))
    ring.switch(keep_previous=True)

    call_api(me, "POST", "/announcements", {})

    assert peer.routes.table.routes[ME].keys == (next_key,)


def test_the_earlier_key_stays_until_every_partner_knows_the_new_one(nodes):
    me, peer, _ = nodes
    edit_route(peer, ME, enabled=False)
    ring = rotate(me)

    call_api(me, "POST", "/announcements", {})

    assert not announcement_of(me)["acknowledged"]
    assert announcement_of(me)["trouble"]
    assert not peer.routes.table.routes[ME].enabled
    assert ring.previous is not None


@pytest.mark.parametrize("applicant", [ME, PEER])
def test_a_replaced_sealing_key_is_reported_at_the_start(tmp_path, applicant):
    make_keys(tmp_path)
    my_port, peer_port = free_ports(2)
    with node_at(tmp_path, PEER, peer_port) as peer:
        with node_at(tmp_path, ME, my_port) as me:
            sides = (me, peer) if applicant == ME else (peer, me)
            make_contract(*sides)
            call_api(me, "POST", "/announcements", {})
            key_file = SealingKeyFile(me.settings.state_dir)
        before = peer.routes.table.routes[ME]
        key_file.path.unlink()

        with node_at(tmp_path, ME, my_port) as me:
            new_key = key_file.read().public
            wait_for(lambda: peer.routes.table.routes[ME].sealing_key == new_key, 20, 0.02)

            after = peer.routes.table.routes[ME]
            assert before.sealing_key != new_key
            assert after == replace(before, sealing_key=new_key)
            results = {step.name: step.result for step in peer.protocol.try_route(ME)}
            assert results["sealing"] is Result.OK


def test_an_update_to_an_address_without_tls_is_refused(nodes):
    me, peer, mine = nodes
    url = me.addresses()["peer"]
    edit_route(peer, ME, url=url.replace("http://", "https://"))

    assert send_update(me, mine, address=url) == "INVALID"

    assert peer.routes.table.routes[ME].url.startswith("https://")
