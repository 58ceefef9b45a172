"""Failures as other institutions are told them: without addresses of daemons, without file paths.

The protocols differ; the rule is the same for all of them.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi.testclient import TestClient

from adapter.bfia import client as bfia
from adapter.bfia import interconn
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.requests import Peers
from adapter.bfia.translate import audit_answer_body, ending_fields
from adapter.fate import client as fate
from adapter.fate import requests as wire
from adapter.fate.calls import Caller
from adapter.fate.endpoints import task_data
from adapter.fate.participant import ParticipantClient
from adapter.fate.words import TaskWord
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.http.app import Mounted, create_app
from gateway.ports import JobView, Limiters, TaskNews, TaskReport
from tests.builders import T0, a_job, a_spec

ME = "n1"
PEER = "n2"

# A failure with a daemon's address and a path, and its text for other institutions.
FAILURE = Failure("NO_SPACE", "engine tcp://10.9.9.9:2376: no room at /srv/bfia/storage/x", PEER)
OUTWARD_TEXT = "engine tcp://…: no room at …/x"

ENDING = Ending(Outcome.FAILED, T0, FAILURE, ME)
REPORT = TaskReport("t1_a_0", "host", TaskStatus.FAILED, FAILURE, "t1")
SPEC = a_spec(
    "a",
    {
        "guest": (ME,),
        "host": (PEER,),
    },
    job_id="t1",
    scheduler=ME,
)


class Recorder:
    """Records the bodies that are sent to a node of either protocol."""

    profile = PROFILES["spec"]

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Record a body of the standard's protocol."""
        self.bodies.append(dict(body))

    def __call__(
        self,
        node: str,
        path: str,
        body: Mapping[str, Any],
        *_: Any,
    ) -> tuple[int, Any]:
        """Record a body of FATE's protocol."""
        self.bodies.append(dict(body))
        return 200, {
            "code": 0,
            "message": "success",
        }


# ---------------------------------------------------------------- senders: each returns the bodies


def report_by_bfia() -> Any:
    recorder: Any = Recorder()
    bfia.SchedulerClient(recorder).report_task(REPORT, ME)
    return recorder.bodies


def reject_by_bfia() -> Any:
    recorder: Any = Recorder()
    bfia.SchedulerClient(recorder).confirm_job("t1", FAILURE, ME)
    return recorder.bodies


def no_headers(
    node: str,
    initiator: str,
) -> dict[str, str]:
    return {}


def protocol_of(job_id: str) -> str:
    return "fate"


def report_by_fate() -> Any:
    recorder = Recorder()
    caller = Caller(PEER, recorder, no_headers)
    client = fate.SchedulerClient(ME, caller, None, None, protocol_of)  # type: ignore[arg-type]
    client.report_task(REPORT, ME)
    return recorder.bodies


def stop_by_fate() -> Any:
    recorder = Recorder()
    caller = Caller(PEER, recorder, no_headers)
    job = a_job(
        spec=SPEC,
        status=JobStatus.RUNNING,
        a=TaskStatus.RUNNING,
    )
    find_job = {"t1": job}.get
    client = ParticipantClient(caller, None, None, find_job)  # type: ignore[arg-type]
    client.stop_job("t1", "", ENDING, ME)
    return recorder.bodies


def collect_by_fate() -> Any:
    request = wire.Task(
        job_id="t1",
        role="host",
        party_id=PEER,
        task_id="t1_a",
        task_version=0,
    )
    news = TaskNews(TaskStatus.FAILED, FAILURE)
    return task_data(request, TaskWord.FAILED, news, None, "t1_a_0")


def fields_of_an_ending() -> Any:
    return ending_fields(ENDING)


def body_of_a_rejection() -> Any:
    return audit_answer_body("audit-1", FAILURE)


SENDERS = [
    report_by_bfia,
    reject_by_bfia,
    report_by_fate,
    stop_by_fate,
    collect_by_fate,
    fields_of_an_ending,
    body_of_a_rejection,
]


@pytest.mark.parametrize("send", SENDERS)
def test_requests_to_other_nodes_reveal_no_place(send):
    assert_reveals_no_place(json.dumps(send(), ensure_ascii=False))


# ---------------------------------------------------------------- responses


class FailedJob:
    """The use cases of a node whose job has failed."""

    def job_status(self, job_id: str, sender: str) -> JobView:
        return JobView(
            "t1",
            JobStatus.FINISHED,
            outcome=Outcome.FAILED,
            failure=FAILURE,
            warnings=["/srv/bfia/y"],
        )

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: str,
    ) -> TaskNews:
        return TaskNews(TaskStatus.FAILED, FAILURE)


@pytest.fixture(scope="module")
def peers_listener():
    """A client of the paths for other nodes."""

    def admits(node: str) -> bool:
        return True

    def profile_of(node: str) -> Profile:
        return PROFILES["spec"]

    def is_relay(node: str) -> bool:
        return False

    def ignore(*_: Any) -> None:
        pass

    one_at_a_time = CapacityLimiter(1)
    limiters = Limiters(one_at_a_time, one_at_a_time, one_at_a_time)
    node: Any = FailedJob()
    peers = Peers(admits, profile_of, limiters, is_relay, ignore)
    router = interconn.router(ME, node, node, peers)
    return TestClient(create_app("peers", [Mounted(router, 10_000)]))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("job/status_all", {"job_id": "t1"}),
        ("task/poll", {"task_id": "t1"}),
    ],
    ids=["job", "task"],
)
def test_responses_to_other_nodes_reveal_no_place(peers_listener, path, body):
    response = peers_listener.post(
        f"{interconn.SCHEDULE}/{path}",
        json=body,
        headers={"x-source-node-id": PEER},
    )
    assert_reveals_no_place(response.text)


def assert_reveals_no_place(text: str) -> None:
    """Fail unless a text has the failure as other institutions may read it."""
    assert OUTWARD_TEXT in text
    assert "10.9" not in text
    assert "/srv" not in text
