"""A live FATE-Flow 2.2.0 is judged as its recorded report says.

The published wheel lacks a part of its BFIA adapter, which `fate_flow.completion` replaces. Clauses
that the replacement decides are not compared; the recorded report was made with the complete
adapter (`fate_flow.record`).
"""

import json

import pytest

from gateway.conformance.platforms.check import CheckResult
from gateway.conformance.platforms.clauses import clauses
from tests.conformance.platforms.fate_flow.checked import check_fate_flow, fate_flow_lanes
from tests.conformance.platforms.fate_flow.record import RECORDED

pytestmark = [pytest.mark.fate_flow, pytest.mark.slow, pytest.mark.xdist_group("fate_flow_bfia")]

# Clauses that our replacement of the lacking modules decides, and how.
DECIDED_BY_REPLACEMENT = {
    "C-2-envelope": "the fields of a success are those of its response builder",
    "C-2-code": "the code of a success is its constant",
    "C-2-trace": "its models refuse values of wrong types",
    "C-3.2-unknown-fields": "its models ignore fields that they do not have",
    "C-3.8-end": "its table says which states follow SUCCESS",
    "C-3.6-finish": "its table says which states follow SUCCESS",
    "C-3.1-create": "its models keep the fields that they have",
    "C-3.1-data": "its models keep the fields that they have",
    "C-3.9-early": "its table says which states follow READY",
    "C-3.9-repeat": "its table says which states follow SUCCESS",
    "C-3.9-late": "its table says which states follow SUCCESS",
    "C-3.9-state": "its table has the states that may follow",
}
COMPARED = [clause.id for clause in clauses() if clause.id not in DECIDED_BY_REPLACEMENT]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> CheckResult:
    """The findings about a live FATE-Flow."""
    with fate_flow_lanes(tmp_path_factory.mktemp("fate-flow-bfia")) as trials:
        return check_fate_flow(trials)


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    """The recorded verdicts by clause."""
    report = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {clause["id"]: clause["verdict"] for clause in report["clauses"]}


@pytest.mark.parametrize("clause_id", COMPARED)
def test_a_live_fate_flow_is_judged_as_recorded(live, recorded, clause_id):
    (finding,) = [each.finding for each in live.judgements if each.clause.id == clause_id]
    assert finding.verdict == recorded[clause_id], finding.observation
