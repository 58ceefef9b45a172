"""The tiny vendor in the sandbox: each mistake is found and named by the clause that it breaks."""

import sys
from typing import Any, NoReturn

import pytest

from engines.base import EngineDown
from engines.process.engine import ProcessEngine
from gateway.conformance import execution
from gateway.conformance.check import TrialInput, check
from gateway.conformance.clauses import CLAUSES, TOGETHER
from gateway.conformance.plans import Timeouts
from gateway.errors import Invalid
from tests.conformance.conftest import VENDOR, count_component, ignore_step, sandbox_of
from tests.registry.builders import a_data

# Clauses broken by mistakes of a component that succeeds, by mistake.
MISTAKES_OF_SUCCESS = {
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

# Clauses broken by mistakes that make the component fail or lose its output.
MISTAKES_OF_FAILURE = {
    "refuses unknown parameters": "unknown-parameter",
    "writes elsewhere instead": "output-written",
}

WORKS = [clause for clause in CLAUSES if clause.name == "works"]


def failures_of(checked):
    """Return the evidence of each clause that a component breaks, by clause."""
    failures = {}
    for clause, finding in checked.findings:
        if finding.result == "failed":
            failures[clause.name] = finding.seen
    return failures


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the partners of a party that failed immediately: they only wait for it."""
    monkeypatch.setattr(execution, "SECONDS_AFTER_END", 0.0)


def test_a_component_that_keeps_the_contract_passes(check_vendor):
    checked = check_vendor()

    not_shown = [
        clause.name for clause, finding in checked.findings if finding.result == "not shown"
    ]
    assert failures_of(checked) == {}
    assert not_shown == ["log-files"]


def test_a_long_message_is_no_request_to_other_paths(check_vendor):
    checked = check_vendor(["sends a long message"])

    assert failures_of(checked) == {}


@pytest.mark.parametrize(
    "mistakes",
    [MISTAKES_OF_SUCCESS, MISTAKES_OF_FAILURE],
    ids=["succeeds", "ends otherwise"],
)
def test_every_mistake_of_a_component_is_named_by_its_clause(check_vendor, mistakes):
    checked = check_vendor(list(mistakes))

    failures = failures_of(checked)
    assert set(failures) == set(mistakes.values())
    assert all(failures.values())
    assert not checked.good


@pytest.mark.parametrize(
    ("mistake", "clause", "evidence"),
    [
        (
            "another node",
            "channel-accepted",
            "E0000000618 node JG9999 has no route here",
        ),
        (
            "its own node",
            "channel-topics",
            "guest.0 sent it to guest.0 (x-ptp-target-node-id)",
        ),
        (
            "another topic",
            "channel-topics",
            "did you mean 'rows.guest.0x', which guest.0 sent to it?",
        ),
    ],
)
def test_a_mistake_on_the_channel_is_named_and_ends_the_trial(
    tmp_path, impatient, mistake, clause, evidence
):
    command = (sys.executable, "-I", "-S", str(VENDOR), mistake)
    sandbox = sandbox_of(tmp_path, *command, timeouts=Timeouts(run=600.0, grace=1.0))
    clauses = [clause for clause in CLAUSES if clause.shown_by == TOGETHER]

    checked = check(sandbox, count_component(), TrialInput(), ignore_step, clauses)

    sandbox.close()
    failures = failures_of(checked)
    # The other party's wait for its topic breaks `channel-topics`, too.
    assert set(failures) - {"channel-topics"} == {"works", clause} - {"channel-topics"}
    assert clause in failures
    assert evidence in failures[clause]
    waits = "host.0 waits for topic 'rows.guest.0', which received no message before guest.0 ended"
    assert "on the channel: " in failures["works"]
    assert waits in failures["works"]
    assert "info guest.0 begins" in failures["works"], "the last lines of the log"


def test_a_wait_of_all_parties_for_a_topic_without_sender_ends_the_trial(tmp_path):
    command = (sys.executable, "-I", "-S", str(VENDOR), "awaits what nobody sends")
    timeouts = Timeouts(run=600.0, grace=1.0, all_wait=0.5)
    sandbox = sandbox_of(tmp_path, *command, timeouts=timeouts)

    checked = check(sandbox, count_component(), TrialInput(), ignore_step, WORKS)

    sandbox.close()
    evidence = failures_of(checked)["works"]
    for party in ("guest.0", "host.0"):
        assert f"{party} waits for topic 'nothing', which received no message" in evidence


class SilentEngine(ProcessEngine):
    """An engine that stops responding before the logs of a run are read."""

    def logs(self, name: str, *_: Any, **__: Any) -> NoReturn:
        raise EngineDown("it does not answer")


def test_a_run_whose_engine_fails_has_started(tmp_path):
    command = (sys.executable, "-I", "-S", str(VENDOR))
    sandbox = sandbox_of(tmp_path, *command, engine_type=SilentEngine)
    clauses = [clause for clause in CLAUSES if clause.name in ("starts", "works")]

    checked = check(sandbox, count_component(), TrialInput(), ignore_step, clauses)

    sandbox.close()
    failures = failures_of(checked)
    assert list(failures) == ["works"]
    end = "guest.0 started, then its engine failed: ENGINE_DOWN: it does not answer"
    assert end in failures["works"]


def test_without_a_reported_end_a_missing_output_is_a_failure(check_vendor):
    clauses = [clause for clause in CLAUSES if clause.name in ("works", "callback-end")]

    failures = failures_of(check_vendor(["no end", "writes elsewhere instead"], clauses=clauses))

    assert set(failures) == {"works", "callback-end"}
    assert any("without its outputs counts" in evidence for evidence in failures.values())


def test_a_role_gets_parameters_of_its_own(check_vendor, impatient):
    trial_input = TrialInput(of_roles={"host": {"greeting": "hi"}})
    assert check_vendor(["greets as host"], trial_input, WORKS).good

    failures = failures_of(check_vendor(["greets as host"], clauses=WORKS))
    assert "greeting is" in failures["works"]


def test_further_inputs_are_filled_too_and_a_model_can_be_given(check_vendor):
    component = count_component(
        inputData=[
            a_data("table"),
            a_data("more", category="test_set"),
            a_data("model", category="model"),
        ]
    )
    models = {
        ("guest", "model"): b"a model",
        ("host", "model"): b"a model",
    }
    trial_input = TrialInput(files=models)

    assert check_vendor(["none, it reads on"], trial_input, WORKS, component).good


def test_a_file_that_is_no_table_ends_the_check_immediately(check_vendor, impatient):
    with pytest.raises(Invalid) as refusal:
        check_vendor(trial_input=TrialInput({"host": b"id,y\na,1,2\n"}))
    assert [problem.path for problem in refusal.value.problems] == ["file:2"]
