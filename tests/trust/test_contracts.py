"""Contracts between two nodes that start without routes: sent over HTTP, decided by a person."""

import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.errors import GatewayError
from gateway.identity.keys import KeyPair
from gateway.identity.sealing_keys import SealingPair
from gateway.jobs import contract_routes
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result
from route_table.certificates import key_pin, public_key
from route_table.document import parse
from route_table.editing import Change
from route_table.model import InvalidRoutes
from tests.builders import a_local_job, a_spec, raising
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    change_application,
    credentials,
    edit_route,
    forget_all,
    make_contract,
    newest_waiting,
    put_route,
    send_unsigned,
    status_of,
    terminate,
    two_nodes,
    wait_for_status,
)
from tests.trust.contract_sender import APPLY, Sender

UPDATE = "/v1/interconn/node/update"
# Names of this machine and its link-local networks; a partner's node has none of them.
LOCAL_HOSTS = [
    "127.0.0.1",
    "127.1",
    "2130706433",  # 127.0.0.1 as one number
    "localhost",
    "0.0.0.0",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    "[fe80::1]",
]
# Addresses that are more than a scheme, a host and a port.
ODD_ADDRESSES = [
    "http://192.0.2.7/v1/platform",
    "http://192.0.2.7?x",
    "http://a@192.0.2.7",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def nodes(pair):
    """Give two nodes without routes and applications."""
    yield pair
    forget_all(*pair)


# ---------------------------------------------------------------- the life of a contract


def test_a_contract_makes_routes_that_sign_and_its_end_disables_them(nodes):
    me, peer = nodes
    assert not peer.routes.table.routes

    mine, theirs = make_contract(me, peer)
    for node, partner in ((me, PEER), (peer, ME)):
        route = node.routes.table.routes[partner]
        assert route.enabled
        assert route.signing_mode == "required"
        assert len(route.keys) == 1
        assert route.sealing_mode == "required"
        results = {step.name: step.result for step in node.protocol.try_route(partner)}
        assert results["way back"] is Result.OK
        assert results["sealing"] is Result.OK

    call_api(me, "POST", f"/applications/{mine}/terminate", {"reason": "over"})
    wait_for_status(peer, theirs, "TERMINATED")
    wait_for(lambda: not call_api(me, "GET", f"/applications/{mine}")["notice"])
    assert not me.routes.table.routes[PEER].enabled
    assert not peer.routes.table.routes[ME].enabled


def test_after_its_end_a_contract_can_be_made_again(nodes):
    me, peer = nodes
    mine, theirs = make_contract(me, peer)
    terminate(me, mine)
    wait_for_status(peer, theirs, "TERMINATED")

    mine, theirs = make_contract(me, peer)

    assert me.routes.table.knows(PEER)
    assert peer.routes.table.knows(ME)
    terminate(peer, theirs)  # the node that approved it may end it as well
    wait_for_status(me, mine, "TERMINATED")


def test_a_rejected_application_ends_at_both_nodes_and_can_be_repeated(nodes):
    me, peer = nodes
    mine = apply_for(me, "contract", peer)
    theirs = newest_waiting(peer)

    call_api(peer, "POST", f"/applications/{theirs}/reject", {"reason": "unknown"})

    wait_for_status(me, mine, "REJECTED")
    refusal = call_api(me, "POST", f"/applications/{mine}/terminate", {}, 409)
    assert refusal["data"]["reason"] == "APPLICATION_STATE"
    assert not peer.routes.table.routes
    make_contract(me, peer)


def test_a_lost_response_to_an_application_is_recovered_by_a_query(nodes, monkeypatch):
    me, peer = nodes
    mine = apply_for(me, "contract", peer)
    monkeypatch.setattr(peer.management, "deliver", lambda _: None)  # lost on its way
    approve(peer, newest_waiting(peer))
    assert status_of(me, mine) == "APPLIED"

    refreshed = call_api(me, "POST", f"/applications/{mine}/refresh")

    assert refreshed["status"] == "APPROVED"
    peer_key = peer.card.credentials()["auth_credential"]
    assert me.routes.table.routes[PEER].keys == (peer_key,)
    path = "/api/v1/audit?action=合作方变更申请&limit=1"
    response = ask(
        me,
        "operator",
        "GET",
        path,
        headers={"accept-language": "zh-CN"},
    )
    [entry] = response.json()["audit"]
    assert entry["who"] == f"node {PEER}"
    assert entry["detail"]["after"]["application"] == mine


def test_a_decision_is_delivered_once_the_partner_can_be_reached(nodes):
    me, peer = nodes
    mine = apply_for(me, "contract", peer)
    theirs = newest_waiting(peer)
    change_application(peer, theirs, url="http://127.0.0.1:9")  # nothing listens there

    approve(peer, theirs)

    wait_for(lambda: "PEER_UNREACHABLE" in trouble_of(peer, theirs))
    assert status_of(me, mine) == "APPLIED"
    edit_route(
        peer,
        ME,
        url=me.addresses()["peer"],
    )
    assert call_api(peer, "POST", f"/applications/{theirs}/refresh")["notice"] == ""
    wait_for_status(me, mine, "APPROVED")


def trouble_of(node, number):
    """Return what hinders the delivery of a decision."""
    return call_api(node, "GET", f"/applications/{number}")["trouble"]


def test_the_route_is_disabled_when_the_last_of_several_contracts_expires(nodes):
    me, peer = nodes
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    first = make_contract(
        me,
        peer,
        expires_at=tomorrow,
    )
    second = make_contract(
        me,
        peer,
        expires_at=tomorrow,
    )

    expire_at_both(nodes, first)
    assert me.routes.table.routes[PEER].enabled
    assert peer.routes.table.routes[ME].enabled

    expire_at_both(nodes, second)
    assert not me.routes.table.routes[PEER].enabled
    assert not peer.routes.table.routes[ME].enabled
    for node in nodes:
        [entry] = call_api(node, "GET", "/audit?who=gateway&action=route changed")["audit"]
        [change] = entry["detail"]["changes"]
        assert change["before"] is True
        assert change["after"] is False


def expire_at_both(nodes, numbers):
    """Let a contract expire; ``numbers`` are its numbers at the two nodes."""
    for node, number, partner in zip(nodes, numbers, (PEER, ME), strict=True):
        now = datetime.now(UTC)
        assert node.stored_applications.contract(partner, now) is not None
        change_application(
            node,
            number,
            expires_at=now - timedelta(seconds=1),
        )
        wait_for_status(node, number, "TERMINATED")


def test_a_contract_leaves_the_next_key_of_a_rotation_in_the_route(nodes):
    me, peer = nodes
    make_contract(me, peer)
    next_key = KeyPair(Ed25519PrivateKey.generate()).public
    keys = (*peer.routes.table.routes[ME].keys, next_key)
    edit_route(
        peer,
        ME,
        keys=", ".join(keys),
    )

    make_contract(me, peer)

    assert peer.routes.table.routes[ME].keys == keys


def test_nodes_with_sm2_keys_make_contracts_too(tmp_path):
    with two_nodes(tmp_path, "sm2") as (me, peer):
        mine, _ = make_contract(me, peer)
        assert me.stored_applications.get(mine).request["auth_type"] == "SM2"


# ---------------------------------------------------------------- changes in a partner's name


def test_an_application_with_another_key_does_not_replace_the_route(nodes):
    me, peer = nodes
    make_contract(me, peer)
    attacker = KeyPair(Ed25519PrivateKey.generate())
    application = credentials(me) | {"auth_credential": attacker.public}

    response = Sender(attacker).ask(peer, "POST", APPLY, application, ME)

    assert response["code"] == 0
    key_in_route = key_pin(public_key(peer.routes.table.routes[ME].keys[0]))
    check_approval_is_refused(peer, key_in_route, attacker.id)


def test_an_application_with_another_address_does_not_replace_the_route(nodes):
    me, peer = nodes
    make_contract(me, peer)
    application = credentials(me) | {"address": "http://127.0.0.1:9"}

    response = Sender(me.card.key()).ask(peer, "POST", APPLY, application, ME)

    assert response["code"] == 0
    check_approval_is_refused(
        peer,
        peer.routes.table.routes[ME].url,
        "http://127.0.0.1:9",
    )


def check_approval_is_refused(peer, in_route, in_application):
    """Check that approving names the contradiction and leaves the route as it is."""
    before = peer.routes.table.routes[ME]
    number = newest_waiting(peer)

    refusal = call_api(peer, "POST", f"/applications/{number}/approve", {}, 409)

    reason, _, message = refusal["msg"].partition(": ")
    assert reason
    assert (
        f"the route of {ME} has {in_route}; the application has {in_application}; "
        "anybody can apply in its name" in message
    )
    assert "而申请为" in translate(message, "zh")
    assert peer.routes.table.routes[ME] == before


def test_a_partner_changes_its_address_by_a_signed_update_only(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    body = {
        **credentials(me),
        "contract_id": me.stored_applications.get(mine).id,
        "address": "http://127.0.0.1:8",
    }
    unsigned = send_unsigned(peer, "POST", "/node/update", body)
    assert unsigned["data"]["reason"] == "SIGNATURE_REFUSED"

    edit_route(peer, ME, signing="accepted")
    me.protocol.peer(PEER).ask(UPDATE, body)

    route = peer.routes.table.routes[ME]
    assert route.url == "http://127.0.0.1:8"
    assert route.signing == "accepted"
    of_stranger = send_unsigned(peer, "POST", "/node/update", {}, STRANGER)
    assert of_stranger["data"]["reason"] == "NOT_AUTHORISED"


@pytest.mark.parametrize("applicant", [ME, PEER])
def test_a_new_address_leaves_the_seals_of_the_route_alone(nodes, applicant):
    me, peer = nodes
    sides = {ME: (me, peer), PEER: (peer, me)}
    number_of = dict(zip(sides[applicant], make_contract(*sides[applicant]), strict=True))
    later_key = SealingPair(X25519PrivateKey.generate()).public
    edit_route(peer, ME, sealing_key=later_key, sealing="accepted")
    contract = me.stored_applications.get(number_of[me])
    body = {**credentials(me), "contract_id": contract.id, "address": "http://127.0.0.1:8"}
    del body["sealing_key"]

    me.protocol.peer(PEER).ask(UPDATE, body)

    route = peer.routes.table.routes[ME]
    assert route.url == "http://127.0.0.1:8"
    assert (route.sealing_key, route.sealing) == (later_key, "accepted")


def test_an_updated_sealing_key_requires_no_seals(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    edit_route(peer, ME, sealing="off", url="http://127.0.0.1:8")
    new_key = SealingPair(X25519PrivateKey.generate()).public

    assert send_update(me, mine, sealing_key=new_key, address="http://127.0.0.1:8") == ""

    route = peer.routes.table.routes[ME]
    assert (route.sealing_key, route.sealing) == (new_key, "off")


def test_an_address_changed_by_a_partner_is_in_the_audit(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    edit_route(peer, ME, signing="accepted")
    assert send_update(me, mine, address="http://127.0.0.1:8") == ""

    audit = call_api(peer, "GET", f"/audit?who=node {ME}&action=changed&limit=2")["audit"]

    route = peer.routes.table.routes[ME]
    proof = {
        "from": "127.0.0.1",
        "key": key_pin(public_key(route.keys[0])),
    }
    for entry in audit:
        assert entry["detail"].items() >= proof.items()
    change = {
        "node": ME,
        "field": "url",
        "before": me.addresses()["peer"],
        "after": route.url,
    }
    assert {entry["action"]: entry["detail"].get("changes") for entry in audit} == {
        "route changed by a contract": [change],
        "application changed by a partner": None,
    }


def send_update(me, number, **changes):
    """Send a signed update of a contract to `PEER`; return the refusal's reason, or ""."""
    contract_id = me.stored_applications.get(number).id
    body = {**credentials(me), "contract_id": contract_id, **changes}
    try:
        me.protocol.peer(PEER).ask(UPDATE, body)
    except GatewayError as error:
        return error.reason
    return ""


# ---------------------------------------------------------------- a partner that is locked out


def test_no_update_lets_a_locked_out_partner_in_again(tmp_path):
    with two_nodes(tmp_path) as (me, peer):
        mine, _ = make_contract(me, peer)
        store_running_job(peer)

        edit_route(
            peer,
            ME,
            enabled=False,
            components="bank/*",
        )
        before = peer.routes.table.routes[ME]
        assert send_update(me, mine) == "NOT_AUTHORISED"
        assert peer.routes.table.routes[ME] == before

        call_api(peer, "DELETE", f"/routes/{ME}", {})
        assert send_update(me, mine) == "NOT_AUTHORISED"
        assert ME not in peer.routes.table.routes


def store_running_job(peer):
    """Store a job with `ME` at `PEER`, so that requests of `ME` are served without a route.

    It is created now: after a longer silence `PEER` would ask, and learn that `ME` has no such
    job.
    """
    spec = a_spec(roles={"guest": (ME,), "host": (PEER,)})
    job = a_local_job(
        spec=spec,
        node=PEER,
        created_at=datetime.now(UTC),
    )
    peer.store.local_jobs.add(job, "flow")


def test_a_repeated_approval_does_not_enable_a_disabled_route(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    edit_route(me, PEER, enabled=False)
    body = {
        "contract_id": me.stored_applications.get(mine).id,
        "status": "APPROVED",
        **peer.card.credentials(),
    }

    send_unsigned(me, "POST", "/node/contract/confirm", body, PEER)

    assert not me.routes.table.routes[PEER].enabled


def test_an_approval_after_the_route_was_removed_is_refused(nodes):
    me, peer = nodes
    make_contract(me, peer)
    pending = apply_for(me, "contract", peer)
    call_api(me, "DELETE", f"/routes/{PEER}", {})
    approve(peer, newest_waiting(peer))

    refusal = refresh_in_vain(me, pending)

    assert "disabled here after" in refusal
    assert "已被停用" in translate(refusal.partition(": ")[2], "zh")
    assert status_of(me, pending) == "APPLIED"
    assert PEER not in me.routes.table.routes


def refresh_in_vain(node, number):
    """Refresh an application that must not be approved; return the refusal's message."""
    return call_api(node, "POST", f"/applications/{number}/refresh", status=409)["msg"]


def test_the_end_of_a_contract_does_not_lock_the_partner_out(nodes):
    me, peer = nodes
    mine, theirs = make_contract(me, peer)
    pending = apply_for(me, "contract", peer)
    terminate(me, mine)
    wait_for_status(peer, theirs, "TERMINATED")

    approve(peer, newest_waiting(peer))

    wait_for_status(me, pending, "APPROVED")


def test_a_lock_out_holds_for_every_reason_and_age(nodes, monkeypatch):
    me, peer = nodes
    make_contract(me, peer)
    pending = apply_for(me, "contract", peer)
    # The reason that the gateway itself gives when a contract ends.
    reason = f"contract {me.stored_applications.get(pending).id} has ended"
    body = {
        "route": {"enabled": False},
        "reason": reason,
    }
    call_api(me, "PATCH", f"/routes/{PEER}", body)
    approve(peer, newest_waiting(peer))
    refresh_in_vain(me, pending)

    # Many later versions of the route table.
    for number in range(60):
        me.routes.edit(
            Change(STRANGER, {"url": f"http://192.0.2.{number}"}),
            "admin",
        )
    refresh_in_vain(me, pending)

    def strict(text):
        """Refuse old versions of the table, as a later release may."""
        if parse(text).knows(PEER):
            raise InvalidRoutes(())
        return parse(text)

    monkeypatch.setattr(contract_routes, "parse", strict)
    refresh_in_vain(me, pending)
    assert status_of(me, pending) == "APPLIED"
    assert not me.routes.table.knows(PEER)


# ---------------------------------------------------------------- addresses and keys in updates


def test_a_partner_cannot_aim_this_node_at_itself_or_its_loopback(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    edit_route(peer, ME, url="https://192.0.2.7:7380")
    before = peer.routes.table.routes[ME]
    sockets = peer.services.sockets.by_listener
    port = sockets["operator"][0].getsockname()[1]
    local = [f"http://{host}:{port}" for host in [*LOCAL_HOSTS, *address_of_this_machine()]]

    for address in [*local, *ODD_ADDRESSES]:
        assert send_update(me, mine, address=address) == "INVALID", address

    assert peer.routes.table.routes[ME] == before
    assert send_update(me, mine, address="https://192.0.2.8:7380") == ""


def address_of_this_machine():
    """Return the machine's address on its network; [] without a network."""
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.7", 1))  # UDP: nothing is sent
        return [probe.getsockname()[0]]
    return []


def test_every_address_of_a_host_name_is_checked(monkeypatch):
    addresses = [
        (socket.AF_INET, None, None, "", ("255.255.255.255", 1)),  # is not a usable address
        (socket.AF_INET, None, None, "", ("127.0.0.1", 1)),
    ]
    monkeypatch.setattr(contract_routes.socket, "getaddrinfo", lambda *_, **__: addresses)

    [rule] = contract_routes.broken_address_rules("http://gw.bank.example")

    assert rule.startswith("must not be a loopback address")


def test_a_host_name_without_an_address_is_refused(monkeypatch):
    no_such_name = raising(socket.gaierror("no such name"))
    monkeypatch.setattr(contract_routes.socket, "getaddrinfo", no_such_name)

    [rule] = contract_routes.broken_address_rules("http://gw.bank.example")

    assert "found from here" in rule
    assert "解析" in translate(rule, "zh")


def test_resolving_a_host_name_takes_no_thread_of_the_signatures(nodes, monkeypatch):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    borrowed = []

    def record_borrowed_threads(_):
        borrowed.append(peer.limiters.peers.borrowed_tokens)
        return set()

    monkeypatch.setattr(contract_routes, "broken_address_rules", record_borrowed_threads)

    assert send_update(me, mine) == ""
    assert borrowed == [1, 1]


def test_an_update_cannot_bring_the_key_of_another_partner(nodes):
    me, peer = nodes
    mine, _ = make_contract(me, peer)
    key = KeyPair(Ed25519PrivateKey.generate()).public
    put_route(
        peer,
        STRANGER,
        url="https://192.0.2.9",
        keys=key,
    )

    assert send_update(me, mine, auth_credential=key) == "KEY_OF_ANOTHER"


def test_an_application_cannot_bring_the_key_of_another_partner(nodes):
    me, peer = nodes
    make_contract(me, peer)
    stranger = KeyPair(Ed25519PrivateKey.generate())
    put_route(
        peer,
        STRANGER,
        url="https://192.0.2.9",
        keys=stranger.public,
    )
    application = credentials(me) | {"auth_credential": stranger.public}
    assert Sender(stranger).ask(peer, "POST", APPLY, application, ME)["code"] == 0

    number = newest_waiting(peer)
    refusal = call_api(peer, "POST", f"/applications/{number}/approve", {}, 409)

    assert f"in the route of {STRANGER}" in refusal["msg"]
    assert "密钥" in translate(refusal["msg"], "zh")
