"""The profile that a check proposes for the route to a node."""

from gateway.conformance.platforms.check import Judgement
from gateway.conformance.platforms.clauses import clause_of
from gateway.conformance.platforms.findings import Finding, deviates, fails, holds
from gateway.conformance.platforms.proposal import propose


def judgement(clause_id: str, finding: Finding) -> Judgement:
    """Return a judgement about a clause."""
    return Judgement(clause_of(clause_id), finding)


def test_a_node_without_deviations_gets_the_default_profile():
    proposal = propose([judgement("C-2-code", holds("0"))])
    assert proposal.name == "spec"
    assert proposal.further_fields == {}


def test_the_profile_of_the_most_similar_platform_is_proposed():
    judgements = [
        judgement("C-2-code", deviates("kuscia", "200")),
        judgement("C-3.2-repeat", deviates("kuscia", "exists")),
        judgement("C-3.7-status", deviates("fate", "GET")),
    ]
    proposal = propose(judgements)
    assert (proposal.name, proposal.explained) == ("kuscia", 2)
    assert proposal.further_fields == {}


def test_fields_that_no_known_profile_has_are_named():
    judgements = [
        judgement("C-3.2-optional", deviates("fate", "null")),
        judgement("C-2-code", fails("200")),
    ]
    proposal = propose(judgements)
    assert proposal.name == "fate"
    assert proposal.further_fields == {"success_code": 200}
