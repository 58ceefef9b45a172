"""An application is whole before it is asked for anything."""

import asyncio
import json
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from anyio import CapacityLimiter
from fastapi import APIRouter
from fastapi.testclient import TestClient

from gateway.admin import answers
from gateway.app import Mounted, create_app
from gateway.ports import Limiters
from tests.aside import watch


def test_the_first_request_finds_every_path_built(monkeypatch: pytest.MonkeyPatch):
    routers = []
    for name in ("a", "b"):
        router = APIRouter()
        router.add_api_route(f"/{name}", lambda: {"ok": True})
        routers.append(Mounted(router, None))
    app = create_app("test", routers)
    monkeypatch.setattr("fastapi.routing.get_dependant", None)  # what reads the signature of a path's function
    assert TestClient(app).get("/b").json() == {"ok": True}


def test_an_answer_is_written_out_where_it_was_found_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    on_the_loop = watch(monkeypatch, answers, "to_json")
    found = {"at": datetime(2026, 1, 2, tzinfo=UTC).isoformat(), "of": MappingProxyType({"余": (1, None)})}

    async def answer() -> bytes:
        run = answers.answering(Limiters(CapacityLimiter(1), CapacityLimiter(1), CapacityLimiter(1)))
        return (await run(lambda: found)).body

    assert json.loads(asyncio.run(answer())) == {"at": "2026-01-02T00:00:00+00:00", "of": {"余": [1, None]}}
    assert on_the_loop == [False]
