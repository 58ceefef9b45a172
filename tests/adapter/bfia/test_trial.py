"""A route is tried: whatever is wrong is named by the step that it belongs to, and by no other."""

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia import trial
from adapter.bfia.client import Connections, Peer
from adapter.bfia.trial import BODY, STEPS, try_route
from gateway.trial import Result, Step, good
from route_table.live import LiveRoutes
from tests.inprocess import ME, PEER, ask, running

Answers = Callable[[dict[str, Any]], tuple[int, Any]]


def says(**over: Any) -> dict[str, Any]:
    """Return what a healthy peer says."""
    told = {"node_id": PEER, "institution": "JG2", "gateway": "1", "protocol": "1.2.0", "knows_you": True}
    return told | {"time_ms": int(time.time() * 1000), "back": {"ok": True, "ms": 1.0}} | over


def healthy(_: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"code": 0, "msg": "success", "data": says()}


def with_data(**over: Any) -> Answers:
    return lambda _: (200, {"code": 0, "msg": "success", "data": says(**over)})


@contextmanager
def a_peer(answers: Answers, secure: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, said = answers(json.loads(body or b"{}"))
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def tried(tmp_path: Path, entry: dict[str, Any] | None) -> dict[str, Step]:
    """Try the route to the peer with this entry."""
    file = tmp_path / "routes.yml"
    file.write_text(yaml.safe_dump({} if entry is None else {PEER: entry}))
    routes = LiveRoutes(file)
    connections = Connections()
    try:
        steps = try_route(Peer(ME, PEER, routes, connections), routes.table, PEER, ME)
    finally:
        connections.close()
    assert [step.name for step in steps] == list(STEPS)
    return {step.name: step for step in steps}


def wrong(steps: dict[str, Step]) -> list[str]:
    for step in steps.values():
        if step.result in (Result.FAILED, Result.WARNING) and step.name != "answer":
            assert step.cause and step.remedy, step
    return [step.name for step in steps.values() if step.result is Result.FAILED]


def test_a_healthy_route_is_good_at_every_step(tmp_path: Path):
    with a_peer(healthy) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == [] and good(list(steps.values()))
    assert {n for n, s in steps.items() if s.result is Result.SKIPPED} == {"tls", "relay"}
    assert all(step.found for step in steps.values())


def no_body_over(size: int) -> Answers:
    def answers(said: dict[str, Any]) -> tuple[int, Any]:
        return (413, b"<html>too large</html>") if len(said.get("padding", "")) >= size else healthy(said)

    return answers


def slow(seconds: float) -> Answers:
    def answers(said: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(seconds)
        return healthy(said)

    return answers


FAULTS: dict[str, tuple[Answers, str]] = {
    "the proxy's gateway is down": (lambda _: (502, b"bad gateway"), "answer"),
    "it is a web page": (lambda _: (200, b"<html>hello</html>"), "answer"),
    "it refuses us": (lambda _: (200, {"code": 401, "msg": "sign", "data": {"reason": "NO_SIGN"}}), "answer"),
    "another node lives there": (with_data(node_id="JG0000000000000099"), "identity"),
    "its clock is fast": (lambda s: with_data(time_ms=int(time.time() * 1000) + 3_600_000)(s), "clock"),
    "its clock is slow": (lambda s: with_data(time_ms=int(time.time() * 1000) - 90_000)(s), "clock"),
    "large bodies do not pass": (no_body_over(BODY), "body"),
    "it does not know us": (with_data(knows_you=False), "way back"),
    "it does not reach us": (with_data(back={"ok": False, "reason": "PEER_UNREACHABLE"}), "way back"),
    "it says nothing of the way back": (with_data(back=None), "way back"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_peer_is_named_by_its_step_and_no_other(tmp_path: Path, fault: str):
    answers, step = FAULTS[fault]
    with a_peer(answers) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == [step]


def test_a_peer_that_never_answers_fails_there(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": silent.getsockname()[1], "deadline": 0.3})
    assert wrong(steps) == ["answer"]


def test_a_peer_that_is_slow_for_its_deadline_fails_by_latency(tmp_path: Path):
    with a_peer(slow(0.6)) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port, "deadline": 1.1})
    assert wrong(steps) == ["latency"]


@pytest.mark.parametrize(
    ("entry", "step"),
    [
        (None, "route"),
        ({"host": "127.0.0.1", "port": 1, "enabled": False}, "route"),
        ({"host": "no-such-host.invalid", "port": 1}, "dns"),
        ({"host": "127.0.0.1", "port": 1}, "tcp"),
    ],
)
def test_what_ends_before_the_peer_is_named_and_the_rest_is_skipped(
    tmp_path: Path, entry: dict[str, Any] | None, step: str
):
    steps = tried(tmp_path, entry)
    assert wrong(steps) == [step]
    after = list(STEPS)[list(STEPS).index(step) + 1 :]
    assert {steps[name].result for name in after} == {Result.SKIPPED}


def test_a_port_without_tls_is_named_where_the_route_says_https(tmp_path: Path):
    with a_peer(healthy) as port:
        steps = tried(tmp_path, {"url": f"https://127.0.0.1:{port}"})
    assert wrong(steps) == ["tls"]
    assert "scheme http" in steps["tls"].remedy


def test_a_certificate_that_nobody_signed_is_named(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate, key)
    with a_peer(healthy, secure) as port:
        steps = tried(tmp_path, {"url": f"https://localhost:{port}"})
    assert wrong(steps) == ["tls"]
    assert "not trusted" in steps["tls"].cause


def test_a_profile_that_does_not_fit_is_named(tmp_path: Path):
    with a_peer(healthy) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port, "profile": "kuscia"})
    assert wrong(steps) == ["profile"]
    with a_peer(lambda _: (200, {"code": 6000, "message": "no such path"})) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port, "profile": "fate"})
        assert wrong(steps) == [] and steps["profile"].result is Result.OK
        assert steps["answer"].result is Result.WARNING
    with a_peer(lambda _: (404, {"code": 404, "msg": "no", "data": {}})) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port, "profile": "fate"})
        assert steps["profile"].result is Result.WARNING and "set profile: spec" in steps["profile"].remedy


def test_two_nodes_try_their_routes_in_both_directions(tmp_path: Path):
    with running(tmp_path / "a", ME) as one, running(tmp_path / "b", PEER) as two:
        path = f"/api/v1/routes/{PEER}/test"
        address = {"route": {"url": two.addresses()["peer"]}}
        assert ask(one, "operator", "PUT", f"/api/v1/routes/{PEER}", json=address).status_code == 200
        found = ask(one, "operator", "POST", path).json()
        assert not found["good"]
        failed = [s for s in found["steps"] if s["result"] == "failed"]
        assert [s["name"] for s in failed] == ["way back"] and ME in failed[0]["remedy"]
        wrong_way = {"route": {"url": "http://127.0.0.1:1"}}
        ask(two, "operator", "PUT", f"/api/v1/routes/{ME}", json=wrong_way)
        found = ask(one, "operator", "POST", path).json()
        assert [s["name"] for s in found["steps"] if s["result"] == "failed"] == ["way back"]
        assert "PEER_UNREACHABLE" in next(s["cause"] for s in found["steps"] if s["name"] == "way back")
        ask(two, "operator", "PUT", f"/api/v1/routes/{ME}", json={"route": {"url": one.addresses()["peer"]}})
        found = ask(one, "operator", "POST", path).json()
        assert found["good"], found
        nobody = ask(one, "operator", "POST", "/api/v1/routes/JG404/test").json()
        assert [s["name"] for s in nobody["steps"] if s["result"] == "failed"] == ["route"]


def test_nobody_unknown_makes_a_node_call_others(tmp_path: Path):
    with running(tmp_path) as node:
        path = f"/v1/interconn/schedule{trial.HELLO.path}"
        answer = ask(node, "peer", "POST", path, json={"call_back": True}, headers={"x-source-node-id": "JG9"})
        assert answer.json()["data"]["reason"] == "NOT_AUTHORISED"
        told = ask(node, "peer", "POST", path, json={}, headers={"x-source-node-id": "JG9"}).json()["data"]
        assert told["knows_you"] is False and told["node_id"] == ME
