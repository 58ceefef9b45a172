"""An application is whole before it is asked for anything."""

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from gateway.app import Mounted, create_app


def test_the_first_request_finds_every_path_built(monkeypatch: pytest.MonkeyPatch):
    routers = []
    for name in ("a", "b"):
        router = APIRouter()
        router.add_api_route(f"/{name}", lambda: {"ok": True})
        routers.append(Mounted(router, None))
    app = create_app("test", routers)
    monkeypatch.setattr("fastapi.routing.get_dependant", None)  # what reads the signature of a path's function
    assert TestClient(app).get("/b").json() == {"ok": True}
