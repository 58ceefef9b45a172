"""The report of a live FATE-Flow 2.2.0 with its BFIA adapter agrees with the profile for it."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from adapter.bfia.profiles import PROFILES
from gateway.conformance.platforms.clauses import clauses
from gateway.conformance.platforms.page import page

RECORDED = Path(__file__).with_name("recorded") / "fate_flow_2.2.0.json"
# Deviations of FATE-Flow 2.2.0 that its operation has shown, by the clause for each.
KNOWN_DEVIATIONS = {
    "C-2-envelope": "a success without data has no field data",
    "C-2-refusal": "errors are under message, always with HTTP 200",
    "C-2.2-headers": "headers have underscores; source, target and csrf are not sent",
    "C-2.2-source": "a report needs x-node-id",
    "C-3.1-conflict": "a known job_id is a success, and the first job stays",
    "C-3.1-flow": "no flow is checked; the job stays RUNNING, and errors show a trace",
    "C-3.1-node": "an unknown node is an error with a trace, and the job stays RUNNING",
    "C-3.1-optional": "create_all needs the texts flow_id and old_job_id",
    "C-3.1-refused": "a party's refusal is a trace; job/start follows, and the job stays RUNNING",
    "C-3.2-component": "any component, version and provider is accepted",
    "C-3.2-conflict": "a known job_id is a success, and the first job stays",
    "C-3.2-flow": "no flow is checked",
    "C-3.2-optional": "null is refused",
    "C-3.3-refused": "a refused job/start is ignored",
    "C-3.3-unknown": "the start of an unknown job is a success",
    "C-3.4-id": "task ids are UUIDs",
    "C-3.4-refused": "after a refused task/start the job is FINISHED, its task READY",
    "C-3.4-repeat": "a repeated task/start has code 1 and the text success",
    "C-3.5-unknown": "the stop of an unknown job is a success",
    "C-3.6-stop": "tasks of a stopped job start",
    "C-3.6-success": "job/stop follows every task",
    "C-3.6-unknown": "the stop of an unknown job is a success",
    "C-3.7-query": "a GET is read from its body only",
    "C-3.7-status": "status_all is served by GET only",
    "C-3.7-unknown": "the state of an unknown job is a success",
    "C-3.8-polls": "polls have an empty role",
    "C-3.8-refused": "refused polls are repeated for ever",
    "C-3.9-repeat": "a repeated report has code 1",
    "C-3.9-reports": "sync_type callback is ignored as a participant",
    "S-altered": "signatures are not checked",
    "S-old": "signatures are not checked",
    "S-replay": "a repeated nonce is accepted",
    "S-role": "a job without a role for it is a success",
    "S-status": "senders are not checked",
    "S-stop": "senders are not checked",
    "S-stranger": "senders are not checked",
    "S-target": "the target is not read",
}
# Clauses that FATE-Flow breaks, and the field of its profile that lives with the breach.
BREACHES = (
    ("C-3.2-optional", "may_omit_old_job_id"),
    ("C-3.7-status", "status_by_get"),
    ("C-3.9-reports", "never_ends_callback_jobs"),
)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return dict(json.loads(RECORDED.read_text(encoding="utf-8")))


def test_the_recorded_report_has_the_published_form(report):
    package = files("gateway.conformance.platforms")
    schema = json.loads(package.joinpath("report.schema.json").read_text())
    jsonschema.validate(report, schema)


def test_the_report_has_the_known_deviations_and_no_others(report):
    deviations = [
        clause["id"] for clause in report["clauses"] if clause["verdict"] in ("deviates", "fails")
    ]
    assert sorted(deviations) == sorted(KNOWN_DEVIATIONS)


def test_every_clause_was_tried_or_has_a_reason(report):
    assert [clause["id"] for clause in report["clauses"]] == [clause.id for clause in clauses()]
    assert all(clause["observation"] for clause in report["clauses"])


@pytest.mark.parametrize(("clause_id", "field"), BREACHES)
def test_a_breach_is_in_the_profile(report, clause_id, field):
    (clause,) = [clause for clause in report["clauses"] if clause["id"] == clause_id]
    assert clause["verdict"] == "deviates"
    assert clause["dialect"] == "fate"
    assert getattr(PROFILES["fate"], field) != getattr(PROFILES["spec"], field)


def test_nothing_is_reported_that_other_platforms_do(report):
    dialects = {clause["dialect"] for clause in report["clauses"]}
    assert dialects == {"", "fate"}


def test_the_page_of_the_report_shows_every_breach(report):
    html = page(report)
    for clause in report["clauses"]:
        assert clause["id"] in html
    assert html.count('class="deviates"') == report["counts"]["deviates"] + 1
