"""Containers and peers that speak JSON, protobuf, or send the bare payload with its topic in a header."""

import base64
import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.bfia.channel import containers
from adapter.bfia.channel.codec import decode_answer, decode_ask, read_envelope, read_push
from adapter.bfia.channel.forms import MOST_FIELDS, Form
from adapter.bfia.channel.ptp_pb2 import (
    Inbound,
    LegacyOutbound,
    PopInbound,
    PushInbound,
    TransportOutbound,
)
from gateway.errors import Invalid
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION
from tests.adapter.bfia.scripted import says, scripted

pytestmark = pytest.mark.anyio

PROTOBUF = {"content-type": "application/x-protobuf"}


class Speaker:
    """A container that speaks one form, and reads its answers in no other."""

    def __init__(
        self,
        client,
        node,
        form,
    ):
        self.client, self.node, self.form = client, node, form

    async def post(
        self,
        verb,
        body,
        token,
        **headers,
    ):
        named = {"x-ptp-session-id": SESSION, "x-ptp-token": token} | headers
        response = await self.client.post(self.node.url + CHAN + verb, content=body, headers=named)
        assert response.status_code == 200
        return response.headers["content-type"], response.content

    async def push(
        self,
        target,
        topic,
        payload,
    ):
        headers = {"x-ptp-target-node-id": target}
        if self.form is Form.JSON:
            body = json.dumps(
                {"topic": topic, "payload": base64.b64encode(payload).decode()}
            ).encode()
            headers["content-type"] = "application/json; charset=utf-8"
        elif self.form is Form.PROTOBUF:
            body = PushInbound(
                topic=topic,
                payload=payload,
                metadata={"a": "b"},
            ).SerializeToString()
            headers |= PROTOBUF
        else:
            body, headers = payload, headers | {"x-ptp-topic": topic}
        return self.read(await self.post("push", body, "writer", **headers))[0]

    async def pop(self, topic, source=""):
        headers = {"x-ptp-target-node-id": source}
        if self.form is Form.JSON:
            found = await self.post(
                "pop", json.dumps({"topic": topic}).encode(), "reader", **headers
            )
        elif self.form is Form.PROTOBUF:
            body = PopInbound(topic=topic, timeout=60000).SerializeToString()
            found = await self.post("pop", body, "reader", **headers, **PROTOBUF)
        else:
            found = await self.post(
                "pop?timeout=60", b"", "reader", **headers, **{"x-ptp-topic": topic}
            )
        return self.read(found)

    def read(self, found):
        kind, body = found
        assert kind == self.form.value
        if self.form is Form.JSON:
            answer = json.loads(body)
            return answer["code"], base64.b64decode(answer["payload"])
        answer = (TransportOutbound if self.form is Form.PROTOBUF else LegacyOutbound).FromString(
            body
        )
        return answer.code, answer.payload


@pytest.mark.parametrize("profile", ["spec", "fate", "kuscia"])
async def test_containers_of_any_two_forms_understand_each_other(
    alpha,
    beta,
    client,
    profile,
):
    alpha.routes["beta"] = Route("beta", beta.url, profile=profile)
    for writes, reads in product(Form, Form):
        guest, host = Speaker(client, alpha, writes), Speaker(client, beta, reads)
        for payload in (b"\x00\xffhello", bytes(range(256)) * 2000):
            assert await guest.push("beta", "guest.0-host.0", payload) == OK
            assert await host.pop("guest.0-host.0", "alpha") == (OK, payload)
            assert await guest.push("alpha", "here", payload) == OK
            assert await Speaker(client, alpha, reads).pop("here") == (OK, payload)


@pytest.mark.parametrize("form", Form)
async def test_a_refusal_has_the_form_of_its_request(
    desk,
    caller,
    form,
):
    assert await Speaker(caller, desk, form).push("stranger", "t", b"x") == "E0000000618"
    assert await Speaker(caller, desk, form).push("nobody", "t", b"x") == "E0000000618"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Form.JSON, Form.JSON),
        (Form.PROTOBUF, Form.PROTOBUF),
        (Form.RAW, Form.JSON),
    ],
)
async def test_a_fate_peer_gets_the_message_inside_an_inbound(
    alpha,
    client,
    form,
    expected,
):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url, profile="fate")
        peer.will(says({"code": OK}))
        assert await Speaker(client, alpha, form).push("peer", "t", b"hello") == OK
        (asked,) = peer.asked
    assert "x-ptp-version" not in asked.headers
    assert asked.headers["x-ptp-from-node-id"] == asked.headers["x-ptp-source-node-id"] == "alpha"
    assert asked.headers["content-type"] == expected.value
    outer, inside = read_envelope([asked.raw], expected)
    assert outer.metadata["x-ptp-session-id"] == SESSION
    inner, payload = read_push(list(inside), expected)
    assert inner.topic == "t"
    assert b"".join(payload) == b"hello"


@pytest.mark.parametrize("form", Form)
async def test_a_kuscia_peer_gets_the_bare_payload(
    alpha,
    client,
    form,
):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url, profile="kuscia")
        peer.will(says({"code": OK}))
        assert await Speaker(client, alpha, form).push("peer", "guest.0-host.0", b"\x00hello") == OK
        (asked,) = peer.asked
    assert asked.raw == b"\x00hello"
    assert asked.headers["x-ptp-topic"] == "guest.0-host.0"
    assert asked.headers["content-type"] == "application/octet-stream"


INVOKE = {
    "x-ptp-session-id": SESSION,
    "x-ptp-source-node-id": "beta",
    "x-ptp-target-node-id": "alpha",
}
PUSH = PushInbound(topic="t", payload=b"hi").SerializeToString()


@pytest.mark.parametrize(
    ("headers", "body", "answer"),
    [
        ({"x-ptp-version": "1"} | PROTOBUF, PUSH, TransportOutbound),
        (PROTOBUF, Inbound(payload=PUSH).SerializeToString(), TransportOutbound),
        (PROTOBUF, Inbound(payload=PUSH, metadata=INVOKE).SerializeToString(), TransportOutbound),
        ({"x-ptp-topic": "t"}, b"hi", LegacyOutbound),
        ({"x-ptp-topic": "t", "content-type": "application/octet-stream"}, b"hi", LegacyOutbound),
    ],
)
async def test_what_peers_bring_in_protobuf_or_bare(
    desk,
    caller,
    headers,
    body,
    answer,
):
    response = await caller.post(desk.url + CHAN + "invoke", content=body, headers=INVOKE | headers)
    assert answer.FromString(response.content).code == OK
    assert await Speaker(caller, desk, Form.RAW).pop("t", "beta") == (OK, b"hi")


async def test_an_empty_pop_of_a_bare_reader_is_a_success_without_content(
    desk,
    caller,
    monkeypatch,
):
    """As recorded of SecretFlow's client: no Content-Type, ``timeout`` in seconds in the query."""
    headers = {
        "x-ptp-session-id": SESSION,
        "x-ptp-token": "reader",
        "x-ptp-topic": "host.0-guest.0",
    }
    response = await caller.post(desk.url + CHAN + "pop?timeout=0.01", headers=headers)
    answer = LegacyOutbound.FromString(response.content)
    assert answer.code == OK
    assert answer.payload == b""
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(containers.anyio, "sleep", sleep)
    desk.sessions["ended"] = False
    ended = headers | {"x-ptp-session-id": "ended"}
    response = await caller.post(desk.url + CHAN + "pop?timeout=1", headers=ended)
    assert LegacyOutbound.FromString(response.content).code == "E0000000608"
    assert waited == [1.0]


MANY = b"".join(b"\x1a\x02\x0a\x00" for _ in range(MOST_FIELDS + 1))


@pytest.mark.parametrize(
    ("verb", "body", "named"),
    [
        ("push", b"not protobuf", "PushInbound"),
        ("push", b'{"topic": "t", "payload": "aGk="}', "PushInbound"),
        ("push", PUSH[:-1], "PushInbound"),
        ("push", b"\x12\xff\xff\xff\xff\x0fhi", "PushInbound"),
        ("push", b"\x12" + b"\xff" * 11, "PushInbound"),
        ("push", b"\x0a\x02\xff\xfe", "PushInbound"),
        ("push", b"\x7a\x02hi", "PushInbound"),
        ("push", b"\x0b" * 200_000, "fields"),
        ("push", MANY, "fields"),
        ("push", PushInbound(topic="t" * 5000).SerializeToString(), "topic"),
        ("pop", b"\x10\xff", "PopInbound"),
        ("pop", PopInbound(timeout=-5).SerializeToString(), "timeout"),
        ("release", b"\x0a\x05t", "PopInbound"),
    ],
)
async def test_what_is_no_message_in_protobuf_is_refused(
    desk,
    caller,
    verb,
    body,
    named,
):
    headers = {
        "x-ptp-session-id": SESSION,
        "x-ptp-token": "writer",
        "x-ptp-target-node-id": "alpha",
    } | PROTOBUF
    response = await caller.post(desk.url + CHAN + verb, content=body, headers=headers)
    answer = TransportOutbound.FromString(response.content)
    assert response.status_code == 200
    assert answer.code == "E0000000400"
    assert named in answer.message
    assert desk.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize(
    ("answer", "code", "content"),
    [
        (TransportOutbound(code=OK, message="success"), OK, b""),
        (
            TransportOutbound(
                code=OK,
                payload=b"x",
                metadata={"a": "b"},
            ),
            OK,
            b"x",
        ),
        (LegacyOutbound(code=OK, message="success"), OK, b""),
        (LegacyOutbound(code=OK, payload=b"E0000000000"), OK, b"E0000000000"),
        (
            LegacyOutbound(
                code="E0000000608",
                message="released",
                payload=b"\x0a\x01",
            ),
            "E0000000608",
            b"\x0a\x01",
        ),
    ],
    ids=str,
)
def test_both_layouts_of_responses_are_distinguished(
    answer,
    code,
    content,
):
    found = decode_answer(answer.SerializeToString(), "application/proto")
    assert found.code == code
    assert found.content == content


steady = settings(
    derandomize=True,
    deadline=None,
    max_examples=80,
)


@steady
@given(
    st.text(max_size=20),
    st.binary(max_size=200),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
)
def test_what_is_written_is_read(
    topic,
    payload,
    metadata,
):
    body = PushInbound(
        topic=topic,
        payload=payload,
        metadata=metadata,
    ).SerializeToString()
    if body:
        push, found = read_push([body], Form.PROTOBUF)
        assert push.topic == topic
        assert b"".join(found) == payload
        assert push.metadata == metadata


@steady
@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_refused(body):
    for decode in (read_push, read_envelope, lambda pieces, form: decode_ask(pieces[0], form)):
        try:
            decode([body], Form.PROTOBUF)
        except Invalid as error:
            assert error.problems
    try:
        decode_answer(body, "application/x-protobuf")
    except Invalid as error:
        assert error.problems
