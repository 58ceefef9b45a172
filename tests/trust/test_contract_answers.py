"""Whoever is not the partner gets no contract, whatever it repeats, and whatever keys it brings."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.bootstrap.node import Gateway
from gateway.config.loader import load
from gateway.domain.applications import Kind, Side, new_application
from gateway.errors import Busy
from gateway.jobs.contract_inbox import MAX_WAITING, network_of
from route_table.certificates import key_pin, public_key
from tests.certificates import Authority
from tests.cli import asking, call, written
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, STRANGER, Node, serving
from tests.trust.agreeing import (
    INTERCONN,
    applied,
    becomes,
    contract,
    person,
    state,
    two_nodes,
    waiting,
)
from tests.trust.contract_sender import APPLY, Sender, a_key

CONFIRM = f"{INTERCONN}/node/contract/confirm"
APPROVED = {"status": "APPROVED", "auth_type": "ED25519"}


def card(node: Gateway, key: str = "") -> dict[str, Any]:
    """Return what everybody can read of a node, as the body of an application in its name."""
    return {
        **node.card.public(),
        **node.card.credentials(),
        **({"auth_credential": key} if key else {}),
    }


@dataclass
class Pair:
    """Two nodes as `init` makes them, and what a stranger has."""

    me: Gateway
    peer: Gateway
    stranger: Sender
    tls: dict[str, dict[str, str]]
    """node -> the files of its route to the other, where that serves TLS"""


@contextmanager
def made_by_init(home: Path, with_tls: Collection[str]) -> Iterator[Pair]:
    authority = Authority(home / "tls")
    files = {node: authority.sign(node, "127.0.0.1", node) for node in (ME, PEER, STRANGER)}
    nodes = []
    for node in (ME, PEER):
        config = home / node / "node.yml"
        assert call("init", "--node", node, "--engine", "process", "-o", str(config)).exit_code == 0
        settings = yaml.safe_load(config.read_text())
        for listener, port in zip(("peer", "container", "operator"), free_ports(3), strict=True):
            settings["listen"][listener]["bind"] = f"127.0.0.1:{port}"
        if node in with_tls:
            own = {
                "certificate": files[node].certificate,
                "key": files[node].key,
                "client_ca": authority.file,
            }
            settings["listen"]["peer"]["tls"] = own
        config.write_text(yaml.safe_dump(settings))
        nodes.append(Node(load(config)))
    tls = {
        node: {
            "ca": authority.file,
            "certificate": files[node].certificate,
            "key": files[node].key,
        }
        for node in (ME, PEER)
    }
    with serving(nodes[0]), serving(nodes[1]):
        yield Pair(nodes[0], nodes[1], Sender(files=files[STRANGER] if with_tls else None), tls)


REFUSED = {"SIGNATURE_REFUSED", "CERTIFICATE_MISMATCH"}


@pytest.mark.parametrize(
    "with_tls", [(), (ME,), (ME, PEER)], ids=["http", "client_ca here", "client_ca at both"]
)
def test_a_stranger_neither_learns_a_contracts_id_nor_answers_it(
    tmp_path: Path, with_tls: tuple[str, ...]
):
    with made_by_init(tmp_path, with_tls) as pair:
        me, peer, stranger = pair.me, pair.peer, pair.stranger
        url = peer.addresses()["peer"]
        if PEER in with_tls:
            person(me, "PUT", f"/routes/{PEER}", {"route": {"url": url, **pair.tls[ME]}})
        compared = [] if PEER in with_tls else ["--key", peer.card.key().id]  # type: ignore[union-attr]
        done = asking("partner", me, "apply", "contract", PEER, "--to", url, *compared)
        assert done.exit_code == 0, done.stderr
        [mine] = written("partner", me, "applications")["applications"]
        theirs = waiting(peer)
        handed_out = set()
        for sender in (stranger, Sender(None, stranger.files)):
            said = sender.ask(peer, "POST", APPLY, peer.stored_applications.get(theirs).request, ME)
            handed_out.add(said["data"].get("contract_id"))
        assert mine["id"] not in handed_out
        # were it to know the id all the same
        assert stranger.pair is not None
        for sender in (stranger, Sender(None, stranger.files)):
            for key in (stranger.pair.public, peer.card.credentials()["auth_credential"]):
                body = {
                    **APPROVED,
                    "contract_id": mine["id"],
                    "auth_credential": key,
                }
                assert sender.ask(me, "POST", CONFIRM, body, PEER)["data"]["reason"] in REFUSED
            for verb, more in (("confirm", {"status": "REJECTED"}), ("terminate", {})):
                said = sender.ask(
                    me,
                    "POST",
                    f"{INTERCONN}/node/contract/{verb}",
                    {"contract_id": mine["id"], **more},
                    PEER,
                )
                assert said["data"]["reason"] in REFUSED
            said = sender.ask(
                peer, "GET", f"{INTERCONN}/node/contract/query", {"contract_id": mine["id"]}, ME
            )
            assert said["data"]["reason"] in REFUSED
            said = sender.ask(
                peer,
                "POST",
                f"{INTERCONN}/node/contract/terminate",
                {"contract_id": mine["id"]},
                ME,
            )
            assert said["data"]["reason"] in REFUSED
        assert state(me, mine["number"]) == "APPLIED"
        assert PEER not in me.routes.table.routes or not me.routes.table.routes[PEER].keys
        if ME in with_tls:
            person(
                peer,
                "PUT",
                f"/routes/{ME}",
                {"route": {"url": me.addresses()["peer"], **pair.tls[PEER]}},
            )
        person(peer, "POST", f"/applications/{theirs}/approve", {"reason": "compared by telephone"})
        becomes(me, mine["number"], "APPROVED")
        route = me.routes.table.routes[PEER]
        assert (
            route.keys == (peer.card.credentials()["auth_credential"],)
            and route.signing_mode == "required"
        )
        for body in (
            {
                **APPROVED,
                "contract_id": mine["id"],
                "auth_credential": stranger.pair.public,
            },
            {
                **APPROVED,
                "contract_id": mine["id"],
                "auth_credential": route.keys[0],
            },
        ):
            assert stranger.ask(me, "POST", CONFIRM, body, PEER)["data"]["reason"] in REFUSED
        assert shown_key(me, mine["number"]) == key_pin(public_key(route.keys[0]))
        assert shown_key(peer, theirs) == key_pin(public_key(peer.routes.table.routes[ME].keys[0]))


def shown_key(node: Gateway, number: int) -> str:
    return str(person(node, "GET", f"/applications/{number}")["key"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as both:
        yield both


@pytest.fixture
def nodes(pair: tuple[Gateway, Gateway]) -> Iterator[tuple[Gateway, Gateway]]:
    yield pair
    for node in pair:
        for left in node.stored_applications.list():
            node.stored_applications.drop(left.number)
        for other in (ME, PEER):
            if other in node.routes.table.routes:
                person(node, "DELETE", f"/routes/{other}", {})


def test_an_application_counts_as_the_same_only_by_its_own_key(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    assert me.card.key() is not None
    own = Sender(me.card.key())
    first, again = (
        own.ask(peer, "POST", APPLY, {**card(me), "node_id": ME}, ME)["data"] for _ in range(2)
    )
    assert first == again
    unsigned = Sender(None).ask(peer, "POST", APPLY, {**card(me), "node_id": ME}, ME)["data"]
    assert unsigned["contract_id"] != first["contract_id"]
    wrong = Sender().ask(peer, "POST", APPLY, {**card(me), "node_id": ME}, ME)["data"]
    assert wrong["reason"] == "SIGNATURE_REFUSED"
    told = person(peer, "GET", "/applications?side=theirs")["applications"]
    assert [one["signed"] for one in told] == [True, False]


def test_an_unsigned_application_is_approved_by_saying_so_only(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    body = {
        **card(me),
        "node_id": ME,
        "address": "http://192.0.2.66",
    }  # the true key, and an address of another
    assert Sender(None).ask(peer, "POST", APPLY, body, ME)["code"] == 0
    number = waiting(peer)
    refused = person(peer, "POST", f"/applications/{number}/approve", {}, 409)
    assert (
        refused["data"]["reason"] == "APPLICATION_NOT_SIGNED" and "--signing off" in refused["msg"]
    )
    assert state(peer, number) == "APPLIED" and ME not in peer.routes.table.routes
    done = asking("partner", peer, "approve", str(number), "--signing", "off")
    assert done.exit_code == 0, done.stderr
    assert peer.routes.table.routes[ME].signing == "off"


@pytest.mark.parametrize(
    ("more", "path", "text"),
    [
        ({}, "key", "compared by telephone"),
        ({"signing": "required"}, "key", "is not https"),
        ({"key": f"sha256:{'0' * 64}"}, "key", "is not the key that"),
        ({"key": "no key"}, "key", "must be a public key"),
        ({"signing": "perhaps"}, "signing", ""),
    ],
)
def test_a_contract_is_applied_for_with_a_compared_key(
    nodes: tuple[Gateway, Gateway],
    more: dict[str, str],
    path: str,
    text: str,
):
    me, peer = nodes
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": peer.addresses()["peer"],
        **more,
    }
    refused = person(me, "POST", "/applications", body, 400)
    [problem] = refused["data"]["problems"]
    assert problem["path"] == path and text in problem["rule"]
    assert person(me, "GET", "/applications")["applications"] == []
    assert person(peer, "GET", "/applications")["applications"] == []


def test_a_key_compared_as_a_whole_serves_too(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    mine, _ = contract(me, peer, key=peer.card.credentials()["auth_credential"])
    assert me.routes.table.routes[PEER].keys == me.stored_applications.get(mine).keys


def test_a_route_with_keys_decides_who_answers(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    true, other = peer.card.key(), a_key()
    assert true is not None
    route = {"url": peer.addresses()["peer"], "keys": other.public}
    person(me, "PUT", f"/routes/{PEER}", {"route": route})
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": route["url"],
        "key": true.id,
    }
    refused = person(me, "POST", "/applications", body, 400)
    assert "must be in the route" in refused["data"]["problems"][0]["rule"]
    mine = applied(me, "contract", peer, key="")
    person(peer, "POST", f"/applications/{waiting(peer)}/approve", {})
    assert "SIGNATURE_REFUSED" in str(
        person(peer, "POST", f"/applications/{waiting_or_last(peer)}/refresh", status=403)
    )
    assert state(me, mine) == "APPLIED"
    person(me, "PATCH", f"/routes/{PEER}", {"route": {"keys": true.public}})
    person(peer, "POST", f"/applications/{waiting_or_last(peer)}/refresh")
    becomes(me, mine, "APPROVED")


def waiting_or_last(node: Gateway) -> int:
    return int(person(node, "GET", "/applications?side=theirs")["applications"][-1]["number"])


def test_a_key_that_was_revoked_meanwhile_answers_nothing(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    true = peer.card.key()
    assert true is not None
    person(
        me,
        "PUT",
        f"/routes/{PEER}",
        {"route": {"url": peer.addresses()["peer"], "keys": true.public}},
    )
    mine = applied(me, "contract", peer)
    person(me, "PUT", f"/routes/{PEER}", {"route": {"url": peer.addresses()["peer"]}})
    body = {
        **APPROVED,
        "contract_id": me.stored_applications.get(mine).id,
        "auth_credential": true.public,
    }
    refused = Sender(true).ask(me, "POST", CONFIRM, body, PEER)
    assert refused["data"]["reason"] == "APPLICATION_STATE"
    assert state(me, mine) == "APPLIED" and not me.routes.table.routes[PEER].keys


def test_a_product_that_does_not_sign_agrees_where_a_person_says_so(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    applied(me, "contract", peer, key="", signing="off")
    mine = int(person(me, "GET", "/applications")["applications"][-1]["number"])
    body = {
        **APPROVED,
        "contract_id": me.stored_applications.get(mine).id,
        "auth_credential": a_key().public,
    }
    assert Sender(None).ask(me, "POST", CONFIRM, body, PEER)["code"] == 0
    route = me.routes.table.routes[PEER]
    assert (route.signing, route.keys) == ("off", ())  # a key that nobody compared is not kept
    assert state(me, mine) == "APPROVED" and shown_key(me, mine) == ""


def test_an_answer_that_comes_again_changes_no_contract(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    mine, _ = contract(me, peer)
    before = me.stored_applications.get(mine)
    body = {
        **APPROVED,
        "contract_id": before.id,
        "auth_credential": peer.card.credentials()["auth_credential"],
        "expired_time": int(time.time()) + 10**6,
    }
    assert Sender(peer.card.key()).ask(me, "POST", CONFIRM, body, PEER)["code"] == 0
    assert me.stored_applications.get(mine) == before


def test_twenty_addresses_do_not_take_all_places_of_applicants(nodes: tuple[Gateway, Gateway]):
    me, peer = nodes
    receive, kept = peer.applications.receive_contract, peer.stored_applications
    new = new_application(
        Kind.CONTRACT,
        "",
        "JG1",
        Side.THEIRS,
        "JG1",
        card(me),
        peer.clock(),
    )
    for number in range(MAX_WAITING):
        receive(new, f"192.0.2.{number % 20}")
    first = receive(new, "198.51.100.1")
    assert kept.waiting() == MAX_WAITING and kept.get(first.number) == first
    for number in range(MAX_WAITING):
        with_room = number < 4
        if with_room:
            receive(new, "198.51.100.1")
    with pytest.raises(Busy):
        receive(new, "192.0.2.200")
    mine = contract(me, peer)[0]  # of an address of its own
    assert state(me, mine) == "APPROVED"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.254", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("2001:db8:1::1", "2001:db8:1:ffff::1", True),
        ("2001:db8:1::1", "2001:db8:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.9", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "", True),
    ],
)
def test_addresses_of_one_network_count_together(
    one: str,
    other: str,
    same: bool,
):
    assert (network_of(one) == network_of(other)) is same
