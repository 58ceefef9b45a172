"""FATE's signatures: of requests between sites, and of its own tools where a token is needed."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from adapter.fate.signing import VALID_MS, ClientSignatures, Signatures, UsedSignatures, signature
from adapter.fate.tools.schemas import DAG_SCHEMA
from gateway.auth import Role, Unauthenticated
from gateway.bootstrap.node import Gateway
from gateway.config.schema import FateApp, FateClient, FateSite
from gateway.errors import NotAllowed
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, PEER, ask, running

APP = FateApp(app_id="12345678", app_token="token")
THERE = Signatures({"us": FateSite(expects=APP)})
US = Signatures({"there": FateSite(sends=APP)})
TOKEN, ROOT = "0123456789abcdef", "0123456789abcdef0123"
NOW = 1_700_000_000_000
READ, CHANGE = "GET /v2/job/query?job_id=j", ""


def headers(app: str = "ann", at: int | None = None) -> dict[str, str]:
    """Return the headers of one of FATE's tools."""
    stamp, nonce = str(at or time.time_ns() // 1_000_000), "1234"
    sign = signature(FateApp(app_id=app, app_token=TOKEN), "", nonce, stamp)
    return {"appid": app, "username": "", "nonce": nonce, "timestamp": stamp, "signature": sign}


def test_between_sites_only_what_is_signed_is_accepted():
    found = US.sign("there", "9999")
    assert set(found) == {"Signature", "appId", "Nonce", "Timestamp", "initiatorPartyId"}
    THERE.check("us", found)
    assert US.sign("another", "") == {}
    THERE.check("another", {})  # which does not have to sign


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Signature": "x"}, "SIGNATURE_WRONG"),
        ({"Nonce": "9"}, "SIGNATURE_WRONG"),
        ({"initiatorPartyId": "8888"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "soon"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "1700000000000"}, "SIGNATURE_EXPIRED"),
        ({"Timestamp": str(time.time_ns() // 1_000_000 + 2 * VALID_MS + 900_000)}, "SIGNATURE_EXPIRED"),
        ({"appId": "87654321"}, "APP_UNKNOWN"),
        ({"Signature": ""}, "SIGNATURE_MISSING"),
        ({"Signature": "ü"}, "SIGNATURE_WRONG"),
    ],
)
def test_between_sites_another_signature_is_refused(changes: dict[str, str], reason: str):
    with pytest.raises(NotAllowed) as caught:
        THERE.check("us", {**US.sign("there", "9999"), **changes})
    assert caught.value.reason == reason


def test_the_signature_is_the_one_that_fates_client_makes():
    # recorded from fate_client 2.2.0: FlowClient(app_id="ann", app_token="0123456789abcdef"), nonce and time fixed
    assert headers(at=NOW)["signature"] == "cad432e814ff8f0664f480fb8148f477"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"signature": ""}, "SIGNATURE_MISSING"),
        ({"appid": "eve"}, "APP_UNKNOWN"),
        ({"username": "eve"}, "SIGNATURE_WRONG"),
    ],
)
def test_a_tool_with_another_signature_is_refused(wrong: dict[str, str], reason: str):
    now = datetime.fromtimestamp(NOW / 1000, UTC)
    apps = ClientSignatures({"ann": FateClient(app_token=TOKEN, role=Role.VIEWER)}, lambda: now)
    with pytest.raises(Unauthenticated) as refusal:
        apps.identify(headers(at=NOW) | wrong, READ)
    assert refusal.value.reason == reason
    assert apps.identify({}, READ) is None


@pytest.mark.parametrize(
    ("first", "then", "good"),
    [
        (READ, READ, True),
        (READ, f"{READ}&task_name=a", False),
        (READ, CHANGE, False),
        (CHANGE, CHANGE, False),
        (CHANGE, READ, False),
    ],
)
def test_a_signature_is_valid_for_no_other_request(first: str, then: str, good: bool):
    now = datetime.fromtimestamp(NOW / 1000, UTC)
    stored: dict[str, str] = {}
    apps = {"ann": FateClient(app_token=TOKEN, role=Role.VIEWER)}
    gateways = [  # two of one node, on one database
        ClientSignatures(apps, lambda: now, UsedSignatures(120, lambda s, r, _: stored.setdefault(s, r)))
        for _ in range(2)
    ]
    assert gateways[0].identify(headers(at=NOW), first) is not None
    for gateway in gateways:
        if good:
            assert gateway.identify(headers(at=NOW), then) is not None
            continue
        with pytest.raises(Unauthenticated) as refusal:
            gateway.identify(headers(at=NOW), then)
        assert refusal.value.reason == "SIGNATURE_USED"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    clients = {"ann": {"app_token": TOKEN}, "bob": {"app_token": TOKEN, "role": "viewer"}}
    over: dict[str, Any] = {"fate": {"enabled": True, "clients": clients}, "auth": {"mode": "on", "token": ROOT}}
    with running(tmp_path_factory.mktemp("node"), **over) as node:
        yield node


def test_an_overheard_signature_opens_nothing_but_its_own_answer(node: Gateway):
    heard = headers()

    def answer(path: str) -> Any:
        return ask(node, "operator", "GET", path, headers=heard).json()["data"]

    assert answer("/v2/job/query?job_id=a") == answer("/v2/job/query?job_id=a")
    for other in ("/v2/job/query?job_id=b", "/v2/job/query", "/v2/job/log/download?job_id=a", "/api/v1/jobs"):
        assert answer(other)["reason"] == "SIGNATURE_USED", other
    changes = headers(at=time.time_ns() // 1_000_000 + 1_000)
    once, again = (
        ask(node, "operator", "POST", "/v2/job/stop", headers=changes, json={"job_id": f"job-{i}"}).json()
        for i in range(2)
    )
    assert once["data"]["reason"] == "JOB_UNKNOWN" and again["data"]["reason"] == "SIGNATURE_USED"


def test_where_a_token_is_needed_an_application_may_do_what_its_role_may(node: Gateway):
    def status(method: str, path: str, app: str | None) -> int:
        return ask(node, "operator", method, path, headers=headers(app) if app else {}).status_code

    site, log = "/v2/site/info/query", "/v2/job/log/download?job_id=j"
    assert [status("GET", site, app) for app in (None, "eve", "ann", "bob")] == [401, 401, 200, 200]
    assert [status("GET", log, app) for app in ("ann", "bob")] == [200, 403]
    assert status("POST", "/v2/job/clean", "ann") == status("GET", "/v2/output/data/table", "bob") == 403
    refused = [ask(node, "operator", "GET", path).json() for path in ("/v2/job/query", "/v2/provider/query")]
    assert [one["data"]["reason"] for one in refused] == ["NO_TOKEN", "NO_TOKEN"]
    assert [one["code"] for one in refused] == [5004, 401]  # in FATE's words on its own paths


def test_a_job_names_who_submitted_it_and_the_audit_who_did_what(node: Gateway):
    def asked(method: str, path: str, **more: Any) -> Any:
        return ask(node, "operator", method, path, headers=headers(), **more).json()

    registration, root = example("register_unionpay.json"), {"authorization": f"Bearer {ROOT}"}
    ask(node, "operator", "POST", "/v2/provider/register", headers=root, json=registration)
    schema = json.loads(json.dumps(DAG_SCHEMA).replace(PEER, ME))
    del schema["dag"]["tasks"]["intersect_rsa_1"]["inputs"]
    job_id = asked("POST", "/v2/job/submit", json={"dag_schema": schema})["job_id"]
    found = [asked("GET", path) for path in (f"/v2/job/query?job_id={job_id}", "/v2/job/list/query")]
    assert {row["user_name"] for row in (*found[0]["data"], *found[1]["data"]["data"])} == {"ann"}
    (first, *_) = node.store.timeline(job_id)
    assert (first.by, first.detail["user"]) == (ME, "ann")
    asked("POST", "/v2/job/stop", json={"job_id": job_id})

    def done() -> list[Any]:
        entries = [e for e in node.audit.list() if job_id in json.dumps(e.detail)]
        return [(e.who, e.action, e.detail) for e in entries]

    wait_for(lambda: len(done()) == 2, 20, 0.02, "both are written down")
    stop, submit = done()
    assert [stop[:2], submit[:2]] == [("ann", "POST /v2/job/stop"), ("ann", "POST /v2/job/submit")]
    assert stop[2]["asked"]["job_id"] == submit[2]["answered"]["job_id"] == job_id
