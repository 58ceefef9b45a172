"""How evidence is judged, without anything that runs; and what a machine does that stalls for some seconds."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from adapter.bfia.channel.ptp_pb2 import PushInbound
from adapter.bfia.channel.rpc import SERVICE
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
from tests.cli import raising
from tests.cli.chinese import english_in
from tests.conformance.conftest import count_component, ignore_step
from tests.registry.builders import a_data

DOCS = Path(__file__).resolve().parents[2] / "docs"
NODE = "JG0100001100000010"
NO_ROUTE = {
    "code": "E0000000618",
    "message": "node JG9 has no route here: ask this node's admin for one",
}
STATES = [StateReport(status, "t", "guest", True) for status in ("RUNNING", "SUCCESS")]
CALLS = [
    ChannelCall(operation, "s", "k", NODE, "rows", "E0000000000", content=operation == "pop")
    for operation in ("push", "pop")
]
WAITS = ChannelCall("pop", "s", "k", NODE, "rows")
EMPTY = replace(WAITS, code="E0000000000")
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
WELL = replace(SILENT, requests=Requests(STATES, channel_calls=CALLS))
FAILING = replace(SILENT, code=1)
ENDED = replace(
    WELL,
    requests=Requests(STATES[:1]),
    code=143,
    signal=15,
    was_stopped=True,
    stop_seconds=0.1,
)
KILLED = replace(
    ENDED,
    code=137,
    signal=9,
    stop_seconds=10.0,
)
PLEASED = replace(
    ENDED,
    requests=Requests(STATES),
    code=0,
    signal=None,
)


def asking(**changes: Any) -> dict[str, Any]:
    """A trace's requests, in which something is not as it should be."""
    return {"requests": replace(WELL.requests, **changes)}


def reporting(**changes: Any) -> dict[str, Any]:
    return asking(reports=[replace(state, **changes) for state in STATES])


def calling(**changes: Any) -> dict[str, Any]:
    return asking(channel_calls=[replace(call, **changes) for call in CALLS])


@pytest.mark.parametrize(
    ("clause", "wrong"),
    [
        ("callback-sent", {"requests": Requests()}),
        ("callback-form", asking(refused=["STATUS_UNKNOWN: status: must be one of"])),
        ("callback-address", reporting(address=False)),
        ("callback-names", reporting(task_id="another")),
        ("callback-names", reporting(role="host")),
        ("callback-running", asking(reports=STATES[::-1])),
        ("exit-code", {"code": 3}),
        ("result-code", reporting(result_code="4444")),
        ("stdout-log", {"stdout": b""}),
        ("stdout-log", {"stdout": b"\xff\n"}),
        ("stdout-log", {"stdout": b"x" * (LONGEST_LINE + 1)}),
        ("output-written", {"outputs": {}, "strays": ("my-own-name",)}),
        ("output-form", {"outputs": {"counts": "is empty"}}),
        ("output-only-there", {"strays": ("scratch",)}),
        ("input-untouched", {"changed": ("table",)}),
        ("channel-session", calling(session="another")),
        ("channel-session", calling(token="another")),
        ("channel-accepted", asking(channel_calls=[*CALLS, replace(CALLS[0], **NO_ROUTE)])),
        ("own-paths", asking(other_paths=["POST /v1/platform/schedule/job/query_job_list"])),
    ],
)
def test_one_mistake_breaks_one_clause(clause, wrong):
    hungry, alone = (
        replace(FAILING, requests=Requests([replace(STATES[1], status="FAILED")])),
        ENDED,
    )
    seen = Evidence(
        count_component(), Trial((replace(WELL, **wrong),)), alone=(alone,), without_data=(hungry,)
    )
    findings = {one.name: one.judge(seen) for one in CLAUSES}
    assert [name for name, finding in findings.items() if finding.result == "failed"] == [clause]
    assert findings[clause].seen
    assert all(one.remedy for one in CLAUSES)
    assert clause in ("callback-form", "own-paths") or english_in(findings[clause].seen) == []


def test_what_a_party_that_fails_sent_is_judged_all_the_same():
    wrong = replace(FAILING, **calling(session="wrong"))
    wrong = replace(
        wrong,
        requests=replace(
            wrong.requests,
            reports=[],
            other_paths=["GET /x"],
            refused=["no status"],
        ),
    )
    findings = {
        one.name: one.judge(Evidence(count_component(), Trial((wrong,)))) for one in CLAUSES
    }
    broken = [name for name, finding in findings.items() if finding.result == "failed"]
    assert broken == ["works", "callback-form", "channel-session", "own-paths"]
    assert findings["channel-session"].seen.startswith("guest.0 used session 'wrong' for push")
    assert findings["works"].remedy.startswith("send config.session_id")


def test_a_run_that_reports_no_end_is_judged_as_a_node_does():
    silent = replace(WELL, **asking(reports=STATES[:1]))
    for trace, results in (
        (silent, {"ok", "not shown"}),
        (replace(silent, missing=("counts",)), {"failed"}),
    ):
        seen = Evidence(count_component(), Trial((trace,)))
        found = {
            one.name: one.judge(seen) for one in CLAUSES if one.name in ("works", "callback-end")
        }
        assert {finding.result for finding in found.values()} == results
        assert "no_callback" in found["callback-end"].seen or trace.missing
        assert all(
            re.search("[\u4e00-\u9fff]", translate(f.seen + f.remedy, "zh")) for f in found.values()
        )


@pytest.mark.parametrize(
    ("calls", "waits"),
    [
        ([], False),
        ([CALLS[0]], False),
        ([CALLS[1]], False),
        ([WAITS], True),
        ([EMPTY], False),
        ([EMPTY, EMPTY], True),
        ([replace(EMPTY, content=True), EMPTY], False),
        ([replace(EMPTY, topic="other"), EMPTY], False),
    ],
)
def test_who_asks_for_a_message_waits_and_who_only_looked_does_not(calls, waits):
    assert evidence.is_waiting(Requests(channel_calls=calls)) is waits


def test_a_topic_is_shown_without_the_tasks_id():
    assert replace(WELL, task_id="task_1").short("task_1:guest.0:ids") == "'<task_id>:guest.0:ids'"


class Scripted:
    """A sandbox whose trials have the given outcomes, and which keeps the parameters of each."""

    confined = False

    def __init__(self, together: list[Trace], stopped: list[Trace]) -> None:
        self._together, self._stopped = list(together), list(stopped)
        self.parameters: list[Any] = []

    def run(
        self,
        component: Component,
        plan: Plan,
        *_: object,
    ) -> tuple[Trace, ...]:
        self.parameters.append(plan.parameters)
        return ((self._stopped if plan.stop else self._together).pop(0),)


def checked(
    clause: str,
    scripted: Scripted,
    **more: Any,
) -> CheckedComponent:
    clauses = [c for c in CLAUSES if c.name == clause]
    component = count_component(roleList=["guest"], **more)
    return check(cast(Sandbox, scripted), component, TrialInput(), ignore_step, clauses)


REFUSED = ChannelCall("push", "s", "k", "JG9", "rows", "E0000000618", "no route")
HANGS = replace(ENDED, requests=Requests(STATES[:1]))


@pytest.mark.parametrize(
    ("trace", "lacks", "step"),
    [
        (FAILING, ("guest.model",), "give guest.model by --data"),
        (replace(HANGS, requests=Requests(channel_calls=[WAITS, REFUSED])), (), "that was refused"),
        (FAILING, (), "the last lines of guest.0; their tables were made up"),
        (replace(HANGS, requests=Requests(channel_calls=[WAITS])), (), "under the same topic"),
        (HANGS, (), "find what guest.0 waits for"),
        (replace(FAILING, code=137, oom_killed=True), (), "allow more by --memory"),
    ],
)
def test_what_does_not_work_says_what_to_do_first(trace, lacks, step):
    seen = Evidence(count_component(), Trial((trace,)), lacks=lacks, made_up=True)
    (works,) = (clause for clause in CLAUSES if clause.name == "works")
    finding = works.judge(seen)
    assert finding.result == "failed"
    assert step in finding.remedy
    assert re.search("[\u4e00-\u9fff]", translate(finding.remedy, "zh"))


@pytest.mark.parametrize(
    ("clause", "together", "stopped", "good", "seen"),
    [
        (
            "callback-sent",
            [SILENT, WELL],
            [],
            True,
            "in an earlier trial: no callback from guest.0",
        ),
        ("callback-sent", [SILENT, SILENT], [], False, "no callback"),
        ("callback-sent", [SILENT, FAILING, FAILING, FAILING], [], False, "no callback"),
        (
            "callback-running",
            [replace(WELL, requests=Requests(STATES[1:]))],
            [],
            True,
            "never reported RUNNING",
        ),
        (
            "result-code",
            [WELL, replace(FAILING, **reporting(result_code="E1"))],
            [],
            False,
            "reported 'E1'",
        ),
        (
            "result-code",
            [replace(WELL, **reporting(result_code="E1")), FAILING],
            [],
            False,
            "reported 'E1'",
        ),
        ("sigterm", [WELL], [KILLED, ENDED], True, "guest.0 ended after 0.1 s"),
        ("sigterm", [WELL], [KILLED] * 3, False, "had to be killed"),
        ("sigterm", [WELL], [PLEASED, ENDED], True, "guest.0 ended after 0.1 s"),
        ("sigterm", [WELL], [PLEASED] * 3, False, "reported SUCCESS"),
        ("sigterm", [WELL], [WELL], True, "it ended before it could be stopped"),
    ],
)
def test_what_one_trial_shows_and_the_next_does_not_breaks_nothing(
    clause, together, stopped, good, seen
):
    one = checked(clause, Scripted(together, stopped))
    assert one.good is good
    assert seen in one.findings[0][1].seen
    assert english_in(one.findings[0][1].seen) == []


def test_a_failing_component_is_tried_with_known_then_all_parameters():
    scripted = Scripted(2 * [FAILING, FAILING, WELL], [])
    assert (
        "works only with the defaults of greeting"
        in checked("optional-omitted", scripted).findings[0][1].seen
    )
    assert scripted.parameters == 2 * [{sample_input.UNKNOWN: "1"}, {}, {"greeting": "hello"}]
    more = {"inputData": [a_data("table"), a_data("model", category="model")]}
    lacking = checked("works", Scripted(3 * [FAILING], []), **more)
    assert "nothing could be made up for model (model)" in lacking.findings[0][1].seen


def test_a_component_that_hangs_is_not_tried_again_for_as_long():
    hanging = replace(
        SILENT,
        code=143,
        signal=15,
        was_stopped=True,
    )
    (_, finding), *_ = checked("works", Scripted([hanging], [])).findings
    assert finding.result == "failed"
    assert "was still running and was stopped" in finding.seen


def test_a_script_without_its_interpreter_has_not_started():
    begun = Trace("guest.0", "t", "s", "k", code=127, stderr=b"one\nenv: 'python9': No such file\n")
    seen = Evidence(count_component(), Trial((begun, replace(begun, party="host.0"))))
    found = {clause.name: clause.judge(seen) for clause in CLAUSES}
    assert [name for name, finding in found.items() if finding.result == "failed"] == ["starts"]
    assert found["starts"].seen.startswith("guest.0, host.0 did not start: exit code 127")
    own = replace(begun, stdout=b"begins\n")
    assert own.started
    assert "did not start" not in own.end  # a program may end with that code by itself


def test_a_repeated_state_is_shown_once():
    reports = [
        StateReport(status, "t", "guest", True) for status in ("RUNNING",) * 300 + ("SUCCESS",)
    ]
    judge = next(clause.judge for clause in CLAUSES if clause.name == "callback-sent")
    seen = Evidence(count_component(), Trial((replace(WELL, requests=Requests(reports)),)))
    assert judge(seen).seen == "guest.0 reported RUNNING (300 times), SUCCESS"


def test_a_result_code_in_the_last_line_counts_as_one_in_a_callback():
    for line, code in (
        (b'{"resultCode": "7", "resultMessage": "m"}', "7"),
        (b'{"result_code": 4444}', "4444"),
        (b"[1]", ""),
        (b"{" * 100_000, ""),
    ):
        assert replace(SILENT, stdout=b"begins\n" + line + b"\n").result_code == code
    requests = Requests([*STATES, StateReport("SUCCESS", "t", "guest", True, "0")])
    assert replace(SILENT, requests=requests, stdout=b'{"result_code": "7"}').result_code == "0"


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
def test_a_required_parameter_gets_a_value_that_its_description_allows(fields, value):
    component = count_component(
        inputParam=[
            {
                "name": "needed",
                "title": "needed",
                "optional": "false",
                **fields,
            }
        ]
    )
    assert sample_input.required_parameters(component, {}) == {"needed": value}
    assert sample_input.required_parameters(component, {"needed": "mine"}) == {"needed": "mine"}


def test_a_callback_is_recorded_whose_sender_is_gone_and_in_its_turn(tmp_path):
    station = Station("guest.0", NODE, "run", "token")
    with Loopback({NODE: station}, "127.0.0.1", tmp_path) as loopback:
        host, _, port = loopback.transport(NODE).partition(":")
        path = loopback.callback(NODE).partition(loopback.transport(NODE))[2]
        for number in range(40):
            report = {
                "task_id": "t",
                "status": "RUNNING",
                "role": "guest",
                "result_code": str(number),
            }
            body = json.dumps(report)
            head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
            with socket.create_connection((host, int(port))) as sender:
                sender.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        loopback.await_callbacks(NODE)
        found = [report.result_code for report in station.requests.reports]
        assert found == [str(number) for number in range(40)]
        assert station.requests.refused == []


def test_a_message_by_grpc_is_recorded_as_one_by_http(tmp_path, capfd):
    headers = [("x-ptp-session-id", "s"), ("x-ptp-token", "token"), ("x-ptp-target-node-id", NODE)]
    for trial in ("one", "another"):
        station = Station("guest.0", NODE, "run", "token")
        with Loopback({NODE: station}, "127.0.0.1", tmp_path / trial) as loopback:
            with grpc.insecure_channel(loopback.transport(NODE)) as channel:
                push = PushInbound(topic="rows", payload=b"1").SerializeToString()
                channel.unary_unary(f"/{SERVICE}/push")(push, metadata=headers, timeout=60)
            host, _, port = loopback.transport(NODE).partition(":")
            with socket.create_connection((host, int(port))) as sender:
                sender.sendall(b"no request at all\r\n\r\n")
                assert sender.recv(12) == b"HTTP/1.1 400"
        (call,) = station.requests.channel_calls
        assert call.operation == "push"
        assert call.topic == "rows"
        assert call.succeeded is True
        assert call.session == "s"
    assert capfd.readouterr().err == ""


def test_what_a_run_sends_in_anothers_name_or_too_late_is_not_recorded(tmp_path):
    station = Station("guest.0", NODE, "run", "token")
    with pytest.raises(NotFound) as caught:
        station.callback(Callback(TaskStatus.SUCCESS, run_id="another"))
    assert caught.value.reason == "RUN_UNKNOWN"
    assert station.requests.reports == []
    loopback = Loopback({NODE: station}, "127.0.0.1", tmp_path)
    with loopback:
        pass
    loopback.await_callbacks(NODE)  # it serves nobody any more
    with pytest.raises(OSError, match=r"assign|available"):
        Loopback({NODE: station}, "192.0.2.1", tmp_path)
    headers = [(b"x-ptp-topic", b"rows")]
    assert topic_of("push", b"", headers, "application/json") == "rows"


def test_a_bare_component_leaves_clauses_on_inputs_and_choices_unshown():
    bare = count_component(
        inputParam=[],
        inputData=[],
        outputData=[],
    )
    findings = {one.name: one.judge(Evidence(bare, Trial((WELL,)))).seen for one in CLAUSES}
    for text in ("it has no optional parameter", "it has no input", "it has no output"):
        assert text in findings.values()


def test_a_sandbox_without_its_image_has_no_labels_and_leaves_no_container(tmp_path):
    removed: list[str] = []
    engine = SimpleNamespace(
        capabilities=(),
        image_facts=raising(ImageNotFound("no such image")),
        list=lambda: [SimpleNamespace(name="left")],
        remove=removed.append,
        close=lambda: None,
    )
    box = Sandbox(cast(Any, engine), "none:1", "test", tmp_path)
    assert box.labels() == {}
    box.close()
    assert removed == ["left"]


def test_the_pages_have_the_clauses_of_the_code():
    english, chinese = (
        (DOCS / name)
        .read_text(encoding="utf-8")
        .partition("<!-- clauses -->\n")[2]
        .partition("\n<!-- end -->")[0]
        for name in ("conformance.md", "conformance.zh-CN.md")
    )
    lines = ["| Clause | Section | What a component keeps | If it does not |", "|---|---|---|---|"]
    lines += [
        f"| `{c.name}` | {c.section} | {c.says} | {c.remedy.replace('<', '&lt;')} |"
        for c in CLAUSES
    ]
    assert english == "\n".join(lines)
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", chinese, re.MULTILINE)
    assert [(n, section.strip()) for n, section in rows] == [
        (c.name, translate(c.section, "zh")) for c in CLAUSES
    ]
    assert len({c.name for c in CLAUSES}) == len(CLAUSES)


TABLE = DataSpec("total", "", "dataset", ("csv",))
GOOD = {"count": 2, "column_info": [{"id": "string"}, {"x": "float"}]}


@pytest.mark.parametrize(
    ("content", "metadata", "found"),
    [
        ("id,x\na,1\nb,2\n", GOOD, ""),
        (
            "id,x\na,1\nb,2\n",
            {"column_info": [{"name": "id", "type": "string"}, {"name": "x", "type": "float"}]},
            "",
        ),
        ('id,x\na,"1\n2"\nb,2\n', GOOD, ""),
        ("id,x\na,1\nb,2\n", None, "has no file metadata beside its data"),
        ("id,x\na,1\n", GOOD, "has 1 row, its metadata say count 2"),
        (
            "a,1\nb,2\nc,3\n",
            GOOD,
            "has the columns a, 1, but its metadata's column_info says id, x",
        ),
        ("id\na,1\nb,2\n", GOOD, "has 2 values in row 1 below a header of 1 column"),
        (
            "id\na\n",
            {"column_info": ["id"]},
            "has metadata whose column_info is not a list of columns",
        ),
        ("id\na\n", {"column_info": 7}, "has metadata whose column_info is not a list of columns"),
        ('{"total": 7}', GOOD, "holds JSON, not CSV"),
        ('{"total": 7}', None, "holds JSON, not CSV"),
        ("{id\na\nb\n", GOOD, "has the columns {id, but its metadata's column_info says id, x"),
        ("\n", GOOD, "has no header line"),
        ("", GOOD, "is empty"),
    ],
)
def test_a_table_is_what_its_metadata_say(tmp_path, content, metadata, found):
    storage, at = FileStorage(tmp_path), Address("job", "total")
    storage.path(at).mkdir(parents=True)
    (storage.path(at) / "data_0").write_text(content)
    if metadata is not None:
        (storage.path(at) / "metadata").write_text(json.dumps(metadata))
    assert format_problem(storage, at, TABLE) == found
    assert not found or english_in(f"total of guest.0 {found}; total of host.1 {found}") == []


def test_an_output_that_goes_or_is_too_large_is_not_judged(tmp_path, monkeypatch):
    storage, at = FileStorage(tmp_path), Address("job", "total")
    assert format_problem(storage, at, TABLE).startswith("cannot be read: ")
    assert beginning(storage, at) == ""
    storage.path(at).mkdir(parents=True)
    (storage.path(at) / "data_0").write_text("no table at all")
    monkeypatch.setattr(outputs, "MAX_CHECKED_SIZE", 3)
    assert format_problem(storage, at, TABLE) == ""
    assert beginning(storage, at) == "no table at all"
