"""How evidence is judged, without running components; and the loopback gateway that records it."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from adapter.bfia.channel.grpc_server import SERVICE
from adapter.bfia.channel.ptp_pb2 import PushInbound
from engines.base import ImageNotFound
from gateway.conformance import evidence, outputs, sample_input
from gateway.conformance.check import CheckedComponent, TrialInput, check
from gateway.conformance.clauses import CLAUSES, LONGEST_LINE
from gateway.conformance.evidence import ChannelCall, Evidence, Requests, StateReport, Trace, Trial
from gateway.conformance.loopback import Loopback
from gateway.conformance.outputs import beginning, format_problem
from gateway.conformance.plans import Plan
from gateway.conformance.sandbox import Sandbox
from gateway.conformance.stations import Station, topic_of
from gateway.data.file_storage import FileStorage
from gateway.domain.run import Address
from gateway.domain.states import TaskStatus
from gateway.errors import NotFound
from gateway.language.catalogue import translate
from gateway.ports import Callback
from provider_registry.model import Component, DataSpec
from tests.builders import raising
from tests.cli.chinese import english_in
from tests.conformance.conftest import count_component, ignore_step
from tests.registry.builders import a_data

DOCS = Path(__file__).resolve().parents[2] / "docs"
NODE = "JG0100001100000010"
CHINESE = re.compile("[\u4e00-\u9fff]")

# Callbacks and calls of a run that keeps the contract.
STATES = [StateReport(status, "t", "guest", True) for status in ("RUNNING", "SUCCESS")]
PUSH = ChannelCall(
    "push",
    "s",
    "k",
    NODE,
    "rows",
    "E0000000000",
    has_message=False,
)
POP = replace(
    PUSH,
    operation="pop",
    has_message=True,
)
CALLS = [PUSH, POP]

UNANSWERED_POP = ChannelCall("pop", "s", "k", NODE, "rows")
EMPTY_POP = replace(UNANSWERED_POP, code="E0000000000")
REFUSED_PUSH = ChannelCall("push", "s", "k", "JG9", "rows", "E0000000618", "no route")
PUSH_WITHOUT_ROUTE = replace(
    PUSH,
    code="E0000000618",
    message="node JG9 has no route here: ask this node's admin for one",
)

# Runs: without a callback, as the contract requires, failing, stopped, killed, and stopped but
# successful; one that hangs is stopped at the end of its time.
SILENT = Trace(
    "guest.0",
    "t",
    "s",
    "k",
    NODE,
    Requests(),
    code=0,
    stdout=b"begins\n",
    outputs={"counts": ""},
)
GOOD = replace(
    SILENT,
    requests=Requests(STATES, channel_calls=CALLS),
)
FAILING = replace(SILENT, code=1)
STOPPED = replace(
    GOOD,
    requests=Requests(STATES[:1]),
    code=143,
    signal=15,
    was_stopped=True,
    stop_seconds=0.1,
)
KILLED = replace(
    STOPPED,
    code=137,
    signal=9,
    stop_seconds=10.0,
)
STOPPED_WITH_SUCCESS = replace(
    STOPPED,
    requests=Requests(STATES),
    code=0,
    signal=None,
)
HANGING = replace(
    STOPPED,
    requests=Requests(STATES[:1]),
)


def with_requests(**changes: Any) -> dict[str, Any]:
    """Return changes of a trace: the good run's requests with other fields."""
    return {"requests": replace(GOOD.requests, **changes)}


def with_reports(**changes: Any) -> dict[str, Any]:
    """Return changes of a trace: the good run's callbacks with other fields."""
    return with_requests(reports=[replace(state, **changes) for state in STATES])


def with_calls(**changes: Any) -> dict[str, Any]:
    """Return changes of a trace: the good run's channel calls with other fields."""
    return with_requests(channel_calls=[replace(call, **changes) for call in CALLS])


def judge_all(*traces: Trace, **fields: Any) -> dict[str, Any]:
    """Return the finding of each clause about a trial with these runs; fields of the evidence."""
    trial_evidence = Evidence(count_component(), Trial(traces), **fields)
    return {clause.name: clause.judge(trial_evidence) for clause in CLAUSES}


def failed_clauses(findings: dict[str, Any]) -> list[str]:
    return [name for name, finding in findings.items() if finding.result == "failed"]


@pytest.mark.parametrize(
    ("clause", "mistake"),
    [
        ("callback-sent", {"requests": Requests()}),
        ("callback-form", with_requests(refused=["STATUS_UNKNOWN: status: must be one of"])),
        ("callback-address", with_reports(used_full_address=False)),
        ("callback-names", with_reports(task_id="another")),
        ("callback-names", with_reports(role="host")),
        ("callback-running", with_requests(reports=STATES[::-1])),
        ("exit-code", {"code": 3}),
        ("result-code", with_reports(result_code="4444")),
        ("stdout-log", {"stdout": b""}),
        ("stdout-log", {"stdout": b"\xff\n"}),
        ("stdout-log", {"stdout": b"x" * (LONGEST_LINE + 1)}),
        ("output-written", {"outputs": {}, "strays": ("my-own-name",)}),
        ("output-form", {"outputs": {"counts": "is empty"}}),
        ("output-only-there", {"strays": ("scratch",)}),
        ("input-untouched", {"changed": ("table",)}),
        ("channel-session", with_calls(session="another")),
        ("channel-session", with_calls(token="another")),
        ("channel-accepted", with_requests(channel_calls=[*CALLS, PUSH_WITHOUT_ROUTE])),
        ("own-paths", with_requests(other_paths=["POST /v1/platform/schedule/job/query_job_list"])),
    ],
)
def test_one_mistake_breaks_one_clause(clause, mistake):
    failure = replace(STATES[1], status="FAILED")
    without_data = replace(
        FAILING,
        requests=Requests([failure]),
    )

    findings = judge_all(
        replace(GOOD, **mistake),
        stopped=(STOPPED,),
        without_data=(without_data,),
    )

    assert failed_clauses(findings) == [clause]
    assert findings[clause].seen
    quotes_component = clause in ("callback-form", "own-paths")
    if not quotes_component:
        assert english_in(findings[clause].seen) == []


def test_every_clause_has_a_remedy():
    assert all(clause.remedy for clause in CLAUSES)


def test_the_requests_of_a_failing_party_are_judged_all_the_same():
    run = replace(FAILING, **with_calls(session="wrong"))
    requests = replace(
        run.requests,
        reports=[],
        other_paths=["GET /x"],
        refused=["no status"],
    )

    findings = judge_all(replace(run, requests=requests))

    failed = failed_clauses(findings)
    assert failed == ["works", "callback-form", "channel-session", "own-paths"]
    assert findings["channel-session"].seen.startswith("guest.0 used session 'wrong' for push")
    assert findings["works"].remedy.startswith("send config.session_id")


# A run that reports no end.
ENDLESS = replace(GOOD, **with_requests(reports=STATES[:1]))


def test_a_run_that_reports_no_end_works_but_its_end_is_not_shown():
    findings = judge_all(ENDLESS)

    assert {findings["works"].result, findings["callback-end"].result} == {"ok", "not shown"}
    assert "no_callback" in findings["callback-end"].seen
    check_is_translated(findings["works"])
    check_is_translated(findings["callback-end"])


def test_a_run_without_its_end_and_output_fails():
    findings = judge_all(replace(ENDLESS, missing=("counts",)))

    assert findings["works"].result == "failed"
    assert findings["callback-end"].result == "failed"
    check_is_translated(findings["works"])
    check_is_translated(findings["callback-end"])


def check_is_translated(finding: Any) -> None:
    """Fail unless a finding's evidence and remedy have a Chinese translation."""
    assert CHINESE.search(translate(finding.seen + finding.remedy, "zh"))


@pytest.mark.parametrize(
    ("calls", "is_waiting"),
    [
        ([], False),
        ([PUSH], False),
        ([POP], False),
        ([UNANSWERED_POP], True),
        ([EMPTY_POP], False),
        ([EMPTY_POP, EMPTY_POP], True),
        ([replace(EMPTY_POP, has_message=True), EMPTY_POP], False),
        ([replace(EMPTY_POP, topic="other"), EMPTY_POP], False),
    ],
)
def test_a_party_waits_if_it_pops_again_not_if_it_only_looked(calls, is_waiting):
    assert evidence.is_waiting(Requests(channel_calls=calls)) is is_waiting


def test_a_topic_is_shown_without_the_tasks_id():
    run = replace(GOOD, task_id="task_1")
    assert run.short("task_1:guest.0:ids") == "'<task_id>:guest.0:ids'"


# ---------------------------------------------------------------- several trials


class ScriptedSandbox:
    """A sandbox whose trials have the given runs; it keeps the parameters of each trial."""

    confined = False

    def __init__(
        self,
        together: list[Trace],
        stopped: list[Trace],
    ) -> None:
        self._together = list(together)
        self._stopped = list(stopped)
        self.parameters: list[Any] = []

    def run(
        self,
        component: Component,
        plan: Plan,
        *_: object,
    ) -> tuple[Trace, ...]:
        self.parameters.append(plan.parameters)
        runs = self._together
        if plan.stop:
            runs = self._stopped
        return (runs.pop(0),)


def check_clause(
    name: str,
    sandbox: ScriptedSandbox,
    trial_input: TrialInput | None = None,
    **changes: Any,
) -> CheckedComponent:
    """Check one clause; ``changes`` apply to the component's description."""
    clauses = [clause for clause in CLAUSES if clause.name == name]
    component = count_component(roleList=["guest"], **changes)
    return check(
        cast(Sandbox, sandbox),
        component,
        trial_input or TrialInput(),
        ignore_step,
        clauses,
    )


def evidence_of(checked: CheckedComponent) -> str:
    """Return the evidence of the first clause."""
    _, finding = checked.findings[0]
    return finding.seen


@pytest.mark.parametrize(
    ("run", "lacks", "remedy"),
    [
        (FAILING, ("guest.model",), "give guest.model by --data"),
        (
            replace(
                HANGING,
                requests=Requests(channel_calls=[UNANSWERED_POP, REFUSED_PUSH]),
            ),
            (),
            "that was refused",
        ),
        (FAILING, (), "the last lines of guest.0; their tables were made up"),
        (
            replace(
                HANGING,
                requests=Requests(channel_calls=[UNANSWERED_POP]),
            ),
            (),
            "under the same topic",
        ),
        (HANGING, (), "find what guest.0 waits for"),
        (replace(FAILING, code=137, oom_killed=True), (), "allow more by --memory"),
    ],
)
def test_a_component_that_does_not_work_gets_a_first_remedy(run, lacks, remedy):
    finding = judge_all(run, lacks=lacks, made_up=True)["works"]

    assert finding.result == "failed"
    assert remedy in finding.remedy
    assert CHINESE.search(translate(finding.remedy, "zh"))


WITH_UNKNOWN_CODE = with_reports(result_code="E1")


@pytest.mark.parametrize(
    ("clause", "together", "stopped", "is_good", "shown_evidence"),
    [
        (
            "callback-sent",
            [SILENT, GOOD],
            [],
            True,
            "in an earlier trial: no callback from guest.0",
        ),
        ("callback-sent", [SILENT, SILENT], [], False, "no callback"),
        ("callback-sent", [SILENT, FAILING, FAILING, FAILING], [], False, "no callback"),
        (
            "callback-running",
            [replace(GOOD, requests=Requests(STATES[1:]))],
            [],
            True,
            "never reported RUNNING",
        ),
        (
            "result-code",
            [GOOD, replace(FAILING, **WITH_UNKNOWN_CODE)],
            [],
            False,
            "reported 'E1'",
        ),
        (
            "result-code",
            [replace(GOOD, **WITH_UNKNOWN_CODE), FAILING],
            [],
            False,
            "reported 'E1'",
        ),
        ("sigterm", [GOOD], [KILLED, STOPPED], True, "guest.0 ended after 0.1 s"),
        ("sigterm", [GOOD], [KILLED] * 3, False, "had to be killed"),
        ("sigterm", [GOOD], [STOPPED_WITH_SUCCESS, STOPPED], True, "guest.0 ended after 0.1 s"),
        ("sigterm", [GOOD], [STOPPED_WITH_SUCCESS] * 3, False, "reported SUCCESS"),
        ("sigterm", [GOOD], [GOOD], True, "it ended before it could be stopped"),
    ],
)
def test_a_mistake_that_the_next_trial_does_not_repeat_breaks_nothing(
    clause, together, stopped, is_good, shown_evidence
):
    checked = check_clause(clause, ScriptedSandbox(together, stopped))

    assert checked.good is is_good
    assert shown_evidence in evidence_of(checked)
    assert english_in(evidence_of(checked)) == []


def test_a_failing_component_is_tried_with_known_then_all_parameters():
    sandbox = ScriptedSandbox(2 * [FAILING, FAILING, GOOD], [])

    checked = check_clause("optional-omitted", sandbox)

    assert "works only with the defaults of greeting" in evidence_of(checked)
    with_unknown = {sample_input.UNKNOWN: "1"}
    assert sandbox.parameters == 2 * [with_unknown, {}, {"greeting": "hello"}]


def test_data_that_cannot_be_made_up_is_named():
    inputs = [
        a_data("table"),
        a_data("model", category="model"),
    ]
    checked = check_clause("works", ScriptedSandbox(3 * [FAILING], []), inputData=inputs)
    assert "nothing could be made up for model (model)" in evidence_of(checked)


@pytest.mark.parametrize(
    ("files", "tables", "is_made_up"),
    [
        ({}, {}, True),
        ({("guest", "model"): b"m"}, {}, True),
        ({("guest", "table"): b"id"}, {}, False),
        ({}, {"guest": b"id"}, False),
    ],
    ids=["nothing", "only a model", "a file for the table", "a table for the role"],
)
def test_a_failure_with_a_made_up_table_asks_for_the_vendors_own(files, tables, is_made_up):
    inputs = [a_data("table"), a_data("model", category="model")]
    files = {("guest", "model"): b"m"} | files
    trial_input = TrialInput(files=files, tables=tables)

    checked = check_clause(
        "works", ScriptedSandbox(3 * [FAILING], []), trial_input, inputData=inputs
    )

    _, finding = checked.findings[0]
    assert ("their tables were made up" in finding.remedy) is is_made_up


def test_a_component_that_hangs_is_not_tried_again_for_as_long():
    run = replace(
        SILENT,
        code=143,
        signal=15,
        was_stopped=True,
    )

    checked = check_clause("works", ScriptedSandbox([run], []))

    _, finding = checked.findings[0]
    assert finding.result == "failed"
    assert "was still running and was stopped" in finding.seen


def test_a_script_without_its_interpreter_has_not_started():
    stderr = b"one\nenv: 'python9': No such file\n"
    run = Trace(
        "guest.0",
        "t",
        "s",
        "k",
        code=127,
        stderr=stderr,
    )

    findings = judge_all(run, replace(run, party="host.0"))

    assert failed_clauses(findings) == ["starts"]
    assert findings["starts"].seen.startswith("guest.0, host.0 did not start: exit code 127")


def test_a_program_that_ends_with_code_127_by_itself_has_started():
    stderr = b"one\nenv: 'python9': No such file\n"
    run = Trace(
        "guest.0",
        "t",
        "s",
        "k",
        code=127,
        stdout=b"begins\n",
        stderr=stderr,
    )
    assert run.started
    assert "did not start" not in run.end


def test_a_repeated_state_is_shown_once():
    statuses = ["RUNNING"] * 300 + ["SUCCESS"]
    reports = [StateReport(status, "t", "guest", True) for status in statuses]

    findings = judge_all(replace(GOOD, requests=Requests(reports)))

    assert findings["callback-sent"].seen == "guest.0 reported RUNNING (300 times), SUCCESS"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"resultCode": "7", "resultMessage": "m"}', "7"),
        (b'{"result_code": 4444}', "4444"),
        (b"[1]", ""),
        (b"{" * 100_000, ""),
    ],
    ids=["text", "number", "list", "nested too deeply"],
)
def test_a_result_code_in_the_last_line_counts_as_one_in_a_callback(line, code):
    assert replace(SILENT, stdout=b"begins\n" + line + b"\n").result_code == code


def test_a_result_code_in_a_callback_comes_before_the_last_line():
    requests = Requests([*STATES, StateReport("SUCCESS", "t", "guest", True, "0")])
    run = replace(
        SILENT,
        requests=requests,
        stdout=b'{"result_code": "7"}',
    )
    assert run.result_code == "0"


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"type": "int", "validator": "(3,9)"}, 6),
        ({"type": "float", "validator": "(0,1)"}, 0.5),
        ({"type": "int", "validator": "(5,sup)"}, 5),
        ({"type": "int", "validator": "(0,1]"}, 1),
        ({"type": "int", "validator": "[0,1)"}, 0),
        ({"type": "float", "validator": "(0,sup]"}, 1.0),
        ({"type": "boolean"}, False),
        ({"type": "object"}, {}),
        ({"type": "string"}, "conformance"),
        (
            {
                "type": "string",
                "bindingData": [{"label": "A", "value": "a"}],
            },
            "a",
        ),
        ({"type": "string", "defaultValue": "x"}, "x"),
    ],
)
def test_a_required_parameter_gets_a_value_that_its_description_allows(fields, value):
    parameter = {
        "name": "needed",
        "title": "needed",
        "optional": "false",
        **fields,
    }
    component = count_component(inputParam=[parameter])

    assert sample_input.required_parameters(component, {}) == {"needed": value}
    assert sample_input.required_parameters(component, {"needed": "mine"}) == {"needed": "mine"}


# ---------------------------------------------------------------- the loopback gateway


def connect(loopback: Loopback) -> socket.socket:
    host, _, port = loopback.transport(NODE).partition(":")
    return socket.create_connection((host, int(port)))


def test_callbacks_are_recorded_in_order_even_if_their_sender_is_gone(tmp_path):
    station = Station("guest.0", NODE, "run", "token")
    with Loopback({NODE: station}, "127.0.0.1", tmp_path) as loopback:
        path = loopback.callback(NODE).partition(loopback.transport(NODE))[2]
        head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
        for number in range(40):
            report = {
                "task_id": "t",
                "status": "RUNNING",
                "role": "guest",
                "result_code": str(number),
            }
            body = json.dumps(report)
            with connect(loopback) as sender:
                sender.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())

        loopback.await_callbacks(NODE)

        codes = [report.result_code for report in station.requests.reports]
        assert codes == [str(number) for number in range(40)]
        assert station.requests.refused == []


@pytest.mark.parametrize("trial", ["first", "second"])
def test_a_message_by_grpc_is_recorded_as_one_by_http(tmp_path, capfd, trial):
    station = Station("guest.0", NODE, "run", "token")
    headers = [
        ("x-ptp-session-id", "s"),
        ("x-ptp-token", "token"),
        ("x-ptp-target-node-id", NODE),
    ]
    push = PushInbound(topic="rows", payload=b"1").SerializeToString()
    with Loopback({NODE: station}, "127.0.0.1", tmp_path) as loopback:
        with grpc.insecure_channel(loopback.transport(NODE)) as channel:
            channel.unary_unary(f"/{SERVICE}/push")(
                push,
                metadata=headers,
                timeout=300,
            )
        with connect(loopback) as sender:
            sender.sendall(b"no request at all\r\n\r\n")
            assert sender.recv(12) == b"HTTP/1.1 400"

    (call,) = station.requests.channel_calls
    assert call.operation == "push"
    assert call.topic == "rows"
    assert call.succeeded is True
    assert call.session == "s"
    assert capfd.readouterr().err == ""


def test_a_callback_of_another_run_is_not_recorded():
    station = Station("guest.0", NODE, "run", "token")
    with pytest.raises(NotFound) as refusal:
        station.callback(Callback(TaskStatus.SUCCESS, run_id="another"))
    assert refusal.value.reason == "RUN_UNKNOWN"
    assert station.requests.reports == []


def test_a_callback_with_an_unknown_status_is_only_recorded_as_refused():
    station = Station("guest.0", NODE, "run", "token")
    station.callback(Callback(None, run_id="run", word="DONE"))
    assert station.requests.reports == []


def test_a_closed_loopback_has_no_callbacks_to_wait_for(tmp_path):
    station = Station("guest.0", NODE, "run", "token")
    loopback = Loopback({NODE: station}, "127.0.0.1", tmp_path)
    with loopback:
        pass
    loopback.await_callbacks(NODE)


def test_a_loopback_needs_an_address_of_this_machine(tmp_path):
    station = Station("guest.0", NODE, "run", "token")
    with pytest.raises(OSError, match=r"assign|available"):
        Loopback({NODE: station}, "192.0.2.1", tmp_path)


def test_a_topic_is_read_from_the_headers():
    headers = [(b"x-ptp-topic", b"rows")]
    assert topic_of("push", b"", headers, "application/json") == "rows"


# ---------------------------------------------------------------- components, sandboxes, pages


def test_a_bare_component_leaves_clauses_on_inputs_and_choices_unshown():
    bare = count_component(
        inputParam=[],
        inputData=[],
        outputData=[],
    )
    trial_evidence = Evidence(bare, Trial((GOOD,)))

    texts = [clause.judge(trial_evidence).seen for clause in CLAUSES]

    assert "it has no optional parameter" in texts
    assert "it has no input" in texts
    assert "it has no output" in texts


def test_a_sandbox_without_its_image_has_no_labels_and_leaves_no_container(tmp_path):
    removed = []
    engine = SimpleNamespace(
        capabilities=(),
        image_metadata=raising(ImageNotFound("no such image")),
        list=lambda: [SimpleNamespace(name="left")],
        remove=removed.append,
        close=lambda: None,
    )
    sandbox = Sandbox(cast(Any, engine), "none:1", "test", tmp_path)
    assert sandbox.labels() == {}

    sandbox.close()

    assert removed == ["left"]


def clause_table(page: str) -> str:
    """Return the table of clauses of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition("<!-- clauses -->\n")[2].partition("\n<!-- end -->")[0]


def test_the_english_page_has_the_clauses_of_the_code():
    lines = [
        "| Clause | Section | What a component keeps | If it does not |",
        "|---|---|---|---|",
    ]
    for clause in CLAUSES:
        remedy = clause.remedy.replace("<", "&lt;")
        lines.append(f"| `{clause.name}` | {clause.section} | {clause.says} | {remedy} |")
    assert clause_table("conformance.md") == "\n".join(lines)


def test_the_chinese_page_has_the_clauses_of_the_code():
    table = clause_table("conformance.zh-CN.md")
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", table, re.MULTILINE)
    sections = [(name, section.strip()) for name, section in rows]
    assert sections == [(clause.name, translate(clause.section, "zh")) for clause in CLAUSES]


def test_no_two_clauses_have_the_same_name():
    assert len({clause.name for clause in CLAUSES}) == len(CLAUSES)


# ---------------------------------------------------------------- outputs

TABLE = DataSpec("total", "", "dataset", ("csv",))
OUTPUT = Address("job", "total")
METADATA = {
    "count": 2,
    "column_info": [
        {"id": "string"},
        {"x": "float"},
    ],
}
NAMED_COLUMNS = [
    {"name": "id", "type": "string"},
    {"name": "x", "type": "float"},
]


@pytest.mark.parametrize(
    ("content", "metadata", "problem"),
    [
        ("id,x\na,1\nb,2\n", METADATA, ""),
        ("id,x\na,1\nb,2\n", {"column_info": NAMED_COLUMNS}, ""),
        ('id,x\na,"1\n2"\nb,2\n', METADATA, ""),
        ("id,x\na,1\nb,2\n", None, "has no file metadata beside its data"),
        ("id,x\na,1\n", METADATA, "has 1 row, its metadata say count 2"),
        (
            "a,1\nb,2\nc,3\n",
            METADATA,
            "has the columns a, 1, but its metadata's column_info says id, x",
        ),
        ("id\na,1\nb,2\n", METADATA, "has 2 values in row 1 below a header of 1 column"),
        (
            "id\na\n",
            {"column_info": ["id"]},
            "has metadata whose column_info is not a list of columns",
        ),
        ("id\na\n", {"column_info": 7}, "has metadata whose column_info is not a list of columns"),
        ('{"total": 7}', METADATA, "holds JSON, not CSV"),
        ('{"total": 7}', None, "holds JSON, not CSV"),
        ("{id\na\nb\n", METADATA, "has the columns {id, but its metadata's column_info says id, x"),
        ("\n", METADATA, "has no header line"),
        ("", METADATA, "is empty"),
    ],
)
def test_a_table_agrees_with_its_metadata(tmp_path, content, metadata, problem):
    storage = FileStorage(tmp_path)
    folder = storage.path(OUTPUT)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text(content)
    if metadata is not None:
        (folder / "metadata").write_text(json.dumps(metadata))

    assert format_problem(storage, OUTPUT, TABLE) == problem
    if problem:
        assert english_in(f"total of guest.0 {problem}; total of host.1 {problem}") == []


def test_a_missing_output_cannot_be_read(tmp_path):
    storage = FileStorage(tmp_path)
    assert format_problem(storage, OUTPUT, TABLE).startswith("cannot be read: ")
    assert beginning(storage, OUTPUT) == ""


def test_the_format_of_an_output_that_is_too_large_is_not_judged(tmp_path, monkeypatch):
    storage = FileStorage(tmp_path)
    storage.path(OUTPUT).mkdir(parents=True)
    (storage.path(OUTPUT) / "data_0").write_text("no table at all")
    monkeypatch.setattr(outputs, "MAX_CHECKED_SIZE", 3)

    assert format_problem(storage, OUTPUT, TABLE) == ""
    assert beginning(storage, OUTPUT) == "no table at all"
