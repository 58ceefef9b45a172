"""What no transport can use, in each form, from containers and peers: a code, and nothing stored."""

import asyncio
import base64
import json

import pytest

from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound
from tests.adapter.bfia.channel.nodes import CHAN, SESSION, Container, Node

pytestmark = pytest.mark.anyio

MIB = "t" * (1 << 20)
INVALID, TOO_LARGE, ENDED, UNKNOWN_FORM = "E0000000400", "E0000000413", "E0000000608", "E0000000616"
KINDS = {Form.JSON: "application/json", Form.PROTOBUF: "application/x-protobuf", Form.RAW: "text/plain"}
ways = pytest.mark.parametrize("way", ["push", "invoke", "encapsulated"])
forms = pytest.mark.parametrize("form", Form)


def headers_of(form: Form, way: str, **more: str) -> dict[str, str]:
    named = {"x-ptp-session-id": SESSION, "x-ptp-target-node-id": "alpha", "content-type": KINDS[form]}
    named |= {"x-ptp-token": "writer"} if way == "push" else {"x-ptp-source-node-id": "beta"}
    named |= {"x-ptp-version": "1"} if way == "invoke" else {}
    named |= {"x-ptp-topic": "t"} if form is Form.RAW else {}
    return named | {name.replace("_", "-"): value for name, value in more.items()}


def body_of(form: Form, way: str, topic: str = "t", payload: bytes = b"hello") -> bytes:
    if form is Form.RAW:
        return payload
    if form is Form.PROTOBUF:
        push = PushInbound(topic=topic, payload=payload).SerializeToString()
        return push if way != "encapsulated" else Inbound(payload=push).SerializeToString()
    push = json.dumps({"topic": topic, "payload": base64.b64encode(payload).decode()}).encode()
    outer = {"payload": base64.b64encode(push).decode()}
    return push if way != "encapsulated" else json.dumps(outer).encode()


async def refused(caller, node: Node, way: str, body: bytes, headers: dict[str, str]) -> str:
    """Return the code of a refusal, and see that nothing of the request is left."""
    path = "push" if way == "push" else "invoke"
    response = await caller.post(node.url + CHAN + path, content=body, headers=headers)
    answer = decode_answer(response.content, response.headers["content-type"])
    assert answer.message and "Traceback" not in answer.message
    assert node.broker.usage() == (0, 0, 0)
    return answer.code


@ways
@forms
async def test_a_topic_of_a_mebibyte(desk, caller, form, way):
    more = {"x_ptp_topic": MIB} if form is Form.RAW else {}
    body = body_of(form, way, topic=MIB)
    assert await refused(caller, desk, way, body, headers_of(form, way, **more)) == INVALID


@ways
@pytest.mark.parametrize("form", [Form.JSON, Form.PROTOBUF])
async def test_a_message_that_ends_early(desk, caller, form, way):
    body = body_of(form, way)[:-2]
    assert await refused(caller, desk, way, body, headers_of(form, way)) == INVALID


@ways
async def test_a_message_in_another_form_than_its_type_says(desk, caller, way):
    for said, sent in ((Form.JSON, Form.PROTOBUF), (Form.PROTOBUF, Form.JSON)):
        body = body_of(sent, way)
        assert await refused(caller, desk, way, body, headers_of(said, way)) == INVALID


@ways
@pytest.mark.parametrize("kind", ["application/xml", "application/x-msgpack", "application/toml", "text/plain"])
async def test_a_form_that_is_not_known_here(desk, caller, kind, way):
    headers = headers_of(Form.JSON, way, content_type=kind)
    assert await refused(caller, desk, way, body_of(Form.JSON, way), headers) == UNKNOWN_FORM


@ways
@forms
async def test_a_session_that_has_ended(desk, caller, form, way):
    desk.sessions[SESSION] = False
    assert await refused(caller, desk, way, body_of(form, way), headers_of(form, way)) == ENDED


@ways
@forms
async def test_a_body_over_the_limit(make_node, client, form, way):
    node = await make_node("alpha", max_body=1000)
    body = body_of(form, way, payload=bytes(2000))
    assert await refused(client, node, way, body, headers_of(form, way)) == TOO_LARGE


@pytest.mark.parametrize("chunked", [False, True])
@ways
@forms
async def test_a_body_that_ends_before_its_length(alpha, client, form, way, chunked):
    """The sender says more than it sends and hangs up: nobody is left to be answered, and nothing is kept."""
    body, headers = body_of(form, way), headers_of(form, way)
    headers |= {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body) + 100)}
    lines = [f"POST {CHAN}{'push' if way == 'push' else 'invoke'} HTTP/1.1", "host: alpha"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sent = f"{len(body) + 100:x}\r\n".encode() + body if chunked else body
    reader, writer = await asyncio.open_connection(*alpha.url.removeprefix("http://").split(":"))
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    writer.write_eof()
    assert b"Traceback" not in await reader.read()
    writer.close()
    assert alpha.broker.usage() == (0, 0, 0)
    assert await Container(client, alpha).push("alpha", b"next") == "E0000000000"
    assert await Container(client, alpha).pop() == b"next"
