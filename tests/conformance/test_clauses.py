"""Each way to break the container contract is named by its clause and by no other."""

import sys
from pathlib import Path

import pytest

from gateway.conformance import check, sandbox
from gateway.conformance.check import Given
from gateway.conformance.clauses import CLAUSES, TOGETHER
from gateway.conformance.evidence import Trial
from gateway.conformance.sandbox import Plan, Timeouts
from gateway.errors import Invalid
from tests.conformance.conftest import Run, count, sandbox_of
from tests.registry.builders import a_data

MISTAKES = {
    "no callback": "callback-sent",
    "no end": "callback-end",
    "odd status": "callback-form",
    "shortens the address": "callback-address",
    "another task": "callback-names",
    "exit code 3": "exit-code",
    "tells an unlisted code": "result-code",
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
    "calls its end a success": "sigterm",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the partners of a party that failed, which only wait for it, at once."""
    monkeypatch.setattr(sandbox, "_AFTER_A_FAILURE", 0.0)


def test_a_component_that_keeps_the_contract_passes(checked: Run) -> None:
    found = {clause.name: finding for clause, finding in checked().findings}
    assert [name for name in found if found[name].result == "failed"] == []
    assert [name for name in found if found[name].result == "not shown"] == ["log-files"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_component_is_named_by_its_clause_and_no_other(
    checked: Run, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_MOMENT", 0.2)  # what ends before it has reported does so at any time
    trial = next(c.shown_by for c in CLAUSES if c.name == MISTAKES[mistake])
    one = checked(mistake, clauses=[c for c in CLAUSES if c.shown_by in (TOGETHER, trial)])
    broken = {clause.name: finding.seen for clause, finding in one.findings if finding.result == "failed"}
    assert list(broken) == [MISTAKES[mistake]]
    assert not one.good and all(broken.values())
    assert all(clause.remedy for clause in CLAUSES)


@pytest.mark.parametrize(
    ("mistake", "clause", "says"),
    [
        ("another node", "channel-accepted", "E0000000618 node JG9999 has no route here"),
        ("another form", "channel-accepted", "E0000000616 Content-Type 'text/plain' is not read"),
        ("its own node", "channel-topics", "guest.0 sent it to guest.0 (x-ptp-target-node-id)"),
        ("another topic", "channel-topics", "did you mean 'rows.guest.0x', which guest.0 sent to it?"),
    ],
)
def test_a_mistake_on_the_channel_is_named_with_what_hangs(
    checked: Run, mistake: str, clause: str, says: str, impatient: None
) -> None:
    one = checked(mistake, clauses=[c for c in CLAUSES if c.shown_by == TOGETHER])
    broken = {c.name: finding.seen for c, finding in one.findings if finding.result == "failed"}
    assert set(broken) - {"channel-topics"} == {"works", clause} - {"channel-topics"} and clause in broken
    assert says in broken[clause]
    assert "on the channel: " in broken["works"] and "host.0 waits for topic 'rows.guest.0'" in broken["works"]
    assert "nothing comes" in broken["works"], "the last lines of the log"


def test_a_role_gets_parameters_of_its_own(checked: Run, impatient: None) -> None:
    works = [c for c in CLAUSES if c.name == "works"]
    given = Given(of_roles={"host": {"greeting": "hi"}})
    (finding,) = (f for _, f in checked("greets as host", given, works).findings)
    assert finding.result == "ok"
    (finding,) = (f for _, f in checked("greets as host", clauses=works).findings)
    assert finding.result == "failed" and "greeting is" in finding.seen


def test_a_component_that_is_done_before_it_can_be_stopped_has_not_broken_anything(checked: Run) -> None:
    one = checked("none, it is quick", clauses=[c for c in CLAUSES if c.name in ("works", "sigterm")])
    assert [(f.result, f.seen) for _, f in one.findings][1] == ("not shown", "it ended before it could be stopped")


def test_running_may_be_left_out(checked: Run) -> None:
    one = checked("only the end", clauses=[c for c in CLAUSES if c.shown_by == TOGETHER])
    assert one.good
    assert {c.name: f.result for c, f in one.findings}["callback-running"] == "not shown"


def test_a_program_that_does_not_start_is_reported_once(checked: Run) -> None:
    one = checked(program=("/nowhere/python",))
    broken = {clause.name: finding.seen for clause, finding in one.findings if finding.result == "failed"}
    assert list(broken) == ["starts"]
    assert "COMMAND_NOT_FOUND" in broken["starts"]


def test_further_inputs_are_filled_too_and_a_model_can_be_given(checked: Run, impatient: None) -> None:
    more = [a_data("table"), a_data("more", category="test_set"), a_data("model", category="model")]
    works = [c for c in CLAUSES if c.name == "works"]
    given = Given(files={("guest", "model"): b"a model", ("host", "model"): b"a model"})
    assert checked("none, it reads on", given, works, count(inputData=more)).good
    lacking = checked("none, it reads on", clauses=works, component=count(inputData=more))
    assert "nothing could be made up for model (model)" in lacking.findings[0][1].seen


def test_a_given_table_that_is_none_ends_the_check_at_once(checked: Run, impatient: None) -> None:
    with pytest.raises(Invalid) as caught:
        checked(given=Given({"host": b"id,y\na,1,2\n"}))
    assert [p.path for p in caught.value.problems] == ["file:2"]


def test_what_is_given_up_ends_though_nothing_fails(tmp_path: Path) -> None:
    waits = (sys.executable, "-c", "import time; time.sleep(600)")
    box = sandbox_of(tmp_path, *waits, timeouts=Timeouts(run=600.0, grace=1.0))
    box.give_up()
    trial = Trial(box.run(count(), Plan(("guest.0", "host.0"))))
    box.close()
    assert not trial.worked and all(t.was_stopped for t in trial.traces)
