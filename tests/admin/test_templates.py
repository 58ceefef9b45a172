"""Templates: jobs that people keep at the node."""

from typing import Any

from tests.inprocess import ask, running


def test_a_template_is_kept_listed_replaced_and_deleted(tmp_path):
    with running(tmp_path) as node:

        def send(
            method: str,
            name: str = "",
            **more: Any,
        ) -> tuple[int, Any]:
            answer = ask(node, "operator", method, f"/api/v1/templates{name}", **more)
            return answer.status_code, answer.json()

        first, second = {"flow_id": "loans", "message": "no"}, {"flow_id": "loans", "dag": {}}
        for job in (first, second):
            code, kept = send(
                "PUT", "/贷款 1", json={"job": job}, headers={"accept-language": "zh"}
            )
            assert code == 200
            assert kept["job"] == job
            assert kept["author"] == "operator"
        send("PUT", "/a", json={"job": first})
        listed = send("GET")[1]
        assert [one["name"] for one in listed["templates"]] == ["a", "贷款 1"]
        assert listed["total"] == 2
        assert send("GET", "/贷款 1")[1]["job"] == second
        changes = ask(node, "operator", "GET", "/api/v1/audit?action=templates").json()["audit"]
        changed = [(one["detail"]["before"], one["detail"]["after"]) for one in changes]
        assert changed == [(None, first), (first, second), (None, first)]
        assert send("DELETE", "/贷款 1") == (200, {"name": "贷款 1"})
        for method in ("GET", "DELETE"):
            code, refused = send(method, "/贷款 1")
            assert code == 404
            assert refused["data"]["reason"] == "TEMPLATE_UNKNOWN"
        for bad in (f"/{'x' * 129}", "/x%01", "/a%20"):
            assert send("PUT", bad, json={"job": {}})[0] == 400
        assert (
            send("PUT", "/b", json={"job": {"message": "a job of many tasks" * 10_000}})[0] == 200
        )
        for body in (
            b'{"flow_id": "loans"}',
            b'{"job": {"rate": NaN}}',
            b'{"job": {"rate": 1e999}}',
        ):
            assert send("PUT", "/b", content=body)[0] == 400
