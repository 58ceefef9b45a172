"""Each way to break the container contract is named by its clause and by no other."""

import pytest

from gateway.conformance.checking import Given
from gateway.conformance.clauses import CLAUSES, TOGETHER
from tests.conformance.conftest import Run

MISTAKES = {
    "no callback": "callback-sent",
    "no end": "callback-end",
    "odd status": "callback-form",
    "shortens the address": "callback-address",
    "another task": "callback-names",
    "exit code 3": "exit-code",
    "hides failures": "failure-told",
    "says nothing": "stdout-log",
    "refuses unknown parameters": "unknown-parameter",
    "needs the optional": "optional-omitted",
    "writes elsewhere instead": "output-written",
    "writes elsewhere, too": "output-only-there",
    "writes no json": "output-form",
    "changes its input": "input-untouched",
    "another token": "channel-session",
    "asks the platform": "own-paths",
    "ignores SIGTERM": "sigterm",
}


def test_a_component_that_keeps_the_contract_is_told_so(checked: Run) -> None:
    found = {clause.name: finding for clause, finding in checked().findings}
    assert [name for name in found if found[name].result == "failed"] == []
    assert [name for name in found if found[name].result == "not shown"] == ["log-files"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_component_is_named_by_its_clause_and_no_other(checked: Run, mistake: str) -> None:
    trial = next(c.shown_by for c in CLAUSES if c.name == MISTAKES[mistake])
    one = checked(mistake, clauses=[c for c in CLAUSES if c.shown_by in (TOGETHER, trial)])
    broken = {clause.name: finding.seen for clause, finding in one.findings if finding.result == "failed"}
    assert list(broken) == [MISTAKES[mistake]]
    assert not one.good and all(broken.values())
    assert all(clause.remedy for clause in CLAUSES)


def test_running_may_be_left_out(checked: Run) -> None:
    one = checked("only the end", clauses=[c for c in CLAUSES if c.shown_by == TOGETHER])
    assert one.good
    assert {c.name: f.result for c, f in one.findings}["callback-running"] == "not shown"


def test_a_program_that_does_not_start_is_told_once(checked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.conftest.sys.executable", "/nowhere/python")
    one = checked()
    broken = {clause.name: finding.seen for clause, finding in one.findings if finding.result == "failed"}
    assert list(broken) == ["starts"]
    assert "COMMAND_NOT_FOUND" in broken["starts"]


def test_a_run_reads_the_table_that_was_given(checked: Run) -> None:
    given = Given({"guest": b"id,y\na,1\n", "host": b"id,x\na,2\n"})
    one = checked(given=given, clauses=[c for c in CLAUSES if c.name == "works"])
    assert one.good and len(one.findings) == 1
