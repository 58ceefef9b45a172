"""Links are opened by the node that they are for, and by nobody else."""

import contextlib
import json
import socket
import threading
from base64 import b64decode

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

import gateway.http.connection as client_connection
from gateway.domain.links.frames import MAX_DATA, Frame, Kind, decode
from gateway.domain.links.multiplex import FIRST_WINDOW
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.identity.statements import sign_statement
from gateway.links import accepting
from gateway.links.carrier import LINK_PATH, MAX_MESSAGE
from gateway.links.proof import ACCEPTANCE, GATEWAY_OPENING, OPENING
from gateway.links.unproven import MAX_UNPROVEN_PER_CLIENT
from tests.inprocess import ME, PEER, STRANGER
from tests.linking import ANSWER_SECONDS, dialling, key_of, set_routes, wait_for_links
from tests.world import NodeSetup

NODE = NodeSetup(ME)
OTHER = "JG0100003300000030"  # a partner with a link and a key of its own
DIRECT = "JG0100004400000040"  # a partner with a key that is reached at its address
HELLO = "/v1/interconn/schedule/node/hello"
POLL = "/v1/interconn/schedule/task/poll"
STREAMS_OF_A_LINK = 300  # two links with this number exceed the connections of one address


def new_pair():
    return KeyPair(KEY_GENERATORS["ed25519"]())


@pytest.fixture(scope="module")
def pairs():
    return {name: new_pair() for name in (PEER, OTHER, DIRECT, STRANGER)}


@pytest.fixture
def gateway(node, pairs):
    key_of(node)
    set_routes(
        node,
        {
            PEER: {"reached": "by-link", "keys": pairs[PEER].public},
            OTHER: {"reached": "by-link", "keys": pairs[OTHER].public},
            DIRECT: {"url": "http://127.0.0.1:9", "keys": pairs[DIRECT].public},
        },
    )
    return node


@contextlib.contextmanager
def link_of_peer(node, pairs):
    with dialling(node) as link:
        link.claim(PEER, pairs[PEER])
        wait_for_links(node, PEER, 1)
        yield link


def refusals(node):
    entries = node.get("/api/v1/audit", params={"limit": 50}).json()["audit"]
    return [entry["detail"]["reason"] for entry in entries if entry["action"] == "link"]


def test_a_node_with_its_key_opens_a_link_and_the_other_proves_itself(gateway, pairs):
    with dialling(gateway) as link:
        answer = link.claim(PEER, pairs[PEER])
        assert answer["acceptance"]["signatures"][0]["keyid"] == key_of(gateway).id
        wait_for_links(gateway, PEER, 1)
    wait_for_links(gateway, PEER, 0)


# Name -> the claimed node, the node whose key signs, changes of the statement, the refusal.
IMPOSTORS = {
    "a stranger": (
        STRANGER,
        STRANGER,
        {},
        "LINK_NOT_EXPECTED",
    ),
    "a partner with an address": (
        DIRECT,
        DIRECT,
        {},
        "LINK_NOT_EXPECTED",
    ),
    "a stranger in a partner's name": (
        PEER,
        STRANGER,
        {},
        "LINK_UNPROVEN",
    ),
    "a partner in another partner's name": (
        PEER,
        OTHER,
        {},
        "LINK_UNPROVEN",
    ),
    "a statement for another node": (
        PEER,
        PEER,
        {"to": OTHER},
        "LINK_UNPROVEN",
    ),
    "a statement of another node": (
        PEER,
        PEER,
        {"from": OTHER},
        "LINK_UNPROVEN",
    ),
    "a statement for another challenge": (
        PEER,
        PEER,
        {"challenge": "0" * 64},
        "LINK_UNPROVEN",
    ),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_nobody_opens_a_link_in_another_nodes_name(gateway, pairs, impostor):
    claimed, signing, changes, reason = IMPOSTORS[impostor]
    with dialling(gateway) as link:
        answer = link.claim(claimed, pairs[signing], changes)
        assert answer["refused"] == reason
        link.wait_for_end()
    assert gateway.links.states() == []
    assert reason in refusals(gateway)


def statement_for(link):
    """Return the statement that `PEER` signs to open a link."""
    return {
        "from": PEER,
        "to": ME,
        "challenge": link.challenge(),
        "nonce": "1" * 64,
    }


def test_a_recorded_opening_opens_no_second_link(gateway, pairs):
    with dialling(gateway) as first:
        envelope = sign_statement(pairs[PEER], OPENING, statement_for(first))
        assert "acceptance" in first.send_opening(PEER, envelope)
        with dialling(gateway) as second:
            second.challenge()
            assert second.send_opening(PEER, envelope)["refused"] == "LINK_UNPROVEN"


def test_the_acceptance_of_a_link_cannot_be_sent_back_as_an_opening(gateway, pairs):
    with dialling(gateway) as link:
        envelope = sign_statement(pairs[PEER], ACCEPTANCE, statement_for(link))
        assert link.send_opening(PEER, envelope)["refused"] == "LINK_UNPROVEN"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"node": 5}',
        b'{"node": "a b"}',
        b"[" * 60000,
    ],
    ids=[
        "empty",
        "text",
        "list",
        "nobody",
        "number",
        "no id",
        "deep",
    ],
)
def test_an_opening_in_another_form_ends_the_connection(gateway, message):
    with dialling(gateway) as link:
        link.challenge()
        link.socket.send(message)
        link.wait_for_end()
    assert gateway.links.states() == []


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        5,
        {},
        {"payload": "e30="},
        {"payload": "", "signatures": [{}]},
    ],
    ids=[
        "none",
        "number",
        "empty",
        "unsigned",
        "no key",
    ],
)
def test_an_opening_without_a_statement_is_refused(gateway, envelope):
    with dialling(gateway) as link:
        link.challenge()
        assert link.send_opening(PEER, envelope)["refused"] == "LINK_UNPROVEN"


def test_a_message_that_is_too_long_ends_the_connection(gateway):
    with dialling(gateway) as link:
        link.challenge()
        with contextlib.suppress(ConnectionClosed):
            link.socket.send(bytes(MAX_MESSAGE + 1))
        link.wait_for_end()


def test_unproven_connections_keep_no_partner_at_their_address_away(gateway, pairs):
    with contextlib.ExitStack() as idle:
        strangers = [idle.enter_context(dialling(gateway)) for _ in range(MAX_UNPROVEN_PER_CLIENT)]
        for stranger in strangers:
            stranger.challenge()
        with dialling(gateway) as link:
            answer = link.claim(PEER, pairs[PEER])
            assert "acceptance" in answer
        strangers[0].wait_for_end()


def hello_of(node):
    body = json.dumps({"node_id": node}).encode()
    lines = [
        f"POST {HELLO} HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        f"x-source-node-id: {node}",
        f"x-target-node-id: {ME}",
        f"content-length: {len(body)}",
    ]
    return "\n".join(lines), body


@pytest.mark.parametrize("claimed", [OTHER, DIRECT])
def test_a_request_over_a_link_speaks_for_the_links_node_alone(gateway, pairs, claimed):
    with link_of_peer(gateway, pairs) as link:
        assert b"LINK_MISMATCH" in link.request(*hello_of(claimed))


def test_a_request_over_a_link_needs_its_signature_too(gateway, pairs):
    with link_of_peer(gateway, pairs) as link:
        head, body = hello_of(PEER)
        assert b"SIGNATURE_REFUSED" in link.request(head.replace(HELLO, POLL), body)


def test_a_link_that_sends_more_than_was_granted_ends_alone(gateway, pairs):
    with link_of_peer(gateway, pairs) as greedy, dialling(gateway) as other:
        other.claim(OTHER, pairs[OTHER])
        greedy.send(Frame(Kind.OPEN, 1))
        with contextlib.suppress(ConnectionClosed):
            for _ in range(64 * FIRST_WINDOW // MAX_DATA):
                greedy.send(Frame(Kind.DATA, 3, bytes(MAX_DATA)))
        greedy.wait_for_end()
        assert b"HTTP/1.1" in other.request(*hello_of(OTHER))


@pytest.mark.parametrize("listener", ["operator", "container"])
def test_only_the_listener_for_peers_takes_links(gateway, listener):
    headers = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "MDEyMzQ1Njc4OTAxMjM0NQ==",
    }
    response = gateway.request(
        "GET",
        LINK_PATH,
        listener=listener,
        headers=headers,
    )
    assert response.status_code == 404


def test_a_request_without_a_websocket_opens_no_link(gateway):
    assert gateway.request("GET", LINK_PATH, listener="peer").status_code == 404
    headers = {"connection": "upgrade", "upgrade": "websocket"}
    response = gateway.request(
        "GET",
        LINK_PATH,
        listener="peer",
        headers=headers,
    )
    assert response.status_code == 400


# ------------------------------------------------------------ the end that dials


@contextlib.contextmanager
def false_node(answer):
    """Serve WebSockets in an open node's place; ``answer`` returns the answer to an opening.

    Yields the URL, and an event that is set once a dialling node has closed the connection.
    """
    is_over = threading.Event()

    def handle(connection):
        connection.send(json.dumps({"challenge": "2" * 64}).encode())
        opening = json.loads(connection.recv(ANSWER_SECONDS))
        connection.send(json.dumps(answer(opening)).encode())
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            connection.recv(ANSWER_SECONDS)
        is_over.set()

    with serve(
        handle,
        "127.0.0.1",
        0,
        compression=None,
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.socket.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}", is_over
        finally:
            server.shutdown()
            thread.join()


def accepted_by(pair, **changes):
    """Return the function that answers an opening with the acceptance that a key has signed."""

    def answer(opening):
        payload = opening["opening"]["payload"]
        content = json.loads(b64decode(payload))
        statement = {
            "from": ME,
            "to": PEER,
            "challenge": content["nonce"],
            "nonce": content["challenge"],
            **changes,
        }
        return {"acceptance": sign_statement(pair, ACCEPTANCE, statement)}

    return answer


def sent_back(opening):
    return {"acceptance": opening["opening"]}


@pytest.fixture(scope="module")
def dialled_pair():
    return new_pair()


@pytest.mark.parametrize(
    "fault",
    [
        "another key",
        "another challenge",
        "sent back",
        "nothing",
    ],
)
def test_a_node_that_dials_keeps_no_link_to_a_false_node(world, fault, dialled_pair):
    answers = {
        "another key": accepted_by(new_pair()),
        "another challenge": accepted_by(dialled_pair, challenge="0" * 64),
        "sent back": sent_back,
        "nothing": dict,
    }
    closed = world.node(NodeSetup(PEER))
    key_of(closed)
    with false_node(answers[fault]) as (url, is_over):
        set_routes(
            closed,
            {ME: {"url": url, "keys": dialled_pair.public, "dial": "out"}},
        )
        assert is_over.wait(ANSWER_SECONDS)
        assert closed.links.states() == []


def test_a_link_outlasts_the_time_for_a_requests_head(gateway, pairs, monkeypatch):
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 0.5)
    with link_of_peer(gateway, pairs) as link:
        port = int(gateway.addresses()["peer"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as idle:
            assert idle.recv(1) == b""  # the time for its head is over
        assert b"HTTP/1.1" in link.request(*hello_of(PEER))


def test_the_refusal_of_too_many_links_comes_before_the_acceptance(gateway, pairs, monkeypatch):
    monkeypatch.setattr(accepting, "MAX_LINKS_PER_NODE", 1)
    with link_of_peer(gateway, pairs), dialling(gateway) as second:
        answer = second.claim(PEER, pairs[PEER])
        assert answer["refused"] == "BUSY"


# ------------------------------------------------------------ gateways of one node


def test_another_gateway_of_the_node_uses_the_links_of_a_partner(gateway, pairs):
    with link_of_peer(gateway, pairs) as link, dialling(gateway) as other:
        answer = other.claim_as_gateway(
            key_of(gateway),
            gateway=gateway.services.foundation.owner,
            partner=PEER,
        )
        assert answer["acceptance"]["signatures"][0]["keyid"] == key_of(gateway).id
        other.send(Frame(Kind.OPEN, 1))
        other.send(Frame(Kind.DATA, 1, b"a request"))
        frames = [decode(link.socket.recv(ANSWER_SECONDS)) for _ in range(2)]
        assert [frame.kind for frame in frames] == [Kind.OPEN, Kind.DATA]
        assert frames[1].data == b"a request"
        link.socket.close()
        other.wait_for_end()


# Name -> the node whose key signs, the partner, the statement's type, changes of what is signed,
# the refusal.
FALSE_GATEWAYS = {
    "a stranger": (
        STRANGER,
        PEER,
        GATEWAY_OPENING,
        {},
        "LINK_UNPROVEN",
    ),
    "the partner itself": (
        PEER,
        PEER,
        GATEWAY_OPENING,
        {},
        "LINK_UNPROVEN",
    ),
    "an opening for a partner": (
        ME,
        PEER,
        OPENING,
        {},
        "LINK_UNPROVEN",
    ),
    "a statement for another partner": (
        ME,
        PEER,
        GATEWAY_OPENING,
        {"partner": OTHER},
        "LINK_UNPROVEN",
    ),
    "a statement for another gateway": (
        ME,
        PEER,
        GATEWAY_OPENING,
        {"gateway": "another"},
        "LINK_UNPROVEN",
    ),
    "a partner without a link": (
        ME,
        OTHER,
        GATEWAY_OPENING,
        {},
        "LINK_NOT_EXPECTED",
    ),
    "a partner with an address": (
        ME,
        DIRECT,
        GATEWAY_OPENING,
        {},
        "LINK_NOT_EXPECTED",
    ),
}


@pytest.mark.parametrize("impostor", FALSE_GATEWAYS)
def test_nobody_uses_the_links_of_a_partner_as_a_false_gateway(gateway, pairs, impostor):
    signing, partner, kind, signed, reason = FALSE_GATEWAYS[impostor]
    pair = pairs.get(signing) or key_of(gateway)
    with link_of_peer(gateway, pairs), dialling(gateway) as other:
        answer = other.claim_as_gateway(
            pair,
            kind,
            signed,
            gateway=gateway.services.foundation.owner,
            partner=partner,
        )
        assert answer["refused"] == reason
        other.wait_for_end()


def test_a_gateway_refuses_a_link_that_is_for_another_one(gateway, pairs):
    with link_of_peer(gateway, pairs), dialling(gateway) as other:
        answer = other.claim_as_gateway(
            key_of(gateway),
            gateway="another",
            partner=PEER,
        )
        assert answer["refused"] == "LINK_NOT_EXPECTED"


# ------------------------------------------------------------ changes of routes


@pytest.mark.parametrize("change", ["disabled", "called at an address", "another key"])
def test_an_accepted_link_ends_when_its_route_expects_it_no_more(gateway, pairs, change):
    key = pairs[PEER].public
    changed_routes = {
        "disabled": {"reached": "by-link", "keys": key, "enabled": False},
        "called at an address": {"url": "http://127.0.0.1:9", "keys": key},
        "another key": {"reached": "by-link", "keys": pairs[OTHER].public},
    }
    with link_of_peer(gateway, pairs) as link:
        set_routes(gateway, {PEER: changed_routes[change]})
        wait_for_links(gateway, PEER, 0)
        link.wait_for_end()


def test_a_node_has_no_more_streams_than_connections(gateway, pairs, monkeypatch):
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 3600.0)
    with dialling(gateway) as first, dialling(gateway) as second:
        for link in (first, second):
            link.claim(PEER, pairs[PEER])
            for number in range(STREAMS_OF_A_LINK):
                link.send(Frame(Kind.OPEN, 2 * number + 1))
        refused = decode(second.socket.recv(ANSWER_SECONDS))
        assert refused.kind in (Kind.END, Kind.RESET)
        with dialling(gateway) as other:
            other.claim(OTHER, pairs[OTHER])
            assert b"HTTP/1.1" in other.request(*hello_of(OTHER))
