"""Who was refused is in the audit, and a flood of it costs little; large bodies are refused unread."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.http.audit import MOST, Refusals
from tests.inprocess import ask, running

TOKEN = "a-token-of-this-test"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node"), auth={"mode": "on", "token": TOKEN}) as gateway:
        yield gateway


def own(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def entries(node: Gateway, who: str) -> list[dict[str, Any]]:
    found = ask(node, "operator", "GET", "/api/v1/audit", params={"who": who}, headers=own()).json()["audit"]
    return [e for e in found if e["detail"].get("from") == "127.0.0.1"]


def test_whoever_is_not_let_in_is_in_the_audit_once(node: Gateway):
    for _ in range(3):
        assert ask(node, "operator", "GET", "/api/v1/jobs").status_code == 401
    ask(node, "operator", "POST", "/api/v1/drain", json={}, headers=own("bfia_wrong"))
    first, second = reversed(entries(node, "somebody"))
    assert (first["action"], first["status"], first["detail"]["reason"]) == ("GET /api/v1/jobs", 401, "NO_TOKEN")
    assert (second["action"], second["detail"]["reason"]) == ("POST /api/v1/drain", "TOKEN_UNKNOWN")


def test_nodes_that_are_not_known_are_in_the_audit(node: Gateway):
    sender = {"x-source-node-id": "JG404"}
    answer = ask(
        node, "peer", "POST", "/v1/interconn/schedule/node/hello", json={"call_back": True}, headers=sender
    )
    assert answer.status_code == 200 and answer.json()["code"] == 403
    ptp = sender | {"x-ptp-session-id": "s", "x-ptp-topic": "t", "x-ptp-uri": "/v1/interconn/chan/push"}
    ask(node, "peer", "POST", "/v1/interconn/chan/invoke", content=b"{}", headers=ptp)
    found = {e["action"]: e for e in entries(node, "node JG404")}
    hello = found["POST /v1/interconn/schedule/node/hello"]
    assert (hello["code"], hello["detail"]["reason"]) == (403, "NOT_AUTHORISED")
    assert "JG404" in hello["detail"]["message"]


def test_a_flood_is_counted_and_not_written():
    now = NOON
    written: list[tuple[str, Mapping[str, Any]]] = []

    def add(at: datetime, who: str, action: str, status: int, code: int | None, detail: Mapping[str, Any]) -> None:
        written.append((who, detail))

    refusals = Refusals(add, lambda: now)

    def refuse(who: str) -> None:
        if (write := refusals.due(who)) is not None:
            write(who, "GET /", 401, {"reason": "NO_TOKEN"})

    for _ in range(1000):
        refuse("ann")
    for number in range(1000):
        refuse(f"node {number}")
    assert len(written) == MOST
    now += timedelta(minutes=1)
    refuse("ann")
    others = str(1000 - (MOST - 1))
    assert written[-1] == ("ann", {"reason": "NO_TOKEN", "repeated": "999", "others": others})
    assert len(written) == MOST + 1


def test_a_body_that_would_hold_the_event_loop_is_refused_unread(node: Gateway, tmp_path: Path):
    large = b"[" * (1024 * 1024)
    for method, path in (
        ("PUT", "/api/v1/routes/JG7"),
        ("POST", "/api/v1/jobs/j/approve"),
        ("POST", "/api/v1/gc"),
    ):
        assert ask(node, "operator", method, path, content=large, headers=own()).status_code == 413, path
    many = b'{"dag": [' + b"[]," * 200_000 + b"[]]}"
    answer = ask(node, "operator", "POST", "/api/v1/jobs/plan", content=many, headers=own())
    assert answer.status_code == 400
