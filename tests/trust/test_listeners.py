"""Attacks at the listeners: this node's own id, requests within requests, pages in the browsers of its people."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.bfia import examples
from gateway.bootstrap.node import Gateway
from tests.inprocess import ME, PEER, ask, running
from tests.world import UNREACHABLE, NodeSetup

SCHEDULE = "/v1/interconn/schedule"


# Several gateways of one node have an entry of their own id: it must not make the id trusted.
NODE = NodeSetup(routes={PEER: UNREACHABLE, ME: UNREACHABLE})

# ---------------------------------------------------------------- the own id, to pass for this node's platform

SPELLINGS = [
    {"x-source-node-id": ME},
    {"x_source_node_id": ME},
    {"x-node-id": ME},
    {"X-Source-Node-ID": ME},
    {"x-source-node-id": PEER, "x-node-id": ME},
    {"x-source-node-id": PEER, "x-ptp-source-node-id": ME},
]


def test_no_command_is_taken_from_a_peer_that_claims_the_own_id(node: Gateway):
    """In every spelling; `test_init_and_strictest` tries every path."""
    body = {**examples.A_JOB, "job_id": examples.JOB}
    for headers in SPELLINGS:
        for path in (
            f"{SCHEDULE}/job/create_all",
            f"{SCHEDULE}/job/stop",
            "/v1/interconn/job/audit/apply",
        ):
            response = ask(node, "peer", "POST", path, headers=headers, json=body).json()
            assert (response["code"], response["data"]["reason"]) == (403, "OWN_NODE_ID"), headers
    assert ask(node, "operator", "GET", "/api/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("path", ["invoke", "part"])
@pytest.mark.parametrize("more", [{}, {"x-handed-on": "1"}], ids=["direct", "handed on"])
def test_a_message_that_claims_the_own_id_is_not_taken(
    node: Gateway,
    more: dict[str, str],
    path: str,
):
    about = {
        "x-ptp-version": "1",
        "x-ptp-session-id": "session_job-1",
        "x-ptp-topic": "t",
    }
    about |= {"x-ptp-target-node-id": ME, "content-type": "application/json"} | more
    for name in (
        "x-ptp-source-node-id",
        "x-ptp-from-node-id",
        "x_ptp_source_node_id",
        "x-source-node-id",
    ):
        headers = about | {name: ME}
        response = ask(
            node, "peer", "POST", f"/v1/interconn/chan/{path}", headers=headers, json={}
        ).json()
        assert response["code"] == "E0000000403" and "own id" in response["message"], name
    body = {
        "metadata": {"x-ptp-session-id": "session_job-1", "x-ptp-source-node-id": ME},
        "payload": "",
    }
    response = ask(node, "peer", "POST", "/v1/interconn/chan/invoke", json=body).json()
    assert response["code"] == "E0000000403" and "own id" in response["message"]


def test_the_body_of_an_unknown_sender_is_not_read(node: Gateway):
    for headers in ({}, {"x-source-node-id": "JG0000000000000404"}):
        for path in ("job/create", "task/callback"):
            response = ask(
                node, "peer", "POST", f"{SCHEDULE}/{path}", headers=headers, content=b"{not json"
            ).json()
            assert (response["code"], response["data"]["reason"]) == (
                403,
                "NOT_AUTHORISED",
            )  # and not INVALID


# ---------------------------------------------------------------- whose end two readers see in different places

HELLO = b"POST /v1/interconn/schedule/node/hello HTTP/1.1\r\nhost: localhost\r\n"
HIDDEN = HELLO + b"content-length: 2\r\nconnection: close\r\n\r\n{}"
EMPTY = b"0\r\n\r\n"
AMBIGUOUS = {
    "length, then chunks": (b"content-length: 4\r\ntransfer-encoding: chunked", EMPTY),
    "chunks, then a length": (b"transfer-encoding: chunked\r\ncontent-length: 4", EMPTY),
    "two lengths": (b"content-length: 0\r\ncontent-length: 5", b""),
    "a length with a sign": (b"content-length: +2", b"{}"),
    "a length in hexadecimal": (b"content-length: 0x2", b"{}"),
    "another coding": (b"transfer-encoding: xchunked", EMPTY),
    "a coding after the chunks": (b"transfer-encoding: chunked, identity", EMPTY),
    "a blank before the colon": (b"transfer-encoding : chunked", EMPTY),
    "a folded header": (b"x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: 2", b"{}"),
    "line feeds alone": (b"x-a: b\ntransfer-encoding: chunked", EMPTY),
    "line feeds in chunks": (b"transfer-encoding: chunked", b"2\n{}\n0\n\n"),
    "a negative chunk": (b"transfer-encoding: chunked", b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk without end": (b"transfer-encoding: chunked", b"FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n"),
    "a tab before the colon": (b"transfer-encoding\t: chunked", EMPTY),
    "a control character before the coding": (b"transfer-encoding: \x0bchunked", EMPTY),
    "a control character in the name": (b"transfer-encoding\0: chunked", EMPTY),
    "a carriage return alone": (b"x-a: b\rtransfer-encoding: chunked", EMPTY),
    "a coding in quotes": (b'transfer-encoding: "chunked"', EMPTY),
    "two codings in two headers": (
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        EMPTY,
    ),
    "no name before the colon": (b": chunked", EMPTY),
    "no colon": (b"transfer-encoding chunked", EMPTY),
    "lengths in a list": (b"content-length: 2, 5", b"{}"),
    "no length": (b"content-length: ", b"{}"),
    "a length beyond all numbers": (b"content-length: 18446744073709551618", b"{}"),
    "a length with a blank in it": (b"content-length: 2 2", b"{}"),
    "a chunk in hexadecimal notation": (b"transfer-encoding: chunked", b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a blank after a chunk's size": (b"transfer-encoding: chunked", b"2 \r\n{}\r\n0\r\n\r\n"),
    "a line feed in a chunk's extension": (b"transfer-encoding: chunked", b"2;a\n{}\r\n0\r\n\r\n"),
    "two carriage returns after a chunk's size": (
        b"transfer-encoding: chunked",
        b"2\r\r\n{}\r\n0\r\n\r\n",
    ),
    "a chunk longer than its size": (b"transfer-encoding: chunked", b"2\r\n{}XX0\r\n\r\n"),
    "a chunk without a line's end": (b"transfer-encoding: chunked", b"2\r\n{}0\r\n\r\n"),
}


def answers(
    node: Gateway,
    listener: str,
    request: bytes,
) -> bytes:
    """Return all that a listener answers before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port_of(node, listener)), timeout=30) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as response:
            return response.read()


def port_of(node: Gateway, listener: str) -> int:
    """Return a listener's port."""
    return int(node.addresses()[listener].rpartition(":")[2])


def statuses(received: bytes) -> list[bytes]:
    """Return the status line of every response of a connection."""
    return re.findall(rb"HTTP/1\.1 \d\d\d [^\r]*", received)


@pytest.mark.parametrize("listener", ["peer", "container", "operator"])
def test_what_two_readers_may_end_in_different_places_is_refused(node: Gateway, listener: str):
    for what, (headers, body) in AMBIGUOUS.items():
        match = answers(node, listener, HELLO + headers + b"\r\n\r\n" + body + HIDDEN)
        assert match.startswith(b"HTTP/1.1 400 ") or match.count(b"HTTP/1.1 ") == 0, (what, match)
        assert match.count(b"HTTP/1.1 ") <= 1, (what, match)


UPGRADES = {
    "of Java's client": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n",
    "to websockets": b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "to anything": b"upgrade: what/1.0, ever\r\nconnection: upgrade\r\n",
    "while it waits to send": b"connection: upgrade\r\nupgrade: h2c\r\nexpect: 100-continue\r\n",
}
JSON_KIND = b"content-type: application/json\r\n"
FRAMES = {
    "a length": (b"content-length: %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    "chunks": (
        b"transfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
    ),
}


@pytest.mark.parametrize("listener", ["peer", "container", "operator"])
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("frame", FRAMES)
def test_a_request_that_asks_for_an_upgrade_keeps_its_body(
    node: Gateway,
    listener: str,
    upgrade: str,
    frame: str,
):
    end_of_head, body = FRAMES[frame]
    plain = HELLO + JSON_KIND + end_of_head + body
    expected = answers(node, listener, plain + HIDDEN)
    received = answers(
        node, listener, HELLO + JSON_KIND + UPGRADES[upgrade] + end_of_head + body + HIDDEN
    )
    assert statuses(received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")) == statuses(expected)
    assert len(statuses(expected)) == 2


def test_a_body_that_comes_after_its_head_is_no_request(node: Gateway):
    """The head asks for an upgrade; the body comes once the listener has response that it may."""
    end_of_head, body = FRAMES["a length"]
    head = HELLO + UPGRADES["while it waits to send"] + b"connection: close\r\n" + end_of_head
    address = ("127.0.0.1", port_of(node, "peer"))
    with (
        socket.create_connection(address, timeout=30) as connection,
        connection.makefile("rb") as received,
    ):
        connection.sendall(head)
        assert received.readline() == b"HTTP/1.1 100 Continue\r\n"
        connection.sendall(body)
        assert len(statuses(received.read())) == 1


def test_nobody_gets_a_tunnel(node: Gateway):
    for listener in ("peer", "container", "operator"):
        for target in (b"127.0.0.1:22", b"/"):
            received = answers(
                node, listener, b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN
            )
            assert received.startswith(b"HTTP/1.1 400 ") and len(statuses(received)) == 1


def test_a_trailer_names_no_sender(node: Gateway):
    head = HELLO + b"connection: close\r\n"
    named = b"x-source-node-id: " + PEER.encode() + b"\r\n"
    body = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    assert b'"knows_you":true' in answers(node, "peer", head + named + body + b"\r\n")
    assert b'"knows_you":false' in answers(node, "peer", head + body + named + b"\r\n")


# ---------------------------------------------------------------- a page asks a listener that has no password

PAGES = {
    "another site": {"origin": "https://evil.example"},
    "a name that was made to lead here": {
        "host": "evil.example:7380",
        "origin": "http://evil.example:7380",
    },
    "a page that keeps its origin to itself": {"origin": "null"},
    "a picture, which tells no origin": {"sec-fetch-site": "cross-site"},
}


@pytest.mark.parametrize(
    ("listener", "path"),
    [("peer", f"{SCHEDULE}/job/start"), ("container", "/v1/interconn/chan/pop")],
)
def test_a_page_reaches_neither_peers_nor_containers_listener(
    node: Gateway,
    listener: str,
    path: str,
):
    for page, headers in PAGES.items():
        for method, asked in (("POST", path), ("GET", "/openapi.json"), ("OPTIONS", path)):
            response = ask(node, listener, method, asked, headers=headers)
            assert response.status_code == 403, (page, method)
            assert response.json()["data"]["reason"] == "FOREIGN_ORIGIN"
            assert not [name for name in response.headers if name.startswith("access-control")]
    assert ask(node, listener, "GET", "/openapi.json").status_code == 200


def test_nor_one_port_that_serves_both(tmp_path: Path):
    listen = {
        "peer": {"bind": "127.0.0.1:0"},
        "container": None,
        "operator": {"bind": "127.0.0.1:0"},
    }
    with running(tmp_path, listen=listen) as node:
        assert (
            ask(node, "peer", "GET", "/openapi.json", headers=PAGES["another site"]).status_code
            == 403
        )


# ---------------------------------------------------------------- the log that all this is written to

LOGS = """
import structlog
from gateway.cli.serve import configure_logs
for form in ("text", "json"):
    configure_logs(form)
    structlog.get_logger("gateway").warning("refused", action="POST /x\\n2026-11-23 [info] approved\\x1b[31m")
"""


def test_what_others_send_ends_no_line_of_the_log_and_steers_no_terminal():
    response = subprocess.run(
        [sys.executable, "-c", LOGS],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    text, as_json = response.splitlines()
    assert as_json.startswith("{") and not text.startswith("{")
    assert response.count("approved") == 2 and "\x1b" not in response
