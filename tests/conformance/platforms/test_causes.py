"""Clauses that fail of one cause are named together."""

from gateway.conformance.platforms.causes import by_observation, shared_causes
from gateway.conformance.platforms.check import Judgement
from gateway.conformance.platforms.clauses import clause_of
from gateway.conformance.platforms.findings import Finding, fails, not_tried


def judgement(clause_id: str, finding: Finding) -> Judgement:
    return Judgement(clause_of(clause_id), finding)


def test_a_cause_names_every_clause_that_has_it():
    breaches = [
        judgement("C-2-malformed", fails("a list: HTTP 500; a text: HTTP 500")),
        judgement(
            "C-2-missing", fails("job/create without dag: HTTP 500; without config: accepted")
        ),
        judgement("C-3.2-flow", fails("the job is RUNNING")),
    ]
    assert shared_causes(breaches) == {"HTTP 500": ["C-2-malformed", "C-2-missing"]}


def test_clauses_that_were_not_tried_are_named_by_reason():
    reason = "no way back: give --listen and --advertise"
    judgements = [judgement(name, not_tried(reason)) for name in ("C-3.1-once", "C-3.1-wait")]
    assert by_observation(judgements) == {reason: ["C-3.1-once", "C-3.1-wait"]}
