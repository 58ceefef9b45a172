"""Containers and peers that speak JSON, protobuf, or bare payloads with the topic in a header."""

import base64
import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.bfia.channel import containers
from adapter.bfia.channel.codec import decode_answer, decode_ask, read_envelope, read_push
from adapter.bfia.channel.message_forms import MOST_FIELDS, Form
from adapter.bfia.channel.ptp_pb2 import (
    Inbound,
    LegacyOutbound,
    PopInbound,
    PushInbound,
    TransportOutbound,
)
from gateway.errors import Invalid
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, push_body
from tests.adapter.bfia.scripted import says, scripted

pytestmark = pytest.mark.anyio

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json; charset=utf-8"}

READER_HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-token": "reader",
}
WRITER_HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-token": "writer",
    "x-ptp-target-node-id": "alpha",
}


def write_push(form, topic, payload):
    """Return the body and the headers of a push in a form."""
    match form:
        case Form.JSON:
            return json.dumps(push_body(payload, topic)).encode(), JSON
        case Form.PROTOBUF:
            push = PushInbound(
                topic=topic,
                payload=payload,
                metadata={"a": "b"},
            )
            return push.SerializeToString(), PROTOBUF
    return payload, {"x-ptp-topic": topic}


def write_pop(form, topic):
    """Return the path, the body and the headers of a pop in a form."""
    match form:
        case Form.JSON:
            return "pop", json.dumps({"topic": topic}).encode(), {}
        case Form.PROTOBUF:
            pop = PopInbound(
                topic=topic,
                timeout=60000,
            )
            return "pop", pop.SerializeToString(), PROTOBUF
    return "pop?timeout=60", b"", {"x-ptp-topic": topic}


def read_response(form, body):
    """Return the code and the payload of a response in a form."""
    if form is Form.JSON:
        response = json.loads(body)
        return response["code"], base64.b64decode(response["payload"])
    layout = TransportOutbound if form is Form.PROTOBUF else LegacyOutbound
    response = layout.FromString(body)
    return response.code, response.payload


class Speaker:
    """A container that speaks one form and understands responses in that form only."""

    def __init__(self, client, node, form):
        self.client = client
        self.node = node
        self.form = form

    async def post(self, verb, body, headers):
        """Send a request; return the code and the payload of the response."""
        response = await self.client.post(
            self.node.url + CHAN + verb, content=body, headers=headers
        )
        assert response.status_code == 200
        assert response.headers["content-type"] == self.form.value
        return read_response(self.form, response.content)

    async def push(self, target, topic, payload):
        """Push a message to a node; return the response's code."""
        body, headers = write_push(self.form, topic, payload)
        target_header = {"x-ptp-target-node-id": target}
        code, _ = await self.post(
            "push",
            body,
            WRITER_HEADERS | headers | target_header,
        )
        return code

    async def pop(self, topic, source=""):
        """Wait for a message, from any node by default; return code and payload."""
        path, body, headers = write_pop(self.form, topic)
        source_header = {"x-ptp-target-node-id": source}
        return await self.post(path, body, READER_HEADERS | headers | source_header)


@pytest.mark.parametrize(
    "profile",
    ["spec", "fate", "kuscia", "transport"],
)
async def test_containers_of_any_two_forms_understand_each_other(alpha, beta, client, profile):
    alpha.routes["beta"] = Route(
        "beta",
        beta.url,
        profile=profile,
    )
    short = b"\x00\xffhello"
    long = bytes(range(256)) * 2000

    for written_form, read_form in product(Form, Form):
        guest = Speaker(client, alpha, written_form)
        host = Speaker(client, beta, read_form)
        neighbour = Speaker(client, alpha, read_form)
        for payload in (short, long):
            assert await guest.push("beta", "guest.0-host.0", payload) == OK
            assert await host.pop("guest.0-host.0", "alpha") == (OK, payload)
            assert await guest.push("alpha", "local", payload) == OK
            assert await neighbour.pop("local") == (OK, payload)


@pytest.mark.parametrize("target", ["stranger", "nobody"])
@pytest.mark.parametrize("form", Form)
async def test_a_refusal_has_the_form_of_its_request(local_node, local_client, form, target):
    speaker = Speaker(local_client, local_node, form)

    assert await speaker.push(target, "t", b"x") == "E0000000618"


FORMS_INSIDE = [
    # the container's form, and the form in which the peer gets the message
    (Form.JSON, Form.JSON),
    (Form.PROTOBUF, Form.PROTOBUF),
    (Form.RAW, Form.JSON),
]


@pytest.mark.parametrize(("form", "sent_form"), FORMS_INSIDE)
async def test_a_fate_peer_gets_the_message_inside_an_inbound(alpha, client, form, sent_form):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route(
            "peer",
            url,
            profile="fate",
        )
        peer.will(says({"code": OK}))

        assert await Speaker(client, alpha, form).push("peer", "t", b"hello") == OK

        (request,) = peer.requests
    assert "x-ptp-version" not in request.headers
    assert request.headers["x-ptp-from-node-id"] == "alpha"
    assert request.headers["x-ptp-source-node-id"] == "alpha"
    assert request.headers["content-type"] == sent_form.value
    envelope, message = read_envelope([request.raw], sent_form)
    assert envelope.metadata["x-ptp-session-id"] == SESSION
    push, payload = read_push(list(message), sent_form)
    assert push.topic == "t"
    assert b"".join(payload) == b"hello"


@pytest.mark.parametrize("form", Form)
async def test_a_kuscia_peer_gets_the_bare_payload(alpha, client, form):
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route(
            "peer",
            url,
            profile="kuscia",
        )
        peer.will(says({"code": OK}))
        container = Speaker(client, alpha, form)

        assert await container.push("peer", "guest.0-host.0", b"\x00hello") == OK

        (request,) = peer.requests
    assert request.raw == b"\x00hello"
    assert request.headers["x-ptp-topic"] == "guest.0-host.0"
    assert request.headers["content-type"] == "application/octet-stream"


INVOKE = {
    "x-ptp-session-id": SESSION,
    "x-ptp-source-node-id": "beta",
    "x-ptp-target-node-id": "alpha",
}
PUSH = PushInbound(topic="t", payload=b"hi").SerializeToString()
ENCAPSULATED = Inbound(payload=PUSH).SerializeToString()
ENCAPSULATED_WITH_HEADERS = Inbound(payload=PUSH, metadata=INVOKE).SerializeToString()
BARE = {"x-ptp-topic": "t"}

PEER_INVOKES = {
    # headers, body, layout of the response
    "plain": ({"x-ptp-version": "1"} | PROTOBUF, PUSH, TransportOutbound),
    "encapsulated": (PROTOBUF, ENCAPSULATED, TransportOutbound),
    "headers inside": (PROTOBUF, ENCAPSULATED_WITH_HEADERS, TransportOutbound),
    "bare": (BARE, b"hi", LegacyOutbound),
    "octets": (BARE | {"content-type": "application/octet-stream"}, b"hi", LegacyOutbound),
}


@pytest.mark.parametrize(
    ("headers", "body", "layout"),
    PEER_INVOKES.values(),
    ids=PEER_INVOKES,
)
async def test_messages_of_peers_are_read_in_protobuf_and_bare(
    local_node, local_client, headers, body, layout
):
    response = await local_client.post(
        local_node.url + CHAN + "invoke", content=body, headers=INVOKE | headers
    )

    assert layout.FromString(response.content).code == OK
    reader = Speaker(local_client, local_node, Form.RAW)
    assert await reader.pop("t", "beta") == (OK, b"hi")


BARE_READER = READER_HEADERS | {"x-ptp-topic": "host.0-guest.0"}


async def test_an_empty_pop_of_a_bare_reader_is_a_success_without_content(local_node, local_client):
    """As recorded of SecretFlow's client: no Content-Type, ``timeout`` in s in the query."""
    response = await local_client.post(
        local_node.url + CHAN + "pop?timeout=0.01", headers=BARE_READER
    )

    empty = LegacyOutbound.FromString(response.content)
    assert empty.code == OK
    assert empty.payload == b""


async def test_a_bare_reader_of_an_ended_session_is_refused_after_its_timeout(
    local_node, local_client, monkeypatch
):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(containers.anyio, "sleep", sleep)
    local_node.sessions["ended"] = False

    response = await local_client.post(
        local_node.url + CHAN + "pop?timeout=1",
        headers=BARE_READER | {"x-ptp-session-id": "ended"},
    )

    assert LegacyOutbound.FromString(response.content).code == "E0000000608"
    assert pauses == [1.0]


TOO_MANY_FIELDS = b"\x1a\x02\x0a\x00" * (MOST_FIELDS + 1)

BAD_PROTOBUF = {
    # verb, body, part of the message
    "text": ("push", b"not protobuf", "PushInbound"),
    "JSON": ("push", b'{"topic": "t", "payload": "aGk="}', "PushInbound"),
    "ends early": ("push", PUSH[:-1], "PushInbound"),
    "length of 4 GiB": ("push", b"\x12\xff\xff\xff\xff\x0fhi", "PushInbound"),
    "endless length": ("push", b"\x12" + b"\xff" * 11, "PushInbound"),
    "topic not UTF-8": ("push", b"\x0a\x02\xff\xfe", "PushInbound"),
    "unknown field": ("push", b"\x7a\x02hi", "PushInbound"),
    "nested groups": ("push", b"\x0b" * 200_000, "fields"),
    "too many fields": ("push", TOO_MANY_FIELDS, "fields"),
    "long topic": ("push", PushInbound(topic="t" * 5000).SerializeToString(), "topic"),
    "pop ends early": ("pop", b"\x10\xff", "PopInbound"),
    "negative timeout": ("pop", PopInbound(timeout=-5).SerializeToString(), "timeout"),
    "release ends early": ("release", b"\x0a\x05t", "PopInbound"),
}


@pytest.mark.parametrize(
    ("verb", "body", "text"),
    BAD_PROTOBUF.values(),
    ids=BAD_PROTOBUF,
)
async def test_bad_protobuf_is_refused(local_node, local_client, verb, body, text):
    response = await local_client.post(
        local_node.url + CHAN + verb, content=body, headers=WRITER_HEADERS | PROTOBUF
    )

    assert response.status_code == 200
    refused = TransportOutbound.FromString(response.content)
    assert refused.code == "E0000000400"
    assert text in refused.message
    assert local_node.broker.usage() == (0, 0, 0)


RESPONSES = {
    # response, its code and content
    "empty": (
        TransportOutbound(code=OK, message="success"),
        OK,
        b"",
    ),
    "metadata": (
        TransportOutbound(
            code=OK,
            payload=b"x",
            metadata={"a": "b"},
        ),
        OK,
        b"x",
    ),
    "legacy, empty": (
        LegacyOutbound(code=OK, message="success"),
        OK,
        b"",
    ),
    "legacy, payload like a code": (
        LegacyOutbound(
            code=OK,
            payload=OK.encode(),
        ),
        OK,
        OK.encode(),
    ),
    "legacy, payload like protobuf": (
        LegacyOutbound(
            code="E0000000608",
            message="released",
            payload=b"\x0a\x01",
        ),
        "E0000000608",
        b"\x0a\x01",
    ),
}


@pytest.mark.parametrize(
    ("response", "code", "content"),
    RESPONSES.values(),
    ids=RESPONSES,
)
def test_both_layouts_of_responses_are_distinguished(response, code, content):
    decoded = decode_answer(response.SerializeToString(), "application/proto")

    assert decoded.code == code
    assert decoded.content == content


repeatable = settings(
    derandomize=True,
    deadline=None,
    max_examples=80,
)


@repeatable
@given(
    st.text(max_size=20),
    st.binary(max_size=200),
    st.dictionaries(
        st.text(max_size=5),
        st.text(max_size=5),
    ),
)
def test_a_written_push_is_read_unchanged(topic, payload, metadata):
    written = PushInbound(
        topic=topic,
        payload=payload,
        metadata=metadata,
    )
    body = written.SerializeToString()
    if not body:  # an empty message; an empty body is refused
        return

    push, pieces = read_push([body], Form.PROTOBUF)

    assert push.topic == topic
    assert b"".join(pieces) == payload
    assert push.metadata == metadata


# Each decodes the body of a message.
DECODERS = {
    "push": lambda body: read_push([body], Form.PROTOBUF),
    "envelope": lambda body: read_envelope([body], Form.PROTOBUF),
    "request": lambda body: decode_ask(body, Form.PROTOBUF),
    "response": lambda body: decode_answer(body, PROTOBUF["content-type"]),
}


@repeatable
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_read_or_refused(body):
    for decode in DECODERS.values():
        try:
            decode(body)
        except Invalid as error:
            assert error.problems
