"""The path ``chan/transport`` over HTTP, and targets that are named by their institution only."""

import json

import pytest

from adapter.bfia.channel.bodies import LARGE
from adapter.bfia.channel.message_forms import Form
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    CHAN,
    INVOKE_HEADERS,
    OK,
    Container,
    post_message,
    push_body,
)
from tests.adapter.bfia.channel.test_message_forms import read_response, write_push
from tests.adapter.bfia.scripted import says, scripted

pytestmark = pytest.mark.anyio

ACCEPTED = says({"code": OK, "message": "ok"})

INVALID = "E0000000400"
NOT_FOUND = "E0000000404"
NOT_JOINED = "E0000000618"


# ---------------------------------------------------------------- the path


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("version", ["1", "1.1.0", ""])
async def test_a_peer_brings_a_push_as_it_is(local_node, local_client, form, version):
    """The body has no envelope, whatever the version."""
    body, form_headers = write_push(form, "t", b"\x00hello")

    response = await local_client.post(
        local_node.url + CHAN + "transport",
        content=body,
        headers=INVOKE_HEADERS | {"x-ptp-version": version} | form_headers,
    )

    assert read_response(form, response.content) == (OK, b"")
    assert await Container(local_client, local_node).peek() == b"\x00hello"


@pytest.mark.parametrize("uri", ["https://ptp.cn/v1/interconn/chan/push", ""])
async def test_the_path_of_the_uri_counts_and_may_be_absent(local_node, local_client, uri):
    _, response = await post_message(
        local_client,
        local_node,
        "transport",
        push_body(b"x"),
        INVOKE_HEADERS | {"x-ptp-uri": uri},
    )
    assert response["code"] == OK


async def test_a_uri_of_another_path_is_refused(local_node, local_client):
    _, response = await post_message(
        local_client,
        local_node,
        "transport",
        push_body(b"x"),
        INVOKE_HEADERS | {"x-ptp-uri": "/v1/interconn/chan/pop"},
    )

    assert response["code"] == NOT_FOUND
    assert "/v1/interconn/chan/pop" in response["message"]
    assert local_node.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize("payload", [b"hi", b"\x01" * (2 * LARGE)], ids=["short", "long"])
async def test_a_peer_of_profile_transport_gets_the_container_s_bytes_there(alpha, client, payload):
    body = json.dumps(push_body(payload)).encode()
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("peer", url, profile="transport")
        peer.will(ACCEPTED)

        response = await Container(client, alpha).post("push", body, x_ptp_target_node_id="peer")

    assert response["code"] == OK
    (request,) = peer.requests
    assert request.target == CHAN + "transport"
    assert request.raw == body
    assert request.headers["x-ptp-uri"] == CHAN + "push"
    assert request.headers["content-type"] == "application/json"


# ---------------------------------------------------------------- institutions


async def push_to_institution(client, node, institution):
    """Push a message that names only an institution; return the response."""
    return await Container(client, node).post(
        "push", push_body(b"x"), x_ptp_target_inst_id=institution
    )


async def test_a_push_goes_to_the_node_of_the_institution_in_the_job(alpha, beta, client):
    alpha.institutions["bank"] = ("elsewhere", "beta")

    response = await push_to_institution(client, alpha, "bank")

    assert response["code"] == OK
    assert await Container(client, beta).pop() == b"x"


async def test_an_institution_with_several_nodes_in_the_job_is_refused(alpha, client):
    alpha.institutions["bank"] = ("beta", "peer")

    response = await push_to_institution(client, alpha, "bank")

    assert response["code"] == INVALID
    for text in ("x-ptp-target-inst-id", "beta, peer", "x-ptp-target-node-id"):
        assert text in response["message"]


async def test_an_institution_without_a_node_in_the_job_is_refused(alpha, client):
    alpha.institutions["bank"] = ("elsewhere",)

    for institution in ("bank", "unknown"):
        response = await push_to_institution(client, alpha, institution)

        assert response["code"] == NOT_JOINED
        assert institution in response["message"]


@pytest.mark.parametrize(
    ("institution", "code"),
    [("alpha-inst", OK), ("alpha", OK), ("beta-inst", NOT_JOINED)],
)
@pytest.mark.parametrize("verb", ["invoke", "transport"])
async def test_a_peer_may_name_this_node_s_institution_only(
    local_node, local_client, verb, institution, code
):
    target = {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": institution}

    _, response = await post_message(
        local_client,
        local_node,
        verb,
        push_body(b"x"),
        INVOKE_HEADERS | target,
    )

    assert response["code"] == code
