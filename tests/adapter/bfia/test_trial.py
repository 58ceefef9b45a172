"""Tests of a route: every fault is named by its own step, and by no other.

Faults of TLS are in test_trial_tls.py.
"""

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

from adapter.bfia import route_check
from adapter.bfia.channel import grpc_client
from adapter.bfia.channel.ptp_pb2 import Inbound, PopInbound, TransportOutbound
from adapter.bfia.connections import NotConnected
from adapter.bfia.route_check import HELLO, LARGE_BODY, STEPS, call_back, hello
from adapter.bfia.route_proof import proof_step
from gateway.errors import PeerUnreachable, Refused
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step, has_passed
from route_table.model import Route
from route_table.proof import ListenerProof
from tests.adapter.bfia.route_trials import failed_steps, greeting, local, run_trial, serving_peer
from tests.adapter.bfia.scripted import Answer, says, scripted, text
from tests.inprocess import ME, PEER, Node
from tests.world import NodeSetup

# A node with free ports only.
NODE = NodeSetup()

HELLO_PATH = f"/v1/interconn/schedule{HELLO}"


def refusal(
    code: int,
    reason: str,
    status: int = 200,
    msg: str = "no",
    **data: Any,
) -> Answer:
    """Return a refusal with a reason."""
    body = {
        "code": code,
        "msg": msg,
        "data": {"reason": reason, **data},
    }
    return says(body, status)


def test_a_healthy_route_is_good_at_every_step(tmp_path):
    with serving_peer() as port:
        steps = run_trial(tmp_path, local(port))

    assert failed_steps(steps) == []
    assert has_passed(list(steps.values()))
    skipped = {name for name, step in steps.items() if step.result is Result.SKIPPED}
    assert skipped == {"tls", "relay", "sealing"}
    for step in steps.values():
        assert step.found, step


# ---------------------------------------------------------------- what proves the requests

OTHERS = ListenerProof()  # a listener that other machines reach
CERTIFIED = ListenerProof(asks_for_certificate=True)


@pytest.mark.parametrize(
    ("reported", "fields", "listener", "result", "words"),
    [
        ("signature", {}, CERTIFIED, Result.OK, "as the peer requires"),
        ("certificate", {}, CERTIFIED, Result.OK, "proven by this node's certificate"),
        ("local", {}, ListenerProof(is_local=True), Result.OK, "only this machine reaches"),
        ("off", {}, CERTIFIED, Result.WARNING, "from anyone who names this node"),
        ("missing", {}, CERTIFIED, Result.FAILED, "the peer refuses every request"),
        ("signature", {}, OTHERS, Result.FAILED, "every request is refused"),
        ("signature", {"signing": "off"}, OTHERS, Result.WARNING, "(signing: off)"),
        ("signature", {"signing": "accepted"}, OTHERS, Result.WARNING, "(signing: accepted)"),
        ("", {}, CERTIFIED, Result.OK, "requests are not signed"),
        ("something newer", {}, CERTIFIED, Result.OK, "requests are not signed"),
    ],
)
def test_the_step_signature_tells_what_protects_each_direction(
    tmp_path, reported, fields, listener, result, words
):
    with serving_peer(greeting(proof=reported)) as port:
        steps = run_trial(tmp_path, local(port, **fields), listener)

    step = steps["signature"]
    assert step.result is result
    text = step.cause or step.found
    assert words in text
    assert f"to {PEER}: " in text
    assert f"from {PEER}: " in text
    if result is not Result.OK:
        assert "bfia-gateway" in step.remedy


def test_a_peer_that_refuses_every_request_is_not_asked_to_call_back(tmp_path):
    with serving_peer(greeting(proof="missing")) as port:
        steps = run_trial(tmp_path, local(port))
    assert failed_steps(steps) == ["signature"]
    assert steps["way back"].result is Result.SKIPPED


def test_a_channel_that_refuses_unproven_messages_refers_to_the_signature(tmp_path):
    def refuse_messages(handler: BaseHTTPRequestHandler) -> None:
        respond = greeting(proof="missing")
        if "/chan/" in handler.path:
            respond = says(code="E0000000403", msg="nothing proves the sender")
        respond(handler)

    with serving_peer(refuse_messages) as port:
        steps = run_trial(tmp_path, local(port))

    assert steps["channel"].result is Result.FAILED
    assert "step signature" in steps["channel"].remedy


def test_two_partners_with_keys_see_signatures_in_both_directions():
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    entry = Route(PEER, "http://127.0.0.1:9", keys=(pair.public,))

    step = proof_step(PEER, entry, OTHERS, "signature", pair)

    assert step.result is Result.OK
    assert f"signed with ed25519, {pair.id[:19]}" in step.found
    assert "must be signed with a key of the route" in step.found


# ---------------------------------------------------------------- faults of the peer


def refuse_large_bodies(handler: BaseHTTPRequestHandler) -> None:
    """Answer like a healthy peer behind a proxy with a limit for bodies."""
    respond = greeting()
    if int(handler.headers["content-length"]) >= LARGE_BODY:
        respond = text(b"<html>too large</html>", 413)
    respond(handler)


RELAY_REFUSAL = refusal(
    1,
    "RELAY_NOT_ALLOWED",
    relay="HOP",
)

# The peer's answer, the failed step, and a text of its cause or remedy.
FAULTS: dict[str, tuple[Answer, str, str]] = {
    "the gateway behind the proxy is down": (
        text(b"bad gateway", 502),
        "answer",
        "",
    ),
    "a web page": (text(b"<html>hello</html>"), "answer", ""),
    "a refusal": (
        refusal(401, "NO_SIGN", msg="sign"),
        "answer",
        "",
    ),
    "too many requests": (
        refusal(429, "PARTNER_QUOTA", 429, "PARTNER_QUOTA: JG1 sends more"),
        "answer",
        "raise limits.partner_requests_per_minute",
    ),
    "no paths between nodes": (
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
    "a relay": (RELAY_REFUSAL, "identity", "it is HOP"),
    "another node": (greeting(node_id="JG0000000000000099"), "identity", ""),
    "a fast clock": (greeting(time_ms=4_000_000_000_000), "clock", ""),
    "a slow clock": (greeting(time_ms=1_000_000_000_000), "clock", ""),
    "large bodies do not pass": (refuse_large_bodies, "body", ""),
    "this node is unknown": (greeting(knows_you=False), "way back", ""),
    "this node is not trusted": (
        greeting(back={"ok": False, "step": "tls"}),
        "way back",
        f"set ca, certificate and key in the route to {ME}",
    ),
    "an older node does not reach this one": (
        greeting(back={"ok": False, "reason": "AWAY"}),
        "way back",
        "there: AWAY",
    ),
    "no answer about the way back": (greeting(back=None), "way back", ""),
}


@pytest.mark.parametrize(
    ("response", "step", "hint"),
    FAULTS.values(),
    ids=FAULTS,
)
def test_a_fault_of_the_peer_is_named_by_its_step_and_no_other(tmp_path, response, step, hint):
    with serving_peer(response) as port:
        steps = run_trial(tmp_path, local(port))
    assert failed_steps(steps) == [step]
    assert hint in f"{steps[step].cause} {steps[step].remedy}"


# Routes that end before the peer, and the failed step.
ENDING_ROUTES = {
    "no route": (None, "route"),
    "disabled": (
        local(1, enabled=False),
        "route",
    ),
    "unknown host": (
        {"host": "no-such-host.invalid", "port": 1},
        "dns",
    ),
    "closed port": (local(1), "tcp"),
}


@pytest.mark.parametrize(
    ("entry", "step"),
    ENDING_ROUTES.values(),
    ids=ENDING_ROUTES,
)
def test_a_fault_before_the_peer_is_named_and_the_rest_is_skipped(tmp_path, entry, step):
    steps = run_trial(tmp_path, entry)

    assert failed_steps(steps) == [step]
    names = list(STEPS)
    later_steps = names[names.index(step) + 1 :]
    assert {steps[name].result for name in later_steps} == {Result.SKIPPED}


def test_the_remedy_for_a_missing_route_is_the_command_that_adds_it(tmp_path):
    steps = run_trial(tmp_path, None)
    assert f"bfia-gateway route add {PEER} --to" in steps["route"].remedy


def test_a_peer_that_falls_silent_after_the_first_answer_is_named(tmp_path):
    def without_hello(handler: BaseHTTPRequestHandler) -> None:
        respond = text(b"", 503)
        if handler.path.endswith(HELLO):
            respond = says({"code": 404, "msg": "no"}, 404)
        respond(handler)

    with serving_peer(without_hello) as port:
        steps = run_trial(tmp_path, local(port))

    assert failed_steps(steps) == ["answer"]
    assert "HTTP 503" in steps["answer"].cause
    assert steps["answer"].remedy == "try again, then look at the peer"


def test_a_peer_that_falls_silent_before_the_way_back_is_named(tmp_path, monkeypatch):
    def hello_until_call_back(*args: Any, call_back: bool = False, **options: Any) -> Any:
        if call_back:
            raise PeerUnreachable("it is gone")
        return hello(*args, **options)

    monkeypatch.setattr(route_check, "hello", hello_until_call_back)
    with serving_peer() as port:
        steps = run_trial(tmp_path, local(port))

    assert failed_steps(steps) == ["way back"]
    assert steps["way back"].cause == "it is gone"


def test_a_peer_without_a_time_that_is_slow(tmp_path, monkeypatch):
    def six_seconds(_: Any) -> float:
        return 6.0

    monkeypatch.setattr(route_check.statistics, "median", six_seconds)
    with serving_peer(greeting(time_ms="late")) as port:
        steps = run_trial(tmp_path, local(port))

    assert steps["clock"].result is Result.SKIPPED
    assert failed_steps(steps) == ["latency"]
    assert "half of the route's deadline of 10 s" in steps["latency"].cause


def test_a_peer_that_no_packet_reaches_is_named(tmp_path, monkeypatch):
    def fail(*_: Any) -> Any:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(route_check.socket, "create_connection", fail)
    steps = run_trial(tmp_path, local(9))

    assert failed_steps(steps) == ["tcp"]
    assert "No route to host" in steps["tcp"].cause


# The answer of a next hop, the cause and a part of the remedy.
NEXT_HOPS = {
    "down": (
        text(b"", 503),
        "HTTP 503",
        "look at the gateway of HOP",
    ),
    "responds itself": (
        greeting(node_id="HOP"),
        "HOP responds itself",
        "bring its gateway up to date",
    ),
    "refuses": (RELAY_REFUSAL, "HOP, which answers in the place of", "relay: true"),
}


@pytest.mark.parametrize(
    ("response", "cause", "remedy"),
    NEXT_HOPS.values(),
    ids=NEXT_HOPS,
)
def test_a_next_hop_that_does_not_pass_on_is_named(tmp_path, response, cause, remedy):
    with serving_peer(response) as port:
        steps = run_trial(
            tmp_path,
            {"via": "HOP"},
            HOP=local(port),
        )
    assert failed_steps(steps) == ["relay"]
    assert cause in steps["relay"].cause
    assert remedy in steps["relay"].remedy


# ---------------------------------------------------------------- signatures


def partner_keys(home: Path) -> str:
    """Return the public keys of a partner."""
    return Keyring(home / "theirs").make("ed25519").public


def test_an_answer_without_signature_names_the_partners_acceptance(tmp_path):
    with serving_peer() as port:
        entry = local(
            port,
            keys=partner_keys(tmp_path),
            signing="required",
        )
        steps = run_trial(tmp_path, entry)
    assert failed_steps(steps) == ["answer"]
    assert "accept this node's invitation" in steps["answer"].remedy
    assert "bfia-gateway partner accept --replace" in steps["answer"].remedy


def refuse_signature(seconds_ahead: int) -> Answer:
    """Return the answer of a peer that refuses a signature; its clock is ahead by some seconds."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        def peers_date(timestamp: float | None = None) -> str:
            return formatdate(
                time.time() + seconds_ahead,
                usegmt=True,
            )

        # the method that makes the header Date
        handler.date_time_string = peers_date  # type: ignore[method-assign]
        refusal(401, "SIGNATURE_REFUSED", 401, "SIGNATURE_REFUSED: no")(handler)

    return answer


@pytest.mark.parametrize(
    ("seconds_ahead", "failed"),
    [
        (1200, ["answer", "clock"]),
        (0, ["answer"]),
    ],
    ids=["ahead", "equal"],
)
def test_a_refused_signature_names_clock_or_key_and_compares_the_clock(
    tmp_path, seconds_ahead, failed
):
    with serving_peer(refuse_signature(seconds_ahead)) as port:
        steps = run_trial(
            tmp_path,
            local(
                port,
                keys=partner_keys(tmp_path),
            ),
        )

    assert failed_steps(steps) == failed
    answer_step = steps["answer"]
    assert "this node" not in answer_step.cause
    assert "says, unproven: SIGNATURE_REFUSED" in answer_step.cause
    assert "ask the partner for its audit line" in answer_step.remedy
    assert translate(answer_step.remedy, "zh").startswith("时钟（见“时钟”一步）或密钥")
    if seconds_ahead:
        assert "s ahead of this node's" in steps["clock"].cause


# ---------------------------------------------------------------- profiles


def standard_paths_only(status: int, code: int) -> Answer:
    """Return the answers of a peer that has the standard's paths and not the gateway's.

    Unknown paths get an HTTP status and a code.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        respond = says({"code": code}, status)
        if handler.path.endswith(("/task/poll", "/task/collect")):
            respond = says({"code": 100, "msg": "no task_id"})
        respond(handler)

    return answer


FATE_FLOW = standard_paths_only(200, 6000)


def test_a_profile_of_another_product_for_a_gateway_is_named(tmp_path):
    with serving_peer() as port:
        steps = run_trial(tmp_path, local(port, profile="kuscia"))
    assert failed_steps(steps) == ["profile"]


def test_fate_flow_fits_the_profile_fate(tmp_path):
    with serving_peer(FATE_FLOW) as port:
        steps = run_trial(tmp_path, local(port, profile="fate"))
    assert failed_steps(steps) == []
    assert steps["profile"].result is Result.OK
    assert steps["answer"].result is Result.WARNING


def test_fates_paths_between_sites_fit_the_profile_fate_partner(tmp_path):
    with serving_peer(FATE_FLOW) as port:
        step = run_trial(tmp_path, local(port, profile="fate-partner"))["profile"]
    assert step.result is Result.OK
    assert step.found == "fate-partner"


def test_a_peer_without_fates_paths_does_not_fit_fate_partner(tmp_path):
    with serving_peer(says({"code": 404}, 404)) as port:
        step = run_trial(tmp_path, local(port, profile="fate-partner"))["profile"]
    assert step.result is Result.FAILED
    assert "fate.enabled" in step.remedy


def test_a_peer_that_looks_like_the_standard_is_no_fate(tmp_path):
    with serving_peer(standard_paths_only(404, 404)) as port:
        step = run_trial(tmp_path, local(port, profile="fate"))["profile"]
    assert step.result is Result.WARNING
    assert "set profile: spec" in step.remedy


# ---------------------------------------------------------------- the channel

# The forms in which the channel is tested, by profile.
FORMS = {
    "spec": ["json", "protobuf"],
    "fate": ["json", "protobuf"],
    "kuscia": ["raw"],
}


@pytest.fixture
def transport():
    """A scripted transport and its address."""
    with scripted() as peer_and_url:
        yield peer_and_url


def channel_step(
    home: Path,
    profile: str,
    url: str,
) -> Step:
    """Test a route with a transport; return the step of its channel."""
    with serving_peer() as port:
        return run_trial(home, local(port, profile=profile, transport=url))["channel"]


@pytest.mark.parametrize(
    ("profile", "forms"),
    FORMS.items(),
    ids=FORMS,
)
def test_the_channel_is_tried_at_its_address_in_each_form(tmp_path, transport, profile, forms):
    peer, url = transport
    peer.will(says({"code": "E0000000000"}))

    step = channel_step(tmp_path, profile, url)

    assert step.result is Result.OK
    assert step.found == ", ".join(forms)
    assert {request.target for request in peer.requests} == {"/v1/interconn/chan/invoke"}
    has_version = "x-ptp-version" in peer.requests[0].headers
    assert has_version is (profile != "fate")


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_a_form_that_the_channel_does_not_read_is_a_warning(tmp_path, transport, profile):
    peer, url = transport
    no_message = says({"code": "E0000000404"})
    refused_form = says({"code": "E0000000616", "message": "what is that"})
    peer.will(no_message, refused_form)

    step = channel_step(tmp_path, profile, url)

    assert step.result is Result.WARNING
    assert step.cause == "protobuf: E0000000616 what is that"


def test_an_empty_channel_of_the_only_form_is_good(tmp_path, transport):
    peer, url = transport
    peer.will(says({"code": "E0000000404"}))
    assert channel_step(tmp_path, "kuscia", url).result is Result.OK


@pytest.mark.parametrize(
    ("profile", "forms"),
    FORMS.items(),
    ids=FORMS,
)
def test_an_address_without_a_channel_is_named(tmp_path, transport, profile, forms):
    peer, url = transport
    peer.will(text(b"<html>no</html>", 404))

    step = channel_step(tmp_path, profile, url)

    assert step.result is Result.FAILED
    assert "set transport in the entry" in step.remedy
    assert step.cause.startswith(f"{forms[0]}: HTTP 404 without a transport's answer")


@contextmanager
def grpc_transport(messages: list[bytes]) -> Iterator[str]:
    """Serve a transport by gRPC that has no message; yield its address.

    ``messages`` collects the received ones.
    """

    def invoke(message: bytes, context: grpc.ServicerContext) -> bytes:
        messages.append(message)
        return bytes(TransportOutbound(code="E0000000404").SerializeToString())

    methods = {"invoke": grpc.unary_unary_rpc_method_handler(invoke)}
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        handler = grpc.method_handlers_generic_handler(grpc_client.SERVICE, methods)
        server.add_generic_rpc_handlers([handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_a_channel_by_grpc_is_tried_by_grpc(tmp_path, profile):
    messages: list[bytes] = []
    with grpc_transport(messages) as url:
        step = channel_step(tmp_path, profile, url)
    assert step.result is Result.OK
    assert step.found == "grpc"

    message = messages[0]
    if profile == "fate":
        # FATE encapsulates messages
        message = Inbound.FromString(message).payload
    assert PopInbound.FromString(message).topic == "route-test"


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_a_silent_channel_by_grpc_is_named(tmp_path, profile):
    with grpc_transport([]) as url:
        pass
    step = channel_step(tmp_path, profile, url)
    assert step.result is Result.FAILED
    assert "grpc: no answer from grpc://" in step.cause


@pytest.mark.parametrize("profile", ["spec", "fate"])
def test_a_refusal_by_grpc_is_named(node, tmp_path, profile):
    """This node refuses its own id."""
    url = node.addresses()["peer"].replace(
        "http",
        "grpc",
    )
    step = channel_step(tmp_path, profile, url)
    assert step.result is Result.FAILED
    assert "grpc: E0000000403" in step.cause


# ---------------------------------------------------------------- two nodes


def set_route(
    node: Node,
    method: str,
    partner: str,
    **entry: Any,
) -> None:
    """Set (PUT) or change (PATCH) a node's route."""
    node.request(
        method,
        f"/api/v1/routes/{partner}",
        json={"route": entry},
    )


def failures(
    node: Node,
    partner: str,
) -> dict[str, Any]:
    """Test a node's route; return the failed steps by name."""
    trial = node.post(f"/api/v1/routes/{partner}/test").json()
    failed = {step["name"]: step for step in trial["steps"] if step["result"] == "failed"}
    assert trial["good"] is (failed == {})
    return failed


def test_two_nodes_try_their_routes_in_both_directions(world):
    me = world.node()
    peer = world.node(node_id=PEER)
    set_route(
        me,
        "PUT",
        PEER,
        url=peer.addresses()["peer"],
        signing="off",
    )

    # the peer has no route to this node
    failed = failures(me, PEER)
    assert list(failed) == ["way back"]
    assert ME in failed["way back"]["remedy"]

    # the peer's route leads to a closed port
    set_route(
        peer,
        "PUT",
        ME,
        url="http://127.0.0.1:1",
        signing="off",
    )
    failed = failures(me, PEER)
    assert list(failed) == ["way back"]
    assert "that fails there: tcp" in failed["way back"]["cause"]

    # the peer's route leads to the operators' listener
    set_route(
        peer,
        "PATCH",
        ME,
        url=me.addresses()["operator"],
    )
    failed = failures(me, PEER)
    assert "that fails there: answer" in failed["way back"]["cause"]

    set_route(
        peer,
        "PATCH",
        ME,
        url=me.addresses()["peer"],
    )
    assert failures(me, PEER) == {}


def test_a_route_that_does_not_exist_fails_at_its_first_step(node):
    assert list(failures(node, "JG404")) == ["route"]


def test_a_route_that_leads_back_to_this_node_is_named(node, tmp_path):
    steps = run_trial(
        tmp_path,
        {"url": node.addresses()["peer"]},
    )
    assert failed_steps(steps) == ["answer"]
    assert "this address is this node itself" in steps["answer"].cause
    assert PEER in steps["answer"].remedy


# ---------------------------------------------------------------- calling back


def unreachable(cause: Exception) -> PeerUnreachable:
    """Return the error of a client that could not connect because of a cause."""
    not_connected = NotConnected(str(cause))
    not_connected.__cause__ = cause
    error = PeerUnreachable(f"cannot connect: {cause}", delivered=False)
    error.__cause__ = not_connected
    return error


# What a call back meets, and the step that the calling node learns.
CALL_BACKS = {
    "another node": (
        {"node_id": "OTHER"},
        "identity",
    ),
    "a refusal": (
        Refused("JG9: NOT_THERE: the ledger of ann", reason="OF_AN_INTERNAL_SERVICE"),
        "answer",
    ),
    "no HTTP": (
        PeerUnreachable("no answer from http://127.0.0.1:25002: the response is not HTTP"),
        "answer",
    ),
    "a closed port": (unreachable(NotConnected("[Errno 111] Connection refused")), "tcp"),
    "an unknown host": (unreachable(socket.gaierror("Name or service not known")), "dns"),
    "no TLS": (unreachable(ssl.SSLError("WRONG_VERSION_NUMBER")), "tls"),
}


@pytest.mark.parametrize(
    ("outcome", "step"),
    CALL_BACKS.values(),
    ids=CALL_BACKS,
)
def test_a_node_that_cannot_be_called_back_learns_the_step_and_no_text(outcome, step):
    class CalledPeer:
        def ask(self, path: str, body: Any) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    def peer_of(node: str) -> Any:
        return CalledPeer()

    assert call_back(peer_of, ME, PEER) == {
        "ok": False,
        "step": step,
    }


def test_an_unknown_node_cannot_make_this_node_call_others(node):
    headers = {"x-source-node-id": "JG9"}

    response = node.post(
        HELLO_PATH,
        {"call_back": True},
        listener="peer",
        headers=headers,
    )
    assert response.json()["data"]["reason"] == "NOT_AUTHORISED"

    response = node.post(
        HELLO_PATH,
        {},
        listener="peer",
        headers=headers,
    )
    data = response.json()["data"]
    assert data["knows_you"] is False
    assert data["node_id"] == ME
