"""Where a failure is told to another institution, that reads neither where daemons are nor where files lie."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi.testclient import TestClient

from adapter.bfia import client as bfia
from adapter.bfia import interconn
from adapter.bfia.profiles import PROFILES
from adapter.bfia.requests import Peers
from adapter.bfia.translate import audit_answer_body, ending_fields
from adapter.fate import client as fate
from adapter.fate import requests as wire
from adapter.fate.client import Caller, ParticipantClient
from adapter.fate.endpoints import collected
from adapter.fate.words import TaskWord
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.http.app import Mounted, create_app
from gateway.ports import JobView, Limiters, TaskNews, TaskReport
from tests.builders import T0, a_job, a_spec

ME, PEER = "n1", "n2"
WHY = Failure("NO_SPACE", "engine tcp://10.9.9.9:2376: no room at /srv/bfia/storage/x", PEER)
TOLD = "engine tcp://…: no room at …/x"
ENDING = Ending(Outcome.FAILED, T0, WHY, ME)
REPORT = TaskReport("t1_a_0", "host", TaskStatus.FAILED, WHY, "t1")
SPEC = a_spec("a", {"guest": (ME,), "host": (PEER,)}, job_id="t1", scheduler=ME)


class Sent:
    """Keeps what is sent, to a node of either protocol."""

    profile = PROFILES["spec"]

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        **more: Any,
    ) -> None:
        self.bodies.append(body)

    def __call__(
        self,
        node: str,
        path: str,
        body: Mapping[str, Any],
        *more: Any,
    ) -> tuple[int, Any]:
        self.bodies.append(body)
        return 200, {"code": 0, "message": "success"}


def bfia_reports(sent: Any) -> None:
    bfia.SchedulerClient(sent).report_task(REPORT, ME)


def bfia_does_not_agree(sent: Any) -> None:
    bfia.SchedulerClient(sent).confirm_job("t1", WHY, ME)


def fate_reports(sent: Any) -> None:
    caller = Caller(PEER, sent, lambda node, initiator: {})
    fate.SchedulerClient(ME, caller, None, None, lambda job: "fate").report_task(REPORT, ME)  # type: ignore[arg-type]


def fate_ends_a_job(sent: Any) -> None:
    job = a_job(
        spec=SPEC,
        status=JobStatus.RUNNING,
        a=TaskStatus.RUNNING,
    )
    caller = Caller(PEER, sent, lambda node, initiator: {})
    ParticipantClient(caller, None, None, {"t1": job}.get).stop_job("t1", "", ENDING, ME)  # type: ignore[arg-type]


def fate_collects(_: Any) -> Any:
    body = wire.Task(
        job_id="t1",
        role="host",
        party_id=PEER,
        task_id="t1_a",
        task_version=0,
    )
    return collected(body, TaskWord.FAILED, TaskNews(TaskStatus.FAILED, WHY), None, "t1_a_0")


@pytest.mark.parametrize(
    "tell",
    [
        *(bfia_reports, bfia_does_not_agree, fate_reports, fate_ends_a_job, fate_collects),
        lambda _: ending_fields(ENDING),
        lambda _: audit_answer_body("audit-1", WHY),
    ],
)
def test_what_is_sent(tell: Any):
    sent = Sent()
    said = json.dumps([tell(sent), *(dict(body) for body in sent.bodies)], ensure_ascii=False)
    assert TOLD in said and "10.9" not in said and "/srv" not in said


@pytest.fixture(scope="module")
def peers() -> TestClient:
    """The paths for other nodes, before a job that has failed."""
    view = JobView(
        "t1",
        JobStatus.FINISHED,
        outcome=Outcome.FAILED,
        failure=WHY,
        warnings=["/srv/bfia/y"],
    )
    few = CapacityLimiter(1)
    router = interconn.router(
        ME,
        SimpleNamespace(job_status=lambda job_id, sender: view),  # type: ignore[arg-type]
        SimpleNamespace(poll_task=lambda task, role, sender: TaskNews(TaskStatus.FAILED, WHY)),  # type: ignore[arg-type]
        Peers(
            lambda node: True,
            lambda node: PROFILES["spec"],
            Limiters(few, few, few),
            lambda node: False,
            lambda *_: None,
        ),
    )
    return TestClient(create_app("peers", [Mounted(router, 10_000)]))


@pytest.mark.parametrize(
    ("path", "body"), [("job/status_all", {"job_id": "t1"}), ("task/poll", {"task_id": "t1"})]
)
def test_what_is_answered(
    peers: TestClient,
    path: str,
    body: dict[str, str],
):
    said = peers.post(
        f"{interconn.SCHEDULE}/{path}", json=body, headers={"x-source-node-id": PEER}
    ).text
    assert TOLD in said and "10.9" not in said and "/srv" not in said
