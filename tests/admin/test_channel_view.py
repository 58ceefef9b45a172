"""The channel of a job as operators see it: unread messages, waiting readers, refused requests."""

import base64
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.domain.execution.messages import StopRequested
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import Outcome
from tests.cli import call, call_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER, Node, containers
from tests.memory_engine import Script

CHANNEL = "/v1/interconn/chan/"
SUCCESS = "E0000000000"
PAYLOAD = base64.b64encode(b"hello").decode()
BOTH_PARTIES = {
    "guest": (ME,),
    "host": (ME,),
}
READ_TIMEOUT = 100_000  # ms; longer than the test


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """A thread for a container that waits for a message."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def send(
    node: Node,
    verb: str,
    headers: dict[str, str],
    **body: Any,
) -> Any:
    """Send a container's request to the channel; return the body of the response."""
    headers = {"x-ptp-target-node-id": ME} | headers
    path = CHANNEL + verb
    return node.request("POST", path, listener="container", json=body, headers=headers).json()


def wait_for_reader(
    node: Node,
    reading: Future[Any],
) -> None:
    """Wait until a container waits for a message, or has failed to."""

    def is_waiting() -> bool:
        return reading.done() or bool(node.broker.backlog("session_job-1"))

    wait_for(is_waiting)


def shown_job(node: Node) -> str:
    """Return what the command shows of the job."""
    return call_node("job", node, "show", "job-1").stdout


def job_of(node: Node) -> Any:
    """Return the job as the operators' path has it."""
    return node.get("/api/v1/jobs/job-1").json()


def test_unread_messages_and_waiting_readers_are_shown(world, threads):
    node = world.node()
    headers = containers(node, "job-1", BOTH_PARTIES)
    guest = headers["guest.0"]
    host = headers["host.0"]
    reading = threads.submit(
        send,
        node,
        "pop",
        host,
        topic="answer",
        timeout=READ_TIMEOUT,
    )
    wait_for_reader(node, reading)
    for _ in range(2):
        send(
            node,
            "push",
            guest,
            topic="question",
            payload=PAYLOAD,
        )

    unread, waiting = job_of(node)["channel"]
    assert unread.pop("oldest") >= 0
    assert unread == {
        "session": "session_job-1",
        "topic": "question",
        "messages": 2,
        "bytes": 10,
        "bytes_per_second": 1,
        "readers": [],
    }
    assert waiting["topic"] == "answer"
    assert waiting["messages"] == 0
    assert waiting["readers"] == ["host.0"]

    printed = shown_job(node)
    assert re.search("topic question: 2 messages, 10 bytes, .*; 1 B/s now", printed)
    assert "topic answer: host.0" in printed
    assert "channel, session_job-1: 2 messages, 10 B received, " in printed
    check_metrics(node)

    send(
        node,
        "push",
        guest,
        topic="answer",
        payload=PAYLOAD,
    )
    assert reading.result()["content"] == PAYLOAD
    for _ in range(2):
        send(
            node,
            "pop",
            host,
            topic="question",
            timeout=1000,
        )
    assert job_of(node)["channel"] == []


def check_metrics(node: Node) -> None:
    """Check the metrics of two unread messages and a waiting reader."""
    metrics = node.get("/metrics").text
    session = 'session="session_job-1"'
    assert f"bfia_channel_session_received_bytes_per_second{{{session}}}" in metrics
    values = {
        "messages": 2,
        "bytes": 10,
        "readers": 1,
        "received_messages_total": 2,
        "received_bytes_total": 10,
    }
    for name, value in values.items():
        assert f"bfia_channel_session_{name}{{{session}}} {value}.0" in metrics


def test_a_run_that_is_stopped_while_it_waits_shows_its_topic(world, threads):
    """As after a timeout: with the unread messages and the last refused push."""
    node = world.node(scripts={"vendor:1.0.0": Script(code=None)})
    headers = containers(
        node,
        "job-1",
        BOTH_PARTIES,
        launched=True,
    )
    guest = headers["guest.0"]
    host = headers["host.0"]
    reading = threads.submit(
        send,
        node,
        "pop",
        host,
        topic="answer",
        timeout=READ_TIMEOUT,
    )
    wait_for_reader(node, reading)
    send(
        node,
        "push",
        guest,
        topic="question",
        payload=PAYLOAD,
    )
    to_stranger = guest | {"x-ptp-target-node-id": STRANGER}
    assert send(node, "push", to_stranger, topic="answer", payload=PAYLOAD)["code"] != SUCCESS
    printed = shown_job(node)
    assert "last refused push" in printed
    assert STRANGER in printed

    failure = Failure("TIMEOUT", "not over after 5 s")
    ending = Ending(
        Outcome.FAILED,
        node.clock(),
        failure,
    )
    node.executor.record(
        "job-1",
        StopRequested(node.clock(), None, ending, ME),
    )

    def all_runs_over() -> bool:
        return all(run.over for run in node.store.local_jobs.get("job-1").runs)

    wait_for(all_runs_over)
    reading.result()
    url = node.addresses()["operator"]
    printed = call("job", "show", "job-1", "--url", url, env={"COLUMNS": "400"}).stdout
    (line,) = [line for line in printed.splitlines() if " as host.0: when it was stopped" in line][
        :1
    ]
    assert "it waited for topic answer; unread: question (1); last refused push: " in line


@pytest.mark.parametrize(
    "verb",
    ["push", "pop", "peek", "release"],
)
def test_a_request_for_a_stale_session_is_shown_logged_and_counted(world, verb):
    """It is shown at the sender's job, although it names the session of a different job."""
    node = world.node()
    headers = containers(node, "job-1", BOTH_PARTIES)
    stale = headers["guest.0"] | {"x-ptp-session-id": "session_job-0"}

    with capture_logs() as lines:
        for _ in range(2):
            response = send(
                node,
                verb,
                stale,
                topic="t",
                payload=PAYLOAD,
            )
            assert response["code"] == "E0000000403"

    cause = "x-ptp-session-id is not this run's session"
    refused = job_of(node)["channel_refused"]
    assert refused.startswith(f"{verb}: ")
    assert cause in refused
    assert f"last refused {verb}: " in shown_job(node)
    count = f'bfia_channel_refused_total{{reason="[A-Z_]+",request="{verb}"}} 2.0'
    assert re.search(
        count,
        node.get("/metrics").text,
    )
    (line,) = [line for line in lines if line["event"] == "channel request refused"]
    assert cause in line["cause"]
    assert "session_job-1" in line["sessions"]


def test_a_refused_message_of_a_partner_is_shown(world):
    node = world.node()
    headers = containers(node, "job-1", BOTH_PARTIES)["guest.0"]
    headers |= {
        "x-ptp-source-node-id": STRANGER,
        "x-ptp-version": "1",
    }

    response = node.request(
        "POST", f"{CHANNEL}invoke", listener="peer", json={"topic": "t"}, headers=headers
    )

    assert response.json()["code"] != SUCCESS
    refused = job_of(node)["channel_refused"]
    assert refused.startswith("invoke: ")
    assert STRANGER in refused
