"""What stands behind the ? of our own paths: known and in its range, or refused by its name, with HTTP 400."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import described
from tests.inprocess import ask, running

LARGE = str(10**30)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


def numbers(node: Gateway) -> list[tuple[str, str, dict[str, Any]]]:
    """Return path, name and schema of every parameter of ours that is a number."""
    found = []
    for path, methods in described(node, "operator")["paths"].items():
        for one in methods.get("get", {}).get("parameters", []) if path.startswith("/api/v1/") else []:
            kinds = one["schema"].get("anyOf", [one["schema"]])
            found += [(path, one["name"], k) for k in kinds if one["in"] == "query" and k.get("type") == "integer"]
    return found


def refused(node: Gateway, path: str, **query: Any) -> list[tuple[str, str, str]]:
    answer = ask(node, "operator", "GET", path, params=query)
    body = answer.json()
    assert (answer.status_code, body["code"], body["data"]["reason"]) == (400, 400, "INVALID"), answer.text
    return [(p["path"], p["rule"], p.get("suggestion", "")) for p in body["data"]["problems"]]


def test_a_number_out_of_its_range_is_refused_with_the_range(node: Gateway):
    for path in ("/api/v1/jobs", "/api/v1/audit", "/api/v1/datasets", "/api/v1/route-versions"):
        for wrong in ("abc", "0", "-1", "1001", "1.5", ""):
            ((name, rule, _),) = refused(node, path, limit=wrong)
            assert name == "limit" and rule.startswith("must be "), (wrong, rule)
        assert ask(node, "operator", "GET", path, params={"limit": 1}).json()["next"] is None
    assert refused(node, "/api/v1/audit", after=LARGE)[0][0] == "after"


def test_every_number_of_every_path_has_a_bound_that_holds(node: Gateway):
    found = numbers(node)
    assert len(found) > 5
    for path, name, _ in found:
        for wrong in ("abc", "-1", LARGE):
            problems = refused(node, re.sub(r"\{\w+\}", "1", path), **{name: wrong})
            assert [p[0] for p in problems] == [name], (path, problems)


def test_a_misspelt_parameter_is_refused_and_the_right_one_named(node: Gateway):
    ((name, rule, near),) = refused(node, "/api/v1/jobs", limt=5)
    assert (name, near) == ("limt", "limit") and "outcome" in rule
    assert refused(node, "/api/v1/resources", all=1)[0][1].endswith("this path has none")
