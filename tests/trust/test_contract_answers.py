"""Decisions on contracts: only the partner's own key can make, repeat or query them."""

import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import yaml

from gateway.config.loader import load
from gateway.domain.applications import Kind, Side, new_application
from gateway.errors import Busy
from gateway.jobs.contract_inbox import MAX_WAITING, network_of
from route_table.certificates import key_pin, public_key
from tests.certificates import Authority
from tests.cli import call, call_node, json_from_node
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, STRANGER, Node, serving
from tests.trust.agreeing import (
    INTERCONN,
    apply_for,
    approve,
    call_api,
    credentials,
    edit_route,
    forget_all,
    make_contract,
    newest_waiting,
    put_route,
    status_of,
    two_nodes,
    wait_for_status,
)
from tests.trust.contract_sender import APPLY, Sender, a_key

CONTRACT = f"{INTERCONN}/node/contract"
CONFIRM = f"{CONTRACT}/confirm"
# Reasons by which a request of a stranger in the partner's name is refused.
REFUSED = {"SIGNATURE_REFUSED", "CERTIFICATE_MISMATCH"}


# ---------------------------------------------------------------- a stranger between two new nodes


@dataclass
class Pair:
    """Two nodes as `init` configures them, and a stranger on their network."""

    me: Node
    peer: Node
    stranger: Sender
    # files of a node's route to its partner, by the node's id
    tls_files: dict[str, dict[str, str]]


@contextmanager
def configured_by_init(home, nodes_with_tls):
    """Serve two nodes; the peers' listener of ``nodes_with_tls`` requires certificates."""
    authority = Authority(home / "tls")
    files = {node: authority.sign(node, "127.0.0.1", node) for node in (ME, PEER, STRANGER)}
    tls_files = {}
    nodes = []
    for node in (ME, PEER):
        tls_files[node] = {
            "ca": authority.file,
            "certificate": files[node].certificate,
            "key": files[node].key,
        }
        listener_tls = None
        if node in nodes_with_tls:
            listener_tls = {
                "certificate": files[node].certificate,
                "key": files[node].key,
                "client_ca": authority.file,
            }
        config = write_config(home / node / "node.yml", node, listener_tls)
        nodes.append(Node(load(config)))
    stranger = Sender()
    if nodes_with_tls:
        stranger.files = files[STRANGER]
    with serving(nodes[0]) as me, serving(nodes[1]) as peer:
        yield Pair(me, peer, stranger, tls_files)


def write_config(config, node, tls):
    """Write a node's configuration by `init`, then give it free ports; return the file."""
    done = call(
        "init",
        "--node",
        node,
        "--engine",
        "process",
        "-o",
        str(config),
    )
    assert done.exit_code == 0
    settings = yaml.safe_load(config.read_text())
    for listener, port in zip(("peer", "container", "operator"), free_ports(3), strict=True):
        settings["listen"][listener]["bind"] = f"127.0.0.1:{port}"
    if tls:
        settings["listen"]["peer"]["tls"] = tls
    config.write_text(yaml.safe_dump(settings))
    return config


@pytest.mark.parametrize(
    "nodes_with_tls",
    [
        (),
        (ME,),
        (ME, PEER),
    ],
    ids=["http", "client_ca here", "client_ca at both"],
)
def test_a_stranger_neither_learns_nor_decides_a_contract(tmp_path, nodes_with_tls):
    with configured_by_init(tmp_path, nodes_with_tls) as pair:
        me = pair.me
        peer = pair.peer
        if PEER in nodes_with_tls:
            put_route(me, PEER, url=peer.addresses()["peer"], **pair.tls_files[ME])
        application = apply_by_command(
            me,
            peer,
            has_tls=PEER in nodes_with_tls,
        )
        theirs = newest_waiting(peer)
        senders = (
            pair.stranger,
            Sender(None, pair.stranger.files),
        )

        for sender in senders:
            check_id_stays_secret(sender, peer, theirs, application["id"])
            check_all_verbs_are_refused(sender, pair, application["id"])
        assert status_of(me, application["number"]) == "APPLIED"
        route = me.routes.table.routes.get(PEER)
        assert route is None or not route.keys

        if ME in nodes_with_tls:
            put_route(peer, ME, url=me.addresses()["peer"], **pair.tls_files[PEER])
        reason = {"reason": "compared by telephone"}
        call_api(peer, "POST", f"/applications/{theirs}/approve", reason)
        wait_for_status(me, application["number"], "APPROVED")
        check_route_has_the_partners_key(me, peer)
        route = me.routes.table.routes[PEER]
        for key in (pair.stranger.pair.public, route.keys[0]):
            assert confirm(pair.stranger, me, application["id"], key) in REFUSED
        assert key_of_application(me, application["number"]) == key_in_route(
            me,
            PEER,
        )
        assert key_of_application(peer, theirs) == key_in_route(peer, ME)


def apply_by_command(me, peer, has_tls):
    """Apply for a contract; return the application as the command lists it.

    Without TLS at the partner, a person has to compare its key.
    """
    words = ["apply", "contract", PEER, "--to", peer.addresses()["peer"]]
    if not has_tls:
        words += ["--key", peer.card.key().id]
    done = call_node("partner", me, *words)
    assert done.exit_code == 0, done.stderr
    [application] = json_from_node("partner", me, "applications")["applications"]
    return application


def check_id_stays_secret(sender, peer, number, contract_id):
    """Check that repeating an application does not reveal its contract's id."""
    application = peer.stored_applications.get(number).request
    response = sender.ask(
        peer,
        "POST",
        APPLY,
        application,
        ME,
    )
    assert response["data"].get("contract_id") != contract_id


def check_all_verbs_are_refused(sender, pair, contract_id):
    """Check that a stranger who somehow knows the contract's id can do nothing with it."""
    me = pair.me
    peer = pair.peer
    for key in (pair.stranger.pair.public, peer.card.credentials()["auth_credential"]):
        assert confirm(sender, me, contract_id, key) in REFUSED

    rejection = {"status": "REJECTED"}
    for method, verb, node, source, fields in (
        ("POST", "confirm", me, PEER, rejection),
        ("POST", "terminate", me, PEER, {}),
        ("GET", "query", peer, ME, {}),
        ("POST", "terminate", peer, ME, {}),
    ):
        body = {"contract_id": contract_id, **fields}
        response = sender.ask(
            node,
            method,
            f"{CONTRACT}/{verb}",
            body,
            source,
        )
        assert response["data"]["reason"] in REFUSED


def an_approval(contract_id, key, **fields):
    """Build the message by which a partner approves a contract."""
    return {
        "status": "APPROVED",
        "auth_type": "ED25519",
        "contract_id": contract_id,
        "auth_credential": key,
        **fields,
    }


def confirm(sender, node, contract_id, key):
    """Approve a contract in the name of `PEER`; return the reason of the refusal."""
    response = sender.ask(
        node,
        "POST",
        CONFIRM,
        an_approval(contract_id, key),
        PEER,
    )
    return response["data"]["reason"]


def check_route_has_the_partners_key(me, peer):
    """Check that the contract has made a route that requires the partner's signatures."""
    route = me.routes.table.routes[PEER]
    assert route.keys == (peer.card.credentials()["auth_credential"],)
    assert route.signing_mode == "required"


def key_of_application(node, number):
    """Return the fingerprint that an application shows."""
    return call_api(node, "GET", f"/applications/{number}")["key"]


def key_in_route(node, partner):
    """Return the fingerprint of the first key in a route."""
    return key_pin(public_key(node.routes.table.routes[partner].keys[0]))


# ---------------------------------------------------------------- which key counts


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def nodes(pair):
    """Give two nodes without routes and applications."""
    yield pair
    forget_all(*pair)


def test_an_application_counts_as_repeated_only_with_its_own_key(nodes):
    me, peer = nodes

    def apply_by(sender):
        return sender.ask(peer, "POST", APPLY, credentials(me), ME)["data"]

    first = apply_by(Sender(me.card.key()))
    again = apply_by(Sender(me.card.key()))
    assert first == again

    unsigned = apply_by(Sender(None))
    assert unsigned["contract_id"] != first["contract_id"]
    with_another_key = apply_by(Sender())
    assert with_another_key["reason"] == "SIGNATURE_REFUSED"
    listed = call_api(peer, "GET", "/applications?side=theirs")["applications"]
    assert [application["signed"] for application in listed] == [True, False]


def test_an_unsigned_application_is_approved_only_without_signing(nodes):
    """Attack: it has the partner's true key, and the address of another node."""
    me, peer = nodes
    application = credentials(me) | {"address": "http://192.0.2.66"}
    assert Sender(None).ask(peer, "POST", APPLY, application, ME)["code"] == 0
    number = newest_waiting(peer)

    refusal = call_api(peer, "POST", f"/applications/{number}/approve", {}, 409)

    assert refusal["data"]["reason"] == "APPLICATION_NOT_SIGNED"
    assert "--signing off" in refusal["msg"]
    assert status_of(peer, number) == "APPLIED"
    assert ME not in peer.routes.table.routes

    done = call_node(
        "partner",
        peer,
        "approve",
        str(number),
        "--signing",
        "off",
    )
    assert done.exit_code == 0, done.stderr
    assert peer.routes.table.routes[ME].signing == "off"


@pytest.mark.parametrize(
    ("fields", "path", "rule"),
    [
        ({}, "key", "compared by telephone"),
        ({"signing": "required"}, "key", "is not https"),
        ({"key": f"sha256:{'0' * 64}"}, "key", "is not the key that"),
        ({"key": "no key"}, "key", "must be a public key"),
        ({"signing": "perhaps"}, "signing", ""),
    ],
    ids=["no key", "signing without a key", "another key", "not a key", "not a way to sign"],
)
def test_a_contract_is_applied_for_with_a_compared_key(nodes, fields, path, rule):
    me, peer = nodes
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": peer.addresses()["peer"],
        **fields,
    }

    refusal = call_api(me, "POST", "/applications", body, 400)

    [problem] = refusal["data"]["problems"]
    assert problem["path"] == path
    assert rule in problem["rule"]
    assert call_api(me, "GET", "/applications")["applications"] == []
    assert call_api(peer, "GET", "/applications")["applications"] == []


def test_the_key_itself_serves_in_place_of_its_fingerprint(nodes):
    me, peer = nodes
    mine, _ = make_contract(
        me,
        peer,
        key=peer.card.credentials()["auth_credential"],
    )
    assert me.routes.table.routes[PEER].keys == me.stored_applications.get(mine).keys


def test_a_contract_needs_the_key_that_the_route_has(nodes):
    me, peer = nodes
    url = peer.addresses()["peer"]
    put_route(
        me,
        PEER,
        url=url,
        keys=a_key().public,
    )
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": url,
        "key": peer.card.key().id,
    }

    refusal = call_api(me, "POST", "/applications", body, 400)

    assert "must be in the route" in refusal["data"]["problems"][0]["rule"]


def test_only_a_key_in_the_route_can_approve(nodes):
    me, peer = nodes
    put_route(
        me,
        PEER,
        url=peer.addresses()["peer"],
        keys=a_key().public,
    )
    mine = apply_for(
        me,
        "contract",
        peer,
        key="",
    )
    theirs = newest_waiting(peer)
    approve(peer, theirs)

    refusal = call_api(
        peer,
        "POST",
        f"/applications/{theirs}/refresh",
        status=403,
    )
    assert "SIGNATURE_REFUSED" in str(refusal)
    assert status_of(me, mine) == "APPLIED"

    edit_route(
        me,
        PEER,
        keys=peer.card.key().public,
    )
    call_api(peer, "POST", f"/applications/{theirs}/refresh")
    wait_for_status(me, mine, "APPROVED")


def test_a_key_that_left_the_route_since_cannot_approve(nodes):
    me, peer = nodes
    url = peer.addresses()["peer"]
    peer_key = peer.card.key()
    put_route(
        me,
        PEER,
        url=url,
        keys=peer_key.public,
    )
    mine = apply_for(me, "contract", peer)
    put_route(me, PEER, url=url)

    contract_id = me.stored_applications.get(mine).id
    reason = confirm(
        Sender(peer_key),
        me,
        contract_id,
        peer_key.public,
    )

    assert reason == "APPLICATION_STATE"
    assert status_of(me, mine) == "APPLIED"
    assert not me.routes.table.routes[PEER].keys


def test_a_product_that_does_not_sign_can_agree_if_a_person_allows_it(nodes):
    me, peer = nodes
    mine = apply_for(
        me,
        "contract",
        peer,
        key="",
        signing="off",
    )
    approval = an_approval(
        me.stored_applications.get(mine).id,
        a_key().public,
    )

    assert Sender(None).ask(me, "POST", CONFIRM, approval, PEER)["code"] == 0

    route = me.routes.table.routes[PEER]
    assert route.signing == "off"
    assert route.keys == ()  # no person has compared the key, so that it is not stored
    assert status_of(me, mine) == "APPROVED"
    assert key_of_application(me, mine) == ""


def test_a_repeated_approval_changes_no_contract(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    before = me.stored_applications.get(mine)
    key = peer.card.credentials()["auth_credential"]
    approval = an_approval(before.id, key, expired_time=int(time.time()) + 10**6)

    response = Sender(peer.card.key()).ask(me, "POST", CONFIRM, approval, PEER)

    assert response["code"] == 0
    assert me.stored_applications.get(mine) == before


# ---------------------------------------------------------------- places for applicants


def test_twenty_addresses_do_not_take_all_places_of_applicants(nodes):
    me, peer = nodes
    receive = peer.applications.receive_contract
    stored = peer.stored_applications
    application = new_application(
        Kind.CONTRACT,
        "",
        "JG1",
        Side.THEIRS,
        "JG1",
        credentials(me),
        peer.clock(),
    )
    for number in range(MAX_WAITING):
        receive(application, f"192.0.2.{number % 20}")

    of_another_network = receive(application, "198.51.100.1")
    assert stored.count_undecided() == MAX_WAITING
    assert stored.get(of_another_network.number) == of_another_network

    for _ in range(4):
        receive(application, "198.51.100.1")
    with pytest.raises(Busy):
        receive(application, "192.0.2.200")
    mine, _ = make_contract(me, peer)  # from a third network
    assert status_of(me, mine) == "APPROVED"


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
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
def test_addresses_of_one_network_count_together(first, second, is_same):
    assert (network_of(first) == network_of(second)) is is_same
