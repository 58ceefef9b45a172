"""What stands behind the ? of our own paths: known and in its range, or refused by its name, with HTTP 400."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.config.loader import DuplicateKey, unique_keys
from tests.fuzz.nodes import described
from tests.inprocess import ask, running

WHOLE = "must be a whole number from 1 to 1000"
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
            assert refused(node, path, limit=wrong) == [("limit", WHOLE, "")]
        assert ask(node, "operator", "GET", path, params={"limit": 1}).json()["next"] is None
    assert refused(node, "/api/v1/audit", after=LARGE) == [("after", "must be a whole number from 0 on", "")]


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


def test_a_path_of_ours_says_by_its_status_what_became_of_a_body(node: Gateway):
    answer = ask(node, "operator", "POST", "/api/v1/jobs/j/approve", json={"reason": 7, "colour": 1})
    assert answer.status_code == 400
    assert ask(node, "operator", "PUT", "/api/v1/routes/JG7", content=b"{").status_code == 400


TWICE = {
    ("POST", "/v2/provider/register"): ('{"name": "a", "components_description": {}, "name": "b"}', ["name"]),
    ("POST", "/api/v1/providers"): ('{"name": "a", "components_description": {}, "name": "b"}', ["name"]),
}


@pytest.mark.parametrize("where", TWICE, ids=lambda where: where[1])
def test_a_key_that_stands_twice_in_a_body_is_refused_with_its_path(node: Gateway, where: tuple[str, str]):
    text, paths = TWICE[where]
    for sent in (text, text.replace(", ", "," + " " * 70_000 + " ", 1)):  # on the event loop, and beside it
        headers = {"content-type": "application/json"}
        said = ask(node, "operator", *where, content=sent.encode(), headers=headers).json()
        assert said["code"] in (400, 413), said
        if said["code"] == 400:
            assert sorted(p["path"] for p in said["data"]["problems"]) == paths
            assert all(p["rule"] == "duplicate key" for p in said["data"]["problems"])
    assert said["code"] == 400 or len(sent) > 65536


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2} x',
        '{"metadata": {"image": "a", "image": "b"},}',
        '[{"a": 1, "a": 2}, ' + "[" * 50_000,
        '{"b": {"a": 1, "a": 2}, "c": ' + "1" * 5000 + "}",
    ],
    ids=["more", "comma", "deep", "digits"],
)
@pytest.mark.parametrize("path", ["/api/v1/providers", "/api/v1/jobs/plan", "/v2/provider/register"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_key_that_stands_twice_in_what_is_no_json_is_no_fault_of_ours(
    node: Gateway, path: str, text: str, kind: str
):
    said = ask(node, "operator", "POST", path, content=text.encode(), headers={"content-type": kind})
    assert said.json()["code"] in (400, 413, 415), said.text


def test_to_find_a_key_that_stands_twice_each_is_looked_at_once():
    class Counted(str):
        looks = 0

        def __eq__(self, other: object) -> bool:
            Counted.looks += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Counted(f"k{n}") for n in range(2000)]
    with pytest.raises(DuplicateKey, match="duplicate key k1999"):
        unique_keys([*((name, 1) for name in names), (Counted("k1999"), 2)])
    assert Counted.looks < 20_000


def test_only_pages_of_a_version_number_that_can_be_are_looked_for(node: Gateway, tmp_path: Path):
    assert ask(node, "operator", "GET", f"/api/v1/route-versions/{LARGE}").status_code in (400, 404)
