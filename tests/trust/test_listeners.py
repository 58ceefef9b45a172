"""Attacks at the listeners: the node's own id, requests within requests, pages in browsers."""

import re
import socket
import subprocess
import sys

import pytest

from adapter.bfia import examples
from tests.inprocess import ME, PEER, STRANGER
from tests.trust.peer_requests import CONTROL
from tests.world import UNREACHABLE, NodeSetup

# Several gateways of one node have a route to its own id: it must not make the id trusted.
NODE = NodeSetup(routes={PEER: UNREACHABLE, ME: UNREACHABLE})
CHANNEL = "/v1/interconn/chan"

# ---------------------------------------------------------------- the node's own id as the sender

SPELLINGS = [
    {"x-source-node-id": ME},
    {"x_source_node_id": ME},
    {"x-node-id": ME},
    {"X-Source-Node-ID": ME},
    {"x-source-node-id": PEER, "x-node-id": ME},
    {"x-source-node-id": PEER, "x-ptp-source-node-id": ME},
]
COMMANDS = [
    f"{CONTROL}/job/create_all",
    f"{CONTROL}/job/stop",
    "/v1/interconn/job/audit/apply",
]


@pytest.mark.parametrize("headers", SPELLINGS, ids=str)
@pytest.mark.parametrize("path", COMMANDS)
def test_no_command_is_accepted_from_a_peer_with_this_nodes_id(node, headers, path):
    """In every spelling; test_init_and_strictest.py tries every path."""
    body = {**examples.A_JOB, "job_id": examples.JOB}

    response = node.post(path, body, listener="peer", headers=headers).json()

    assert response["code"] == 403
    assert response["data"]["reason"] == "OWN_NODE_ID"
    assert node.get("/api/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("path", [f"{CHANNEL}/invoke", f"{CHANNEL}/part"])
@pytest.mark.parametrize(
    "handed_on",
    [
        {},
        {"x-handed-on": "1"},
    ],
    ids=["direct", "handed on"],
)
@pytest.mark.parametrize(
    "spelling",
    ["x-ptp-source-node-id", "x-ptp-from-node-id", "x_ptp_source_node_id", "x-source-node-id"],
)
def test_a_message_in_this_nodes_name_is_refused(node, path, handed_on, spelling):
    headers = {
        "x-ptp-version": "1",
        "x-ptp-session-id": "session_job-1",
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
        spelling: ME,
        **handed_on,
    }

    response = node.post(path, {}, listener="peer", headers=headers).json()

    assert response["code"] == "E0000000403"
    assert "own id" in response["message"]


def test_an_envelope_in_this_nodes_name_is_refused(node):
    envelope = {
        "metadata": {
            "x-ptp-session-id": "session_job-1",
            "x-ptp-source-node-id": ME,
        },
        "payload": "",
    }

    response = node.post(f"{CHANNEL}/invoke", envelope, listener="peer").json()

    assert response["code"] == "E0000000403"
    assert "own id" in response["message"]


@pytest.mark.parametrize(
    "headers", [{}, {"x-source-node-id": STRANGER}], ids=["no name", "a stranger"]
)
@pytest.mark.parametrize("path", ["job/create", "task/callback"])
def test_the_body_of_an_unknown_sender_is_not_read(node, headers, path):
    url = f"{CONTROL}/{path}"

    response = node.request(
        "POST",
        url,
        listener="peer",
        headers=headers,
        content=b"{not json",
    )

    assert response.json()["code"] == 403
    assert response.json()["data"]["reason"] == "NOT_AUTHORISED"  # and not INVALID


# ---------------------------------------------------------------- requests with an ambiguous end

HELLO = b"POST /v1/interconn/schedule/node/hello HTTP/1.1\r\nhost: localhost\r\n"
# A second request, which a reader may find in the body of the first one.
HIDDEN = HELLO + b"content-length: 2\r\nconnection: close\r\n\r\n{}"
CHUNKED = b"transfer-encoding: chunked"
EMPTY = b"0\r\n\r\n"  # a chunked body
# Headers and body of a request, by the ambiguity.
AMBIGUOUS = {
    "length, then chunks": (b"content-length: 4\r\n" + CHUNKED, EMPTY),
    "chunks, then a length": (CHUNKED + b"\r\ncontent-length: 4", EMPTY),
    "two lengths": (b"content-length: 0\r\ncontent-length: 5", b""),
    "a length with a sign": (b"content-length: +2", b"{}"),
    "a length in hexadecimal": (b"content-length: 0x2", b"{}"),
    "another coding": (b"transfer-encoding: xchunked", EMPTY),
    "a coding after the chunks": (b"transfer-encoding: chunked, identity", EMPTY),
    "a blank before the colon": (b"transfer-encoding : chunked", EMPTY),
    "a folded header": (b"x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: 2", b"{}"),
    "line feeds alone": (b"x-a: b\ntransfer-encoding: chunked", EMPTY),
    "line feeds in chunks": (CHUNKED, b"2\n{}\n0\n\n"),
    "a negative chunk": (CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk without end": (CHUNKED, b"FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n"),
    "a tab before the colon": (b"transfer-encoding\t: chunked", EMPTY),
    "a control character before the coding": (b"transfer-encoding: \x0bchunked", EMPTY),
    "a control character in the name": (b"transfer-encoding\0: chunked", EMPTY),
    "a carriage return alone": (b"x-a: b\rtransfer-encoding: chunked", EMPTY),
    "a coding in quotes": (b'transfer-encoding: "chunked"', EMPTY),
    "two codings in two headers": (CHUNKED + b"\r\ntransfer-encoding: identity", EMPTY),
    "no name before the colon": (b": chunked", EMPTY),
    "no colon": (b"transfer-encoding chunked", EMPTY),
    "lengths in a list": (b"content-length: 2, 5", b"{}"),
    "no length": (b"content-length: ", b"{}"),
    "a length beyond all numbers": (b"content-length: 18446744073709551618", b"{}"),
    "a length with a blank in it": (b"content-length: 2 2", b"{}"),
    "a chunk in hexadecimal notation": (CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a blank after a chunk's size": (CHUNKED, b"2 \r\n{}\r\n0\r\n\r\n"),
    "a line feed in a chunk's extension": (CHUNKED, b"2;a\n{}\r\n0\r\n\r\n"),
    "two carriage returns after a chunk's size": (CHUNKED, b"2\r\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than its size": (CHUNKED, b"2\r\n{}XX0\r\n\r\n"),
    "a chunk without a line's end": (CHUNKED, b"2\r\n{}0\r\n\r\n"),
}
LISTENERS = ["peer", "container", "operator"]


def connect(node, listener):
    """Open a connection to a listener."""
    port = int(node.addresses()[listener].rpartition(":")[2])
    return socket.create_connection(
        ("127.0.0.1", port),
        timeout=300,
    )


def send_bytes(node, listener, request):
    """Send bytes; return everything that a listener sends until it closes the connection."""
    with connect(node, listener) as connection, connection.makefile("rb") as received:
        connection.sendall(request)
        return received.read()


def statuses(received):
    """Return the status line of every response on a connection."""
    return re.findall(rb"HTTP/1\.1 \d\d\d [^\r]*", received)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    ("headers", "body"),
    AMBIGUOUS.values(),
    ids=AMBIGUOUS,
)
def test_a_request_with_an_ambiguous_end_is_refused(node, listener, headers, body):
    received = send_bytes(
        node,
        listener,
        HELLO + headers + b"\r\n\r\n" + body + HIDDEN,
    )

    responses = statuses(received)
    assert len(responses) <= 1
    if responses:
        assert received.startswith(b"HTTP/1.1 400 ")


# ---------------------------------------------------------------- upgrades, tunnels and trailers

H2C_UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
WEBSOCKET_UPGRADE = (
    b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
)
WAITING_UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\nexpect: 100-continue\r\n"
UPGRADES = {
    "of Java's client": H2C_UPGRADE,
    "to websockets": WEBSOCKET_UPGRADE,
    "to anything": b"upgrade: what/1.0, ever\r\nconnection: upgrade\r\n",
    "before it sends": WAITING_UPGRADE,
}
JSON = b"content-type: application/json\r\n"
END_OF_HEAD = b"\r\n\r\n"
WITH_LENGTH = b"content-length: %d" % len(HIDDEN) + END_OF_HEAD
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
# End of the head and body of a request whose body looks like a request.
FRAMES = {
    "a length": (WITH_LENGTH, HIDDEN),
    "chunks": (CHUNKED + END_OF_HEAD, CHUNKS),
}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "upgrade",
    UPGRADES.values(),
    ids=UPGRADES,
)
@pytest.mark.parametrize(
    ("end_of_head", "body"),
    FRAMES.values(),
    ids=FRAMES,
)
def test_a_request_for_an_upgrade_keeps_its_body(node, listener, upgrade, end_of_head, body):
    rest = end_of_head + body + HIDDEN
    plain = send_bytes(node, listener, HELLO + JSON + rest)
    upgraded = send_bytes(
        node,
        listener,
        HELLO + JSON + upgrade + rest,
    )

    upgraded = upgraded.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert len(statuses(plain)) == 2
    assert statuses(upgraded) == statuses(plain)


def test_a_body_that_follows_its_head_later_is_no_request(node):
    """Attack: the head asks for an upgrade, and the listener waits for the body."""
    head = HELLO + WAITING_UPGRADE + b"connection: close\r\n" + WITH_LENGTH
    with connect(node, "peer") as connection, connection.makefile("rb") as received:
        connection.sendall(head)
        assert received.readline() == b"HTTP/1.1 100 Continue\r\n"
        connection.sendall(HIDDEN)
        assert len(statuses(received.read())) == 1


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("target", [b"127.0.0.1:22", b"/"])
def test_a_tunnel_is_refused(node, listener, target):
    request = b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n"

    received = send_bytes(node, listener, request + HIDDEN)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert len(statuses(received)) == 1


def test_a_trailer_names_no_sender(node):
    head = HELLO + b"connection: close\r\n"
    name = b"x-source-node-id: " + PEER.encode() + b"\r\n"
    body = CHUNKED + b"\r\n\r\n2\r\n{}\r\n0\r\n"
    by_header = send_bytes(
        node,
        "peer",
        head + name + body + b"\r\n",
    )
    by_trailer = send_bytes(
        node,
        "peer",
        head + body + name + b"\r\n",
    )

    assert b'"knows_you":true' in by_header
    assert b'"knows_you":false' in by_trailer


# ---------------------------------------------------------------- pages in browsers

# Headers of a request that a page sends from the browser of a person on this machine.
PAGES = {
    "another site": {"origin": "https://evil.example"},
    "a name that resolves to this machine": {
        "host": "evil.example:7380",
        "origin": "http://evil.example:7380",
    },
    "a page that hides its origin": {"origin": "null"},
    "an image, which names no origin": {"sec-fetch-site": "cross-site"},
}


@pytest.mark.parametrize(
    "headers",
    PAGES.values(),
    ids=PAGES,
)
@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("peer", f"{CONTROL}/job/start"),
        ("container", f"{CHANNEL}/pop"),
    ],
    ids=["peer", "container"],
)
def test_a_page_reaches_neither_peers_nor_containers_listener(node, listener, path, headers):
    for method, url in (("POST", path), ("GET", "/openapi.json"), ("OPTIONS", path)):
        response = node.request(
            method,
            url,
            listener=listener,
            headers=headers,
        )
        assert response.status_code == 403, method
        assert response.json()["data"]["reason"] == "FOREIGN_ORIGIN"
        for name in response.headers:
            assert not name.startswith("access-control")
    assert node.get("/openapi.json", listener=listener).status_code == 200


def test_a_page_does_not_reach_one_port_for_peers_and_containers(world):
    listen = {
        "peer": {"bind": "127.0.0.1:0"},
        "container": None,
        "operator": {"bind": "127.0.0.1:0"},
    }
    node = world.node(settings={"listen": listen})
    response = node.get(
        "/openapi.json",
        listener="peer",
        headers=PAGES["another site"],
    )
    assert response.status_code == 403


# ---------------------------------------------------------------- the log of refusals

LOG_IN_BOTH_FORMATS = """
import structlog
from gateway.cli.serve import configure_logs
for form in ("text", "json"):
    configure_logs(form)
    action = "POST /x\\n2026-11-23 [info] approved\\x1b[31m"
    structlog.get_logger("gateway").warning("refused", action=action)
"""


def test_logged_requests_neither_end_a_line_nor_control_a_terminal():
    done = subprocess.run(
        [sys.executable, "-c", LOG_IN_BOTH_FORMATS],
        capture_output=True,
        text=True,
        check=True,
    )

    as_text, as_json = done.stderr.splitlines()
    assert not as_text.startswith("{")
    assert as_json.startswith("{")
    assert done.stderr.count("approved") == 2
    assert "\x1b" not in done.stderr
