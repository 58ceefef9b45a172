"""Every list of operators has pages in the same way: ``limit``, ``after``, and ``next`` in the answer."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gateway.auth import Role, new_token
from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.domain.approval import Mode, Policy, opened
from gateway.domain.states import JobStatus
from gateway.errors import Invalid
from gateway.http.pagination import page_of
from tests.builders import a_local_job, a_spec, at
from tests.inprocess import ME, PEER, ask, running
from tests.registry.builders import a_request

LISTS = {
    "/api/v1/jobs": "jobs",
    "/api/v1/approvals": "approvals",
    "/api/v1/audit": "audit",
    "/api/v1/tokens": "tokens",
    "/api/v1/routes": "routes",
    "/api/v1/route-versions": "versions",
    "/api/v1/providers": "providers",
    "/api/v1/datasets": "datasets",
    "/api/v1/dataset-grants": "grants",
    "/api/v1/models": "models",
}
names = st.text("ab~%7E", min_size=0, max_size=6)


@given(st.sets(st.tuples(names, names)), st.integers(1, 4), st.booleans(), st.data())
def test_each_entry_is_on_one_page_whatever_goes_in_between(
    entries: set[tuple[str, str]], limit: int, newest_first: bool, data: st.DataObject
):
    left, seen, after = sorted(entries, reverse=newest_first), [], ""
    while True:
        page = page_of(left, lambda one: one, after, limit, newest_first=newest_first)
        assert page.total == len(left) and len(page.entries) <= limit
        seen += page.entries
        if page.next is None:
            break
        gone = data.draw(st.sampled_from(page.entries))
        left, after = [one for one in left if one != gone], page.next
    assert seen == sorted(entries, reverse=newest_first)


def test_a_place_that_no_page_named_is_refused():
    with pytest.raises(Invalid) as caught:
        page_of([("a", "b")], lambda one: one, "a", 5)
    assert [p.path for p in caught.value.problems] == ["after"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Return a node with three entries in lists of each kind but jobs, datasets and models."""
    quiet = {"orphan_seconds": 1e9}  # the jobs began long ago, and nobody asks for them
    with running(tmp_path_factory.mktemp("node"), limits=quiet) as gateway:
        for i in range(3):
            other, job = f"N{i}", f"job-{i}"
            entry = {"route": {"url": f"http://127.0.0.1:{i + 1}"}}
            assert ask(gateway, "operator", "PUT", f"/api/v1/routes/{other}", json=entry).status_code == 200
            body = a_request(version=f"{i}.0.0")
            assert ask(gateway, "operator", "POST", "/v2/provider/register", json=body).json()["code"] == 0
            now = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=i)
            gateway.tokens.add(new_token(f"t{i}", Role.VIEWER, now)[1])
            spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id=job)
            local = replace(a_local_job(status=JobStatus.PENDING, created_at=at(60 * i)), spec=spec, node=ME)
            asked = opened(local, Policy(Mode.PERSON, deadline=1e9), "", at(60 * i))
            gateway.store.local_jobs.add(asked, spec.flow_id)
        yield gateway


def pages(node: Gateway, path: str, **query: Any) -> list[list[Any]]:
    found, after = [], ""
    while after is not None:
        answer = ask(node, "operator", "GET", path, params={"limit": 2, "after": after, **query})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[LISTS[path]])
        after = answer.json()["next"]
    return found


def test_every_list_has_the_same_words_for_its_pages(node: Gateway):
    described = ask(node, "operator", "GET", "/openapi.json").json()["paths"]
    for path in LISTS:
        known = {one["name"] for one in described[path]["get"]["parameters"]}
        assert known >= {"after", "limit"}, path
        answer = ask(node, "operator", "GET", path, params={"limit": 1}).json()
        assert "next" in answer and len(answer[LISTS[path]]) <= 1, path
        refused = ask(node, "operator", "GET", path, params={"limit": 0})
        assert refused.status_code == 400 and "limit" in refused.text


@pytest.mark.parametrize(
    ("path", "key", "names"),
    [
        ("/api/v1/routes", "node", ["N0", "N1", "N2"]),
        ("/api/v1/providers", "version", ["0.0.0", "1.0.0", "2.0.0"]),
        ("/api/v1/tokens", "name", ["t0", "t1", "t2"]),
        ("/api/v1/approvals", "job_id", ["job-0", "job-1", "job-2"]),
    ],
)
def test_the_pages_of_a_list_follow_each_other(node: Gateway, path: str, key: str, names: list[str]):
    first, second = pages(node, path)
    assert [one[key] for one in first] == names[:2] and [one[key] for one in second] == names[2:]
    assert ask(node, "operator", "GET", path, params={"limit": 1}).json()["total"] == 3


def test_the_command_line_names_the_next_page(node: Gateway):
    url = ("--url", node.addresses()["operator"])
    first = CliRunner().invoke(app, ["route", "list", "--limit", "2", *url])
    assert "2 of 3 routes" in first.stdout and "more: --after N1" in first.stderr
    rest = CliRunner().invoke(app, ["route", "list", "--after", "N1", "--json", *url])
    assert [r["node"] for r in json.loads(rest.stdout)["routes"]] == ["N2"]
    for words in (["provider", "list"], ["job", "approvals"], ["model", "list"], ["data", "grants"]):
        shown = CliRunner().invoke(app, [*words, "--limit", "1", "--json", *url])
        assert shown.exit_code == 0 and "next" in json.loads(shown.stdout), shown.output


def test_tokens_are_listed_by_pages_too(tmp_path: Path):
    config = tmp_path / "node.yml"
    runner = CliRunner()
    assert runner.invoke(app, ["init", "--node", ME, "--engine", "process", "-o", str(config)]).exit_code == 0
    for name in ("a", "b"):
        words = ["token", "create", name, "--role", "viewer", "-c", str(config)]
        assert runner.invoke(app, words).exit_code == 0
    first = json.loads(runner.invoke(app, ["token", "list", "--limit", "1", "--json", "-c", str(config)]).stdout)
    words = ["token", "list", "--after", first["next"], "-c", str(config)]
    assert first["total"] == 2 and "1 of 2 tokens" in runner.invoke(app, words).stdout
    assert runner.invoke(app, ["token", "list", "--after", "x", "-c", str(config)]).exit_code == 2
