"""What waits on the channel of a job is shown: messages, bytes, since when, and who waits."""

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.bootstrap.node import Gateway
from gateway.domain.execution.messages import StopRequested
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import Outcome
from tests import cli
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER, ask, containers, running
from tests.memory_engine import MemoryEngine, Script

CHAN = "/v1/interconn/chan/"
PAYLOAD = base64.b64encode(b"hello").decode()


def call(
    node: Gateway,
    verb: str,
    headers: dict[str, str],
    **body: Any,
) -> Any:
    named = {"x-ptp-target-node-id": ME} | headers
    return ask(node, "container", "POST", CHAN + verb, json=body, headers=named).json()


def test_what_waits_on_a_jobs_channel_is_shown(tmp_path):
    with running(tmp_path) as node, ThreadPoolExecutor(1) as threads:
        told = containers(node, "job-1", {"guest": (ME,), "host": (ME,)})
        waits = threads.submit(call, node, "pop", told["host.0"], topic="answer", timeout=100_000)

        def channel() -> Any:
            return ask(node, "operator", "GET", "/api/v1/jobs/job-1").json()["channel"]

        wait_for(lambda: waits.done() or channel())
        for _ in range(2):
            call(node, "push", told["guest.0"], topic="question", payload=PAYLOAD)
        question, answer = channel()
        assert question.pop("oldest") >= 0
        expected = {
            "session": "session_job-1",
            "topic": "question",
            "messages": 2,
            "bytes": 10,
            "readers": [],
        }
        assert question == expected | {"bytes_per_second": 1}
        assert answer["topic"] == "answer"
        assert answer["messages"] == 0
        assert answer["readers"] == ["host.0"]
        shown = cli.call_node("job", node, "show", "job-1")
        assert re.search("topic question: 2 messages, 10 bytes, .*; 1 B/s now", shown.stdout)
        assert "topic answer: host.0" in shown.stdout
        assert "channel, session_job-1: 2 messages, 10 B received, " in shown.stdout
        figures = ask(node, "operator", "GET", "/metrics").text
        received = [("received_messages_total", 2), ("received_bytes_total", 10)]
        assert 'bfia_channel_session_received_bytes_per_second{session="session_job-1"}' in figures
        for name, number in [("messages", 2), ("bytes", 10), ("readers", 1), *received]:
            assert f'bfia_channel_session_{name}{{session="session_job-1"}} {number}.0' in figures
        call(node, "push", told["guest.0"], topic="answer", payload=PAYLOAD)
        assert waits.result()["content"] == PAYLOAD
        for _ in range(2):
            call(node, "pop", told["host.0"], topic="question", timeout=1000)
        assert channel() == []


def test_a_run_that_is_stopped_while_it_waits_says_for_what(tmp_path):
    """As after a timeout: the topic, what nobody has read, and the push that was refused last."""
    forever = {"vendor:1.0.0": Script(code=None)}
    with (
        running(tmp_path, make_engine=MemoryEngine.making(forever)) as node,
        ThreadPoolExecutor(1) as threads,
    ):
        told = containers(node, "job-1", {"guest": (ME,), "host": (ME,)}, launched=True)
        waits = threads.submit(call, node, "pop", told["host.0"], topic="answer", timeout=100_000)
        wait_for(lambda: waits.done() or node.broker.backlog("session_job-1"))
        call(node, "push", told["guest.0"], topic="question", payload=PAYLOAD)
        nowhere = told["guest.0"] | {"x-ptp-target-node-id": STRANGER}
        assert call(node, "push", nowhere, topic="answer", payload=PAYLOAD)["code"] != "E0000000000"
        shown = cli.call_node("job", node, "show", "job-1").stdout
        assert "last refused push" in shown
        assert STRANGER in shown
        ending = Ending(Outcome.FAILED, node.clock(), Failure("TIMEOUT", "not over after 5 s"))
        node.executor.record("job-1", StopRequested(node.clock(), None, ending, ME))
        wait_for(lambda: all(run.over for run in node.store.local_jobs.get("job-1").runs))
        waits.result()
        url = node.addresses()["operator"]
        shown = cli.call("job", "show", "job-1", "--url", url, env={"COLUMNS": "400"}).stdout
    line = next(line for line in shown.splitlines() if " as host.0: when it was stopped" in line)
    assert "it waited for topic answer; unread: question (1); last refused push: " in line


@pytest.mark.parametrize("verb", ["push", "pop", "peek", "release"])
def test_a_request_for_a_stale_session_is_shown_logged_and_counted(tmp_path, verb):
    """The job of the container that sends it shows it, although the session that it names is another's."""
    with running(tmp_path) as node:
        told = containers(node, "job-1", {"guest": (ME,), "host": (ME,)})
        stale = told["guest.0"] | {"x-ptp-session-id": "session_job-0"}
        with capture_logs() as lines:
            for _ in range(2):
                assert call(node, verb, stale, topic="t", payload=PAYLOAD)["code"] == "E0000000403"
        job = ask(node, "operator", "GET", "/api/v1/jobs/job-1").json()
        figures = ask(node, "operator", "GET", "/metrics").text
        shown = cli.call_node("job", node, "show", "job-1").stdout
    words = "x-ptp-session-id is not this run's session"
    assert job["channel_refused"].startswith(f"{verb}: ")
    assert words in job["channel_refused"]
    assert f"last refused {verb}: " in shown
    assert re.search(
        f'bfia_channel_refused_total{{reason="[A-Z_]+",request="{verb}"}} 2.0', figures
    )
    (logged,) = [line for line in lines if line["event"] == "channel request refused"]
    assert words in logged["cause"]
    assert "session_job-1" in logged["sessions"]


def test_what_another_node_refuses_is_shown_as_refused(tmp_path):
    with running(tmp_path) as node:
        told = containers(node, "job-1", {"guest": (ME,), "host": (ME,)})
        brought = told["guest.0"] | {"x-ptp-source-node-id": STRANGER, "x-ptp-version": "1"}
        answer = ask(
            node, "peer", "POST", f"{CHAN}invoke", json={"topic": "t"}, headers=brought
        ).json()
        assert answer["code"] != "E0000000000"
        job = ask(node, "operator", "GET", "/api/v1/jobs/job-1").json()
    assert job["channel_refused"].startswith("invoke: ")
    assert STRANGER in job["channel_refused"]
