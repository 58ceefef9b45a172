"""Rules for every path of ``/api/v1``: unknown things, lists with filters and pages, bounds.

Which role may use which path is tested in tests/trust/test_roles_on_every_path.py.
"""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfia_gateway_client.jobs import Jobs
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome
from gateway.http.pagination import page_of
from tests.builders import a_job, a_local_job, a_spec, at
from tests.cli import call_node
from tests.e2e.nodes import wait_for
from tests.fuzz.nodes import openapi_document
from tests.inprocess import ME, PEER, STRANGER, Node
from tests.world import NodeSetup

STATE_PATHS = ("drain", "engine", "gc", "orphans", "resources")
LIST_PATHS = (
    "jobs",
    "approvals",
    "audit",
    "routes",
    "route-versions",
    "providers",
    "datasets",
    "dataset-grants",
    "models",
    "tokens",
)

# Arguments of paths for things that do not exist; "none" if a name is not here.
UNKNOWN_IDS = {
    "number": "77",
    "index": "0",
    "party": "guest.0",
    "provider_name": "none:1@docker",
    "application": "77",
    "what": "datasets",
}
# Paths whose response says that the thing does not exist, with status 200.
PATHS_WITHOUT_404 = {
    ("post", "/api/v1/routes/{node}/test"),
    ("get", "/api/v1/partners/{node}/{what}"),
}
LARGE = str(10**30)

entry_names = st.text(
    "ab~%7E",
    min_size=0,
    max_size=6,
)


def store_jobs(node: Node) -> None:
    """Store jobs 0 to 5, a minute apart.

    The node schedules the even ones, and takes part in the odd ones and in those divisible by 3.
    """
    for number in range(6):
        partner = PEER if number < 4 else STRANGER
        spec = a_spec(
            "a",
            {
                "guest": (ME,),
                "host": (partner,),
            },
            job_id=f"job-{number}",
            flow_id=f"flow-{number % 2}",
        )
        outcome = Outcome.FAILED if number < 2 else Outcome.SUCCEEDED
        failure = Failure("EXIT_1", "it broke") if number < 2 else None
        ending = Ending(outcome, at(number), failure)
        is_scheduler = number % 2 == 0
        takes_part = not is_scheduler or number % 3 == 0
        if is_scheduler:
            job = replace(
                a_job(),
                tasks={},
                spec=spec,
                created_at=at(60 * number),
                status=JobStatus.FINISHED,
                ending=ending,
                outcome=outcome,
                user="ann" if number == 4 else "bob",
            )
            node.store.jobs.add(job, spec.flow_id)
        if takes_part:
            local = a_local_job(
                status=JobStatus.FINISHED,
                closed=True,
                ending=ending,
                created_at=at(60 * number),
            )
            node.store.local_jobs.add(
                replace(
                    local,
                    spec=spec,
                    node=ME,
                ),
                spec.flow_id,
            )


NODE = NodeSetup(prepare=store_jobs)


@pytest.fixture(scope="module")
def paths(node) -> dict[str, dict[str, Any]]:
    """The operations of ``/api/v1``, by path and method."""
    declared = openapi_document(node, "operator")["paths"]
    return {path: methods for path, methods in declared.items() if path.startswith("/api/v1/")}


def get(
    node: Node,
    path: str,
    **query: Any,
) -> httpx.Response:
    """Read a path of ``/api/v1``."""
    return node.get(
        f"/api/v1/{path}",
        params=query,
    )


def problems_of(
    node: Node,
    path: str,
    **query: Any,
) -> list[dict[str, Any]]:
    """Return the problems of a refused query."""
    response = get(node, path, **query)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["code"] == 400, response.text
    assert body["data"]["reason"] == "INVALID", response.text
    return body["data"]["problems"]


def listed_jobs(node: Node, **query: Any) -> list[str]:
    """Return the numbers of the jobs of all pages, with one job a page."""
    numbers: list[str] = []
    after = ""
    while after is not None:
        page = get(node, "jobs", limit=1, after=after, **query).json()
        for job in page["jobs"]:
            numbers.append(job["job_id"].removeprefix("job-"))
        after = page["next"]
    return numbers


# ---------------------------------------------------------------- every path


def test_an_unknown_thing_is_404_with_a_reason_at_every_path(node, paths):
    operations = []
    for path, methods in paths.items():
        for method in methods.keys() - {"put", "patch"}:
            if "{" in path and (method, path) not in PATHS_WITHOUT_404:
                operations.append((method, path))
    assert len(operations) > 30

    for method, path in operations:
        body = None
        if method == "post":
            body = {}
        if path.endswith("/parameters") and method == "post":
            body = {
                "parameters": {},
                "reason": "x",
            }
        response = node.request(
            method.upper(),
            with_arguments(path),
            json=body,
        )
        assert response.status_code == 404, (method, path, response.text)
        reason = response.json()["data"]["reason"]
        assert re.fullmatch(r"[A-Z]+_(UNKNOWN|MISSING)", reason), (method, path)


def with_arguments(path: str) -> str:
    """Return a path with the ids of unknown things."""
    for name in re.findall(r"\{(\w+)\}", path):
        path = path.replace(
            f"{{{name}}}",
            UNKNOWN_IDS.get(name, "none"),
        )
    return path


def test_every_operation_has_a_summary(paths):
    for methods in paths.values():
        for operation in methods.values():
            assert operation["summary"]


@pytest.mark.parametrize("name", LIST_PATHS)
def test_every_list_has_pages_with_bounds(node, paths, name):
    parameters = {parameter["name"] for parameter in paths[f"/api/v1/{name}"]["get"]["parameters"]}
    assert {"after", "limit"} <= parameters
    assert "next" in get(node, name, limit=1).json()
    for wrong in ("abc", "0", "-1", "1001", "1.5", ""):
        (problem,) = problems_of(
            node,
            name,
            limit=wrong,
        )
        assert problem["path"] == "limit"
        assert problem["rule"].startswith("must be "), (wrong, problem)


@pytest.mark.parametrize("name", STATE_PATHS)
def test_every_state_of_the_node_is_readable(node, name):
    assert get(node, name).status_code == 200


def test_every_number_in_a_query_has_a_bound(node, paths):
    numbers = []
    for path, methods in paths.items():
        for parameter in methods.get("get", {}).get("parameters", []):
            if is_number_in_query(parameter):
                numbers.append((path, parameter["name"]))
    assert len(numbers) > 5

    for path, name in numbers:
        path = re.sub(
            r"\{\w+\}",
            "1",
            path.replace("{what}", "datasets"),
        )
        for wrong in ("abc", "-1", LARGE):
            problems = problems_of(node, path.removeprefix("/api/v1/"), **{name: wrong})
            assert [problem["path"] for problem in problems] == [name], (path, problems)


def is_number_in_query(parameter: dict[str, Any]) -> bool:
    """True for an integer, which may be optional, in a query."""
    schema = parameter["schema"]
    types = {kind.get("type") for kind in schema.get("anyOf", [schema])}
    return parameter["in"] == "query" and "integer" in types


def test_a_misspelt_parameter_is_refused_with_a_suggestion(node):
    (problem,) = problems_of(
        node,
        "jobs",
        limt=5,
    )
    assert problem["path"] == "limt"
    assert problem["suggestion"] == "limit"
    assert "outcome" in problem["rule"]


def test_a_parameter_for_a_path_without_parameters_is_refused(node):
    problem, *_ = problems_of(node, "resources", all=1)
    assert problem["rule"].endswith("this path has none")


@given(
    st.sets(st.tuples(entry_names, entry_names)),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_each_entry_is_on_one_page_although_entries_disappear(entries, limit, newest_first, data):
    def key_of(entry: tuple[str, str]) -> tuple[str, str]:
        return entry

    remaining = sorted(entries, reverse=newest_first)
    listed: list[tuple[str, str]] = []
    after = ""
    while after is not None:
        page = page_of(
            "all",
            remaining,
            key_of,
            after,
            limit,
            newest_first=newest_first,
        )
        assert page["total"] == len(remaining)
        assert len(page["all"]) <= limit
        listed += page["all"]
        after = page["next"]
        if after is not None:
            deleted = data.draw(st.sampled_from(page["all"]))
            remaining.remove(deleted)
    assert listed == sorted(
        entries,
        reverse=newest_first,
    )


# ---------------------------------------------------------------- jobs


def test_every_job_is_listed_once_with_the_sides_of_this_node(node):
    assert listed_jobs(node) == ["5", "4", "3", "2", "1", "0"]
    sides = [job["sides"] for job in get(node, "jobs").json()["jobs"]]
    assert sides == [
        ["participant"],
        ["scheduler"],
        ["participant"],
        ["scheduler"],
        ["participant"],
        ["scheduler", "participant"],
    ]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"outcome": "FAILED"}, ["1", "0"]),
        (
            {"status": "finished,rejected", "flow_id": "flow-1"},
            ["5", "3", "1"],
        ),
        ({"status": "RUNNING"}, []),
        ({"partner": STRANGER}, ["5", "4"]),
        ({"partner": "JG"}, []),
        ({"text": "OB-3"}, ["3"]),
        ({"text": STRANGER[-6:]}, ["5", "4"]),
        ({"text": "|"}, []),
        ({"user": "ann"}, ["4"]),
        ({"user": "an"}, []),
        ({"component": "THING", "flow_id": "flow-0"}, ["4", "2", "0"]),
        ({"component": "vendor/Thing"}, ["5", "4", "3", "2", "1", "0"]),
        ({"component": "vendor/Other"}, []),
        ({"reason": "exit_1"}, ["1", "0"]),
        (
            {
                "since": at(120).isoformat(),
                "until": at(240).isoformat(),
            },
            ["3", "2"],
        ),
    ],
    ids=[
        "outcome",
        "status-and-flow",
        "no-status",
        "partner",
        "part-of-a-partner",
        "text",
        "node",
        "separator",
        "user",
        "part-of-a-user",
        "component",
        "code",
        "no-component",
        "reason",
        "time",
    ],
)
def test_jobs_are_filtered(node, query, numbers):
    assert listed_jobs(node, **query) == numbers


def test_the_command_filters_jobs_by_partner_and_names_the_next_page(node):
    printed = call_node(
        "job",
        node,
        "list",
        "--partner",
        PEER,
        "--limit",
        "2",
    )
    assert "job-3" in printed.stdout
    assert "job-1" not in printed.stdout
    assert "--after" in printed.stderr


def test_the_command_filters_jobs_by_time(node):
    times = ["--since", at(120).isoformat(), "--until", at(240).isoformat()]
    printed = call_node("job", node, "list", *times).stdout
    listed = {number for number in range(5) if f"job-{number}" in printed}
    assert listed == {2, 3}


def test_the_client_has_every_filter_of_jobs(node):
    (endpoint,) = [
        endpoint
        for endpoint in node.listeners.endpoints
        if endpoint.path == "/api/v1/jobs" and "GET" in endpoint.methods
    ]
    filters = {parameter.name.removesuffix("_id") for parameter in endpoint.dependant.query_params}
    arguments = signature(vars(Jobs)["list"].__wrapped__).parameters.keys()
    assert filters - {"after"} == arguments - {"self"}


def test_every_wrong_filter_is_a_problem(node):
    query = {
        "status": "DONE",
        "outcome": "OK",
        "since": "yesterday",
        "until": "0001-01-01",
        "after": "nan~x",
    }
    problems = problems_of(node, "jobs", **query)
    assert [problem["path"] for problem in problems] == list(query)


def test_the_next_check_of_a_job_follows_the_nodes_settings(world):
    now = datetime.now(UTC)
    node = world.node(settings={"limits": {"unreachable_seconds": 4000}})
    spec = a_spec(
        roles={
            "guest": (PEER,),
            "host": (ME,),
        },
        job_id="job-watched",
    )
    local = a_local_job(
        spec=spec,
        node=ME,
        created_at=now,
    )
    assert node.store.local_jobs.add(local, "flow")

    job = get(node, f"jobs/{spec.job_id}").json()

    for waiting in (job["waiting"], job["local_waiting"]):
        next_check = datetime.fromisoformat(waiting["next_check"])
        assert next_check > now + timedelta(seconds=4000)


# ---------------------------------------------------------------- audit


def test_the_audit_has_changes_and_refusals_and_is_filtered(node):
    assert node.post("/api/v1/drain", {"exit": False}).status_code == 200
    assert node.post("/api/v1/undrain", {}).status_code == 200
    stop = "/v1/platform/schedule/job/stop_all"
    node.post(stop, {"job_id": "job-none"})

    def audit(**query: Any) -> list[dict[str, Any]]:
        return get(node, "audit", **query).json()["audit"]

    wait_for(lambda: audit(refused=True, action=stop), 20)
    (refusal,) = audit(
        refused=True,
        action=stop,
    )
    assert refusal["detail"]["asked"] == {"job_id": "job-none"}
    assert refusal["detail"]["refused"].startswith("JOB_UNKNOWN: ")

    (drain,) = audit(action="/api/v1/drain")
    assert drain["detail"]["before"] == {
        "draining": False,
        "running": None,
        "exit": False,
    }
    assert drain["detail"]["after"] == {
        "draining": True,
        "running": "wait",
        "exit": False,
    }
    assert "refused" not in drain["detail"]

    assert len(audit(refused=False, limit=1)) == 1
    assert audit(since="2099-01-01") == []
    assert audit(until="2000-01-01") == []
    assert audit(action="%") == []
    assert audit(who="nobody") == []
    first_page = get(node, "audit", limit=1).json()
    (second, *_) = audit(after=first_page["next"], limit=1)
    assert second["id"] < first_page["audit"][0]["id"]

    printed = call_node("audit", node, "--refused").stdout
    assert "JOB_UNKNOWN" in printed
    assert "stop_all" in printed
    assert "refused (404)" in printed
    assert "undrain" not in printed
