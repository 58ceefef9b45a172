"""Well-formed requests are served before the application; all others are its own, as if nothing came before."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from starlette.types import ASGIApp

from adapter.bfia import envelope
from adapter.bfia.ahead import ahead
from adapter.bfia.envelope import Route, ok
from adapter.bfia.requests import Done, Sender
from adapter.bfia.wire import Answer, JobData, JobId
from gateway.errors import Conflict, Invalid, NotAllowed
from gateway.http.app import Mounted, create_app

pytestmark = pytest.mark.anyio
MOST = 100


@pytest.fixture
def served() -> tuple[ASGIApp, list[str]]:
    """Return an application with paths, and what reached its layers."""
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

    app: FastAPI = create_app("test", [Mounted(router, MOST)], first=[check])
    envelope.install(app)
    reached: list[str] = []

    async def usual(
        scope: Any,
        receive: Any,
        send: Any,
    ) -> None:
        reached.append(scope["path"])
        await app(scope, receive, send)

    return ahead(usual, app, [router], MOST), reached


async def asked(app: ASGIApp, **more: Any) -> dict[str, Any]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        request = {
            "method": "POST",
            "url": "/job",
            "headers": {"x-source-node-id": "n1"},
        } | more
        return dict((await client.request(**request)).json())


@pytest.mark.parametrize(
    ("asks", "code"),
    [
        ({"json": {"job_id": "job-1"}, "params": {"by": "ann"}}, 0),
        ({"json": {"job_id": "job-taken"}}, Conflict.code),
        ({"json": {"job_id": "job-bug"}}, 500),
        (
            {"json": {"job_id": "job-1"}, "headers": {"x-source-node-id": "unknown"}},
            NotAllowed.code,
        ),
    ],
)
async def test_a_well_formed_request_is_served_before_the_application(
    served: tuple[ASGIApp, list[str]],
    asks: dict[str, Any],
    code: int,
):
    app, reached = served
    answer = await asked(app, **asks)
    assert answer["code"] == code and reached == []
    if code == 0:
        assert answer["data"] == {"job_id": "job-1 of n1 by ann"}


@pytest.mark.parametrize(
    ("asks", "code"),
    [
        ({"json": {"job_id": ""}}, Invalid.code),
        ({"json": {}}, Invalid.code),
        ({"content": b""}, Invalid.code),
        ({"content": b"{"}, Invalid.code),
        (
            {"content": b'{"job_id": "job-1"}', "headers": {"content-type": "text/plain"}},
            Invalid.code,
        ),
        ({"json": {"job_id": "job-1", "more": "x" * MOST}}, 413),
        (
            {
                "content": b'{"job_id": "job-1"}'.ljust(300),
                "headers": {"content-length": "000000000300"},
            },
            413,
        ),
        ({"method": "GET"}, 405),
        ({"url": "/none"}, 404),
        ({"url": "/closed", "json": {"job_id": "job-1"}}, NotAllowed.code),
        (
            {
                "method": "GET",
                "url": "/page",
                "params": {"number": "x"},
            },
            Invalid.code,
        ),
    ],
)
async def test_any_other_is_the_applications(
    served: tuple[ASGIApp, list[str]],
    asks: dict[str, Any],
    code: int,
):
    app, reached = served
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        answer = await client.request(**({"method": "POST", "url": "/job"} | asks))
    found = answer.json()["code"] if code != 413 else answer.status_code
    assert found == code and len(reached) == 1
