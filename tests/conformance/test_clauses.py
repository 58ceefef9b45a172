"""Each way to break the container contract is named by its clause and by no other."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.process.engine import ProcessEngine
from gateway.conformance import sandbox
from gateway.conformance.check import Given, described
from gateway.conformance.clauses import CLAUSES, TOGETHER
from gateway.conformance.evidence import Evidence, Requests, StateReport, Trace, Trial
from gateway.conformance.loopback import Loopback, Recorder, Station
from gateway.conformance.sandbox import NODE, Plan, Sandbox, Timeouts
from gateway.errors import Invalid
from tests.conformance.conftest import Run, registration

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


def test_a_component_so_quick_that_it_is_done_before_it_is_told_to_end_has_not_broken_anything(
    checked: Run,
) -> None:
    one = checked("none, it is quick", clauses=[c for c in CLAUSES if c.name in ("works", "sigterm")])
    assert [(f.result, f.seen) for _, f in one.findings][1] == ("not shown", "it ended before it could be stopped")


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


def test_a_script_without_its_interpreter_has_not_started() -> None:
    component = described(registration()).provider.components["Count"]  # type: ignore[union-attr]
    traces = tuple(
        Trace(party, "t", "s", "k", code=127, stderr=b"one\nenv: 'python9': No such file\n")
        for party in ("guest.0", "host.0")
    )
    seen = Evidence(component, Trial(traces))
    found = {clause.name: clause.judge(seen) for clause in CLAUSES}
    assert [name for name, finding in found.items() if finding.result == "failed"] == ["starts"]
    assert found["starts"].seen.startswith("guest.0, host.0 did not start: ")
    assert "exit code 127" in found["starts"].seen and "interpreter" in found["starts"].seen
    assert "one\nenv: 'python9'" in found["starts"].seen
    own = replace(traces[0], stdout=b"begins\n")
    assert own.started and "did not start" not in own.end  # a program may end with that code by itself


def test_a_run_reads_the_table_that_was_given(checked: Run) -> None:
    given = Given({"guest": b"id,y\na,1\n", "host": b"id,x\na,2\n"})
    one = checked(given=given, clauses=[c for c in CLAUSES if c.name == "works"])
    assert one.good and len(one.findings) == 1


def test_further_inputs_are_filled_too_and_a_model_can_be_given(checked: Run) -> None:
    body = registration()
    body["components_description"]["Count"]["inputData"] += [
        {"name": "more", "description": "d", "category": "test_set", "dataFormat": ["csv"]},
        {"name": "model", "description": "d", "category": "model", "dataFormat": ["json"]},
    ]
    works = [c for c in CLAUSES if c.name == "works"]
    model = b"a model"
    given = Given(files={("guest", "model"): model, ("host", "model"): model})
    assert checked("none, it reads on", given, works, body).good
    lacking = checked("none, it reads on", clauses=works, body=body)
    assert "nothing could be made up for model (model)" in lacking.findings[0][1].seen


def test_a_result_code_in_the_last_line_counts_as_one_in_a_callback() -> None:
    for line, code in (
        (b'{"resultCode": "7", "resultMessage": "m"}', "7"),
        (b'{"result_code": 4444}', "4444"),
        (b"[1]", ""),
        (b"7", ""),
        (b"{" * 100_000, ""),
    ):
        assert Trace("guest.0", "t", "s", "k", stdout=b"begins\n" + line + b"\n").result_code == code
    requests = Requests(
        reports=(StateReport("RUNNING", "t", "guest", True), StateReport("SUCCESS", "t", "guest", True, "0"))
    )
    assert Trace("guest.0", "t", "s", "k", requests=requests, stdout=b'{"result_code": "7"}').result_code == "0"


def test_many_sandboxes_at_once_leave_the_filters_of_warnings_alone(tmp_path: Path) -> None:
    before = list(warnings.filters)

    def opened(number: int) -> None:
        station = Station("guest.0", "N", "run", "token", Recorder("run"))
        with Loopback({"N": station}, "127.0.0.1", tmp_path / str(number)):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(opened, range(16)))
    assert list(warnings.filters) == before


def test_a_given_table_that_is_none_ends_the_check_at_once(checked: Run) -> None:
    with pytest.raises(Invalid) as caught:
        checked(given=Given({"host": b"id,y\na,1,2\n"}))
    assert [p.path for p in caught.value.problems] == ["file:2"]


def test_what_is_given_up_ends_though_nothing_fails(tmp_path: Path) -> None:
    waits = (sys.executable, "-c", "import time; time.sleep(600)")
    engine = ProcessEngine(node=NODE, installation="test", images={"tiny:1": waits}, run_root=tmp_path / "process")
    sandbox = Sandbox(engine, "tiny:1", "test", tmp_path / "sandbox", Timeouts(run=600.0, grace=1.0))
    provider = described(registration()).provider
    assert provider is not None
    sandbox.give_up()
    trial = Trial(sandbox.run(provider.components["Count"], Plan(("guest.0", "host.0"))))
    sandbox.close()
    assert not trial.worked and all(t.was_stopped and not t.in_time for t in trial.traces)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"type": "int", "validator": "(3,9)"}, 6),
        ({"type": "float", "validator": "(0,1)"}, 0.5),
        ({"type": "int", "validator": "(5,sup)"}, 5),
        ({"type": "boolean"}, False),
        ({"type": "object"}, {}),
        ({"type": "string"}, "conformance"),
        ({"type": "string", "bindingData": [{"label": "A", "value": "a"}]}, "a"),
        ({"type": "string", "defaultValue": "x"}, "x"),
    ],
)
def test_a_required_parameter_gets_a_value_that_its_description_allows(fields: dict[str, Any], value: Any) -> None:
    body = registration()
    described_as = {"name": "needed", "title": "needed", "optional": "false", **fields}
    body["components_description"]["Count"]["inputParam"].append(described_as)
    provider = described(body).provider
    assert provider is not None
    component = provider.components["Count"]
    assert sandbox.required(component, {}) == {"needed": value}
    assert sandbox.required(component, {"needed": "mine", "greeting": "hi"}) == {
        "needed": "mine",
        "greeting": "hi",
    }


def test_one_component_with_its_image_is_a_registration_too() -> None:
    info = registration()["components_description"]["Count"]
    found = described({"imageUrl": "tiny:1", "component_info": info})
    assert found.provider is not None and found.provider.image == "tiny:1" and not found.errors
