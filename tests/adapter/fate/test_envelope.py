"""Whatever a path of FATE's raises is answered in FATE's envelope with its code, and HTTP status 200."""

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from adapter.fate.envelope import FOR_WORKERS, Code, FateRoute, coded, ok, router
from gateway.domain.problems import Problem
from gateway.errors import Conflict, DatabaseAway, Invalid, NotFound


class _Body(BaseModel):
    job_id: str
    role: str


ERRORS: dict[str, tuple[Exception, int, int, str]] = {
    "unknown": (NotFound("no such job", reason="JOB_UNKNOWN"), 200, 1001, "JOB_UNKNOWN"),
    "other": (Conflict("no"), 200, 1003, "CONFLICT"),
    "own": (Conflict("no", reason="OWN"), 200, 1004, "OWN"),
    "wrong": (Invalid([Problem("a.b", "must be x", 1)]), 200, 5001, "INVALID"),
    "bug": (ZeroDivisionError("secret"), 200, 6000, "INTERNAL"),
    "away": (DatabaseAway("gone"), 503, 1003, "DATABASE_AWAY"),  # so that FATE tries again
}


@pytest.fixture
def client() -> TestClient:
    routes = APIRouter(route_class=FateRoute)

    @routes.post("/raise/{what}", openapi_extra=coded({"OWN": Code.KILL_JOB_FAILED, "": Code.UPDATE_JOB_FAILED}))
    async def fail(what: str, body: _Body) -> Any:
        if what in ERRORS:
            raise ERRORS[what][0]
        return ok(job_id=body.job_id)

    app = FastAPI()
    app.include_router(routes)
    app.include_router(router(FOR_WORKERS))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_has_fates_code_and_our_reason(client: TestClient, what: str):
    _, status, code, reason = ERRORS[what]
    answer = client.post(f"/raise/{what}", json={"job_id": "j", "role": "guest"})
    found = answer.json()
    assert (answer.status_code, found["code"], found["data"]["reason"]) == (status, code, reason)
    assert found["message"].startswith(reason) and "secret" not in answer.text


def test_a_success_is_without_what_is_empty_and_a_wrong_body_is_told_each_problem(client: TestClient):
    answer = client.post("/raise/no", json={"job_id": "j", "role": "guest"})
    assert answer.json() == {"code": 0, "message": "success", "job_id": "j"}
    found = client.post("/raise/no", json={}).json()
    assert (found["code"], [p["path"] for p in found["data"]["problems"]]) == (5001, ["job_id", "role"])


@pytest.mark.parametrize("path", [*FOR_WORKERS, "/v2/worker/metric/save/one"])
def test_what_only_fates_workers_ask_is_not_served(client: TestClient, path: str):
    for method in ("GET", "POST"):
        answer = client.request(method, path)
        found = answer.json()
        assert (answer.status_code, found["code"], found["data"]["reason"]) == (200, 6001, "NOT_SERVED_HERE")
        assert path in found["message"]
