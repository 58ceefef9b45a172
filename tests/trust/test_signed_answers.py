"""Responses are signed: a proxy between two nodes can neither change nor swap one."""

from dataclasses import dataclass, field, replace
from unittest.mock import Mock

import pytest
from anyio import CapacityLimiter

from adapter.bfia import requests
from gateway.errors import NotFound, PeerUnreachable
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from gateway.identity.signatures import (
    Signable,
    SignableResponse,
    check_response,
    digest,
    headers,
    sign,
)
from gateway.runtime.trials import Result
from tests.e2e.recorder import Recorder
from tests.inprocess import ME, PEER, running
from tests.trust.agreeing import set_routes
from tests.trust.peer_requests import POLL


@dataclass(frozen=True)
class Message:
    """A request or a response on its way."""

    headers: dict[str, str]
    body: bytes
    # of a request
    method: str = ""
    path: str = ""
    # of a response
    status: int = 0


class Proxy(Recorder):
    """Passes requests on to `PEER`; a test sets ``respond`` to change the responses."""

    def __init__(self):
        super().__init__()
        self.respond = self.forward

    def pass_on(
        self,
        to,
        method,
        path,
        raw,
        headers,
    ):
        response = self.respond(Message(dict(headers), raw, method, path))
        return response.status, response.headers, response.body

    def forward(self, request):
        """Return the partner's response."""
        status, headers, body = super().pass_on(
            PEER,
            request.method,
            request.path,
            request.body,
            request.headers,
        )
        return Message(
            headers,
            body,
            status=status,
        )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Give a node, its partner, and the proxy by which it reaches the partner."""
    home = tmp_path_factory.mktemp("nodes")
    my_key = Keyring(home / ME / "state").make("ed25519").public
    peer_key = Keyring(home / PEER / "state").make("ed25519").public
    with (
        running(home / ME) as me,
        running(home / PEER, PEER) as peer,
        Proxy() as proxy,
    ):
        peer_socket = peer.services.sockets.by_listener["peer"][0]
        proxy.ports[PEER] = peer_socket.getsockname()[1]
        set_routes(
            peer,
            {ME: {"url": me.addresses()["peer"], "keys": my_key}},
        )
        by_proxy = {
            "host": "127.0.0.1",
            "port": proxy.port,
            "keys": peer_key,
        }
        set_routes(me, {PEER: by_proxy})
        yield me, peer, proxy


@pytest.fixture
def me(nodes):
    return nodes[0]


@pytest.fixture
def proxy(nodes):
    proxy = nodes[2]
    yield proxy
    proxy.respond = proxy.forward


def poll(me):
    """Poll a task that the partner does not know."""
    me.protocol.participant(PEER).poll_task("t", "guest", ME)


def check_response_does_not_count(me, message):
    """Poll; check that the response is refused, with a message. Return the error."""
    with pytest.raises(PeerUnreachable, match=message) as error:
        poll(me)
    assert error.value.reason == "ANSWER_NOT_SIGNED"
    assert error.value.delivered
    return error.value


def test_the_partners_own_response_counts(me):
    with pytest.raises(NotFound):
        poll(me)
    status, body = me.protocol.peer(PEER).raw("POST", "/no/such/path", {})
    assert status == 404
    assert body["data"]["reason"] == "PATH_UNKNOWN"
    results = {step.name: step.result for step in me.protocol.try_route(PEER)}
    assert results["way back"] is Result.OK


# ---------------------------------------------------------------- attacks


def change_body(proxy, request):
    response = proxy.forward(request)
    return replace(
        response,
        body=response.body.replace(b"404", b"0  "),
    )


def change_status(proxy, request):
    return replace(
        proxy.forward(request),
        status=201,
    )


def change_signature(proxy, request):
    response = proxy.forward(request)
    signature = response.headers["x-auth-sign"] + "x"
    return replace(
        response,
        headers=response.headers | {"x-auth-sign": signature},
    )


def respond_without_signature(proxy, request):
    return Message(
        {},
        b'{"code": 0, "msg": "all is well"}',
        status=200,
    )


def sign_with_another_key(proxy, request):
    body = b'{"code": 0, "msg": "success", "data": {}}'
    signable_request = Signable(
        request.method,
        request.path,
        "",
        digest(request.body),
        ME,
        PEER,
    )
    signable = SignableResponse(200, digest(body), signable_request)
    another_pair = KeyPair(KEY_GENERATORS["ed25519"]())
    created = int(request.headers["x-timestamp"]) // 1000
    signature = sign(
        another_pair,
        signable,
        request.headers["x-nonce"],
        created,
    )
    return Message(
        headers(signable, signature),
        body,
        status=200,
    )


def send_to_another_path(proxy, request):
    return proxy.forward(replace(request, path=request.path + "/none"))


NOT_ITS_OWN = "not proven to be its own"
ATTACKS = {
    "another body": (change_body, NOT_ITS_OWN),
    "another status": (change_status, NOT_ITS_OWN),
    "another signature": (change_signature, NOT_ITS_OWN),
    "no signature": (respond_without_signature, "^[^;]* says, unproven: all is well"),
    "by another key": (sign_with_another_key, "has no key"),
    "to another path": (send_to_another_path, "not one of this message"),
}


@pytest.mark.parametrize(
    ("attack", "message"),
    ATTACKS.values(),
    ids=ATTACKS,
)
def test_a_changed_response_does_not_count(me, proxy, attack, message):
    def respond(request):
        return attack(proxy, request)

    proxy.respond = respond
    check_response_does_not_count(me, message)


def test_the_response_to_another_request_does_not_count(me, proxy):
    responses = []

    def respond_with_the_first(request):
        responses.append(proxy.forward(request))
        return responses[0]

    proxy.respond = respond_with_the_first
    with pytest.raises(NotFound):
        poll(me)
    check_response_does_not_count(me, "it is the answer to another request")


def test_a_served_request_cannot_be_shown_as_refused(me, proxy):
    def forward_twice(request):
        """Return the refusal of the repetition: its nonce was used."""
        proxy.forward(request)
        return proxy.forward(request)

    proxy.respond = forward_twice
    error = check_response_does_not_count(me, "no signature")
    assert "x-auth-sign is not accepted" in error.message


def test_where_signatures_are_accepted_only_a_wrong_one_is_refused(me, proxy):
    keys = ", ".join(me.routes.table.routes[PEER].keys)
    route = {
        "url": f"http://127.0.0.1:{proxy.port}",
        "keys": keys,
    }
    set_routes(me, {PEER: {**route, "signing": "accepted"}})
    try:
        unsigned = Message(
            {},
            b'{"code": 0, "data": {"status": "RUNNING"}}',
            status=200,
        )
        proxy.respond = Mock(return_value=unsigned)
        poll(me)

        def respond(request):
            return change_status(proxy, request)

        proxy.respond = respond
        check_response_does_not_count(me, "not one of this message")
    finally:
        set_routes(me, {PEER: route})


# ---------------------------------------------------------------- headers and pieces


def test_the_rfcs_own_headers_travel_both_ways(me, proxy):
    messages = []

    def record(request):
        response = proxy.forward(request)
        messages.extend([request, response])
        return response

    proxy.respond = record
    with pytest.raises(NotFound):
        poll(me)
    for message in messages:
        params = message.headers["signature-input"].removeprefix("bfia=")
        signature = message.headers["signature"].removeprefix("bfia=")
        assert message.headers["x-auth-sign"] == f"input={params}, signature={signature}"
        assert message.headers["content-digest"] == digest(message.body)


@dataclass
class InPieces:
    """An ASGI application that responds in two pieces; collects the messages it sent."""

    sent: list = field(default_factory=list)

    async def serve(self, scope, receive, send):
        scope["state"]["answer_is_signed"] = True  # as once a request's signature was checked
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async def send(self, message):
        self.sent.append(message)


@pytest.mark.anyio
async def test_a_response_in_pieces_is_signed_as_a_whole():
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    nonce = "0123456789abcdef"
    request = Signable(
        "POST",
        POLL,
        "",
        digest(b""),
        PEER,
        ME,
    )
    app = InPieces()
    signing = requests.with_signed_responses(
        app.serve, lambda: pair, lambda _: None, CapacityLimiter(1)
    )

    await signing(
        scope_of(
            request,
            sign(pair, request, nonce, 1),
        ),
        None,
        app.send,
    )

    start, body = app.sent
    assert body["body"] == b"one two"
    response = SignableResponse(200, digest(b"one two"), request)
    signature = dict(start["headers"])[b"x-auth-sign"].decode()
    check_response(response, signature, nonce, [pair.public])


def scope_of(request, signature):
    """Return the ASGI scope of a signed request."""
    all_headers = {
        "x-source-node-id": request.source,
        "x-target-node-id": request.target,
        **headers(request, signature),
    }
    raw_headers = [(name.lower().encode(), value.encode()) for name, value in all_headers.items()]
    return {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": b"",
        "headers": raw_headers,
        "state": {},
    }


@pytest.fixture
def anyio_backend():
    return "asyncio"
