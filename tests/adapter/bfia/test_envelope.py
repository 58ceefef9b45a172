"""Every response of a path is in the envelope, whatever the request and whatever happens to it."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from adapter.bfia import envelope
from adapter.bfia.channel import responses
from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.forms import Form
from adapter.bfia.envelope import Route, ok
from adapter.bfia.requests import Done, Sender
from adapter.bfia.wire import Answer, JobData, JobId
from gateway.errors import Conflict, Invalid, NotAllowed, TooLarge
from gateway.http.app import Mounted, create_app

pytestmark = pytest.mark.anyio
MOST = 100


@pytest.fixture
def node() -> ASGIApp:
    """Return an application with some paths."""
    router = APIRouter(route_class=Route)

    @router.post("/job")
    async def job(
        body: Annotated[JobId, "example"],
        sender: Sender,
        by: str = Query(default=""),
    ) -> Answer[JobData]:
        if body.job_id == "job-bug":
            raise ZeroDivisionError
        if body.job_id == "job-taken":
            raise Conflict("it is taken")
        return ok(JobData(job_id=f"{body.job_id} of {sender.source} by {by}"))

    async def denied() -> None:
        raise NotAllowed("not here")

    @router.post("/closed", dependencies=[Depends(denied)])
    async def closed(body: Annotated[JobId, "example"]) -> Done:
        return ok()

    @router.get("/page")
    async def page(number: int) -> Done:
        return ok()

    async def check(request: Request) -> None:
        if request.headers.get("x-source-node-id") == "unknown":
            raise NotAllowed("not you")

    app = create_app("test", [Mounted(router, MOST)], first=[check])
    envelope.install(app)
    return envelope.too_large_in_envelope(app)


async def ask(app: ASGIApp, **changes: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    request = {
        "method": "POST",
        "url": "/job",
        "headers": {"x-source-node-id": "n1"},
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(**(request | changes))


async def test_a_path_gets_body_sender_and_query(node: ASGIApp):
    response = await ask(node, json={"job_id": "job-1"}, params={"by": "ann"})
    assert response.json()["code"] == 0
    assert response.json()["data"] == {"job_id": "job-1 of n1 by ann"}


@pytest.mark.parametrize(
    ("request_parts", "status", "code"),
    [
        ({"json": {"job_id": "job-taken"}}, 200, Conflict.code),
        ({"json": {"job_id": "job-bug"}}, 500, 500),
        (
            {"json": {"job_id": "job-1"}, "headers": {"x-source-node-id": "unknown"}},
            200,
            NotAllowed.code,
        ),
        ({"json": {"job_id": ""}}, 200, Invalid.code),
        ({"json": {}}, 200, Invalid.code),
        ({"content": b""}, 200, Invalid.code),
        ({"content": b"{"}, 200, Invalid.code),
        (
            {"content": b'{"job_id": "job-1"}', "headers": {"content-type": "text/plain"}},
            200,
            Invalid.code,
        ),
        ({"json": {"job_id": "job-1", "more": "x" * MOST}}, 413, 413),
        (
            {
                "content": b'{"job_id": "job-1"}'.ljust(300),
                "headers": {"content-length": "000000000300"},
            },
            413,
            413,
        ),
        ({"method": "GET"}, 405, 405),
        ({"url": "/none"}, 404, 404),
        ({"url": "/closed", "json": {"job_id": "job-1"}}, 200, NotAllowed.code),
        (
            {
                "method": "GET",
                "url": "/page",
                "params": {"number": "x"},
            },
            200,
            Invalid.code,
        ),
    ],
)
async def test_a_refusal_is_in_the_envelope(
    node: ASGIApp,
    request_parts: dict[str, Any],
    status: int,
    code: int,
):
    response = await ask(node, **request_parts)
    assert (response.status_code, response.json()["code"]) == (status, code)


async def test_the_frameworks_413_gets_the_envelope():
    response = await ask(envelope.too_large_in_envelope(PlainTextResponse("no", 413)))
    assert (response.status_code, response.json()["code"]) == (413, 413)


@pytest.mark.parametrize("form", Form)
async def test_the_channels_413_keeps_its_form(form: Form):
    refusal: Response = responses.refusal(TooLarge("too large"), form)
    response = await ask(envelope.too_large_in_envelope(refusal))
    answer = decode_answer(response.content, response.headers["content-type"])
    assert (response.status_code, answer.code) == (413, "E0000000413")
