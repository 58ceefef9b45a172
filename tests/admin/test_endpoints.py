"""Every path of ``/api/v1``: what it returns of things that do not exist, and pages and bounds of its lists.

Who may use which path is in tests/trust/test_roles_on_every_path.py.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bootstrap.node import Gateway
from gateway.http.pagination import page_of
from tests.inprocess import ask, running

STATES = {"/api/v1/drain", "/api/v1/engine", "/api/v1/gc", "/api/v1/orphans", "/api/v1/resources"}
PAGES = {"jobs", "approvals", "audit", "tokens", "routes", "route-versions"}
PAGES |= {"providers", "datasets", "dataset-grants", "models"}
names = st.text("ab~%7E", min_size=0, max_size=6)
IDS = {"number": "77", "index": "0", "party": "guest.0", "provider_name": "none:1@docker"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def paths(node: Gateway) -> dict[str, dict[str, Any]]:
    described = ask(node, "operator", "GET", "/openapi.json").json()["paths"]
    return {path: methods for path, methods in described.items() if path.startswith("/api/v1/")}


def concrete(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: IDS.get(found[1], "none"), path)


def test_what_does_not_exist_is_404_with_a_reason_at_every_path(node: Gateway, paths: dict[str, Any]):
    walked = [(m, p) for p, methods in paths.items() for m in methods.keys() - {"put", "patch"} if "{" in p]
    walked.remove(("post", "/api/v1/routes/{node}/test"))  # whose steps say that there is no route
    assert len(walked) > 30
    for method, path in walked:
        answer = ask(node, "operator", method.upper(), concrete(path), json={} if method == "post" else None)
        assert answer.status_code == 404, (method, path, answer.text)
        assert re.fullmatch(r"[A-Z]+_(UNKNOWN|MISSING)", answer.json()["data"]["reason"]), (method, path)


def test_every_path_names_its_response_and_what_refuses_it(paths: dict[str, Any]):
    for path, methods in paths.items():
        for method, declared in methods.items():
            assert declared["summary"] and "default" in declared["responses"], (method, path)
            contents = declared["responses"]["200"]["content"].items()
            assert all(content["schema"] for _, content in contents), (method, path)


def test_every_list_has_the_same_words_for_its_pages(node: Gateway, paths: dict[str, Any]):
    for path in (f"/api/v1/{name}" for name in PAGES):
        assert {one["name"] for one in paths[path]["get"]["parameters"]} >= {"after", "limit"}, path
        page = ask(node, "operator", "GET", path, params={"limit": 1}).json()
        assert "next" in page, path
        refused = ask(node, "operator", "GET", path, params={"limit": 0})
        assert refused.status_code == 400 and refused.json()["data"]["problems"][0]["path"] == "limit", path


def test_what_has_no_pages_is_there_at_a_new_node(node: Gateway):
    for path in STATES:
        assert ask(node, "operator", "GET", path).status_code == 200, path


@given(st.sets(st.tuples(names, names)), st.integers(1, 4), st.booleans(), st.data())
def test_each_entry_is_on_one_page_whatever_goes_in_between(
    entries: set[tuple[str, str]], limit: int, newest_first: bool, data: st.DataObject
):
    left, seen, after = sorted(entries, reverse=newest_first), [], ""
    while True:
        page = page_of("all", left, lambda one: one, after, limit, newest_first=newest_first)
        assert page["total"] == len(left) and len(page["all"]) <= limit
        seen += page["all"]
        if page["next"] is None:
            break
        gone = data.draw(st.sampled_from(page["all"]))
        left, after = [one for one in left if one != gone], page["next"]
    assert seen == sorted(entries, reverse=newest_first)
