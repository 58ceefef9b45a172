"""Templates: jobs that a node stores for people."""

import pytest

from tests.world import NodeSetup

API = "/api/v1/templates"
FIRST = {
    "flow_id": "loans",
    "message": "no",
}
SECOND = {
    "flow_id": "loans",
    "dag": {},
}
NODE = NodeSetup()


def test_a_template_is_kept_listed_replaced_and_deleted(world):
    node = world.node()
    for job in (FIRST, SECOND):
        headers = {"accept-language": "zh"}
        response = node.request(
            "PUT",
            f"{API}/贷款 1",
            json={"job": job},
            headers=headers,
        )
        assert response.status_code == 200
        template = response.json()
        assert template["job"] == job
        assert template["author"] == "operator"
    node.request(
        "PUT",
        f"{API}/a",
        json={"job": FIRST},
    )

    page = node.get(API).json()
    assert [template["name"] for template in page["templates"]] == ["a", "贷款 1"]
    assert page["total"] == 2
    assert node.get(f"{API}/贷款 1").json()["job"] == SECOND
    audit = node.get("/api/v1/audit?action=templates").json()["audit"]
    changes = [(entry["detail"]["before"], entry["detail"]["after"]) for entry in audit]
    assert changes == [
        (None, FIRST),
        (FIRST, SECOND),
        (None, FIRST),
    ]

    deleted = node.request("DELETE", f"{API}/贷款 1")
    assert deleted.status_code == 200
    assert deleted.json() == {"name": "贷款 1"}
    for method in ("GET", "DELETE"):
        refused = node.request(method, f"{API}/贷款 1")
        assert refused.status_code == 404
        assert refused.json()["data"]["reason"] == "TEMPLATE_UNKNOWN"


@pytest.mark.parametrize("name", ["x" * 129, "x%01", "a%20"], ids=["long", "control", "space"])
def test_a_wrong_name_is_refused(node, name):
    assert node.request("PUT", f"{API}/{name}", json={"job": {}}).status_code == 400


def test_a_template_may_be_large(node):
    job = {"message": "a job of many tasks" * 10_000}
    assert node.request("PUT", f"{API}/b", json={"job": job}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b'{"flow_id": "loans"}', b'{"job": {"rate": NaN}}', b'{"job": {"rate": 1e999}}'],
    ids=["no-job", "nan", "infinity"],
)
def test_a_wrong_body_is_refused(node, body):
    assert node.request("PUT", f"{API}/b", content=body).status_code == 400
