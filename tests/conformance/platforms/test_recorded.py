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
