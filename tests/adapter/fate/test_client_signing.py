"""FATE's own tools are let in by their signature where a token is needed, and by nothing less."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapter.fate.signing import App, UsedSignatures, signature
from adapter.fate.tools.auth import ClientApp, ClientSignatures
from adapter.fate.tools.schemas import DAG_SCHEMA
from gateway.auth import Role, Unauthenticated
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, PEER, ask, running

TOKEN = "0123456789abcdef"
NOW = 1_700_000_000_000
LOOK, CHANGE = "GET /v2/job/query?job_id=j", ""


def headers(token: str = TOKEN, app: str = "ann", at: int = NOW, user: str = "") -> dict[str, str]:
    stamp, nonce = str(at), "1234"
    sign = signature(App(app, token), user, nonce, stamp)
    return {"appid": app, "username": user, "nonce": nonce, "timestamp": stamp, "signature": sign}


def test_the_signature_is_the_one_that_fates_client_makes():
    # recorded from fate_client 2.2.0: FlowClient(app_id="ann", app_token="0123456789abcdef"), nonce and time fixed
    assert headers()["signature"] == "cad432e814ff8f0664f480fb8148f477"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"signature": ""}, "SIGNATURE_MISSING"),
        ({"appid": "eve"}, "APP_UNKNOWN"),
        ({"nonce": "4321"}, "SIGNATURE_WRONG"),
        ({"username": "eve"}, "SIGNATURE_WRONG"),
        ({"timestamp": "soon"}, "SIGNATURE_WRONG"),
        (headers(at=NOW - 61_000), "SIGNATURE_EXPIRED"),
        (headers(at=NOW + 61_000), "SIGNATURE_EXPIRED"),
        (headers(token="fedcba9876543210"), "SIGNATURE_WRONG"),
    ],
)
def test_another_signature_is_refused(wrong: dict[str, str], reason: str):
    now = datetime.fromtimestamp(NOW / 1000, UTC)
    apps = ClientSignatures({"ann": ClientApp(TOKEN, Role.VIEWER)}, lambda: now)
    with pytest.raises(Unauthenticated) as refusal:
        apps.identify(headers() | wrong, LOOK)
    assert refusal.value.reason == reason
    assert apps.identify({}, LOOK) is None
    known = apps.identify(headers(), LOOK)
    assert known is not None and (known.name, known.role) == ("ann", Role.VIEWER)


@pytest.mark.parametrize(
    ("first", "then", "good"),
    [
        (LOOK, LOOK, True),
        (LOOK, f"{LOOK}&task_name=a", False),
        (LOOK, CHANGE, False),
        (CHANGE, CHANGE, False),
        (CHANGE, LOOK, False),
    ],
)
def test_what_was_signed_for_one_request_is_good_for_no_other_one(first: str, then: str, good: bool):
    now = datetime.fromtimestamp(NOW / 1000, UTC)
    stored: dict[str, str] = {}
    gateways = [  # two of one node, on one database
        ClientSignatures(
            {"ann": ClientApp(TOKEN, Role.VIEWER)},
            lambda: now,
            UsedSignatures(lambda s, r, _: stored.setdefault(s, r)),
        )
        for _ in range(2)
    ]
    assert gateways[0].identify(headers(), first) is not None
    for gateway in gateways:
        if good:
            assert gateway.identify(headers(), then) is not None
            continue
        with pytest.raises(Unauthenticated) as refusal:
            gateway.identify(headers(), then)
        assert refusal.value.reason == "SIGNATURE_USED"


def test_a_look_that_somebody_heard_opens_nothing_but_its_answer(tmp_path: Path):
    fate = {"enabled": True, "clients": {"ann": {"app_token": TOKEN}}}
    with running(tmp_path, fate=fate, auth={"mode": "on", "token": "0123456789abcdef0123"}) as node:
        heard = headers(at=time.time_ns() // 1_000_000)

        def told(path: str) -> Any:
            return ask(node, "operator", "GET", path, headers=heard).json()["data"]

        first = told("/v2/job/query?job_id=a")
        assert told("/v2/job/query?job_id=a") == first
        for other in ("/v2/job/query?job_id=b", "/v2/job/query", "/v2/job/log/download?job_id=a", "/api/v1/jobs"):
            assert told(other)["reason"] == "SIGNATURE_USED", other


def test_a_change_that_is_sent_again_by_who_heard_it_is_refused(tmp_path: Path):
    fate = {"enabled": True, "clients": {"ann": {"app_token": TOKEN}}}
    with running(tmp_path, fate=fate, auth={"mode": "on", "token": "0123456789abcdef0123"}) as node:
        heard = headers(at=time.time_ns() // 1_000_000)
        once, again = (
            ask(node, "operator", "POST", "/v2/job/stop", headers=heard, json={"job_id": f"job-{i}"}).json()
            for i in range(2)
        )
        assert once["data"]["reason"] == "JOB_UNKNOWN" and again["data"]["reason"] == "SIGNATURE_USED"


def test_where_a_token_is_needed_an_application_may_do_what_its_role_may(tmp_path: Path):
    clients = {"ann": {"app_token": TOKEN}, "bob": {"app_token": TOKEN, "role": "viewer"}}
    fate = {"enabled": True, "clients": clients}
    with running(tmp_path, fate=fate, auth={"mode": "on", "token": "0123456789abcdef0123"}) as node:

        def said(method: str, path: str, app: str | None) -> int:
            signed = headers(app=app, at=time.time_ns() // 1_000_000) if app else {}
            return ask(node, "operator", method, path, headers=signed).status_code

        assert said("GET", "/v2/site/info/query", None) == said("GET", "/v2/site/info/query", "eve") == 401
        assert said("GET", "/v2/site/info/query", "ann") == said("GET", "/v2/site/info/query", "bob") == 200
        assert said("GET", "/v2/job/log/download?job_id=j", "ann") == 200  # no such job, in FATE's envelope
        assert said("GET", "/v2/job/log/download?job_id=j", "bob") == 403
        assert said("POST", "/v2/job/clean", "ann") == 403
        assert said("GET", "/v2/output/data/table", "bob") == 403
        refused = [ask(node, "operator", "GET", path).json() for path in ("/v2/job/query", "/v2/provider/query")]
        assert [one["data"]["reason"] for one in refused] == ["NO_TOKEN", "NO_TOKEN"]
        assert [one["code"] for one in refused] == [5004, 401]  # in FATE's words on its own paths


def test_a_job_tells_who_handed_it_in_and_who_did_is_in_the_audit(tmp_path: Path):
    fate = {"enabled": True, "clients": {"ann": {"app_token": TOKEN}, "bob": {"app_token": TOKEN}}}
    with running(tmp_path, fate=fate, auth={"mode": "on", "token": "0123456789abcdef0123"}) as node:

        def asked(method: str, path: str, app: str = "ann", **more: Any) -> Any:
            signed = headers(app=app, at=time.time_ns() // 1_000_000)
            return ask(node, "operator", method, path, headers=signed, **more).json()

        root = {"authorization": "Bearer 0123456789abcdef0123"}
        registered = ask(
            node,
            "operator",
            "POST",
            "/v2/provider/register",
            headers=root,
            json=example("register_unionpay.json"),
        )
        assert registered.json()["code"] == 0
        schema = json.loads(json.dumps(DAG_SCHEMA).replace(PEER, ME))
        del schema["dag"]["tasks"]["intersect_rsa_1"]["inputs"]
        job_id = asked("POST", "/v2/job/submit", json={"dag_schema": schema})["job_id"]
        found = [asked("GET", path) for path in (f"/v2/job/query?job_id={job_id}", "/v2/job/list/query")]
        assert {row["user_name"] for row in (*found[0]["data"], *found[1]["data"]["data"])} == {"ann"}
        (first, *_) = node.store.timeline(job_id)
        assert (first.by, first.detail["user"]) == (ME, "ann")
        asked("POST", "/v2/job/stop", "bob", json={"job_id": job_id})

        def noted() -> list[Any]:
            return [(e.who, e.action, e.detail) for e in node.audit.list() if e.who in ("ann", "bob")]

        wait_for(lambda: len(noted()) == 2, 20, 0.02, "both are written down")
        done = noted()
        assert [one[:2] for one in done] == [("bob", "POST /v2/job/stop"), ("ann", "POST /v2/job/submit")]
        assert done[0][2]["asked"]["job_id"] == done[1][2]["answered"]["job_id"] == job_id
