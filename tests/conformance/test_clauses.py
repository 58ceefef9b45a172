"""The tiny vendor in the sandbox: what it does wrong is seen, and named by the clauses that it breaks."""

import sys

import pytest

from gateway.conformance import execution
from gateway.conformance.check import TrialInput, check
from gateway.conformance.clauses import CLAUSES, TOGETHER
from gateway.conformance.plans import Timeouts
from gateway.errors import Invalid
from tests.conformance.conftest import VENDOR, count, sandbox_of
from tests.registry.builders import a_data

SUCCEEDS = {
    "odd status": "callback-form",
    "shortens the address": "callback-address",
    "another task": "callback-names",
    "exit code 3": "exit-code",
    "tells an unlisted code": "result-code",
    "hides failures": "failure-told",
    "says nothing": "stdout-log",
    "writes elsewhere, too": "output-only-there",
    "writes no json": "output-form",
    "changes its input": "input-untouched",
    "another token": "channel-session",
    "asks the platform": "own-paths",
    "ignores SIGTERM": "sigterm",
}
ENDS_OTHERWISE = {
    "refuses unknown parameters": "unknown-parameter",
    "writes elsewhere instead": "output-written",
}
WORKS = [clause for clause in CLAUSES if clause.name == "works"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the partners of a party that failed, which only wait for it, at once."""
    monkeypatch.setattr(execution, "SECONDS_AFTER_END", 0.0)


def test_a_component_that_keeps_the_contract_passes(checked):
    found = {clause.name: finding for clause, finding in checked().findings}
    assert [name for name in found if found[name].result == "failed"] == []
    assert [name for name in found if found[name].result == "not shown"] == ["log-files"]


@pytest.mark.parametrize("mistakes", [SUCCEEDS, ENDS_OTHERWISE], ids=["succeeds", "ends otherwise"])
def test_every_mistake_of_a_component_is_named_by_its_clause(checked, mistakes):
    one = checked(list(mistakes))
    broken = {
        clause.name: finding.seen for clause, finding in one.findings if finding.result == "failed"
    }
    assert set(broken) == set(mistakes.values())
    assert not one.good
    assert all(broken.values())


@pytest.mark.parametrize(
    ("mistake", "clause", "says"),
    [
        ("another node", "channel-accepted", "E0000000618 node JG9999 has no route here"),
        ("its own node", "channel-topics", "guest.0 sent it to guest.0 (x-ptp-target-node-id)"),
        (
            "another topic",
            "channel-topics",
            "did you mean 'rows.guest.0x', which guest.0 sent to it?",
        ),
    ],
)
def test_a_mistake_on_the_channel_is_named_and_ends_the_trial(
    tmp_path, mistake, clause, says, impatient
):
    vendor = (sys.executable, "-I", "-S", str(VENDOR), mistake)
    box = sandbox_of(tmp_path, *vendor, timeouts=Timeouts(run=600.0, grace=1.0))
    one = check(
        box, count(), TrialInput(), lambda _: None, [c for c in CLAUSES if c.shown_by == TOGETHER]
    )
    box.close()
    broken = {c.name: finding.seen for c, finding in one.findings if finding.result == "failed"}
    assert set(broken) - {"channel-topics"} == {"works", clause} - {"channel-topics"}
    assert clause in broken
    assert says in broken[clause]
    waits = "host.0 waits for topic 'rows.guest.0', which received no message before guest.0 ended"
    assert "on the channel: " in broken["works"]
    assert waits in broken["works"]
    assert "info guest.0 begins" in broken["works"], "the last lines of the log"


def test_without_a_reported_end_a_missing_output_is_a_failure(checked):
    clauses = [clause for clause in CLAUSES if clause.name in ("works", "callback-end")]
    found = checked(["no end", "writes elsewhere instead"], clauses=clauses).findings
    assert all(finding.result == "failed" for _, finding in found)
    assert any("without its outputs counts" in finding.seen for _, finding in found)


def test_a_role_gets_parameters_of_its_own(checked, impatient):
    given = TrialInput(of_roles={"host": {"greeting": "hi"}})
    assert checked(["greets as host"], given, WORKS).good
    (finding,) = (f for _, f in checked(["greets as host"], clauses=WORKS).findings)
    assert finding.result == "failed"
    assert "greeting is" in finding.seen


def test_further_inputs_are_filled_too_and_a_model_can_be_given(checked):
    more = [a_data("table"), a_data("more", category="test_set"), a_data("model", category="model")]
    given = TrialInput(files={("guest", "model"): b"a model", ("host", "model"): b"a model"})
    assert checked(["none, it reads on"], given, WORKS, count(inputData=more)).good


def test_a_given_table_that_is_none_ends_the_check_at_once(checked, impatient):
    with pytest.raises(Invalid) as caught:
        checked(given=TrialInput({"host": b"id,y\na,1,2\n"}))
    assert [p.path for p in caught.value.problems] == ["file:2"]
