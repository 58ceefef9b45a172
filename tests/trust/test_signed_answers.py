"""Answers are signed: who sits between two nodes can change none, nor put one in another's place."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from anyio import CapacityLimiter

from adapter.bfia import requests
from gateway.bootstrap.node import Gateway
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
from tests.trust.agreeing import route


@dataclass(frozen=True)
class Passing:
    """A request or an answer on its way."""

    headers: dict[str, str]
    body: bytes
    method: str = ""
    path: str = ""
    status: int = 0


class Between(Recorder):
    """Passes everything on, and lets a test change what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.attack: Callable[[Passing], Passing] = self.forward

    def pass_on(
        self,
        to: str,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, dict[str, str], bytes]:
        said = self.attack(Passing(dict(headers), raw, method, path))
        return said.status, said.headers, said.body

    def forward(self, asked: Passing) -> Passing:
        status, headers, body = super().pass_on(
            PEER, asked.method, asked.path, asked.body, asked.headers
        )
        return Passing(headers, body, status=status)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway, Between]]:
    """Give a node, its partner, and who sits between them."""
    home = tmp_path_factory.mktemp("nodes")
    keys = {node: Keyring(home / node / "state").make("ed25519").public for node in (ME, PEER)}
    with running(home / ME) as me, running(home / PEER, PEER) as peer, Between() as between:
        between.ways[PEER] = peer.services.sockets.by_listener["peer"][0].getsockname()[1]
        route(peer, {ME: {"url": me.addresses()["peer"], "keys": keys[ME]}})
        route(
            me,
            {
                PEER: {
                    "host": "127.0.0.1",
                    "port": between.port,
                    "keys": keys[PEER],
                }
            },
        )
        yield me, peer, between


@pytest.fixture
def nodes(pair: tuple[Gateway, Gateway, Between]) -> Iterator[tuple[Gateway, Gateway, Between]]:
    yield pair
    pair[2].attack = pair[2].forward


def poll(me: Gateway) -> None:
    me.protocol.participant(PEER).poll_task("t", "guest", ME)


def refused(me: Gateway, why: str) -> PeerUnreachable:
    with pytest.raises(PeerUnreachable, match=why) as error:
        poll(me)
    assert error.value.reason == "ANSWER_NOT_SIGNED" and error.value.delivered
    return error.value


def test_what_the_partner_answers_counts(nodes: tuple[Gateway, Gateway, Between]):
    me, _, _ = nodes
    with pytest.raises(NotFound):
        poll(me)
    status, said = me.protocol.peer(PEER).raw("POST", "/no/such/path", {})
    assert (status, said["data"]["reason"]) == (404, "PATH_UNKNOWN")
    assert {step.name: step.result for step in me.protocol.try_route(PEER)}["way back"] is Result.OK


def forged(between: Between, asked: Passing) -> Passing:
    """Answer with a signature by a key of one's own."""
    body = b'{"code": 0, "msg": "success", "data": {}}'
    answer = SignableResponse(
        200, digest(body), Signable(asked.method, asked.path, "", digest(asked.body), ME, PEER)
    )
    value = sign(
        KeyPair(KEY_GENERATORS["ed25519"]()),
        answer,
        asked.headers["x-nonce"],
        int(asked.headers["x-timestamp"]) // 1000,
    )
    return Passing(headers(answer, value), body, status=200)


def with_body(said: Passing) -> Passing:
    return replace(said, body=said.body.replace(b"404", b"0  "))


def with_signature(said: Passing) -> Passing:
    return replace(said, headers=said.headers | {"x-auth-sign": said.headers["x-auth-sign"] + "x"})


Attack = Callable[[Between, Passing], Passing]
NOT_ITS_OWN = "not proven to be its own"
ATTACKS: dict[str, tuple[Attack, str]] = {
    "another body": (lambda between, asked: with_body(between.forward(asked)), NOT_ITS_OWN),
    "another status": (
        lambda between, asked: replace(between.forward(asked), status=201),
        NOT_ITS_OWN,
    ),
    "another signature": (
        lambda between, asked: with_signature(between.forward(asked)),
        NOT_ITS_OWN,
    ),
    "no signature": (
        lambda *_: Passing({}, b'{"code": 0, "msg": "all is well"}', status=200),
        "^[^;]* says, unproven: all is well",
    ),
    "by another key": (forged, "has no key"),
    "to another path": (
        lambda between, asked: between.forward(replace(asked, path=asked.path + "/none")),
        "not one of this message",
    ),
}


@pytest.mark.parametrize(("attack", "why"), ATTACKS.values(), ids=ATTACKS)
def test_a_changed_answer_is_none(
    nodes: tuple[Gateway, Gateway, Between],
    attack: Attack,
    why: str,
):
    me, _, between = nodes
    between.attack = lambda asked: attack(between, asked)
    refused(me, why)


def test_the_answer_to_another_request_is_none(nodes: tuple[Gateway, Gateway, Between]):
    me, _, between = nodes
    earlier: list[Passing] = []

    def keep(asked: Passing) -> Passing:
        earlier.append(between.forward(asked))
        return earlier[0]

    between.attack = keep
    with pytest.raises(NotFound):
        poll(me)
    refused(me, "it is the answer to another request")


def test_a_request_that_was_taken_cannot_be_shown_as_refused(
    nodes: tuple[Gateway, Gateway, Between],
):
    me, _, between = nodes

    def again(asked: Passing) -> Passing:
        between.forward(asked)
        return between.forward(asked)  # the partner refuses it: the nonce was used

    between.attack = again
    assert "x-auth-sign is not accepted" in refused(me, "no signature").message


def test_where_signatures_are_accepted_only_a_wrong_one_is_refused(
    nodes: tuple[Gateway, Gateway, Between],
):
    me, _, between = nodes
    before = me.routes.table.routes[PEER]
    entry = {"url": f"http://127.0.0.1:{between.port}", "keys": ", ".join(before.keys)}
    route(me, {PEER: entry | {"signing": "accepted"}})
    try:
        between.attack = lambda asked: Passing(
            {}, b'{"code": 0, "data": {"status": "RUNNING"}}', status=200
        )
        poll(me)
        between.attack = lambda asked: replace(between.forward(asked), status=201)
        refused(me, "not one of this message")
    finally:
        route(me, {PEER: entry})


def test_the_rfcs_own_headers_travel_both_ways(nodes: tuple[Gateway, Gateway, Between]):
    me, _, between = nodes
    seen: list[Passing] = []

    def keep(asked: Passing) -> Passing:
        seen.extend((asked, between.forward(asked)))
        return seen[-1]

    between.attack = keep
    with pytest.raises(NotFound):
        poll(me)
    for one in seen:
        params, signature = (
            one.headers[n].removeprefix("bfia=") for n in ("signature-input", "signature")
        )
        assert one.headers["x-auth-sign"] == f"input={params}, signature={signature}"
        assert one.headers["content-digest"] == digest(one.body)


@pytest.mark.anyio
async def test_an_answer_that_goes_out_in_pieces_is_signed_as_a_whole():
    pair, sent = KeyPair(KEY_GENERATORS["ed25519"]()), list[Any]()
    asked = Signable("POST", "/v1/interconn/schedule/task/poll", "", digest(b""), PEER, ME)
    nonce = "0123456789abcdef"

    async def app(
        scope: Any,
        receive: Any,
        send: Any,
    ) -> None:
        scope["state"][requests._ANSWERED] = True
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [],
            }
        )
        await send(
            {
                "type": "http.response.body",
                "body": b"one ",
                "more_body": True,
            }
        )
        await send({"type": "http.response.body", "body": b"two"})

    async def send(message: Any) -> None:
        sent.append(message)

    made = headers(asked, sign(pair, asked, nonce, 1))
    named = [(b"x-source-node-id", PEER.encode()), (b"x-target-node-id", ME.encode())]
    raw = [*named, *((name.lower().encode(), value.encode()) for name, value in made.items())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": asked.path,
        "raw_path": asked.path.encode(),
    }
    scope |= {
        "query_string": b"",
        "headers": raw,
        "state": {},
    }
    signing = requests.with_signed_responses(app, lambda: pair, lambda _: None, CapacityLimiter(1))
    await signing(scope, None, send)  # type: ignore[arg-type]
    start, body = sent
    said = {name.decode(): value.decode() for name, value in start["headers"]}
    assert body["body"] == b"one two"
    check_response(
        SignableResponse(200, digest(b"one two"), asked), said["x-auth-sign"], nonce, [pair.public]
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
