"""What an application builds, and when."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi import Body, Depends, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from gateway.admin import deps
from gateway.http.app import Mounted, Paths, PathTaken, create_app
from gateway.ports import Limiters
from tests.aside import watch


def test_the_first_request_to_a_path_builds_it_and_no_other(monkeypatch: pytest.MonkeyPatch):
    built: list[str] = []

    class Noting(APIRoute):
        def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
            built.append(path)
            super().__init__(path, endpoint, **options)

    routers = []
    for name in ("a", "b"):
        router = Paths(route_class=Noting)
        router.add_api_route(f"/{name}/{{of}}", lambda of: {"ok": of})
        routers.append(Mounted(router, None))
    app = create_app("test", routers)
    client = TestClient(app)
    assert client.get("/c/1").status_code == 404
    assert built == []
    assert [client.get("/b/1").json() for _ in range(2)] == [{"ok": "1"}, {"ok": "1"}]
    assert client.post("/b/1").status_code == 405
    assert built == ["/b/{of}"]
    assert list(app.openapi()["paths"]) == ["/a/{of}", "/b/{of}"]
    assert built == ["/b/{of}", "/a/{of}"]


def test_a_path_is_built_once_with_what_its_router_says_of_all_of_its_paths(monkeypatch: pytest.MonkeyPatch):
    built: list[str] = []
    looked: list[str] = []

    class Noting(APIRoute):
        def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
            built.append(path)
            super().__init__(path, endpoint, **options)

    async def looks(request: Request) -> None:
        looked.append(request.url.path)

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        looked.append("begun")
        yield
        looked.append("ended")

    router = Paths(tags=["all"], route_class=Noting, dependencies=[Depends(looks)], lifespan=life)

    @router.post("/a", tags=["own"])
    async def a(body: bytes = Body()) -> int:
        return len(body)

    app = create_app("test", [Mounted(router, 10)])
    assert app.openapi()["paths"]["/a"]["post"]["tags"] == ["all", "own"]
    with TestClient(app) as client:
        assert client.post("/a", content=b"1234567890", headers={"content-type": "text/plain"}).json() == 10
        assert client.post("/a", content=b"12345678901").status_code == 413
    assert looked == ["begun", "/a", "ended"]
    assert built == ["/a"]
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
