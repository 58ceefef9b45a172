"""Whatever a path of FATE's raises is answered in FATE's envelope with its code, and HTTP status 200."""

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from adapter.fate import envelope
from adapter.fate.envelope import Code, FateRoute, coded, ok
from gateway.domain.problems import Problem
from gateway.errors import Conflict, DatabaseAway, Invalid, NotFound


class _Body(BaseModel):
    job_id: str
    role: str


ERRORS: dict[str, Exception] = {
    "unknown": NotFound("no such job", reason="JOB_UNKNOWN"),
    "other": Conflict("no"),
    "own": Conflict("no", reason="OWN"),
    "wrong": Invalid([Problem("a.b", "must be x", 1)]),
    "bug": ZeroDivisionError("secret"),
    "away": DatabaseAway("gone"),
}


@pytest.fixture
def client() -> TestClient:
    router = APIRouter(route_class=FateRoute)

    @router.post("/raise/{what}", openapi_extra=coded({"OWN": Code.KILL_JOB_FAILED, "": Code.UPDATE_JOB_FAILED}))
    async def fail(what: str, body: _Body) -> Any:
        if what in ERRORS:
            raise ERRORS[what]
        return ok(job_id=body.job_id)

    app = FastAPI()
    app.include_router(router)
    app.include_router(envelope.router(envelope.FOR_WORKERS))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("what", "code", "reason", "status"),
    [
        ("unknown", 1001, "JOB_UNKNOWN", 404),
        ("other", 1003, "CONFLICT", 409),
        ("own", 1004, "OWN", 409),
        ("wrong", 5001, "INVALID", 400),
        ("bug", 6000, "INTERNAL", 500),
    ],
)
def test_an_error_has_fates_code_and_our_reason(
    client: TestClient, what: str, code: int, reason: str, status: int
):
    answer = client.post(f"/raise/{what}", json={"job_id": "j", "role": "guest"})
    said = answer.json()
    assert (answer.status_code, said["code"]) == (200, code)
    assert (said["data"]["reason"], said["data"]["status"]) == (reason, status)
    assert said["message"].startswith(reason) and "secret" not in answer.text


def test_success_is_without_what_is_empty(client: TestClient):
    answer = client.post("/raise/no", json={"job_id": "j", "role": "guest"})
    assert answer.json() == {"code": 0, "message": "success", "job_id": "j"}


def test_every_missing_field_is_told_at_once(client: TestClient):
    said = (client.post("/raise/no", json={})).json()
    assert said["code"] == 5001
    assert [p["path"] for p in said["data"]["problems"]] == ["job_id", "role"]


def test_an_outage_is_told_as_one_so_that_fate_tries_again(client: TestClient):
    answer = client.post("/raise/away", json={"job_id": "j", "role": "guest"})
    assert (answer.status_code, answer.json()["data"]["reason"]) == (503, "DATABASE_AWAY")


@pytest.mark.parametrize("path", [*envelope.FOR_WORKERS, "/v2/worker/metric/save/one"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_only_fates_workers_ask_is_not_served(client: TestClient, path: str, method: str):
    answer = client.request(method, path)
    said = answer.json()
    assert (answer.status_code, said["code"], said["data"]["reason"]) == (200, 6001, "NOT_SERVED_HERE")
    assert path in said["message"]
