"""What an application makes of its routers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import APIRouter, Body, Depends, Request
from fastapi.testclient import TestClient

from gateway.http.app import Mounted, PathTaken, create_app


def test_a_path_has_what_its_router_says_of_all_of_its_paths():
    events: list[str] = []

    async def looks(request: Request) -> None:
        events.append(request.url.path)

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        events.append("begun")
        yield
        events.append("ended")

    router = APIRouter(tags=["all"], dependencies=[Depends(looks)], lifespan=life)

    @router.post("/a", tags=["own"])
    async def a(body: bytes = Body()) -> int:
        return len(body)

    app = create_app("test", [Mounted(router, 10)])
    assert app.openapi()["paths"]["/a"]["post"]["tags"] == ["all", "own"]
    with TestClient(app) as client:
        assert client.post("/a", content=b"1234567890", headers={"content-type": "text/plain"}).json() == 10
        assert client.post("/a", content=b"12345678901").status_code == 413
    assert events == ["begun", "/a", "ended"]
    with pytest.raises(PathTaken, match="POST /a"):
        create_app("test", [Mounted(router, 10), Mounted(router, 10)])
