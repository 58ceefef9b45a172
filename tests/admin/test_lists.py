"""Every path of ``/api/v1``: what it returns of things that do not exist; lists, by filters and pages; bounds.

Who may use which path is in tests/trust/test_roles_on_every_path.py.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfia_gateway_client.jobs import Jobs
from gateway.bootstrap.node import Gateway
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.http.pagination import page_of
from tests.builders import a_job, a_local_job, a_spec, at
from tests.cli import call_node
from tests.e2e.nodes import wait_for
from tests.fuzz.nodes import openapi_document
from tests.inprocess import ME, PEER, STRANGER, ask, running

STATES = ("drain", "engine", "gc", "orphans", "resources")
PAGES = {"jobs", "approvals", "audit", "routes", "route-versions"}
PAGES |= {"providers", "datasets", "dataset-grants", "models"}
names = st.text("ab~%7E", min_size=0, max_size=6)
IDS = {
    "number": "77",
    "index": "0",
    "party": "guest.0",
    "provider_name": "none:1@docker",
    "application": "77",
    "what": "datasets",
}
LARGE = str(10**30)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Return a node with jobs 0 to 5 a minute apart: even ones it schedules, by threes it takes part too."""
    with running(tmp_path_factory.mktemp("node")) as gateway:
        for i in range(6):
            partner = PEER if i < 4 else STRANGER
            spec = a_spec(
                "a",
                {"guest": (ME,), "host": (partner,)},
                job_id=f"job-{i}",
                flow_id=f"flow-{i % 2}",
            )
            ended = Ending(Outcome.FAILED if i < 2 else Outcome.SUCCEEDED, at(i))
            if i % 2 == 0:
                job = replace(
                    a_job(),
                    tasks={},
                    spec=spec,
                    created_at=at(60 * i),
                )
                job = replace(
                    job,
                    status=JobStatus.FINISHED,
                    ending=ended,
                    outcome=ended.outcome,
                )
                gateway.store.jobs.add(job, spec.flow_id)
            if i % 2 or i % 3 == 0:
                local = a_local_job(
                    status=JobStatus.FINISHED,
                    closed=True,
                    ending=ended,
                    created_at=at(60 * i),
                )
                gateway.store.local_jobs.add(replace(local, spec=spec, node=ME), spec.flow_id)
        yield gateway


@pytest.fixture(scope="module")
def paths(node: Gateway) -> dict[str, dict[str, Any]]:
    declared = openapi_document(node, "operator")["paths"]
    return {path: methods for path, methods in declared.items() if path.startswith("/api/v1/")}


def get(
    node: Gateway,
    path: str,
    **query: Any,
) -> Any:
    return ask(node, "operator", "GET", f"/api/v1/{path}", params=query)


def refused(
    node: Gateway,
    path: str,
    **query: Any,
) -> list[tuple[str, str, str]]:
    answer = get(node, path, **query)
    body = answer.json()
    assert answer.status_code == 400, answer.text
    assert body["code"] == 400, answer.text
    assert body["data"]["reason"] == "INVALID", answer.text
    return [(p["path"], p["rule"], p.get("suggestion", "")) for p in body["data"]["problems"]]


def listed(node: Gateway, **query: Any) -> list[str]:
    """Return the numbers of the jobs of all pages, one job a page."""
    found: list[str] = []
    after = ""
    while after is not None:
        page = get(
            node,
            "jobs",
            limit=1,
            after=after,
            **query,
        ).json()
        found += [job["job_id"].removeprefix("job-") for job in page["jobs"]]
        after = page["next"]
    return found


def test_what_does_not_exist_is_404_with_a_reason_at_every_path(node, paths):
    walked = [
        (m, p)
        for p, methods in paths.items()
        for m in methods.keys() - {"put", "patch"}
        if "{" in p
    ]
    walked.remove(("post", "/api/v1/routes/{node}/test"))  # whose steps say that there is no route
    walked.remove(("get", "/api/v1/partners/{node}/{what}"))  # which says that there is no contract
    assert len(walked) > 30
    for method, path in walked:
        concrete = re.sub(r"\{(\w+)\}", lambda found: IDS.get(found[1], "none"), path)
        body = {"parameters": {}, "reason": "x"} if path.endswith("/parameters") else {}
        answer = ask(
            node, "operator", method.upper(), concrete, json=body if method == "post" else None
        )
        assert answer.status_code == 404, (method, path, answer.text)
        assert re.fullmatch(r"[A-Z]+_(UNKNOWN|MISSING)", answer.json()["data"]["reason"]), (
            method,
            path,
        )


def test_every_list_has_the_same_words_and_bounds_for_its_pages(node, paths):
    assert all(declared["summary"] for methods in paths.values() for declared in methods.values())
    for name in PAGES:
        assert {one["name"] for one in paths[f"/api/v1/{name}"]["get"]["parameters"]} >= {
            "after",
            "limit",
        }, name
        assert "next" in get(node, name, limit=1).json(), name
        for wrong in ("abc", "0", "-1", "1001", "1.5", ""):
            ((where, rule, _),) = refused(node, name, limit=wrong)
            assert where == "limit" and rule.startswith("must be "), (name, wrong, rule)
    for name in STATES:
        assert get(node, name).status_code == 200, name


def test_every_number_of_every_path_has_a_bound_that_holds(node, paths):
    tried = 0
    for path, methods in paths.items():
        for one in methods.get("get", {}).get("parameters", []):
            kinds = one["schema"].get("anyOf", [one["schema"]])
            if one["in"] == "query" and any(kind.get("type") == "integer" for kind in kinds):
                tried += 1
                for wrong in ("abc", "-1", LARGE):
                    concrete = re.sub(
                        r"\{\w+\}", "1", path.replace("{what}", "datasets")
                    ).removeprefix("/api/v1/")
                    problems = refused(node, concrete, **{one["name"]: wrong})
                    assert [p[0] for p in problems] == [one["name"]], (path, problems)
    assert tried > 5


def test_a_misspelt_parameter_is_refused_and_the_right_one_named(node):
    ((name, rule, near),) = refused(node, "jobs", limt=5)
    assert name == "limt"
    assert near == "limit"
    assert "outcome" in rule
    assert refused(node, "resources", all=1)[0][1].endswith("this path has none")


@given(st.sets(st.tuples(names, names)), st.integers(1, 4), st.booleans(), st.data())
def test_each_entry_is_on_one_page_whatever_goes_in_between(entries, limit, newest_first, data):
    left, seen, after = sorted(entries, reverse=newest_first), [], ""
    while True:
        page = page_of("all", left, lambda one: one, after, limit, newest_first=newest_first)
        assert page["total"] == len(left)
        assert len(page["all"]) <= limit
        seen += page["all"]
        if page["next"] is None:
            break
        gone = data.draw(st.sampled_from(page["all"]))
        left, after = [one for one in left if one != gone], page["next"]
    assert seen == sorted(entries, reverse=newest_first)


def test_every_job_is_listed_once_with_what_this_node_is_to_it(node):
    assert listed(node) == ["5", "4", "3", "2", "1", "0"]
    both, one, other = ["scheduler", "participant"], ["scheduler"], ["participant"]
    assert [job["sides"] for job in get(node, "jobs").json()["jobs"]] == [
        other,
        one,
        other,
        one,
        other,
        both,
    ]


def test_jobs_are_found_by_state_flow_partner_and_time(node):
    assert listed(node, outcome="FAILED") == ["1", "0"]
    assert listed(node, status="finished,rejected", flow_id="flow-1") == ["5", "3", "1"]
    assert listed(node, status="RUNNING") == []
    assert listed(node, partner=STRANGER) == ["5", "4"]
    assert listed(node, partner="JG") == []
    assert listed(node, since=at(120).isoformat(), until=at(240).isoformat()) == ["3", "2"]
    shown = call_node("job", node, "list", "--partner", PEER, "--limit", "2")
    assert "job-3" in shown.stdout
    assert "job-1" not in shown.stdout
    assert "--after" in shown.stderr
    shown = call_node(
        "job", node, "list", "--since", at(120).isoformat(), "--until", at(240).isoformat()
    )
    assert [f"job-{n}" in shown.stdout for n in range(5)] == [False, False, True, True, False]
    (path,) = (
        e for e in node.listeners.endpoints if e.path == "/api/v1/jobs" and "GET" in e.methods
    )
    filters = {one.name.removesuffix("_id") for one in path.dependant.query_params} - {"after"}
    assert filters == signature(vars(Jobs)["list"].__wrapped__).parameters.keys() - {"self"}
    query = {
        "status": "DONE",
        "outcome": "OK",
        "since": "yesterday",
        "until": "0001-01-01",
        "after": "nan~x",
    }
    assert [p[0] for p in refused(node, "jobs", **query)] == [
        "status",
        "outcome",
        "since",
        "until",
        "after",
    ]


def test_the_audit_tells_before_and_after_and_is_found_by_filters(node):
    for path, body in (("drain", {"exit": False}), ("undrain", {})):
        assert ask(node, "operator", "POST", f"/api/v1/{path}", json=body).status_code == 200
    stop = "/v1/platform/schedule/job/stop_all"
    ask(node, "operator", "POST", stop, json={"job_id": "job-none"})

    def found(**query: Any) -> list[dict[str, Any]]:
        return list(get(node, "audit", **query).json()["audit"])

    wait_for(lambda: len(found(refused=True, action=stop)) == 1, 20)
    (drained,) = found(action="/api/v1/drain")
    assert drained["detail"]["before"] == {
        "draining": False,
        "running": None,
        "exit": False,
    }
    assert drained["detail"]["after"] == {
        "draining": True,
        "running": "wait",
        "exit": False,
    }
    (not_done,) = found(refused=True, action=stop)
    assert not_done["detail"]["asked"] == {"job_id": "job-none"}
    assert not_done["detail"]["refused"].startswith("JOB_UNKNOWN: ")
    assert "refused" not in drained["detail"]
    assert len(found(refused=False, limit=1)) == 1
    assert found(since="2099-01-01") == found(until="2000-01-01") == []
    assert found(action="%") == found(who="nobody") == []
    first = get(node, "audit", limit=1).json()
    assert found(after=first["next"], limit=1)[0]["id"] < first["audit"][0]["id"]
    shown = call_node("audit", node, "--refused")
    assert "JOB_UNKNOWN" in shown.stdout
    assert "stop_all" in shown.stdout
    assert "refused (404)" in shown.stdout
    assert "undrain" not in shown.stdout


def test_the_next_check_of_a_job_follows_the_nodes_settings(tmp_path):
    spec, now = (
        a_spec(roles={"guest": (PEER,), "host": (ME,)}, job_id="job-watched"),
        datetime.now(UTC),
    )
    with running(tmp_path, limits={"unreachable_seconds": 4000}) as gateway:
        assert gateway.store.local_jobs.add(
            a_local_job(
                spec=spec,
                node=ME,
                created_at=now,
            ),
            "flow",
        )
        shown = ask(gateway, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json()
    for one in (shown["waiting"], shown["local_waiting"]):
        assert datetime.fromisoformat(one["next_check"]) > now + timedelta(seconds=4000)
