"""A route is tried: whatever is wrong is named by the step that it belongs to, and by no other."""

import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from adapter.bfia import route_check
from adapter.bfia.channel import calls
from adapter.bfia.channel.ptp_pb2 import Inbound, PopInbound, TransportOutbound
from adapter.bfia.connections import Connections, NotConnected
from adapter.bfia.peer import Peer
from adapter.bfia.route_check import BODY, STEPS, try_route
from gateway.bootstrap.node import Gateway
from gateway.config.tls import Tls
from gateway.errors import GatewayError, PeerUnreachable, Refused
from gateway.identity.keys import Keyring
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step, good
from route_table.live import LiveRoutes
from route_table.model import Identity
from tests.adapter.bfia.scripted import Answer, says, scripted, text
from tests.certificates import Authority, Files
from tests.inprocess import ME, PEER, ask, running


def greeting(**over: Any) -> dict[str, Any]:
    """Return what a healthy peer says."""
    said = {
        "node_id": PEER,
        "institution": "JG2",
        "gateway": "1",
        "protocol": "1.2.0",
        "knows_you": True,
    }
    return said | {"time_ms": int(time.time() * 1000), "back": {"ok": True, "ms": 1.0}} | over


def healthy(handler: BaseHTTPRequestHandler) -> None:
    says(data=greeting())(handler)


@contextmanager
def a_peer(answer: Answer = healthy, secure: ssl.SSLContext | None = None) -> Iterator[int]:
    with scripted(secure) as (peer, url):
        peer.will(answer)
        yield int(url.rpartition(":")[2])


def tried(
    tmp_path: Path,
    entry: dict[str, Any] | None,
    **more: Any,
) -> dict[str, Step]:
    """Try the route to the peer with this entry, and others."""
    file = tmp_path / "routes.yml"
    file.write_text(yaml.safe_dump(({} if entry is None else {PEER: entry}) | more))
    routes = LiveRoutes(file)
    connections = Connections()
    try:
        steps = try_route(Peer(ME, PEER, routes.resolve, connections), routes.table, PEER, ME)
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
    with a_peer() as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == [] and good(list(steps.values()))
    assert {n for n, s in steps.items() if s.result is Result.SKIPPED} == {"tls", "relay"}
    assert all(step.found for step in steps.values())


def no_large_body(handler: BaseHTTPRequestHandler) -> None:
    large = int(handler.headers["content-length"]) >= BODY
    (text(b"<html>too large</html>", 413) if large else says(data=greeting()))(handler)


RELAYED = {
    "code": 1,
    "msg": "no",
    "data": {"reason": "RELAY_NOT_ALLOWED", "relay": "HOP"},
}
QUOTA = {
    "code": 429,
    "msg": "PARTNER_QUOTA: JG1 sends more",
    "data": {"reason": "PARTNER_QUOTA"},
}
FAULTS: dict[str, tuple[Answer | dict[str, Any], str, str]] = {
    "the proxy's gateway is down": (text(b"bad gateway", 502), "answer", ""),
    "it is a web page": (text(b"<html>hello</html>"), "answer", ""),
    "it refuses us": (
        says(
            {
                "code": 401,
                "msg": "sign",
                "data": {"reason": "NO_SIGN"},
            }
        ),
        "answer",
        "",
    ),
    "we ask too often": (says(QUOTA, 429), "answer", "raise limits.partner_requests_per_minute"),
    "it has nothing between nodes": (
        says(
            {
                "code": 404,
                "msg": "no",
                "data": {},
            },
            404,
        ),
        "answer",
        "",
    ),
    "a relay lives there": (says(RELAYED), "identity", "it is HOP"),
    "another node lives there": ({"node_id": "JG0000000000000099"}, "identity", ""),
    "its clock is fast": ({"time_ms": 4_000_000_000_000}, "clock", ""),
    "its clock is slow": ({"time_ms": 1_000_000_000_000}, "clock", ""),
    "large bodies do not pass": (no_large_body, "body", ""),
    "it does not know us": ({"knows_you": False}, "way back", ""),
    "it does not trust us": (
        {"back": {"ok": False, "step": "tls"}},
        "way back",
        f"set ca, certificate and key in the route to {ME}",
    ),
    "it is older and does not reach us": (
        {"back": {"ok": False, "reason": "AWAY"}},
        "way back",
        "there: AWAY",
    ),
    "it says nothing of the way back": ({"back": None}, "way back", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_peer_is_named_by_its_step_and_no_other(tmp_path: Path, fault: str):
    answer, step, remedy = FAULTS[fault]
    with a_peer(says(data=greeting(**answer)) if isinstance(answer, dict) else answer) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == [step] and remedy in f"{steps[step].cause} {steps[step].remedy}"


@pytest.mark.parametrize(
    ("entry", "step"),
    [
        (None, "route"),
        (
            {
                "host": "127.0.0.1",
                "port": 1,
                "enabled": False,
            },
            "route",
        ),
        ({"host": "no-such-host.invalid", "port": 1}, "dns"),
        ({"host": "127.0.0.1", "port": 1}, "tcp"),
    ],
)
def test_what_ends_before_the_peer_is_named_and_the_rest_is_skipped(
    tmp_path: Path,
    entry: dict[str, Any] | None,
    step: str,
):
    steps = tried(tmp_path, entry)
    assert wrong(steps) == [step]
    assert entry is not None or f"bfia-gateway route add {PEER} --to" in steps[step].remedy
    after = list(STEPS)[list(STEPS).index(step) + 1 :]
    assert {steps[name].result for name in after} == {Result.SKIPPED}


def no_hello_and_then_nothing(handler: BaseHTTPRequestHandler) -> None:
    known = handler.path.endswith(route_check.HELLO)
    (says({"code": 404, "msg": "no"}, 404) if known else text(b"", 503))(handler)


def test_a_peer_that_falls_silent_while_it_is_tried_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with a_peer(no_hello_and_then_nothing) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == ["answer"]
    assert (
        "HTTP 503" in steps["answer"].cause and steps["answer"].remedy == route_check._AGAIN_REMEDY
    )

    real = route_check.hello

    def hello(*said: Any, call_back: bool = False) -> Any:
        if call_back:
            raise PeerUnreachable("it is gone")
        return real(*said)

    monkeypatch.setattr(route_check, "hello", hello)
    with a_peer() as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert wrong(steps) == ["way back"] and steps["way back"].cause == "it is gone"


def test_a_peer_that_says_no_time_and_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(route_check.statistics, "median", lambda _: 6.0)
    with a_peer(says(data=greeting(time_ms="late"))) as port:
        steps = tried(tmp_path, {"host": "127.0.0.1", "port": port})
    assert steps["clock"].result is Result.SKIPPED
    assert (
        wrong(steps) == ["latency"]
        and "half of the route's deadline of 10 s" in steps["latency"].cause
    )


def test_a_peer_that_no_packet_reaches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unreachable(*_: Any) -> Any:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(route_check.socket, "create_connection", unreachable)
    steps = tried(tmp_path, {"host": "127.0.0.1", "port": 9})
    assert wrong(steps) == ["tcp"] and "No route to host" in steps["tcp"].cause


@pytest.mark.parametrize(
    ("answer", "cause", "remedy"),
    [
        (text(b"", 503), "HTTP 503", "look at the gateway of HOP"),
        (says(data=greeting(node_id="HOP")), "HOP responds itself", "bring its gateway up to date"),
        (says(RELAYED), "HOP, which answers in the place of", "relay: true"),
    ],
)
def test_a_next_hop_that_does_not_pass_on_is_named(
    tmp_path: Path,
    answer: Answer,
    cause: str,
    remedy: str,
):
    with a_peer(answer) as port:
        steps = tried(tmp_path, {"via": "HOP"}, HOP={"host": "127.0.0.1", "port": port})
    assert wrong(steps) == ["relay"] and cause in steps["relay"].cause
    assert remedy in steps["relay"].remedy


def test_files_of_a_route_that_are_gone_are_named(tmp_path: Path, authority: Authority):
    with a_peer(secure=served(authority.sign("here"))) as port:
        step = route_check._tls("127.0.0.1", port, Identity(ca=str(tmp_path / "gone.pem")))
    assert step.result is Result.FAILED and "certificates that the route names" in step.cause
    assert "correct ca, certificate and key" in step.remedy


def test_an_own_certificate_that_expired_after_loading_is_named(
    authority: Authority,
):
    old = authority.sign("expired", days=-1)
    with a_peer(secure=served(authority.sign("there"), authority.file)) as port:
        step = route_check._tls(
            "127.0.0.1", port, Identity(authority.file, old.certificate, old.key)
        )
    assert (
        f"this node's certificate in {old.certificate} has expired on" in step.cause
        and "renew" in step.remedy
    )


@pytest.mark.parametrize(
    ("found", "step"),
    [
        ({"node_id": "OTHER"}, "identity"),
        (Refused("JG9: NOT_THERE: the ledger of ann", reason="OF_AN_INTERNAL_SERVICE"), "answer"),
        (
            PeerUnreachable("no answer from http://127.0.0.1:25002: the response is not HTTP"),
            "answer",
        ),
        (NotConnected("[Errno 111] Connection refused"), "tcp"),
        (socket.gaierror("Name or service not known"), "dns"),
        (ssl.SSLError("WRONG_VERSION_NUMBER"), "tls"),
    ],
)
def test_a_node_that_is_called_back_in_vain_learns_the_step_and_no_text(found: Any, step: str):
    class Other:
        def ask(self, path: str, body: Any) -> Any:
            if not isinstance(found, Exception):
                return found
            if isinstance(found, GatewayError):
                raise found
            try:
                raise NotConnected(str(found)) from found
            except NotConnected as error:
                raise PeerUnreachable(f"cannot connect: {found}", delivered=False) from error

    other: Any = Other()
    assert route_check.call_back(lambda _: other, ME, PEER) == {"ok": False, "step": step}


def test_an_answer_without_signature_names_the_partners_acceptance(tmp_path: Path):
    with a_peer() as port:
        keys = Keyring(tmp_path / "theirs").make("ed25519").public
        steps = tried(
            tmp_path,
            {
                "host": "127.0.0.1",
                "port": port,
                "keys": keys,
                "signing": "required",
            },
        )
    assert wrong(steps) == ["answer"]
    assert "accept this node's invitation" in steps["answer"].remedy


@pytest.mark.parametrize("ahead", [1200, 0])
def test_a_refused_signature_names_clock_or_key_and_compares_the_clock(tmp_path: Path, ahead: int):
    refusal = {
        "code": 401,
        "msg": "SIGNATURE_REFUSED: no",
        "data": {"reason": "SIGNATURE_REFUSED"},
    }

    def dated(handler: BaseHTTPRequestHandler) -> None:
        handler.date_time_string = lambda *_: formatdate(time.time() + ahead, usegmt=True)  # type: ignore[method-assign]
        says(refusal, 401)(handler)

    with a_peer(dated) as port:
        keys = Keyring(tmp_path / "theirs").make("ed25519").public
        steps = tried(
            tmp_path,
            {
                "host": "127.0.0.1",
                "port": port,
                "keys": keys,
            },
        )
    assert wrong(steps) == (["answer", "clock"] if ahead else ["answer"])
    cause = steps["answer"].cause
    assert "this node" not in cause and "says, unproven: SIGNATURE_REFUSED" in cause
    assert "ask the partner for its audit line" in steps["answer"].remedy
    assert translate(steps["answer"].remedy, "zh").startswith("时钟（见“时钟”一步）或密钥")
    if ahead:
        assert "s ahead of this node's" in steps["clock"].cause


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


def served(files: Files, client_ca: str | None = None) -> ssl.SSLContext:
    return Tls(files.certificate, files.key, client_ca).context()


@pytest.mark.parametrize("tls13", [True, False], ids=["TLS 1.3", "TLS 1.2"])
def test_what_is_wrong_with_tls_is_named_with_its_cause(
    tmp_path: Path,
    authority: Authority,
    stranger: Authority,
    tls13: bool,
):
    good, named = authority.sign("good"), authority.sign("named", "gateway.example")
    mine, theirs = authority.sign("mine"), stranger.sign("theirs")
    with_mine = {"certificate": mine.certificate, "key": mine.key}
    with_theirs = {"certificate": theirs.certificate, "key": theirs.key}
    faults: list[tuple[ssl.SSLContext | None, dict[str, Any], str, str]] = [
        (None, {}, "no TLS there", "scheme http"),
        (served(good), {"ca": stranger.file}, "not trusted", "does not have its authority"),
        (served(good), {}, "not trusted", "set ca in the entry"),
        (served(named), {"ca": authority.file}, "another name than 127.0.0.1", "server_name"),
        (
            served(good),
            {"ca": authority.file, "server_name": "gateway.example"},
            "another name",
            "server_name",
        ),
        (served(authority.sign("old", days=-1)), {"ca": authority.file}, "has expired", "renew"),
        (
            served(good, authority.file),
            {"ca": authority.file},
            "wants a certificate",
            "certificate and key",
        ),
        (
            served(good, authority.file),
            {"ca": authority.file, **with_theirs},
            "does not accept",
            "admin",
        ),
    ]
    for context, entry, cause, remedy in faults:
        if context is not None and not tls13:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        with a_peer(secure=context) as port:
            steps = tried(tmp_path, {"url": f"https://127.0.0.1:{port}", **entry})
        assert wrong(steps) == ["tls"], (entry, steps["tls"])
        assert cause in steps["tls"].cause and remedy in steps["tls"].remedy, steps["tls"]
    context = served(named, authority.file)
    with a_peer(secure=context) as port:
        entry = {
            "url": f"https://127.0.0.1:{port}",
            "ca": authority.file,
            "server_name": "gateway.example",
        }
        steps = tried(tmp_path, entry | with_mine)
    assert wrong(steps) == [] and steps["tls"].result is Result.OK, steps


def test_a_gateway_that_demands_tls_differs_from_one_that_is_down(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    """Its listener ends such connections without an alert, and logs one a minute."""
    good = authority.sign("gateway")
    tls = {
        "certificate": good.certificate,
        "key": good.key,
        "client_ca": authority.file,
    }
    free = {"bind": "127.0.0.1:0"}
    listen = {
        "peer": {**free, "tls": tls},
        "container": free,
        "operator": free,
    }
    with running(tmp_path / "peer", PEER, listen=listen) as peer:
        url = peer.addresses()["peer"]
        steps = tried(tmp_path, {"url": url.replace("https:", "http:")})
        assert (
            wrong(steps) == ["answer"]
            and steps["answer"].remedy == "begin the entry's url with https"
        )
        steps = tried(tmp_path, {"url": url, "ca": authority.file})
        assert wrong(steps) == ["tls"] and "wants a certificate of this node" in steps["tls"].cause
        tried(tmp_path, {"url": url, "ca": authority.file})
        refused = [
            r
            for r in caplog.records
            if r.levelname == "WARNING" and r.msg == "a connection was not made"
        ]
        assert [r.address for r in refused] == ["127.0.0.1"]  # type: ignore[attr-defined]
        other = authority.sign("other", "gateway.example")
        own = {"certificate": other.certificate, "key": other.key}
        steps = tried(
            tmp_path,
            {
                "url": url,
                "ca": authority.file,
                **own,
            },
        )
        assert (
            wrong(steps) == ["answer"] and steps["answer"].cause.count("CERTIFICATE_MISMATCH") == 1
        )
        assert "peer_certificate" in steps["answer"].remedy


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path, authority: Authority):
    soon, long = authority.sign("soon", days=5), authority.sign("long")
    with a_peer(secure=served(soon)) as port:
        steps = tried(tmp_path, {"url": f"https://127.0.0.1:{port}", "ca": authority.file})
    assert steps["tls"].result is Result.WARNING and "expires in 4 days" in steps["tls"].cause
    with a_peer(secure=served(long)) as port:
        own = {"certificate": soon.certificate, "key": soon.key}
        steps = tried(
            tmp_path,
            {
                "url": f"https://127.0.0.1:{port}",
                "ca": authority.file,
                **own,
            },
        )
    assert steps["tls"].result is Result.WARNING and "certificate in" in steps["tls"].cause


def test_a_renewed_file_is_used_without_restart_a_missing_one_named(
    tmp_path: Path,
    authority: Authority,
    stranger: Authority,
):
    ca, routes_file = tmp_path / "ca.pem", tmp_path / "routes.yml"
    ca.write_text(Path(stranger.file).read_text())
    connections = Connections()
    with a_peer(secure=served(authority.sign("server"))) as port:
        routes_file.write_text(
            yaml.safe_dump({PEER: {"url": f"https://127.0.0.1:{port}", "ca": str(ca)}})
        )
        peer = Peer(ME, PEER, LiveRoutes(routes_file).resolve, connections)
        with pytest.raises(PeerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            route_check.hello(peer, ME)
        ca.write_text(Path(authority.file).read_text() + "\n")
        assert route_check.hello(peer, ME)["node_id"] == PEER
        ca.unlink()
        with pytest.raises(PeerUnreachable, match="certificates that the route names") as refused:
            route_check.hello(peer, ME)
        assert refused.value.delivered is False
    connections.close()


def test_a_profile_that_does_not_fit_is_named(tmp_path: Path):
    with a_peer() as port:
        steps = tried(
            tmp_path,
            {
                "host": "127.0.0.1",
                "port": port,
                "profile": "kuscia",
            },
        )
    assert wrong(steps) == ["profile"]

    def another_product(status: int, code: int) -> Answer:
        """Return the answers of a peer that has the standard's paths and not ours."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            known = handler.path.endswith(("/task/poll", "/task/collect"))
            (says({"code": 100, "msg": "no task_id"}) if known else says({"code": code}, status))(
                handler
            )

        return answer

    with a_peer(another_product(200, 6000)) as port:
        steps = tried(
            tmp_path,
            {
                "host": "127.0.0.1",
                "port": port,
                "profile": "fate",
            },
        )
        assert wrong(steps) == [] and steps["profile"].result is Result.OK
        assert steps["answer"].result is Result.WARNING
    for answer, result in (
        (another_product(200, 6000), Result.OK),
        (says({"code": 404}, 404), Result.FAILED),
    ):
        with a_peer(answer) as port:
            step = tried(
                tmp_path,
                {
                    "host": "127.0.0.1",
                    "port": port,
                    "profile": "fate-partner",
                },
            )["profile"]
        assert step.result is result and (
            step.found == "fate-partner" or "fate.enabled" in step.remedy
        )
    with a_peer(another_product(404, 404)) as port:
        steps = tried(
            tmp_path,
            {
                "host": "127.0.0.1",
                "port": port,
                "profile": "fate",
            },
        )
        assert (
            steps["profile"].result is Result.WARNING
            and "set profile: spec" in steps["profile"].remedy
        )


@pytest.mark.parametrize(
    ("profile", "forms"),
    [("spec", ["json", "protobuf"]), ("fate", ["json", "protobuf"]), ("kuscia", ["raw"])],
)
def test_the_channel_is_tried_at_its_address_in_each_form(
    tmp_path: Path,
    profile: str,
    forms: list[str],
):
    answers = [{"code": "E0000000404"}, {"code": "E0000000616", "message": "what is that"}]
    with a_peer() as port, scripted() as (transport, url):
        entry = {
            "host": "127.0.0.1",
            "port": port,
            "profile": profile,
            "transport": url,
        }
        transport.will(says({"code": "E0000000000"}))
        step = tried(tmp_path, entry)["channel"]
        assert (step.result, step.found) == (Result.OK, ", ".join(forms))
        assert {asked.target for asked in transport.asked} == {"/v1/interconn/chan/invoke"}
        assert ("x-ptp-version" in transport.asked[0].headers) is (profile != "fate")
        transport.will(*map(says, answers))
        step = tried(tmp_path, entry)["channel"]
        assert step.result is (Result.WARNING if len(forms) == 2 else Result.OK), step
        assert len(forms) == 1 or step.cause == "protobuf: E0000000616 what is that"
        transport.will(text(b"<html>no</html>", 404))
        step = tried(tmp_path, entry)["channel"]
        assert step.result is Result.FAILED and "set transport in the entry" in step.remedy
        assert step.cause.startswith(f"{forms[0]}: HTTP 404 without a transport's answer")


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_a_channel_by_grpc_is_tried_so(
    me: Gateway,
    tmp_path: Path,
    profile: str,
):
    asked: list[bytes] = []

    def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
        asked.append(message)
        return bytes(TransportOutbound(code="E0000000404").SerializeToString())

    methods = {"invoke": grpc.unary_unary_rpc_method_handler(answer)}
    with a_peer() as port, ThreadPoolExecutor(1) as pool:
        entry = {
            "host": "127.0.0.1",
            "port": port,
            "profile": profile,
        }
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(calls.SERVICE, methods)]
        )
        transport = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        step = tried(tmp_path, entry | {"transport": transport})["channel"]
        server.stop(0).wait()
        assert (step.result, step.found) == (Result.OK, "grpc")
        inside = asked[0] if profile == "spec" else Inbound.FromString(asked[0]).payload
        assert PopInbound.FromString(inside).topic == "route-test"
        step = tried(tmp_path, entry | {"transport": transport})["channel"]
        assert step.result is Result.FAILED and "grpc: no answer from grpc://" in step.cause
        ours = me.addresses()["peer"].replace("http", "grpc")  # which tells its own id
        step = tried(tmp_path, entry | {"transport": ours})["channel"]
        assert step.result is Result.FAILED and "grpc: E0000000403" in step.cause


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("me"), ME) as node:
        yield node


def test_two_nodes_try_their_routes_in_both_directions(me: Gateway, tmp_path: Path):
    with running(tmp_path / "b", PEER) as two:
        path = f"/api/v1/routes/{PEER}/test"
        address = {"route": {"url": two.addresses()["peer"], "signing": "off"}}
        assert ask(me, "operator", "PUT", f"/api/v1/routes/{PEER}", json=address).status_code == 200
        found = ask(me, "operator", "POST", path).json()
        assert not found["good"]
        failed = [s for s in found["steps"] if s["result"] == "failed"]
        assert [s["name"] for s in failed] == ["way back"] and ME in failed[0]["remedy"]
        wrong_way = {"route": {"url": "http://127.0.0.1:1", "signing": "off"}}
        ask(two, "operator", "PUT", f"/api/v1/routes/{ME}", json=wrong_way)
        found = ask(me, "operator", "POST", path).json()
        assert [s["name"] for s in found["steps"] if s["result"] == "failed"] == ["way back"]
        assert "that fails there: tcp" in next(
            s["cause"] for s in found["steps"] if s["name"] == "way back"
        )
        for_operators = {"route": {"url": me.addresses()["operator"]}}
        ask(two, "operator", "PATCH", f"/api/v1/routes/{ME}", json=for_operators)
        found = ask(me, "operator", "POST", path).json()
        assert "that fails there: answer" in next(
            s["cause"] for s in found["steps"] if s["name"] == "way back"
        )
        ask(
            two,
            "operator",
            "PATCH",
            f"/api/v1/routes/{ME}",
            json={"route": {"url": me.addresses()["peer"]}},
        )
        found = ask(me, "operator", "POST", path).json()
        assert found["good"], found
        nobody = ask(me, "operator", "POST", "/api/v1/routes/JG404/test").json()
        assert [s["name"] for s in nobody["steps"] if s["result"] == "failed"] == ["route"]


def test_a_route_that_leads_back_here_is_named(me: Gateway, tmp_path: Path):
    steps = tried(tmp_path, {"url": me.addresses()["peer"]})
    assert wrong(steps) == ["answer"]
    assert (
        "this address is this node itself" in steps["answer"].cause
        and PEER in steps["answer"].remedy
    )


def test_an_unknown_node_cannot_make_this_node_call_others(me: Gateway):
    path, headers = f"/v1/interconn/schedule{route_check.HELLO}", {"x-source-node-id": "JG9"}
    answer = ask(me, "peer", "POST", path, json={"call_back": True}, headers=headers)
    assert answer.json()["data"]["reason"] == "NOT_AUTHORISED"
    told = ask(me, "peer", "POST", path, json={}, headers=headers).json()["data"]
    assert told["knows_you"] is False and told["node_id"] == ME
