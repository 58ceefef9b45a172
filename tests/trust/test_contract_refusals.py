"""Refused applications for contracts: invalid ones, too many, and ones of other nodes."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pydantic import TypeAdapter

from adapter.bfia.management import wire
from adapter.bfia.management.client import Card, ManagementClient, confirmation
from gateway.domain.applications import APPROVED, Kind, Side, new_application
from gateway.errors import Refused
from gateway.jobs import contract_inbox
from tests.certificates import Authority
from tests.inprocess import ME, PEER, STRANGER
from tests.routes.test_certificates import EC_P256, SM2, VERSION_2, VERSION_3
from tests.trust.agreeing import (
    apply_for,
    call_api,
    credentials,
    forget_all,
    send_unsigned,
    status_of,
    two_nodes,
)
from tests.trust.contract_sender import APPLY, Sender


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def nodes(pair):
    """Give two nodes without routes and applications."""
    yield pair
    forget_all(*pair)


@pytest.mark.parametrize(
    ("sender", "reason"),
    [
        (STRANGER, "APPLICATION_UNKNOWN"),
        (PEER, "OWN_NODE_ID"),
    ],
)
def test_a_node_outside_a_contract_learns_nothing_about_it(nodes, sender, reason):
    me, peer = nodes
    mine = apply_for(me, "contract", peer)
    approval = {"status": "APPROVED", **peer.card.credentials()}

    for contract_id in (me.stored_applications.get(mine).id, "contract-nowhere"):
        for method, verb, fields in (
            ("POST", "confirm", approval),
            ("POST", "terminate", {}),
            ("GET", "query", {}),
        ):
            body = {"contract_id": contract_id, **fields}
            response = send_unsigned(peer, method, f"/node/contract/{verb}", body, sender)
            assert response["data"]["reason"] == reason

    assert status_of(me, mine) == "APPLIED"
    assert not me.routes.table.routes


def test_a_sender_without_a_name_cannot_query_a_contract(nodes):
    me, peer = nodes
    mine = apply_for(me, "contract", peer)
    query = {"contract_id": me.stored_applications.get(mine).id}

    response = send_unsigned(
        peer,
        "GET",
        "/node/contract/query",
        query,
        sender="",
    )

    assert response["data"]["reason"] == "NOT_AUTHORISED"


def test_an_invalid_application_is_refused_with_every_problem(nodes):
    _, peer = nodes
    body = credentials(peer) | {
        "node_id": "no id",
        "address": "ftp://x",
        "auth_credential": "no key",
        "expired_time": 1,
    }
    del body["system"]

    problems = problems_of_application(peer, body)

    assert {problem["path"] for problem in problems} == {
        "node_id",
        "address",
        "auth_credential",
        "expired_time",
        "system",
    }


def problems_of_application(peer, body, sender=""):
    """Send an invalid application, check that it is not stored; return its problems."""
    response = send_unsigned(peer, "POST", "/node/contract/apply", body, sender)
    assert call_api(peer, "GET", "/applications")["applications"] == []
    return response["data"]["problems"]


@pytest.mark.parametrize(
    ("usable", "unusable"),
    [
        (EC_P256, SM2),
        (VERSION_3, VERSION_2),
    ],
    ids=["another curve", "an old version"],
)
def test_an_unusable_certificate_is_refused(nodes, tmp_path, usable, unusable):
    _, peer = nodes
    pem = Path(Authority(tmp_path).sign("x").certificate).read_text()
    certificate = ssl.PEM_cert_to_DER_cert(pem).replace(usable, unusable, 1)
    body = credentials(peer) | {
        "node_id": ME,
        "auth_credential": ssl.DER_cert_to_PEM_cert(certificate),
    }

    problems = problems_of_application(peer, body)

    assert [problem["path"] for problem in problems] == ["auth_credential"]


@pytest.mark.parametrize("expired_time", ["soon", 1e300])
def test_a_time_that_is_no_time_is_refused(nodes, expired_time):
    _, peer = nodes
    problems = problems_of_application(
        peer,
        credentials(peer) | {"expired_time": expired_time},
    )
    assert "expired_time" in {problem["path"] for problem in problems}


def test_an_id_that_looks_like_an_option_is_refused(nodes):
    _, peer = nodes
    problems = problems_of_application(
        peer,
        credentials(peer) | {"node_id": "-x"},
    )
    assert [problem["path"] for problem in problems] == ["node_id"]


def test_an_application_for_another_node_than_the_sender_is_refused(nodes):
    _, peer = nodes
    [problem] = problems_of_application(
        peer,
        credentials(peer) | {"node_id": STRANGER},
        ME,
    )
    assert problem["path"] == "node_id"
    assert problem["rule"] == f"is not the sender, {ME}"


def test_an_application_in_the_receivers_own_name_is_refused(nodes):
    _, peer = nodes
    response = send_unsigned(
        peer,
        "POST",
        "/node/contract/apply",
        credentials(peer),
        "",
    )
    assert response["data"]["reason"] == "OWN_NODE_ID"
    assert call_api(peer, "GET", "/applications")["applications"] == []


def test_the_health_of_a_node_is_shown_to_everybody(nodes):
    _, peer = nodes
    response = send_unsigned(peer, "GET", "/node/health", {}, "")
    assert response["data"] == {"status": "ok"}


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (
            {
                "partner": PEER,
                "url": "x",
                "expires_at": "2020-01-01T00:00:00Z",
            },
            {"partner", "url", "expires_at"},
        ),
        (
            {
                "partner": ME,
                "url": "http://127.0.0.1:9",
                "fields": {"address": "ftp://x"},
            },
            set(),
        ),
        (
            {
                "partner": ME,
                "url": "http://192.0.2.7:65536",
                "address": "http://[::1",
            },
            {"url", "address"},
        ),
    ],
    ids=["every problem", "an address of another scheme", "addresses that lead nowhere"],
)
def test_an_invalid_application_of_this_node_is_refused(nodes, fields, paths):
    _, peer = nodes
    body = {"kind": "contract", **fields}

    refusal = call_api(peer, "POST", "/applications", body, 400)

    problems = refusal["data"]["problems"]
    assert problems
    assert {problem["path"] for problem in problems} >= paths


# ---------------------------------------------------------------- limits and unusable partners


SENDERS = 12  # threads


def test_an_application_sent_many_times_at_once_is_stored_once(tmp_path):
    with two_nodes(tmp_path) as (me, peer):
        sender = Sender(me.card.key())
        body = {**credentials(me), "node_id": "JG1"}
        gate = threading.Barrier(SENDERS)

        def apply(_):
            gate.wait(60)
            response = sender.ask(
                peer,
                "POST",
                APPLY,
                body,
                "JG1",
            )
            return response["data"]

        with ThreadPoolExecutor(SENDERS) as pool:
            first, *others = pool.map(apply, range(SENDERS))

    assert others == [first] * (SENDERS - 1)


def test_unknown_nodes_cannot_fill_the_database(tmp_path):
    # Nodes of this test alone: it uses up the quota of unknown nodes.
    with two_nodes(tmp_path) as (me, peer):
        sender = Sender(me.card.key())
        reasons = []
        for number in range(contract_inbox.MAX_OF_ADDRESS + 1):
            name = f"JG{number}"
            body = {**credentials(me), "node_id": name}
            first = sender.ask(
                peer,
                "POST",
                APPLY,
                body,
                name,
            )
            second = sender.ask(
                peer,
                "POST",
                APPLY,
                body,
                name,
            )
            assert first["data"] == second["data"]
            reasons.append(first["data"].get("reason"))
        assert reasons == [None] * contract_inbox.MAX_OF_ADDRESS + ["TOO_MANY_APPLICATIONS"]

        body["name"] = "x" * 70_000
        too_large = send_unsigned(peer, "POST", "/node/contract/apply", body, "")
        assert too_large["data"]["reason"] == "TOO_LARGE"

        query = {"node_id": PEER}
        responses = [send_unsigned(peer, "GET", "/node/query", query, "") for _ in range(100)]
        assert responses[0]["data"]["system"] == "bfia-gateway"
        assert "PARTNER_QUOTA" in {response["data"].get("reason") for response in responses}


def test_a_partner_that_serves_no_contracts_is_named_and_nothing_is_stored(nodes):
    me, peer = nodes
    body = {
        "kind": "contract",
        "partner": STRANGER,
        "url": peer.addresses()["operator"],  # a listener without the paths of contracts
        "key": peer.card.key().id,
    }

    refusal = call_api(me, "POST", "/applications", body, 409)

    assert refusal["data"]["reason"] == "NOT_SERVED_THERE"
    assert call_api(me, "GET", "/applications")["applications"] == []


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("apply", {}),
        ("apply", {"contract_id": "c" * 101}),
        ("query", {"status": "PERHAPS"}),
    ],
    ids=["no id", "a long id", "an unknown status"],
)
def test_a_partner_with_an_unusable_response_is_named(method, response):
    peer = SimpleNamespace(ask=Mock(return_value=response))
    client = ManagementClient(
        a_card(),
        Mock(return_value=peer),
        Mock(),
    )

    with pytest.raises(Refused) as refusal:
        getattr(client, method)(an_application())

    assert refusal.value.reason == "NO_ENVELOPE"
    assert PEER in refusal.value.message


def test_a_node_without_a_key_names_the_command_that_makes_one():
    with pytest.raises(Refused, match="identity rotate makes one"):
        a_card().credentials()


def test_a_permit_names_the_institutions_of_both_sides():
    application = new_application(
        Kind.DATASET,
        "a1",
        PEER,
        Side.THEIRS,
        "ns#table",
        {},
        datetime.now(UTC),
        None,
        None,
    )

    fields = confirmation(a_card(), replace(application, status=APPROVED))

    permit = fields["resource_permit"]
    assert permit["request_node_id"] == PEER
    assert permit["request_inst_id"] == "other bank"
    assert permit["resource_inst_id"] == "bank"


@pytest.mark.parametrize(
    "number",
    [253_402_300_799, 253_402_300_799_000, 2**63 - 1],
    ids=["9999 in seconds", "9999 in milliseconds", "the largest number"],
)
def test_a_time_for_never_is_read_as_the_last_time(number):
    assert TypeAdapter(wire.Moment).validate_python(number) == datetime(9998, 1, 1, tzinfo=UTC)


def a_card():
    """Build the card of a node without a key."""
    get_address = Mock(return_value="http://here")
    get_key = Mock(return_value=None)
    return Card(
        ME,
        "bank",
        get_address,
        get_key,
        institution_of=Mock(return_value="other bank"),
    )


def an_application():
    """Build an application of this node for a contract with `PEER`."""
    return new_application(
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
