"""Reports of checks that are stored with partners."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.conformance.platforms.findings import holds
from gateway.conformance.platforms.reading import KIND
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from tests.conformance.platforms.reports import CHECKED_AT, report_content, signed_report
from tests.inprocess import ME, PEER, STRANGER
from tests.world import UNREACHABLE, NodeSetup

API = "/api/v1/partner-reports"
NODE = NodeSetup(routes={PEER: UNREACHABLE})
TOKEN = "the-token-of-an-admin"


def put(node, partner: str, envelope: Any) -> Any:
    """Store a report with a partner; return the response."""
    return node.request(
        "PUT",
        f"{API}/{partner}",
        json=envelope,
    )


def report_about(node_id: str) -> dict[str, Any]:
    """Return a signed report about a node."""
    return signed_report(report_content(node_id))


def listed_reports(node, query: str = "") -> list[dict[str, Any]]:
    """Return the reports that a node lists."""
    page = node.get(f"{API}{query}").json()
    reports: list[dict[str, Any]] = page["reports"]
    return reports


def cause_of(refused: Any) -> dict[str, Any]:
    """Return why a request was refused."""
    cause: dict[str, Any] = refused.json()["data"]
    return cause


def paths_in(cause: dict[str, Any]) -> set[str]:
    """Return the paths of the problems of a refusal."""
    return {problem["path"] for problem in cause["problems"]}


def test_a_report_is_stored_listed_shown_replaced_and_deleted(node):
    envelope = report_about(PEER)
    response = put(node, PEER, envelope)
    assert response.status_code == 200
    stored = response.json()
    assert stored["deviations"] == 2
    assert stored["good"] is False
    assert stored["signed_by"] == "other"
    checked_at = datetime.fromisoformat(stored["checked_at"])
    assert checked_at == CHECKED_AT

    assert listed_reports(node) == [stored]
    assert listed_reports(node, f"?node={ME}") == []
    shown = node.get(f"{API}/{PEER}").json()
    code, component = shown["breaches"]
    assert code["id"] == "C-2-code"
    assert code["remedy"]["zh"]
    assert component["id"] == "C-3.2-component"
    file = node.get(f"{API}/{PEER}/file")
    assert file.json() == envelope

    findings = {"C-2-code": holds("0")}
    content = report_content(PEER, findings)
    put(node, PEER, signed_report(content))
    (listed,) = listed_reports(node)
    assert listed["deviations"] == 0
    assert listed["good"] is True

    deleted = node.request("DELETE", f"{API}/{PEER}")
    assert deleted.json() == {"node": PEER}
    assert listed_reports(node) == []
    for path in ("", "/file", "/page"):
        refused = node.get(f"{API}/{PEER}{path}")
        assert refused.status_code == 404
        assert cause_of(refused)["reason"] == "REPORT_UNKNOWN"
    audit = node.get("/api/v1/audit?action=partner-reports").json()
    newest = audit["audit"][0]
    detail = newest["detail"]
    assert detail["after"] is None
    assert detail["before"]["node_id"] == PEER


def test_a_report_names_the_owner_of_its_key(world):
    theirs = KeyPair(KEY_GENERATORS["ed25519"]())
    route = {**UNREACHABLE, "keys": theirs.public}
    node = world.node(NodeSetup(routes={PEER: route}))
    ring = Keyring(node.settings.state_dir)
    ours = ring.signing or ring.make("ed25519")
    signers = {
        "partner": theirs,
        "this node": ours,
    }
    for owner, signer in signers.items():
        envelope = signed_report(report_content(PEER), signer)
        stored = put(node, PEER, envelope)
        assert stored.json()["signed_by"] == owner


def test_the_page_of_a_report_runs_and_loads_nothing(node):
    content = report_content(PEER)
    content["url"] = "<script>alert(1)</script>"
    put(node, PEER, signed_report(content))
    page = node.get(f"{API}/{PEER}/page")
    assert page.headers["content-type"].startswith("text/html")
    assert "sandbox" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "C-3.2-component" in page.text


# ---------------------------------------------------------------- refusals


def signed_as_it_is(content: dict[str, Any]) -> dict[str, Any]:
    """Return a report in its envelope, with escapes that this project's writer replaces."""
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    report = {
        **content,
        "key": pair.public,
    }
    payload = json.dumps(report).encode()
    head = f"DSSEv1 {len(KIND)} {KIND} {len(payload)} "
    signature = pair.sign(head.encode() + payload)
    signed_by = {
        "keyid": pair.id,
        "sig": in_base64(signature),
    }
    return {
        "payloadType": KIND,
        "payload": in_base64(payload),
        "signatures": [signed_by],
    }


def in_base64(data: bytes) -> str:
    """Return bytes in Base64."""
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("field", ["url", "checker"])
def test_half_a_surrogate_pair_in_a_signed_report_is_refused(node, field):
    content = report_content(PEER)
    envelope = signed_as_it_is(content)
    stored = put(node, PEER, envelope)
    assert stored.status_code == 200
    content[field] = "\ud800"
    envelope = signed_as_it_is(content)
    refused = put(node, PEER, envelope)
    assert refused.status_code == 400
    cause = cause_of(refused)
    assert cause["reason"] == "REPORT_INVALID"
    page = node.get(f"{API}/{PEER}/page")
    assert page.status_code == 200


def altered(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return a report that was changed after it was signed."""
    content = base64.b64decode(envelope["payload"])
    content = content.replace(b'"good":false', b'"good":true')
    payload = base64.b64encode(content)
    return {
        **envelope,
        "payload": payload.decode(),
    }


def without_a_signature(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return a report without its signature."""
    return {
        **envelope,
        "signatures": [],
    }


def bare(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a report without its envelope."""
    payload = base64.b64decode(envelope["payload"])
    content: dict[str, Any] = json.loads(payload)
    return content


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    "change",
    [
        altered,
        without_a_signature,
        bare,
    ],
)
def test_a_report_that_was_not_signed_so_is_refused(node, change: Change):
    refused = put(node, PEER, change(report_about(PEER)))
    assert refused.status_code == 400
    assert cause_of(refused)["reason"] == "REPORT_SIGNATURE_WRONG"


def test_a_report_about_another_node_is_refused(node):
    cause = cause_of(put(node, PEER, report_about(STRANGER)))
    assert cause["reason"] == "REPORT_OF_ANOTHER_NODE"
    (problem,) = cause["problems"]
    assert problem["path"] == "node_id"
    assert problem["got"] == STRANGER


def test_every_breach_of_the_form_is_named(node):
    content = report_content(PEER)
    content["standard"] = "9"
    content["url"] = 1
    content["clauses"][0]["verdict"] = "perfect"
    cause = cause_of(put(node, PEER, signed_report(content)))
    assert cause["reason"] == "REPORT_INVALID"
    assert paths_in(cause) == {
        "standard",
        "url",
        "clauses[0].verdict",
    }


@pytest.mark.parametrize(
    "date",
    [
        "tomorrow",
        "2026-03-04T05:06:07",
        "later",
    ],
)
def test_a_date_that_cannot_be_is_refused(node, date: str):
    if date == "later":
        in_two_days = datetime.now(UTC) + timedelta(days=2)
        date = in_two_days.isoformat()
    content = report_content(PEER)
    content["at"] = date
    cause = cause_of(put(node, PEER, signed_report(content)))
    assert cause["reason"] == "REPORT_INVALID"
    assert paths_in(cause) == {"at"}


def test_a_node_without_a_route_gets_no_report(node):
    refused = put(node, STRANGER, report_about(STRANGER))
    assert refused.status_code == 404
    assert cause_of(refused)["reason"] == "NODE_UNKNOWN"


def test_counts_are_those_of_the_clauses_whatever_a_report_says(node):
    content = report_content(PEER)
    content["counts"] = {"holds": 60}
    content["good"] = True
    response = put(node, PEER, signed_report(content))
    stored = response.json()
    assert stored["counts"] == {
        "holds": 1,
        "deviates": 1,
        "fails": 1,
    }
    assert stored["good"] is False


def test_only_an_admin_stores_and_deletes_reports(world):
    setup = NodeSetup(
        token=TOKEN,
        routes={PEER: UNREACHABLE},
    )
    node = world.node(setup)
    viewer = {
        "name": "reader",
        "role": "viewer",
    }
    created = node.post(
        "/api/v1/tokens",
        viewer,
        token=TOKEN,
    )
    reader = created.json()["token"]
    envelope = report_about(PEER)
    path = f"{API}/{PEER}"
    statuses = []
    for token in (reader, TOKEN):
        response = node.request(
            "PUT",
            path,
            json=envelope,
            token=token,
        )
        statuses.append(response.status_code)
    assert statuses == [403, 200]
    shown = node.get(path, token=reader)
    assert shown.status_code == 200
    refused = node.request(
        "DELETE",
        path,
        token=reader,
    )
    assert refused.status_code == 403
