"""Every response of a path is in the envelope, whatever the request and its fate."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from adapter.bfia import envelope
from adapter.bfia.channel import responses
from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.envelope import Route, ok
from adapter.bfia.requests import Done, Sender
from adapter.bfia.wire import Answer, JobData, JobId
from gateway.errors import Conflict, Invalid, NotAllowed, Problem, TooLarge
from gateway.http.app import Mounted, create_app

pytestmark = pytest.mark.anyio

# The largest body, in bytes.
MAX_BODY = 100


@pytest.fixture
def app() -> ASGIApp:
    """An application with some paths, and with the refusals of too large bodies."""
    return envelope.too_large_in_envelope(bare_app())


def bare_app() -> ASGIApp:
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

    app = create_app(
        "test",
        [Mounted(router, MAX_BODY)],
        checks=[check],
    )
    envelope.install(app)
    return app


async def send(app: ASGIApp, **changes: Any) -> httpx.Response:
    """Send a good request to an application, with changes of its parts."""
    transport = httpx.ASGITransport(
        app,
        raise_app_exceptions=False,
    )
    request = {
        "method": "POST",
        "url": "/job",
        "headers": {"x-source-node-id": "n1"},
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(**(request | changes))


async def test_a_path_gets_body_sender_and_query(app):
    response = await send(
        app,
        json={"job_id": "job-1"},
        params={"by": "ann"},
    )
    assert response.json()["code"] == 0
    assert response.json()["data"] == {"job_id": "job-1 of n1 by ann"}


JOB = {"job_id": "job-1"}

# Requests that differ from a good one, and the HTTP status and the code of their refusal.
REFUSALS = {
    "conflict": (
        {"json": {"job_id": "job-taken"}},
        200,
        Conflict.code,
    ),
    "bug": (
        {"json": {"job_id": "job-bug"}},
        500,
        500,
    ),
    "denied sender": (
        {
            "json": JOB,
            "headers": {"x-source-node-id": "unknown"},
        },
        200,
        NotAllowed.code,
    ),
    "empty id": (
        {"json": {"job_id": ""}},
        200,
        Invalid.code,
    ),
    "empty object": (
        {"json": {}},
        200,
        Invalid.code,
    ),
    "empty body": (
        {"content": b""},
        200,
        Invalid.code,
    ),
    "broken body": (
        {"content": b"{"},
        200,
        Invalid.code,
    ),
    "plain text": (
        {
            "content": b'{"job_id": "job-1"}',
            "headers": {"content-type": "text/plain"},
        },
        200,
        Invalid.code,
    ),
    "large body": ({"json": JOB | {"more": "x" * MAX_BODY}}, 413, 413),
    "large length": (
        {
            "content": b'{"job_id": "job-1"}'.ljust(300),
            "headers": {"content-length": "000000000300"},
        },
        413,
        413,
    ),
    "method": (
        {"method": "GET"},
        405,
        405,
    ),
    "path": (
        {"url": "/none"},
        404,
        404,
    ),
    "denied path": (
        {"url": "/closed", "json": JOB},
        200,
        NotAllowed.code,
    ),
    "query": (
        {
            "method": "GET",
            "url": "/page",
            "params": {"number": "x"},
        },
        200,
        Invalid.code,
    ),
}


@pytest.mark.parametrize(
    ("request_parts", "status", "code"),
    REFUSALS.values(),
    ids=REFUSALS,
)
async def test_a_refusal_is_in_the_envelope(app, request_parts, status, code):
    response = await send(app, **request_parts)
    assert response.status_code == status
    assert response.json()["code"] == code


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        (MAX_BODY, f"a body may have at most {MAX_BODY} bytes (limits.body_bytes)"),
        (MAX_BODY + 1, f"a body may have at most {MAX_BODY} bytes at this path"),
    ],
)
@pytest.mark.parametrize("request_parts", ["large body", "large length"])
async def test_an_oversized_body_gets_the_limit_and_its_setting(
    request_parts,
    setting,
    rule,
):
    app = envelope.too_large_in_envelope(bare_app(), body_bytes=setting)
    response = await send(app, **REFUSALS[request_parts][0])
    assert response.json()["msg"] == f"TOO_LARGE: {rule}"


@pytest.mark.parametrize(
    ("path", "repeated"),
    [
        ("/v1/platform/schedule/job/create_all", False),
        ("/api/v1/jobs/plan", False),
        ("/v1/interconn/schedule/job/create", True),  # peers read it from the text
    ],
)
async def test_people_read_the_reason_of_a_refusal_once(path, repeated):
    async def refuse() -> None:
        problem = Problem("dag.components[0]", "is unknown", reason="PROVIDER_UNKNOWN")
        raise Invalid([problem])

    router = APIRouter(route_class=Route)
    router.add_api_route(path, refuse, methods=["POST"])
    app = create_app("test", [Mounted(router, MAX_BODY)])
    envelope.install(app)

    body = (await send(app, url=path)).json()

    again = "PROVIDER_UNKNOWN: " if repeated else ""
    assert body["msg"] == f"PROVIDER_UNKNOWN: dag.components[0]: {again}is unknown"
    assert body["data"]["problems"][0]["reason"] == "PROVIDER_UNKNOWN"


async def test_the_frameworks_413_gets_the_envelope():
    app = envelope.too_large_in_envelope(PlainTextResponse("no", 413))
    response = await send(app)
    assert response.status_code == 413
    assert response.json()["code"] == 413


@pytest.mark.parametrize("form", Form)
async def test_the_channels_413_keeps_its_form(form):
    refusal = responses.refusal(TooLarge("too large"), form)
    response = await send(envelope.too_large_in_envelope(refusal))
    body = decode_answer(response.content, response.headers["content-type"])
    assert response.status_code == 413
    assert body.code == "E0000000413"
