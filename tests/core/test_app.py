"""What an application makes of its routers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Depends, Request
from fastapi.testclient import TestClient

from gateway.admin import deps
from gateway.http.app import Mounted, PathTaken, create_app
from gateway.ports import Limiters
from tests.aside import watch


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


def test_an_answer_is_written_out_where_it_was_found_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    on_the_loop = watch(monkeypatch, deps, "to_json")
    found = {"at": datetime(2026, 1, 2, tzinfo=UTC).isoformat(), "of": MappingProxyType({"余": (1, None)})}

    async def answer() -> bytes:
        run = deps.answering(Limiters(CapacityLimiter(1), CapacityLimiter(1), CapacityLimiter(1)))
        return (await run(lambda: found)).body

    assert json.loads(asyncio.run(answer())) == {"at": "2026-01-02T00:00:00+00:00", "of": {"余": [1, None]}}
    assert on_the_loop == [False]
