"""Contracts between two nodes that know nothing of each other: exchanged over HTTP, answered by a person."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from adapter.bfia.management.client import Card, ManagementClient
from gateway.bootstrap.node import Gateway
from gateway.domain import applications as domain
from gateway.domain.applications import Kind, Side
from gateway.errors import GatewayError, Refused
from gateway.identity.keys import KeyPair
from gateway.jobs import contract_inbox, contract_routes
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result
from route_table.certificates import key_pin, public_key
from route_table.document import parse
from route_table.editing import Change
from route_table.model import InvalidRoutes, RouteTable
from tests.builders import a_local_job, a_spec, raising
from tests.certificates import Authority
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask
from tests.routes.test_certificates import EC_P256, SM2, VERSION_2, VERSION_3
from tests.trust.agreeing import (
    applied,
    becomes,
    contract,
    person,
    requested,
    route,
    state,
    two_nodes,
    waiting,
)
from tests.trust.contract_sender import APPLY, Sender

Nodes = tuple[Gateway, Gateway]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as both:
        yield both


@pytest.fixture
def nodes(pair: Nodes) -> Iterator[Nodes]:
    """Give two nodes that know nothing of each other."""
    yield pair
    for node in pair:
        for left in node.stored_applications.list():
            node.stored_applications.drop(left.number)
        route(node, {})


def credentials(node: Gateway) -> dict[str, Any]:
    return {**node.card.public(), **node.card.credentials()}


def test_a_contract_makes_routes_that_sign_and_its_end_disables_them(nodes: Nodes):
    me, peer = nodes
    assert not peer.routes.table.routes
    mine, theirs = contract(me, peer)
    for node, other in ((me, PEER), (peer, ME)):
        entry = node.routes.table.routes[other]
        assert entry.enabled and entry.signing_mode == "required" and len(entry.keys) == 1
        assert {s.name: s.result for s in node.protocol.try_route(other)}["way back"] is Result.OK
    person(me, "POST", f"/applications/{mine}/terminate", {"reason": "over"})
    becomes(peer, theirs, "TERMINATED")
    wait_for(lambda: not person(me, "GET", f"/applications/{mine}")["notice"])
    assert not me.routes.table.routes[PEER].enabled and not peer.routes.table.routes[ME].enabled
    mine, theirs = contract(me, peer)
    assert me.routes.table.knows(PEER) and peer.routes.table.knows(ME)
    person(peer, "POST", f"/applications/{theirs}/terminate", {})  # as its owner may, too
    becomes(me, mine, "TERMINATED")


def test_a_rejected_application_ends_at_both_nodes_and_can_be_repeated(nodes: Nodes):
    me, peer = nodes
    mine = applied(me, "contract", peer)
    person(peer, "POST", f"/applications/{waiting(peer)}/reject", {"reason": "unknown"})
    becomes(me, mine, "REJECTED")
    refused = person(me, "POST", f"/applications/{mine}/terminate", {}, 409)
    assert refused["data"]["reason"] == "APPLICATION_STATE" and not peer.routes.table.routes
    contract(me, peer)


def test_an_answer_that_was_lost_is_found_by_a_query(nodes: Nodes, monkeypatch: pytest.MonkeyPatch):
    me, peer = nodes
    mine = applied(me, "contract", peer)
    monkeypatch.setattr(
        peer.management, "deliver", lambda _: None
    )  # taken on the way, and never delivered
    person(peer, "POST", f"/applications/{waiting(peer)}/approve", {})
    assert state(me, mine) == "APPLIED"
    assert person(me, "POST", f"/applications/{mine}/refresh")["status"] == "APPROVED"
    assert me.routes.table.routes[PEER].keys == (peer.card.credentials()["auth_credential"],)
    meant = "/audit?action=合作方变更申请&limit=1"
    found = ask(
        me, "operator", "GET", f"/api/v1{meant}", headers={"accept-language": "zh-CN"}
    ).json()["audit"]
    assert [(one["who"], one["detail"]["after"]["application"]) for one in found] == [
        (f"node {PEER}", mine)
    ]


def test_an_answer_is_delivered_once_the_partner_is_there(nodes: Nodes):
    me, peer = nodes
    mine = applied(me, "contract", peer)
    theirs = waiting(peer)
    reached = me.addresses()["peer"]
    peer.stored_applications.change(theirs, lambda one: replace(one, url="http://127.0.0.1:9"))
    person(peer, "POST", f"/applications/{theirs}/approve", {})
    wait_for(
        lambda: "PEER_UNREACHABLE" in person(peer, "GET", f"/applications/{theirs}")["trouble"]
    )
    assert state(me, mine) == "APPLIED"
    person(peer, "PATCH", f"/routes/{ME}", {"route": {"url": reached}})
    assert person(peer, "POST", f"/applications/{theirs}/refresh")["notice"] == ""
    becomes(me, mine, "APPROVED")


def test_the_route_is_disabled_when_the_last_of_several_contracts_expires(nodes: Nodes):
    me, peer = nodes
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for numbers, enabled in zip(
        [contract(me, peer, expires_at=until) for _ in range(2)], (True, False), strict=True
    ):
        for node, number, other in zip((me, peer), numbers, (PEER, ME), strict=True):
            assert node.stored_applications.contract(other, datetime.now(UTC)) is not None
            past = datetime.now(UTC) - timedelta(seconds=1)
            node.stored_applications.change(
                number, lambda one, at=past: replace(one, expires_at=at)
            )
            becomes(node, number, "TERMINATED")
            assert node.routes.table.routes[other].enabled is enabled
    for node in (me, peer):
        [found] = person(node, "GET", "/audit?who=gateway&action=route changed")["audit"]
        assert [(one["before"], one["after"]) for one in found["detail"]["changes"]] == [
            (True, False)
        ]


def test_a_contract_leaves_the_next_key_of_a_rotation_in_the_route(nodes: Nodes):
    me, peer = nodes
    contract(me, peer)
    following = KeyPair(Ed25519PrivateKey.generate()).public
    keys = (*peer.routes.table.routes[ME].keys, following)
    person(peer, "PATCH", f"/routes/{ME}", {"route": {"keys": ", ".join(keys)}})
    contract(me, peer)
    assert peer.routes.table.routes[ME].keys == keys


def test_nodes_whose_keys_are_of_sm2_make_contracts_too(tmp_path: Path):
    with two_nodes(tmp_path, "sm2") as (me, peer):
        mine, _ = contract(me, peer)
        assert me.stored_applications.get(mine).request["auth_type"] == "SM2"


def test_an_application_in_a_partners_name_does_not_replace_its_route(nodes: Nodes):
    me, peer = nodes
    contract(me, peer)
    before = peer.routes.table.routes[ME]
    strangers = KeyPair(Ed25519PrivateKey.generate())
    key, other = key_pin(public_key(before.keys[0])), strangers.id
    for changes, sender, values in (
        ({"auth_credential": strangers.public}, strangers, (key, other)),
        ({"address": "http://127.0.0.1:9"}, me.card.key(), (before.url, "http://127.0.0.1:9")),
    ):
        said = Sender(sender).ask(peer, "POST", APPLY, {**credentials(me), **changes}, ME)
        assert said["code"] == 0
        refused = person(peer, "POST", f"/applications/{waiting(peer)}/approve", {}, 409)
        text = f"the route of {ME} has {values[0]}; the application has {values[1]}; anybody can apply in its name"
        assert text in refused["msg"] and "而申请为" in translate(
            refused["msg"].partition(": ")[2], "zh"
        )
        assert peer.routes.table.routes[ME] == before


def test_a_partner_changes_its_address_by_a_signed_update_only(nodes: Nodes):
    me, peer = nodes
    mine, _ = contract(me, peer)
    about = {
        **credentials(me),
        "contract_id": me.stored_applications.get(mine).id,
        "address": "http://127.0.0.1:8",
    }
    assert requested(peer, "POST", "/node/update", about)["data"]["reason"] == "SIGNATURE_REFUSED"
    person(peer, "PATCH", f"/routes/{ME}", {"route": {"signing": "accepted"}})
    me.protocol.peer(PEER).ask("/v1/interconn/node/update", about)
    entry = peer.routes.table.routes[ME]
    assert (entry.url, entry.signing) == ("http://127.0.0.1:8", "accepted")
    wrong = requested(peer, "POST", "/node/update", {}, STRANGER)
    assert wrong["data"]["reason"] == "NOT_AUTHORISED"
    audited = person(peer, "GET", f"/audit?who=node {ME}&action=changed&limit=2")["audit"]
    by = {"from": "127.0.0.1", "key": key_pin(public_key(entry.keys[0]))}
    assert all(one["detail"].items() >= by.items() for one in audited)
    changes = [
        {
            "node": ME,
            "field": "url",
            "before": me.addresses()["peer"],
            "after": entry.url,
        }
    ]
    assert {one["action"]: one["detail"].get("changes") for one in audited} == {
        "route changed by a contract": changes,
        "application changed by a partner": None,
    }


def update(
    me: Gateway,
    number: int,
    **changes: Any,
) -> str:
    """Have a partner send a signed update; return why it is refused, empty where it is not."""
    about = {
        **credentials(me),
        "contract_id": me.stored_applications.get(number).id,
        **changes,
    }
    try:
        me.protocol.peer(PEER).ask("/v1/interconn/node/update", about)
    except GatewayError as error:
        return error.reason
    return ""


def test_a_partner_that_is_locked_out_does_not_let_itself_in_again(tmp_path: Path):
    with two_nodes(tmp_path) as (me, peer):
        mine, _ = contract(me, peer)
        spec = a_spec(
            roles={"guest": (ME,), "host": (PEER,)}
        )  # under way: its node's requests are served
        now = datetime.now(
            UTC
        )  # after a longer silence `PEER` would ask, and learn that `ME` has no such job
        peer.store.local_jobs.add(
            a_local_job(
                spec=spec,
                node=PEER,
                created_at=now,
            ),
            "flow",
        )
        person(
            peer, "PATCH", f"/routes/{ME}", {"route": {"enabled": False, "components": "bank/*"}}
        )
        before = peer.routes.table.routes[ME]
        assert update(me, mine) == "NOT_AUTHORISED" and peer.routes.table.routes[ME] == before
        person(peer, "DELETE", f"/routes/{ME}", {})
        assert update(me, mine) == "NOT_AUTHORISED" and ME not in peer.routes.table.routes
        person(me, "PATCH", f"/routes/{PEER}", {"route": {"enabled": False}})
        body = {
            "contract_id": me.stored_applications.get(mine).id,
            "status": "APPROVED",
            **peer.card.credentials(),
        }
        requested(me, "POST", "/node/contract/confirm", body, PEER)  # the answer, once more
        assert not me.routes.table.routes[PEER].enabled
        person(me, "PATCH", f"/routes/{PEER}", {"route": {"enabled": True}})
        person(peer, "PUT", f"/routes/{ME}", {"route": {"url": me.addresses()["peer"]}})
        pending = applied(me, "contract", peer)
        person(me, "DELETE", f"/routes/{PEER}", {})
        person(peer, "POST", f"/applications/{waiting(peer)}/approve", {})
        refused = person(me, "POST", f"/applications/{pending}/refresh", status=409)["msg"]
        assert "disabled here after" in refused and "已被停用" in translate(
            refused.partition(": ")[2], "zh"
        )
        assert state(me, pending) == "APPLIED" and PEER not in me.routes.table.routes


def test_a_lock_out_holds_whatever_its_reason_and_age(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    me, peer = nodes
    mine, theirs = contract(me, peer)
    pending = applied(me, "contract", peer)
    person(me, "POST", f"/applications/{mine}/terminate", {})  # which does not lock the partner out
    becomes(peer, theirs, "TERMINATED")
    person(peer, "POST", f"/applications/{waiting(peer)}/approve", {})
    becomes(me, pending, "APPROVED")
    pending = applied(me, "contract", peer)
    ended = f"contract {me.stored_applications.get(pending).id} has ended"
    person(me, "PATCH", f"/routes/{PEER}", {"route": {"enabled": False}, "reason": ended})
    person(peer, "POST", f"/applications/{waiting(peer)}/approve", {})
    person(me, "POST", f"/applications/{pending}/refresh", status=409)
    for number in range(60):
        me.routes.edit(Change(STRANGER, {"url": f"http://192.0.2.{number}"}), "admin")
    person(me, "POST", f"/applications/{pending}/refresh", status=409)

    def strict(text: str) -> RouteTable:  # as a later release may be
        if parse(text).knows(PEER):
            raise InvalidRoutes(())
        return parse(text)

    monkeypatch.setattr(contract_routes, "parse", strict)
    person(me, "POST", f"/applications/{pending}/refresh", status=409)
    assert state(me, pending) == "APPLIED" and not me.routes.table.knows(PEER)


def test_a_partner_cannot_aim_this_node_at_itself_or_its_loopback(
    nodes: Nodes,
):
    me, peer = nodes
    mine, _ = contract(me, peer)
    person(peer, "PATCH", f"/routes/{ME}", {"route": {"url": "https://192.0.2.7:7380"}})
    before = peer.routes.table.routes[ME]
    hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "localhost",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ]
    hosts += ["169.254.169.254", "[fe80::1]"]
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.7", 1))
        hosts.append(probe.getsockname()[0])
    odd = ["http://192.0.2.7/v1/platform", "http://192.0.2.7?x", "http://a@192.0.2.7"]
    for address in (
        *(
            f"http://{host}:{peer.services.sockets.by_listener['operator'][0].getsockname()[1]}"
            for host in hosts
        ),
        *odd,
    ):
        assert update(me, mine, address=address) == "INVALID", address
    assert peer.routes.table.routes[ME] == before
    assert update(me, mine, address="https://192.0.2.8:7380") == ""


def test_every_address_of_a_name_counts_without_blocking_signatures(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    at = [(socket.AF_INET, None, None, "", (ip, 1)) for ip in ("255.255.255.255", "127.0.0.1")]
    with monkeypatch.context() as patched:
        patched.setattr(
            contract_routes.socket, "getaddrinfo", lambda *_, **__: at
        )  # the first raises
        [rule] = contract_routes.broken_address_rules("http://gw.bank.example")
        assert rule.startswith("must not be a loopback address")
        patched.setattr(
            contract_routes.socket, "getaddrinfo", raising(socket.gaierror("no such name"))
        )
        [rule] = contract_routes.broken_address_rules("http://gw.bank.example")
        assert "found from here" in rule and "解析" in translate(rule, "zh")
    me, peer = nodes
    mine, _ = contract(me, peer)
    taken: list[float] = []

    def unusual(_: str) -> set[str]:
        taken.append(peer.limiters.peers.borrowed_tokens)
        return set()

    monkeypatch.setattr(contract_routes, "broken_address_rules", unusual)
    assert update(me, mine) == "" and taken == [1, 1]


def test_a_partner_does_not_take_the_key_of_another(nodes: Nodes):
    me, peer = nodes
    mine, _ = contract(me, peer)
    theirs = KeyPair(Ed25519PrivateKey.generate())
    person(
        peer,
        "PUT",
        f"/routes/{STRANGER}",
        {"route": {"url": "https://192.0.2.9", "keys": theirs.public}},
    )
    assert update(me, mine, auth_credential=theirs.public) == "KEY_OF_ANOTHER"
    said = Sender(theirs).ask(
        peer, "POST", APPLY, credentials(me) | {"auth_credential": theirs.public}, ME
    )
    assert said["code"] == 0
    refused = person(peer, "POST", f"/applications/{waiting(peer)}/approve", {}, 409)
    assert f"in the route of {STRANGER}" in refused["msg"] and "密钥" in translate(
        refused["msg"], "zh"
    )


def test_a_node_outside_a_contract_learns_nothing_of_it(nodes: Nodes):
    me, peer = nodes
    mine = applied(me, "contract", peer)
    known = me.stored_applications.get(mine).id
    answers = []
    for sender in (STRANGER, PEER):
        for contract_id in (known, "contract-nowhere"):
            for method, path, more in (
                ("POST", "confirm", {"status": "APPROVED", **peer.card.credentials()}),
                ("POST", "terminate", {}),
                ("GET", "query", {}),
            ):
                body = {"contract_id": contract_id, **more}
                said = requested(peer, method, f"/node/contract/{path}", body, sender)
                answers.append((said["data"]["reason"], sender))
    assert {(reason, sender) for reason, sender in answers} == {
        ("APPLICATION_UNKNOWN", STRANGER),
        ("OWN_NODE_ID", PEER),
    }
    unnamed = requested(peer, "GET", "/node/contract/query", {"contract_id": known}, sender="")
    assert unnamed["data"]["reason"] == "NOT_AUTHORISED"
    assert state(me, mine) == "APPLIED" and not me.routes.table.routes


def test_an_invalid_application_is_refused_with_every_problem_and_not_kept(
    nodes: Nodes, tmp_path: Path
):
    _, peer = nodes
    body = {
        **credentials(peer),
        "node_id": "no id",
        "address": "ftp://x",
        "auth_credential": "no key",
        "expired_time": 1,
    }
    del body["system"]
    said = requested(peer, "POST", "/node/contract/apply", body, "")
    assert {p["path"] for p in said["data"]["problems"]} == {
        "node_id",
        "address",
        "auth_credential",
        "expired_time",
        "system",
    }
    der = ssl.PEM_cert_to_DER_cert(Path(Authority(tmp_path).sign("x").certificate).read_text())
    for was, now in ((EC_P256, SM2), (VERSION_3, VERSION_2)):  # of a kind that cannot be used
        unusable = {
            "node_id": ME,
            "auth_credential": ssl.DER_cert_to_PEM_cert(der.replace(was, now, 1)),
        }
        said = requested(peer, "POST", "/node/contract/apply", credentials(peer) | unusable, "")
        assert [p["path"] for p in said["data"]["problems"]] == ["auth_credential"]
    for odd in ("soon", 1e300):
        said = requested(
            peer, "POST", "/node/contract/apply", credentials(peer) | {"expired_time": odd}, ""
        )
        assert "expired_time" in {p["path"] for p in said["data"]["problems"]}
    said = requested(
        peer, "POST", "/node/contract/apply", credentials(peer) | {"node_id": "-x"}, ""
    )
    assert [p["path"] for p in said["data"]["problems"]] == ["node_id"]
    said = requested(
        peer, "POST", "/node/contract/apply", credentials(peer) | {"node_id": STRANGER}, ME
    )
    assert [(p["path"], p["rule"]) for p in said["data"]["problems"]] == [
        ("node_id", f"is not the sender, {ME}")
    ]
    assert requested(peer, "GET", "/node/health", {}, "")["data"] == {"status": "ok"}
    own = requested(peer, "POST", "/node/contract/apply", credentials(peer), "")
    assert own["data"]["reason"] == "OWN_NODE_ID"
    assert person(peer, "GET", "/applications")["applications"] == []
    past = {"expires_at": "2020-01-01T00:00:00Z"}
    wrong = person(
        peer,
        "POST",
        "/applications",
        {
            "kind": "contract",
            "partner": PEER,
            "url": "x",
            **past,
        },
        400,
    )
    assert {p["path"] for p in wrong["data"]["problems"]} >= {"partner", "url", "expires_at"}
    unknown = {
        "kind": "contract",
        "partner": ME,
        "url": "http://127.0.0.1:9",
        "fields": {"address": "ftp://x"},
    }
    assert person(peer, "POST", "/applications", unknown, 400)["data"]["problems"]


def test_unknown_nodes_fill_neither_the_database_nor_the_list(tmp_path: Path):
    with two_nodes(tmp_path) as (me, peer):  # of its own, as it uses up the quota of unknown nodes
        reasons = []
        for number in range(contract_inbox.MAX_OF_ADDRESS + 1):
            body, sender = {**credentials(me), "node_id": f"JG{number}"}, f"JG{number}"
            first, second = (
                Sender(me.card.key()).ask(peer, "POST", APPLY, body, sender) for _ in range(2)
            )
            assert first["data"] == second["data"]
            reasons.append(first["data"].get("reason"))
        assert reasons == [None] * contract_inbox.MAX_OF_ADDRESS + ["TOO_MANY_APPLICATIONS"]
        body["name"] = "x" * 70_000
        assert (
            requested(peer, "POST", "/node/contract/apply", body, "")["data"]["reason"]
            == "TOO_LARGE"
        )
        asked = [
            requested(peer, "GET", "/node/query", {"node_id": PEER}, "")["data"] for _ in range(100)
        ]
    assert asked[0]["system"] == "bfia-gateway" and any(
        one.get("reason") == "PARTNER_QUOTA" for one in asked
    )


def test_a_partner_without_the_layer_says_so_and_nothing_is_kept(nodes: Nodes):
    me, peer = nodes
    body = {
        "kind": "contract",
        "partner": STRANGER,
        "url": peer.addresses()["operator"],
        "key": peer.card.key().id,
    }  # type: ignore[union-attr]
    said = person(me, "POST", "/applications", body, 409)
    assert said["data"]["reason"] == "NOT_SERVED_THERE"
    assert person(me, "GET", "/applications")["applications"] == []


def test_a_partner_that_answers_with_nothing_that_counts_is_named():
    answers = iter([{}, {"contract_id": "c" * 101}, {"status": "PERHAPS"}])
    peer: Any = SimpleNamespace(ask=lambda *_, **more: next(answers))
    card = Card(ME, "bank", lambda: "http://here", lambda: None)
    client = ManagementClient(card, lambda *_: peer, lambda _: None)
    new = domain.new_application(
        Kind.CONTRACT,
        "c1",
        PEER,
        Side.MINE,
        PEER,
        {},
        datetime.now(UTC),
        None,
        None,
        "http://there",
    )
    for call in (client.apply, client.apply, client.query):
        with pytest.raises(Refused) as refused:
            call(new)
        assert refused.value.reason == "NO_ENVELOPE" and PEER in refused.value.message
    with pytest.raises(Refused, match="identity rotate makes one"):
        card.credentials()
