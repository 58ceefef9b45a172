"""Lists for operators: jobs and the audit, by filters and pages; what a change was before and after."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from tests.builders import a_job, a_local_job, a_spec, at
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, running

PATH = "/api/v1/jobs"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Return a node with jobs 0 to 5 a minute apart: even ones it schedules, by threes it takes part too."""
    with running(tmp_path_factory.mktemp("node")) as gateway:
        for i in range(6):
            partner = PEER if i < 4 else STRANGER
            spec = a_spec("a", {"guest": (ME,), "host": (partner,)}, job_id=f"job-{i}", flow_id=f"flow-{i % 2}")
            ended = Ending(Outcome.FAILED if i < 2 else Outcome.SUCCEEDED, at(i))
            if i % 2 == 0:
                job = replace(a_job(), tasks={}, spec=spec, created_at=at(60 * i))
                job = replace(job, status=JobStatus.FINISHED, ending=ended, outcome=ended.outcome)
                gateway.store.jobs.add(job, spec.flow_id)
            if i % 2 or i % 3 == 0:
                local = a_local_job(status=JobStatus.FINISHED, closed=True, ending=ended, created_at=at(60 * i))
                gateway.store.local_jobs.add(replace(local, spec=spec, node=ME), spec.flow_id)
        yield gateway


def cli(node: Gateway, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--url", node.addresses()["operator"]])


def listed(node: Gateway, **query: Any) -> list[str]:
    """Return the numbers of the jobs of all pages, one job a page."""
    found: list[str] = []
    after = ""
    while after is not None:
        page = ask(node, "operator", "GET", PATH, params={"limit": 1, "after": after, **query}).json()
        found += [job["job_id"].removeprefix("job-") for job in page["jobs"]]
        after = page["next"]
    return found


def test_every_job_is_listed_once_with_what_this_node_is_to_it(node: Gateway):
    assert listed(node) == ["5", "4", "3", "2", "1", "0"]
    jobs = ask(node, "operator", "GET", PATH).json()["jobs"]
    assert {job["job_id"][-1]: job["sides"] for job in jobs} == {
        "0": ["scheduler", "participant"],
        "1": ["participant"],
        "2": ["scheduler"],
        "3": ["participant"],
        "4": ["scheduler"],
        "5": ["participant"],
    }


def test_jobs_are_found_by_state_flow_partner_and_time(node: Gateway):
    assert listed(node, outcome="FAILED") == ["1", "0"]
    assert listed(node, status="finished,rejected", flow_id="flow-1") == ["5", "3", "1"]
    assert listed(node, status="RUNNING") == []
    assert listed(node, partner=STRANGER) == ["5", "4"]
    assert listed(node, partner="JG") == []
    assert listed(node, since=at(120).isoformat(), until=at(240).isoformat()) == ["3", "2"]
    shown = cli(node, "job", "list", "--partner", PEER, "--limit", "2")
    assert "job-3" in shown.stdout and "job-1" not in shown.stdout and "--after" in shown.stderr


def test_a_wrong_filter_is_refused_with_every_problem(node: Gateway):
    query = {"status": "DONE", "outcome": "OK", "since": "yesterday", "until": "0001-01-01", "after": "nan~x"}
    answer = ask(node, "operator", "GET", PATH, params=query)
    assert answer.status_code == 400
    problems = answer.json()["data"]["problems"]
    assert [p["path"] for p in problems] == ["status", "outcome", "since", "until", "after"]


def test_the_audit_tells_before_and_after_and_is_found_by_filters(node: Gateway):
    for path, body in (("drain", {"exit": False}), ("undrain", {})):
        assert ask(node, "operator", "POST", f"/api/v1/{path}", json=body).status_code == 200
    stop = "/v1/platform/schedule/job/stop_all"
    ask(node, "operator", "POST", stop, json={"job_id": "job-none"})
    wait_for(lambda: len(node.audit.list()) >= 3, 20)

    def found(**query: Any) -> list[dict[str, Any]]:
        return list(ask(node, "operator", "GET", "/api/v1/audit", params=query).json()["audit"])

    (drained,) = found(action="/api/v1/drain")
    assert drained["detail"]["before"] == {"draining": False, "running": None, "exit": False}
    assert drained["detail"]["after"] == {"draining": True, "running": "wait", "exit": False}
    (refused,) = found(refused=True)
    assert refused["detail"]["asked"] == {"job_id": "job-none"}
    assert refused["detail"]["refused"].startswith("JOB_UNKNOWN: ") and "refused" not in drained["detail"]
    assert len(found(refused=False, limit=1)) == 1 and found(since="2099-01-01") == found(until="2000-01-01") == []
    assert found(action="%") == found(who="nobody") == []
    first = ask(node, "operator", "GET", "/api/v1/audit", params={"limit": 1}).json()
    assert found(after=first["next"], limit=1)[0]["id"] < first["audit"][0]["id"]
    shown = cli(node, "audit", "--refused")
    assert "JOB_UNKNOWN" in shown.stdout
    assert "stop_all" in shown.stdout and "refused (404)" in shown.stdout and "drain" not in shown.stdout


def test_a_token_made_by_command_is_in_the_audit(tmp_path: Path):
    config = tmp_path / "node.yml"
    config.write_text("node: {id: JG1}\nengine: {kind: process}\n")
    for words in (("create", "ann", "--role", "viewer"), ("revoke", "ann")):
        done = CliRunner().invoke(app, ["token", *words, "--config", str(config)])
        assert done.exit_code == 0, done.output
    with running(tmp_path / "node", database={"url": f"sqlite:///{tmp_path / 'var' / 'gateway.db'}"}) as gateway:
        revoked, created = gateway.audit.list()
    assert created.action == "token create" and created.detail["after"]["role"] == "viewer"
    assert revoked.detail == {"before": {"token": "ann", "good": 1}, "after": {"token": "ann", "good": 0}}
    assert json.dumps(created.detail).count("bfia_") == 0
