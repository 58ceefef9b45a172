"""This gateway keeps every clause of the standard, and the check leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.conformance.platforms.check import Judgement, check, judge
from gateway.conformance.platforms.clauses import clause_of, clauses, selected
from gateway.conformance.platforms.findings import Verdict
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.conformance.platforms.checked import Site, checked_node

SIGNED_CLAUSES = ("S-replay", "S-altered")  # they need a key


@pytest.fixture(scope="module")
def signed_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node to which the check signs its requests."""
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    folder = tmp_path_factory.mktemp("signed")
    with checked_node(folder, pair, keys=pair.public, signing="required") as site:
        yield site


@pytest.mark.parametrize(
    "clause_id", [clause.id for clause in clauses() if clause.id not in SIGNED_CLAUSES]
)
def test_a_clause_holds(site: Site, clause_id: str):
    finding = judge(site.trial, clause_of(clause_id))
    assert finding.verdict is Verdict.HOLDS, finding.observation
    assert finding.observation


@pytest.mark.parametrize("clause_id", [*SIGNED_CLAUSES, "C-3.2-create", "C-3.8-end", "C-3.4-order"])
def test_a_clause_holds_with_signatures(signed_site: Site, clause_id: str):
    finding = judge(signed_site.trial, clause_of(clause_id))
    assert finding.verdict is Verdict.HOLDS, finding.observation


def ignore(judgement: Judgement) -> None:
    """Show no progress."""


def test_a_check_stops_every_job_that_it_made(tmp_path: Path):
    with checked_node(tmp_path, signing="off") as site:
        result = check(site.trial, selected(["C-3.2-create", "C-3.5-stop"]), ignore)
        assert result.good
        assert len(result.jobs) == 2
        assert all(stopped for _, stopped in result.jobs)
        for job_id, _ in result.jobs:
            path = f"/v1/platform/schedule/job/status_all?job_id={job_id}"
            assert site.node.get(path).json()["data"]["job_status"] == "FINISHED"
